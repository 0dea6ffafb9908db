/*
 * Text width: grapheme clusters, the columns they take on a terminal, cutting to a width, and the
 * cleaning of text that comes from outside (model output, logs, file names). Pure functions over
 * UTF-8; any thread. Bytes that are not UTF-8 count as one replacement character each.
 */
#ifndef TUI_WIDTH_H
#define TUI_WIDTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

typedef struct width_cluster {
    size_t len;      /* bytes */
    int columns;     /* 0, 1 or 2; more only for clusters of several spacing marks */
    uint32_t base;   /* first code point, 0xfffd for a byte that is not UTF-8 */
    bool is_special; /* terminals are known to disagree about it: emoji sequences, flags, VS16 */
} width_cluster;

/* Process-wide rule, set once before the first screen: columns of ambiguous width, 1 (default)
 * or 2. */
void width_set_ambiguous(int columns);
/* The cluster at the start of s. n > 0. The result has len >= 1 and len <= n. */
width_cluster width_next(const char *s, size_t n);
/* Columns of a text without line feeds. */
int width_text(const char *s, size_t n);
/* The longest prefix of whole clusters that fits max_columns; its columns go to columns (may be
 * NULL). */
size_t width_fit(const char *s, size_t n, int max_columns, int *columns);
/* Bytes of the cluster that ends at byte offset at (0 at the start): a step to the left. */
size_t width_previous(const char *s, size_t at);

/*
 * Cleans text from outside. Escape and control sequences (7-bit and 8-bit, also cut over several
 * calls) are removed whole, CR is dropped before LF, other C0 and C1 controls, DEL and
 * bidirectional override characters become visible text such as ^H or <U+202E>; LF and TAB pass. A
 * sequence that does not end on its line is given up at the line feed, so that it cannot swallow
 * what follows.
 */
typedef struct width_cleaner {
    int state;
    char pending[8]; /* an incomplete UTF-8 sequence */
    size_t pending_len;
    bool has_cr;
} width_cleaner;

void width_cleaner_reset(width_cleaner *c);
/* Appends the cleaned form of s to out; OK, or ERR_LIMIT from the buffer. */
int width_clean(width_cleaner *c, const char *s, size_t n, buf *out);
/* The end of the text: an incomplete UTF-8 sequence becomes U+FFFD. */
int width_clean_end(width_cleaner *c, buf *out);
/* True for combining marks: alone they are drawn on a dotted circle. */
bool width_is_mark(uint32_t code_point);
/* True if a code point must never be sent to a terminal as it is. */
bool width_is_unsafe(uint32_t code_point);

#endif
