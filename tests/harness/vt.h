/* A small terminal emulator for tests: bytes in, a grid of cells out. It knows what curses sends
 * for TERM=xterm-256color and the modes that the program sets; anything else is counted as unknown,
 * so a test can insist on none. Widths are those of wcwidth, one code point at a time, as xterm
 * does it: on purpose not the program's own rules. One thread. */
#ifndef TESTS_HARNESS_VT_H
#define TESTS_HARNESS_VT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

#define VT_CELL_BYTES 32

typedef struct vt_cell {
    char text[VT_CELL_BYTES];
    uint8_t len, columns; /* columns 0: right half of a wide cell */
    int16_t color;        /* -1: default */
    uint8_t is_bold, is_reverse, is_underlined, is_dim;
} vt_cell;

typedef struct vt {
    int n_rows, n_columns, row, column, saved_row, saved_column, top, bottom;
    vt_cell *cells, pen;
    bool is_alternate, has_cursor, has_paste, has_mouse, has_wheel, has_kitty, in_sync, must_wrap;
    bool answers; /* replies to questions are put into reply */
    int n_sync, n_unknown, n_controls;
    int n_clears;     /* of the whole screen */
    char unknown[64]; /* the first unknown sequence */
    char sequence[256];
    size_t sequence_len;
    int state;
    char title[64];
    buf clipboard; /* payload of the last OSC 52, as sent */
    buf reply;
    char last[8]; /* last character printed, for REP */
    size_t last_len;
    char partial[4];
    size_t partial_len;
} vt;

void vt_init(vt *t, int n_rows, int n_columns);
void vt_release(vt *t);
void vt_feed(vt *t, const char *s, size_t n);
void vt_resize(vt *t, int n_rows, int n_columns);
/* Rows as text without blanks at their ends, each with a line feed. */
void vt_text(const vt *t, buf *out);
void vt_row(const vt *t, int row, buf *out);
/* True if the text stands somewhere in one row. */
bool vt_has(const vt *t, const char *text);
const vt_cell *vt_at(const vt *t, int row, int column);

#endif
