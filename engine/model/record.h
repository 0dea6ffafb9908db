/* Recording of step graphs before a model is used, so that no request waits for it. */
#ifndef TANDEM_ENGINE_MODEL_RECORD_H
#define TANDEM_ENGINE_MODEL_RECORD_H

#include "engine/model/model.h"

/* Records the passes that decoding and verifying of one stream need, for contexts up to 32,768
 * positions; longer ones and other mixes of rows are recorded when they come a second time, at most
 * MODEL_MAX_GRAPHS in all. Every rank calls it after model_open, before the first step: it runs
 * passes over rows of slot 0 that mean nothing. Nothing happens on back ends that cannot record.
 * Takes about half a second at the released size. */
int model_record_steps(model *m, err *e);

#endif
