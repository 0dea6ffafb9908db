/* Throws any bytes at a real server over a scripted source and looks at what comes back: only
 * answers of HTTP, none of them a fault of the server. For fuzzers and for tests that replay their
 * seeds. One thread. */
#ifndef TESTS_HARNESS_HTTP_PROBE_H
#define TESTS_HARNESS_HTTP_PROBE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/text/tokenizer.h"

typedef struct http_probe http_probe;

/* NULL without a tokenizer (templates/demo-model or DEMO_WEIGHTS). Freed with http_probe_free. */
http_probe *http_probe_new(void);
void http_probe_free(http_probe *p);

/* Sends the bytes over one connection, over TCP if is_tcp, shuts down the sending side and reads to
 * the end. False if an answer is malformed, a fault of the server, or does not end; then why says
 * what was wrong. */
bool http_probe_bytes(http_probe *p, const void *data, size_t n, bool is_tcp, buf *why);
/* The routes that take a body. */
#define HTTP_PROBE_ROUTES 9
/* Sends a body to a route; the connection is kept for the next one. */
bool http_probe_body(http_probe *p, int i_route, const void *data, size_t n, buf *why);
/* Answers so far, by hundreds of their status. */
void http_probe_counts(const http_probe *p, int out[6]);
/* Waits until no request runs any more; false if one does not end. */
bool http_probe_is_idle(http_probe *p);

#endif
