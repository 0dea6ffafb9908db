/*
 * Streaming Markdown: text goes in as it arrives, rows come out. Closed blocks never change again;
 * only the open block is laid out anew. What has been shown keeps its style: a mark whose meaning
 * is not yet clear is held back until it is (tui.md 7.2). Text must be clean (width_cleaner). One
 * thread; a document owns everything it hands out, valid until the next md_append, md_layout or
 * md_free.
 */
#ifndef TUI_MD_H
#define TUI_MD_H

#include <stdbool.h>
#include <stddef.h>

#include "tui/canvas.h"
#include "tui/rich.h"
#include "tui/theme.h"

typedef struct md md;

/* is_plain: the text is shown as written (the user's own messages, thinking), in role. */
md *md_new(bool is_plain, canvas_role role);
void md_free(md *d);
/* Takes the next piece. OK, or ERR_LIMIT above 64 MiB. */
int md_append(md *d, const char *s, size_t n);
/* The text is complete: what was held back is shown as it is. */
void md_finish(md *d);

/* Lays out what has changed for a width; returns the number of rows. */
int md_layout(md *d, int columns, const theme *look);
/* Draws row i of the last layout. skip moves unwrapped rows (code) to the left. */
void md_draw_row(const md *d, int i, int skip, pen *p);
/* True if the row is wider than the pane: it can be scrolled sideways. */
bool md_row_is_wide(const md *d, int i, int columns);
/* A place in the text for a row, and the row that shows a place now: keeps a view still when the
 * width changes. */
size_t md_place_of_row(const md *d, int i);
int md_row_of_place(const md *d, size_t place);

/* Code blocks in order, numbered from 1: their text without the fences. */
int md_n_code(const md *d);
void md_code(const md *d, int number, buf *out);
/* The number of the code block that row i shows, or 0. */
int md_code_at_row(const md *d, int i);
/* Targets of links in order, from 1; NULL when there is none. */
const char *md_link(const md *d, int number);
const char *md_source(const md *d, size_t *len);

#endif
