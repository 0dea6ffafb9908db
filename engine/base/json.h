#ifndef TANDEM_BASE_JSON_H
#define TANDEM_BASE_JSON_H
/* Strict JSON on top of cJSON. A scanner of our own checks everything first (UTF-8, paired
 * surrogates, depth, size, no trailing bytes, no NaN), so cJSON only ever sees valid text; numbers
 * keep their digits, so integers beyond 2^53 never pass through a double. A repeated key keeps its
 * first place and its last value. The reader of a value accepts NULL and answers "no", so look-ups
 * can be chained. A tree is used by one thread at a time, or by many that only read.
 *
 * Strings with \u0000 are legal JSON: in json_str the NUL stands as the two bytes C0 80 (which
 * cannot occur otherwise); printing turns it back, json_str_bytes gives the true bytes. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

typedef struct cJSON json;

typedef struct json_limits {
    size_t max_bytes; /* 0: 64 MiB */
    int max_depth;    /* 0: 512, which is also the most */
    size_t max_nodes; /* 0: 16 million */
} json_limits;

/* Parses exactly one value. limits may be NULL. The caller frees *out with json_free. Errors are
 * ERR_FORMAT or ERR_LIMIT with line and column of the first offence. */
int json_parse(const char *text, size_t len, const json_limits *limits, json **out, err *e);
/* Reads and parses a file; the error names it. */
int json_parse_file(const char *path, const json_limits *limits, json **out, err *e);
void json_free(json *v);

bool json_is_null(const json *v); /* the literal null, not a missing value */
bool json_is_bool(const json *v);
bool json_is_true(const json *v);
bool json_is_number(const json *v);
bool json_is_integer(const json *v); /* written without point and exponent, any size */
bool json_is_string(const json *v);
bool json_is_array(const json *v);
bool json_is_object(const json *v);
/* "null", "boolean", "number", "string", "array", "object", or "nothing" for NULL. */
const char *json_kind(const json *v);

/* NULL when v is no object or has no such key. Linear in the number of keys. */
const json *json_get(const json *v, const char *key);
/* NULL when v is no array or i is past the end. Linear in i: use JSON_EACH to walk. */
const json *json_at(const json *v, size_t i);
/* Members of an array or object, else 0. */
size_t json_count(const json *v);
/* First member of an array or object and the one after v, in document order. */
const json *json_first(const json *v);
const json *json_next(const json *v);
/* Key of a member of an object, else NULL. */
const char *json_key(const json *member);
#define JSON_EACH(item, container)                                                                 \
    for (const json *item = json_first(container); item != NULL; item = json_next(item))

/* NULL when v is no string; borrowed from the tree. */
const char *json_str(const json *v);
/* The true bytes of a string appended to out. ERR_FORMAT when v is no string. */
int json_str_bytes(const json *v, buf *out);
/* ERR_FORMAT when v is of another kind, ERR_LIMIT when an integer does not fit; *out changes only
 * on OK. A number such as 3.0 or 1e3 is no integer here. */
int json_bool(const json *v, bool *out);
int json_i64(const json *v, int64_t *out);
int json_u64(const json *v, uint64_t *out);
/* Overflow to infinity is ERR_LIMIT. */
int json_double(const json *v, double *out);
/* The digits as written; NULL when v is no number. */
const char *json_number_text(const json *v);

/* As Python's json.dumps(ensure_ascii=False): ", " and ": ", integers digit by digit, doubles in
 * shortest round-trip form. */
int json_print(const json *v, buf *out);
/* The same without spaces. */
int json_print_compact(const json *v, buf *out);
/* A quoted string with Python's escapes. Bytes that are not UTF-8 become U+FFFD; C0 80 becomes
 * \u0000. */
int json_quote(buf *out, const char *s, size_t n);

/* Writes JSON piece by piece into a buffer (borrowed), commas set by itself, no spaces. The first
 * failure sticks and json_w_end reports it. Keys and values must come in a legal order (a mistake is
 * a CHECK); depth at most 63. */
typedef struct json_w {
    buf *out;
    int rc;
    int depth;
    uint64_t is_object;  /* bit d: the open container at depth d is an object */
    uint64_t has_member; /* bit d: it already has one */
    bool has_key;        /* a key was written and waits for its value */
} json_w;
void json_w_begin(json_w *w, buf *out);
void json_w_object(json_w *w);
void json_w_array(json_w *w);
/* Closes the newest open object or array. */
void json_w_close(json_w *w);
void json_w_key(json_w *w, const char *key);
void json_w_str(json_w *w, const char *s); /* NULL writes null */
void json_w_strn(json_w *w, const char *s, size_t n);
void json_w_i64(json_w *w, int64_t v);
void json_w_u64(json_w *w, uint64_t v);
void json_w_double(json_w *w, double v);              /* not finite: null */
void json_w_fixed(json_w *w, double v, int decimals); /* not finite: null */
void json_w_bool(json_w *w, bool v);
void json_w_null(json_w *w);
void json_w_value(json_w *w, const json *v);            /* NULL writes null */
void json_w_raw(json_w *w, const char *text, size_t n); /* must be one JSON value */
/* key and value in one call */
void json_w_kstr(json_w *w, const char *key, const char *s);
void json_w_ki64(json_w *w, const char *key, int64_t v);
void json_w_ku64(json_w *w, const char *key, uint64_t v);
void json_w_kdouble(json_w *w, const char *key, double v);
void json_w_kbool(json_w *w, const char *key, bool v);
void json_w_knull(json_w *w, const char *key);
/* All containers must be closed. OK, or the first failure of the buffer. */
int json_w_end(json_w *w);

#endif
