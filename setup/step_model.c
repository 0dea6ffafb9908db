/* Model, Download, Copy: which files, where, and getting them there. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/hub_store.h"
#include "setup/manifest_lock.h"
#include "setup/paths.h"
#include "setup/step_internal.h"

#define PREPARED_SHARE 0.5055 /* prepared files against the weights: 106.5 GB of 210.6 GB */

/* Makes a folder and the marker that says whose it is; a folder with foreign files is refused. */
static const char MAKE_FOLDER[] =
    "umask 022; if [ -d \"$1\" ] && [ ! -f \"$1/.tandem-owner\" ]; then "
    "for x in \"$1\"/* \"$1\"/.[!.]*; do case ${x##*/} in models|engram|prepared|incoming|cache|"
    ".tandem|lost+found) ;; *) if [ -e \"$x\" ]; then echo \"$x\" >&2; exit 3; fi ;; esac; done; fi; "
    "mkdir -p -- \"$1\" && echo \"$2\" > \"$1/.tandem-owner\"";

int flow_manifest(flow *f, manifest *m, err *e) {
    buf own = BUF_INIT;
    manifest_init(m);
    int rc = paths_config(&own, e);
    if (rc == OK) rc = buf_puts(&own, "/manifests");
    if (rc == OK) rc = manifest_find(m, flow_answer(f, "PROFILE"), buf_cstr(&own), e);
    buf_release(&own);
    return rc;
}

bool flow_file_is_there(flow *f, const manifest *m, const manifest_file *file) {
    store s;
    buf rel = BUF_INIT;
    bool is = false;
    const char *root = flow_answer(f, "HEAD_DATA");
    if (!dir_exists(root) || store_open(&s, root, NULL) != OK) return false;
    if (manifest_place(m, file, &rel) == OK) is = store_ok_holds(&s, buf_cstr(&rel), file);
    store_close(&s);
    buf_release(&rel);
    return is;
}

/* Bytes still missing on the head. */
static uint64_t missing_on_head(flow *f, const manifest *m, size_t *n_there) {
    uint64_t bytes = 0;
    *n_there = 0;
    for (size_t i = 0; i < m->n_files; i++) {
        if (flow_file_is_there(f, m, &m->files[i])) {
            (*n_there)++;
        } else {
            bytes += m->files[i].size;
        }
    }
    return bytes;
}

/* The same on the worker, by the records that its receiver wrote beside each verified file. */
static uint64_t missing_on_worker(flow *f, const manifest *m, size_t *n_there, size_t *n_wanted) {
    uint64_t bytes = 0;
    buf names = BUF_INIT, rel = BUF_INIT;
    *n_there = *n_wanted = 0;
    const char *root = flow_answer(f, "WORKER_DATA");
    bool has = f->plain[1] != NULL && node_tool(f->plain[1], &names, NULL, "find", root, "-name",
                                          "*.ok", "-type", "f", NULL) == OK;
    for (size_t i = 0; i < m->n_files; i++) {
        const manifest_file *x = &m->files[i];
        char line[1400];
        if (x->is_head_only) continue;
        (*n_wanted)++;
        bool is_there = false;
        if (has && manifest_place(m, x, &rel) == OK) {
            snprintf(line, sizeof line, "%s/%s.ok\n", root, buf_cstr(&rel));
            is_there = strstr(buf_cstr(&names), line) != NULL;
        }
        buf_reset(&rel);
        *n_there += is_there;
        bytes += is_there ? 0 : x->size;
    }
    buf_release(&names);
    buf_release(&rel);
    return bytes;
}

static uint64_t weight_bytes(const manifest *m) {
    uint64_t n = 0;
    for (size_t i = 0; i < m->n_files; i++)
        n += m->files[i].role == MANIFEST_WEIGHTS ? m->files[i].size : 0;
    return n;
}

/* --- Model --- */

static void plan_folder(flow *f, int i, setup_plan *p) {
    char command[700], what[200];
    const char *root = flow_answer(f, i == 0 ? "HEAD_DATA" : "WORKER_DATA");
    buf out = BUF_INIT;
    char marker[700];
    snprintf(marker, sizeof marker, "%.680s/.tandem-owner", root);
    const char *const test[] = {"/usr/bin/test", "-f", marker, NULL};
    remote_result r;
    node_command c = {.argv = test};
    remote_result_init(&r);
    bool is_there =
        f->plain[i] != NULL && node_run(f->plain[i], &c, &r, NULL) == OK && r.exit_code == 0;
    remote_result_release(&r);
    buf_release(&out);
    if (is_there) return;
    snprintf(what, sizeof what, "make the folder of the model and mark it as ours");
    snprintf(command, sizeof command, "mkdir -p %s; echo ... > %s/.tandem-owner", root, root);
    const plan_action a = {.step = (char *)"model",
        .node = i == 0 ? (char *)"head" : (char *)"worker",
        .what = what,
        .command = command,
        .undo = (char *)"the folder is removed when nothing but the marker is in it"};
    plan_add(p, &a);
}

static void plan_lock(flow *f, setup_plan *p) {
    char command[300];
    snprintf(
        command, sizeof command, "tandem model lock --profile %s --yes", flow_answer(f, "PROFILE"));
    const plan_action a = {.step = (char *)"model",
        .node = (char *)"head",
        .what = (char *)"ask the hub once for commits, sizes and digests, and fix them",
        .command = command,
        .undo = (char *)"the manifest in the configuration folder is removed"};
    plan_add(p, &a);
}

void step_model_foresee(flow *f, setup_plan *p) {
    manifest m;
    bool is_known = flow_manifest(f, &m, NULL) == OK;
    manifest_release(&m);
    if (!is_known && lock_rules_find(flow_answer(f, "PROFILE")) != NULL) plan_lock(f, p);
    for (int i = 0; i < 2; i++) {
        if (flow_answer(f, i == 0 ? "HEAD_DATA" : "WORKER_DATA")[0] != '\0') plan_folder(f, i, p);
    }
    flow_plan_settings(f, STEP_MODEL, p);
}

static void add_need(step_view *v, const char *label, uint64_t missing, uint64_t prepared) {
    step_row *r = view_row(v, label, CHECK_STATUS_PASS);
    double need = (double)(missing + prepared);
    view_fact(r, "needs %.1f GB (%.1f GiB): files %.1f, prepared %.1f", need / 1e9,
        need / 1073741824.0, (double)missing / 1e9, (double)prepared / 1e9);
}

static int check_disks(flow *f, step_view *v, const manifest *m, err *e) {
    size_t there = 0, wanted = 0;
    uint64_t prepared = (uint64_t)((double)weight_bytes(m) * PREPARED_SHARE);
    uint64_t head = missing_on_head(f, m, &there);
    uint64_t worker = missing_on_worker(f, m, &there, &wanted);
    check_options o = {.settings = f->s,
        .has_need = true,
        .need_bytes = {head + prepared, worker + prepared},
        .need_text = "files and prepared files"};
    add_need(v, "the head", head, prepared);
    add_need(v, "the worker", worker, prepared);
    return flow_checks(f, v, "D1 D2 D3 D5 D6", &o, e);
}

/* Under which terms each part comes, before anything is loaded. m NULL: not known yet. */
static void show_terms(step_view *v, const manifest *m) {
    manifest_terms terms[MANIFEST_TERMS];
    size_t n = manifest_terms_of(m, terms);
    if (m == NULL)
        view_fact(view_row(v, "licence", CHECK_STATUS_PASS),
            "model and tables: shown when their commits are fixed, before they are loaded");
    for (size_t i = 0; i < n; i++) {
        view_fact(view_row(v, "licence", CHECK_STATUS_PASS), "%s, %s: %s", terms[i].part,
            terms[i].repo,
            terms[i].licence != NULL ? terms[i].licence : "not recorded; read its page first");
    }
}

int step_model_inspect(flow *f, step_view *v, err *e) {
    manifest m;
    const char *profile = flow_answer(f, "PROFILE");
    err why = ERR_INIT;
    int rc = flow_worker_home(f, e);
    if (rc != OK) return rc;
    rc = flow_manifest(f, &m, &why);
    bool can_lock = rc != OK && lock_rules_find(profile) != NULL;
    step_row *r = view_row(v, "profile", CHECK_STATUS_PASS);
    if (rc == OK) {
        view_fact(r, "%s: %zu files, %.1f GB (%.1f GiB)", profile, m.n_files,
            (double)manifest_bytes(&m) / 1e9, (double)manifest_bytes(&m) / 1073741824.0);
    } else if (can_lock) {
        view_fact(r, "%s: commits are not fixed yet", profile);
        plan_lock(f, &v->plan);
        rc = OK;
    } else {
        *e = why;
    }
    show_terms(v, rc == OK && !can_lock ? &m : NULL);
    for (int i = 0; i < 2 && rc == OK; i++)
        plan_folder(f, i, &v->plan);
    if (rc == OK) flow_plan_settings(f, STEP_MODEL, &v->plan);
    if (rc == OK && !can_lock) rc = check_disks(f, v, &m, e);
    if (rc == OK)
        view_done(v, "%s, head %s, worker %s", profile, flow_answer(f, "HEAD_DATA"),
            flow_answer(f, "WORKER_DATA"));
    manifest_release(&m);
    return rc;
}

static int make_folder(flow *f, int i, err *e) {
    const char *root = flow_answer(f, i == 0 ? "HEAD_DATA" : "WORKER_DATA");
    const char *const argv[] = {"/bin/sh", "-c", MAKE_FOLDER, "sh", root, "tandem", NULL};
    char path[700];
    str_copy(path, sizeof path, root);
    node_command c = {.argv = argv};
    remote_result r;
    undo_entry x = {.kind = UNDO_FOLDER,
        .is_worker = i == 1,
        .step = (char *)"model",
        .what = (char *)"folder for the model",
        .path = path,
        .text = (char *)"",
        .before = node_exists(f->plain[i], root) ? (char *)"there" : NULL};
    remote_result_init(&r);
    flow_say(f, "%s: mkdir -p %s", i == 0 ? "head" : "worker", root);
    int rc = flow_undo_add(f, &x, e);
    if (rc == OK) rc = node_run(f->plain[i], &c, &r, e);
    if (rc == OK && r.exit_code == 3)
        rc = err_set(e, ERR_EXISTS,
            "%s holds files of something else (%.*s); choose an empty folder or a new one", root,
            (int)strcspn(buf_cstr(&r.err), "\n"), buf_cstr(&r.err));
    if (rc == OK && r.exit_code != 0)
        rc = err_set(e, ERR_IO, "%s cannot be made on %s: %.200s", root,
            i == 0 ? "the head" : "the worker", buf_cstr(&r.err));
    remote_result_release(&r);
    return rc;
}

int step_model_apply(flow *f, const step_view *v, err *e) {
    manifest m;
    int rc = OK;
    (void)v;
    if (flow_manifest(f, &m, NULL) != OK) {
        char profile[128];
        str_copy(profile, sizeof profile, flow_answer(f, "PROFILE"));
        const char *const words[] = {"model", "lock", "--profile", profile, "--yes", NULL};
        rc = flow_self(f, NULL, words, e);
        if (rc > 0) rc = OK;
    }
    manifest_release(&m);
    if (rc == OK) rc = flow_apply_settings(f, STEP_MODEL, e);
    if (rc == OK) rc = flow_connect(f, e);
    for (int i = 0; i < 2 && rc == OK; i++)
        rc = make_folder(f, i, e);
    return rc;
}

int step_model_prove(flow *f, step_view *v, err *e) {
    return step_model_inspect(f, v, e);
}

/* --- Download --- */

static int inspect_job(step_view *v, const char *step, const char *what, bool is_worker) {
    char command[100];
    snprintf(command, sizeof command, "tandem %s", step);
    const plan_action a = {.step = (char *)step,
        .node = is_worker ? (char *)"worker" : (char *)"head",
        .what = (char *)what,
        .command = command,
        .undo = (char *)"tandem undo apply --data takes the files away"};
    plan_add(&v->plan, &a);
    return OK;
}

int step_download_inspect(flow *f, step_view *v, err *e) {
    manifest m;
    size_t there = 0;
    int rc = flow_manifest(f, &m, e);
    if (rc == OK) {
        uint64_t missing = missing_on_head(f, &m, &there);
        step_row *r = view_row(v, "files on the head", CHECK_STATUS_PASS);
        view_fact(
            r, "%zu of %zu verified, %.1f GB missing", there, m.n_files, (double)missing / 1e9);
        if (there == m.n_files) {
            view_done(v, "all %zu files are verified", m.n_files);
        } else {
            char what[200];
            snprintf(what, sizeof what, "load %zu files, %.1f GB (%.1f GiB), into %s",
                m.n_files - there, (double)missing / 1e9, (double)missing / 1073741824.0,
                flow_answer(f, "HEAD_DATA"));
            rc = inspect_job(v, "download", what, false);
        }
    }
    manifest_release(&m);
    return rc;
}

static int note_data(flow *f, bool is_worker, err *e) {
    char path[700];
    str_copy(path, sizeof path, flow_answer(f, is_worker ? "WORKER_DATA" : "HEAD_DATA"));
    undo_entry x = {.kind = UNDO_DATA,
        .is_worker = is_worker,
        .step = is_worker ? (char *)"copy" : (char *)"download",
        .what = (char *)"files of the model",
        .path = path,
        .text = (char *)""};
    return flow_undo_add(f, &x, e);
}

int step_download_apply(flow *f, const step_view *v, err *e) {
    (void)v;
    int rc = note_data(f, false, e);
    return rc == OK ? flow_job(f, "download", "Download", e) : rc;
}

int step_download_prove(flow *f, step_view *v, err *e) {
    return step_download_inspect(f, v, e);
}

/* --- Copy --- */

int step_copy_inspect(flow *f, step_view *v, err *e) {
    manifest m;
    size_t there = 0, wanted = 0;
    int rc = flow_connect(f, e);
    if (rc != OK) return rc;
    rc = flow_manifest(f, &m, e);
    if (rc == OK) {
        uint64_t missing = missing_on_worker(f, &m, &there, &wanted);
        step_row *r = view_row(v, "files on the worker", CHECK_STATUS_PASS);
        view_fact(r, "%zu of %zu verified, %.1f GB missing", there, wanted, (double)missing / 1e9);
        if (there == wanted) {
            view_done(v, "all %zu files are verified on the worker", wanted);
        } else {
            char what[200];
            snprintf(what, sizeof what, "copy %zu files, %.1f GB (%.1f GiB), to %s", wanted - there,
                (double)missing / 1e9, (double)missing / 1073741824.0,
                flow_answer(f, "WORKER_DATA"));
            rc = inspect_job(v, "copy", what, true);
        }
    }
    manifest_release(&m);
    return rc;
}

int step_copy_apply(flow *f, const step_view *v, err *e) {
    (void)v;
    int rc = note_data(f, true, e);
    return rc == OK ? flow_job(f, "copy", "Copy to the worker", e) : rc;
}

int step_copy_prove(flow *f, step_view *v, err *e) {
    return step_copy_inspect(f, v, e);
}
