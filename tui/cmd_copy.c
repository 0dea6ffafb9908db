/* tandem copy: the files of the profile from this machine to the worker. ssh starts the receiver and
 * hands it its secret; the bytes go over both rails. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/secret.h"
#include "engine/base/str.h"
#include "setup/manifest.h"
#include "setup/node_access.h"
#include "setup/node_program.h"
#include "setup/paths.h"
#include "setup/settings.h"
#include "setup/stream.h"
#include "tui/cmd_job.h"
#include "tui/cmd_nodes.h"

enum { N_TRIES = 5, RETRY_MS = 1000 };

typedef struct copying {
    cmd_job_status status;
    bool is_cancelled;
    stream_progress p;
    uint64_t begun_ms, begun_bytes;
    uint64_t last_ms, last_bytes;
    double rate;
    /* the receiver's side of the session, used by one thread at a time */
    node_access *worker;
    char program[PATH_MAX];
    buf input;
    int lines[2];
    atomic_bool stop;
} copying;

static void fill(void *ctx, json_w *w) {
    copying *c = ctx;
    const stream_progress *p = &c->p;
    uint64_t there = p->had_bytes + p->sent_bytes, now = clock_mono_ms();
    double mean = now > c->begun_ms && there > c->begun_bytes
                      ? (double)(there - c->begun_bytes) * 1000.0 / (double)(now - c->begun_ms)
                      : 0;
    if (now - c->last_ms >= 1000) {
        c->rate = (double)(there - c->last_bytes) * 1000.0 / (double)(now - c->last_ms);
        c->last_ms = now;
        c->last_bytes = there;
    }
    json_w_ku64(w, "total_bytes", p->total_bytes);
    json_w_ku64(w, "done_bytes", there);
    json_w_ku64(w, "verified_bytes", p->verified_bytes);
    json_w_ku64(w, "n_files", p->n_files);
    json_w_ku64(w, "n_ok", p->n_ok);
    json_w_ki64(w, "streams", p->n_streams);
    json_w_ki64(w, "connected", p->n_connected);
    json_w_ki64(w, "reconnects", p->n_reconnects);
    json_w_key(w, "rate_now");
    json_w_fixed(w, c->rate, 0);
    json_w_key(w, "rate_mean");
    json_w_fixed(w, mean, 0);
    json_w_key(w, "eta_s");
    if (mean > 0) {
        json_w_fixed(w, (double)(p->total_bytes - there) / mean, 0);
    } else {
        json_w_null(w);
    }
    json_w_kstr(w, "bottleneck", p->bottleneck != NULL ? p->bottleneck : "");
}

static int on_tick(void *ctx, const stream_progress *p) {
    copying *c = ctx;
    uint64_t there = p->had_bytes + p->sent_bytes;
    c->p = *p;
    if (c->begun_ms == 0) {
        c->begun_ms = c->last_ms = clock_mono_ms();
        c->begun_bytes = c->last_bytes = there;
    }
    cmd_job_status_put(&c->status, "running", NULL, false);
    if (atomic_load(cmd_stop_flag())) return ERR_CANCELLED;
    for (job_command k; (k = job_poll(c->status.j)).kind != JOB_NONE;) {
        c->is_cancelled = k.kind == JOB_CANCEL;
        if (k.kind == JOB_CANCEL || k.kind == JOB_PAUSE) return ERR_CANCELLED;
    }
    return OK;
}

/* A session. */

static int take_output(void *ctx, bool is_error, const void *data, size_t n) {
    copying *c = ctx;
    err e = ERR_INIT;
    if (is_error) {
        (void)fwrite(data, 1, n, stderr); /* the job's log */
        return OK;
    }
    return fd_write_full(c->lines[1], data, n, &e);
}

static void *run_receiver(void *ctx) {
    copying *c = ctx;
    const char *const argv[] = {c->program, "receive", NULL};
    node_command command = {.argv = argv,
        .input = c->input.data,
        .n_input = c->input.len,
        .timeout_ms = -1,
        .sink = take_output,
        .sink_ctx = c,
        .stop = &c->stop};
    remote_result result;
    err e = ERR_INIT;
    remote_result_init(&result);
    if (node_run(c->worker, &command, &result, &e) != OK)
        fprintf(stderr, "tandem: the receiver on the worker: %s\n", e.msg);
    remote_result_release(&result);
    close(c->lines[1]); /* the sender sees the end */
    return NULL;
}

static int run_session(
    copying *c, const stream_setup *s, const manifest *m, stream_send_options *o, err *e) {
    pthread_t thread;
    if (pipe2(c->lines, O_CLOEXEC) != 0) return err_errno(e, "pipe");
    atomic_store(&c->stop, false);
    if (pthread_create(&thread, NULL, run_receiver, c) != 0) {
        close(c->lines[0]);
        close(c->lines[1]);
        return err_set(e, ERR_MEMORY, "no thread could be started");
    }
    o->lines_fd = c->lines[0];
    int rc = stream_send(s, m, o, e);
    /* A receiver that is done ends by itself; one that is not is told through its ssh channel. */
    if (rc != OK) atomic_store(&c->stop, true);
    close(c->lines[0]);
    pthread_join(thread, NULL);
    return rc;
}

/* With a secret of its own, which is held no longer than it lasts. */
static int session(copying *c, stream_setup *s, const manifest *m, stream_send_options o, err *e) {
    secret_hold();
    rand_secret(s->secret, sizeof s->secret);
    buf_reset(&c->input);
    int rc = stream_setup_print(s, m, &c->input, e);
    if (rc == OK) rc = run_session(c, s, m, &o, e);
    if (c->input.data != NULL) explicit_bzero(c->input.data, c->input.cap);
    explicit_bzero(s->secret, sizeof s->secret);
    secret_drop();
    return rc;
}

static int connect_worker(copying *c, const settings *s, err *e) {
    remote *r = NULL;
    remote_options o = cmd_worker_options(s, NULL);
    node_access_close(c->worker);
    c->worker = NULL;
    int rc = remote_open(&o, &r, NULL, e);
    if (rc == OK) c->worker = node_access_ssh("worker", r, NULL);
    return rc == OK ? node_program_put(c->worker, settings_get(s, "WORKER_DATA"), c->program, e)
                    : rc;
}

static int add_rail(stream_setup *t, const settings *s, const char *ours, const char *theirs) {
    if (!settings_is_set(s, ours) || !settings_is_set(s, theirs)) return OK;
    str_copy(t->peer[t->n_peer++], STREAM_ADDRESS_MAX, settings_get(s, ours));
    str_copy(t->listen[t->n_listen++], STREAM_ADDRESS_MAX, settings_get(s, theirs));
    return OK;
}

static int set_up(stream_setup *t, const settings *s, err *e) {
    static const char *const needed[] = {"WORKER_SSH", "WORKER_DATA", "HEAD_DATA"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (!settings_is_set(s, needed[i]))
            return err_set(e, ERR_ARG, "%s is not set; `tandem setup` asks for it", needed[i]);
    }
    stream_setup_init(t);
    add_rail(t, s, "HEAD_IP_A", "WORKER_IP_A");
    add_rail(t, s, "HEAD_IP_B", "WORKER_IP_B");
    if (t->n_peer == 0)
        return err_set(
            e, ERR_ARG, "HEAD_IP_A and WORKER_IP_A are not set: the addresses of the rails");
    if (strlen(settings_get(s, "WORKER_DATA")) >= sizeof t->root)
        return err_set(e, ERR_ARG, "WORKER_DATA is too long");
    str_copy(t->root, sizeof t->root, settings_get(s, "WORKER_DATA"));
    return OK;
}

static int copy(copying *c, const settings *s, const manifest *m, err *e) {
    stream_setup t;
    uint64_t best = 0;
    int rc = set_up(&t, s, e);
    if (rc != OK) return rc;
    stream_send_options o = {.root = settings_get(s, "HEAD_DATA"),
        .n_streams = (int)settings_int(s, "SYNC_STREAMS"),
        .tick = on_tick,
        .tick_ctx = c};
    for (int n = 0; n < N_TRIES; n++) {
        rc = connect_worker(c, s, e);
        if (rc == OK) rc = session(c, &t, m, o, e);
        if (rc != ERR_NET && rc != ERR_PEER && rc != ERR_TIMEOUT) break;
        /* Resumes where it was; only tries in a row without any progress count. */
        uint64_t there = c->p.had_bytes + c->p.sent_bytes;
        if (there > best) n = -1;
        best = there > best ? there : best;
        job_event(c->status.j, "again", "%s", e->msg);
        sleep_ms(RETRY_MS);
    }
    explicit_bzero(&t, sizeof t);
    return rc;
}

static int work(const cmd_args *a, job *j) {
    settings *s = settings_new();
    manifest m;
    err e = ERR_INIT;
    copying c = {.status = {.j = j, .name = "copy", .fill = fill}};
    buf config = BUF_INIT, own = BUF_INIT;
    c.status.ctx = &c;
    manifest_init(&m);
    int rc = settings_load(s, &e);
    if (rc == OK) rc = paths_config(&config, &e);
    path_join(&own, buf_cstr(&config), "manifests");
    const char *profile = cmd_value(a, "profile");
    if (profile == NULL) profile = settings_get(s, "PROFILE");
    if (rc == OK && profile[0] == '\0')
        rc = err_set(
            &e, ERR_ARG, "no profile is set: `tandem config set PROFILE NAME`, or --profile");
    if (rc == OK) rc = manifest_find(&m, profile, buf_cstr(&own), &e);
    if (rc == OK) c.status.profile = m.profile;
    if (rc == OK) rc = copy(&c, s, &m, &e);
    int code = cmd_job_end(&c.status, rc, c.is_cancelled, &e);
    node_access_close(c.worker);
    buf_release(&c.input);
    buf_release(&config);
    buf_release(&own);
    manifest_release(&m);
    settings_free(s);
    return code;
}

int cmd_copy(const cmd_args *a) {
    static const cmd_job job_of_copy = {"copy", work};
    return cmd_job_run(a, &job_of_copy);
}
