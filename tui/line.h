/*
 * One editable line of text with history behind it: the seam between the input pane (input_pane.h)
 * and what edits the text. edit.c does it with readline, line_simple.c without (make READLINE=0).
 * There is one line per process because readline's state is global; used by the screen's thread
 * only. Points are byte offsets at character starts. Text may contain line feeds.
 */
#ifndef TUI_LINE_H
#define TUI_LINE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tui/input.h"

/* Starts the editor. Must come before curses starts (term.h). */
int line_open(err *e);
void line_close(void);

/* Feeds one key or text event. Enter ends the line: see line_take. */
void line_key(const input_event *ev);
/* If Enter ended the line: moves its text to out (appended) and returns true. */
bool line_take(buf *out);

const char *line_text(size_t *len);
size_t line_point(void);
void line_set_point(size_t at);
/* Replaces the whole text as a fresh line, the point at its end. */
void line_replace(const char *s, size_t n);
/* Inserts at the point as one step of undo. */
void line_insert(const char *s, size_t n);
/* Removes bytes [from, to) as one step of undo. */
void line_delete(size_t from, size_t to);
/* Puts the text into the kill ring and empties the line. */
void line_kill_all(void);

/* Older (-1) or newer (+1) entry of the history. */
void line_history_step(int direction);
void line_history_add(const char *s);

/* In a search or numeric argument: its text, to be shown; else NULL. */
const char *line_message(void);
/* Leaves a search or an unfinished key sequence. True if there was one. */
bool line_abort(void);
/* The user's inputrc asks for vi mode, so a lone Esc belongs to the editor. */
bool line_is_vi(void);
/* "readline 8.2" or "built-in". */
const char *line_editor_name(void);

#endif
