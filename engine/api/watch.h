/* Deadlines of connections that trickling bytes do not extend: for the head of a request, for its
 * body, for the next request. The HTTP library only knows a time without any byte. A late connection
 * is shut down; the library then ends it.
 * Threads: any; one thread of its own looks. */
#ifndef TANDEM_API_WATCH_H
#define TANDEM_API_WATCH_H

#include <stdbool.h>
#include <stdint.h>

typedef struct watch watch;
typedef struct watched watched;

/* look_ms: how exact deadlines are. NULL if the thread does not start. */
watch *watch_new(uint32_t look_ms);
/* All connections must have left. */
void watch_free(watch *w);
/* Shuts all connections, those that stand and those that come, and waits for them to leave; false
 * when some are still there after timeout_ms. */
bool watch_shut_all(watch *w, uint32_t timeout_ms);
/* A connection; its descriptor must stay open until watch_leave. */
watched *watch_enter(watch *w, int fd);
void watch_leave(watch *w, watched *c);
/* The deadline from now on; 0: none. c may be NULL. */
void watch_set(watch *w, watched *c, uint64_t timeout_ms);

#endif
