#include "engine/base/json_scan.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/str.h"

typedef struct scanner {
    const char *text;
    size_t len;
    size_t at;
    size_t copied; /* text before this is already in out->text */
    size_t n_nodes;
    json_limits limits;
    int depth;
    uint8_t is_object[JSON_MAX_DEPTH + 1];
    json_scan *out;
    err *e;
} scanner;

static int scan_fail(scanner *s, int code, const char *what) {
    size_t line = 1;
    size_t column = 1;
    for (size_t i = 0; i < s->at && i < s->len; i++) {
        column++;
        if (s->text[i] == '\n') {
            line++;
            column = 1;
        }
    }
    return err_set(s->e, code, "JSON line %zu column %zu: %s", line, column, what);
}

static int scan_no_memory(scanner *s, int rc) {
    return scan_fail(s, rc, "no memory for the text");
}

static void scan_space(scanner *s) {
    while (s->at < s->len) {
        char c = s->text[s->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
        s->at++;
    }
}

static bool scan_is(const scanner *s, char c) {
    return s->at < s->len && s->text[s->at] == c;
}

/* Copies what was passed since the last replacement, then the replacement. */
static int scan_replace(scanner *s, size_t from, const char *with) {
    int rc = buf_append(&s->out->text, s->text + s->copied, from - s->copied);
    if (rc == OK) rc = buf_puts(&s->out->text, with);
    s->copied = s->at;
    return rc == OK ? OK : scan_no_memory(s, rc);
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Four digits after \u; at stands on the first. */
static int scan_hex4(scanner *s, uint32_t *out) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int digit = s->at < s->len ? hex_value(s->text[s->at]) : -1;
        if (digit < 0) return scan_fail(s, ERR_FORMAT, "\\u needs four hexadecimal digits");
        v = v << 4 | (uint32_t)digit;
        s->at++;
    }
    *out = v;
    return OK;
}

static int scan_unicode_escape(scanner *s) {
    size_t from = s->at - 2;
    uint32_t unit = 0;
    int rc = scan_hex4(s, &unit);
    if (rc != OK) return rc;
    if (unit == 0) return scan_replace(s, from, "\xC0\x80");
    if (unit >= 0xDC00 && unit <= 0xDFFF) return scan_fail(s, ERR_FORMAT, "a lone low surrogate");
    if (unit < 0xD800 || unit > 0xDBFF) return OK;
    if (s->len - s->at < 2 || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u') {
        return scan_fail(s, ERR_FORMAT, "a lone high surrogate");
    }
    s->at += 2;
    rc = scan_hex4(s, &unit);
    if (rc != OK) return rc;
    if (unit < 0xDC00 || unit > 0xDFFF) return scan_fail(s, ERR_FORMAT, "a lone high surrogate");
    return OK;
}

static int scan_string(scanner *s) {
    s->at++;
    while (s->at < s->len) {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"') {
            s->at++;
            return OK;
        }
        if (c < 0x20) return scan_fail(s, ERR_FORMAT, "a raw control character in a string");
        if (c >= 0x80) {
            uint32_t cp;
            size_t used = utf8_decode(s->text + s->at, s->len - s->at, &cp);
            if (cp == UTF8_INVALID) return scan_fail(s, ERR_FORMAT, "bytes that are not UTF-8");
            s->at += used;
            continue;
        }
        s->at++;
        if (c != '\\') continue;
        char escape = s->at < s->len ? s->text[s->at] : '\0';
        if (escape == '\0' || strchr("\"\\/bfnrtu", escape) == NULL) {
            return scan_fail(s, ERR_FORMAT, "an unknown escape in a string");
        }
        s->at++;
        int rc = escape == 'u' ? scan_unicode_escape(s) : OK;
        if (rc != OK) return rc;
    }
    return scan_fail(s, ERR_FORMAT, "a string without an end");
}

static size_t scan_digits(scanner *s) {
    size_t from = s->at;
    while (s->at < s->len && s->text[s->at] >= '0' && s->text[s->at] <= '9')
        s->at++;
    return s->at - from;
}

static int scan_number(scanner *s) {
    size_t from = s->at;
    if (scan_is(s, '-')) s->at++;
    bool starts_with_zero = scan_is(s, '0');
    size_t n = scan_digits(s);
    if (n == 0) return scan_fail(s, ERR_FORMAT, "a number without digits");
    if (starts_with_zero && n > 1) return scan_fail(s, ERR_FORMAT, "a number with a leading zero");
    bool is_integer = true;
    if (scan_is(s, '.')) {
        is_integer = false;
        s->at++;
        if (scan_digits(s) == 0) return scan_fail(s, ERR_FORMAT, "no digits after the point");
    }
    if (scan_is(s, 'e') || scan_is(s, 'E')) {
        is_integer = false;
        s->at++;
        if (scan_is(s, '+') || scan_is(s, '-')) s->at++;
        if (scan_digits(s) == 0) return scan_fail(s, ERR_FORMAT, "an exponent without digits");
    }
    int rc = buf_append(&s->out->numbers, s->text + from, s->at - from);
    if (rc == OK) rc = buf_putc(&s->out->numbers, '\0');
    if (rc != OK) return scan_no_memory(s, rc);
    double v;
    const char *digits = s->out->numbers.data + s->out->numbers.len - (s->at - from) - 1;
    if (!is_integer && parse_double(digits, &v) != OK) {
        return scan_fail(s, ERR_LIMIT, "a number beyond the range of a double");
    }
    return scan_replace(s, from, "0");
}

static int scan_literal(scanner *s) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (s->len - s->at < n || memcmp(s->text + s->at, words[i], n) != 0) continue;
        s->at += n;
        return OK;
    }
    return scan_fail(s, ERR_FORMAT, "a value was expected");
}

/* After "{" or "," in an object: the key and its colon. */
static int scan_key(scanner *s) {
    scan_space(s);
    if (!scan_is(s, '"')) return scan_fail(s, ERR_FORMAT, "a key in quotes was expected");
    int rc = scan_string(s);
    if (rc != OK) return rc;
    scan_space(s);
    if (!scan_is(s, ':')) return scan_fail(s, ERR_FORMAT, "a colon was expected");
    s->at++;
    return OK;
}

/* One value, or the opening of a container; *is_open says that its first member comes next. */
static int scan_value(scanner *s, bool *is_open) {
    *is_open = false;
    scan_space(s);
    if (s->at >= s->len) return scan_fail(s, ERR_FORMAT, "the text ends too early");
    if (++s->n_nodes > s->limits.max_nodes) return scan_fail(s, ERR_LIMIT, "too many values");
    char c = s->text[s->at];
    if (c == '"') return scan_string(s);
    if (c == '-' || (c >= '0' && c <= '9')) return scan_number(s);
    if (c != '{' && c != '[') return scan_literal(s);
    if (s->depth >= s->limits.max_depth) return scan_fail(s, ERR_LIMIT, "nested too deeply");
    s->at++;
    s->is_object[++s->depth] = c == '{';
    scan_space(s);
    if (scan_is(s, c == '{' ? '}' : ']')) {
        s->at++;
        s->depth--;
        return OK;
    }
    *is_open = true;
    return c == '{' ? scan_key(s) : OK;
}

/* After a value: closes containers and passes one comma; *is_done at the end of the outermost. */
static int scan_after_value(scanner *s, bool *is_done) {
    while (s->depth > 0) {
        scan_space(s);
        bool in_object = s->is_object[s->depth] != 0;
        if (scan_is(s, ',')) {
            s->at++;
            return in_object ? scan_key(s) : OK;
        }
        if (!scan_is(s, in_object ? '}' : ']')) {
            return scan_fail(s, ERR_FORMAT,
                s->at >= s->len ? "the text ends too early"
                : in_object     ? "a comma or } was expected"
                                : "a comma or ] was expected");
        }
        s->at++;
        s->depth--;
    }
    *is_done = true;
    return OK;
}

int json_scan_text(
    const char *text, size_t len, const json_limits *limits, json_scan *out, err *e) {
    scanner s = {.text = text, .len = len, .out = out, .e = e};
    if (limits != NULL) s.limits = *limits;
    if (s.limits.max_bytes == 0) s.limits.max_bytes = BUF_DEFAULT_MAX;
    if (s.limits.max_depth <= 0 || s.limits.max_depth > JSON_MAX_DEPTH) {
        s.limits.max_depth = JSON_MAX_DEPTH;
    }
    if (s.limits.max_nodes == 0) s.limits.max_nodes = (size_t)16 << 20;
    if (len > s.limits.max_bytes) {
        return err_set(e, ERR_LIMIT, "JSON text of %zu bytes is over the limit of %zu", len,
            s.limits.max_bytes);
    }
    out->text.max = len + 64;
    out->numbers.max = 2 * len + 64;
    int rc = OK;
    bool is_done = false;
    while (rc == OK && !is_done) {
        bool is_open = false;
        rc = scan_value(&s, &is_open);
        if (rc == OK && !is_open) rc = scan_after_value(&s, &is_done);
    }
    if (rc != OK) return rc;
    scan_space(&s);
    if (s.at != len) return scan_fail(&s, ERR_FORMAT, "something follows the value");
    return scan_replace(&s, len, "");
}
