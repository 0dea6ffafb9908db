/* Stop strings over streamed text (chat.md 9): finds the first place where any of the strings
 * ends, across the borders of pieces, holding back only what could still become a match. Content
 * only: the caller feeds no reasoning and no calls. One thread at a time; owns copies. */
#ifndef ENGINE_TEXT_STOP_H
#define ENGINE_TEXT_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"

typedef struct stop_matcher stop_matcher;

/* n strings, copied; empty ones are ignored. Never NULL. Freed with stop_matcher_free. */
stop_matcher *stop_matcher_new(const char *const *strings, size_t n);
void stop_matcher_free(stop_matcher *m);
/* Forgets what was held back; ready for another reply. */
void stop_matcher_reset(stop_matcher *m);
/* Appends to out the text that is certainly no part of a match. After a match everything later is
 * swallowed. *is_hit: a stop string was found now or before. */
int stop_matcher_feed(stop_matcher *m, const char *text, size_t len, buf *out, bool *is_hit);
/* End of the text: appends what was held back (nothing after a match). */
int stop_matcher_end(stop_matcher *m, buf *out);
/* Index of the string that matched in the array given to new, -1 while none did. */
int stop_matcher_which(const stop_matcher *m);

#endif
