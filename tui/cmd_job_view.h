/* A job as a block of rows at the foot of the terminal: total, rates, a plot of the rate, a bar for
 * each file in work. Drawn anew in place; no colour, so that it looks the same everywhere. */
#ifndef TUI_CMD_JOB_VIEW_H
#define TUI_CMD_JOB_VIEW_H

#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "tui/plot.h"

enum { JOB_VIEW_SAMPLES = 240 };

typedef struct job_view {
    const char *name;
    const theme *look;
    int n_rows, n_columns;           /* of the terminal */
    float samples[JOB_VIEW_SAMPLES]; /* bytes a second, oldest first */
    int n_samples;
    double maximum;    /* of the plot's scale */
    const char *foot;  /* what the keys do, or a question; NULL: none */
    const char *notes; /* more lines under the files; NULL: none */
} job_view;

/* Adds the status to the plot. */
void job_view_sample(job_view *v, const json *status);
/* The rows, each ended by a line break, none wider than n_columns, at most n_rows - 1. Returns how
 * many. */
int job_view_rows(job_view *v, const json *status, buf *out);

#endif
