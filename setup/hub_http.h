/* One GET at a time over libcurl, with what a hub and its mirrors say in their headers. Redirects are
 * never followed here. A hub_http belongs to one thread; it keeps its connection between calls. */
#ifndef SETUP_HUB_HTTP_H
#define SETUP_HUB_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

/* A token in locked memory that is wiped when freed. NULL functions as "none". */
typedef struct hub_secret hub_secret;
hub_secret *hub_secret_new(const char *text);
void hub_secret_free(hub_secret *s);
/* Reads HF_TOKEN, HF_TOKEN_PATH or the file given (may be NULL or ""), then the official client's
 * file. OK with *out NULL when there is none. ERR_AUTH when a file given may be read by others. */
int hub_secret_find(const char *file, hub_secret **out, err *e);
/* The text, for tests and headers; valid until freed. */
const char *hub_secret_text(const hub_secret *s);

typedef struct hub_limits {
    int64_t connect_ms;    /* default 15 s */
    int64_t first_byte_ms; /* default 30 s */
    int64_t stall_ms;      /* default 30 s below stall_bytes a second */
    int64_t stall_bytes;   /* default 10 KiB */
} hub_limits;

#define HUB_TEXT_MAX 2048

typedef struct hub_reply {
    long status; /* 0: no reply */
    bool has_range;
    uint64_t range_start, range_end, range_total; /* of Content-Range; end is the last byte */
    int64_t length;                               /* Content-Length, -1 when not said */
    int64_t retry_after_ms;                       /* -1 when not said */
    int64_t limit_left, limit_reset_s;            /* of RateLimit, -1 when not said */
    char type[64];
    char encoding[32];
    char location[4096];
    char next_page[2048]; /* of Link rel="next" */
    char etag[160];
    char commit[48];
    char error_code[64];
    char error_text[256];
    char request_id[96];
    char text[HUB_TEXT_MAX]; /* first bytes of a body nobody took */
    size_t text_len;
} hub_reply;

typedef struct hub_get {
    const char *url;
    bool has_range;
    uint64_t first, last;    /* of the Range header */
    const hub_secret *token; /* sent when not NULL */
    /* Decides when the body begins (may be NULL: take it): OK takes it; 1 lets it be collected in
     * text and ends the request after that; an error ends it at once. */
    int (*accept)(void *ctx, const hub_reply *r);
    int (*take)(void *ctx, const void *data, size_t n); /* an error ends the request */
    bool (*is_stopped)(void *ctx);                      /* may be NULL */
    void *ctx;
} hub_get;

typedef struct hub_http hub_http;
hub_http *hub_http_new(const hub_limits *limits);
void hub_http_free(hub_http *h);
/* OK: a whole reply of any status came. Else an error of connection (ERR_NET), silence (ERR_TIMEOUT),
 * stop (ERR_CANCELLED) or of accept and take; *out says what was seen. The message never has the
 * query part of a URL, which may be a signature. */
int hub_http_get(hub_http *h, const hub_get *g, hub_reply *out, err *e);

/* URLs. */
/* base with a (relative or absolute) location; mem_free. NULL when it is no http(s) URL. */
char *hub_url_join(const char *base, const char *location);
/* The same scheme, host and port. */
bool hub_url_same_host(const char *a, const char *b);
bool hub_url_is_https(const char *url);
/* 127.0.0.0/8, ::1 or localhost. */
bool hub_url_is_loopback(const char *url);
/* Host name for messages. */
void hub_url_host(const char *url, char *out, size_t cap);

#endif
