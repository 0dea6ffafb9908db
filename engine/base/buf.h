#ifndef TANDEM_BASE_BUF_H
#define TANDEM_BASE_BUF_H
/* A growing byte buffer with a limit. Owns data. One thread at a time. After a failed call the
 * content is as before it. data is always NUL-terminated when it is not NULL (the NUL is not
 * counted in len), so it can be read as a C string when the content has no NUL. */
#include <stdarg.h>
#include <stddef.h>

typedef struct buf {
    char *data;
    size_t len;
    size_t cap;
    size_t max; /* refuses to hold more than this many bytes; 0 means BUF_DEFAULT_MAX */
} buf;
#define BUF_DEFAULT_MAX ((size_t)64 << 20)
#define BUF_INIT                                                                                   \
    { NULL, 0, 0, BUF_DEFAULT_MAX }
#define BUF_MAX(n)                                                                                 \
    { NULL, 0, 0, (n) }

/* Room for n more bytes. OK, ERR_LIMIT past max, ERR_MEMORY. */
int buf_reserve(buf *b, size_t n);
int buf_append(buf *b, const void *p, size_t n);
int buf_puts(buf *b, const char *s);
int buf_putc(buf *b, char c);
int buf_printf(buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int buf_vprintf(buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* Drops the first n bytes (all of them if n >= len). */
void buf_consume(buf *b, size_t n);
/* Cuts to len n; n must not be above the present length. */
void buf_truncate(buf *b, size_t n);
/* Empty, keeps the storage. */
void buf_reset(buf *b);
/* Frees the storage; the buffer is as after BUF_INIT with its max kept. */
void buf_release(buf *b);
/* Terminated view, "" when empty; valid until the next call that changes b. */
const char *buf_cstr(const buf *b);
/* Gives the storage to the caller, who frees it with mem_free; never NULL. b is empty after. */
char *buf_take(buf *b);

#endif
