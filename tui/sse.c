#include "tui/sse.h"

#include <string.h>

void sse_init(sse *s, const sse_sink *sink) {
    *s = (sse){
        .line = BUF_MAX(SSE_MAX_EVENT_BYTES), .data = BUF_MAX(SSE_MAX_EVENT_BYTES), .sink = *sink};
}

void sse_release(sse *s) {
    buf_release(&s->line);
    buf_release(&s->data);
}

static int too_long(err *e) {
    return err_set(
        e, ERR_LIMIT, "an event of the stream is longer than %u MiB", SSE_MAX_EVENT_BYTES >> 20);
}

/* A blank line ends the event. One without data lines is no event. */
static int event_end(sse *s, err *e) {
    int rc = OK;
    if (s->has_data) rc = s->sink.on_data(s->sink.ctx, buf_cstr(&s->data), s->data.len, e);
    s->has_data = false;
    buf_reset(&s->data);
    return rc;
}

static int data_line(sse *s, const char *value, size_t n, err *e) {
    if (s->has_data && buf_putc(&s->data, '\n') != OK) return too_long(e);
    s->has_data = true;
    return buf_append(&s->data, value, n) == OK ? OK : too_long(e);
}

static int line_end(sse *s, err *e) {
    const char *line = buf_cstr(&s->line);
    size_t n = s->line.len;
    if (!s->started) {
        s->started = true;
        if (n >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
            line += 3;
            n -= 3;
        }
    }
    int rc = OK;
    const char *colon = memchr(line, ':', n);
    size_t name = colon != NULL ? (size_t)(colon - line) : n;
    size_t at = colon != NULL ? name + 1 : n;
    if (at < n && line[at] == ' ') at++;
    if (n == 0) {
        rc = event_end(s, e);
    } else if (name == 0) {
        if (s->sink.on_comment != NULL) s->sink.on_comment(s->sink.ctx, line + at, n - at);
    } else if (name == 4 && memcmp(line, "data", 4) == 0) {
        rc = data_line(s, line + at, n - at, e);
    }
    /* event, id, retry and unknown fields mean nothing to us. */
    buf_reset(&s->line);
    return rc;
}

int sse_feed(sse *s, const char *bytes, size_t n, err *e) {
    for (size_t at = 0; at < n;) {
        if (s->after_cr) {
            s->after_cr = false;
            if (bytes[at] == '\n') {
                at++;
                continue;
            }
        }
        size_t end = at;
        while (end < n && bytes[end] != '\n' && bytes[end] != '\r')
            end++;
        if (buf_append(&s->line, bytes + at, end - at) != OK) return too_long(e);
        at = end;
        if (at == n) return OK;
        s->after_cr = bytes[at++] == '\r';
        int rc = line_end(s, e);
        if (rc != OK) return rc;
    }
    return OK;
}
