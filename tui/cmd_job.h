/* What the commands of detached jobs share: download and copy. Main thread. */
#ifndef TUI_CMD_JOB_H
#define TUI_CMD_JOB_H

#include "engine/base/json.h"
#include "setup/job.h"
#include "tui/cmd_internal.h"

typedef struct cmd_job {
    const char *name; /* "download", "copy" */
    /* Does the work in this process and returns an exit code. */
    int (*work)(const cmd_args *a, job *j);
} cmd_job;

/* --job, --pause, --cancel, --attach, --background, or start and attach. */
int cmd_job_run(const cmd_args *a, const cmd_job *c);

/* For work(): writes status.json about twice a second. fill adds members to the open object. */
typedef struct cmd_job_status {
    job *j;
    const char *name, *profile;
    uint64_t next_ms;
    void (*fill)(void *ctx, json_w *w);
    void *ctx;
} cmd_job_status;
void cmd_job_status_put(cmd_job_status *s, const char *state, const char *message, bool is_last);
/* The last status of a job that ended with rc: done, paused, full, cancelled or failed; exit code. */
int cmd_job_end(cmd_job_status *s, int rc, bool is_cancelled, const err *e);

#endif
