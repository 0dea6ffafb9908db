/*
 * Meters, sparklines and column plots. Pure drawing from a list of samples; a sample that is not
 * valid is a gap, never zero.
 */
#ifndef TUI_PLOT_H
#define TUI_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "tui/canvas.h"
#include "tui/theme.h"

/* NAN marks a gap. */
typedef struct plot_series {
    const float *samples; /* oldest first */
    int n;
} plot_series;

/* A scale that fits max: 1, 2 or 5 times a power of ten. present is kept while max stays between 10
 * % under the next smaller step and it, so that the plot does not jump. */
double plot_nice_maximum(double max, double present);
double plot_largest(const plot_series *s);
/* [####....] with columns cells between the brackets; value below 0 or NAN shows an empty meter. */
void plot_meter(pen *p, const theme *look, double value, int columns);
/* [####==..]: a second part behind the first in another glyph. A part above 0 has a cell at least. */
void plot_meter_two(pen *p, const theme *look, double first, double second, int columns);
/* One row of columns cells, newest at the right, scaled to maximum. */
void plot_sparkline(pen *p, const theme *look, const plot_series *s, double maximum, int columns);
/* Fills the pen's box: scale at the left (label_columns wide), one column per bucket. */
void plot_columns(pen *p, const theme *look, const plot_series *s, double maximum);

#endif
