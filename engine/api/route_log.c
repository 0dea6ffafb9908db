/* GET /tandem/v1/log: the newest lines of the log and those that come, as a stream of events. */
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/log_tail.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

#define LOOK_MS 200

typedef struct log_stream {
    uint64_t since;
    log_level level;
    uint64_t quiet_since_ms;
} log_stream;

static int fill_log(void *ctx, http_request *q, buf *out) {
    log_stream *s = ctx;
    api *a = q->api;
    for (;;) {
        s->since = log_tail_print(a->options.log, s->since, s->level, out);
        uint64_t now = clock_mono_ms();
        if (out->len == 0 && now - s->quiet_since_ms >= (uint64_t)a->options.keep_alive_ms) {
            buf_puts(out, ": keep-alive\n\n");
        }
        if (out->len > 0) {
            s->quiet_since_ms = now;
            return HTTP_MORE;
        }
        if (http_wait(q, NULL, 0, LOOK_MS, true) == HTTP_GONE) return HTTP_BROKEN;
    }
}

static int read_query(const http_request *q, log_stream *s, api_error *e) {
    const char *level = http_query(q, "level");
    const char *rank = http_query(q, "rank");
    int64_t since = 0;
    int rc = http_query_number(q, "since", (int_range){0, INT64_MAX}, &since, e);
    if (rc != OK) return rc;
    s->since = (uint64_t)since;
    if (level != NULL && log_level_parse(level, &s->level) != OK) {
        return api_bad(e, "level", NULL, "level must be error, warn, info or debug");
    }
    if (rank != NULL && strcmp(rank, "0") != 0) {
        return api_bad(e, "rank", NULL,
            "this process is rank 0; the log of another rank is a file of its own node");
    }
    return OK;
}

void route_log(http_request *q) {
    api_error e;
    log_stream first = {.level = LOG_DEBUG, .quiet_since_ms = clock_mono_ms()};
    if (q->api->options.log == NULL) {
        api_set(&e, 404, "invalid_request_error", NULL, "this server keeps no log lines");
        http_fail(q, &e);
        return;
    }
    if (read_query(q, &first, &e) != OK) {
        http_fail(q, &e);
        return;
    }
    log_stream *s = mem_alloc(sizeof *s);
    *s = first;
    http_set_endless(q);
    http_stream(q, "text/event-stream; charset=utf-8",
        (http_producer){.fill = fill_log, .release = mem_free, .ctx = s});
}
