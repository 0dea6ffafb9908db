/* Rank 0's side of several ranks: meeting, heartbeats, and what happens when one is lost. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/process.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "engine/daemon_internal.h"
#include "engine/dist/pulse.h"

enum { START_LINE_MAX = 128, START_WAIT_MS = 10000, JOIN_LOOK_MS = 20, EXCHANGE_WAIT_MS = 60000 };
#define DIGEST_WHOLE_BYTES ((uint64_t)64 << 20)
#define DIGEST_PART_BYTES ((size_t)1 << 20)

struct ranks {
    int world;
    int64_t timeout_ms;
    meet_fds fds;
    pulse *pulse;
    exchange *exchange;
    pthread_mutex_t lock; /* guards what follows */
    control *control;
    run *run;
    bool is_lost, is_loaded;
    err lost;
};

/* ---- what a start is given ---- */

static int read_line(char *line, size_t cap, err *e) {
    uint64_t deadline = clock_mono_ms() + START_WAIT_MS;
    for (size_t n = 0; n + 1 < cap;) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        uint64_t now = clock_mono_ms();
        if (now >= deadline || poll(&p, 1, (int)(deadline - now)) == 0) break;
        ssize_t got = read(STDIN_FILENO, line + n, 1);
        if (got == 1 && line[n] != '\n') {
            line[++n] = '\0';
            continue;
        }
        line[n] = '\0';
        return OK;
    }
    return err_set(e, ERR_AUTH, "the start's secret did not come on standard input");
}

int ranks_read_start(meet_options *m, err *e) {
    char line[START_LINE_MAX] = "";
    char id[17] = "";
    int rc = read_line(line, sizeof line, e);
    if (rc != OK) return rc;
    bool is_good = strlen(line) == 64 + 1 + 16 && line[64] == ' ';
    if (is_good) {
        uint64_t value = 0;
        str_copy(id, sizeof id, line + 65);
        line[64] = '\0';
        log_hide(line);
        for (int i = 0; i < 16 && is_good; i++) {
            const char *digits = "0123456789abcdef";
            const char *at = strchr(digits, id[i]);
            is_good = at != NULL && id[i] != '\0';
            value = value << 4 | (uint64_t)(is_good ? at - digits : 0);
        }
        m->identity.start_id = value;
        is_good = is_good && sha256_parse(line, m->secret) == OK;
    }
    memset(line, 0, sizeof line);
    if (is_good) return OK;
    return err_set(e, ERR_AUTH,
        "standard input must give the start's secret (64 hexadecimal digits), a space and the "
        "start id (16)");
}

typedef struct digest_walk {
    const char *dir;
    sha256 *sum;
} digest_walk;

/* Small files whole; of large ones the size and both ends, where headers and last tensors are. */
static int add_file(digest_walk *w, const char *path, uint64_t size, err *e) {
    size_t part = size <= DIGEST_WHOLE_BYTES ? (size_t)size : DIGEST_PART_BYTES;
    uint8_t *data = mem_try_alloc(part + 1);
    if (data == NULL) return err_set(e, ERR_MEMORY, "no memory to read %s", path);
    FILE *f = fopen(path, "rbe");
    int rc = f != NULL ? OK : err_errno(e, "opening %s", path);
    for (int end = 0; end < (size > part ? 2 : 1) && rc == OK; end++) {
        rc = fd_read_at(fileno(f), data, part, end == 0 ? 0 : size - part, e);
        if (rc == OK) sha256_update(w->sum, data, part);
    }
    if (f != NULL) fclose(f);
    mem_free(data);
    return rc;
}

static int add_entry(void *ctx, const char *name, err *e) {
    digest_walk *w = ctx;
    buf path = BUF_INIT;
    uint64_t size = 0;
    if (!str_ends(name, ".json") && !str_ends(name, ".safetensors")) return OK;
    path_join(&path, w->dir, name);
    int rc = file_size(buf_cstr(&path), &size, e);
    sha256_update(w->sum, name, strlen(name) + 1);
    sha256_update(w->sum, &size, sizeof size);
    if (rc == OK) rc = add_file(w, buf_cstr(&path), size, e);
    buf_release(&path);
    return rc;
}

int ranks_model_digest(const char *dir, uint64_t *out, err *e) {
    digest_walk w = {dir, sha256_new()};
    uint8_t sum[SHA256_BYTES];
    int rc = dir_each(dir, add_entry, &w, e);
    sha256_finish(w.sum, sum);
    sha256_free(w.sum);
    memcpy(out, sum, sizeof *out);
    return err_add(e, rc, "reading the model's files");
}

/* ---- a lost rank ---- */

static void on_lost(void *ctx, int rank, const err *why) {
    ranks *r = ctx;
    pthread_mutex_lock(&r->lock);
    bool is_first = !r->is_lost, is_loading = r->run == NULL;
    if (is_first) {
        r->is_lost = true;
        r->lost = *why;
    }
    if (r->run != NULL) run_fail(r->run, &r->lost);
    if (r->control != NULL) {
        control_abort(r->control, &r->lost);
    } else if (r->exchange != NULL) {
        exchange_abort(r->exchange, &r->lost);
    }
    pthread_mutex_unlock(&r->lock);
    LOG(LOG_ERROR, "ranks", "a rank is lost", "peer=%d message=\"%s\"", rank, why->msg);
    if (is_loading) daemon_fail_fast(why);
}

static void on_bye(void *ctx, int rank) {
    err why = ERR_INIT;
    err_set(&why, ERR_PEER, "rank %d ended", rank);
    on_lost(ctx, rank, &why);
}

bool ranks_have_failed(ranks *r, err *why) {
    if (r == NULL) return false;
    pthread_mutex_lock(&r->lock);
    bool is_lost = r->is_lost;
    if (is_lost) *why = r->lost;
    pthread_mutex_unlock(&r->lock);
    return is_lost;
}

bool ranks_want_stop(ranks *r) {
    pulse_report_data report;
    bool wants = false;
    for (int i = 1; r != NULL && i < r->world; i++) {
        wants |= pulse_peer(r->pulse, i, &report) && report.phase == PULSE_LEAVING;
    }
    return wants;
}

/* ---- opening ---- */

static void say_phase(void *ctx, pulse_report_data *out) {
    ranks *r = ctx;
    process_sampler own;
    process_sample p;
    process_sampler_init(&own);
    process_sampler_take(&own, &p);
    pthread_mutex_lock(&r->lock);
    out->phase = r->is_loaded ? PULSE_READY : PULSE_LOADING;
    pthread_mutex_unlock(&r->lock);
    out->pid = (int32_t)getpid();
    out->step_ms = out->step_ms_p95 = out->exchange_ms = out->cpu_percent = -1.0;
    out->process_bytes = p.process_bytes;
    out->machine_used_bytes = p.machine_used_bytes;
    out->machine_total_bytes = p.machine_total_bytes;
}

static int meet(ranks *r, const daemon_options *o, err *e) {
    meet_options m = {.rank = 0,
        .world = r->world,
        .host = o->meet_address,
        .port = (int)o->meet_port,
        .listen_fd = (int)o->meet_fd,
        .n_channels = MEET_MAX_CHANNELS,
        .timeout_ms = (int)(o->meet_s * 1000),
        .stop_fd = daemon_stop_fd()};
    int rc = ranks_read_start(&m, e);
    if (rc == OK) rc = ranks_model_digest(buf_cstr(&o->model_dir), &m.identity.model, e);
    str_copy(m.identity.build, sizeof m.identity.build, version_build_id());
    if (rc == OK) rc = meet_all(&m, &r->fds, e);
    memset(m.secret, 0, sizeof m.secret);
    return rc;
}

static int start_parts(ranks *r, err *e) {
    pulse_options p = {.rank = 0,
        .world = r->world,
        .fds = r->fds.fd[MEET_PULSE],
        .fill = say_phase,
        .on_lost = on_lost,
        .on_bye = on_bye,
        .ctx = r};
    exchange_tcp_options x = {.rank = 0, .world = r->world, .timeout_ms = EXCHANGE_WAIT_MS};
    exchange *made = NULL;
    int rc = exchange_tcp_adopt(&x, r->fds.fd[MEET_EXCHANGE], &made, e);
    for (int i = 0; i < MEET_MAX_WORLD; i++) {
        r->fds.fd[MEET_EXCHANGE][i] = -1;
    }
    r->exchange = made;
    if (rc != OK) return rc;
    rc = pulse_open(&p, &r->pulse, e);
    for (int i = 0; i < MEET_MAX_WORLD; i++) {
        r->fds.fd[MEET_PULSE][i] = -1;
    }
    return rc;
}

int ranks_open(const daemon_options *o, const control_settings *s, ranks **out, err *e) {
    ranks *r = mem_alloc(sizeof *r);
    r->world = (int)o->n_ranks;
    r->timeout_ms = o->meet_s * 1000;
    meet_fds_init(&r->fds);
    pthread_mutex_init(&r->lock, NULL);
    LOG(LOG_INFO, "ranks", "waiting for the other ranks", "ranks=%d address=%s port=%lld", r->world,
        o->meet_address, (long long)o->meet_port);
    int rc = meet(r, o, e);
    if (rc == OK) rc = control_send_settings(&r->fds.fd[MEET_PLANS][1], r->world - 1, s, e);
    if (rc == OK) rc = start_parts(r, e);
    if (rc != OK) {
        ranks_close(r, NULL);
        return rc;
    }
    LOG(LOG_INFO, "ranks", "all ranks are there", "ranks=%d", r->world);
    *out = r;
    return OK;
}

exchange *ranks_exchange(const ranks *r) {
    return r->exchange;
}

/* Waits until rank i says that its model stands. */
static int await_loaded(ranks *r, int i, uint64_t layout, err *e) {
    pulse_report_data report = {0};
    uint64_t deadline = clock_mono_ms() + (uint64_t)r->timeout_ms;
    struct pollfd stop = {.fd = daemon_stop_fd(), .events = POLLIN};
    while (!pulse_peer(r->pulse, i, &report) || report.phase < PULSE_READY) {
        if (ranks_have_failed(r, e)) return e->code;
        if (clock_mono_ms() >= deadline) {
            return err_set(e, ERR_TIMEOUT, "rank %d has not loaded its model in %lld s", i,
                (long long)r->timeout_ms / 1000);
        }
        if (poll(&stop, 1, JOIN_LOOK_MS) > 0) {
            return err_set(e, ERR_CANCELLED, "stopped while rank %d was loading", i);
        }
    }
    if (report.layout == layout) return OK;
    return err_set(e, ERR_MISMATCH,
        "rank %d lays out its cache differently (%016llx, rank 0 %016llx); start all ranks from "
        "the same bundle",
        i, (unsigned long long)report.layout, (unsigned long long)layout);
}

int ranks_join(ranks *r, model *m, const run_source *own, run_source *out, err *e) {
    model_info info;
    control *c = NULL;
    int rc = OK;
    model_get_info(m, &info);
    for (int i = 1; i < r->world && rc == OK; i++) {
        rc = await_loaded(r, i, info.layout_hash, e);
    }
    control_options o = {.source = own,
        .exchange = r->exchange,
        .fds = &r->fds.fd[MEET_PLANS][1],
        .world = r->world};
    if (rc == OK) rc = control_open(&o, &c, out, e);
    if (rc != OK) return rc;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < MEET_MAX_WORLD; i++) {
        r->fds.fd[MEET_PLANS][i] = -1;
    }
    r->control = c;
    r->is_loaded = true;
    pthread_mutex_unlock(&r->lock);
    return OK;
}

int ranks_watch(ranks *r, run *served, err *e) {
    int rc = OK;
    if (r == NULL) return OK;
    pthread_mutex_lock(&r->lock);
    r->run = served;
    if (r->is_lost) {
        *e = r->lost;
        rc = e->code;
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int ranks_describe(void *ctx, api_rank *out, int cap) {
    static const char *const states[] = {[PULSE_MEETING] = "loading",
        [PULSE_LOADING] = "loading",
        [PULSE_READY] = "up",
        [PULSE_LEAVING] = "leaving"};
    ranks *r = ctx;
    pulse_report_data p;
    err ignored = ERR_INIT;
    bool is_lost = ranks_have_failed(r, &ignored);
    int count = r->world < cap ? r->world : cap;
    for (int i = 0; i < count; i++) {
        out[i] = (api_rank){i, "up", -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0};
        if (i == 0) {
            out[i].exchange_ms = control_exchange_ms(r->control);
            continue;
        }
        bool is_known = pulse_peer(r->pulse, i, &p) && p.phase >= 0 && p.phase <= PULSE_LEAVING;
        out[i].state = is_lost ? "lost" : is_known ? states[p.phase] : "loading";
        if (!is_known) continue;
        out[i].step_ms = p.step_ms;
        out[i].step_ms_p95 = p.step_ms_p95;
        out[i].exchange_ms = p.exchange_ms;
        out[i].process_bytes = p.process_bytes;
        out[i].machine_used_bytes = p.machine_used_bytes;
        out[i].machine_total_bytes = p.machine_total_bytes;
        out[i].cpu_percent = p.cpu_percent;
    }
    return count;
}

void ranks_close(ranks *r, const err *why) {
    if (r == NULL) return;
    if (why != NULL) {
        pulse_fail(r->pulse, why);
    } else {
        pulse_bye(r->pulse);
    }
    pulse_close(r->pulse); /* its callbacks use what is closed next */
    control_close(r->control);
    exchange_close(r->exchange);
    meet_fds_close(&r->fds);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}
