#include "engine/base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"

int buf_reserve(buf *b, size_t n) {
    size_t max = b->max == 0 ? BUF_DEFAULT_MAX : b->max;
    if (b->len > max || n > max - b->len) return ERR_LIMIT;
    size_t need = b->len + n;
    if (need < b->cap) return OK; /* one byte is kept for the NUL */
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap <= need) {
        if (cap > SIZE_MAX / 2) return ERR_LIMIT;
        cap += cap / 2;
    }
    if (cap > max) cap = max + 1 > need ? max + 1 : need + 1;
    char *data = mem_try_alloc(cap);
    if (data == NULL) return ERR_MEMORY;
    if (b->len > 0) memcpy(data, b->data, b->len);
    mem_free(b->data);
    b->data = data;
    b->cap = cap;
    return OK;
}

int buf_append(buf *b, const void *p, size_t n) {
    int rc = buf_reserve(b, n);
    if (rc != OK) return rc;
    if (n > 0) memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = '\0';
    return OK;
}

int buf_puts(buf *b, const char *s) {
    return buf_append(b, s, strlen(s));
}

int buf_putc(buf *b, char c) {
    return buf_append(b, &c, 1);
}

int buf_vprintf(buf *b, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    char small[256];
    int n = vsnprintf(small, sizeof small, fmt, ap);
    int rc = ERR_ARG;
    if (n >= 0 && (size_t)n < sizeof small) {
        rc = buf_append(b, small, (size_t)n);
    } else if (n >= 0) {
        rc = buf_reserve(b, (size_t)n);
        if (rc == OK) {
            (void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
            b->len += (size_t)n;
        }
    }
    va_end(again);
    return rc;
}

int buf_printf(buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int rc = buf_vprintf(b, fmt, ap);
    va_end(ap);
    return rc;
}

void buf_consume(buf *b, size_t n) {
    if (n >= b->len) {
        buf_reset(b);
        return;
    }
    if (n == 0) return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = '\0';
}

void buf_truncate(buf *b, size_t n) {
    CHECK_MSG(n <= b->len, "buf_truncate: %zu is above the length %zu", n, b->len);
    b->len = n;
    if (b->data != NULL) b->data[n] = '\0';
}

void buf_reset(buf *b) {
    b->len = 0;
    if (b->data != NULL) b->data[0] = '\0';
}

void buf_release(buf *b) {
    mem_free(b->data);
    b->data = NULL;
    b->len = 0;
    b->cap = 0;
}

const char *buf_cstr(const buf *b) {
    return b->data == NULL ? "" : b->data;
}

char *buf_take(buf *b) {
    char *data = b->data == NULL ? mem_alloc(1) : b->data;
    b->data = NULL;
    b->len = 0;
    b->cap = 0;
    return data;
}
