/* Time of masks, steps and compiling, with DeepSeek's own vocabulary where it can be had, else with
 * that of the demo model. One line per case; best of several rounds for single masks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/run/grammar.h"
#include "tests/harness/grammar_walk.h"
#include "tests/harness/real_tokenizer.h"
#include "tests/harness/vectors.h"

#define ROUNDS 7

static tokenizer *tk;
static token_trie *trie;

static const char *const agent_schema =
    "{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\",\"maxLength\":200},\"mode\":{"
    "\"enum\":[\"read\",\"write\",\"append\"]},\"lines\":{\"type\":\"array\",\"items\":{\"type\":"
    "\"integer\",\"minimum\":1,\"maximum\":100000},\"uniqueItems\":true},\"id\":{\"type\":\"string\","
    "\"pattern\":\"^[a-z0-9-]+$\"},\"note\":{\"type\":[\"string\",\"null\"]},\"extra\":{\"type\":"
    "\"object\"},\"line\":{\"type\":\"string\",\"pattern\":\"^.*$\"},\"short\":{\"type\":"
    "\"string\",\"pattern\":\"^[^<]*$\",\"minLength\":3,\"maxLength\":90}},\"required\":[\"path\",\"mode\"]}";

/* Text written so far, and what it shows. */
static const struct {
    const char *name, *before;
} points[] = {{"start", ""}, {"first key", "{\""}, {"inside a key", "{\"pa"},
    {"behind a key", "{\"path\""}, {"value begins", "{\"path\":"},
    {"string with room", "{\"path\":\"/usr/lib"}, {"after a value", "{\"path\":\"a\""},
    {"enum value", "{\"path\":\"a\",\"mode\":\""}, {"pattern text", "{\"path\":\"a\",\"id\":\"ab"},
    {"plain string", "{\"path\":\"a\",\"note\":\"some"},
    {"wide pattern", "{\"path\":\"a\",\"line\":\"ab"},
    {"pattern and length", "{\"path\":\"a\",\"short\":\"ab"},
    {"bounded integer", "{\"path\":\"a\",\"lines\":[1,2,30"},
    {"free key", "{\"path\":\"a\",\"extra\":{\"k"},
    {"free value", "{\"path\":\"a\",\"extra\":{\"k\":"},
    {"free number", "{\"path\":\"a\",\"extra\":{\"k\":1"},
    {"nested string", "{\"path\":\"a\",\"extra\":{\"k\":[{\"z\":\"text"}};

static double mask_us(grammar_state *s, uint64_t *mask) {
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start = clock_mono_ns();
        grammar_mask(s, mask);
        double us = (double)(clock_mono_ns() - start) / 1e3;
        if (us < best) best = us;
    }
    return best;
}

static grammar *compile(const char *text, double *ms) {
    json *schema = NULL;
    grammar *g = NULL;
    err e = ERR_INIT;
    if (json_parse(text, strlen(text), NULL, &schema, &e) != OK) exit(1);
    uint64_t start = clock_mono_ns();
    int rc = grammar_from_schema(trie, schema, &(schema_options){0}, &g, &e);
    *ms = (double)(clock_mono_ns() - start) / 1e6;
    json_free(schema);
    if (rc != OK) {
        (void)printf("%s\n", e.msg);
        exit(1);
    }
    return g;
}

static void bench_points(grammar *g, uint64_t *mask) {
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        grammar_state *s = grammar_state_new(g);
        if (grammar_accept_bytes(s, points[i].before, strlen(points[i].before)) != OK) exit(1);
        double us = mask_us(s, mask);
        uint32_t n = 0;
        for (size_t w = 0; w < token_trie_words(trie); w++) {
            n += (uint32_t)__builtin_popcountll(mask[w]);
        }
        (void)printf("mask, %-18s %8.1f us  %6u tokens allowed\n", points[i].name, us, n);
        grammar_state_free(s);
    }
}

/* A reply as models write them: every mask on the way. */
static void bench_reply(grammar *g, uint64_t *mask) {
    static const char reply[] =
        "{\"path\": \"/home/user/project/src/main.c\", \"mode\": \"write\", \"lines\": [1, 20, 300, "
        "4000, 12345], \"id\": \"task-0042-abc\", \"note\": \"The function reads the file and counts "
        "the lines; then it prints how many there are, and what the longest one is.\", \"extra\": "
        "{\"owner\": \"nobody\", \"tags\": [\"first\", \"second\"], \"size\": 12.5, \"deep\": {\"x\": "
        "null, \"y\": true}}}";
    token_list ids = {0};
    text_span span = {.text = reply, .len = sizeof reply - 1};
    double total = 0, worst = 0, accept_us = 0;
    size_t n_common = 0;
    if (tokenizer_encode(tk, span, &ids, NULL) != OK) exit(1);
    grammar_state *s = grammar_state_new(g);
    for (size_t i = 0; i < ids.len; i++) {
        double us = mask_us(s, mask);
        total += us;
        n_common += us <= 50;
        if (us > worst) worst = us;
        uint64_t start = clock_mono_ns();
        if (grammar_accept(s, ids.ids[i]) != OK) exit(1);
        accept_us += (double)(clock_mono_ns() - start) / 1e3;
    }
    (void)printf("reply of %zu tokens: mask mean %.1f us, worst %.1f us, %zu within 50 us; accept "
                 "mean %.2f us\n",
        ids.len, total / (double)ids.len, worst, n_common, accept_us / (double)ids.len);
    grammar_state_free(s);
    token_list_release(&ids);
}

/* Every mask on the way through a text of a format. */
static void bench_formats(uint64_t *mask) {
    static const char *const formats[][2] = {{"date-time", "2026-11-30T07:00:00.123456789+01:00"},
        {"duration", "P1Y2M30DT12H30M59S"}, {"hostname", "node-1.cluster.example.org"},
        {"email", "first.last+tag@mail.example.org"}, {"ipv6", "2001:db8::ff00:42:8329"},
        {"uri", "https://user@example.org:8080/a/b%20c?q=1#top"}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        char schema[80];
        double ms, total = 0, worst = 0;
        (void)snprintf(
            schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}", formats[i][0]);
        grammar *g = compile(schema, &ms);
        grammar_state *s = grammar_state_new(g);
        const char *text = formats[i][1];
        size_t n = strlen(text);
        if (grammar_accept_bytes(s, "\"", 1) != OK) exit(1);
        for (size_t k = 0; k < n; k++) {
            double us = mask_us(s, mask);
            total += us;
            if (us > worst) worst = us;
            if (grammar_accept_bytes(s, text + k, 1) != OK) exit(1);
        }
        (void)printf("format %-12s compile %7.2f ms, mask mean %6.1f us, worst %6.1f us\n",
            formats[i][0], ms, total / (double)n, worst);
        grammar_state_free(s);
        grammar_put(g);
    }
}

static void bench_compile(void) {
    static const char *const kinds[] = {"{\"type\":\"string\",\"maxLength\":100}",
        "{\"type\":\"integer\",\"minimum\":0}", "{\"enum\":[\"a\",\"b\",\"c\"]}",
        "{\"type\":\"array\",\"items\":{\"type\":\"number\"}}",
        "{\"anyOf\":[{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"null\"}]}"};
    buf text = BUF_INIT;
    (void)buf_puts(&text, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 200; i++) {
        (void)buf_printf(&text, "%s\"property_%d\":%s", i > 0 ? "," : "", i, kinds[i % 5]);
    }
    (void)buf_puts(&text, "},\"required\":[\"property_3\",\"property_150\"]}");
    double best = 1e9, ms;
    for (int i = 0; i < ROUNDS; i++) {
        grammar_put(compile(buf_cstr(&text), &ms));
        if (ms < best) best = ms;
    }
    (void)printf("compile, 200 properties %.2f ms\n", best);
    grammar *g = compile(buf_cstr(&text), &ms);
    grammar_state *s = grammar_state_new(g);
    uint64_t *mask = mem_array(token_trie_words(trie), sizeof *mask);
    if (grammar_accept_bytes(s, "{\"", 2) != OK) exit(1);
    (void)printf("mask, key among 200    %8.1f us\n", mask_us(s, mask));
    mem_free(mask);
    grammar_state_free(s);
    grammar_put(g);
    buf_release(&text);
}

int main(void) {
    buf text = BUF_INIT;
    char why[256];
    err e = ERR_INIT;
    double ms;
    if (real_tokenizer_v41(vectors_golden_dir(), &text, why) == OK) {
        if (tokenizer_parse(text.data, text.len, &tk, &e) != OK) return 1;
        uint64_t start = clock_mono_ns();
        if (token_trie_new(tk, &trie, &e) != OK) return 1;
        (void)printf("tree of %d tokens built in %.0f ms\n", tokenizer_size(tk),
            (double)(clock_mono_ns() - start) / 1e6);
    } else {
        (void)printf("the demo model's vocabulary (%s)\n", why);
        if (walk_tokenizer(&tk, &trie, &e) != OK) return 1;
    }
    uint64_t *mask = mem_array(token_trie_words(trie), sizeof *mask);
    grammar *g = compile(agent_schema, &ms);
    bench_points(g, mask);
    bench_reply(g, mask);
    bench_formats(mask);
    bench_compile();
    grammar_put(g);
    mem_free(mask);
    token_trie_free(trie);
    tokenizer_close(tk);
    buf_release(&text);
    return 0;
}
