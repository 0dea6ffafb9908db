/* What a schema asks, keyword by keyword. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/schema_internal.h"

static need *need_new(schema_compiler *c, int kind, need *next) {
    need *n = schema_alloc(c, sizeof *n);
    *n = (need){.kind = kind, .next = next};
    return n;
}

need *need_literal(schema_compiler *c, literal lit, const scope *sc, need *next) {
    need *n = need_new(c, NEED_LITERAL, next);
    n->lit = lit;
    n->sc = sc;
    return n;
}

need *need_atom(schema_compiler *c, const atom *a, need *next) {
    need *n = need_new(c, NEED_ATOM, next);
    n->a = a;
    return n;
}

need *need_types(schema_compiler *c, uint32_t types, need *next) {
    atom *a = schema_atom(c, RULE_TYPES, NULL);
    a->n = types;
    return need_atom(c, a, next);
}

need *need_one_of(schema_compiler *c, uint32_t n_lists, need *next) {
    need *n = need_new(c, NEED_ONE_OF, next);
    n->n_lists = n_lists;
    n->lists = schema_alloc(c, (n_lists + 1) * sizeof *n->lists);
    return n;
}

need *need_append(schema_compiler *c, const need *b, need *a) {
    for (; b != NULL; b = b->next) {
        need *n = need_new(c, b->kind, a);
        *n = *b;
        n->next = a;
        a = n;
    }
    return a;
}

atom *schema_atom(schema_compiler *c, rule_kind kind, const scope *sc) {
    atom *a = schema_alloc(c, sizeof *a);
    *a = (atom){.kind = kind, .sc = sc, .sequence = ++c->n_atoms, .from = c->asking};
    return a;
}

uint32_t schema_type_mask(const json *v, bool is_nullable, bool *is_integer) {
    static const struct {
        const char *name;
        uint32_t mask;
    } names[] = {{"null", T_NULL}, {"boolean", T_TRUE | T_FALSE}, {"number", T_NUMBER},
        {"integer", T_NUMBER}, {"string", T_STRING}, {"array", T_ARRAY}, {"object", T_OBJECT}};
    uint32_t mask = is_nullable ? T_NULL : 0;
    bool has_integer = false, has_number = false;
    const json *item = json_is_array(v) ? json_first(v) : v;
    while (item != NULL) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            if (strcmp(names[i].name, json_str(item)) == 0) mask |= names[i].mask;
        }
        has_integer = has_integer || strcmp(json_str(item), "integer") == 0;
        has_number = has_number || strcmp(json_str(item), "number") == 0;
        item = json_is_array(v) ? json_next(item) : NULL;
    }
    *is_integer = has_integer && !has_number;
    return mask;
}

const json *schema_items_prefix(const json *s) {
    const json *items = json_get(s, "items");
    return json_is_array(items) ? items : json_get(s, "prefixItems");
}

const json *schema_items_rest(const json *s) {
    const json *items = json_get(s, "items");
    return json_is_array(items) ? json_get(s, "additionalItems") : items;
}

/* Work on one schema: the list so far and where it belongs. */
typedef struct asking {
    schema_compiler *c;
    uint32_t i;
    const json *s;
    const scope *sc;
    need *list;
} asking;

static void ask(asking *k, const atom *a) {
    k->list = need_atom(k->c, a, k->list);
}

static void ask_literal(asking *k, literal lit) {
    k->list = need_literal(k->c, lit, k->sc, k->list);
}

static literal literal_of(const asking *k, const json *node) {
    return schema_find(k->c, node) * 2;
}

static int ask_types(asking *k) {
    const json *type = json_get(k->s, "type");
    bool is_integer;
    if (type == NULL) return OK;
    uint32_t mask = schema_type_mask(type, json_is_true(json_get(k->s, "nullable")), &is_integer);
    k->list = need_types(k->c, mask, k->list);
    if (is_integer) ask(k, schema_atom(k->c, RULE_INTEGER, NULL));
    return OK;
}

static int ask_constants(asking *k) {
    need *no = NULL;
    int rc = OK;
    if (json_get(k->s, "enum") != NULL) {
        rc = schema_constants(k->c, k->i, "enum", &k->list, &no);
    }
    if (rc == OK && json_get(k->s, "const") != NULL) {
        rc = schema_constants(k->c, k->i, "const", &k->list, &no);
    }
    return rc;
}

/* minimum and its kin: is_low, and how far the bound itself is from the first allowed value. */
static int ask_bound(asking *k, const char *key, bool is_low, bool is_exclusive) {
    wide v;
    int side;
    if (!json_is_number(json_get(k->s, key))) return OK;
    int rc = schema_decimal(k->c, k->i, key, &v, &side);
    if (rc != OK) return rc;
    if (side == (is_low ? 1 : -1)) {
        return schema_fail(k->c, ERR_UNSUPPORTED, k->i, key,
            "only bounds between -10^18 and 10^18 can be enforced");
    }
    /* A bound beyond that on the other side: numbers are kept between, which is within it. */
    if (side != 0) v = side * (NUMBER_LIMIT - 1);
    if (side != 0) is_exclusive = false;
    atom *a = schema_atom(k->c, is_low ? RULE_LOW : RULE_HIGH, NULL);
    a->v = is_low ? v + is_exclusive : v - is_exclusive;
    ask(k, a);
    return OK;
}

static int ask_step(asking *k) {
    wide v;
    int side;
    if (json_get(k->s, "multipleOf") == NULL) return OK;
    int rc = schema_decimal(k->c, k->i, "multipleOf", &v, &side);
    if (rc != OK) return rc;
    if (side != 0 || v <= 0) {
        return schema_fail(k->c, side > 0 ? ERR_UNSUPPORTED : ERR_FORMAT, k->i, "multipleOf",
            "a number above 0 and below 10^18 is needed");
    }
    atom *a = schema_atom(k->c, RULE_STEP, NULL);
    a->v = v;
    ask(k, a);
    return OK;
}

static int ask_numbers(asking *k) {
    bool low = json_is_true(json_get(k->s, "exclusiveMinimum"));
    bool high = json_is_true(json_get(k->s, "exclusiveMaximum"));
    int rc = ask_bound(k, "minimum", true, low);
    if (rc == OK) rc = ask_bound(k, "maximum", false, high);
    if (rc == OK) rc = ask_bound(k, "exclusiveMinimum", true, true);
    if (rc == OK) rc = ask_bound(k, "exclusiveMaximum", false, true);
    return rc == OK ? ask_step(k) : rc;
}

static int ask_count(asking *k, const char *key, rule_kind kind) {
    if (json_get(k->s, key) == NULL) return OK;
    atom *a = schema_atom(k->c, kind, NULL);
    int rc = schema_count(k->c, k->i, key, &a->n);
    if (rc == OK) ask(k, a);
    return rc;
}

static int ask_counts(asking *k) {
    static const struct {
        const char *key;
        rule_kind kind;
    } counts[] = {{"minLength", RULE_MIN_LENGTH}, {"maxLength", RULE_MAX_LENGTH},
        {"minItems", RULE_MIN_ITEMS}, {"maxItems", RULE_MAX_ITEMS},
        {"minProperties", RULE_MIN_PROPERTIES}, {"maxProperties", RULE_MAX_PROPERTIES}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int rc = ask_count(k, counts[i].key, counts[i].kind);
        if (rc != OK) return rc;
    }
    return OK;
}

static int ask_text(asking *k) {
    const json *pattern = json_get(k->s, "pattern"), *format = json_get(k->s, "format");
    const dfa *d = NULL;
    int rc = OK;
    if (pattern != NULL) {
        rc = schema_pattern(k->c, k->i, pattern, &d);
        if (rc != OK) return rc;
        atom *a = schema_atom(k->c, RULE_TEXT, NULL);
        a->d = d;
        ask(k, a);
    }
    if (format != NULL) {
        rc = schema_format(k->c, k->i, format, true, &d);
        if (rc != OK || d == NULL) return rc;
        uint32_t most = format_length_max(json_str(format));
        if (most > 0) {
            atom *length = schema_atom(k->c, RULE_MAX_LENGTH, NULL);
            length->n = most;
            ask(k, length);
        }
        atom *a = schema_atom(k->c, RULE_TEXT, NULL);
        a->d = d;
        ask(k, a);
    }
    return rc;
}

static int ask_contains(asking *k) {
    const json *s = json_get(k->s, "contains");
    uint64_t min = 1, max = GRAMMAR_NO_LIMIT;
    int rc = OK;
    if (s == NULL) return OK;
    if (json_get(k->s, "minContains") != NULL) rc = schema_count(k->c, k->i, "minContains", &min);
    if (rc == OK && json_get(k->s, "maxContains") != NULL) {
        rc = schema_count(k->c, k->i, "maxContains", &max);
    }
    if (rc != OK || (min == 0 && max == GRAMMAR_NO_LIMIT && k->sc == NULL)) return rc;
    atom *a = schema_atom(k->c, RULE_CONTAINS, k->sc);
    a->lit = literal_of(k, s);
    a->n = min;
    a->max = max;
    ask(k, a);
    return OK;
}

static int ask_arrays(asking *k) {
    const json *prefix = schema_items_prefix(k->s), *rest = schema_items_rest(k->s);
    uint64_t n = 0;
    JSON_EACH(item, prefix) {
        atom *a = schema_atom(k->c, RULE_ITEM, k->sc);
        a->n = n++;
        a->lit = literal_of(k, item);
        ask(k, a);
    }
    if (rest != NULL) {
        atom *a = schema_atom(k->c, RULE_REST, k->sc);
        a->n = n;
        a->lit = literal_of(k, rest);
        ask(k, a);
    }
    if (json_is_true(json_get(k->s, "uniqueItems"))) ask(k, schema_atom(k->c, RULE_UNIQUE, NULL));
    return ask_contains(k);
}

int schema_left_out(schema_compiler *c, uint32_t i, const key_set **out) {
    const json *names = json_get(c->entries[i].node, "properties");
    const json *patterns = json_get(c->entries[i].node, "patternProperties");
    key_set *set = schema_alloc(c, sizeof *set);
    name_text *list = schema_alloc(c, (json_count(names) + 1) * sizeof *list);
    const dfa **found = schema_alloc(c, (json_count(patterns) + 1) * sizeof *found);
    JSON_EACH(item, names) list[set->n_names++] = schema_name(c, json_key(item));
    JSON_EACH(item, patterns) {
        int rc = schema_pattern(c, i, item, &found[set->n_patterns++]);
        if (rc != OK) return rc;
    }
    set->names = list;
    set->patterns = found;
    *out = set;
    return OK;
}

static int ask_properties(asking *k) {
    JSON_EACH(item, json_get(k->s, "properties")) {
        atom *a = schema_atom(k->c, RULE_PROPERTY, k->sc);
        a->name = schema_name(k->c, json_key(item));
        a->lit = literal_of(k, item);
        ask(k, a);
    }
    JSON_EACH(item, json_get(k->s, "patternProperties")) {
        atom *a = schema_atom(k->c, RULE_PATTERN, k->sc);
        int rc = schema_pattern(k->c, k->i, item, &a->d);
        if (rc != OK) return rc;
        a->lit = literal_of(k, item);
        ask(k, a);
    }
    const json *others = json_get(k->s, "additionalProperties");
    if (others != NULL) {
        atom *a = schema_atom(k->c, RULE_OTHERS, k->sc);
        int rc = schema_left_out(k->c, k->i, &a->left_out);
        if (rc != OK) return rc;
        a->lit = literal_of(k, others);
        ask(k, a);
    }
    const json *names = json_get(k->s, "propertyNames");
    if (names != NULL) {
        atom *a = schema_atom(k->c, RULE_NAMES, NULL);
        a->lit = literal_of(k, names);
        ask(k, a);
    }
    JSON_EACH(item, json_get(k->s, "required")) {
        atom *a = schema_atom(k->c, RULE_REQUIRED, NULL);
        a->name = schema_name(k->c, json_str(item));
        ask(k, a);
    }
    return OK;
}

static void ask_brings(asking *k, const json *item) {
    atom *a = schema_atom(k->c, RULE_BRINGS, NULL);
    a->name = schema_name(k->c, json_key(item));
    a->source = item;
    ask(k, a);
}

/* Without the property, or with it and what it asks. */
static void ask_dependent(asking *k, const json *item) {
    need *one = need_one_of(k->c, 2, k->list);
    atom *without = schema_atom(k->c, RULE_PROPERTY, NULL);
    atom *with = schema_atom(k->c, RULE_REQUIRED, NULL);
    with->name = without->name = schema_name(k->c, json_key(item));
    without->lit = SCHEMA_TRUE * 2 + 1;
    one->lists[0] = need_atom(k->c, without, NULL);
    one->lists[1] = need_types(k->c, T_OBJECT,
        need_atom(k->c, with, need_literal(k->c, literal_of(k, item), k->sc, NULL)));
    k->list = one;
}

static int ask_dependents(asking *k) {
    JSON_EACH(item, json_get(k->s, "dependentRequired")) ask_brings(k, item);
    JSON_EACH(item, json_get(k->s, "dependentSchemas")) ask_dependent(k, item);
    JSON_EACH(item, json_get(k->s, "dependencies")) {
        if (json_is_array(item)) {
            ask_brings(k, item);
        } else {
            ask_dependent(k, item);
        }
    }
    return OK;
}

#define SUBSETS_MAX 5 /* branches of anyOf beside an unevaluated... keyword */

static int ask_any_of(asking *k) {
    const json *list = json_get(k->s, "anyOf");
    uint32_t n = (uint32_t)json_count(list), at = 0;
    if (list == NULL) return OK;
    if (k->sc == NULL) {
        need *one = need_one_of(k->c, n, k->list);
        JSON_EACH(item, list) {
            one->lists[at++] = need_literal(k->c, literal_of(k, item), NULL, NULL);
        }
        k->list = one;
        return OK;
    }
    if (n > SUBSETS_MAX) {
        return schema_fail(k->c, ERR_UNSUPPORTED, k->i, "anyOf",
            "too many branches beside an unevaluated... keyword");
    }
    /* Every branch that holds adds to what counts as evaluated. */
    need *one = need_one_of(k->c, (1u << n) - 1, k->list);
    for (uint32_t set = 1; set < 1u << n; set++) {
        uint32_t branch = 0;
        JSON_EACH(item, list) {
            if ((set >> branch++ & 1) == 0) continue;
            one->lists[set - 1] =
                need_literal(k->c, literal_of(k, item), k->sc, one->lists[set - 1]);
        }
    }
    k->list = one;
    return OK;
}

/* Quick proof that two schemas exclude each other: by type, or by a required property that both
 * fix to different strings. */
static bool exclude_each_other(const json *a, const json *b) {
    bool ia, ib;
    const json *ta = json_get(a, "type"), *tb = json_get(b, "type");
    if (json_get(a, "$ref") != NULL || json_get(b, "$ref") != NULL) return false;
    if (ta != NULL && tb != NULL) {
        uint32_t ma = schema_type_mask(ta, json_is_true(json_get(a, "nullable")), &ia);
        uint32_t mb = schema_type_mask(tb, json_is_true(json_get(b, "nullable")), &ib);
        if ((ma & mb) == 0) return true;
        if ((ma & mb) != T_OBJECT) return false;
    } else {
        return false;
    }
    JSON_EACH(item, json_get(a, "required")) {
        const char *name = json_str(item);
        const char *va = json_str(json_get(json_get(json_get(a, "properties"), name), "const"));
        const char *vb = json_str(json_get(json_get(json_get(b, "properties"), name), "const"));
        bool is_required = false;
        JSON_EACH(other, json_get(b, "required")) {
            is_required = is_required || strcmp(json_str(other), name) == 0;
        }
        if (is_required && va != NULL && vb != NULL && strcmp(va, vb) != 0) return true;
    }
    return false;
}

static int ask_one_of(asking *k) {
    const json *list = json_get(k->s, "oneOf");
    uint32_t n = (uint32_t)json_count(list), at = 0;
    if (list == NULL) return OK;
    need *one = need_one_of(k->c, n, k->list);
    JSON_EACH(item, list) {
        need *all = need_literal(k->c, literal_of(k, item), k->sc, NULL);
        JSON_EACH(other, list) {
            if (other == item || exclude_each_other(item, other)) continue;
            all = need_literal(k->c, literal_of(k, other) + 1, NULL, all);
        }
        one->lists[at++] = all;
    }
    k->list = one;
    return OK;
}

static int ask_conditions(asking *k) {
    const json *not_schema = json_get(k->s, "not"), *test = json_get(k->s, "if");
    const json *yes = json_get(k->s, "then"), *no = json_get(k->s, "else");
    JSON_EACH(item, json_get(k->s, "allOf")) ask_literal(k, literal_of(k, item));
    if (not_schema != NULL) {
        k->list = need_literal(k->c, literal_of(k, not_schema) + 1, NULL, k->list);
    }
    if (test == NULL || (yes == NULL && no == NULL && k->sc == NULL)) return OK;
    need *one = need_one_of(k->c, 2, k->list);
    literal lit = literal_of(k, test);
    one->lists[0] = need_literal(k->c, lit, k->sc, NULL);
    one->lists[1] = need_literal(k->c, lit + 1, NULL, NULL);
    if (yes != NULL) {
        one->lists[0] = need_literal(k->c, literal_of(k, yes), k->sc, one->lists[0]);
    }
    if (no != NULL) {
        one->lists[1] = need_literal(k->c, literal_of(k, no), k->sc, one->lists[1]);
    }
    k->list = one;
    return OK;
}

/* A schema with an unevaluated... keyword opens a scope. */
static void open_scope(asking *k) {
    if (json_get(k->s, "unevaluatedProperties") == NULL &&
        json_get(k->s, "unevaluatedItems") == NULL) {
        return;
    }
    scope *sc = schema_alloc(k->c, sizeof *sc);
    *sc = (scope){.outer = k->sc, .entry = k->i};
    k->sc = sc;
    /* Carries the scope to the building, even if nothing else in it does. */
    atom *a = schema_atom(k->c, RULE_TYPES, sc);
    a->n = T_ALL;
    ask(k, a);
}

int schema_needs(schema_compiler *c, literal lit, const scope *sc, need **out) {
    static int (*const parts[])(asking *) = {ask_types, ask_constants, ask_numbers, ask_counts,
        ask_text, ask_arrays, ask_properties, ask_dependents, ask_any_of, ask_one_of,
        ask_conditions};
    asking k = {.c = c, .i = lit / 2, .s = c->entries[lit / 2].node, .sc = sc};
    *out = NULL;
    c->asking = k.i;
    if (json_is_bool(k.s)) {
        if (!json_is_true(k.s)) *out = need_types(c, 0, NULL);
        return OK;
    }
    open_scope(&k);
    if (c->entries[k.i].ref != UINT32_MAX) ask_literal(&k, c->entries[k.i].ref * 2);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int rc = parts[i](&k);
        if (rc != OK) return rc;
    }
    *out = k.list;
    return OK;
}
