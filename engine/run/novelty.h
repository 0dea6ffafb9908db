/* Notices a reply that goes round in circles: the share of word runs (6 tokens) that were not seen
 * before, over the last 512 tokens. Below one in ten the reply has looped. A pure function of the
 * tokens, so two sides that see the same tokens decide alike. One thread at a time; about 17 KiB. */
#ifndef TANDEM_RUN_NOVELTY_H
#define TANDEM_RUN_NOVELTY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct novelty novelty;

novelty *novelty_new(void);
void novelty_free(novelty *v);
/* Forgets everything. */
void novelty_reset(novelty *v);
/* Takes one token; true once the tokens up to it are a loop. */
bool novelty_take(novelty *v, int32_t token);

#endif
