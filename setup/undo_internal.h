/* What undo.c gives undo_apply.c. */
#ifndef SETUP_UNDO_INTERNAL_H
#define SETUP_UNDO_INTERNAL_H

#include "setup/undo.h"

/* Appends the line that says a change was taken back. */
int undo_mark_done(const char *path, int64_t id, err *e);

#endif
