#include <cjson/cJSON.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/json_scan.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

/* The escape of one byte below U+0020 or of a quote or backslash; NULL when it stands for itself. */
static const char *escape_of(unsigned char c, char text[8]) {
    static const char hex[] = "0123456789abcdef";
    switch (c) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    case '\b':
        return "\\b";
    case '\f':
        return "\\f";
    default:
        break;
    }
    if (c >= 0x20) return NULL;
    memcpy(text, "\\u00", 4);
    text[4] = hex[c >> 4];
    text[5] = hex[c & 15];
    text[6] = '\0';
    return text;
}

/* The replacement for what stands at s (used bytes of it), NULL when it is copied as it is. */
static const char *quote_replacement(const char *s, size_t n, size_t *used, char text[8]) {
    unsigned char c = (unsigned char)*s;
    *used = 1;
    if (c < 0x80) return escape_of(c, text);
    uint32_t cp;
    *used = utf8_decode(s, n, &cp);
    if (cp != UTF8_INVALID) return NULL;
    if (n >= 2 && c == 0xC0 && (unsigned char)s[1] == 0x80) {
        *used = 2;
        return "\\u0000";
    }
    return "\xEF\xBF\xBD";
}

int json_quote(buf *out, const char *s, size_t n) {
    size_t before = out->len;
    size_t copied = 0;
    int rc = buf_putc(out, '"');
    for (size_t i = 0; rc == OK && i < n;) {
        char text[8];
        size_t used;
        const char *with = quote_replacement(s + i, n - i, &used, text);
        if (with != NULL) {
            rc = buf_append(out, s + copied, i - copied);
            if (rc == OK) rc = buf_puts(out, with);
            copied = i + used;
        }
        i += used;
    }
    if (rc == OK) rc = buf_append(out, s + copied, n - copied);
    if (rc == OK) rc = buf_putc(out, '"');
    if (rc != OK && out->len > before) buf_truncate(out, before);
    return rc;
}

static int print_number(const json *v, buf *out) {
    if (json_is_integer(v)) {
        const char *digits = json_number_text(v);
        return buf_puts(out, strcmp(digits, "-0") == 0 ? "0" : digits);
    }
    double d;
    int rc = json_double(v, &d);
    if (rc != OK) return rc;
    char text[40];
    (void)print_double(d, text);
    return buf_puts(out, text);
}

static int print_scalar(const json *v, buf *out) {
    if (json_is_string(v)) return json_quote(out, v->valuestring, strlen(v->valuestring));
    if (json_is_number(v)) return print_number(v, out);
    if (json_is_bool(v)) return buf_puts(out, json_is_true(v) ? "true" : "false");
    if (json_is_array(v)) return buf_puts(out, "[]");
    if (json_is_object(v)) return buf_puts(out, "{}");
    return buf_puts(out, "null");
}

static int print_member(const json *v, bool in_object, const char *colon, buf *out) {
    int rc = OK;
    if (in_object) {
        rc = json_quote(out, v->string, strlen(v->string));
        if (rc == OK) rc = buf_puts(out, colon);
    }
    if (rc != OK) return rc;
    if (json_first(v) == NULL) return print_scalar(v, out);
    return buf_putc(out, json_is_object(v) ? '{' : '[');
}

static int print_tree(const json *root, buf *out, const char *comma, const char *colon) {
    const json *stack[JSON_MAX_DEPTH + 1]; /* containers whose members are being written */
    int depth = 0;
    const json *v = root;
    int rc = print_member(v, false, colon, out);
    while (rc == OK) {
        const json *next = json_first(v);
        if (next != NULL) {
            CHECK(depth < JSON_MAX_DEPTH);
            stack[depth++] = v;
        } else {
            while (depth > 0 && (v == root || v->next == NULL) && rc == OK) {
                v = stack[--depth];
                rc = buf_putc(out, json_is_object(v) ? '}' : ']');
            }
            if (v == root || rc != OK) break;
            next = v->next;
            rc = buf_puts(out, comma);
        }
        v = next;
        if (rc == OK) rc = print_member(v, json_is_object(stack[depth - 1]), colon, out);
    }
    return rc;
}

int json_print(const json *v, buf *out) {
    return print_tree(v, out, ", ", ": ");
}

int json_print_compact(const json *v, buf *out) {
    return print_tree(v, out, ",", ":");
}
