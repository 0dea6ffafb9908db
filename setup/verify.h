/* tandem verify: real requests against a running endpoint, each with what was asked, what was
 * expected and what came back. Works against the Unix socket of the engine or any base URL with a
 * key, so that a reverse proxy can be tested too. The checks are those of level 1 (six lines), level 2
 * (exactness, cancel, cache, parallel streams, prompt tokens, speed, RDMA) and level 3 (a quality
 * set, the whole window, a soak). A line whose feature the engine or the machine does not have is
 * SKIP with the reason, never PASS.
 *
 * Threads: verify_run blocks its caller; it starts threads of its own for parallel requests and has
 * joined them when it returns. Nothing is kept between runs. */
#ifndef SETUP_VERIFY_H
#define SETUP_VERIFY_H

#include <stdatomic.h>
#include <stdbool.h>

#include "engine/base/err.h"

typedef enum verify_verdict { VERIFY_PASS, VERIFY_WARN, VERIFY_FAIL, VERIFY_SKIP } verify_verdict;

typedef struct verify_line {
    int level;
    const char *id;      /* "chat", "thinking", ... */
    const char *request; /* what was sent, in words */
    const char *expected;
    char got[200];       /* the first characters of the answer, one line */
    char reason[320];    /* why not PASS, else empty */
    double first_ms;     /* time to the first byte of the answer; negative: not measured */
    double tokens_per_s; /* of the reply; negative: not measured */
    verify_verdict verdict;
} verify_line;

enum { VERIFY_TIMEOUT_MS = 120000 };

typedef struct verify_options {
    const char *socket_path; /* of the engine, or NULL */
    const char *base_url;    /* used when there is no socket, e.g. http://127.0.0.1:8888 */
    const char *key;         /* sent as bearer token; NULL: none */
    int level;               /* 1 to 3: all lines up to it */
    int soak_s;              /* level 3: how long the soak goes on; 0: an hour, below 0: SKIP */
    const char *baseline;    /* file that keeps the speed of the first run; NULL: not compared */
    const char *sysfs;       /* in place of /sys, for the RDMA counters; NULL: the machine's own */
    int timeout_ms;          /* of one request; 0: VERIFY_TIMEOUT_MS */
    const atomic_bool *stop; /* ends the run, and the request under way; may be NULL */
} verify_options;

typedef struct verify_summary {
    int n_pass, n_warn, n_fail, n_skip;
    char model[96]; /* as the endpoint names it */
    bool is_demo;
} verify_summary;

/* Called after each line, in order, on the caller's thread. */
typedef void (*verify_sink)(void *ctx, const verify_line *line);

/* OK when the lines were run, whatever their verdicts. ERR_NET when nothing answers at all,
 * ERR_AUTH when the key is refused, ERR_CANCELLED. */
int verify_run(const verify_options *o, verify_sink sink, void *ctx, verify_summary *out, err *e);

/* "PASS", "WARN", "FAIL", "SKIP". */
const char *verify_verdict_name(verify_verdict v);

#endif
