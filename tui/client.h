/* Client of tandemd: asynchronous HTTP/1.1 and event streams over its Unix socket. One thread (the
 * screen's, or a command's) owns a client and everything in it; nothing here ever blocks except the
 * functions that say so.
 *
 * In an event loop: poll client_fd for reading with client_timeout_ms, then call client_pump; the
 * callbacks run inside client_pump and nowhere else. In a command: client_wait or client_fetch.
 *
 * A call lives from its start until its CLIENT_END event has been delivered, then the client frees
 * it; a handle must not be used after that. Closing the client ends its calls without events. The
 * daemon stops generating when the connection of a chat call closes. */
#ifndef TUI_CLIENT_H
#define TUI_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tui/chat_stream.h"

typedef struct client client;
typedef struct client_call client_call;

typedef enum client_event_kind {
    CLIENT_OPEN,     /* the answer's headers came (status); on a stats stream: connected again */
    CLIENT_CHAT,     /* chat: one event of the reply (chat; reply holds the text so far) */
    CLIENT_PROGRESS, /* a keep-alive comment; done/total are prompt tokens read, or -1 */
    CLIENT_STATS,    /* text/len: one JSON object of the stats stream */
    CLIENT_LOST,     /* stats: the connection ended (error); it is tried again by itself */
    CLIENT_END       /* the last event of a call: error NULL when it went well */
} client_event_kind;

typedef struct client_event {
    client_event_kind kind;
    int status;       /* HTTP status, 0 before the headers */
    const char *text; /* CLIENT_STATS: object; CLIENT_END: whole body of a plain call */
    size_t len;
    int64_t done, total;      /* CLIENT_PROGRESS */
    const chat_event *chat;   /* CLIENT_CHAT */
    const chat_stream *reply; /* chat calls: everything received so far, also at CLIENT_END */
    const err *error;         /* CLIENT_END, CLIENT_LOST */
    int retry_after_s;        /* CLIENT_END of a 429 or 503 that named a time, else -1 */
} client_event;

/* Everything an event points to is borrowed until the callback returns. Starting and cancelling
 * calls inside the callback is allowed; client_close is not. */
typedef void (*client_event_fn)(void *ctx, const client_event *ev);
/* Who gets the events of a call. */
typedef struct client_sink {
    client_event_fn fn;
    void *ctx;
} client_sink;

typedef enum chat_thinking {
    CHAT_THINKING_DEFAULT,
    CHAT_THINKING_OFF,
    CHAT_THINKING_ON
} chat_thinking;

/* Bits of chat_options.set: which of the values are sent. */
enum {
    CHAT_TEMPERATURE = 1 << 0,
    CHAT_TOP_P = 1 << 1,
    CHAT_TOP_K = 1 << 2,
    CHAT_MIN_P = 1 << 3,
    CHAT_SEED = 1 << 4,
    CHAT_MAX_TOKENS = 1 << 5,
    CHAT_REPETITION_PENALTY = 1 << 6,
    CHAT_THINKING_BUDGET = 1 << 7
};

#define CHAT_MAX_STOPS 16

typedef struct chat_options {
    uint32_t set;
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, seed, max_tokens, thinking_budget;
    chat_thinking thinking;
    char effort[16];                   /* empty: not sent */
    const char *stops[CHAT_MAX_STOPS]; /* borrowed */
    int n_stops;
    const char *tools_json; /* JSON array of tools, or NULL; borrowed */
    bool is_continuation;   /* go on from the last message, an assistant's */
} chat_options;

typedef struct chat_message {
    const char *role; /* system, user, assistant, tool */
    const char *content;
    const char *reasoning;       /* assistant: its reasoning, or NULL */
    const char *tool_calls_json; /* assistant: JSON array, or NULL */
    const char *tool_call_id;    /* tool: which call it answers, or NULL */
} chat_message;

/* Limits of a call in milliseconds; 0 = none. stall_ms counts silence, keep-alive comments end it;
 * the daemon sends one every 5 s while nothing else is due. */
typedef struct client_limits {
    int connect_ms, stall_ms, total_ms;
} client_limits;

/* Makes a client for the socket path (copied). Does not connect. ERR_ARG when the path does not fit
 * a socket address, ERR_INTERNAL when libcurl cannot start. */
int client_open(const char *socket_path, client **out, err *e);
void client_close(client *c);

const char *client_socket_path(const client *c);

/* A descriptor that is readable when client_pump has work. Owned by the client. */
int client_fd(const client *c);
/* How long poll may wait: milliseconds, 0 = pump now, -1 = no limit. */
int client_timeout_ms(const client *c);
/* Moves bytes and runs callbacks. Never blocks. */
void client_pump(client *c);

/* All borrowed until the function it is given to returns. */
typedef struct chat_request {
    const chat_message *messages;
    int n_messages;
    chat_options options;
    client_limits limits;
} chat_request;

/* Starts a chat reply as an event stream. */
int client_chat(client *c, const chat_request *r, client_sink sink, client_call **out, err *e);
/* Writes the body that client_chat sends. */
int client_chat_body(const chat_request *r, buf *out, err *e);

/* Starts the stats stream. It comes back by itself after a loss (0.25 s, doubling to 4 s) until it
 * is cancelled; CLIENT_LOST tells of a loss (also when there was no first connection) once. */
int client_stats(client *c, int interval_ms, client_sink sink, client_call **out, err *e);

/* One plain request. body NULL = GET, else POST of JSON. The answer comes with CLIENT_END: error is
 * set for a failed connection and for every status of 400 and above (the server's sentence). */
typedef struct client_request {
    const char *path;
    const char *body;
    client_limits limits;
    bool is_delete; /* DELETE, without a body */
} client_request;
int client_request_start(
    client *c, const client_request *r, client_sink sink, client_call **out, err *e);

/* Ends a call: its connection closes at once, and CLIENT_END with ERR_CANCELLED is delivered by the
 * next client_pump. */
void client_cancel(client *c, client_call *call);
/* True while a call has not had its CLIENT_END. Safe with a stale handle. */
bool client_is_live(const client *c, const client_call *call);
int client_n_calls(const client *c);

/* Blocking: pumps until the call has ended. stop_fd (or -1) is polled for reading as well; when it
 * is readable ERR_CANCELLED is returned and the call still runs. ERR_TIMEOUT after timeout_ms
 * (-1 = no limit). */
int client_wait(client *c, client_call *call, int stop_fd, int timeout_ms, err *e);

/* Blocking: one request, the body into out (appended). status may be NULL. */
int client_fetch(client *c, const client_request *r, buf *out, int *status, err *e);

#endif
