/* A first reply nobody asked for, before the server says that it is ready: it warms what is cold and
 * shows that the source works. The same prompt is answered with and without drafts; both must end
 * well and be equal. */
#ifndef TANDEM_RUN_CANARY_H
#define TANDEM_RUN_CANARY_H

#include "engine/run/source.h"

/* Uses the source alone, through a run of its own that is closed again. ERR_MISMATCH when the two
 * replies differ; else the error of the reply that failed. */
int run_canary(const run_source *source, const int32_t *prompt, int32_t n_prompt, err *e);

#endif
