/* What it takes to break a schema: one of its keywords must not hold. Only the keywords that `not`
 * and `oneOf` need are turned round; others are refused. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/schema_internal.h"

#define BREAKS_MAX 512

typedef struct breaking {
    schema_compiler *c;
    uint32_t i;
    const json *s;
    need *ways[BREAKS_MAX];
    uint32_t n;
    bool is_full;
} breaking;

static void way(breaking *b, need *list) {
    if (b->n == BREAKS_MAX) {
        b->is_full = true;
        return;
    }
    b->ways[b->n++] = list;
}

static literal literal_of(const breaking *b, const json *node) {
    return schema_find(b->c, node) * 2;
}

static need *count_need(breaking *b, rule_kind kind, uint64_t n, need *next) {
    atom *a = schema_atom(b->c, kind, NULL);
    a->n = n;
    return need_atom(b->c, a, next);
}

static need *name_need(breaking *b, rule_kind kind, const char *name, literal lit, need *next) {
    atom *a = schema_atom(b->c, kind, NULL);
    a->name = schema_name(b->c, name);
    a->lit = lit;
    return need_atom(b->c, a, next);
}

static int refuse(breaking *b, const char *key) {
    if (json_get(b->s, key) == NULL) return OK;
    return schema_fail(
        b->c, ERR_UNSUPPORTED, b->i, key, "this keyword cannot be enforced under not or oneOf");
}

static int break_types(breaking *b) {
    const json *type = json_get(b->s, "type");
    bool is_integer;
    if (type == NULL) return OK;
    uint32_t mask = schema_type_mask(type, json_is_true(json_get(b->s, "nullable")), &is_integer);
    if (mask != T_ALL) way(b, need_types(b->c, T_ALL & ~mask, NULL));
    if (!is_integer) return OK;
    atom *a = schema_atom(b->c, RULE_NOT_STEP, NULL);
    a->v = NUMBER_UNIT;
    way(b, need_types(b->c, T_NUMBER, need_atom(b->c, a, NULL)));
    return OK;
}

static int break_constants(breaking *b) {
    static const char *const keys[] = {"enum", "const"};
    for (int i = 0; i < 2; i++) {
        need *yes = NULL, *no = NULL;
        if (json_get(b->s, keys[i]) == NULL) continue;
        int rc = schema_constants(b->c, b->i, keys[i], &yes, &no);
        if (rc != OK) return rc;
        way(b, no);
    }
    return OK;
}

static int break_bound(breaking *b, const char *key, bool is_low, bool is_exclusive) {
    wide v;
    int side;
    if (!json_is_number(json_get(b->s, key))) return OK;
    int rc = schema_decimal(b->c, b->i, key, &v, &side);
    if (rc != OK) return rc;
    if (side != 0) v = side * NUMBER_LIMIT; /* further than any number that can be written */
    atom *a = schema_atom(b->c, is_low ? RULE_HIGH : RULE_LOW, NULL);
    a->v = is_exclusive ? v : is_low ? v - 1 : v + 1;
    way(b, need_types(b->c, T_NUMBER, need_atom(b->c, a, NULL)));
    return OK;
}

static int break_numbers(breaking *b) {
    bool low = json_is_true(json_get(b->s, "exclusiveMinimum"));
    bool high = json_is_true(json_get(b->s, "exclusiveMaximum"));
    wide v;
    int side;
    int rc = break_bound(b, "minimum", true, low);
    if (rc == OK) rc = break_bound(b, "maximum", false, high);
    if (rc == OK) rc = break_bound(b, "exclusiveMinimum", true, true);
    if (rc == OK) rc = break_bound(b, "exclusiveMaximum", false, true);
    if (rc != OK || json_get(b->s, "multipleOf") == NULL) return rc;
    rc = schema_decimal(b->c, b->i, "multipleOf", &v, &side);
    if (rc != OK) return rc;
    if (side != 0 || v <= 0) return refuse(b, "multipleOf");
    atom *a = schema_atom(b->c, RULE_NOT_STEP, NULL);
    a->v = v;
    way(b, need_types(b->c, T_NUMBER, need_atom(b->c, a, NULL)));
    return OK;
}

static int break_counts(breaking *b) {
    static const struct {
        const char *key;
        uint32_t type;
        rule_kind other;
        bool is_min;
    } counts[] = {{"minLength", T_STRING, RULE_MAX_LENGTH, true},
        {"maxLength", T_STRING, RULE_MIN_LENGTH, false},
        {"minItems", T_ARRAY, RULE_MAX_ITEMS, true}, {"maxItems", T_ARRAY, RULE_MIN_ITEMS, false},
        {"minProperties", T_OBJECT, RULE_MAX_PROPERTIES, true},
        {"maxProperties", T_OBJECT, RULE_MIN_PROPERTIES, false}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint64_t n;
        if (json_get(b->s, counts[i].key) == NULL) continue;
        int rc = schema_count(b->c, b->i, counts[i].key, &n);
        if (rc != OK) return rc;
        if (counts[i].is_min && n == 0) continue; /* always holds */
        n = counts[i].is_min ? n - 1 : n + 1;
        way(b, need_types(b->c, counts[i].type, count_need(b, counts[i].other, n, NULL)));
    }
    return OK;
}

static int break_text(breaking *b) {
    const json *pattern = json_get(b->s, "pattern"), *format = json_get(b->s, "format");
    for (int i = 0; i < 2; i++) {
        const dfa *d = NULL;
        int rc = OK;
        if (i == 0 && pattern != NULL) rc = schema_pattern(b->c, b->i, pattern, &d);
        if (i == 1 && format != NULL) rc = schema_format(b->c, b->i, format, false, &d);
        if (rc != OK) return rc;
        if (d == NULL) continue;
        uint32_t most = i == 1 ? format_length_max(json_str(format)) : 0;
        if (most > 0) {
            need *longer = count_need(b, RULE_MIN_LENGTH, most + 1, NULL);
            way(b, need_types(b->c, T_STRING, longer));
        }
        atom *a = schema_atom(b->c, RULE_TEXT, NULL);
        a->d = d;
        a->is_negated = true;
        way(b, need_types(b->c, T_STRING, need_atom(b->c, a, NULL)));
    }
    return OK;
}

static need *contains_need(breaking *b, literal lit, uint64_t min, uint64_t max) {
    atom *a = schema_atom(b->c, RULE_CONTAINS, NULL);
    a->lit = lit;
    a->n = min;
    a->max = max;
    return need_types(b->c, T_ARRAY, need_atom(b->c, a, NULL));
}

static int break_contains(breaking *b) {
    const json *s = json_get(b->s, "contains");
    uint64_t min = 1, max = GRAMMAR_NO_LIMIT;
    int rc = OK;
    if (s == NULL) return OK;
    if (json_get(b->s, "minContains") != NULL) rc = schema_count(b->c, b->i, "minContains", &min);
    if (rc == OK && json_get(b->s, "maxContains") != NULL) {
        rc = schema_count(b->c, b->i, "maxContains", &max);
    }
    if (rc != OK) return rc;
    if (min > 0) way(b, contains_need(b, literal_of(b, s), 0, min - 1));
    if (max != GRAMMAR_NO_LIMIT)
        way(b, contains_need(b, literal_of(b, s), max + 1, GRAMMAR_NO_LIMIT));
    return OK;
}

static int break_arrays(breaking *b) {
    const json *prefix = schema_items_prefix(b->s), *rest = schema_items_rest(b->s);
    uint64_t n = 0;
    JSON_EACH(item, prefix) {
        atom *a = schema_atom(b->c, RULE_ITEM, NULL);
        a->n = n++;
        a->lit = literal_of(b, item) + 1;
        way(b,
            need_types(b->c, T_ARRAY, count_need(b, RULE_MIN_ITEMS, n, need_atom(b->c, a, NULL))));
    }
    if (rest != NULL && json_is_bool(rest)) {
        if (!json_is_true(rest)) {
            way(b, need_types(b->c, T_ARRAY, count_need(b, RULE_MIN_ITEMS, n + 1, NULL)));
        }
    } else if (rest != NULL) {
        if (n > 0) return refuse(b, "items");
        way(b, contains_need(b, literal_of(b, rest) + 1, 1, GRAMMAR_NO_LIMIT));
    }
    if (json_is_true(json_get(b->s, "uniqueItems"))) return refuse(b, "uniqueItems");
    return break_contains(b);
}

static int break_properties(breaking *b) {
    JSON_EACH(item, json_get(b->s, "properties")) {
        need *list = name_need(b, RULE_PROPERTY, json_key(item), literal_of(b, item) + 1, NULL);
        list = name_need(b, RULE_REQUIRED, json_key(item), 0, list);
        way(b, need_types(b->c, T_OBJECT, list));
    }
    JSON_EACH(item, json_get(b->s, "required")) {
        need *list = name_need(b, RULE_PROPERTY, json_str(item), SCHEMA_TRUE * 2 + 1, NULL);
        way(b, need_types(b->c, T_OBJECT, list));
    }
    const json *others = json_get(b->s, "additionalProperties");
    if (others != NULL && !json_is_true(others)) {
        atom *a = schema_atom(b->c, RULE_EXISTS, NULL);
        int rc = schema_left_out(b->c, b->i, &a->left_out);
        if (rc != OK) return rc;
        a->lit = literal_of(b, others) + 1;
        way(b, need_types(b->c, T_OBJECT, need_atom(b->c, a, NULL)));
    }
    int rc = refuse(b, "patternProperties");
    return rc == OK ? refuse(b, "propertyNames") : rc;
}

static void break_brings(breaking *b, const json *item) {
    JSON_EACH(name, item) {
        need *list = name_need(b, RULE_PROPERTY, json_str(name), SCHEMA_TRUE * 2 + 1, NULL);
        list = name_need(b, RULE_REQUIRED, json_key(item), 0, list);
        way(b, need_types(b->c, T_OBJECT, list));
    }
}

static void break_dependent(breaking *b, const json *item) {
    need *list = need_literal(b->c, literal_of(b, item) + 1, NULL, NULL);
    list = name_need(b, RULE_REQUIRED, json_key(item), 0, list);
    way(b, need_types(b->c, T_OBJECT, list));
}

static int break_dependents(breaking *b) {
    JSON_EACH(item, json_get(b->s, "dependentRequired")) break_brings(b, item);
    JSON_EACH(item, json_get(b->s, "dependentSchemas")) break_dependent(b, item);
    JSON_EACH(item, json_get(b->s, "dependencies")) {
        if (json_is_array(item)) {
            break_brings(b, item);
        } else {
            break_dependent(b, item);
        }
    }
    return OK;
}

static need *all_of(breaking *b, const json *list, uint32_t is_negated) {
    need *all = NULL;
    JSON_EACH(item, list) all = need_literal(b->c, literal_of(b, item) + is_negated, NULL, all);
    return all;
}

static int break_combinations(breaking *b) {
    const json *any = json_get(b->s, "anyOf"), *one = json_get(b->s, "oneOf");
    JSON_EACH(item, json_get(b->s, "allOf")) {
        way(b, need_literal(b->c, literal_of(b, item) + 1, NULL, NULL));
    }
    if (any != NULL) way(b, all_of(b, any, 1));
    if (one != NULL) {
        way(b, all_of(b, one, 1));
        JSON_EACH(x, one) {
            for (const json *y = json_next(x); y != NULL; y = json_next(y)) {
                need *both = need_literal(b->c, literal_of(b, x), NULL, NULL);
                way(b, need_literal(b->c, literal_of(b, y), NULL, both));
            }
        }
    }
    return OK;
}

static int break_conditions(breaking *b) {
    const json *inner = json_get(b->s, "not"), *test = json_get(b->s, "if");
    const json *yes = json_get(b->s, "then"), *no = json_get(b->s, "else");
    if (inner != NULL) way(b, need_literal(b->c, literal_of(b, inner), NULL, NULL));
    if (test != NULL && yes != NULL) {
        need *list = need_literal(b->c, literal_of(b, yes) + 1, NULL, NULL);
        way(b, need_literal(b->c, literal_of(b, test), NULL, list));
    }
    if (test != NULL && no != NULL) {
        need *list = need_literal(b->c, literal_of(b, no) + 1, NULL, NULL);
        way(b, need_literal(b->c, literal_of(b, test) + 1, NULL, list));
    }
    int rc = refuse(b, "unevaluatedProperties");
    return rc == OK ? refuse(b, "unevaluatedItems") : rc;
}

int schema_breaks(schema_compiler *c, literal lit, need **out) {
    static int (*const parts[])(breaking *) = {break_types, break_constants, break_numbers,
        break_counts, break_text, break_arrays, break_properties, break_dependents,
        break_combinations, break_conditions};
    breaking b = {.c = c, .i = lit / 2, .s = c->entries[lit / 2].node};
    *out = NULL;
    c->asking = b.i;
    if (json_is_bool(b.s)) {
        if (json_is_true(b.s)) *out = need_types(c, 0, NULL);
        return OK;
    }
    if (c->entries[b.i].ref != UINT32_MAX) {
        way(&b, need_literal(c, c->entries[b.i].ref * 2 + 1, NULL, NULL));
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int rc = parts[i](&b);
        if (rc != OK) return rc;
    }
    if (b.is_full)
        return schema_fail(c, ERR_UNSUPPORTED, b.i, NULL, "too large under not or oneOf");
    need *one = need_one_of(c, b.n, NULL);
    memcpy(one->lists, b.ways, b.n * sizeof *b.ways);
    *out = one;
    return OK;
}
