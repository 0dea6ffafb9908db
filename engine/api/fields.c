#include "engine/api/fields.h"

#include <math.h>
#include <stdio.h>

#include "engine/base/str.h"

const json *field_get(const json *object, const char *key) {
    const json *v = json_get(object, key);
    return json_is_null(v) ? NULL : v;
}

int field_object(const json *object, const char *key, const json **out, api_error *e) {
    *out = field_get(object, key);
    if (*out == NULL || json_is_object(*out)) return OK;
    return api_bad(e, key, NULL, "%s must be an object, not a JSON %s", key, json_kind(*out));
}

static int wrong_type(api_error *e, const char *key, const char *wanted, const json *v) {
    return api_bad(e, key, NULL, "%s must be %s, not a JSON %s", key, wanted, json_kind(v));
}

int field_bool(const json *object, const char *key, bool *out, api_error *e) {
    const json *v = field_get(object, key);
    if (v == NULL || json_bool(v, out) == OK) return OK;
    return wrong_type(e, key, "true or false", v);
}

int field_bool_in(const json *object, const char *place, const char *key, bool *out, api_error *e) {
    char name[96];
    const json *v = field_get(object, key);
    if (v == NULL || json_bool(v, out) == OK) return OK;
    (void)snprintf(name, sizeof name, "%s.%s", place, key);
    return wrong_type(e, name, "true or false", v);
}

/* The digits of a number, or of a string that may be one. */
static const char *number_text(const json *v) {
    return json_is_number(v) ? json_number_text(v) : json_str(v);
}

/* Reads an integer; 16.0 and 1e3 are whole numbers as well. ERR_FORMAT: it is none. ERR_LIMIT: it is
 * one, and *out is the end of the range on its side. */
static int whole_number(const char *text, int64_t *out) {
    double real = 0.0;
    int rc = parse_i64(text, out);
    if (rc == OK) return OK;
    if (rc == ERR_FORMAT) {
        rc = parse_double(text, &real);
        if (rc == ERR_FORMAT || (rc == OK && real != floor(real))) return ERR_FORMAT;
        if (rc == OK && fabs(real) < 9.2e18) {
            *out = (int64_t)real;
            return OK;
        }
    }
    *out = text[0] == '-' ? INT64_MIN : INT64_MAX;
    return ERR_LIMIT;
}

int field_whole(const json *v, int64_t *out) {
    const char *text = number_text(v);
    return text == NULL ? ERR_FORMAT : whole_number(text, out);
}

int field_number(const json *v, double *out) {
    const char *text = number_text(v);
    return text == NULL ? ERR_FORMAT : parse_double(text, out);
}

/* A range without an end of its own is told by the bound that was passed. */
static int out_of_range(api_error *e, const char *key, int_range range, const char *text) {
    if (range.max < INT32_MAX) {
        return api_bad(e, key, NULL, "%s is %.40s; it must be from %lld to %lld", key, text,
            (long long)range.min, (long long)range.max);
    }
    int64_t value = 0;
    (void)whole_number(text, &value);
    bool is_low = value < range.min || value == INT64_MIN;
    return api_bad(e, key, NULL, "%s is %.40s; it must be at %s %lld", key, text,
        is_low ? "least" : "most", (long long)(is_low ? range.min : range.max));
}

int field_int(const json *object, const char *key, int_range range, int64_t *out, api_error *e) {
    const json *v = field_get(object, key);
    int64_t value = 0;
    if (v == NULL) return OK;
    const char *text = number_text(v);
    if (text == NULL) return wrong_type(e, key, "an integer", v);
    int rc = whole_number(text, &value);
    if (rc == ERR_FORMAT) {
        return api_bad(e, key, NULL, "%s must be an integer, not %.40s", key, text);
    }
    if (rc != OK || value < range.min || value > range.max) {
        return out_of_range(e, key, range, text);
    }
    *out = value;
    return OK;
}

int field_seed(const json *object, const char *key, uint64_t *out, bool *is_given, api_error *e) {
    const json *v = field_get(object, key);
    int64_t negative = 0;
    *is_given = false;
    if (v == NULL) return OK;
    const char *text = number_text(v);
    if (text == NULL) return wrong_type(e, key, "an integer", v);
    if (parse_u64(text, out) != OK) {
        if (parse_i64(text, &negative) != OK) {
            return api_bad(e, key, NULL, "%s must be a 64-bit integer, not %.40s", key, text);
        }
        *out = (uint64_t)negative;
    }
    *is_given = true;
    return OK;
}

int field_double(
    const json *object, const char *key, double_range range, float *out, api_error *e) {
    const json *v = field_get(object, key);
    double value = 0.0;
    if (v == NULL) return OK;
    const char *text = number_text(v);
    if (text == NULL) return wrong_type(e, key, "a number", v);
    int rc = parse_double(text, &value);
    if (rc == ERR_FORMAT) {
        return api_bad(e, key, NULL, "%s must be a number, not %.40s", key, text);
    }
    bool is_low = value < range.min || (range.excludes_min && value == range.min);
    if (rc != OK || is_low || value > range.max) {
        return api_bad(e, key, NULL, "%s is %.40s; it must be %s %g and at most %g", key, text,
            range.excludes_min ? "above" : "at least", range.min, range.max);
    }
    *out = (float)value;
    return OK;
}

int field_str(const json *object, const char *key, const char **out, api_error *e) {
    const json *v = field_get(object, key);
    if (v == NULL) return OK;
    const char *s = json_str(v);
    if (s == NULL) return wrong_type(e, key, "a string", v);
    *out = s;
    return OK;
}
