#include "tests/harness/grammar_walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "tests/harness/vectors.h"

#define DEMO_FILE "templates/demo-model/tokenizer.json"
#define PIECE_MAX 32
#define CUTS 4
#define SAMPLES 12
#define TOKENS_MAX 800

int walk_tokenizer(tokenizer **tk, token_trie **trie, err *e) {
    int rc = tokenizer_open(DEMO_FILE, tk, e);
    if (rc != OK) {
        buf path = BUF_INIT;
        rc = path_join(&path, vectors_cases_dir(), "tokenizer/mini-tokenizer.json");
        if (rc == OK) rc = tokenizer_open(buf_cstr(&path), tk, e);
        buf_release(&path);
    }
    return rc == OK ? token_trie_new(*tk, trie, e) : rc;
}

_Noreturn static void give_up(const char *what, const char *text, size_t len) {
    (void)printf("FAIL %s: %.*s\n", what, (int)(len > 2000 ? 2000 : len), text);
    exit(1);
}

static bool bit(const uint64_t *mask, int32_t token) {
    return (mask[token / 64] >> (token % 64) & 1) != 0;
}

/* How the text is cut: 0 the shortest tokens, 1 the longest, more: at random. */
static int32_t next_piece(
    const tokenizer *tk, const char *text, size_t len, int cut, rand_state *r) {
    int32_t found[PIECE_MAX];
    int n = 0;
    for (size_t i = 1; i <= len && i <= PIECE_MAX; i++) {
        int32_t k = tokenizer_find(tk, text, i);
        if (k >= 0) found[n++] = k;
    }
    if (n == 0) return -1;
    if (cut == 0) return found[0];
    return cut == 1 ? found[n - 1] : found[rand_below(r, (uint32_t)n)];
}

static bool walk_cut(grammar *g, const tokenizer *tk, const char *text, size_t len, int cut) {
    grammar_state *s = grammar_state_new(g);
    uint64_t *mask = mem_array((size_t)tokenizer_size(tk) / 64 + 1, sizeof *mask);
    rand_state r;
    bool is_right = true;
    rand_init(&r, (uint64_t)cut, len);
    for (size_t at = 0; at < len && is_right;) {
        int32_t k = next_piece(tk, text + at, len - at, cut, &r);
        if (k < 0) give_up("no token for", text + at, len - at);
        size_t n;
        tokenizer_bytes(tk, k, &n);
        grammar_mask(s, mask);
        is_right = grammar_accept(s, k) == OK;
        if (is_right != bit(mask, k)) give_up("mask and step disagree in", text, len);
        at += n;
    }
    if (is_right) {
        int32_t eos = tokenizer_controls(tk).eos;
        grammar_mask(s, mask);
        is_right = grammar_is_final(s);
        if (is_right != bit(mask, eos)) give_up("the end is not in the mask of", text, len);
    }
    mem_free(mask);
    grammar_state_free(s);
    return is_right;
}

bool walk_accepts_bytes(grammar *g, const tokenizer *tk, const char *text, size_t len) {
    grammar_state *s = grammar_state_new(g);
    bool is_right = true;
    for (size_t i = 0; i < len && is_right; i++) {
        is_right = grammar_accept_bytes(s, text + i, 1) == OK;
    }
    is_right = is_right && grammar_is_final(s);
    grammar_state_free(s);
    for (int cut = 0; cut < CUTS; cut++) {
        if (walk_cut(g, tk, text, len, cut) != is_right) {
            give_up("tokens and bytes disagree in", text, len);
        }
    }
    return is_right;
}

bool walk_accepts(grammar *g, const tokenizer *tk, const char *text) {
    return walk_accepts_bytes(g, tk, text, strlen(text));
}

/* Some tokens at random: the mask says what the step does. */
static void check_samples(
    grammar_state *s, const tokenizer *tk, const uint64_t *mask, rand_state *r, const buf *text) {
    for (int i = 0; i < SAMPLES; i++) {
        int32_t k = (int32_t)rand_below(r, (uint32_t)tokenizer_size(tk));
        if (grammar_allows(s, k) != bit(mask, k)) {
            (void)printf("token %d, in the mask: %d\n", k, bit(mask, k));
            give_up("mask and step disagree after", buf_cstr(text), text->len);
        }
    }
}

static bool is_closer(const tokenizer *tk, int32_t k) {
    size_t n;
    const char *bytes = tokenizer_bytes(tk, k, &n);
    return n == 1 && memchr("\"}]", bytes[0], 3) != NULL;
}

static int32_t draw(const tokenizer *tk, const uint64_t *mask, rand_state *r, bool is_ending) {
    int32_t n = tokenizer_size(tk), picked = -1;
    uint32_t n_seen = 0, n_closers = 0;
    int32_t eos = tokenizer_controls(tk).eos;
    if (bit(mask, eos) && (is_ending || rand_below(r, 2) == 0)) return eos;
    is_ending = is_ending && rand_below(r, 8) > 0; /* what is closed may not be what must come */
    for (int32_t k = 0; k < n; k++) {
        if (!bit(mask, k)) continue;
        bool is_better = is_ending && is_closer(tk, k);
        if (is_better && n_closers++ == 0) n_seen = 0;
        if (is_ending && n_closers > 0 && !is_better) continue;
        if (rand_below(r, ++n_seen) == 0) picked = k;
    }
    return picked;
}

bool walk_random(grammar *g, const tokenizer *tk, uint64_t seed, int n_free, buf *out) {
    grammar_state *s = grammar_state_new(g);
    uint64_t *mask = mem_array((size_t)tokenizer_size(tk) / 64 + 1, sizeof *mask);
    rand_state r;
    rand_init(&r, seed, 1);
    n_free = (int)rand_below(&r, (uint32_t)n_free) + 1;
    for (int i = 0; !grammar_is_done(s); i++) {
        size_t n;
        grammar_mask(s, mask);
        check_samples(s, tk, mask, &r, out);
        int32_t k = draw(tk, mask, &r, i > n_free);
        if (k < 0) give_up("nothing may follow", buf_cstr(out), out->len);
        if (i > TOKENS_MAX) break; /* chance did not hit on what must come */
        if (grammar_accept(s, k) != OK) give_up("not taken after", buf_cstr(out), out->len);
        const char *bytes = tokenizer_bytes(tk, k, &n);
        if (!grammar_is_done(s) && buf_append(out, bytes, n) != OK) exit(1);
    }
    bool is_whole = grammar_is_done(s);
    mem_free(mask);
    grammar_state_free(s);
    return is_whole;
}
