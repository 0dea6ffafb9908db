/* A local HTTP server that plays the hub and its storage: two addresses of this machine, 127.0.0.1
 * ("hub") and 127.0.0.2 ("cdn"), one thread a connection. What to answer is decided by the test's
 * function, which is called one at a time; hub_server_default fills in what a sound server says. */
#ifndef TESTS_HARNESS_HUB_SERVER_H
#define TESTS_HARNESS_HUB_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

typedef struct hub_seen {
    int address; /* 0 hub, 1 cdn */
    char method[8];
    char path[2048]; /* with the query */
    char range[80];  /* value of Range, "" */
    bool has_range;
    uint64_t first, last;
    char authorization[256];
    char accept_encoding[80];
} hub_seen;

typedef enum hub_then { HUB_THEN_GO_ON, HUB_THEN_CLOSE, HUB_THEN_RESET, HUB_THEN_STALL } hub_then;

/* n bytes of a file from offset. */
typedef void (*hub_source)(void *ctx, uint64_t offset, void *out, size_t n);

typedef struct hub_answer {
    int status;
    buf headers;      /* whole lines with \r\n; released by the server */
    const char *body; /* NULL: bytes of source */
    size_t body_len;
    hub_source source;
    void *source_ctx;
    uint64_t start;      /* of source */
    uint64_t length;     /* declared as Content-Length unless headers have one */
    uint64_t send_bytes; /* sent; less than length with then = close, reset or stall */
    hub_then then;
    int64_t corrupt_at;   /* file offset of a flipped bit, -1 */
    uint64_t bytes_per_s; /* 0: as fast as it goes */
} hub_answer;

typedef void (*hub_decide)(void *ctx, const hub_seen *r, hub_answer *a);

typedef struct hub_server hub_server;
hub_server *hub_server_new(hub_decide decide, void *ctx);
void hub_server_free(hub_server *s);
/* No decision is made between the two: for changing what the test's function looks at. */
void hub_server_pause(hub_server *s);
void hub_server_go_on(hub_server *s);
/* "http://127.0.0.1:PORT" or "http://127.0.0.2:PORT" */
const char *hub_server_url(const hub_server *s, int address);

/* What was seen so far. */
typedef struct hub_counts {
    int n_requests, n_cdn, n_without_range, n_auth_hub, n_auth_cdn;
    uint64_t sent_bytes; /* of file bodies */
    char accept_encoding[80];
} hub_counts;
void hub_server_counts(hub_server *s, hub_counts *out);

/* A sound answer of a file of size bytes: 206 for a range, 200 else, 416 past the end. */
void hub_server_file(const hub_seen *r, uint64_t size, hub_source source, void *ctx, hub_answer *a);
/* Bytes that depend on seed and offset alone, the same for every way of cutting them. */
void hub_server_noise(uint64_t seed, uint64_t offset, void *out, size_t n);

#endif
