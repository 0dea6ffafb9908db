/* Alternatives to nodes: literals, numbers, strings, arrays. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/schema_internal.h"

#define DIFFERENT_MAX 16 /* places of an array with uniqueItems that are held against each other */

#define LENGTHS_MAX_BITS (1u << 26)

void schema_add_choice(schema_compiler *c, uint32_t value, uint32_t kind, uint32_t index) {
    value_node *v = &c->g->values[value];
    /* Room doubles at powers of two; the arena keeps the old list. */
    if ((v->n_choices & (v->n_choices - 1)) == 0) {
        uint32_t cap = v->n_choices == 0 ? 1 : v->n_choices * 2;
        value_choice *list = arena_alloc(&c->g->memory, cap * sizeof *list);
        if (v->n_choices > 0) memcpy(list, v->choices, v->n_choices * sizeof *list);
        v->choices = list;
    }
    v->choices[v->n_choices++] = (value_choice){kind, index};
}

static void add_literal(schema_compiler *c, uint32_t value, uint32_t kind) {
    const value_node *v = &c->g->values[value];
    for (uint32_t i = 0; i < v->n_choices; i++) {
        if (v->choices[i].kind == kind) return;
    }
    schema_add_choice(c, value, kind, 0);
}

static wide gcd(wide a, wide b) {
    while (b != 0) {
        wide r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Values of a that are in b too. */
static void keep_common(schema_compiler *c, number_node *n, const atom *a) {
    wide *set = arena_alloc(&c->g->memory, (a->n + 1) * sizeof *set);
    uint32_t len = 0;
    for (uint64_t i = 0; i < a->n; i++) {
        bool is_in = n->set == NULL;
        for (uint32_t k = 0; k < n->n_set && !is_in; k++)
            is_in = n->set[k] == a->values[i];
        if (is_in && (len == 0 || set[len - 1] != a->values[i])) set[len++] = a->values[i];
    }
    n->set = set;
    n->n_set = len;
}

static void leave_out(schema_compiler *c, number_node *n, const atom *a) {
    wide *list = arena_alloc(&c->g->memory, (n->n_not_in + a->n) * sizeof *list);
    if (n->n_not_in > 0) memcpy(list, n->not_in, n->n_not_in * sizeof *list);
    memcpy(list + n->n_not_in, a->values, a->n * sizeof *list);
    n->not_in = list;
    n->n_not_in += (uint32_t)a->n;
}

static int number_rule(schema_compiler *c, number_node *n, const atom *a) {
    switch (a->kind) {
    case RULE_INTEGER:
        n->is_integer = true;
        return OK;
    case RULE_LOW:
        if (a->v > n->lo) n->lo = a->v;
        break;
    case RULE_HIGH:
        if (a->v < n->hi) n->hi = a->v;
        break;
    case RULE_STEP: {
        wide g = gcd(n->step, a->v);
        if (a->v / g >= NUMBER_LIMIT / n->step) {
            return schema_fail(c, ERR_UNSUPPORTED, a->from, NULL,
                "the multipleOf rules that hold together are too large");
        }
        n->step *= a->v / g;
        break;
    }
    case RULE_NOT_STEP:
        if (n->n_not_steps == 4) {
            return schema_fail(c, ERR_UNSUPPORTED, a->from, NULL,
                "too many multipleOf to exclude, by not or by other branches of oneOf");
        }
        n->not_steps[n->n_not_steps++] = a->v;
        break;
    case RULE_NUMBERS:
        if (a->is_negated) {
            leave_out(c, n, a);
        } else {
            keep_common(c, n, a);
        }
        break;
    default:
        return OK;
    }
    n->is_free = false;
    return OK;
}

static int build_number(schema_compiler *c, uint32_t value, const alternative *alt) {
    number_node n = {.is_free = true, .lo = 1 - NUMBER_LIMIT, .hi = NUMBER_LIMIT - 1, .step = 1};
    for (const atom_list *l = alt->atoms; l != NULL; l = l->next) {
        int rc = number_rule(c, &n, l->a);
        if (rc != OK) return rc;
    }
    if (!n.is_free && n.is_integer) {
        atom whole = {.kind = RULE_STEP, .v = NUMBER_UNIT};
        int rc = number_rule(c, &n, &whole);
        if (rc != OK) return rc;
    }
    if (n.n_not_in > 1024) {
        return schema_fail_rule(c, alt, RULE_NUMBERS, "enum", "too many numbers left out");
    }
    if (!number_has_value(&n)) return OK;
    uint32_t index = grammar_add_number(c->g);
    c->g->numbers[index] = n;
    schema_add_choice(c, value, VALUE_NUMBER, index);
    return OK;
}

static int intersect(schema_compiler *c, const dfa **d, const atom *a) {
    dfa *both;
    if (*d == NULL && !a->is_negated) {
        *d = a->d;
        return OK;
    }
    if (*d == NULL && c->any == NULL) {
        dfa *any;
        int rc = dfa_any(&any, c->e);
        if (rc != OK) return rc;
        c->any = schema_keep_dfa(c, any);
    }
    int rc = dfa_intersect(*d == NULL ? c->any : *d, a->d, a->is_negated, &both, c->e);
    if (rc != OK) {
        return schema_fail(c, ERR_UNSUPPORTED, a->from, NULL, "patterns too large together");
    }
    *d = schema_keep_dfa(c, both);
    return OK;
}

/* Bit L of row q: acceptance after exactly L more characters. */
static int fill_lengths(schema_compiler *c, const alternative *alt, string_node *n) {
    const dfa *d = n->content;
    uint32_t words = n->max / 64 + 1;
    if ((uint64_t)words * 64 * d->n_states > LENGTHS_MAX_BITS) {
        return schema_fail_rule(c, alt, RULE_MAX_LENGTH, "maxLength",
            "minLength and maxLength beside this pattern are too large to enforce");
    }
    uint64_t *rows = arena_alloc(&c->g->memory, (size_t)words * d->n_states * sizeof *rows);
    uint8_t sample[256], is_first[256];
    for (int b = 255; b >= 0; b--) {
        sample[d->class_of[b]] = (uint8_t)b;
        is_first[d->class_of[b]] = (b & 0xC0) != 0x80;
    }
    for (uint32_t q = 1; q < d->n_states; q++)
        rows[(size_t)q * words] = d->accepts[q];
    for (uint32_t len = 0; len <= n->max; len++) {
        /* Inside a character the length stays: at most three such bytes follow each other. */
        for (int round = 0; round < 4; round++) {
            for (uint32_t q = 1; q < d->n_states; q++) {
                uint64_t *word = &rows[(size_t)q * words + len / 64];
                uint64_t bit = (uint64_t)1 << (len % 64);
                for (uint32_t k = 0; k < d->n_classes && (*word & bit) == 0; k++) {
                    uint32_t r = dfa_step(d, q, sample[k]);
                    uint32_t left = len - (is_first[k] != 0);
                    if (r == 0 || left > len) continue;
                    if ((rows[(size_t)r * words + left / 64] >> (left % 64) & 1) != 0) *word |= bit;
                }
            }
        }
    }
    n->lengths = rows;
    n->lengths_words = words;
    return OK;
}

int schema_text_rules(schema_compiler *c, const alternative *alt, string_node *n) {
    *n = (string_node){.max = GRAMMAR_NO_LIMIT};
    for (const atom_list *l = alt->atoms; l != NULL; l = l->next) {
        const atom *a = l->a;
        int rc = OK;
        if (a->kind == RULE_MIN_LENGTH && a->n > n->min) n->min = (uint32_t)a->n;
        if (a->kind == RULE_MAX_LENGTH && a->n < n->max) n->max = (uint32_t)a->n;
        if (a->kind == RULE_TEXT) rc = intersect(c, &n->content, a);
        if (rc != OK) return rc;
    }
    if (n->content == NULL || n->content->start == 0) return OK;
    uint32_t q = n->content->start;
    /* Limits that the automaton keeps anyway need not be counted. */
    if (n->min <= n->content->min_chars[q]) n->min = 0;
    if (n->content->max_chars[q] != DFA_MANY && n->content->max_chars[q] <= n->max) {
        n->max = GRAMMAR_NO_LIMIT;
    }
    if (n->min > 0 && n->max != GRAMMAR_NO_LIMIT && n->min <= n->max)
        return fill_lengths(c, alt, n);
    return OK;
}

static int build_string(schema_compiler *c, uint32_t value, const alternative *alt) {
    string_node n;
    int rc = schema_text_rules(c, alt, &n);
    if (rc != OK || n.min > n.max) return rc;
    if (n.content != NULL && !string_can_finish(&n, n.content->start, 0)) return OK;
    uint32_t index = grammar_add_string(c->g);
    c->g->strings[index] = n;
    schema_add_choice(c, value, VALUE_STRING, index);
    return OK;
}

/* What the rules say about places of an array. */
typedef struct places {
    uint64_t n_prefix, min, max;
    const atom *contains[ARRAY_CONTAINS_MAX];
    uint32_t n_contains, n_rules;
    bool is_unique;
} places;

static int read_places(schema_compiler *c, const alternative *alt, places *p) {
    *p = (places){.max = GRAMMAR_NO_LIMIT};
    for (const atom_list *l = alt->atoms; l != NULL; l = l->next) {
        const atom *a = l->a;
        p->n_rules++;
        if (a->kind == RULE_ITEM && a->n + 1 > p->n_prefix) p->n_prefix = a->n + 1;
        if (a->kind == RULE_REST && a->n > p->n_prefix) p->n_prefix = a->n;
        if (a->kind == RULE_MIN_ITEMS && a->n > p->min) p->min = a->n;
        if (a->kind == RULE_MAX_ITEMS && a->n < p->max) p->max = a->n;
        if (a->kind == RULE_UNIQUE) p->is_unique = true;
        if (a->kind != RULE_CONTAINS || (a->n == 0 && a->max == GRAMMAR_NO_LIMIT)) continue;
        if (p->n_contains == ARRAY_CONTAINS_MAX) {
            return schema_fail(c, ERR_UNSUPPORTED, a->lit / 2, NULL,
                "more than three contains that hold together");
        }
        p->contains[p->n_contains++] = a;
    }
    return OK;
}

static bool in_scope(const scope *sc, const scope *of) {
    for (; sc != NULL; sc = sc->outer) {
        if (sc == of) return true;
    }
    return false;
}

/* The literal of unevaluatedItems for place i, if its scope evaluates nothing there; UINT32_MAX:
 * nothing to ask. */
static int unevaluated_item(
    schema_compiler *c, const alternative *alt, const scope *sc, uint64_t i, literal *out) {
    const json *s = json_get(c->entries[sc->entry].node, "unevaluatedItems");
    *out = UINT32_MAX;
    if (s == NULL || json_is_true(s)) return OK;
    for (const atom_list *l = alt->atoms; l != NULL; l = l->next) {
        const atom *a = l->a;
        if (!in_scope(a->sc, sc)) continue;
        /* An inner scope with its own keyword evaluates everything that is left. */
        if (a->kind == RULE_TYPES && a->sc != sc &&
            json_get(c->entries[a->sc->entry].node, "unevaluatedItems") != NULL) {
            return OK;
        }
        if (a->kind == RULE_CONTAINS) {
            return schema_fail(c, ERR_UNSUPPORTED, sc->entry, "unevaluatedItems",
                "contains beside unevaluatedItems cannot be enforced");
        }
        if ((a->kind == RULE_ITEM && a->n == i) || (a->kind == RULE_REST && a->n <= i)) return OK;
    }
    *out = schema_find(c, s) * 2;
    return OK;
}

/* Collects the literals of one place into list; returns how many. */
static int place_literals(
    schema_compiler *c, const alternative *alt, uint64_t i, literal *list, uint32_t *n) {
    *n = 0;
    for (const atom_list *l = alt->atoms; l != NULL; l = l->next) {
        const atom *a = l->a;
        if ((a->kind == RULE_ITEM && a->n == i) || (a->kind == RULE_REST && a->n <= i)) {
            list[(*n)++] = a->lit;
        }
        if (a->kind == RULE_TYPES && a->sc != NULL) {
            literal lit;
            int rc = unevaluated_item(c, alt, a->sc, i, &lit);
            if (rc != OK) return rc;
            if (lit != UINT32_MAX) list[(*n)++] = lit;
        }
    }
    return OK;
}

/* Values of one place for each set of contains. */
static int build_place(
    schema_compiler *c, const alternative *alt, const places *p, uint64_t i, uint32_t *row) {
    literal *list = mem_array(p->n_rules + ARRAY_CONTAINS_MAX + 1, sizeof *list);
    uint32_t n_base;
    int rc = place_literals(c, alt, i, list, &n_base);
    for (uint32_t set = 0; set < 1u << p->n_contains && rc == OK; set++) {
        uint32_t n = n_base;
        for (uint32_t k = 0; k < p->n_contains; k++) {
            const atom *a = p->contains[k];
            if ((set >> k & 1) != 0) list[n++] = a->lit;
            if ((set >> k & 1) == 0 && a->max != GRAMMAR_NO_LIMIT) list[n++] = a->lit ^ 1u;
        }
        rc = schema_value(c, list, n, &row[set]);
    }
    mem_free(list);
    return rc;
}

/* What each two of the places that must be filled have in common. */
static int note_different(
    schema_compiler *c, const alternative *alt, const places *p, uint32_t index) {
    uint32_t n = p->min > DIFFERENT_MAX ? DIFFERENT_MAX : (uint32_t)p->min;
    different_places *d = schema_alloc(c, sizeof *d);
    literal *list = mem_array(2 * (p->n_rules + 1), sizeof *list);
    int rc = OK;
    *d = (different_places){.next = c->different, .array = index, .n = n};
    d->shared = schema_alloc(c, (size_t)n * n * sizeof *d->shared);
    for (const atom_list *l = alt->atoms; l != NULL; l = l->next) {
        if (l->a->kind == RULE_UNIQUE) d->from = l->a->from;
    }
    for (uint32_t k = 0; k < n * n && rc == OK; k++) {
        uint32_t i = k / n, j = k % n, n_one = 0, n_other = 0;
        if (j >= i) continue;
        rc = place_literals(c, alt, i, list, &n_one);
        if (rc == OK) rc = place_literals(c, alt, j, list + n_one, &n_other);
        if (rc == OK) rc = schema_value(c, list, n_one + n_other, &d->shared[k]);
    }
    mem_free(list);
    c->different = d;
    return rc;
}

int schema_build_array(schema_compiler *c, uint32_t value, const alternative *alt) {
    places p;
    int rc = read_places(c, alt, &p);
    if (rc != OK || p.min > p.max) return rc;
    if (p.n_prefix > p.max) p.n_prefix = p.max;
    if (p.n_prefix > SCHEMA_MAX_PROPERTIES) {
        return schema_fail(c, ERR_LIMIT, 1, NULL, "more than 5,000 places in an array");
    }
    if (p.n_contains > 1 && p.max != GRAMMAR_NO_LIMIT) {
        return schema_fail(c, ERR_UNSUPPORTED, p.contains[0]->lit / 2, NULL,
            "several contains beside maxItems cannot be enforced");
    }
    uint32_t n_sets = 1u << p.n_contains, n_rows = (uint32_t)p.n_prefix + 1;
    uint32_t *items = arena_alloc(&c->g->memory, (size_t)n_rows * n_sets * sizeof *items);
    for (uint32_t i = 0; i < n_rows && rc == OK; i++) {
        rc = build_place(c, alt, &p, i, items + (size_t)i * n_sets);
    }
    if (rc != OK) return rc;
    uint32_t index = grammar_add_array(c->g);
    array_node *a = &c->g->arrays[index];
    *a = (array_node){.n_prefix = (uint32_t)p.n_prefix,
        .items = items,
        .min = (uint32_t)p.min,
        .max = (uint32_t)p.max,
        .n_contains = p.n_contains,
        .is_unique = p.is_unique};
    for (uint32_t k = 0; k < p.n_contains; k++) {
        a->contains_min[k] = (uint32_t)p.contains[k]->n;
        a->contains_max[k] = (uint32_t)p.contains[k]->max;
    }
    if (p.is_unique && p.min > GRAMMAR_RECORDS_MAX) {
        return schema_fail_rule(
            c, alt, RULE_UNIQUE, "uniqueItems", "uniqueItems with minItems above 512");
    }
    schema_add_choice(c, value, VALUE_ARRAY, index);
    bool has_places = p.is_unique && p.n_prefix > 0 && p.n_contains == 0 && p.min > 1;
    return has_places ? note_different(c, alt, &p, index) : OK;
}

int schema_build(schema_compiler *c, uint32_t value, const alternative *alt) {
    int rc = OK;
    if ((alt->types & T_NULL) != 0) add_literal(c, value, VALUE_NULL);
    if ((alt->types & T_TRUE) != 0) add_literal(c, value, VALUE_TRUE);
    if ((alt->types & T_FALSE) != 0) add_literal(c, value, VALUE_FALSE);
    if ((alt->types & T_NUMBER) != 0) rc = build_number(c, value, alt);
    if (rc == OK && (alt->types & T_STRING) != 0) rc = build_string(c, value, alt);
    if (rc == OK && (alt->types & T_ARRAY) != 0) rc = schema_build_array(c, value, alt);
    if (rc == OK && (alt->types & T_OBJECT) != 0) rc = schema_build_object(c, value, alt);
    return rc;
}
