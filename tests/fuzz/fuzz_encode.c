/* Any bytes through the demo tokenizer: they come back whole, trusted text and typed text alike;
 * no control token comes out of typed text; the streaming decode equals the whole one. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static const tokenizer *demo(void) {
    static tokenizer *t; /* read once for the whole run */
    if (t == NULL) CHECK(tokenizer_open("templates/demo-model/tokenizer.json", &t, NULL) == OK);
    return t;
}

static void check_stream(const tokenizer *t, const token_list *ids) {
    buf whole = BUF_INIT, streamed = BUF_INIT;
    utf8_stream s = {0};
    CHECK(tokenizer_decode(t, ids->ids, ids->len, &whole) == OK);
    for (size_t i = 0; i < ids->len; i++) {
        size_t len, before = streamed.len;
        const char *p = tokenizer_bytes(t, ids->ids[i], &len);
        CHECK(utf8_stream_feed(&s, p, len, &streamed) == OK);
        CHECK(utf8_valid(buf_cstr(&streamed) + before, streamed.len - before));
    }
    CHECK(utf8_stream_end(&s, &streamed) == OK);
    CHECK(
        whole.len == streamed.len && memcmp(buf_cstr(&whole), buf_cstr(&streamed), whole.len) == 0);
    buf_release(&whole);
    buf_release(&streamed);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    const tokenizer *t = demo();
    if (n < 1) return 0;
    /* The first byte says where the trusted part ends. */
    size_t len = n - 1, cut = len > 0 ? data[0] % (len + 1) : 0;
    const char *text = (const char *)data + 1;
    text_span spans[] = {{text, cut, true}, {text + cut, len - cut, false}};
    token_list ids = {0};
    buf back = BUF_INIT;
    CHECK(tokenizer_encode_spans(t, spans, 2, &ids, NULL) == OK);
    CHECK(tokenizer_decode_bytes(t, ids.ids, ids.len, &back) == OK);
    CHECK(back.len == len && memcmp(buf_cstr(&back), text, len) == 0);
    size_t at = 0;
    for (size_t i = 0; i < ids.len; i++) {
        size_t token_len;
        (void)tokenizer_bytes(t, ids.ids[i], &token_len);
        at += token_len;
        CHECK(!tokenizer_is_added(t, ids.ids[i]) || at <= cut);
    }
    check_stream(t, &ids);
    token_list_release(&ids);
    buf_release(&back);
    return 0;
}
