/* The compiler's main loop, and the proof that what was built has values. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/run/grammar_trie.h"
#include "engine/run/schema_internal.h"

static int compare_literals(const void *a, const void *b) {
    literal x = *(const literal *)a, y = *(const literal *)b;
    return (x > y) - (x < y);
}

static uint32_t set_hash(const literal *lits, uint32_t n) {
    uint64_t h = HASH_START;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ lits[i]) * 1099511628211u;
    return (uint32_t)(h ^ h >> 32);
}

static uint32_t *set_slot(schema_compiler *c, const literal *lits, uint32_t n) {
    uint32_t i = set_hash(lits, n) & (c->set_table_size - 1);
    for (; c->set_table[i] != 0; i = (i + 1) & (c->set_table_size - 1)) {
        const literal_set *s = &c->sets[c->set_table[i] - 1];
        if (s->n == n && memcmp(s->at, lits, n * sizeof *lits) == 0) break;
    }
    return &c->set_table[i];
}

static void grow_sets(schema_compiler *c) {
    if ((c->n_sets + 1) * 2 > c->set_table_size) {
        mem_free(c->set_table);
        c->set_table_size = c->set_table_size == 0 ? 256 : c->set_table_size * 4;
        c->set_table = mem_array(c->set_table_size, sizeof *c->set_table);
        for (uint32_t i = 0; i < c->n_sets; i++) {
            *set_slot(c, c->sets[i].at, c->sets[i].n) = i + 1;
        }
    }
    if (c->n_sets == c->cap_sets) {
        c->cap_sets = c->cap_sets == 0 ? 64 : c->cap_sets * 2;
        c->sets = mem_realloc(c->sets, c->cap_sets * sizeof *c->sets);
    }
}

int schema_value(schema_compiler *c, const literal *lits, uint32_t n, uint32_t *value) {
    literal *sorted = schema_alloc(c, (n + 1) * sizeof *sorted);
    uint32_t len = 0;
    if (n > 0) {
        memcpy(sorted, lits, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, compare_literals);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (sorted[i] == SCHEMA_TRUE * 2) continue;
        if (len == 0 || sorted[len - 1] != sorted[i]) sorted[len++] = sorted[i];
    }
    grow_sets(c);
    uint32_t *slot = set_slot(c, sorted, len);
    if (*slot == 0) {
        if (c->n_sets >= SCHEMA_MAX_VALUES) {
            return schema_fail(c, ERR_UNSUPPORTED, 1, NULL, "too many combinations of schemas");
        }
        c->sets[c->n_sets] = (literal_set){sorted, len, grammar_add_value(c->g)};
        *slot = ++c->n_sets;
    }
    *value = c->sets[*slot - 1].value;
    return OK;
}

/* How many values a node has, up to limit; arrays and objects count as many. */
static uint32_t count_values(const grammar *g, uint32_t value, uint32_t limit) {
    const value_node *v = &g->values[value];
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->n_choices && n < limit; i++) {
        uint32_t index = v->choices[i].index;
        switch (v->choices[i].kind) {
        case VALUE_NUMBER:
            n += number_count(&g->numbers[index], limit);
            break;
        case VALUE_STRING: {
            const dfa *d = g->strings[index].content;
            uint32_t words = d == NULL ? DFA_MANY : d->words[d->start];
            n += words > limit ? limit : words;
            break;
        }
        case VALUE_ARRAY:
        case VALUE_OBJECT:
            n += limit;
            break;
        default:
            n++;
            break;
        }
    }
    return n;
}

/* The values written before may leave nothing for a place with few: that is not seen in time while a
 * reply is written, so such a schema is refused. */
static int check_different(schema_compiler *c) {
    for (const different_places *d = c->different; d != NULL; d = d->next) {
        const array_node *a = &c->g->arrays[d->array];
        for (uint32_t i = 1; i < d->n; i++) {
            uint32_t n_taken = 0;
            for (uint32_t j = 0; j < i; j++)
                n_taken += count_values(c->g, d->shared[i * d->n + j], 1) > 0;
            uint32_t own = a->items[i < a->n_prefix ? i : a->n_prefix];
            if (count_values(c->g, own, n_taken + 1) > n_taken) continue;
            return schema_fail(c, ERR_UNSUPPORTED, d->from, "uniqueItems",
                "the places that must be filled have too few different values");
        }
    }
    return OK;
}

int schema_compile_all(schema_compiler *c) {
    for (; c->n_built < c->n_sets; c->n_built++) {
        literal_set s = c->sets[c->n_built];
        literal all = SCHEMA_TRUE * 2;
        alternative_list alts = {0};
        int rc = schema_expand(c, s.n > 0 ? s.at : &all, s.n > 0 ? s.n : 1, T_ALL, &alts);
        for (uint32_t i = 0; i < alts.n && rc == OK; i++)
            rc = schema_build(c, s.value, &alts.at[i]);
        mem_free(alts.at);
        if (rc != OK) return rc;
        if (clock_thread_ms() > c->limit_ms) {
            return schema_fail(c, ERR_UNSUPPORTED, 1, NULL, "takes too long to compile");
        }
    }
    return check_different(c);
}

static uint32_t value_height(const grammar *g, uint32_t value) {
    return value == 0 ? GRAMMAR_NO_LIMIT : g->values[value].height;
}

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* The lowest height among the values of one place that fulfil all of wanted. */
static uint32_t place_height(const grammar *g, const array_node *a, uint32_t i, uint32_t wanted) {
    uint32_t row = i < a->n_prefix ? i : a->n_prefix, n_sets = 1u << a->n_contains;
    uint32_t best = GRAMMAR_NO_LIMIT;
    for (uint32_t set = 0; set < n_sets; set++) {
        if ((set & wanted) != wanted) continue;
        uint32_t h = value_height(g, a->items[(size_t)row * n_sets + set]);
        if (h < best) best = h;
    }
    return best;
}

/* Height of the cheapest array, or GRAMMAR_NO_LIMIT. */
static uint32_t array_height(const grammar *g, const array_node *a) {
    uint32_t height = 0, end = larger(a->min, a->n_prefix + 1);
    if (end > a->max) end = a->max;
    if (end > a->n_prefix + 1) end = a->n_prefix + 1;
    for (uint32_t i = 0; i < a->min && i < end; i++)
        height = larger(height, place_height(g, a, i, 0));
    for (uint32_t k = 0; k < a->n_contains; k++) {
        uint32_t found = 0, best = GRAMMAR_NO_LIMIT;
        for (uint32_t i = 0; i < end; i++) {
            uint32_t h = place_height(g, a, i, 1u << k);
            if (h == GRAMMAR_NO_LIMIT && place_height(g, a, i, 0) == GRAMMAR_NO_LIMIT) break;
            if (h == GRAMMAR_NO_LIMIT) continue;
            found += i == a->n_prefix ? a->max - i : 1;
            if (h < best) best = h;
        }
        if (a->contains_min[k] > 0) height = larger(height, best);
        if (found < a->contains_min[k] || a->contains_min[k] > a->contains_max[k]) {
            return GRAMMAR_NO_LIMIT;
        }
    }
    if (a->min > a->max) return GRAMMAR_NO_LIMIT;
    return height == GRAMMAR_NO_LIMIT ? height : height + 1;
}

/* Undeclared keys that an object can have, up to limit. */
static uint32_t count_classes(const grammar *g, const object_node *o, uint32_t limit) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < o->n_classes; k++) {
        if (value_height(g, o->classes[k].value) == GRAMMAR_NO_LIMIT) continue;
        const dfa *d = o->classes[k].text;
        uint32_t words = d == NULL ? limit : d->words[d->start];
        n += words > limit ? limit : words;
    }
    return n > GRAMMAR_RECORDS_MAX ? GRAMMAR_RECORDS_MAX : n;
}

static uint32_t object_height(const grammar *g, const object_node *o) {
    uint32_t height = 0, n_required = 0, n_open = 0;
    for (uint32_t i = 0; i < o->n_names; i++) {
        uint32_t h = value_height(g, o->names[i].value);
        n_open += h != GRAMMAR_NO_LIMIT;
        if (!o->names[i].is_required) continue;
        n_required++;
        height = larger(height, h);
        for (uint32_t k = 0; k < o->n_names && o->names[i].brings != NULL; k++) {
            if ((o->names[i].brings[k / 64] >> (k % 64) & 1) == 0) continue;
            height = larger(height, value_height(g, o->names[k].value));
        }
    }
    if (o->has_debt) {
        uint32_t best = GRAMMAR_NO_LIMIT;
        for (uint32_t k = 0; k < o->n_classes; k++) {
            uint32_t h = value_height(g, o->classes[k].owed_value);
            if (h < best) best = h;
        }
        n_required++;
        height = larger(height, best);
    }
    if (n_required > o->max || o->min > n_open + count_classes(g, o, o->min)) {
        return GRAMMAR_NO_LIMIT;
    }
    return height == GRAMMAR_NO_LIMIT ? height : height + 1;
}

static uint32_t choice_height(const grammar *g, value_choice x) {
    if (x.kind == VALUE_ARRAY) return g->arrays[x.index].height;
    if (x.kind == VALUE_OBJECT) return g->objects[x.index].height;
    return 0;
}

/* One round of lowering heights. True if something changed. */
static bool lower_heights(grammar *g) {
    bool has_changed = false;
    for (uint32_t i = 0; i < g->n_arrays; i++) {
        uint32_t h = array_height(g, &g->arrays[i]);
        has_changed = has_changed || h != g->arrays[i].height;
        g->arrays[i].height = h;
    }
    for (uint32_t i = 0; i < g->n_objects; i++) {
        uint32_t h = object_height(g, &g->objects[i]);
        has_changed = has_changed || h != g->objects[i].height;
        g->objects[i].height = h;
    }
    for (uint32_t i = 1; i < g->n_values; i++) {
        uint32_t best = GRAMMAR_NO_LIMIT;
        for (uint32_t k = 0; k < g->values[i].n_choices; k++) {
            uint32_t h = choice_height(g, g->values[i].choices[k]);
            if (h < best) best = h;
        }
        has_changed = has_changed || best != g->values[i].height;
        g->values[i].height = best;
    }
    return has_changed;
}

static void cut_array(grammar *g, array_node *a) {
    uint32_t n_sets = 1u << a->n_contains;
    for (uint32_t i = 0; i <= a->n_prefix && i < a->max; i++) {
        bool is_open = false;
        for (uint32_t set = 0; set < n_sets; set++) {
            uint32_t *value = &a->items[(size_t)i * n_sets + set];
            if (value_height(g, *value) == GRAMMAR_NO_LIMIT) *value = 0;
            is_open = is_open || *value != 0;
        }
        if (!is_open) a->max = i;
    }
}

static void cut_object(grammar *g, object_node *o) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n_names; i++) {
        bool is_open = value_height(g, o->names[i].value) != GRAMMAR_NO_LIMIT;
        for (uint32_t k = 0; k < o->n_names && o->names[i].brings != NULL; k++) {
            if ((o->names[i].brings[k / 64] >> (k % 64) & 1) == 0) continue;
            is_open = is_open && value_height(g, o->names[k].value) != GRAMMAR_NO_LIMIT;
        }
        if (!is_open) o->names[i].value = 0;
    }
    for (uint32_t k = 0; k < o->n_classes; k++) {
        key_class x = o->classes[k];
        if (value_height(g, x.value) == GRAMMAR_NO_LIMIT) x.value = 0;
        if (value_height(g, x.owed_value) == GRAMMAR_NO_LIMIT) x.owed_value = 0;
        if (x.value != 0 || x.owed_value != 0) o->classes[n++] = x;
    }
    o->n_classes = n;
    o->next_required[o->n_names] = o->n_names;
    o->n_open_from[o->n_names] = 0;
    for (uint32_t k = o->n_names; k-- > 0;) {
        const key_name *name = &o->names[o->by_order[k]];
        o->next_required[k] = name->is_required ? k : o->next_required[k + 1];
        o->n_open_from[k] = o->n_open_from[k + 1] + (name->value != 0);
    }
}

/* Whether the values of all elements, or of those that a contains asks, are too few. */
static bool has_few_values(const grammar *g, const array_node *a) {
    uint32_t n_all = a->min == 0 ? 0 : count_values(g, a->items[0], a->min);
    if (a->n_contains == 0) return n_all < a->min;
    if (a->n_contains > 1) return false;
    uint32_t limit = larger(a->min, a->contains_min[0]);
    uint32_t n_found = count_values(g, a->items[1], limit);
    if (n_found < a->contains_min[0]) return true;
    bool is_apart = a->contains_max[0] != GRAMMAR_NO_LIMIT; /* then items[0] is all but these */
    return n_all + (is_apart ? n_found : 0) < a->min;
}

static void mark_short_domains(grammar *g) {
    for (uint32_t i = 0; i < g->n_arrays; i++) {
        array_node *a = &g->arrays[i];
        if (!a->is_unique || a->n_prefix > 0) continue;
        if (has_few_values(g, a)) {
            a->max = 0; /* no such array: cut as one without height */
            a->min = 1;
        }
    }
}

void schema_prune(grammar *g) {
    mark_short_domains(g);
    for (uint32_t i = 0; i < g->n_arrays; i++)
        g->arrays[i].height = GRAMMAR_NO_LIMIT;
    for (uint32_t i = 0; i < g->n_objects; i++)
        g->objects[i].height = GRAMMAR_NO_LIMIT;
    for (uint32_t i = 0; i < g->n_values; i++)
        g->values[i].height = GRAMMAR_NO_LIMIT;
    while (lower_heights(g))
        continue;
    for (uint32_t i = 0; i < g->n_arrays; i++)
        cut_array(g, &g->arrays[i]);
    for (uint32_t i = 0; i < g->n_objects; i++)
        cut_object(g, &g->objects[i]);
    for (uint32_t i = 1; i < g->n_values; i++) {
        value_node *v = &g->values[i];
        uint32_t n = 0;
        for (uint32_t k = 0; k < v->n_choices; k++) {
            if (choice_height(g, v->choices[k]) != GRAMMAR_NO_LIMIT)
                v->choices[n++] = v->choices[k];
        }
        v->n_choices = n;
    }
}

int schema_into(grammar *g, const json *schema, const schema_options *o, uint32_t *value, err *e) {
    schema_compiler c = {.g = g, .options = o, .e = e, .memory = ARENA_MAX((size_t)512 << 20)};
    c.limit_ms = clock_thread_ms() + SCHEMA_MAX_MS;
    literal root = 2;
    int rc = schema_scan(&c, schema);
    if (rc == OK) rc = schema_value(&c, &root, 1, value);
    if (rc == OK) rc = schema_compile_all(&c);
    for (uint32_t i = 0; i < c.n_owned; i++)
        json_free(c.owned[i]);
    mem_free(c.owned);
    mem_free(c.cached);
    mem_free(c.entries);
    mem_free(c.entry_table);
    mem_free(c.sets);
    mem_free(c.set_table);
    arena_release(&c.memory);
    return rc;
}

static int check_size(const json *schema, err *e) {
    buf text = BUF_MAX(SCHEMA_MAX_BYTES);
    int rc = json_print_compact(schema, &text);
    buf_release(&text);
    return rc == OK ? OK : err_set(e, ERR_LIMIT, "schema: larger than 1 MiB");
}

int grammar_from_schema(
    const token_trie *t, const json *schema, const schema_options *o, grammar **out, err *e) {
    uint32_t value;
    int rc = check_size(schema, e);
    if (rc != OK) return rc;
    grammar *g = grammar_begin(t);
    rc = schema_into(g, schema, o, &value, e);
    if (rc == OK) {
        schema_prune(g);
        g->root = (rule_item){ITEM_VALUE, value};
        if (g->values[value].height > GRAMMAR_NEST_MAX) {
            rc = err_set(e, ERR_ARG, "schema: no value can fulfil it");
        }
    }
    if (rc != OK) {
        grammar_put(g);
        return rc;
    }
    grammar_prepare_masks(g);
    *out = g;
    return OK;
}
