#ifndef TANDEM_BASE_STR_H
#define TANDEM_BASE_STR_H
/* Text helpers without hidden state: strict UTF-8, whole-string number parsing that does not know
 * the locale, bounded copies. Any thread. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_INVALID 0xFFFFFFFFu

/* Reads one code point at s (n bytes left). Returns the bytes used (1..4) and sets *cp. For bytes
 * that are not valid UTF-8 (overlong, surrogate, above U+10FFFF, cut off) returns 1 and sets *cp to
 * UTF8_INVALID. Returns 0 only for n == 0. */
size_t utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Writes cp (1..4 bytes, no NUL) and returns how many; a value that is no scalar gives U+FFFD. */
size_t utf8_encode(uint32_t cp, char out[4]);
bool utf8_valid(const char *s, size_t n);
/* Length of the longest prefix that is whole, valid UTF-8. */
size_t utf8_valid_prefix(const char *s, size_t n);
/* How many bytes at the end of s are the beginning of a sequence that could still become valid. */
size_t utf8_partial_tail(const char *s, size_t n);

bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);
bool str_eq(const char *a, const char *b);        /* NULL equals only NULL */
bool str_eq_nocase(const char *a, const char *b); /* ASCII letters only */
/* Copies with truncation, always terminates when cap > 0. Returns strlen(src). */
size_t str_copy(char *dst, size_t cap, const char *src);

/* The name that was most likely meant by a mistyped word, in any case of letters: the only one that
 * begins with it (from three letters on), else the one with the fewest wrong, missing, added or swapped
 * letters, at most one in three letters of the word. NULL: none. name gives the i-th of n. */
const char *str_nearest(
    const char *word, const char *(*name)(size_t i, void *ctx), size_t n, void *ctx);

/* The whole string must be the number (no spaces, no sign for u64, base 10). OK, ERR_FORMAT,
 * ERR_LIMIT when it does not fit. *out changes only on OK. */
int parse_i64(const char *s, int64_t *out);
int parse_u64(const char *s, uint64_t *out);
/* Decimal or exponent form with a point, never a comma; no inf, nan or hex. */
int parse_double(const char *s, double *out);
/* "10", "10K", "10KiB", "1.5G", "2 MiB": bytes; K M G T are powers of 1024, KB MB GB TB of 1000. */
int parse_bytes(const char *s, uint64_t *out);
/* Shortest text that reads back to the same double, in the form of Python's repr. Returns length.
 * v must be finite. */
size_t print_double(double v, char out[40]);

#endif
