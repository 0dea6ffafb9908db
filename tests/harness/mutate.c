#include "tests/harness/mutate.h"

#include <stdbool.h>
#include <string.h>

#include "engine/base/err.h"

#define VALUES_MAX 512

typedef struct piece {
    size_t at, len;
} piece;

/* Takes out the bytes of old and puts n others there. */
static void replace(buf *b, piece old, const char *with, size_t n) {
    buf out = BUF_INIT;
    buf_append(&out, b->data, old.at);
    buf_append(&out, with, n);
    buf_append(&out, b->data + old.at + old.len, b->len - old.at - old.len);
    buf_reset(b);
    buf_append(b, buf_cstr(&out), out.len);
    buf_release(&out);
}

static piece any_piece(rand_state *r, size_t len, size_t longest) {
    piece p = {0};
    if (len == 0) return p;
    p.at = rand_below(r, (uint32_t)len);
    p.len = rand_below(r, (uint32_t)longest) + 1;
    if (p.len > len - p.at) p.len = len - p.at;
    return p;
}

/* ---- bytes ---- */

static const char *const words[] = {"\r\n", "\n", "\r", ":", " ", "\t", "0", "ffffffffffffffff",
    "-1", "chunked", "Transfer-Encoding: chunked\r\n", "Content-Length: 0\r\n",
    "Content-Length: 18446744073709551615\r\n", "Expect: 100-continue\r\n", "Host: x\r\n",
    "HTTP/1.0", "HTTP/1.1", "HTTP/9.9", "HEAD ", "OPTIONS ", "POST ", "GET ", "%00", "%zz", "//",
    "/../", "?", "&", "=", "Connection: close\r\n", "Connection: Upgrade\r\n", "\r\n\r\n", ";x=y",
    "Upgrade: h2c\r\n", "Authorization: Bearer \r\n", "Cookie: a=b; c\r\n", "\xff\xfe", "\x7f"};
enum { N_WORDS = sizeof words / sizeof words[0] };

static void put_odd_byte(rand_state *r, buf *b) {
    static const unsigned char odd[] = {0, '\r', '\n', ' ', ':', 0x7f, 0x80, 0xff, '0', '{', '"'};
    piece p = any_piece(r, b->len, 1);
    char c = (char)(rand_below(r, 2) == 0 ? odd[rand_below(r, sizeof odd)] : rand_below(r, 256));
    if (p.len == 1) b->data[p.at] = c;
}

void mutate_bytes(rand_state *r, buf *b, const buf *other, size_t max) {
    uint32_t n = rand_below(r, 4) + 1;
    for (uint32_t i = 0; i < n; i++) {
        piece p = any_piece(r, b->len, b->len < 16 ? 4 : b->len / 4);
        const char *word = words[rand_below(r, N_WORDS)];
        switch (rand_below(r, 6)) {
        case 0:
        case 1:
            put_odd_byte(r, b);
            break;
        case 2:
            replace(b, p, "", 0);
            break;
        case 3:
            replace(b, (piece){p.at, rand_below(r, 2) == 0 ? 0 : p.len}, word, strlen(word));
            break;
        case 4:
            replace(b, (piece){p.at, 0}, b->data + p.at, p.len);
            break;
        default:
            if (other == NULL || other->len == 0) break;
            piece q = any_piece(r, other->len, other->len);
            replace(b, (piece){p.at, 0}, other->data + q.at, q.len);
        }
        if (b->len > max) buf_truncate(b, max);
    }
}

/* ---- JSON ---- */

static const char *const values[] = {"null", "true", "false", "0", "-1", "1", "2", "1e999", "-0.0",
    "0.1", "NaN", "9007199254740993", "18446744073709551616", "-9223372036854775809", "\"\"", "[]",
    "{}", "\"auto\"", "\"required\"", "\"none\"", "\"\\ud800\"", "\"\\u0000\"", "\"0.5\"", "[null]",
    "[[]]", "{\"\":0}", "{\"type\":\"object\"}", "{\"type\":\"function\"}", "{\"$ref\":\"#\"}",
    "{\"type\":\"json_object\"}", "\"</think>\"", "{\"type\":\"text\",\"text\":\"x\"}", "[1,2,3]",
    "{\"allOf\":[{\"not\":{}}]}",
    "\"x-very-long-name-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\""};
enum { N_VALUES = sizeof values / sizeof values[0] };

static size_t string_end(const buf *b, size_t i) {
    for (i++; i < b->len && b->data[i] != '"'; i++) {
        if (b->data[i] == '\\') i++;
    }
    return i < b->len ? i + 1 : b->len;
}

/* Behind the value that begins at i: brackets are counted, strings skipped. */
static size_t value_end(const buf *b, size_t i) {
    int depth = 0;
    while (i < b->len) {
        char c = b->data[i];
        if (depth == 0 && strchr(",]}:", c) != NULL && c != '\0') return i;
        i = c == '"' ? string_end(b, i) : i + 1;
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        if (depth == 0 && strchr("\"]}", c) != NULL && c != '\0') return i;
    }
    return i;
}

/* Keys count as values: a renamed key is an unknown one. */
static int find_values(const buf *b, piece *out) {
    int n = 0;
    size_t i = 0;
    while (i < b->len && n < VALUES_MAX) {
        char c = b->data[i];
        bool is_between = c != '\0' && strchr(" \t\r\n,:]}", c) != NULL;
        if (!is_between) out[n++] = (piece){i, value_end(b, i) - i};
        if (is_between || c == '{' || c == '[') {
            i++;
        } else {
            i += out[n - 1].len > 0 ? out[n - 1].len : 1;
        }
    }
    return n;
}

void mutate_json(rand_state *r, buf *b, size_t max) {
    piece found[VALUES_MAX];
    int n = find_values(b, found);
    if (n == 0 || rand_below(r, 8) == 0) {
        mutate_bytes(r, b, NULL, max);
        return;
    }
    piece p = found[rand_below(r, (uint32_t)n)];
    piece q = found[rand_below(r, (uint32_t)n)];
    const char *value = values[rand_below(r, N_VALUES)];
    switch (rand_below(r, 4)) {
    case 0:
    case 1:
        replace(b, p, value, strlen(value));
        break;
    case 2: {
        buf copy = BUF_INIT;
        buf_append(&copy, b->data + q.at, q.len);
        replace(b, p, buf_cstr(&copy), copy.len);
        buf_release(&copy);
        break;
    }
    default: {
        buf nest = BUF_INIT;
        buf_putc(&nest, '[');
        buf_append(&nest, b->data + p.at, p.len);
        buf_putc(&nest, ',');
        buf_append(&nest, b->data + q.at, q.len);
        buf_putc(&nest, ']');
        replace(b, p, buf_cstr(&nest), nest.len);
        buf_release(&nest);
    }
    }
    if (b->len > max) buf_truncate(b, max);
}
