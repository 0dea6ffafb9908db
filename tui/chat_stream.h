/* The client's view of one chat reply: payloads of the event stream (or one whole JSON answer) go
 * in, typed events come out, and the joined reply stays here. One thread at a time; the stream owns
 * all text it hands out. Unknown fields are ignored, deltas with an empty or null identity join the
 * call of their index, and a stream that ends without its end marker is an error. */
#ifndef TUI_CHAT_STREAM_H
#define TUI_CHAT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

#define CHAT_MAX_CALLS 128

/* Token counts and times as the server gave them. A value the server did not send is -1. */
typedef struct chat_usage {
    int64_t prompt_tokens, completion_tokens, total_tokens, cached_tokens, reasoning_tokens;
    double prompt_ms, predicted_ms, predicted_per_second;
    int64_t draft_n, draft_n_accepted;
} chat_usage;

typedef struct chat_call {
    char *id;
    char *name;
    buf arguments;
} chat_call;

typedef enum chat_event_kind {
    CHAT_EVENT_ROLE,      /* the prompt has been read, the first token is due */
    CHAT_EVENT_REASONING, /* text: a piece of the reasoning */
    CHAT_EVENT_CONTENT,   /* text: a piece of the answer */
    CHAT_EVENT_TOOL,      /* i_call; text: a piece of its arguments, may be empty */
    CHAT_EVENT_USAGE,     /* usage is filled (stream, timings too when they came) */
    CHAT_EVENT_FINISH,    /* text: the finish reason */
    CHAT_EVENT_DONE       /* the end marker */
} chat_event_kind;

typedef struct chat_event {
    chat_event_kind kind;
    const char *text; /* borrowed until the callback returns; not NUL-terminated */
    size_t len;
    int i_call;
} chat_event;

typedef void (*chat_event_fn)(void *ctx, const chat_event *ev);

typedef struct chat_stream {
    buf content, reasoning; /* joined so far, valid UTF-8 */
    chat_call calls[CHAT_MAX_CALLS];
    int n_calls;
    chat_usage usage;
    bool has_usage;
    char id[64];     /* the server's id of this reply, empty until known */
    char finish[32]; /* empty until known */
    bool is_done;    /* the end marker was seen */
    chat_event_fn on_event;
    void *ctx;
} chat_stream;

void chat_stream_init(chat_stream *s, chat_event_fn on_event, void *ctx);
void chat_stream_release(chat_stream *s);

/* Takes one data payload. An error event of the server becomes the error (its sentence is kept). */
int chat_stream_data(chat_stream *s, const char *data, size_t len, err *e);

/* Takes a whole answer (stream: false) and gives the same events. */
int chat_stream_whole(chat_stream *s, const char *data, size_t len, err *e);

/* The connection has ended: OK if the end marker was seen, else ERR_NET with a sentence. */
int chat_stream_end(const chat_stream *s, err *e);

/* Reads the error object of an answer body into e: its message, or a sentence made from the status.
 * Always returns a code other than OK. */
int chat_error_body(int status, const char *body, size_t len, err *e);

#endif
