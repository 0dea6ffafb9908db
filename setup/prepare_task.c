/* One rank's pack in a thread, made on this machine. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "engine/model/rank_pack.h"
#include "setup/prepare_internal.h"

/* What building needs beside the page cache, which is given back on the way. */
#define BUILD_BYTES ((uint64_t)1 << 30)
#define LARGE_PACK ((uint64_t)8 << 30)

void prepare_task_fail(prepare_task *t, int rc, const err *e) {
    pthread_mutex_lock(&t->lock);
    if (t->progress.state != PREPARE_FAILED) {
        t->progress.state = PREPARE_FAILED;
        t->progress.error = *e;
        t->progress.error.code = rc;
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- here ---- */

static int on_progress(void *ctx, const pack_make_progress *p) {
    prepare_task *t = ctx;
    pthread_mutex_lock(&t->lock);
    prepare_progress *q = &t->progress;
    q->had_bytes = p->had_bytes;
    q->total_bytes = p->data_bytes;
    q->n_mended = p->n_mended;
    q->is_kept = p->is_kept;
    if (p->phase == PACK_WRITING) {
        q->state = PREPARE_WRITING;
        q->done_bytes = p->done_bytes;
    } else {
        q->state = PREPARE_VERIFYING;
        q->done_bytes = p->data_bytes;
        q->read_bytes = p->phase == PACK_DONE && p->is_kept ? 0 : p->done_bytes;
    }
    pthread_mutex_unlock(&t->lock);
    return atomic_load(&t->stop) ? ERR_CANCELLED : OK;
}

static int take_result(prepare_task *t, const char *path, err *e) {
    pack *p = NULL;
    int rc = pack_open(path, &p, e);
    if (rc != OK) return rc;
    pthread_mutex_lock(&t->lock);
    prepare_progress *q = &t->progress;
    q->state = PREPARE_DONE;
    q->done_bytes = q->total_bytes = pack_get_info(p)->data_bytes;
    sha256_hex(pack_get_info(p)->id.source, q->source);
    sha256_hex(pack_get_info(p)->root, q->root);
    str_copy(q->path, sizeof q->path, path);
    pthread_mutex_unlock(&t->lock);
    pack_close(p);
    return OK;
}

/* Small models need no gate; a large one must not push a serving machine over the edge. */
static int check_memory(const rank_pack_options *o, err *e) {
    uint64_t bytes = 0;
    int rc = rank_pack_size(o, &bytes, e);
    if (rc != OK || bytes < LARGE_PACK) return rc;
    return err_add(e, pack_check_memory(BUILD_BYTES, BUILD_BYTES, false, e), "preparing");
}

static void *make_here(void *ctx) {
    prepare_task *t = ctx;
    const prepare_rank *r = &t->r;
    rank_pack_options o = {.model_dir = r->model_dir,
        .out_dir = r->out_dir,
        .rank = r->rank,
        .world = r->world,
        .layout = r->layout,
        .without_drafts = r->without_drafts,
        .checks = r->checks,
        .build = version_build_id(),
        .block_bytes = r->block_bytes,
        .n_threads = r->n_threads,
        .progress = on_progress,
        .ctx = t};
    pack_make_progress p;
    buf path = BUF_INIT;
    err e = ERR_INIT;
    int rc = check_memory(&o, &e);
    if (rc == OK) rc = rank_pack_make(&o, &path, &p, &e);
    if (rc == OK) rc = take_result(t, buf_cstr(&path), &e);
    if (rc != OK) prepare_task_fail(t, rc, &e);
    buf_release(&path);
    return NULL;
}

/* ---- the task ---- */

prepare_task *prepare_task_begin(
    prepare_task *t, const prepare_rank *r, void *(*run)(void *ctx), err *e) {
    t->r = *r;
    pthread_mutex_init(&t->lock, NULL);
    if (pthread_create(&t->thread, NULL, run, t) == 0) return t;
    pthread_mutex_destroy(&t->lock);
    mem_free(t);
    err_set(e, ERR_MEMORY, "no thread could be started");
    return NULL;
}

prepare_task *prepare_task_start(const prepare_rank *r, err *e) {
    return prepare_task_begin(mem_alloc(sizeof(prepare_task)), r, make_here, e);
}

void prepare_task_get(prepare_task *t, prepare_progress *out) {
    pthread_mutex_lock(&t->lock);
    *out = t->progress;
    pthread_mutex_unlock(&t->lock);
}

void prepare_task_stop(prepare_task *t) {
    atomic_store(&t->stop, true);
}

void prepare_task_free(prepare_task *t) {
    if (t == NULL) return;
    pthread_join(t->thread, NULL);
    pthread_mutex_destroy(&t->lock);
    mem_free(t);
}
