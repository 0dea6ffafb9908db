/* Reader of a text/event-stream body: takes bytes cut anywhere and gives the data payload of each
 * event. One thread at a time; the reader owns its buffers. Lines end by LF, CRLF or CR; comment
 * lines, unknown fields and a byte order mark at the start are handled as the standard says. An
 * event is limited to SSE_MAX_EVENT_BYTES: a longer one is an error, never an unbounded buffer. */
#ifndef TUI_SSE_H
#define TUI_SSE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

#define SSE_MAX_EVENT_BYTES (16u << 20)

/* What the reader hands out. The text is borrowed until the callback returns. */
typedef struct sse_sink {
    /* One event with at least one data line; data lines are joined by LF. A result other than OK
     * ends the feeding and is what sse_feed returns. */
    int (*on_data)(void *ctx, const char *data, size_t len, err *e);
    /* One comment line, without the colon and one blank. May be NULL. */
    void (*on_comment)(void *ctx, const char *text, size_t len);
    void *ctx;
} sse_sink;

typedef struct sse {
    buf line;      /* the unfinished line */
    buf data;      /* data lines of the unfinished event */
    bool has_data; /* a data line was seen, even an empty one */
    bool after_cr; /* a LF that follows belongs to the CR before it */
    bool started;  /* the byte order mark can no longer come */
    sse_sink sink;
} sse;

void sse_init(sse *s, const sse_sink *sink);
void sse_release(sse *s);

/* Takes the next n bytes. OK, ERR_LIMIT for an over-long event, or what on_data returned. */
int sse_feed(sse *s, const char *bytes, size_t n, err *e);

#endif
