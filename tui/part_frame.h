/*
 * Pieces that several screens draw: boxes with titles, lines of fields that drop by rank when the
 * width is short, numbers with units. Pure drawing.
 */
#ifndef TUI_PART_FRAME_H
#define TUI_PART_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "tui/canvas.h"
#include "tui/theme.h"

/* Draws a box with a title at the left and a note at the right (either may be NULL); returns a pen
 * on its inside with one blank column at each side. */
pen part_box(canvas *c, area a, const theme *look, const char *title, const char *note);

/* A field of a status line: the one with the highest rank number goes first when there is no room.
 */
typedef struct part_field {
    char text[96];
    int rank;
    canvas_role role;
} part_field;

#define PART_MAX_FIELDS 16
typedef struct part_line {
    part_field left[PART_MAX_FIELDS], right[PART_MAX_FIELDS];
    int n_left, n_right;
} part_line;

void part_line_add(part_line *l, int rank, canvas_role role, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void part_line_add_right(part_line *l, int rank, canvas_role role, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Draws the line in the pen's row; fields stand two blanks apart. */
void part_line_draw(const part_line *l, pen *p);

/* "812", "14.2k", "262k", "1.2M"; a negative value is "-". */
const char *part_count(int64_t n, char out[16]);
/* "6.6 GiB", "812 MiB"; a negative value is "-". */
const char *part_bytes(double bytes, char out[16]);
/* "0.41 s", "12 s", "2 m 41 s", "3 h 12 m"; negative is "-". */
const char *part_duration(double seconds, char out[24]);

#endif
