#include "tests/harness/schema_check.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/str.h"

static const char *const plain_keywords[] = {"type", "enum", "const", "required", "minProperties",
    "maxProperties", "minItems", "maxItems", "minContains", "maxContains", "uniqueItems",
    "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "$ref", "$schema", "$comment", "title", "description",
    "default", "dependentRequired"};
static const char *const schema_keywords[] = {
    "additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else"};
static const char *const list_keywords[] = {"anyOf", "allOf", "oneOf", "prefixItems"};
static const char *const map_keywords[] = {"properties", "patternProperties", "$defs"};

static bool in_list(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(key, list[i]) == 0) return true;
    }
    return false;
}
#define IN(key, list) in_list(key, list, sizeof(list) / sizeof *(list))

bool schema_check_knows(const json *schema) {
    if (json_is_array(schema)) return false; /* older spellings */
    JSON_EACH(v, schema) {
        const char *key = json_key(v);
        if (IN(key, plain_keywords)) continue;
        if (IN(key, schema_keywords)) {
            if (!schema_check_knows(v)) return false;
        } else if (IN(key, list_keywords) || IN(key, map_keywords)) {
            JSON_EACH(item, v) {
                if (!schema_check_knows(item)) return false;
            }
        } else {
            return false;
        }
    }
    return !json_is_bool(json_get(schema, "exclusiveMinimum")) &&
           !json_is_bool(json_get(schema, "exclusiveMaximum"));
}

static double number(const json *v) {
    double d = NAN;
    (void)json_double(v, &d);
    return d;
}

static bool equal(const json *a, const json *b) {
    if (json_is_number(a) && json_is_number(b)) return number(a) == number(b);
    if (strcmp(json_kind(a), json_kind(b)) != 0) return false;
    if (json_is_string(a)) return strcmp(json_str(a), json_str(b)) == 0;
    if (json_is_bool(a)) return json_is_true(a) == json_is_true(b);
    if (json_count(a) != json_count(b)) return false;
    const json *y = json_first(b);
    JSON_EACH(x, a) {
        if (json_is_object(a)) y = json_get(b, json_key(x));
        if (y == NULL || !equal(x, y)) return false;
        if (json_is_array(a)) y = json_next(y);
    }
    return true;
}

/* By its digits where they show it, since a double may round a fraction away. */
static bool is_whole(const json *v) {
    const char *text = json_number_text(v), *point = text == NULL ? NULL : strchr(text, '.');
    if (text == NULL) return false;
    if (point != NULL && strpbrk(text, "eE") == NULL) return point[1 + strspn(point + 1, "0")] == 0;
    return floor(number(v)) == number(v);
}

static bool has_type(const char *type, const json *v) {
    if (strcmp(type, "integer") == 0) return is_whole(v);
    return strcmp(type, json_kind(v)) == 0;
}

static bool matches(const char *pattern, const char *text) {
    int code;
    size_t at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
        PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_BSUX, &code, &at, NULL);
    if (re == NULL) return true; /* not this validator's business */
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(re, NULL);
    bool found = pcre2_match(re, (PCRE2_SPTR)text, strlen(text), 0, 0, data, NULL) >= 0;
    pcre2_match_data_free(data);
    pcre2_code_free(re);
    return found;
}

static size_t length(const char *s) {
    size_t n = 0;
    for (; *s != 0; s++)
        n += (*s & 0xC0) != 0x80;
    return n;
}

static bool between(const json *s, const char *min, const char *max, double v) {
    const json *lo = json_get(s, min), *hi = json_get(s, max);
    return (lo == NULL || v >= number(lo)) && (hi == NULL || v <= number(hi));
}

static bool check_number(const json *s, const json *v) {
    double x = number(v);
    const json *lo = json_get(s, "exclusiveMinimum"), *hi = json_get(s, "exclusiveMaximum");
    const json *step = json_get(s, "multipleOf");
    if (!between(s, "minimum", "maximum", x)) return false;
    if ((lo != NULL && x <= number(lo)) || (hi != NULL && x >= number(hi))) return false;
    if (step == NULL) return true;
    double n = x / number(step);
    return fabs(n - round(n)) < 1e-6 * fmax(1, fabs(n));
}

static bool check_string(const json *s, const char *text) {
    const json *pattern = json_get(s, "pattern");
    if (!between(s, "minLength", "maxLength", (double)length(text))) return false;
    return pattern == NULL || matches(json_str(pattern), text);
}

static bool is_unique(const json *v) {
    JSON_EACH(a, v) {
        for (const json *b = json_next(a); b != NULL; b = json_next(b)) {
            if (equal(a, b)) return false;
        }
    }
    return true;
}

static bool check_array(const json *root, const json *s, const json *v) {
    const json *place = json_first(json_get(s, "prefixItems")), *rest = json_get(s, "items");
    const json *contains = json_get(s, "contains");
    double n = 0, min = 1;
    if (!between(s, "minItems", "maxItems", (double)json_count(v))) return false;
    if (json_is_true(json_get(s, "uniqueItems")) && !is_unique(v)) return false;
    JSON_EACH(item, v) {
        const json *want = place != NULL ? place : rest;
        if (want != NULL && !schema_check(root, want, item)) return false;
        if (contains != NULL) n += schema_check(root, contains, item);
        if (place != NULL) place = json_next(place);
    }
    (void)json_double(json_get(s, "minContains"), &min);
    const json *max = json_get(s, "maxContains");
    return contains == NULL || (n >= min && (max == NULL || n <= number(max)));
}

static bool check_member(const json *root, const json *s, const json *item) {
    const json *own = json_get(json_get(s, "properties"), json_key(item));
    const json *others = json_get(s, "additionalProperties"), *names = json_get(s, "propertyNames");
    bool is_named = own != NULL;
    if (own != NULL && !schema_check(root, own, item)) return false;
    JSON_EACH(pattern, json_get(s, "patternProperties")) {
        if (!matches(json_key(pattern), json_key(item))) continue;
        is_named = true;
        if (!schema_check(root, pattern, item)) return false;
    }
    if (!is_named && others != NULL && !schema_check(root, others, item)) return false;
    if (names == NULL) return true;
    buf text = BUF_INIT;
    json *key = NULL;
    bool is_right = json_quote(&text, json_key(item), strlen(json_key(item))) == OK &&
                    json_parse(text.data, text.len, NULL, &key, NULL) == OK &&
                    schema_check(root, names, key);
    json_free(key);
    buf_release(&text);
    return is_right;
}

static bool check_object(const json *root, const json *s, const json *v) {
    if (!between(s, "minProperties", "maxProperties", (double)json_count(v))) return false;
    JSON_EACH(name, json_get(s, "required")) {
        if (json_get(v, json_str(name)) == NULL) return false;
    }
    JSON_EACH(item, json_get(s, "dependentRequired")) {
        if (json_get(v, json_key(item)) == NULL) continue;
        JSON_EACH(name, item) {
            if (json_get(v, json_str(name)) == NULL) return false;
        }
    }
    JSON_EACH(item, v) {
        if (!check_member(root, s, item)) return false;
    }
    return true;
}

static bool check_kind(const json *s, const json *v) {
    const json *type = json_get(s, "type"), *values = json_get(s, "enum");
    const json *only = json_get(s, "const");
    bool found = type == NULL || (json_is_string(type) && has_type(json_str(type), v));
    if (json_is_array(type)) {
        JSON_EACH(t, type) found = found || has_type(json_str(t), v);
    }
    if (!found || (only != NULL && !equal(only, v))) return false;
    found = values == NULL;
    JSON_EACH(x, values) found = found || equal(x, v);
    return found;
}

static bool check_combined(const json *root, const json *s, const json *v) {
    const json *any = json_get(s, "anyOf"), *one = json_get(s, "oneOf");
    const json *inner = json_get(s, "not"), *test = json_get(s, "if");
    int n_any = 0, n_one = 0;
    JSON_EACH(x, json_get(s, "allOf")) {
        if (!schema_check(root, x, v)) return false;
    }
    JSON_EACH(x, any) n_any += schema_check(root, x, v);
    JSON_EACH(x, one) n_one += schema_check(root, x, v);
    if ((any != NULL && n_any == 0) || (one != NULL && n_one != 1)) return false;
    if (inner != NULL && schema_check(root, inner, v)) return false;
    if (test == NULL) return true;
    const json *then = json_get(s, schema_check(root, test, v) ? "then" : "else");
    return then == NULL || schema_check(root, then, v);
}

static const json *target(const json *root, const char *ref) {
    const json *at = root;
    char step[200];
    if (ref[0] != '#') return NULL;
    for (ref++; *ref == '/' && at != NULL;) {
        size_t n = strcspn(++ref, "/");
        if (n >= sizeof step) return NULL;
        memcpy(step, ref, n);
        step[n] = 0;
        uint64_t i;
        at = json_is_array(at) && parse_u64(step, &i) == OK ? json_at(at, (size_t)i)
                                                            : json_get(at, step);
        ref += n;
    }
    return at;
}

bool schema_check(const json *root, const json *s, const json *v) {
    const char *ref = json_str(json_get(s, "$ref"));
    if (json_is_bool(s)) return json_is_true(s);
    if (ref != NULL) {
        const json *to = target(root, ref);
        if (to != NULL && !schema_check(root, to, v)) return false;
    }
    if (!check_kind(s, v) || !check_combined(root, s, v)) return false;
    if (json_is_number(v)) return check_number(s, v);
    if (json_is_string(v)) return check_string(s, json_str(v));
    if (json_is_array(v)) return check_array(root, s, v);
    return !json_is_object(v) || check_object(root, s, v);
}
