/* A guide that ends reasoning: once a reply has spent its budget of reasoning tokens, the closing
 * token is forced. Used by the step thread; owned by the run once submitted. */
#ifndef TANDEM_RUN_THINK_GUIDE_H
#define TANDEM_RUN_THINK_GUIDE_H

#include "engine/run/run.h"

/* For a reply that begins inside reasoning; budget 0 closes it at once. The caller releases it only
 * if the submit fails. */
run_guide think_guide_new(int32_t close_id, int64_t budget);

#endif
