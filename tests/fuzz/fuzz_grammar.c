/* Grammars from outside text: schemas, expressions, EBNF, tools; then a few bytes and masks on what
 * compiled. The first byte says which. Nothing may crash, hang or leak, and what a mask allows must
 * be taken. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar.h"

static tokenizer *tk;
static token_trie *trie;

/* The demo model's vocabulary; without it there is nothing to run. */
static void open_once(void) {
    err e = ERR_INIT;
    if (trie != NULL) return;
    if (tokenizer_open("templates/demo-model/tokenizer.json", &tk, &e) != OK) abort();
    if (token_trie_new(tk, &trie, &e) != OK) abort();
}

static int compile(int kind, const char *text, size_t len, grammar **g, err *e) {
    json *v = NULL;
    if (kind == 0) return grammar_from_regex(trie, text, g, e);
    if (kind == 1) return grammar_from_ebnf(trie, text, g, e);
    int rc = json_parse(text, len, NULL, &v, e);
    if (rc == OK && kind == 2) {
        rc = grammar_from_schema(trie, v, &(schema_options){0}, g, e);
    } else if (rc == OK && kind == 3) {
        tools_options o = {.tools = v, .is_required = (len & 1) != 0};
        rc = grammar_from_tools(trie, tk, &o, g, e);
    } else if (rc == OK) {
        rc = grammar_from_choice(trie, v, g, e);
    }
    json_free(v);
    return rc;
}

static void walk(grammar *g, uint64_t seed) {
    grammar_state *s = grammar_state_new(g);
    size_t n_words = token_trie_words(trie);
    uint64_t *mask = mem_array(n_words, sizeof *mask);
    for (int i = 0; i < 12 && !grammar_is_done(s); i++) {
        grammar_mask(s, mask);
        int32_t picked = -1;
        for (size_t k = 0; k < n_words && picked < 0; k++) {
            size_t w = (size_t)(seed + k) % n_words;
            if (mask[w] != 0) picked = (int32_t)(w * 64) + __builtin_ctzll(mask[w]);
        }
        if (picked < 0) break;
        if (grammar_accept(s, picked) != OK) abort();
        seed = seed * 6364136223846793005u + 1442695040888963407u;
    }
    mem_free(mask);
    grammar_state_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    grammar *g = NULL;
    err e = ERR_INIT;
    if (size < 2 || size > 4096) return 0;
    open_once();
    char *text = mem_strndup((const char *)data + 1, size - 1);
    if (compile(data[0] % 5, text, strlen(text), &g, &e) == OK) {
        walk(g, data[0] + size);
        grammar_put(g);
    }
    mem_free(text);
    return 0;
}
