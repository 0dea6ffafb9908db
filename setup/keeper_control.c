/* The keeper's socket, its state file, and the callers' side of both. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/secret.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/keeper_internal.h"
#include "setup/paths.h"

enum { CALL_MS = 5000, STATUS_MAX = 64 << 10, BACKLOG = 16 };

static const char *const STATES[KEEPER_STATES] = {"idle", "linking", "preparing", "prepared",
    "loading", "ready", "ending", "down", "failed", "stopped"};

const char *keeper_state_name(keeper_state s) {
    return s >= 0 && s < KEEPER_STATES ? STATES[s] : "unknown";
}

keeper_state keeper_state_of(const char *name) {
    for (int i = 0; name != NULL && i < KEEPER_STATES; i++) {
        if (str_eq(STATES[i], name)) return (keeper_state)i;
    }
    return KEEPER_STATES;
}

int keeper_file(const char *name, buf *out, err *e) {
    int rc = paths_state(out, e);
    return rc == OK ? buf_printf(out, "/keeper/%s", name) : rc;
}

int keeper_socket_path(buf *out, err *e) {
    int rc = paths_runtime(out, e);
    return rc == OK ? buf_puts(out, "/keeper.sock") : rc;
}

/* ---- the state ---- */

static void put_text(json_w *w, const char *key, const char *text) {
    json_w_kstr(w, key, text[0] != '\0' ? text : NULL);
}

static void put_error(json_w *w, const char *key, const char *text, int code, uint64_t at_ms) {
    json_w_key(w, key);
    if (at_ms == 0) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    json_w_ki64(w, "code", code);
    json_w_kstr(w, "message", text);
    json_w_ku64(w, "time_ms", at_ms);
    json_w_close(w);
}

static void put_rank(json_w *w, const keeper *k) {
    const keeper_rank *r = &k->rank;
    json_w_ki64(w, "rank_pid", r->pid);
    json_w_ku64(w, "rank_ticks", r->ticks);
    put_text(w, "phase", r->phase);
    json_w_key(w, "progress");
    if (r->phase[0] == '\0' || r->progress < 0) {
        json_w_null(w);
    } else {
        json_w_fixed(w, r->progress, 4);
    }
    json_w_ki64(w, "quiet_ms", r->pid != 0 ? (int64_t)(clock_mono_ms() - r->moved_ms) : 0);
    put_text(w, "log", r->log_path);
    json_w_kstr(w, "program", k->order.n_words > 0 ? k->order.words[0] : NULL);
}

void keeper_state_print(const keeper *k, buf *out) {
    json_w w;
    char id[20];
    snprintf(id, sizeof id, "%016llx", (unsigned long long)k->order.start_id);
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    json_w_kbool(&w, "ok", true);
    json_w_kbool(&w, "running", !k->is_leaving);
    json_w_ki64(&w, "pid", getpid());
    json_w_kstr(&w, "build", version_build_id());
    json_w_kbool(&w, "stays", k->options.stays);
    json_w_kstr(&w, "state", keeper_state_name(k->state));
    json_w_ku64(&w, "since_ms", k->since_ms);
    json_w_ki64(&w, "rank", k->has_order ? k->order.rank : -1);
    json_w_kstr(&w, "start_id", k->has_order ? id : NULL);
    json_w_kstr(&w, "settings", k->has_order ? k->order.settings : NULL);
    json_w_ki64(&w, "generation", k->generation);
    json_w_kbool(&w, "linked", keeper_link_is_up(k->link));
    json_w_kbool(&w, "was_ready", k->was_ready);
    json_w_ku64(&w, "ready_ms", k->ready_wall_ms);
    put_rank(&w, k);
    put_text(&w, "reason", k->reason);
    put_error(&w, "first_error", k->first_error, k->first_code, k->first_error_ms);
    put_error(&w, "last_error", k->last_error, k->last_code, k->last_end_ms);
    json_w_kbool(&w, "hang", k->is_hang);
    json_w_key(&w, "restarts_ms");
    json_w_array(&w);
    for (int i = 0; i < k->n_restarts; i++)
        json_w_u64(&w, k->restarts_wall_ms[i]);
    json_w_close(&w);
    json_w_ku64(&w, "available_bytes", keeper_available());
    json_w_ku64(&w, "time_ms", clock_wall_ms());
    json_w_close(&w);
    (void)json_w_end(&w);
    buf_putc(out, '\n');
}

void keeper_state_write(const keeper *k) {
    buf path = BUF_INIT, text = BUF_INIT;
    err e = ERR_INIT;
    keeper_state_print(k, &text);
    int rc = keeper_file("status.json", &path, &e);
    if (rc == OK) rc = file_write_atomic(buf_cstr(&path), text.data, text.len, 0600, &e);
    if (rc != OK) LOG(LOG_WARN, "keeper", "state not written", "message=\"%s\"", e.msg);
    buf_release(&path);
    buf_release(&text);
}

/* ---- the keeper's side ---- */

static int socket_address(struct sockaddr_un *a, err *e) {
    buf path = BUF_INIT;
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    int rc = keeper_socket_path(&path, e);
    if (rc == OK && path.len >= sizeof a->sun_path)
        rc = err_set(e, ERR_LIMIT, "%s is too long for a socket", buf_cstr(&path));
    if (rc == OK) str_copy(a->sun_path, sizeof a->sun_path, buf_cstr(&path));
    buf_release(&path);
    return rc;
}

int keeper_listen(keeper *k, err *e) {
    struct sockaddr_un a;
    buf dir = BUF_INIT;
    int rc = socket_address(&a, e);
    if (rc == OK) rc = path_dir(&dir, a.sun_path);
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    buf_release(&dir);
    if (rc != OK) return rc;
    k->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)unlink(a.sun_path); /* the lock is ours: nobody listens there */
    mode_t old = umask(0177);
    bool is_bound = k->listen_fd >= 0 && bind(k->listen_fd, (struct sockaddr *)&a, sizeof a) == 0;
    umask(old);
    if (!is_bound || listen(k->listen_fd, BACKLOG) != 0)
        return err_errno(e, "listening on %s", a.sun_path);
    return OK;
}

static void set_limit(int fd) {
    struct timeval limit = {.tv_sec = CALL_MS / 1000};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* One line of at most cap bytes, without its end. */
static int read_line(int fd, buf *out, err *e) {
    for (;;) {
        char part[4096];
        ssize_t n = recv(fd, part, sizeof part, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_errno(e, "waiting for the other side of the keeper's socket");
        if (n == 0) return err_set(e, ERR_NET, "the keeper's socket ended before its answer");
        char *end = memchr(part, '\n', (size_t)n);
        size_t take = end != NULL ? (size_t)(end - part) : (size_t)n;
        int rc = out->len + take <= KEEPER_ORDER_MAX ? buf_append(out, part, take) : ERR_LIMIT;
        explicit_bzero(part, sizeof part);
        if (rc != OK) return err_set(e, rc, "the line on the keeper's socket is too long");
        if (end != NULL) return OK;
    }
}

static void refuse(buf *out, const err *e) {
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    json_w_kbool(&w, "ok", false);
    json_w_ki64(&w, "code", e->code);
    json_w_kstr(&w, "message", e->msg);
    json_w_close(&w);
    (void)json_w_end(&w);
    buf_putc(out, '\n');
}

static int obey(keeper *k, const json *v, err *e) {
    const char *verb = json_str(json_get(v, "do"));
    if (str_eq(verb, "status")) return OK;
    if (str_eq(verb, "stop") || str_eq(verb, "quit")) {
        k->wants_quit = k->wants_quit || str_eq(verb, "quit");
        keeper_ask_stop(k);
        return OK;
    }
    if (!str_eq(verb, "start")) return err_set(e, ERR_ARG, "the keeper knows no such verb");
    keeper_order o;
    keeper_order_init(&o);
    int rc = keeper_order_parse(&o, json_get(v, "order"), e);
    if (rc == OK) rc = keeper_take_order(k, &o, e);
    keeper_order_release(&o);
    return rc;
}

/* The parsed order holds the secret as text. */
static void wipe_order(const json *v) {
    const char *secret = json_str(json_get(json_get(v, "order"), "secret"));
    if (secret != NULL) explicit_bzero((char *)(uintptr_t)secret, strlen(secret));
}

static void answer_one(keeper *k, int fd) {
    struct ucred who = {0};
    socklen_t n = sizeof who;
    buf line = BUF_INIT, reply = BUF_INIT;
    json *v = NULL;
    err e = ERR_INIT;
    (void)buf_reserve(&line, KEEPER_ORDER_MAX); /* growing would leave copies of the secret */
    set_limit(fd);
    secret_hold();
    int rc = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 &&
                     (who.uid == getuid() || who.uid == 0)
                 ? OK
                 : err_set(&e, ERR_AUTH, "only the keeper's own user may give orders");
    if (rc == OK) rc = read_line(fd, &line, &e);
    if (rc == OK) rc = json_parse(buf_cstr(&line), line.len, NULL, &v, &e);
    if (rc == OK) rc = obey(k, v, &e);
    if (rc == OK) {
        keeper_state_print(k, &reply);
    } else {
        refuse(&reply, &e);
    }
    (void)send(fd, reply.data, reply.len, MSG_NOSIGNAL);
    wipe_order(v);
    json_free(v);
    if (line.data != NULL) explicit_bzero(line.data, line.cap);
    buf_release(&line);
    secret_drop();
    buf_release(&reply);
}

void keeper_answer(keeper *k) {
    for (;;) {
        int fd = accept4(k->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) return;
        answer_one(k, fd);
        close(fd);
    }
}

/* ---- the callers' side ---- */

int keeper_call_text(const char *request, size_t len, buf *reply, err *e) {
    struct sockaddr_un a;
    int rc = socket_address(&a, e);
    if (rc != OK) return rc;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return err_errno(e, "making a socket");
    set_limit(fd);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        rc = err_set(e, ERR_NOT_FOUND, "no keeper runs here (%s)", a.sun_path);
    } else {
        rc = fd_write_full(fd, request, len, e);
        if (rc == OK) rc = fd_write_full(fd, "\n", 1, e);
        if (rc == OK) rc = read_line(fd, reply, e);
    }
    close(fd);
    return rc;
}

int keeper_call(const char *verb, const keeper_order *o, json **reply, err *e) {
    buf request = BUF_INIT, answer = BUF_INIT;
    json *v = NULL;
    if (o != NULL) (void)buf_reserve(&request, 2 * KEEPER_ORDER_MAX);
    buf_printf(&request, "{\"do\":\"%s\"", verb);
    if (o != NULL) {
        buf_puts(&request, ",\"order\":");
        keeper_order_print(o, &request);
    }
    buf_putc(&request, '}');
    int rc = keeper_call_text(request.data, request.len, &answer, e);
    if (rc == OK) rc = json_parse(buf_cstr(&answer), answer.len, NULL, &v, e);
    if (rc == OK && !json_is_true(json_get(v, "ok"))) {
        int64_t code = ERR_INTERNAL;
        const char *message = json_str(json_get(v, "message"));
        (void)json_i64(json_get(v, "code"), &code);
        rc = err_set(e, code < 0 ? (int)code : ERR_INTERNAL, "%s",
            message != NULL ? message : "the keeper refused without a word");
    }
    explicit_bzero(request.data, request.cap);
    buf_release(&request);
    buf_release(&answer);
    if (rc == OK && reply != NULL) {
        *reply = v;
    } else {
        json_free(v);
    }
    return rc;
}

/* What a keeper left that did not end by itself still says that it runs: that becomes null. */
static int put_left(const buf *text, buf *out, err *e) {
    json *v = NULL;
    json_w w;
    int rc = json_parse(buf_cstr(text), text->len, NULL, &v, e);
    if (rc != OK) return rc;
    json_w_begin(&w, out);
    json_w_object(&w);
    JSON_EACH(item, v) {
        json_w_key(&w, json_key(item));
        if (str_eq(json_key(item), "running") && json_is_true(item)) {
            json_w_null(&w);
        } else {
            json_w_value(&w, item);
        }
    }
    json_w_close(&w);
    rc = json_w_end(&w);
    json_free(v);
    return rc;
}

int keeper_status_text(buf *out, err *e) {
    static const char ask[] = "{\"do\":\"status\"}";
    static const char none[] = "{\"v\":1,\"ok\":true,\"running\":false,\"state\":\"idle\"}";
    buf path = BUF_INIT, text = BUF_INIT;
    err ignored = ERR_INIT;
    if (keeper_call_text(ask, sizeof ask - 1, out, &ignored) == OK) return OK;
    buf_reset(out);
    int rc = keeper_file("status.json", &path, e);
    if (rc == OK && !file_exists(buf_cstr(&path))) {
        rc = buf_puts(out, none);
    } else if (rc == OK) {
        rc = file_read(buf_cstr(&path), &text, STATUS_MAX, e);
        if (rc == OK) rc = put_left(&text, out, e);
    }
    buf_release(&path);
    buf_release(&text);
    return rc;
}
