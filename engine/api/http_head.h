/* The raw head of a request, as the HTTP library leaves it in its buffer. Up to its versions 0.9 the
 * library takes a line with an empty name for the end of the head, ends a value at a NUL byte, joins
 * folded lines to names and takes a bare LF for the end of a line: what it tells of such a head is
 * not what the client sent, and what follows could count as the next request.
 * Pure; threads: any. */
#ifndef TANDEM_API_HTTP_HEAD_H
#define TANDEM_API_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>

/* One or more characters of a header's name, as the standard has them. */
bool http_head_is_name(const char *s, size_t n);
/* Bytes of a value without blanks and tabs at its end. */
size_t http_head_value_len(const char *s);

/* The first line in the library's buffer. */
typedef struct http_head_line {
    const char *method;
    const char *target;  /* NULL: there is none */
    size_t n_target;     /* to its first NUL byte, before the library took it apart */
    const char *version; /* behind it the headers begin */
} http_head_line;

/* Whether the head of n bytes, which begins with the method, is what it seems: the library has put
 * NUL bytes in place of the blanks of the first line, the colon of each other line and both bytes
 * of each CR LF, and there are no others. */
bool http_head_is_sound(const http_head_line *line, size_t n);

#endif
