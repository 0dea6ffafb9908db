/*
 * The input pane: the line of line.h shown over several rows, with visual up and down, new lines,
 * block mode, chips for large pastes, and the history on disk. One per process (the line is one).
 * The screen's thread only.
 */
#ifndef TUI_PART_INPUT_H
#define TUI_PART_INPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tui/canvas.h"
#include "tui/input.h"

typedef struct part_input part_input;

/* history_path may be NULL (none kept). Must come before the terminal is opened. */
int part_input_open(const char *history_path, part_input **out, err *e);
void part_input_close(part_input *p);

/* Takes a key, text or paste. True if a message is complete: take it with part_input_take. */
bool part_input_event(part_input *p, const input_event *ev);
/* The finished message: chips opened, block marks removed. Goes into the history. */
void part_input_take(part_input *p, buf *out);
/* The text as it would be sent now. */
void part_input_get(const part_input *p, buf *out);
void part_input_set(part_input *p, const char *s, size_t n);
void part_input_insert(part_input *p, const char *s);
bool part_input_is_empty(const part_input *p);
/* Empties the line into the kill ring and the history. */
void part_input_clear(part_input *p);
/* The text before the point, for completion; valid until the next event. */
const char *part_input_before_point(const part_input *p, size_t *n);

/* Rows the text needs at a width, at least 1. */
int part_input_rows(part_input *p, int columns);
/* Draws into the box with a prompt of two columns; cursor_row and cursor_column are of the canvas.
 */
void part_input_draw(part_input *p, pen *on, int *cursor_row, int *cursor_column);

#endif
