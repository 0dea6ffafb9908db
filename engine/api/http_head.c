#include "engine/api/http_head.h"

#include <string.h>

#define EOL_BYTES ((size_t)2)

bool http_head_is_name(const char *s, size_t n) {
    static const char others[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!is_plain && (c == '\0' || strchr(others, c) == NULL)) return false;
    }
    return n > 0;
}

size_t http_head_value_len(const char *s) {
    size_t n = strlen(s);
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t')) {
        n--;
    }
    return n;
}

static bool is_line_sound(const http_head_line *line) {
    if (line->target == NULL) return false;
    const char *p = line->method + strlen(line->method) + 1;
    while (p < line->target && *p == ' ') {
        p++;
    }
    return p == line->target && line->version == line->target + line->n_target + 1;
}

static bool is_eol(const char *p, const char *end) {
    return (size_t)(end - p) >= EOL_BYTES && p[0] == '\0' && p[1] == '\0';
}

/* The NUL byte that ends the text at p, or NULL. */
static const char *text_end(const char *p, const char *end) {
    return p < end ? memchr(p, '\0', (size_t)(end - p)) : NULL;
}

/* The start of the next line, or NULL: this one is not sound. */
static const char *skip_line(const char *p, const char *end) {
    const char *colon = text_end(p, end);
    if (colon == NULL || !http_head_is_name(p, (size_t)(colon - p))) return NULL;
    const char *eol = text_end(colon + 1, end);
    return eol != NULL && is_eol(eol, end) ? eol + EOL_BYTES : NULL;
}

bool http_head_is_sound(const http_head_line *line, size_t n) {
    const char *end = line->method + n;
    if (!is_line_sound(line) || line->version >= end) return false;
    const char *p = text_end(line->version, end);
    if (p == NULL || !is_eol(p, end)) return false;
    p += EOL_BYTES;
    while (p != NULL && p < end && *p != '\0') {
        p = skip_line(p, end);
    }
    return p != NULL && is_eol(p, end) && p + EOL_BYTES == end;
}
