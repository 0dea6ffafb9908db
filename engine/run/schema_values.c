/* Numbers, counts, texts and constants of a schema as the compiler counts them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/schema_internal.h"

#define DECIMAL_DIGITS 36

int decimal_parse(const char *text, wide *out, int *sign) {
    bool is_negative = *text == '-', is_point = false, is_nonzero = false;
    wide v = 0;
    int64_t exponent = 0, shift = 0;
    int n_digits = 0;
    *sign = 0;
    for (text += is_negative; *text != 0 && *text != 'e' && *text != 'E'; text++) {
        if (*text == '.') {
            is_point = true;
            continue;
        }
        is_nonzero = is_nonzero || *text != '0';
        if (n_digits < DECIMAL_DIGITS) {
            v = v * 10 + (*text - '0');
            n_digits += v != 0;
            shift -= is_point;
        } else if (*text != '0' && is_point) {
            return ERR_LIMIT;
        } else {
            shift += !is_point;
        }
    }
    if (*text != 0 && parse_i64(text + 1 + (text[1] == '+'), &exponent) != OK) exponent = 100000;
    if (exponent > 100000) exponent = 100000;
    if (exponent < -100000) exponent = -100000;
    *out = 0;
    if (!is_nonzero) return OK;
    for (shift += exponent + NUMBER_SCALE; shift > 0; shift--) {
        if (v >= NUMBER_LIMIT / 10) {
            *sign = is_negative ? -1 : 1;
            return ERR_LIMIT;
        }
        v *= 10;
    }
    for (; shift < 0; shift++) {
        if (v % 10 != 0) return ERR_LIMIT;
        v /= 10;
    }
    if (v >= NUMBER_LIMIT) {
        *sign = is_negative ? -1 : 1;
        return ERR_LIMIT;
    }
    *out = is_negative ? -v : v;
    return OK;
}

int schema_decimal(schema_compiler *c, uint32_t i, const char *key, wide *out, int *side) {
    const json *v = json_get(c->entries[i].node, key);
    int rc = decimal_parse(json_number_text(v), out, side);
    if (rc == OK || *side != 0) return OK;
    return schema_fail(
        c, ERR_UNSUPPORTED, i, key, "more digits behind the point than can be enforced");
}

int schema_count(schema_compiler *c, uint32_t i, const char *key, uint64_t *out) {
    wide v;
    int side;
    const json *n = json_get(c->entries[i].node, key);
    if (decimal_parse(json_number_text(n), &v, &side) != OK && side <= 0) v = -1;
    if (side > 0) v = NUMBER_LIMIT - NUMBER_UNIT;
    if (v < 0 || v % NUMBER_UNIT != 0) {
        return schema_fail(c, ERR_FORMAT, i, key, "a count of 0 or more is needed");
    }
    v /= NUMBER_UNIT;
    *out = v > 1000000000 ? 1000000000 : (uint64_t)v;
    return OK;
}

name_text schema_name(schema_compiler *c, const char *json_text) {
    /* In the tree a NUL stands as C0 80. */
    size_t len = strlen(json_text), n = 0;
    char *text = schema_alloc(c, len + 1);
    for (size_t i = 0; i < len; i++) {
        if ((uint8_t)json_text[i] == 0xC0) {
            text[n++] = 0;
            i++;
        } else {
            text[n++] = json_text[i];
        }
    }
    return (name_text){text, (uint32_t)n};
}

void schema_own(schema_compiler *c, json *v) {
    if (c->n_owned == c->cap_owned) {
        c->cap_owned = c->cap_owned == 0 ? 16 : c->cap_owned * 2;
        c->owned = mem_realloc(c->owned, c->cap_owned * sizeof *c->owned);
    }
    c->owned[c->n_owned++] = v;
}

schema_cached *schema_cache(schema_compiler *c, const json *source) {
    for (uint32_t i = 0; i < c->n_cached; i++) {
        if (c->cached[i].source == source) return &c->cached[i];
    }
    if (c->n_cached == c->cap_cached) {
        c->cap_cached = c->cap_cached == 0 ? 16 : c->cap_cached * 2;
        c->cached = mem_realloc(c->cached, c->cap_cached * sizeof *c->cached);
    }
    c->cached[c->n_cached] = (schema_cached){.source = source};
    return &c->cached[c->n_cached++];
}

const dfa *schema_keep_dfa(schema_compiler *c, dfa *d) {
    grammar_add_dfa(c->g, d);
    return d;
}

int schema_pattern(schema_compiler *c, uint32_t i, const json *v, const dfa **out) {
    const char *text = json_key(v) != NULL && json_str(v) == NULL ? json_key(v) : json_str(v);
    schema_cached *known = schema_cache(c, v);
    if (known->d == NULL) {
        name_text pattern = schema_name(c, text);
        dfa *d;
        err why = ERR_INIT;
        int rc = dfa_from_regex(pattern.text, pattern.len, REGEX_SEARCH, &d, &why);
        if (rc != OK) {
            return schema_fail(c, rc == ERR_FORMAT ? ERR_FORMAT : ERR_UNSUPPORTED, i,
                json_str(v) == NULL ? "patternProperties" : "pattern", why.msg);
        }
        known->d = schema_keep_dfa(c, d);
    }
    *out = known->d;
    return OK;
}

int schema_format(schema_compiler *c, uint32_t i, const json *v, bool is_written, const dfa **out) {
    const char *pattern = format_pattern(json_str(v), is_written);
    *out = NULL;
    if (pattern == NULL) return OK;
    schema_cached *known = is_written ? schema_cache(c, v) : NULL;
    if (known == NULL || known->d == NULL) {
        dfa *d;
        int rc = dfa_from_regex(pattern, strlen(pattern), REGEX_WHOLE, &d, c->e);
        if (rc != OK) return schema_fail(c, ERR_INTERNAL, i, "format", "its pattern is damaged");
        *out = schema_keep_dfa(c, d);
        if (known != NULL) known->d = *out;
        return OK;
    }
    *out = known->d;
    return OK;
}

/* A schema that only this array or object fulfils, if its parts are constants again. */
static int constant_schema(schema_compiler *c, const json *v, json **out) {
    buf text = BUF_INIT;
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    bool is_array = json_is_array(v);
    json_w_kstr(&w, "type", is_array ? "array" : "object");
    if (json_count(v) > 0) {
        json_w_key(&w, is_array ? "prefixItems" : "properties");
        if (is_array) {
            json_w_array(&w);
        } else {
            json_w_object(&w);
        }
        JSON_EACH(item, v) {
            if (!is_array) json_w_key(&w, json_key(item));
            json_w_object(&w);
            json_w_key(&w, "const");
            json_w_value(&w, item);
            json_w_close(&w);
        }
        json_w_close(&w);
    }
    if (is_array) {
        json_w_ku64(&w, "minItems", json_count(v));
        json_w_ku64(&w, "maxItems", json_count(v));
    } else {
        json_w_key(&w, "required");
        json_w_array(&w);
        JSON_EACH(item, v) json_w_str(&w, json_key(item));
        json_w_close(&w);
        json_w_kbool(&w, "additionalProperties", false);
    }
    json_w_close(&w);
    int rc = json_w_end(&w);
    if (rc == OK) rc = json_parse(text.data, text.len, NULL, out, c->e);
    buf_release(&text);
    return rc;
}

/* Constants sorted by kind. */
typedef struct constants {
    uint32_t literals; /* mask of types */
    dfa_word *words;
    wide *numbers;
    uint32_t *parts; /* entries for arrays and objects */
    uint32_t n_words, n_numbers, n_parts;
} constants;

static int compare_wide(const void *a, const void *b) {
    wide x = *(const wide *)a, y = *(const wide *)b;
    return (x > y) - (x < y);
}

static int take_constant(
    schema_compiler *c, uint32_t i, const char *key, const json *v, constants *k) {
    if (json_is_null(v)) k->literals |= T_NULL;
    if (json_is_bool(v)) k->literals |= json_is_true(v) ? T_TRUE : T_FALSE;
    if (json_is_string(v)) {
        name_text t = schema_name(c, json_str(v));
        k->words[k->n_words++] = (dfa_word){t.text, t.len};
    }
    if (json_is_number(v)) {
        int side;
        if (decimal_parse(json_number_text(v), &k->numbers[k->n_numbers], &side) != OK) {
            return schema_fail(c, ERR_UNSUPPORTED, i, key,
                "only numbers below 10^18, with at most 18 digits behind the point, can be enforced");
        }
        k->n_numbers++;
    }
    if (json_is_array(v) || json_is_object(v)) {
        json *made = NULL;
        int rc = constant_schema(c, v, &made);
        if (rc != OK) return rc;
        schema_own(c, made);
        return schema_entry(c, made, i, key, NULL, &k->parts[k->n_parts++]);
    }
    return OK;
}

static int make_needs(schema_compiler *c, constants *k, need **yes, need **no) {
    uint32_t n = k->n_parts + 3u, at = 0;
    need *one = need_one_of(c, n, NULL), *none = need_types(c, T_ALL & ~k->literals, NULL);
    if (k->literals != 0) one->lists[at++] = need_types(c, k->literals, NULL);
    if (k->n_words > 0) {
        dfa *d;
        int rc = dfa_from_words(k->words, k->n_words, &d, c->e);
        if (rc != OK) return rc;
        atom *in = schema_atom(c, RULE_TEXT, NULL), *out = schema_atom(c, RULE_TEXT, NULL);
        in->d = out->d = schema_keep_dfa(c, d);
        out->is_negated = true;
        one->lists[at++] = need_types(c, T_STRING, need_atom(c, in, NULL));
        none = need_atom(c, out, none);
    }
    if (k->n_numbers > 0) {
        qsort(k->numbers, k->n_numbers, sizeof *k->numbers, compare_wide);
        atom *in = schema_atom(c, RULE_NUMBERS, NULL), *out = schema_atom(c, RULE_NUMBERS, NULL);
        in->values = out->values = k->numbers;
        in->n = out->n = k->n_numbers;
        out->is_negated = true;
        one->lists[at++] = need_types(c, T_NUMBER, need_atom(c, in, NULL));
        none = need_atom(c, out, none);
    }
    for (uint32_t p = 0; p < k->n_parts; p++) {
        one->lists[at++] = need_literal(c, k->parts[p] * 2, NULL, NULL);
        none = need_literal(c, k->parts[p] * 2 + 1, NULL, none);
    }
    one->n_lists = at;
    *yes = one;
    *no = none;
    return OK;
}

int schema_constants(schema_compiler *c, uint32_t i, const char *key, need **yes, need **no) {
    const json *v = json_get(c->entries[i].node, key);
    bool is_list = strcmp(key, "enum") == 0;
    schema_cached *known = schema_cache(c, v);
    if (known->yes == NULL) {
        size_t n = is_list ? json_count(v) : 1;
        constants k = {.words = schema_alloc(c, (n + 1) * sizeof *k.words),
            .numbers = schema_alloc(c, (n + 1) * sizeof *k.numbers),
            .parts = schema_alloc(c, (n + 1) * sizeof *k.parts)};
        need *one, *none;
        int rc = OK;
        if (!is_list) rc = take_constant(c, i, key, v, &k);
        for (const json *item = is_list ? json_first(v) : NULL; item != NULL && rc == OK;
             item = json_next(item)) {
            rc = take_constant(c, i, key, item, &k);
        }
        if (rc == OK) rc = make_needs(c, &k, &one, &none);
        if (rc != OK) return rc;
        known = schema_cache(c, v);
        known->yes = one;
        known->no = none;
    }
    *yes = need_append(c, known->yes, *yes);
    *no = need_append(c, known->no, *no);
    return OK;
}
