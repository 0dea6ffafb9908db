/* Speed of the tokenizer on one core: one line per tokenizer and text, best of several rounds,
 * in processor time.
 * Texts: prose and code of this repository, mixed scripts, and runs that hurt careless tokenizers.
 * Arguments are files to encode as well. */
#include <stdio.h>
#include <time.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/text/compress.h"
#include "engine/text/reply.h"
#include "engine/text/tokenizer.h"
#include "tests/harness/real_tokenizer.h"
#include "tests/harness/vectors.h"

enum { ROUNDS = 5, REAL_MAX = 32 << 20 };
static const size_t run_bytes = 1000000;

/* Time of this thread on the processor, so that a busy machine changes little. */
static uint64_t cpu_ns(void) {
    struct timespec ts;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void bench_text(const char *who, const char *what, const tokenizer *t, const buf *text) {
    token_list ids = {0};
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        token_list_reset(&ids);
        uint64_t start = cpu_ns();
        CHECK(tokenizer_encode(t, (text_span){text->data, text->len, false}, &ids, NULL) == OK);
        uint64_t took = cpu_ns() - start;
        if (took < best) best = took;
    }
    double mb_s = (double)text->len * 1e3 / (double)(best > 0 ? best : 1);
    printf("tokenizer %-5s %-26s %8zu bytes %8zu tokens %8.1f MB/s\n", who, what, text->len,
        ids.len, mb_s);
    token_list_release(&ids);
}

static void bench_run(const char *who, const tokenizer *t, const char *unit, const char *what) {
    buf text = BUF_INIT;
    while (text.len < run_bytes)
        CHECK(buf_puts(&text, unit) == OK);
    bench_text(who, what, t, &text);
    buf_release(&text);
}

static void bench_file(const char *who, const tokenizer *t, const char *path) {
    buf text = BUF_INIT;
    if (file_read(path, &text, (size_t)REAL_MAX, NULL) == OK && text.len > 0) {
        bench_text(who, path_base(path), t, &text);
    }
    buf_release(&text);
}

static void bench_decode(const char *who, const tokenizer *t) {
    buf text = BUF_INIT, out = BUF_INIT;
    token_list ids = {0};
    uint64_t best = UINT64_MAX;
    while (text.len < run_bytes)
        CHECK(buf_puts(&text, "The quick brown fox; 12345 na\xC3\xAFve.\n") == OK);
    CHECK(tokenizer_encode(t, (text_span){text.data, text.len, false}, &ids, NULL) == OK);
    for (int i = 0; i < ROUNDS; i++) {
        buf_reset(&out);
        uint64_t start = cpu_ns();
        CHECK(tokenizer_decode(t, ids.ids, ids.len, &out) == OK);
        uint64_t took = cpu_ns() - start;
        if (took < best) best = took;
    }
    printf("tokenizer %-5s %-26s %8zu bytes %8zu tokens %8.1f MB/s\n", who, "decode", out.len,
        ids.len, (double)out.len * 1e3 / (double)best);
    token_list_release(&ids);
    buf_release(&text);
    buf_release(&out);
}

static void bench_tokenizer(const char *who, const tokenizer *t, int n_files, char **files) {
    static const struct {
        const char *unit, *what;
    } runs[] = {
        {"The quick brown fox jumps over the lazy dog. ", "English"},
        {"for (int i = 0; i < n; i++) {\n    total += list[i] * 3.25;\n}\n", "C code"},
        {"\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C\xE3\x80\x82", "Chinese"},
        {"caf\xC3\xA9 \xD0\xBC\xD0\xB8\xD1\x80 \xF0\x9F\x98\x80 \xD9\xA3\xD9\xA4 ",
            "mixed scripts"},
        {"{\"id\": 2512292042121000001, \"ok\": true}\n", "JSON"},
        {"a", "run of a"},
        {" ", "run of blanks"},
        {"\n", "run of newlines"},
        {"_", "run of _"},
        {"^", "run of ^"},
        {"\x01", "run of U+0001"},
        {"\xE4\xB8\xAD", "run of U+4E2D"},
        {"a1", "run of a1"},
        {"<\xEF\xBD\x9C", "run of opener beginnings"},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        bench_run(who, t, runs[i].unit, runs[i].what);
    }
    for (int i = 0; i < n_files; i++)
        bench_file(who, t, files[i]);
    bench_decode(who, t);
}

static void bench_open(const char *who, const buf *text) {
    uint64_t best = UINT64_MAX, best_classes = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        tokenizer *t = NULL;
        class_map m;
        uint64_t start = cpu_ns();
        CHECK(tokenizer_parse(text->data, text->len, &t, NULL) == OK);
        uint64_t opened = cpu_ns();
        CHECK(class_map_build(t, &m, NULL) == OK);
        uint64_t mapped = cpu_ns();
        if (opened - start < best) best = opened - start;
        if (mapped - opened < best_classes) best_classes = mapped - opened;
        class_map_release(&m);
        tokenizer_close(t);
    }
    printf("tokenizer %-5s open %.1f ms, class map %.1f ms\n", who, (double)best / 1e6,
        (double)best_classes / 1e6);
}

/* The reply parser fed one byte at a time: content, and one long string value. */
static void bench_reply(void) {
    buf text = BUF_INIT;
    static const char head[] = "\n\n<\xEF\xBD\x9C"
                               "DSML\xEF\xBD\x9C calls>\n<\xEF\xBD\x9C"
                               "DSML\xEF\xBD\x9C"
                               " invoke name=\"f\">\n<\xEF\xBD\x9C"
                               "DSML\xEF\xBD\x9C parameter name=\"a\" string=\"true\">";
    while (text.len < run_bytes / 2)
        CHECK(buf_puts(&text, "if (a < b) return \"x\";\n") == OK);
    CHECK(buf_puts(&text, head) == OK);
    while (text.len < run_bytes)
        CHECK(buf_puts(&text, "if (a < b) return \"x\";\n") == OK);
    reply_parser *p = reply_parser_new(&(reply_options){0});
    uint64_t start = cpu_ns();
    for (size_t i = 0; i < text.len; i++)
        CHECK(reply_feed(p, text.data + i, 1) == OK);
    CHECK(reply_end_of_text(p, REPLY_END_EOS, NULL) == OK);
    uint64_t took = cpu_ns() - start;
    printf("reply parser, byte by byte: %zu bytes, %.1f MB/s\n", text.len,
        (double)text.len * 1e3 / (double)took);
    reply_parser_free(p);
    buf_release(&text);
}

static void bench_one(const char *who, const buf *text, int n_files, char **files) {
    tokenizer *t = NULL;
    err e = ERR_INIT;
    if (tokenizer_parse(text->data, text->len, &t, &e) != OK) {
        printf("tokenizer %s: %s\n", who, e.msg);
        return;
    }
    bench_open(who, text);
    bench_tokenizer(who, t, n_files, files);
    tokenizer_close(t);
}

int main(int argc, char **argv) {
    buf text = BUF_MAX((size_t)REAL_MAX);
    char why[256] = "";
    if (file_read("templates/demo-model/tokenizer.json", &text, (size_t)REAL_MAX, NULL) == OK) {
        bench_one("demo", &text, argc - 1, argv + 1);
    }
    buf_reset(&text);
    if (real_tokenizer_v41(vectors_golden_dir(), &text, why) == OK) {
        bench_one("v4.1", &text, argc - 1, argv + 1);
    } else {
        printf("tokenizer v4.1: skipped, %s\n", why);
    }
    bench_reply();
    buf_release(&text);
    return 0;
}
