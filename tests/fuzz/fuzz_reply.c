/* What a model may write, cut by the input itself: the message is the same as in one piece, all
 * text is UTF-8, complete arguments are JSON objects. */
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/reply.h"

#define BAR "\xEF\xBD\x9C"
#define DSML BAR "DSML" BAR

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

/* Bytes below 32 stand for pieces of markup, so that the fuzzer finds its way into calls. */
static void expand(const unsigned char *data, size_t n, buf *out) {
    static const char *const words[] = {"\n", "<think>", "</think>", "\n\n<" DSML " calls>\n",
        "<" DSML " invoke name=\"f\">\n", "<" DSML " invoke name=\"",
        "<" DSML " parameter name=\"k\" string=\"true\">",
        "<" DSML " parameter name=\"n\" string=\"false\">", "</" DSML " parameter>\n",
        "</" DSML " invoke>\n", "</" DSML " calls>", DSML, BAR, "</" BAR DSML BAR, "{\"a\": 1}",
        "\">\n", "\" string=\"", "name=\"", "\xE4\xB8\xAD", "<", "</", "12", "true"};
    for (size_t i = 0; i < n; i++) {
        if (data[i] < sizeof words / sizeof words[0])
            CHECK(buf_puts(out, words[data[i]]) == OK);
        else
            CHECK(buf_putc(out, (char)data[i]) == OK);
    }
}

static void run(
    const buf *text, const unsigned char *cuts, size_t n_cuts, unsigned flags, reply_message *m) {
    reply_options o = {.starts_in_reasoning = (flags & 1) != 0,
        .drops_calls = (flags & 4) != 0,
        .sink = reply_message_take,
        .sink_ctx = m};
    reply_parser *p = reply_parser_new(&o);
    for (size_t at = 0, i = 0; at < text->len; i++) {
        size_t len = n_cuts > 0 ? cuts[i % n_cuts] % 9 + 1u : text->len;
        if (len > text->len - at) len = text->len - at;
        CHECK(reply_feed(p, text->data + at, len) == OK);
        at += len;
    }
    CHECK(reply_end_of_text(p, (flags & 2) != 0 ? REPLY_END_EOS : REPLY_END_LENGTH, &m->finish) ==
          OK);
    reply_parser_free(p);
}

static void check_same(const buf *a, const buf *b) {
    CHECK(a->len == b->len && memcmp(buf_cstr(a), buf_cstr(b), a->len) == 0);
    CHECK(utf8_valid(buf_cstr(a), a->len));
}

static void check_message(const reply_message *a, const reply_message *b) {
    check_same(&a->reasoning, &b->reasoning);
    check_same(&a->content, &b->content);
    CHECK(a->n_calls == b->n_calls && a->finish == b->finish);
    for (size_t i = 0; i < a->n_calls; i++) {
        json *v = NULL;
        CHECK(strcmp(a->calls[i].name, b->calls[i].name) == 0);
        check_same(&a->calls[i].arguments, &b->calls[i].arguments);
        check_same(&a->calls[i].raw, &b->calls[i].raw);
        if (a->calls[i].raw.len == 0) continue; /* may be unterminated */
        const buf *text = &a->calls[i].arguments;
        CHECK(json_parse(buf_cstr(text), text->len, NULL, &v, NULL) == OK && json_is_object(v));
        json_free(v);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    if (n < 2) return 0;
    buf text = BUF_INIT;
    reply_message whole = {0}, cut = {0};
    strict_message strict;
    expand(data + 1, n - 1, &text);
    run(&text, NULL, 0, data[0], &whole);
    run(&text, data, n, data[0], &cut);
    check_message(&whole, &cut);
    if (reply_parse_strict(buf_cstr(&text), text.len, (data[0] & 1) != 0, &strict, NULL) == OK) {
        strict_message_release(&strict);
    }
    reply_message_release(&whole);
    reply_message_release(&cut);
    buf_release(&text);
    return 0;
}
