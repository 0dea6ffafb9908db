/* What a reply may be, token by token: the thinking budget, room for an answer behind long
 * thinking, the end of a loop in the thinking, a forced call, a constrained value, and the grammar
 * of tool calls that arms itself when the model opens a call (api.md 8, chat.md 8 to 10).
 * Threads: made by any thread; used by the step thread, which owns it once the submit succeeds.
 * Nothing allocates after reply_guide_new. */
#ifndef TANDEM_RUN_REPLY_GUIDE_H
#define TANDEM_RUN_REPLY_GUIDE_H

#include "engine/run/grammar.h"
#include "engine/run/run.h"
#include "engine/text/tokenizer.h"

typedef struct reply_guide_options {
    const tokenizer *tokenizer; /* borrowed for the call and for as long as the guide lives */
    const run *run;             /* where the guide will be used; for the call */
    bool starts_in_reasoning;
    grammar *value;          /* the whole answer; NULL: free. Held by the guide */
    grammar *calls;          /* of tool calls; NULL: none offered. Held by the guide */
    bool is_forced;          /* calls begins before its opener and must be used */
    bool ignores_eos;        /* a grammar ends the reply only where it allows nothing else */
    int64_t thinking_budget; /* tokens; -1: none */
    int32_t max_tokens;      /* of the reply */
    bool keeps_room;         /* thinking ends before it takes all of max_tokens */
    bool guards_loops;       /* thinking ends when it goes round in circles */
} reply_guide_options;

/* Fills out. ERR_MEMORY. The caller releases it only if the submit fails. */
int reply_guide_new(const reply_guide_options *o, run_guide *out, err *e);

#endif
