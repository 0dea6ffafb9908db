/* Bytes from the terminal: no input breaks the decoder, and where the bytes are cut changes
 * nothing. */
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "tui/input.h"
#include "tui/keymap.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void print(const input_event *ev, buf *out) {
    char name[24];
    keymap_event_name(ev, name);
    buf_printf(out, "%d %d %d %u %s %d %d %d;", (int)ev->kind, (int)ev->key, ev->mods,
        (unsigned)ev->code, name, ev->row, ev->column, ev->button);
    if (ev->kind == INPUT_PASTE) buf_append(out, ev->paste, ev->paste_len);
}

/* All events of the bytes fed in pieces; time passes only at the end. */
static void decode(const unsigned char *data, size_t n, size_t piece, buf *out) {
    input in;
    input_event ev;
    input_init(&in, 25);
    for (size_t i = 0; i < n; i += piece) {
        size_t len = n - i < piece ? n - i : piece;
        CHECK(input_feed(&in, (const char *)data + i, len) == OK);
        while (input_next(&in, 1000, &ev))
            print(&ev, out);
    }
    uint64_t now = 1000;
    for (int i = 0; i < 10000; i++) {
        int wait = input_wait_ms(&in, now);
        if (wait < 0) break;
        now += (uint64_t)wait;
        while (input_next(&in, now, &ev))
            print(&ev, out);
    }
    CHECK(input_wait_ms(&in, now) < 0);
    input_release(&in);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    buf whole = BUF_INIT, pieces = BUF_INIT;
    if (n > 4096) return 0;
    decode(data, n, n > 0 ? n : 1, &whole);
    for (size_t piece = 1; piece <= 3; piece++) {
        buf_reset(&pieces);
        decode(data, n, piece, &pieces);
        CHECK(pieces.len == whole.len);
        CHECK(whole.len == 0 || memcmp(pieces.data, whole.data, whole.len) == 0);
    }
    buf_release(&whole);
    buf_release(&pieces);
    return 0;
}
