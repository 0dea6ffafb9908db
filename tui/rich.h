/*
 * Styled text and its rows: a growing text with styled runs, and the wrapping of it into rows of a
 * width. One thread; a rich owns its storage. Wrapping is greedy from the start, so a row never
 * changes once the next one exists, whatever is appended.
 */
#ifndef TUI_RICH_H
#define TUI_RICH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "tui/canvas.h"

typedef struct rich_run {
    uint32_t at, len; /* bytes of text */
    style st;
} rich_run;

typedef struct rich {
    buf text;
    rich_run *runs; /* in order, without gaps */
    int n_runs, runs_cap;
} rich;

enum {
    RICH_ROW_UNWRAPPED = 1 /* may be wider than the pane: cut and marked, scrolls sideways */
};

/* One row: a mark (list number, quote bar) and a stretch of the text after an indent. */
typedef struct rich_row {
    uint32_t at, len;
    int16_t indent;   /* columns before the text */
    uint8_t flags;    /* RICH_ROW_ bits */
    uint8_t has_mark; /* the block's mark is drawn in this row */
} rich_row;

typedef struct rich_rows {
    rich_row *rows;
    int n_rows, rows_cap;
} rich_rows;

void rich_release(rich *r);
void rich_reset(rich *r);
/* Appends text in a style; tabs become four blanks. */
void rich_add(rich *r, const char *s, size_t n, style st);
void rich_puts(rich *r, const char *s, style st);

void rich_rows_release(rich_rows *rows);
void rich_rows_reset(rich_rows *rows);
rich_row *rich_rows_add(rich_rows *rows, uint32_t at, uint32_t len, int indent);
/* Wraps bytes [from, text.len) into rows of at most columns; a line feed ends a row. first is the
 * indent of the first row, rest of the others. At least one row comes out. */
void rich_wrap(const rich *r, size_t from, int columns, int first, int rest, rich_rows *out);

/* Draws the text of a row at the pen, from byte column skip on for unwrapped rows. */
void rich_draw(const rich *r, const rich_row *row, int skip_columns, const char *cut_mark, pen *p);

#endif
