/* The times of the newest steps: kept by the step thread without a lock, read from any thread. The
 * struct is plain; zeroed it is empty. */
#ifndef TANDEM_RUN_STEP_TIMES_H
#define TANDEM_RUN_STEP_TIMES_H

#include <stdatomic.h>
#include <stdint.h>

enum { STEP_TIMES = 256, STEP_TIMES_MEAN = 16 };

typedef struct step_times {
    _Atomic uint64_t n; /* since the start */
    _Atomic uint32_t us[STEP_TIMES];
} step_times;

/* The one writer. */
void step_times_add(step_times *t, uint64_t ns);
/* In ms: the mean of the last STEP_TIMES_MEAN and the 95th percentile of all kept; -1 each before the
 * first step. p95 may be NULL. */
void step_times_read(const step_times *t, double *mean, double *p95);

#endif
