/* Shared by the two ways to make a rank's pack. */
#ifndef SETUP_PREPARE_INTERNAL_H
#define SETUP_PREPARE_INTERNAL_H

#include <pthread.h>

#include "setup/prepare.h"

enum { LINE_MAX_BYTES = 4096 };

struct prepare_task {
    prepare_rank r;
    node_access *worker; /* NULL: here */
    char program[1024];
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock; /* guards progress */
    prepare_progress progress;
    char line[LINE_MAX_BYTES]; /* of the worker's output */
    size_t n_line;
    bool is_known; /* its first line was right */
};

void prepare_task_fail(prepare_task *t, int rc, const err *e);
/* Takes t; starts run(t). NULL after an error. */
prepare_task *prepare_task_begin(
    prepare_task *t, const prepare_rank *r, void *(*run)(void *ctx), err *e);

#endif
