/* Work that goes on when the program that began it ends: a download, a copy. One folder a job under
 * STATE/jobs/NAME: `lock` (held while it runs, holds the pid), `status.json` (replaced about twice a
 * second), `journal` (one line an event: what began, paused, ended and why) and `commands` (a pipe).
 * Any tandem can read the status, and pause or cancel the job. */
#ifndef SETUP_JOB_H
#define SETUP_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

/* The running side: one thread. */
typedef struct job job;
typedef enum job_command_kind {
    JOB_NONE,
    JOB_PAUSE,
    JOB_CANCEL,
    JOB_RATE,       /* value: bytes a second, 0 none */
    JOB_CONNECTIONS /* value */
} job_command_kind;
typedef struct job_command {
    job_command_kind kind;
    uint64_t value;
} job_command;

/* Takes the lock. ERR_BUSY names the process that has it. */
int job_open(const char *name, job **out, err *e);
void job_close(job *j);
/* The next command, or JOB_NONE. */
job_command job_poll(job *j);
/* status.json: text must be one JSON object. */
int job_status_write(job *j, const char *text, size_t len, err *e);
/* One line of the journal, flushed: time, event, key=value pairs; control characters are escaped. */
int job_event(job *j, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Any other side. */
bool job_is_running(const char *name);
/* ERR_NOT_FOUND when it never ran. */
int job_status_read(const char *name, buf *out, err *e);
/* ERR_NOT_FOUND when it does not run. */
int job_send(const char *name, job_command c, err *e);
/* Starts argv detached (own session, no terminal, output appended to STATE/logs/NAME.log) and waits
 * until it holds the lock or has ended. */
int job_start(const char *name, char *const *argv, err *e);

/* A line of the commands pipe. JOB_NONE when it says nothing known. */
job_command job_command_parse(const char *line, size_t len);

#endif
