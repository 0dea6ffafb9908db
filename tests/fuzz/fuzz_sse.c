/* Event stream and chat reply: any bytes in any pieces. The same bytes cut differently must give the
 * same reply. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tui/chat_stream.h"
#include "tui/sse.h"

static int to_stream(void *ctx, const char *data, size_t len, err *e) {
    return chat_stream_data(ctx, data, len, e);
}

/* The end of the reply in out; the result code. */
static int run(const uint8_t *data, size_t n, size_t step, buf *out) {
    chat_stream s;
    sse reader;
    chat_stream_init(&s, NULL, NULL);
    sse_init(&reader, &(sse_sink){to_stream, NULL, &s});
    int rc = OK;
    for (size_t at = 0; at < n && rc == OK; at += step) {
        rc = sse_feed(&reader, (const char *)data + at, n - at < step ? n - at : step, NULL);
    }
    if (rc == OK) rc = chat_stream_end(&s, NULL);
    buf_append(out, buf_cstr(&s.content), s.content.len);
    buf_puts(out, "|");
    buf_append(out, buf_cstr(&s.reasoning), s.reasoning.len);
    buf_printf(out, "|%d|%s", s.n_calls, s.finish);
    sse_release(&reader);
    chat_stream_release(&s);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    size_t step = (size_t)data[0] % 17 + 1;
    buf whole = BUF_INIT, cut = BUF_INIT;
    int a = run(data + 1, size - 1, size, &whole);
    int b = run(data + 1, size - 1, step, &cut);
    CHECK(
        a == b && whole.len == cut.len && memcmp(buf_cstr(&whole), buf_cstr(&cut), whole.len) == 0);
    chat_stream s;
    chat_stream_init(&s, NULL, NULL);
    chat_stream_whole(&s, (const char *)data, size, NULL);
    chat_stream_release(&s);
    chat_error_body(500, (const char *)data, size, NULL);
    buf_release(&whole);
    buf_release(&cut);
    return 0;
}
