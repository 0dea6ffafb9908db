#include "tui/plot.h"

#include <math.h>
#include <stdio.h>

#define LABEL_COLUMNS 6

static double step_above(double max) {
    if (!(max > 0)) return 1;
    double power = pow(10, floor(log10(max)));
    static const double STEPS[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++) {
        if (max <= STEPS[i] * power * (1 + 1e-9)) return STEPS[i] * power;
    }
    return 10 * power;
}

double plot_nice_maximum(double max, double present) {
    double wanted = step_above(max);
    if (present <= 0 || wanted > present) return wanted;
    return step_above(max * 1.1) < present ? step_above(max * 1.1) : present;
}

double plot_largest(const plot_series *s) {
    double largest = 0;
    for (int i = 0; i < s->n; i++) {
        if (!isnan(s->samples[i]) && s->samples[i] > largest) largest = s->samples[i];
    }
    return largest;
}

static int cells(double value, int columns) {
    double share = isnan(value) || value < 0 ? 0 : value > 1 ? 1 : value;
    int n = (int)lround(share * columns);
    return n == 0 && share > 0 ? 1 : n;
}

void plot_meter(pen *p, const theme *look, double value, int columns) {
    plot_meter_two(p, look, value, 0, columns);
}

void plot_meter_two(pen *p, const theme *look, double first, double second, int columns) {
    if (columns < 1) return;
    int full = cells(first, columns);
    int half = cells(second, columns);
    if (half > columns - full) half = columns - full;
    style st = p->st;
    pen_role(p, ROLE_BORDER);
    pen_str(p, "[");
    pen_style(p, st);
    pen_repeat(p, look->glyphs->bar_full, full);
    pen_repeat(p, look->glyphs->bar_half, half);
    pen_role(p, ROLE_BORDER);
    pen_repeat(p, look->glyphs->bar_empty, columns - full - half);
    pen_str(p, "]");
    pen_style(p, st);
}

/* The mean of the samples that fall into column i of n columns that end at the newest sample. */
static double bucket(const plot_series *s, int i, int n) {
    int per_column = s->n > n ? (s->n + n - 1) / n : 1;
    int end = s->n - (n - 1 - i) * per_column, start = end - per_column, count = 0;
    double sum = 0;
    for (int j = start < 0 ? 0 : start; j < end && j < s->n; j++) {
        if (isnan(s->samples[j])) continue;
        sum += s->samples[j];
        count++;
    }
    return count > 0 ? sum / count : (double)NAN;
}

static int eighths(double value, double maximum, int rows) {
    if (isnan(value) || maximum <= 0) return -1;
    double part = value / maximum;
    if (part > 1) part = 1;
    int level = (int)lround(part * rows * 8);
    return level == 0 && value > 0 ? 1 : level;
}

void plot_sparkline(pen *p, const theme *look, const plot_series *s, double maximum, int columns) {
    for (int i = 0; i < columns; i++) {
        int level = eighths(bucket(s, i, columns), maximum, 1);
        pen_str(p, look->glyphs->levels[level < 0 ? 0 : level]);
    }
}

static void label(pen *p, double value) {
    if (value >= 10000)
        pen_printf(p, "%4.0fk ", value / 1000);
    else if (value >= 10 || value == 0)
        pen_printf(p, "%5.0f ", value);
    else
        pen_printf(p, "%5.1f ", value);
}

static void one_row(pen *p, const theme *look, const plot_series *s, double maximum) {
    int rows = p->box.n_rows, columns = p->box.n_columns - LABEL_COLUMNS, row = p->row;
    style st = p->st;
    pen_role(p, ROLE_DIM);
    /* A label at the top, the middle and the foot; the foot is zero. */
    if (row == 0)
        label(p, maximum);
    else if (row == rows - 1)
        label(p, 0);
    else if (rows >= 5 && row == (rows - 1) / 2)
        label(p, maximum * (rows - row) / rows);
    pen_style(p, st);
    for (int i = 0; i < columns; i++) {
        int level = eighths(bucket(s, i, columns), maximum, rows) - 8 * (rows - 1 - row);
        pen_move(p, row, LABEL_COLUMNS + i);
        if (level > 0) pen_str(p, look->glyphs->levels[level > 8 ? 8 : level]);
    }
}

void plot_columns(pen *p, const theme *look, const plot_series *s, double maximum) {
    for (int row = 0; row < p->box.n_rows; row++) {
        pen_move(p, row, 0);
        one_row(p, look, s, maximum);
    }
}
