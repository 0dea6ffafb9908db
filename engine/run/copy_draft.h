/* Drafts without a model: when the newest tokens of a stream occurred before in its own context, what
 * followed then is offered as what may follow now. An index of the newest place of every run of
 * COPY_KEY tokens, filled as the stream grows. Threads: the step thread. Nothing allocates after
 * copy_draft_new. */
#ifndef TANDEM_RUN_COPY_DRAFT_H
#define TANDEM_RUN_COPY_DRAFT_H

#include <stdint.h>

#define COPY_KEY 6

typedef struct copy_draft copy_draft;

copy_draft *copy_draft_new(void);
void copy_draft_free(copy_draft *c);
/* For a new stream. */
void copy_draft_reset(copy_draft *c);
/* Fills at most most drafts behind tokens[n - 1]; returns how many. The same stream's tokens must
 * only grow between calls. */
int32_t copy_draft_find(
    copy_draft *c, const int32_t *tokens, int32_t n, int32_t most, int32_t *drafts);

#endif
