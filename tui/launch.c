#include "tui/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/engine_args.h"
#include "setup/pair.h"
#include "setup/paths.h"
#include "setup/settings.h"
#include "tui/launch_process.h"

enum { PROBE_FIRST_MS = 20, PROBE_MAX_MS = 250, PROBE_LIMIT_MS = 5000, LOG_READ_MAX = 1 << 20 };

struct launch {
    client *client;
    client_call *probe;
    char *daemon_path, *log_path, *lock_path;
    char *wanted_dir; /* of the model that was asked for, NULL: none by name */
    char **args;      /* of the daemon, after --socket PATH; n_args of them */
    int n_args;
    const char **words; /* of launch_words; the texts are borrowed from above */
    int lock_fd;        /* -1: not ours */
    launch_process process;
    uint64_t log_from; /* where the log of this start begins */
    uint64_t started_ms, next_probe_ms;
    int probe_ms, deadline_ms;
    bool may_start, probe_ended;
    launch_report report;
    err probe_error, error;
};

static bool is_over(const launch *l) {
    return l->report.phase == LAUNCH_READY || l->report.phase == LAUNCH_ABSENT ||
           l->report.phase == LAUNCH_FAILED;
}

static void end_with(launch *l, launch_phase phase) {
    l->report.phase = phase;
    if (l->lock_fd >= 0) close(l->lock_fd);
    l->lock_fd = -1;
}

static void fail(launch *l) {
    l->report.error = &l->error;
    end_with(l, LAUNCH_FAILED);
}

/* Something else listens there. */
static void foreign(launch *l) {
    err_set(&l->error, ERR_MISMATCH,
        "the program behind %s is no engine of Tandem; choose another socket with TANDEM_SOCKET",
        client_socket_path(l->client));
    fail(l);
}

/* What the daemon says of itself. */

static void read_state(launch *l, const char *text, size_t len) {
    json *v = NULL;
    if (json_parse(text, len, NULL, &v, &l->error) != OK || !json_is_object(v)) {
        json_free(v);
        foreign(l);
        return;
    }
    const char *state = json_str(json_get(v, "state"));
    const json *model = json_get(v, "model");
    const char *id = json_str(json_get(model, "id"));
    str_copy(l->report.state, sizeof l->report.state, state != NULL ? state : "unknown");
    const char *dir = json_str(json_get(model, "dir"));
    if (id != NULL) str_copy(l->report.model_id, sizeof l->report.model_id, id);
    if (dir != NULL) str_copy(l->report.model_dir, sizeof l->report.model_dir, dir);
    l->report.is_demo = json_is_true(json_get(model, "demo"));
    if (l->process.pid == 0) l->report.was_running = true;
    l->report.is_other_model = l->report.was_running && l->wanted_dir != NULL && dir != NULL &&
                               !str_eq(dir, l->wanted_dir);
    if (str_eq(state, "ready")) {
        end_with(l, LAUNCH_READY);
    } else if (str_eq(state, "failed")) {
        const char *why = json_str(json_get(v, "reason"));
        err_set(&l->error, ERR_INTERNAL, "%s", why != NULL ? why : "the engine has failed");
        fail(l);
    } else {
        l->report.phase = LAUNCH_STARTING;
    }
    json_free(v);
}

static void on_probe(void *ctx, const client_event *ev) {
    launch *l = ctx;
    if (ev->kind != CLIENT_END) return;
    l->probe = NULL;
    l->probe_ended = true;
    l->probe_error = (err)ERR_INIT;
    if (ev->status >= 400 && ev->status < 500) {
        foreign(l);
    } else if (ev->error == NULL) {
        read_state(l, ev->text, ev->len);
    } else {
        l->probe_error = *ev->error;
    }
}

/* What the daemon wrote since this start. */
static void read_log(const launch *l, buf *out) {
    int fd = open(l->log_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = 1;
    while (n > 0 && out->len < LOG_READ_MAX && buf_reserve(out, 4096) == OK) {
        n = pread(fd, out->data + out->len, 4096, (off_t)(l->log_from + out->len));
        if (n > 0) out->len += (size_t)n;
    }
    close(fd);
}

/* The first sentence of the daemon's own, else the last line that is there. */
static bool log_sentence(const launch *l, char *out, size_t cap) {
    buf log = BUF_MAX(2 * LOG_READ_MAX);
    char *best = NULL;
    bool is_found = false;
    read_log(l, &log);
    for (size_t at = 0; at < log.len && !is_found;) {
        const char *line = log.data + at;
        const char *stop = memchr(line, '\n', log.len - at);
        size_t n = stop != NULL ? (size_t)(stop - line) : log.len - at;
        is_found = n > 9 && strncmp(line, "tandemd: ", 9) == 0;
        if (n > 0) {
            mem_free(best);
            best = is_found ? mem_strndup(line + 9, n - 9) : mem_strndup(line, n);
        }
        at += n + 1;
    }
    bool has_word = best != NULL;
    if (has_word) str_copy(out, cap, best);
    mem_free(best);
    buf_release(&log);
    return has_word;
}

static void daemon_ended(launch *l) {
    char line[400];
    if (log_sentence(l, line, sizeof line)) {
        /* It said why: a refusal, not a fault. */
        err_set(&l->error, ERR_ARG, "%s", line);
    } else {
        err_set(&l->error, ERR_INTERNAL,
            "the engine ended while it started and left no word; see %s", l->log_path);
    }
    fail(l);
}

/* Starting. */

static int take_lock(launch *l, err *e) {
    buf dir = BUF_INIT;
    int rc = path_dir(&dir, l->lock_path);
    /* A folder that is there is the user's choice (--socket) and stays as it is. */
    if (rc == OK && !dir_exists(buf_cstr(&dir))) rc = paths_make_private(buf_cstr(&dir), e);
    buf_release(&dir);
    if (rc != OK) return rc;
    int fd = open(l->lock_path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return err_errno(e, "cannot make %s", l->lock_path);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        l->lock_fd = fd;
        return OK;
    }
    close(fd);
    return ERR_BUSY;
}

/* Looked for only now: attaching needs no program. */
static int find_daemon(launch *l, err *e) {
    buf path = BUF_INIT;
    if (l->daemon_path[0] != '\0') return OK;
    int rc = launch_find_daemon(&path, e);
    if (rc == OK) {
        mem_free(l->daemon_path);
        l->daemon_path = buf_take(&path);
    }
    buf_release(&path);
    return rc;
}

int launch_words(launch *l, const char *const **out, err *e) {
    int rc = find_daemon(l, e);
    if (rc != OK) return rc;
    mem_free(l->words);
    l->words = mem_array((size_t)l->n_args + 4, sizeof *l->words);
    int n = 0;
    l->words[n++] = l->daemon_path;
    l->words[n++] = "--socket";
    l->words[n++] = client_socket_path(l->client);
    for (int i = 0; i < l->n_args; i++)
        l->words[n++] = l->args[i];
    *out = l->words;
    return OK;
}

static int spawn(launch *l, err *e) {
    buf dir = BUF_INIT;
    uint64_t size = 0;
    const char *const *words = NULL;
    int rc = launch_words(l, &words, e);
    if (rc == OK) rc = path_dir(&dir, l->log_path);
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    buf_release(&dir);
    if (rc != OK) return rc;
    if (file_exists(l->log_path)) rc = file_size(l->log_path, &size, e);
    l->log_from = size;
    return rc == OK ? launch_process_start(&l->process, words, l->log_path, e) : rc;
}

/* Nothing answers at the socket: start, wait for the one who starts, or give up. */
static void nothing_there(launch *l) {
    if (l->process.pid != 0) return; /* ours, not listening yet */
    if (!l->may_start) {
        end_with(l, LAUNCH_ABSENT);
        return;
    }
    int rc = take_lock(l, &l->error);
    l->report.phase = LAUNCH_STARTING;
    if (rc == ERR_BUSY) {
        l->report.was_running = true;
        return;
    }
    /* Between the probe and the lock another program may have finished its start. */
    if (rc == OK && launch_socket_answers(client_socket_path(l->client))) {
        close(l->lock_fd);
        l->lock_fd = -1;
        return;
    }
    if (rc == OK) rc = spawn(l, &l->error);
    if (rc != OK) {
        fail(l);
        return;
    }
    l->report.was_running = false;
    l->report.pid = l->process.pid;
    l->probe_ms = PROBE_FIRST_MS;
}

static void handle_probe(launch *l) {
    l->probe_ended = false;
    l->next_probe_ms = clock_mono_ms() + (uint64_t)l->probe_ms;
    /* An eighth longer each time: what is ready is seen within an eighth of the time it took. */
    l->probe_ms += l->probe_ms / 8;
    if (l->probe_ms > PROBE_MAX_MS) l->probe_ms = PROBE_MAX_MS;
    int code = l->probe_error.code;
    if (code == OK) return;
    if (code == ERR_NOT_FOUND) {
        nothing_there(l);
        return;
    }
    if (code == ERR_MISMATCH) {
        foreign(l);
        return;
    }
    /* It answers, but not with a state: busy, loading or slow. Ask again until the deadline. */
    l->report.phase = LAUNCH_STARTING;
}

static void check_deadline(launch *l) {
    l->report.waited_ms = (int64_t)(clock_mono_ms() - l->started_ms);
    if (l->report.waited_ms < l->deadline_ms) return;
    err_set(&l->error, ERR_TIMEOUT,
        "the engine is not ready after %.0f s; it may go on loading: `tandem status` shows its "
        "state, and its log is %s",
        l->deadline_ms / 1000.0, l->log_path);
    fail(l);
}

void launch_step(launch *l) {
    if (is_over(l)) return;
    client_pump(l->client);
    if (is_over(l)) return;
    if (l->probe_ended) handle_probe(l);
    if (is_over(l)) return;
    if (l->process.pid != 0 && launch_process_ended(&l->process)) {
        daemon_ended(l);
        return;
    }
    check_deadline(l);
    if (is_over(l) || l->probe != NULL || clock_mono_ms() < l->next_probe_ms) return;
    client_request r = {.path = "/tandem/v1/state", .limits = {.total_ms = PROBE_LIMIT_MS}};
    client_sink sink = {on_probe, l};
    if (client_request_start(l->client, &r, sink, &l->probe, &l->error) != OK) {
        fail(l);
        return;
    }
    client_pump(l->client);
    if (l->probe_ended && !is_over(l)) handle_probe(l);
}

int launch_fd(const launch *l) {
    return client_fd(l->client);
}

int launch_timeout_ms(const launch *l) {
    if (is_over(l)) return -1;
    int wait = client_timeout_ms(l->client);
    uint64_t now = clock_mono_ms();
    int until =
        l->probe != NULL || l->next_probe_ms <= now ? PROBE_MAX_MS : (int)(l->next_probe_ms - now);
    if (l->probe == NULL && l->next_probe_ms <= now) return 0;
    return wait >= 0 && wait < until ? wait : until;
}

void launch_get_report(const launch *l, launch_report *r) {
    *r = l->report;
    r->log_path = l->log_path;
}

/* Opening. */

static int fill_paths(launch *l, const launch_options *o, err *e) {
    buf b = BUF_INIT;
    int rc = OK;
    if (o->socket_path != NULL) {
        rc = buf_puts(&b, o->socket_path);
    } else {
        rc = paths_socket(&b, e);
    }
    if (rc == OK) rc = client_open(buf_cstr(&b), &l->client, e);
    if (rc == OK) rc = buf_puts(&b, ".start");
    if (rc == OK) l->lock_path = mem_strdup(buf_cstr(&b));
    buf_reset(&b);
    if (rc == OK) rc = paths_engine_log(&b, e);
    if (rc == OK) l->log_path = mem_strdup(buf_cstr(&b));
    buf_reset(&b);
    if (rc == OK && o->daemon_path != NULL) rc = buf_puts(&b, o->daemon_path);
    l->daemon_path = buf_take(&b);
    return rc;
}

static void take_arg(void *ctx, const char *option, const char *value) {
    launch *l = ctx;
    l->args = mem_realloc(l->args, (size_t)(l->n_args + 2) * sizeof *l->args);
    l->args[l->n_args++] = mem_strdup(option);
    if (value != NULL) l->args[l->n_args++] = mem_strdup(value);
}

static void fill_args(launch *l, const launch_options *o, const settings *s) {
    const engine_args_sink sink = {.add = take_arg, .ctx = l};
    engine_args_put_model(s, o->model_dir, &sink);
    engine_args_put(s, &sink);
    engine_args_put_endpoint(s, &sink);
    for (int i = 0; o->extra_args != NULL && o->extra_args[i] != NULL; i++)
        take_arg(l, o->extra_args[i], NULL);
}

int launch_open(const launch_options *o, launch **out, err *e) {
    launch *l = mem_alloc(sizeof *l);
    settings *s = settings_new();
    l->lock_fd = -1;
    l->process = (launch_process){.pidfd = -1};
    l->may_start = o->may_start;
    l->probe_ms = PROBE_FIRST_MS;
    l->started_ms = clock_mono_ms();
    int rc = settings_load(s, e);
    if (rc == OK) rc = fill_paths(l, o, e);
    /* Of a pair, one half must never be started by accident: tandem start brings up both. */
    if (rc == OK && !o->is_alone && o->model_dir == NULL && pair_is_configured(s))
        l->may_start = false;
    if (rc == OK) {
        l->deadline_ms =
            o->deadline_ms > 0 ? o->deadline_ms : (int)settings_int(s, "READY_TIMEOUT") * 1000;
        fill_args(l, o, s);
        l->wanted_dir = o->model_dir != NULL ? realpath(o->model_dir, NULL) : NULL;
    }
    settings_free(s);
    if (rc != OK) {
        launch_close(l);
        return rc;
    }
    *out = l;
    return OK;
}

void launch_close(launch *l) {
    if (l == NULL) return;
    client_close(l->client);
    launch_process_release(&l->process);
    if (l->lock_fd >= 0) close(l->lock_fd);
    for (int i = 0; i < l->n_args; i++)
        mem_free(l->args[i]);
    mem_free(l->args);
    mem_free(l->words);
    free(l->wanted_dir);
    mem_free(l->daemon_path);
    mem_free(l->log_path);
    mem_free(l->lock_path);
    mem_free(l);
}

static int result_of(const launch *l, err *e) {
    if (l->report.phase == LAUNCH_READY) return OK;
    if (l->report.phase == LAUNCH_ABSENT) {
        return err_set(e, ERR_NOT_FOUND, "no engine is running; start it with: tandem start");
    }
    if (e != NULL) *e = l->error;
    return l->error.code != OK ? l->error.code : ERR_INTERNAL;
}

int launch_run(launch *l, int stop_fd, void (*on_change)(void *ctx, const launch_report *r),
    void *ctx, err *e) {
    launch_report last = {.phase = LAUNCH_PROBING};
    for (;;) {
        launch_step(l);
        launch_report r;
        launch_get_report(l, &r);
        bool is_news = r.phase != last.phase || !str_eq(r.state, last.state);
        if (is_news && on_change != NULL) on_change(ctx, &r);
        last = r;
        if (is_over(l)) return result_of(l, e);
        struct pollfd fds[2] = {
            {.fd = launch_fd(l), .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
        if (poll(fds, stop_fd >= 0 ? 2 : 1, launch_timeout_ms(l)) > 0 && fds[1].revents != 0) {
            return err_set(e, ERR_CANCELLED,
                "interrupted; an engine that was starting goes on (stop it with: tandem stop)");
        }
    }
}

/* The daemon's process, so that its end can be seen; -1 when it cannot be told. */
static int daemon_pid(client *c) {
    buf body = BUF_INIT;
    json *v = NULL;
    int64_t pid = -1;
    client_request r = {.path = "/tandem/v1/state", .limits = {.total_ms = 5000}};
    if (client_fetch(c, &r, &body, NULL, NULL) == OK &&
        json_parse(buf_cstr(&body), body.len, NULL, &v, NULL) == OK) {
        json_i64(json_get(v, "pid"), &pid);
    }
    json_free(v);
    buf_release(&body);
    return pid > 1 && pid < INT32_MAX ? (int)pid : -1;
}

static int wait_for_end(const char *socket_path, launch_process *p, int deadline_ms, err *e) {
    uint64_t end = clock_mono_ms() + (uint64_t)deadline_ms;
    while (launch_socket_answers(socket_path) || (p->pid > 0 && !launch_process_ended(p))) {
        if (clock_mono_ms() >= end) {
            return err_set(e, ERR_TIMEOUT,
                "the engine has not ended within %.0f s; it may be finishing replies: look with "
                "tandem status",
                deadline_ms / 1000.0);
        }
        sleep_ms(10);
    }
    return OK;
}

int launch_stop(const char *socket_path, int deadline_ms, err *e) {
    client *c = NULL;
    buf body = BUF_INIT;
    launch_process process = {.pidfd = -1};
    int rc = client_open(socket_path, &c, e);
    if (rc != OK) return rc;
    launch_process_watch(&process, daemon_pid(c));
    client_request r = {.path = "/tandem/v1/shutdown", .body = "{}", .limits = {.total_ms = 5000}};
    rc = client_fetch(c, &r, &body, NULL, e);
    client_close(c);
    buf_release(&body);
    if (rc == ERR_NOT_FOUND) {
        rc = err_set(e, ERR_NOT_FOUND, "no engine is running, so there is nothing to stop");
    } else if (rc == OK || rc == ERR_NET) {
        /* The answer may be lost when the daemon is quick: only its end tells. */
        rc = wait_for_end(socket_path, &process, deadline_ms, e);
    }
    launch_process_release(&process);
    return rc;
}
