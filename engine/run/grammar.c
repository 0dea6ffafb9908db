/* The compiled form: tables, holders, and the grammars that need no compiler of their own. */
#include "engine/run/grammar.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar_internal.h"
#include "engine/run/grammar_trie.h"

#define GRAMMAR_MAX_BYTES ((size_t)256 << 20)

grammar *grammar_begin(const token_trie *t) {
    grammar *g = mem_alloc(sizeof *g);
    atomic_init(&g->n_holders, 1);
    g->memory = (arena)ARENA_MAX(GRAMMAR_MAX_BYTES);
    g->trie = t;
    grammar_add_value(g); /* 0 means none */
    return g;
}

grammar *grammar_get(grammar *g) {
    atomic_fetch_add(&g->n_holders, 1);
    return g;
}

void grammar_put(grammar *g) {
    if (g == NULL || atomic_fetch_sub(&g->n_holders, 1) > 1) return;
    grammar_release_masks(g);
    for (uint32_t i = 0; i < g->n_dfas; i++)
        dfa_free(g->dfas[i]);
    mem_free(g->dfas);
    mem_free(g->values);
    mem_free(g->strings);
    mem_free(g->numbers);
    mem_free(g->arrays);
    mem_free(g->objects);
    mem_free(g->rules);
    mem_free(g->items);
    mem_free(g->alternatives);
    mem_free(g->opening);
    arena_release(&g->memory);
    mem_free(g);
}

const int32_t *grammar_opening(const grammar *g, size_t *n) {
    *n = g->n_opening;
    return g->opening;
}

/* Grows a table by one zeroed entry. */
static void *add_entry(void *table, uint32_t *n, uint32_t *cap, size_t size) {
    if (*n == *cap) {
        *cap = *cap == 0 ? 16 : *cap * 2;
        table = mem_realloc(table, *cap * size);
    }
    memset((char *)table + *n * size, 0, size);
    (*n)++;
    return table;
}

uint32_t grammar_add_value(grammar *g) {
    g->values = add_entry(g->values, &g->n_values, &g->cap_values, sizeof *g->values);
    return g->n_values - 1;
}

uint32_t grammar_add_string(grammar *g) {
    g->strings = add_entry(g->strings, &g->n_strings, &g->cap_strings, sizeof *g->strings);
    g->strings[g->n_strings - 1].max = GRAMMAR_NO_LIMIT;
    return g->n_strings - 1;
}

uint32_t grammar_add_number(grammar *g) {
    g->numbers = add_entry(g->numbers, &g->n_numbers, &g->cap_numbers, sizeof *g->numbers);
    return g->n_numbers - 1;
}

uint32_t grammar_add_array(grammar *g) {
    g->arrays = add_entry(g->arrays, &g->n_arrays, &g->cap_arrays, sizeof *g->arrays);
    return g->n_arrays - 1;
}

uint32_t grammar_add_object(grammar *g) {
    g->objects = add_entry(g->objects, &g->n_objects, &g->cap_objects, sizeof *g->objects);
    return g->n_objects - 1;
}

uint32_t grammar_add_dfa(grammar *g, dfa *d) {
    g->dfas = add_entry(g->dfas, &g->n_dfas, &g->cap_dfas, sizeof *g->dfas);
    g->dfas[g->n_dfas - 1] = d;
    return g->n_dfas - 1;
}

uint32_t grammar_add_rule(grammar *g) {
    g->rules = add_entry(g->rules, &g->n_rules, &g->cap_rules, sizeof *g->rules);
    return g->n_rules - 1;
}

uint32_t grammar_add_alternative(grammar *g, const rule_item *items, uint32_t n) {
    uint32_t first = g->n_items;
    for (uint32_t i = 0; i <= n; i++) {
        g->items = add_entry(g->items, &g->n_items, &g->cap_items, sizeof *g->items);
        g->items[g->n_items - 1] = i < n ? items[i] : (rule_item){ITEM_END, 0};
    }
    g->alternatives = add_entry(
        g->alternatives, &g->n_alternatives, &g->cap_alternatives, sizeof *g->alternatives);
    g->alternatives[g->n_alternatives - 1] = first;
    return g->n_alternatives - 1;
}

static int from_dfa(const token_trie *t, dfa *d, const char *what, grammar **out, err *e) {
    if (d->start == 0) {
        dfa_free(d);
        return err_set(e, ERR_ARG, "%s: no text can match", what);
    }
    grammar *g = grammar_begin(t);
    g->root = (rule_item){ITEM_TERM, grammar_add_dfa(g, d)};
    grammar_prepare_masks(g);
    *out = g;
    return OK;
}

int grammar_from_regex(const token_trie *t, const char *pattern, grammar **out, err *e) {
    dfa *d;
    int rc = dfa_from_regex(pattern, strlen(pattern), REGEX_WHOLE, &d, e);
    return rc != OK ? rc : from_dfa(t, d, "the regular expression", out, e);
}

int grammar_from_choice(const token_trie *t, const json *choices, grammar **out, err *e) {
    size_t n = json_count(choices), i = 0;
    if (!json_is_array(choices) || n == 0) {
        return err_set(e, ERR_FORMAT, "choice: a list of strings is needed");
    }
    dfa_word *words = mem_array(n, sizeof *words);
    buf *texts = mem_array(n, sizeof *texts);
    dfa *d = NULL;
    int rc = OK;
    JSON_EACH(item, choices) {
        rc = json_str_bytes(item, &texts[i]);
        if (rc != OK) {
            rc = err_set(e, ERR_FORMAT, "choice: entry %zu is no string", i);
            break;
        }
        words[i] = (dfa_word){buf_cstr(&texts[i]), texts[i].len};
        i++;
    }
    if (rc == OK) rc = dfa_from_words(words, n, &d, e);
    for (size_t k = 0; k < n; k++)
        buf_release(&texts[k]);
    mem_free(texts);
    mem_free(words);
    return rc != OK ? rc : from_dfa(t, d, "choice", out, e);
}

int grammar_from_json_object(const token_trie *t, grammar **out, err *e) {
    static const char text[] = "{\"type\":\"object\"}";
    json *schema = NULL;
    int rc = json_parse(text, sizeof text - 1, NULL, &schema, e);
    if (rc == OK) rc = grammar_from_schema(t, schema, &(schema_options){0}, out, e);
    json_free(schema);
    return rc;
}
