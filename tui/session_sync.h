/*
 * Waiting for the disk on a thread of its own. A journal is written by its owner's thread, which is
 * enough to survive the death of the program; only the machine's death asks for a flush, and that
 * may take long, so that the screen must not wait for it. Functions are called by the owner of the
 * session; the syncer borrows the descriptor until it is freed.
 */
#ifndef TUI_SESSION_SYNC_H
#define TUI_SESSION_SYNC_H

#include "engine/base/err.h"

typedef struct session_sync session_sync;

/* A syncer for the journal fd in the folder dir, whose new entry is flushed first. Never NULL. */
session_sync *session_sync_new(int fd, const char *dir);
/* Flushes what waits, ends the thread, frees. NULL is allowed. */
void session_sync_free(session_sync *s);
/* All that is written by now must reach the disk; returns at once. Without a thread it waits. */
void session_sync_want(session_sync *s);
/* OK, or once the failure of a flush since the last call. NULL is allowed. */
int session_sync_take_error(session_sync *s, err *e);

#endif
