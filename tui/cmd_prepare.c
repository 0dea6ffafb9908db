/* tandem prepare: the prompt self-test and the rank packs of both nodes. */
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/weights/pack.h"
#include "setup/node_program.h"
#include "setup/prepare.h"
#include "tui/cmd_job.h"
#include "tui/cmd_nodes.h"
#include "tui/launch_process.h"

enum { LOOK_MS = 100, RATE_MS = 1000 };

typedef struct preparing {
    cmd_job_status status;
    const cmd_args *args;
    bool is_cancelled;
    settings *settings;
    prepare_place here, there;
    prepare_rank rank[PREPARE_MAX_RANKS];
    prepare_task *task[PREPARE_MAX_RANKS];
    prepare_progress progress[PREPARE_MAX_RANKS];
    int n;
    node_access *worker;
    char program[PATH_MAX];
    self_test_result prompts;
    uint64_t last_ms, last_bytes, begun_ms, begun_bytes;
    double rate;
} preparing;

/* ---- what is shown ---- */

static uint64_t sum(const preparing *p, bool is_total) {
    uint64_t n = 0;
    for (int i = 0; i < p->n; i++) {
        n += is_total ? p->progress[i].total_bytes : p->progress[i].done_bytes;
    }
    return n;
}

static void take_rate(preparing *p, uint64_t done) {
    uint64_t now = clock_mono_ms();
    if (p->begun_ms == 0 && done > 0) {
        p->begun_ms = p->last_ms = now;
        p->begun_bytes = p->last_bytes = done;
    }
    if (p->begun_ms == 0 || now - p->last_ms < RATE_MS) return;
    p->rate = (double)(done - p->last_bytes) * 1000.0 / (double)(now - p->last_ms);
    p->last_ms = now;
    p->last_bytes = done;
}

static void put_node(const preparing *p, int i, json_w *w) {
    const prepare_progress *q = &p->progress[i];
    json_w_object(w);
    json_w_kstr(w, "node", p->rank[i].node);
    json_w_ki64(w, "rank", p->rank[i].rank);
    json_w_kstr(w, "state", prepare_state_name(q->state));
    json_w_ku64(w, "done_bytes", q->done_bytes);
    json_w_ku64(w, "total_bytes", q->total_bytes);
    json_w_ku64(w, "had_bytes", q->had_bytes);
    json_w_ku64(w, "read_bytes", q->read_bytes);
    json_w_ku64(w, "mended_blocks", q->n_mended);
    json_w_kstr(w, "path", q->path);
    json_w_close(w);
}

/* The phase of the rank that is behind the others. */
static const char *phase_of(const preparing *p) {
    prepare_state least = PREPARE_DONE;
    for (int i = 0; i < p->n; i++) {
        if (p->progress[i].state < least) least = p->progress[i].state;
    }
    return prepare_state_name(least);
}

static void fill(void *ctx, json_w *w) {
    preparing *p = ctx;
    uint64_t done = sum(p, false), total = sum(p, true), now = clock_mono_ms();
    double mean = p->begun_ms != 0 && now > p->begun_ms
                      ? (double)(done - p->begun_bytes) * 1000.0 / (double)(now - p->begun_ms)
                      : 0;
    int n_ok = 0;
    for (int i = 0; i < p->n; i++) {
        n_ok += p->progress[i].state == PREPARE_DONE;
    }
    json_w_ku64(w, "total_bytes", total);
    json_w_ku64(w, "done_bytes", done);
    json_w_ki64(w, "n_files", p->n);
    json_w_ki64(w, "n_ok", n_ok);
    json_w_kstr(w, "phase", phase_of(p));
    json_w_key(w, "rate_now");
    json_w_fixed(w, p->rate, 0);
    json_w_key(w, "rate_mean");
    json_w_fixed(w, mean, 0);
    json_w_key(w, "eta_s");
    if (mean > 0 && total >= done) {
        json_w_fixed(w, (double)(total - done) / mean, 0);
    } else {
        json_w_null(w);
    }
    json_w_ki64(w, "prompts", p->prompts.n_prompts);
    json_w_kstr(w, "renderer", p->prompts.digest);
    json_w_key(w, "nodes");
    json_w_array(w);
    for (int i = 0; i < p->n; i++) {
        put_node(p, i, w);
    }
    json_w_close(w);
}

/* ---- what is to be made ---- */

static int find_layout(const cmd_args *a, exl3_layout *out, err *e) {
    const char *given = cmd_value(a, "layout");
    buf daemon = BUF_INIT;
    int rc = OK;
    if (given != NULL) {
        bool is_gpu = str_eq(given, "gpu"), is_cpu = str_eq(given, "cpu");
        *out = is_gpu ? EXL3_LAYOUT_GPU : EXL3_LAYOUT_CPU;
        if (!is_gpu && !is_cpu && exl3_layout_find(given, out) != OK)
            rc = err_set(e, ERR_ARG, "--layout is '%s'; it must be cpu or gpu", given);
    } else {
        rc = launch_find_daemon(&daemon, e);
        if (rc == OK) rc = prepare_layout(buf_cstr(&daemon), out, e);
    }
    buf_release(&daemon);
    return rc;
}

static int connect_worker(preparing *p, err *e) {
    remote *r = NULL;
    remote_options o = cmd_worker_options(p->settings, NULL);
    int rc = prepare_place_find(&p->there, p->settings, cmd_value(p->args, "profile"), true, e);
    if (rc == OK) rc = remote_open(&o, &r, NULL, e);
    if (rc != OK) return rc;
    p->worker = node_access_ssh("worker", r, NULL);
    return node_program_put(p->worker, settings_get(p->settings, "WORKER_DATA"), p->program, e);
}

/* --model DIR: a folder of this machine, all ranks of it. */
static int find_folder(preparing *p, err *e) {
    const char *model = cmd_value(p->args, "model"), *out = cmd_value(p->args, "out");
    char real[PATH_MAX];
    if (model == NULL) {
        int rc = prepare_place_find(&p->here, p->settings, cmd_value(p->args, "profile"), false, e);
        if (rc == OK && out != NULL) {
            buf_reset(&p->here.out_dir);
            rc = buf_puts(&p->here.out_dir, out);
        }
        return rc;
    }
    if (realpath(model, real) == NULL) return err_errno(e, "the model folder %s", model);
    int rc = buf_puts(&p->here.model_dir, real);
    if (rc == OK && out != NULL) return buf_puts(&p->here.out_dir, out);
    if (!settings_is_set(p->settings, "HEAD_DATA"))
        return err_set(e, ERR_ARG, "--out is needed: HEAD_DATA is not set");
    return buf_printf(
        &p->here.out_dir, "%s/prepared/%s", settings_get(p->settings, "HEAD_DATA"), basename(real));
}

static int plan_ranks(preparing *p, err *e) {
    const cmd_args *a = p->args;
    bool has_worker = settings_is_set(p->settings, "WORKER_SSH") && cmd_value(a, "model") == NULL;
    exl3_layout layout = EXL3_LAYOUT_CPU;
    int64_t world = 1, only = -1;
    int rc = cmd_int_option(
        a, "ranks", (cmd_range){1, PREPARE_MAX_RANKS, has_worker ? 2 : 1}, &world, e);
    if (rc == OK) rc = cmd_int_option(a, "rank", (cmd_range){0, world - 1, -1}, &only, e);
    if (rc == OK) rc = find_layout(a, &layout, e);
    if (rc == OK) rc = find_folder(p, e);
    bool is_away = has_worker && world == 2 && only != 0;
    if (rc == OK && is_away) rc = connect_worker(p, e);
    if (rc != OK) return rc;
    for (int r = 0; r < world; r++) {
        bool is_there = is_away && r == 1;
        const prepare_place *place = is_there ? &p->there : &p->here;
        if (only >= 0 && only != r) continue;
        p->rank[p->n++] = (prepare_rank){.node = is_there ? "worker" : "head",
            .model_dir = place->model_dir.data,
            .out_dir = place->out_dir.data,
            .rank = r,
            .world = (int)world,
            .layout = layout,
            .without_drafts = cmd_has(a, "no-drafts"),
            .checks = cmd_has(a, "check")};
    }
    return OK;
}

/* ---- making ---- */

static bool must_stop(preparing *p) {
    if (atomic_load(cmd_stop_flag())) return true;
    for (job_command k; (k = job_poll(p->status.j)).kind != JOB_NONE;) {
        p->is_cancelled |= k.kind == JOB_CANCEL;
        if (k.kind == JOB_CANCEL || k.kind == JOB_PAUSE) return true;
    }
    return false;
}

/* One look at all ranks. True when none is in work any more. */
static bool look(preparing *p, int *n_failed) {
    bool is_over = true;
    *n_failed = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->task[i] == NULL) {
            is_over = false; /* about as large as the first one */
            p->progress[i].total_bytes = p->progress[0].total_bytes;
            continue;
        }
        prepare_task_get(p->task[i], &p->progress[i]);
        is_over = is_over && p->progress[i].state >= PREPARE_DONE;
        *n_failed += p->progress[i].state == PREPARE_FAILED;
    }
    take_rate(p, sum(p, false));
    return is_over;
}

/* Ranks of this machine are made one after the other, the worker's beside them. */
static int start_next(preparing *p, err *e) {
    bool is_busy = false;
    for (int i = 0; i < p->n; i++) {
        bool is_there = p->worker != NULL && str_eq(p->rank[i].node, "worker");
        if (p->task[i] == NULL && (is_there || !is_busy)) {
            p->task[i] = is_there ? prepare_task_start_worker(&p->rank[i], p->worker, p->program, e)
                                  : prepare_task_start(&p->rank[i], e);
            if (p->task[i] == NULL) return e->code;
        }
        is_busy |= !is_there && p->progress[i].state < PREPARE_DONE;
    }
    return OK;
}

static void stop_all(preparing *p) {
    for (int i = 0; i < p->n; i++) {
        if (p->task[i] != NULL) prepare_task_stop(p->task[i]);
    }
}

/* The error of the rank that failed first; a rank that was only stopped after it says nothing. */
static int first_error(const preparing *p, err *e) {
    int rc = OK;
    for (int i = 0; i < p->n; i++) {
        const prepare_progress *q = &p->progress[i];
        if (q->state != PREPARE_FAILED) continue;
        if (rc == OK || (rc == ERR_CANCELLED && q->error.code != ERR_CANCELLED)) {
            *e = q->error;
            rc = err_add(e, q->error.code, "%s, rank %d", p->rank[i].node, p->rank[i].rank);
        }
    }
    return rc;
}

static int make_all(preparing *p, err *e) {
    int n_failed = 0, rc = OK;
    bool is_stopped = false;
    for (bool is_over = false; !is_over;) {
        if (!is_stopped) rc = start_next(p, e);
        is_over = look(p, &n_failed);
        cmd_job_status_put(&p->status, "running", NULL, false);
        if (!is_stopped && (rc != OK || n_failed > 0 || must_stop(p))) {
            is_stopped = true;
            stop_all(p);
        }
        for (int i = 0; is_stopped && i < p->n; i++) {
            if (p->task[i] == NULL) p->n = i; /* never begun */
        }
        if (!is_over) sleep_ms(LOOK_MS);
    }
    if (rc == OK) rc = first_error(p, e);
    return rc;
}

/* Both nodes must have cut the same weights. */
static int compare_sources(const preparing *p, err *e) {
    for (int i = 1; i < p->n; i++) {
        if (str_eq(p->progress[i].source, p->progress[0].source)) continue;
        return err_set(e, ERR_MISMATCH,
            "%s and %s hold different model files; run `tandem copy`, then `tandem prepare` again",
            p->rank[0].node, p->rank[i].node);
    }
    return OK;
}

static int write_record(const preparing *p, err *e) {
    buf path = BUF_INIT, out = BUF_INIT, dir = BUF_INIT;
    json_w w;
    json_w_begin(&w, &out);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    json_w_ku64(&w, "time_ms", clock_wall_ms());
    json_w_kstr(&w, "profile", p->status.profile);
    json_w_kstr(&w, "model_dir", p->rank[0].model_dir);
    json_w_kstr(&w, "renderer", p->prompts.digest);
    json_w_kstr(&w, "tokenizer", p->prompts.tokenizer);
    json_w_key(&w, "packs");
    json_w_array(&w);
    for (int i = 0; i < p->n; i++) {
        const prepare_progress *q = &p->progress[i];
        json_w_object(&w);
        json_w_kstr(&w, "node", p->rank[i].node);
        json_w_ki64(&w, "rank", p->rank[i].rank);
        json_w_ki64(&w, "ranks", p->rank[i].world);
        json_w_kstr(&w, "layout", exl3_layout_name(p->rank[i].layout));
        json_w_kstr(&w, "path", q->path);
        json_w_ku64(&w, "bytes", q->total_bytes);
        json_w_kstr(&w, "source", q->source);
        json_w_kstr(&w, "root", q->root);
        json_w_close(&w);
    }
    json_w_close(&w);
    json_w_close(&w);
    int rc = json_w_end(&w);
    if (rc == OK) rc = prepare_record_path(&path, e);
    path_dir(&dir, buf_cstr(&path));
    if (rc == OK) rc = dir_make_all(buf_cstr(&dir), 0700, e);
    if (rc == OK) rc = file_write_atomic(buf_cstr(&path), out.data, out.len, 0600, e);
    buf_release(&path);
    buf_release(&dir);
    buf_release(&out);
    return err_add(e, rc, "recording what was prepared");
}

static int work(const cmd_args *a, job *j) {
    preparing *p = mem_alloc(sizeof *p);
    err e = ERR_INIT;
    p->status = (cmd_job_status){.j = j, .name = "prepare", .fill = fill, .ctx = p};
    p->args = a;
    p->settings = settings_new();
    int rc = settings_load(p->settings, &e);
    const char *profile = cmd_value(a, "profile");
    p->status.profile = profile != NULL ? profile : settings_get(p->settings, "PROFILE");
    if (rc == OK) rc = plan_ranks(p, &e);
    if (rc == OK) rc = prepare_self_test(p->rank[0].model_dir, &p->prompts, &e);
    if (rc == OK) rc = make_all(p, &e);
    if (rc == OK) rc = compare_sources(p, &e);
    if (rc == OK) rc = write_record(p, &e);
    int code = cmd_job_end(&p->status, rc, p->is_cancelled, &e);
    for (int i = 0; i < p->n; i++) {
        prepare_task_free(p->task[i]);
    }
    node_access_close(p->worker);
    prepare_place_release(&p->here);
    prepare_place_release(&p->there);
    settings_free(p->settings);
    mem_free(p);
    return code;
}

/* ---- the self-test alone ---- */

static void print_self_test(const cmd_args *a, const self_test_result *r, const err *e) {
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "verdict", e->code == OK ? "PASS" : "FAIL");
        json_w_ki64(&w, "cases", r->n_cases);
        json_w_ki64(&w, "prompts", r->n_prompts);
        json_w_ki64(&w, "token_lists", r->n_tokens);
        json_w_kstr(&w, "tokenizer", r->tokenizer);
        json_w_kstr(&w, "renderer", r->digest);
        json_w_kstr(&w, "message", e->code == OK ? NULL : e->msg);
        cmd_put_json(&w);
        buf_release(&out);
        return;
    }
    if (e->code == OK)
        cmd_printf("PASS  %d prompts and %d token lists%s%s are as DeepSeek's encoder makes them; "
                   "renderer %.16s\n",
            r->n_prompts, r->n_tokens, r->tokenizer[0] != '\0' ? " of " : "", r->tokenizer,
            r->digest);
}

static int self_test(const cmd_args *a) {
    preparing *p = mem_alloc(sizeof *p);
    self_test_result r = {0};
    err e = ERR_INIT;
    p->args = a;
    p->settings = settings_new();
    int rc = settings_load(p->settings, &e);
    const char *model = cmd_value(a, "model");
    if (rc == OK && model == NULL) {
        rc = prepare_place_find(&p->here, p->settings, cmd_value(a, "profile"), false, &e);
        model = buf_cstr(&p->here.model_dir);
    }
    if (rc == OK) rc = prepare_self_test(model, &r, &e);
    e.code = rc;
    print_self_test(a, &r, &e);
    int code = rc == OK ? EXIT_OK : cmd_has(a, "json") ? EXIT_REFUSED : cmd_fail(&e);
    prepare_place_release(&p->here);
    settings_free(p->settings);
    mem_free(p);
    return cmd_finish(code);
}

/* Before a job begins that would only fail with them. */
static int check_options(const cmd_args *a, err *e) {
    int64_t n = 0;
    exl3_layout layout = EXL3_LAYOUT_CPU;
    int rc = cmd_int_option(a, "ranks", (cmd_range){1, PREPARE_MAX_RANKS, 1}, &n, e);
    if (rc == OK) rc = cmd_int_option(a, "rank", (cmd_range){0, PREPARE_MAX_RANKS - 1, 0}, &n, e);
    if (rc == OK && cmd_value(a, "layout") != NULL) rc = find_layout(a, &layout, e);
    return rc;
}

int cmd_prepare(const cmd_args *a) {
    static const cmd_job job_of_prepare = {"prepare", work};
    err e = ERR_INIT;
    if (check_options(a, &e) != OK) return cmd_fail_usage(&e);
    if (cmd_has(a, "self-test")) return self_test(a);
    return cmd_job_run(a, &job_of_prepare);
}
