/*
 * The terminal: the only file that knows curses. It opens and restores the terminal, shows
 * canvases, and writes every byte that goes out. One terminal per process, used by the screen's
 * thread only.
 *
 * Restoring is guaranteed for term_close, term_suspend and for fatal signals (SEGV, BUS, ILL, FPE,
 * ABRT): a prepared byte string and the saved modes are written by the handler, which then lets the
 * signal end the process.
 */
#ifndef TUI_TERM_H
#define TUI_TERM_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"
#include "tui/canvas.h"
#include "tui/theme.h"

typedef struct terminal terminal;

typedef struct term_options {
    bool plain_glyphs;
    const char *color; /* none, 8, 256, auto or NULL */
} term_options;

/* The sentence for a terminal that cannot be used; OK when the full screen is possible. Touches
 * nothing: standard input and output are terminals and TERM names a known one that can move. */
int term_check(err *e);
/* Opens: term_check, locale, curses, raw input, alternate screen, bracketed paste. */
int term_open(const term_options *o, terminal **out, err *e);
/* Restores the terminal and frees. NULL is allowed. */
void term_close(terminal *t);

int term_input_fd(const terminal *t);
const theme *term_theme(const terminal *t);
void term_size(const terminal *t, int *n_rows, int *n_columns);
/* Asks for the size again; true if it changed. Never waits. */
bool term_resize(terminal *t);
/* Shows a canvas of the terminal's size, sending only what changed, and puts the cursor there; a
 * negative row hides it. */
void term_draw(terminal *t, const canvas *c, int cursor_row, int cursor_column);
/* Forgets what is shown: the next term_draw sends everything. */
void term_redraw(terminal *t);
/* True while the terminal has not taken what was sent (a slow link): skip the frame. */
bool term_is_behind(const terminal *t);
/* Asks a capable terminal which modes it knows; the answers come as input (input.h). */
void term_ask(terminal *t);
/* The answers: synchronized output is known; the kitty keyboard protocol is known. */
void term_set_sync(terminal *t);
void term_set_kitty(terminal *t);
/* Mouse reporting (click and drag, SGR form) and wheel-as-arrows. */
void term_set_mouse(terminal *t, bool on);
void term_set_wheel(terminal *t, bool on);
/* Gives the terminal back as it was and takes it again; between them other programs may use it. */
void term_suspend(terminal *t);
void term_resume(terminal *t);
void term_bell(terminal *t);
/* Sends text to the terminal's clipboard (OSC 52). ERR_LIMIT above 74 KB. */
int term_copy(terminal *t, const char *text, size_t len, err *e);

#endif
