/* Alternatives to object nodes: names, classes of other keys, order, debts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/schema_internal.h"

#define PATTERNS_MAX 6

/* What the rules of one alternative say about an object. */
typedef struct object_plan {
    schema_compiler *c;
    const alternative *alt;
    name_text *names;
    uint32_t *order; /* sequence of first mention */
    bool *is_declared, *is_required;
    uint32_t n_names;
    const dfa *patterns[PATTERNS_MAX];
    uint32_t n_patterns;
    const dfa *keys; /* all keys must be accepted; NULL: any */
    const atom *exists;
    uint64_t min, max;
    bool has_brings, is_void;
    literal *list;    /* room for all literals */
    key_set **unseen; /* what the unevaluatedProperties of each scope leave out */
    literal *unseen_lit;
    uint32_t n_unseen;
} object_plan;

static int compare_names(const name_text *a, const name_text *b) {
    uint32_t n = a->len < b->len ? a->len : b->len;
    int c = n == 0 ? 0 : memcmp(a->text, b->text, n);
    return c != 0 ? c : (a->len > b->len) - (a->len < b->len);
}

/* The names are collected first, then sorted; sequence decides the declared order. */
static void add_name(object_plan *p, name_text name, uint32_t sequence, bool is_declared) {
    p->names[p->n_names] = name;
    p->order[p->n_names] = sequence;
    p->is_declared[p->n_names] = is_declared;
    p->n_names++;
}

static int add_pattern(object_plan *p, const dfa *d) {
    for (uint32_t i = 0; i < p->n_patterns; i++) {
        if (p->patterns[i] == d) return OK;
    }
    if (p->n_patterns == PATTERNS_MAX) {
        return schema_fail_rule(p->c, p->alt, RULE_PATTERN, "patternProperties",
            "more than six patterns that hold together cannot be enforced");
    }
    p->patterns[p->n_patterns++] = d;
    return OK;
}

static uint32_t n_mentions(const alternative *alt) {
    uint32_t n = 0;
    for (const atom_list *l = alt->atoms; l != NULL; l = l->next) {
        n += 1 + (l->a->source != NULL ? (uint32_t)json_count(l->a->source) : 0);
        if (l->a->left_out != NULL) n += l->a->left_out->n_names;
    }
    return n;
}

static int take_key_set(object_plan *p, const key_set *set, uint32_t sequence) {
    for (uint32_t i = 0; i < set->n_names; i++)
        add_name(p, set->names[i], sequence, false);
    for (uint32_t i = 0; i < set->n_patterns; i++) {
        int rc = add_pattern(p, set->patterns[i]);
        if (rc != OK) return rc;
    }
    return OK;
}

static int read_atom(object_plan *p, const atom *a) {
    switch (a->kind) {
    case RULE_PROPERTY:
        add_name(p, a->name, a->sequence, a->lit != SCHEMA_TRUE * 2 + 1);
        return OK;
    case RULE_REQUIRED:
        add_name(p, a->name, UINT32_MAX, false);
        return OK;
    case RULE_BRINGS:
        p->has_brings = true;
        add_name(p, a->name, UINT32_MAX, false);
        JSON_EACH(item, a->source) {
            add_name(p, schema_name(p->c, json_str(item)), UINT32_MAX, false);
        }
        return OK;
    case RULE_PATTERN:
        return add_pattern(p, a->d);
    case RULE_OTHERS:
        return take_key_set(p, a->left_out, UINT32_MAX);
    case RULE_EXISTS:
        if (p->exists != NULL && p->exists != a) {
            return schema_fail(p->c, ERR_UNSUPPORTED, a->lit / 2, NULL,
                "too many closed objects under not or oneOf");
        }
        p->exists = a;
        return take_key_set(p, a->left_out, UINT32_MAX);
    case RULE_MIN_PROPERTIES:
        if (a->n > p->min) p->min = a->n;
        return OK;
    case RULE_MAX_PROPERTIES:
        if (a->n < p->max) p->max = a->n;
        return OK;
    default:
        return OK;
    }
}

typedef struct sort_item {
    name_text name;
    uint32_t order;
    bool is_declared;
} sort_item;

static int compare_items(const void *a, const void *b) {
    const sort_item *x = a, *y = b;
    int c = compare_names(&x->name, &y->name);
    return c != 0 ? c : (x->order > y->order) - (x->order < y->order);
}

/* Sorts the names and joins equal ones. */
static void sort_names(object_plan *p) {
    sort_item *items = mem_array(p->n_names + 1, sizeof *items);
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_names; i++) {
        items[i] = (sort_item){p->names[i], p->order[i], p->is_declared[i]};
    }
    if (p->n_names > 0) qsort(items, p->n_names, sizeof *items, compare_items);
    for (uint32_t i = 0; i < p->n_names; i++) {
        if (n > 0 && compare_names(&p->names[n - 1], &items[i].name) == 0) {
            p->is_declared[n - 1] = p->is_declared[n - 1] || items[i].is_declared;
            continue;
        }
        p->names[n] = items[i].name;
        p->order[n] = items[i].order;
        p->is_declared[n++] = items[i].is_declared;
    }
    p->n_names = n;
    mem_free(items);
}

static uint32_t name_index(const object_plan *p, name_text name) {
    uint32_t lo = 0, hi = p->n_names;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (compare_names(&p->names[mid], &name) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    CHECK(lo < p->n_names);
    return lo;
}

/* Texts up to max characters and from min on, as an automaton. */
static int text_of_rules(object_plan *p, const string_node *n, dfa **out) {
    char text[64];
    dfa *length = NULL;
    if (n->max == GRAMMAR_NO_LIMIT) {
        (void)snprintf(text, sizeof text, "[^]{%u,}", n->min);
    } else {
        (void)snprintf(text, sizeof text, "[^]{%u,%u}", n->min, n->max);
    }
    int rc = dfa_from_regex(text, strlen(text), REGEX_WHOLE, &length, p->c->e);
    if (rc != OK) {
        return schema_fail_rule(p->c, p->alt, RULE_NAMES, "propertyNames", "too large");
    }
    if (n->content == NULL) {
        *out = length;
        return OK;
    }
    rc = dfa_intersect(n->content, length, false, out, p->c->e);
    dfa_free(length);
    return rc;
}

/* Keeps only keys that the literal allows. */
static int limit_keys(object_plan *p, literal lit) {
    alternative_list alts = {0};
    dfa *none = NULL; /* any text that no alternative allows */
    int rc = schema_expand(p->c, &lit, 1, T_STRING, &alts);
    if (rc == OK) rc = dfa_any(&none, p->c->e);
    for (uint32_t i = 0; i < alts.n && rc == OK; i++) {
        string_node n;
        dfa *one = NULL, *less = NULL;
        rc = schema_text_rules(p->c, &alts.at[i], &n);
        if (rc != OK || n.min > n.max) continue;
        rc = text_of_rules(p, &n, &one);
        if (rc == OK) rc = dfa_intersect(none, one, true, &less, p->c->e);
        dfa_free(one);
        if (rc != OK) break;
        dfa_free(none);
        none = less;
    }
    mem_free(alts.at);
    if (rc == OK) {
        dfa *base = NULL, *left = NULL;
        rc = dfa_any(&base, p->c->e);
        if (rc == OK) {
            rc = dfa_intersect(p->keys != NULL ? p->keys : base, none, true, &left, p->c->e);
        }
        dfa_free(base);
        if (rc == OK) p->keys = schema_keep_dfa(p->c, left);
    }
    dfa_free(none);
    return rc;
}

static bool text_in(const dfa *d, name_text name) {
    return d->start != 0 && d->accepts[dfa_run(d, d->start, name.text, name.len)];
}

/* Whether a set names the key: a declared name, or (name NULL) a class of undeclared ones with the
 * patterns in which. */
static bool set_has(
    const object_plan *p, const key_set *set, const name_text *name, uint32_t which) {
    for (uint32_t i = 0; i < set->n_names && name != NULL; i++) {
        if (compare_names(&set->names[i], name) == 0) return true;
    }
    for (uint32_t i = 0; i < set->n_patterns; i++) {
        if (name != NULL && text_in(set->patterns[i], *name)) return true;
        for (uint32_t k = 0; k < p->n_patterns && name == NULL; k++) {
            if (p->patterns[k] == set->patterns[i] && (which >> k & 1) != 0) return true;
        }
    }
    return false;
}

static bool has_pattern(const object_plan *p, const dfa *d, const name_text *name, uint32_t which) {
    const key_set one = {.patterns = &d, .n_patterns = 1};
    return set_has(p, &one, name, which);
}

/* Literals for the value of a key, into p->list. */
static uint32_t key_literals(const object_plan *p, const name_text *name, uint32_t which) {
    uint32_t n = 0;
    for (const atom_list *l = p->alt->atoms; l != NULL; l = l->next) {
        const atom *a = l->a;
        bool holds = false;
        if (a->kind == RULE_PROPERTY) holds = name != NULL && compare_names(&a->name, name) == 0;
        if (a->kind == RULE_PATTERN) holds = has_pattern(p, a->d, name, which);
        if (a->kind == RULE_OTHERS) holds = !set_has(p, a->left_out, name, which);
        if (holds) p->list[n++] = a->lit;
    }
    for (uint32_t i = 0; i < p->n_unseen; i++) {
        if (!set_has(p, p->unseen[i], name, which)) p->list[n++] = p->unseen_lit[i];
    }
    return n;
}

static bool in_scope(const scope *sc, const scope *of) {
    for (; sc != NULL; sc = sc->outer) {
        if (sc == of) return true;
    }
    return false;
}

/* What the unevaluatedProperties of a scope does not speak about. */
static int read_scope(object_plan *p, const scope *sc) {
    schema_compiler *c = p->c;
    const json *s = json_get(c->entries[sc->entry].node, "unevaluatedProperties");
    uint32_t n = n_mentions(p->alt);
    if (s == NULL || json_is_true(s)) return OK;
    key_set *set = schema_alloc(c, sizeof *set);
    name_text *names = schema_alloc(c, (n + 1) * sizeof *names);
    const dfa **patterns = schema_alloc(c, (n + 1) * sizeof *patterns);
    for (const atom_list *l = p->alt->atoms; l != NULL; l = l->next) {
        const atom *a = l->a;
        if (!in_scope(a->sc, sc)) continue;
        if (a->kind == RULE_OTHERS) return OK; /* nothing is left unevaluated */
        if (a->kind == RULE_PROPERTY) names[set->n_names++] = a->name;
        if (a->kind == RULE_PATTERN) patterns[set->n_patterns++] = a->d;
        /* An inner scope with its own keyword evaluates everything that is left. */
        if (a->kind == RULE_TYPES && a->sc != sc &&
            json_get(c->entries[a->sc->entry].node, "unevaluatedProperties") != NULL) {
            return OK;
        }
    }
    set->names = names;
    set->patterns = patterns;
    p->unseen[p->n_unseen] = set;
    p->unseen_lit[p->n_unseen++] = schema_find(c, s) * 2;
    return OK;
}

static int read_plan(object_plan *p) {
    schema_compiler *c = p->c;
    uint32_t n = n_mentions(p->alt);
    p->max = GRAMMAR_NO_LIMIT;
    p->names = schema_alloc(c, (n + 1) * sizeof *p->names);
    p->order = schema_alloc(c, (n + 1) * sizeof *p->order);
    p->is_declared = schema_alloc(c, n + 1);
    p->list = schema_alloc(c, (2 * n + 2) * sizeof *p->list);
    p->unseen = schema_alloc(c, (n + 1) * sizeof *p->unseen);
    p->unseen_lit = schema_alloc(c, (n + 1) * sizeof *p->unseen_lit);
    for (const atom_list *l = p->alt->atoms; l != NULL; l = l->next) {
        int rc = read_atom(p, l->a);
        if (rc == OK && l->a->kind == RULE_NAMES) rc = limit_keys(p, l->a->lit);
        if (rc == OK && l->a->kind == RULE_TYPES) rc = read_scope(p, l->a->sc);
        if (rc != OK) return rc;
    }
    sort_names(p);
    if (p->n_names > SCHEMA_MAX_PROPERTIES) {
        return schema_fail(c, ERR_LIMIT, 1, NULL, "more than 5,000 properties in one object");
    }
    p->is_required = schema_alloc(c, p->n_names + 1);
    for (const atom_list *l = p->alt->atoms; l != NULL; l = l->next) {
        if (l->a->kind == RULE_REQUIRED) p->is_required[name_index(p, l->a->name)] = true;
    }
    return OK;
}

/* Names that must stand beside name i, by repeated rules; NULL: none. */
static const uint64_t *brought_by(object_plan *p, uint32_t i, uint32_t n_words) {
    uint64_t *bits = arena_alloc(&p->c->g->memory, (n_words + 1) * sizeof *bits);
    bool is_any = false, has_grown = true;
    bits[i / 64] |= (uint64_t)1 << (i % 64);
    while (has_grown) {
        has_grown = false;
        for (const atom_list *l = p->alt->atoms; l != NULL; l = l->next) {
            if (l->a->kind != RULE_BRINGS) continue;
            uint32_t from = name_index(p, l->a->name);
            if ((bits[from / 64] >> (from % 64) & 1) == 0) continue;
            JSON_EACH(item, l->a->source) {
                uint32_t to = name_index(p, schema_name(p->c, json_str(item)));
                if ((bits[to / 64] >> (to % 64) & 1) != 0) continue;
                bits[to / 64] |= (uint64_t)1 << (to % 64);
                has_grown = is_any = true;
            }
        }
    }
    return is_any ? bits : NULL;
}

typedef struct order_item {
    uint32_t sequence, index;
} order_item;

static int compare_order(const void *a, const void *b) {
    const order_item *x = a, *y = b;
    if (x->sequence != y->sequence) return x->sequence < y->sequence ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static void set_order(object_plan *p, object_node *o) {
    order_item *items = mem_array(p->n_names + 1, sizeof *items);
    bool is_all_required = true;
    for (uint32_t i = 0; i < p->n_names; i++) {
        items[i] = (order_item){p->order[i], i};
        /* A required name that is not declared has no place in the order. */
        if (p->is_declared[i] != p->is_required[i]) is_all_required = false;
    }
    if (p->n_names > 0) qsort(items, p->n_names, sizeof *items, compare_order);
    for (uint32_t k = 0; k < p->n_names; k++) {
        o->by_order[k] = items[k].index;
        o->names[items[k].index].order = k;
    }
    mem_free(items);
    const schema_options *options = p->c->options;
    o->is_ordered = !options->is_any_order && !p->has_brings && p->n_names > 0 &&
                    (options->is_strict || is_all_required);
}

static int build_names(object_plan *p, object_node *o, uint32_t extra) {
    grammar *g = p->c->g;
    o->n_names = p->n_names;
    o->n_words = (p->n_names + 63) / 64;
    o->names = arena_alloc(&g->memory, (p->n_names + 1) * sizeof *o->names);
    o->by_order = arena_alloc(&g->memory, (p->n_names + 1) * sizeof *o->by_order);
    o->next_required = arena_alloc(&g->memory, (p->n_names + 1) * sizeof *o->next_required);
    o->n_open_from = arena_alloc(&g->memory, (p->n_names + 1) * sizeof *o->n_open_from);
    for (uint32_t i = 0; i < p->n_names; i++) {
        key_name *k = &o->names[i];
        char *text = arena_alloc(&g->memory, p->names[i].len + 1);
        memcpy(text, p->names[i].text, p->names[i].len);
        k->text = text;
        k->len = p->names[i].len;
        k->is_required = p->is_required[i] || i == extra;
        uint32_t n = key_literals(p, &p->names[i], 0);
        if (i == extra) p->list[n++] = p->exists->lit;
        if (p->keys != NULL && !text_in(p->keys, p->names[i])) {
            p->list[n++] = SCHEMA_TRUE * 2 + 1;
        }
        int rc = schema_value(p->c, p->list, n, &k->value);
        if (rc != OK) return rc;
        if (p->has_brings) k->brings = brought_by(p, i, o->n_words);
    }
    set_order(p, o);
    return OK;
}

/* The texts of a class: all keys with exactly the patterns in which, without declared names. NULL:
 * all keys at all. */
static int class_text(object_plan *p, uint32_t which, const dfa **out) {
    dfa *d = NULL, *next = NULL, *names = NULL;
    int rc;
    *out = NULL;
    if (p->n_patterns == 0 && p->keys == NULL) return OK;
    rc = dfa_any(&d, p->c->e);
    for (uint32_t k = 0; k <= p->n_patterns && rc == OK; k++) {
        const dfa *other = k < p->n_patterns ? p->patterns[k] : p->keys;
        bool is_negated = k < p->n_patterns && (which >> k & 1) == 0;
        if (other == NULL) continue;
        rc = dfa_intersect(d, other, is_negated, &next, p->c->e);
        dfa_free(d);
        d = rc == OK ? next : NULL;
    }
    if (rc == OK && p->n_names > 0) {
        dfa_word *words = mem_array(p->n_names, sizeof *words);
        for (uint32_t i = 0; i < p->n_names; i++) {
            words[i] = (dfa_word){p->names[i].text, p->names[i].len};
        }
        rc = dfa_from_words(words, p->n_names, &names, p->c->e);
        mem_free(words);
        if (rc == OK) rc = dfa_intersect(d, names, true, &next, p->c->e);
        dfa_free(names);
        dfa_free(d);
        d = rc == OK ? next : NULL;
    }
    if (rc != OK) {
        dfa_free(d);
        bool has_patterns = p->n_patterns > 0;
        return schema_fail_rule(p->c, p->alt, has_patterns ? RULE_PATTERN : RULE_NAMES,
            has_patterns ? "patternProperties" : "propertyNames", "patterns too large together");
    }
    *out = schema_keep_dfa(p->c, d);
    return OK;
}

static int build_classes(object_plan *p, object_node *o, bool has_debt) {
    uint32_t n_all = 1u << p->n_patterns;
    o->classes = arena_alloc(&p->c->g->memory, n_all * sizeof *o->classes);
    for (uint32_t which = 0; which < n_all; which++) {
        key_class *k = &o->classes[o->n_classes];
        int rc = class_text(p, which, &k->text);
        if (rc != OK) return rc;
        if (k->text != NULL && k->text->start == 0) continue;
        uint32_t n = key_literals(p, NULL, which);
        bool is_false = false;
        for (uint32_t i = 0; i < n; i++)
            is_false = is_false || p->list[i] == SCHEMA_TRUE * 2 + 1;
        if (is_false) continue;
        rc = schema_value(p->c, p->list, n, &k->value);
        if (rc == OK && has_debt && !set_has(p, p->exists->left_out, NULL, which)) {
            p->list[n++] = p->exists->lit;
            rc = schema_value(p->c, p->list, n, &k->owed_value);
        }
        if (rc != OK) return rc;
        o->n_classes++;
    }
    o->has_debt = has_debt;
    return OK;
}

/* One object node. extra: a name that pays the debt, or n_names for none. */
static int build_one(object_plan *p, uint32_t value, uint32_t extra, bool has_debt) {
    object_node o = {.min = (uint32_t)p->min, .max = (uint32_t)p->max};
    int rc = build_names(p, &o, extra);
    if (rc == OK) rc = build_classes(p, &o, has_debt);
    if (rc != OK) return rc;
    o.has_brings = p->has_brings;
    uint32_t index = grammar_add_object(p->c->g);
    p->c->g->objects[index] = o;
    schema_add_choice(p->c, value, VALUE_OBJECT, index);
    return OK;
}

int schema_build_object(schema_compiler *c, uint32_t value, const alternative *alt) {
    object_plan p = {.c = c, .alt = alt};
    int rc = read_plan(&p);
    if (rc != OK || p.min > p.max) return rc;
    if (p.has_brings && p.max < p.n_names && p.min > 0) {
        return schema_fail_rule(c, alt, RULE_BRINGS, "dependentRequired",
            "beside minProperties and maxProperties it cannot be enforced");
    }
    if (p.exists == NULL) return build_one(&p, value, p.n_names, false);
    for (uint32_t i = 0; i < p.n_names && rc == OK; i++) {
        if (set_has(&p, p.exists->left_out, &p.names[i], 0)) continue;
        rc = build_one(&p, value, i, false);
    }
    return rc == OK ? build_one(&p, value, p.n_names, true) : rc;
}
