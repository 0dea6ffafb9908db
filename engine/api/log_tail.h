/* The newest lines of this process's log, for clients that follow it. Bounded; the oldest lines are
 * forgotten, long ones are cut. Threads: any. */
#ifndef TANDEM_API_LOG_TAIL_H
#define TANDEM_API_LOG_TAIL_H

#include "engine/base/buf.h"
#include "engine/base/log.h"

typedef struct log_tail log_tail;

log_tail *log_tail_new(void);
/* Not while it is the sink of the log. NULL is fine. */
void log_tail_free(log_tail *t);
/* A log_sink; ctx is the tail. */
void log_tail_take(void *ctx, log_level level, const char *line, size_t len);
/* Appends each kept line behind number since and of this level or more urgent as an event of a
 * stream. Returns the number of the newest line looked at (since when there is none). */
uint64_t log_tail_print(log_tail *t, uint64_t since, log_level level, buf *out);

#endif
