/*
 * Drafts on disk: a worker thread writes them, so that typing never waits for a disk. Functions are
 * called by the screen's thread; the keeper owns copies of all it is given.
 */
#ifndef TUI_DRAFT_H
#define TUI_DRAFT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

typedef struct draft_keeper draft_keeper;

/* A keeper for the folder of the sessions. Never NULL; without a thread it writes at once. */
draft_keeper *draft_keeper_new(const char *session_dir);
/* Writes what waits, ends the thread, frees. NULL is allowed. */
void draft_keeper_free(draft_keeper *k);
/* The unsent text of a session ("" = none open yet) is now this; an empty text removes it. Only the
 * newest text of a session is written. */
void draft_keeper_put(draft_keeper *k, const char *name, const char *text, size_t len);
/* True, with the sentence, if a write has failed since the last call. */
bool draft_keeper_take_error(draft_keeper *k, err *e);

#endif
