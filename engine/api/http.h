/* One HTTP exchange as the routes see it. Only server.c and http.c know the HTTP library. Each
 * connection has a thread of its own, so a route may block; it must watch for a client that has
 * gone through http_wait. A route answers exactly once, by one of the http_send, http_fail and
 * http_stream calls. */
#ifndef TANDEM_API_HTTP_H
#define TANDEM_API_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/api/api_error.h"
#include "engine/api/fields.h"
#include "engine/api/warning.h"
#include "engine/base/buf.h"
#include "engine/base/json.h"

typedef struct api api;
typedef struct http_request http_request;

/* Makes the next bytes of a streamed answer: blocks until it has appended to out, then returns
 * HTTP_MORE; HTTP_LAST when out holds the end; HTTP_BROKEN closes the connection at once. */
enum { HTTP_MORE, HTTP_LAST, HTTP_BROKEN };
typedef struct http_producer {
    int (*fill)(void *ctx, http_request *q, buf *out);
    void (*release)(void *ctx); /* frees ctx; called once, whatever happens */
    void *ctx;
} http_producer;

struct http_request {
    api *api;
    void *connection; /* the library's handle */
    int fd;           /* the client's socket, for watching only */
    bool is_local;    /* came over the Unix socket */
    bool is_http10;
    bool has_begun;       /* the head is whole; before, only connection and path are known */
    bool has_odd_target;  /* a blank or a NUL byte in the path */
    bool must_close;      /* where this request ends is not sure */
    bool has_odd_trailer; /* behind a chunked body */
    bool has_answered;
    void *late_answer; /* the library would not take it yet; owned */
    bool is_busy;      /* counted in api_busy */
    bool has_probed;   /* a half-closed client was asked whether it still reads */
    char id[132];      /* x-request-id of the answer */
    const char *method;
    char *path; /* without query, trailing slash and /v1 */
    buf body;
    size_t n_dropped; /* bytes of a body that was too large */
    uint64_t start_ns;
    int status;         /* of the answer, for metrics */
    const char *finish; /* finish reason for metrics; NULL: none */
    const char *route;  /* path of the route in the table; NULL: unknown */
    http_producer producer;
    buf out; /* streamed bytes not yet taken by the library */
    bool is_last;
    char allow[32];            /* for 405 */
    char warning[WARNING_CAP]; /* header x-tandem-warning of the answer; "": none */
    api_shape shape;           /* of errors */
    bool is_tls;               /* bytes of our own must not go out beside the library */
    struct key_user *key;      /* NULL: none; the request counts against its limits */
    bool has_left_key;         /* and does so no more */
    int64_t n_prompt, n_cached, n_completion; /* for the request log */
    size_t n_body;
    api_error refusal; /* status 0: none; answered when the small body is read */
    char *text;        /* a copy of the body when prompts are logged */
};

/* A request header or a query parameter; NULL when absent. Valid until the answer. */
const char *http_header(const http_request *q, const char *name);
const char *http_query(const http_request *q, const char *name);
/* A whole number among the query parameters; absent, *out stays as it is. ERR_ARG: e is filled. */
int http_query_number(
    const http_request *q, const char *name, int_range range, int64_t *out, api_error *e);

/* Answers with a whole body; takes the storage of body. */
void http_send(http_request *q, int status, const char *type, buf *body);
/* Answers with a JSON text; takes the storage of body. */
void http_send_json(http_request *q, int status, buf *body);
/* Answers with the error shape of api.md 1. */
void http_fail(http_request *q, const api_error *e);
/* Answers past the library, which will not call a route for this request, and ends the connection.
 * Over TLS there is no answer. */
void http_refuse(http_request *q, const api_error *e);
/* Answers 200 with a stream. Takes the producer. */
void http_stream(http_request *q, const char *type, http_producer producer);

/* The request counts no more against the limits of its key, and its tokens do. Before the client has
 * its whole answer: it may ask again at once, over another connection. */
void http_leave_key(http_request *q);

/* The library counts timeouts in whole seconds; rounded up. */
unsigned http_seconds(int32_t ms);
/* Gives the library what it did not take when the route answered. */
void http_answer_late(http_request *q);

/* The answer has no end of its own: a server that drains does not wait for it. */
void http_set_endless(http_request *q);

/* Waits until one of the descriptors is readable (HTTP_WAKE), the time is over (HTTP_TIMEOUT) or
 * the client is gone or the server closes (HTTP_GONE). HTTP_HALF_CLOSED, given once and only with
 * is_streaming: the client has stopped sending; write something to learn whether it still reads. */
enum { HTTP_WAKE, HTTP_TIMEOUT, HTTP_GONE, HTTP_HALF_CLOSED };
int http_wait(http_request *q, const int *fds, int n_fds, int timeout_ms, bool is_streaming);

/* Who may come in: keys, on TCP only. On failure e is a 401 or 429. */
int http_enter(http_request *q, api_error *e);
/* The limits of the key: context of the request; *max_tokens is lowered where the client left it
 * open. */
int http_check_limits(http_request *q, size_t n_prompt, int32_t *max_tokens, api_error *e);
/* Answers OPTIONS. */
void http_options(http_request *q, const char *methods);

/* Parses the body strictly. On failure fills e (400 or 413). The caller frees *out. */
int http_body_json(http_request *q, json **out, api_error *e);

#endif
