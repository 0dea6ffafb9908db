/* One rank's pack made by tandem-node on the worker, started through ssh and watched by its lines. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/prepare_internal.h"

enum { MAX_WORDS = 24 };

static void take_line(prepare_task *t) {
    t->line[t->n_line] = '\0';
    t->n_line = 0;
    if (str_eq(t->line, "tandem-prepare 1")) t->is_known = true;
    pthread_mutex_lock(&t->lock);
    (void)prepare_line_parse(t->line, &t->progress);
    pthread_mutex_unlock(&t->lock);
}

static int take_output(void *ctx, bool is_error, const void *data, size_t n) {
    prepare_task *t = ctx;
    const char *text = data;
    if (is_error) {
        (void)fwrite(data, 1, n, stderr); /* the job's log */
        return OK;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n') {
            take_line(t);
        } else if (t->n_line + 1 < sizeof t->line) {
            t->line[t->n_line++] = text[i];
        }
    }
    return OK;
}

static void *make_there(void *ctx) {
    prepare_task *t = ctx;
    const prepare_rank *r = &t->r;
    char rank[16], world[16], block[32];
    snprintf(rank, sizeof rank, "%d", r->rank);
    snprintf(world, sizeof world, "%d", r->world);
    snprintf(block, sizeof block, "%llu", (unsigned long long)r->block_bytes);
    const char *argv[MAX_WORDS] = {t->program, "prepare", "--model", r->model_dir, "--out",
        r->out_dir, "--rank", rank, "--ranks", world, "--layout", exl3_layout_name(r->layout)};
    int n = 12;
    if (r->block_bytes > 0) {
        argv[n++] = "--block";
        argv[n++] = block;
    }
    if (r->without_drafts) argv[n++] = "--no-drafts";
    if (r->checks) argv[n++] = "--check";
    node_command c = {
        .argv = argv, .timeout_ms = -1, .sink = take_output, .sink_ctx = t, .stop = &t->stop};
    remote_result result;
    err e = ERR_INIT;
    remote_result_init(&result);
    int rc = node_run(t->worker, &c, &result, &e);
    prepare_progress p;
    prepare_task_get(t, &p);
    if (rc == OK && p.state != PREPARE_DONE && p.state != PREPARE_FAILED)
        rc = err_set(&e, ERR_PEER, "tandem-node on the worker ended early (exit code %d)%s",
            result.exit_code, t->is_known ? "" : " before its first line");
    if (rc != OK) prepare_task_fail(t, atomic_load(&t->stop) ? ERR_CANCELLED : rc, &e);
    remote_result_release(&result);
    return NULL;
}

prepare_task *prepare_task_start_worker(
    const prepare_rank *r, node_access *worker, const char *program, err *e) {
    prepare_task *t = mem_alloc(sizeof *t);
    t->worker = worker;
    str_copy(t->program, sizeof t->program, program);
    return prepare_task_begin(t, r, make_there, e);
}
