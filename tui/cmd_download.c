/* tandem download, tandem model lock. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/hub.h"
#include "setup/manifest.h"
#include "setup/manifest_lock.h"
#include "setup/paths.h"
#include "setup/settings.h"
#include "tui/cmd_job.h"

#define OFFICIAL_HOST "huggingface.co"

/* CONFIG/manifests */
static int own_manifests(buf *out, err *e) {
    buf config = BUF_INIT;
    int rc = paths_config(&config, e);
    if (rc == OK) rc = path_join(out, buf_cstr(&config), "manifests");
    buf_release(&config);
    return rc;
}

static const char *profile_of(const cmd_args *a, const settings *s) {
    const char *given = cmd_value(a, "profile");
    return given != NULL ? given : settings_get(s, "PROFILE");
}

static int load_manifest(const cmd_args *a, const settings *s, manifest *m, err *e) {
    buf own = BUF_INIT;
    const char *profile = profile_of(a, s);
    manifest_init(m);
    int rc = own_manifests(&own, e);
    if (rc == OK && profile[0] == '\0')
        rc = err_set(
            e, ERR_ARG, "no profile is set: `tandem config set PROFILE NAME`, or --profile");
    if (rc == OK) rc = manifest_find(m, profile, buf_cstr(&own), e);
    if (rc == ERR_NOT_FOUND && lock_rules_find(profile) != NULL)
        rc = err_set(e, ERR_NOT_FOUND,
            "the commits of %s are not pinned yet: `tandem model lock` asks "
            "the hub once and writes them down",
            profile);
    buf_release(&own);
    return rc;
}

/* The token goes to the official hub; to another host only when the endpoint is this machine. */
static const char *token_host(const char *endpoint, char host[256]) {
    hub_url_host(endpoint, host, 256);
    return hub_url_is_loopback(endpoint) ? host : OFFICIAL_HOST;
}

typedef struct downloading {
    cmd_job_status status;
    hub *h;
    bool is_cancelled;
} downloading;

static void fill(void *ctx, json_w *w) {
    downloading *d = ctx;
    if (d->h != NULL) hub_progress_json(d->h, w);
}

static int on_tick(void *ctx, hub *h) {
    downloading *d = ctx;
    cmd_job_status_put(&d->status, "running", NULL, false);
    if (atomic_load(cmd_stop_flag())) return ERR_CANCELLED;
    for (;;) {
        job_command c = job_poll(d->status.j);
        switch (c.kind) {
        case JOB_NONE:
            return OK;
        case JOB_CANCEL:
            d->is_cancelled = true;
            return ERR_CANCELLED;
        case JOB_PAUSE:
            return ERR_CANCELLED;
        case JOB_RATE:
            hub_set_rate(h, c.value);
            break;
        case JOB_CONNECTIONS:
            hub_set_connections(h, c.value < 1000 ? (int)c.value : 1000);
            break;
        }
    }
}

static int download(const settings *s, const manifest *m, downloading *d, err *e) {
    const char *search[3] = {NULL};
    char host[256];
    hub_secret *token = NULL;
    buf cache = BUF_INIT;
    const char *home = getenv("HF_HOME"), *user = getenv("HOME");
    if (home != NULL && home[0] == '/') {
        buf_printf(&cache, "%s/hub", home);
    } else if (user != NULL && user[0] == '/') {
        buf_printf(&cache, "%s/.cache/huggingface/hub", user);
    }
    if (cache.len > 0 && dir_exists(buf_cstr(&cache))) search[0] = buf_cstr(&cache);
    hub_options o = {.endpoint = settings_get(s, "HF_ENDPOINT"),
        .root = settings_get(s, "HEAD_DATA"),
        .connections = (int)settings_int(s, "DL_CONNECTIONS"),
        .unit_bytes = (uint64_t)settings_int(s, "DL_CHUNK_MIB") << 20,
        .rate_limit = (uint64_t)settings_int(s, "DL_RATE_LIMIT") * 1000000,
        .search = search};
    if (o.root[0] == '\0')
        return err_set(e, ERR_ARG, "HEAD_DATA is not set: the folder that gets the model");
    int rc = hub_secret_find(settings_get(s, "HF_TOKEN_FILE"), &token, e);
    o.token = token;
    o.token_host = token_host(o.endpoint, host);
    if (rc == OK) {
        d->h = hub_new(m, &o, e);
        rc = d->h != NULL ? hub_run(d->h, on_tick, d, e) : e->code;
    }
    hub_secret_free(token);
    buf_release(&cache);
    return rc;
}

static int work(const cmd_args *a, job *j) {
    settings *s = settings_new();
    manifest m;
    err e = ERR_INIT;
    downloading d = {.status = {.j = j, .name = "download", .fill = fill}};
    d.status.ctx = &d;
    manifest_init(&m);
    int rc = settings_load(s, &e);
    if (rc == OK) rc = load_manifest(a, s, &m, &e);
    if (rc == OK) d.status.profile = m.profile;
    if (rc == OK) rc = download(s, &m, &d, &e);
    int code = cmd_job_end(&d.status, rc, d.is_cancelled, &e);
    hub_free(d.h);
    manifest_release(&m);
    settings_free(s);
    return code;
}

/* Under which licences the files come, before any is loaded. */
static void show_licences(const cmd_args *a) {
    settings *s = settings_new();
    manifest m;
    err e = ERR_INIT;
    manifest_init(&m);
    if (settings_load(s, &e) == OK && load_manifest(a, s, &m, &e) == OK) {
        manifest_terms terms[MANIFEST_TERMS];
        size_t n = manifest_terms_of(&m, terms);
        for (size_t i = 0; i < n; i++) {
            cmd_note("licence of the %s (%s): %s", terms[i].part, terms[i].repo,
                terms[i].licence != NULL ? terms[i].licence
                                         : "not recorded; read the repository's page first");
        }
    }
    manifest_release(&m);
    settings_free(s);
}

int cmd_download(const cmd_args *a) {
    static const cmd_job job_of_download = {"download", work};
    err e = ERR_INIT;
    int64_t n = 0;
    if (cmd_int_option(a, "rate", (cmd_range){0, 1000000, -1}, &n, &e) != OK)
        return cmd_fail_usage(&e);
    if (n >= 0 && !cmd_has(a, "job")) {
        job_command c = {JOB_RATE, (uint64_t)n * 1000000};
        return job_send("download", c, &e) == OK ? EXIT_OK : cmd_fail(&e);
    }
    if (cmd_int_option(a, "connections", (cmd_range){1, 32, -1}, &n, &e) != OK)
        return cmd_fail_usage(&e);
    if (n >= 0 && !cmd_has(a, "job")) {
        job_command c = {JOB_CONNECTIONS, (uint64_t)n};
        return job_send("download", c, &e) == OK ? EXIT_OK : cmd_fail(&e);
    }
    bool is_start = !cmd_has(a, "job") && !cmd_has(a, "pause") && !cmd_has(a, "cancel") &&
                    !cmd_has(a, "attach");
    if (is_start) show_licences(a);
    return cmd_job_run(a, &job_of_download);
}

/* lock */

/* OWNER/NAME or OWNER/NAME@REVISION */
static void split_source(const char *text, lock_source *s, char name[256], char revision[128]) {
    const char *at = text != NULL ? strchr(text, '@') : NULL;
    if (text == NULL) return;
    snprintf(name, 256, "%.*s", (int)(at != NULL ? at - text : (long)strlen(text)), text);
    if (at != NULL) str_copy(revision, 128, at + 1);
    s->repo = name;
    s->revision = at != NULL ? revision : NULL;
}

static void show_lock(
    const cmd_args *a, const manifest *m, const lock_report *r, const char *path) {
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "profile", m->profile);
        json_w_kstr(&w, "path", path);
        json_w_ku64(&w, "files", m->n_files);
        json_w_ku64(&w, "bytes", manifest_bytes(m));
        json_w_kstr(&w, "weights_commit", r->weights_commit);
        json_w_kstr(&w, "weights_date", r->weights_date);
        json_w_kstr(&w, "weights_licence", r->weights_licence);
        json_w_kstr(&w, "engram_commit", r->engram_commit);
        json_w_kstr(&w, "engram_date", r->engram_date);
        json_w_kstr(&w, "engram_licence", r->engram_licence);
        json_w_kstr(&w, "warnings", r->warnings);
        cmd_put_json(&w);
        buf_release(&out);
        return;
    }
    double bytes = (double)manifest_bytes(m);
    cmd_printf("%s: %zu files, %.1f GB (%.1f GiB)\n", m->profile, m->n_files, bytes / 1e9,
        bytes / 1073741824.0);
    cmd_printf("weights  commit %s  %s  licence %s\n", r->weights_commit, r->weights_date,
        r->weights_licence[0] != '\0' ? r->weights_licence : "not said");
    cmd_printf("engram   commit %s  %s  licence %s\n", r->engram_commit, r->engram_date,
        r->engram_licence[0] != '\0' ? r->engram_licence : "not said");
    if (r->warnings[0] != '\0') cmd_printf("warning: %s\n", r->warnings);
    if (path != NULL) cmd_printf("written to %s; from now on these commits are used\n", path);
}

static bool confirmed(const cmd_args *a) {
    char answer[16];
    if (cmd_has(a, "yes")) return true;
    cmd_printf("Fix these commits? [y/N] ");
    cmd_flush();
    return fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y');
}

static int write_lock(const manifest *m, buf *path, err *e) {
    buf dir = BUF_INIT, text = BUF_INIT, name = BUF_INIT;
    int rc = own_manifests(&dir, e);
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    buf_printf(&name, "%s.manifest", m->profile);
    path_join(path, buf_cstr(&dir), buf_cstr(&name));
    if (rc == OK) rc = manifest_print(m, &text, e);
    if (rc == OK) rc = file_write_atomic(buf_cstr(path), text.data, text.len, 0600, e);
    buf_release(&dir);
    buf_release(&text);
    buf_release(&name);
    return rc;
}

int cmd_model_lock(const cmd_args *a) {
    settings *s = settings_new();
    manifest m;
    lock_report report;
    err e = ERR_INIT;
    char names[2][256], revisions[2][128];
    buf path = BUF_INIT;
    hub_secret *token = NULL;
    lock_options o = {0};
    int code = EXIT_OK;
    manifest_init(&m);
    split_source(cmd_value(a, "weights"), &o.weights, names[0], revisions[0]);
    split_source(cmd_value(a, "engram"), &o.engram, names[1], revisions[1]);
    int rc = settings_load(s, &e);
    if (rc == OK) {
        o.profile = profile_of(a, s);
        if (o.profile[0] == '\0') o.profile = "1017-libertai-2.9bpw";
        o.endpoint = settings_get(s, "HF_ENDPOINT");
        if (lock_rules_find(o.profile) == NULL)
            rc = err_set(&e, ERR_ARG,
                "%s is pinned by the program or not known; there is nothing to "
                "lock",
                o.profile);
    }
    if (rc == OK) rc = hub_secret_find(settings_get(s, "HF_TOKEN_FILE"), &token, &e);
    o.token = token;
    if (rc == OK) rc = manifest_lock(&o, lock_rules_find(o.profile), &m, &report, &e);
    if (rc == OK && !cmd_has(a, "json")) show_lock(a, &m, &report, NULL);
    if (rc == OK && !confirmed(a)) {
        code = EXIT_ENDED_BY_USER;
    } else if (rc == OK) {
        rc = write_lock(&m, &path, &e);
        if (rc == OK && cmd_has(a, "json")) show_lock(a, &m, &report, buf_cstr(&path));
        if (rc == OK && !cmd_has(a, "json")) cmd_printf("written to %s\n", buf_cstr(&path));
    }
    if (rc != OK) code = cmd_fail(&e);
    hub_secret_free(token);
    manifest_release(&m);
    buf_release(&path);
    settings_free(s);
    return cmd_finish(code);
}
