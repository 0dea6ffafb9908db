/* tandem-node keep, keeper: the process that looks after a rank, and what can be asked of it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/secret.h"
#include "engine/base/str.h"
#include "setup/keeper.h"
#include "setup/keeper_sweep.h"
#include "setup/node.h"
#include "setup/paths.h"

enum {
    EXIT_FINE = 0,
    EXIT_WRONG_USE = 2,
    EXIT_REFUSED = 20,
    IDLE_S = 60,
    UP_MS = 10000,
    LOCK_MS = 5000
};

static int failed(const err *e) {
    fprintf(stderr, "tandem-node: %s\n", e->msg);
    return EXIT_REFUSED;
}

static int open_log(err *e) {
    buf path = BUF_INIT, dir = BUF_INIT;
    int rc = paths_logs(&dir, e);
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    if (rc == OK) rc = path_join(&path, buf_cstr(&dir), "keeper.log");
    int fd = rc == OK ? open(buf_cstr(&path),
                            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600)
                      : -1;
    if (rc == OK && fd < 0) rc = err_errno(e, "opening %s", buf_cstr(&path));
    if (rc == OK) log_open(&(log_options){.fd = fd, .level = LOG_INFO, .rank = -1});
    buf_release(&path);
    buf_release(&dir);
    return rc;
}

/* True when the keeper with this process number answers at the socket. */
static bool answers(pid_t pid) {
    json *v = NULL;
    int64_t there = 0;
    err ignored = ERR_INIT;
    bool is = keeper_call("status", NULL, &v, &ignored) == OK &&
              json_i64(json_get(v, "pid"), &there) == OK && there == pid;
    json_free(v);
    return is;
}

/* Free of the terminal, the session and the descriptors of who called. */
static void let_go(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)setsid();
    if (chdir("/") != 0) _exit(EXIT_REFUSED);
    for (int fd = 0; fd < 3 && null >= 0; fd++)
        dup2(null, fd);
}

static int run_here(bool stays) {
    err e = ERR_INIT;
    keeper_options o = {.stays = stays, .idle_s = stays ? 0 : IDLE_S};
    int rc = open_log(&e);
    uint64_t end = clock_mono_ms() + LOCK_MS;
    if (rc == OK) rc = keeper_run(&o, &e);
    /* A unit may be started while a keeper without one is on its way out. */
    while (rc == ERR_BUSY && stays && clock_mono_ms() < end) {
        sleep_ms(100);
        rc = keeper_run(&o, &e);
    }
    return rc == OK ? EXIT_FINE : failed(&e);
}

/* A keeper that will take an order: one that stays, or has a start in hand. One that is on its way out
 * is told to hurry, so that no order meets a closing door. */
static bool is_up(void) {
    json *v = NULL;
    err ignored = ERR_INIT;
    if (keeper_call("status", NULL, &v, &ignored) != OK) return false;
    keeper_state s = keeper_state_of(json_str(json_get(v, "state")));
    bool is_over = s == KEEPER_IDLE || s == KEEPER_FAILED || s == KEEPER_STOPPED;
    bool is = json_is_true(json_get(v, "stays")) || !is_over;
    json_free(v);
    if (!is) (void)keeper_call("quit", NULL, NULL, &ignored);
    return is;
}

static int detach(void) {
    uint64_t end = clock_mono_ms() + UP_MS;
    pid_t pid = 0;
    int status = 0;
    if (is_up()) return EXIT_FINE;
    while (clock_mono_ms() < end) {
        if (pid == 0) pid = fork();
        if (pid < 0) break;
        if (pid == 0) {
            let_go();
            _exit(run_here(false));
        }
        if (answers(pid)) return EXIT_FINE;
        /* The lock of one that is leaving is free in a moment: again. */
        if (waitpid(pid, &status, WNOHANG) == pid) pid = 0;
        sleep_ms(20);
    }
    fprintf(stderr, "tandem-node: the keeper does not start; see keeper.log in the log folder\n");
    return EXIT_REFUSED;
}

int node_keep(int argc, char **argv) {
    if (argc == 0) return run_here(false);
    if (argc == 1 && str_eq(argv[0], "--stay")) return run_here(true);
    if (argc == 1 && str_eq(argv[0], "--detach")) return detach();
    fprintf(stderr, "tandem-node: keep takes --stay or --detach\n");
    return EXIT_WRONG_USE;
}

static int read_all_input(buf *out) {
    char part[4096];
    ssize_t n;
    while ((n = read(STDIN_FILENO, part, sizeof part)) > 0) {
        if (out->len + (size_t)n > KEEPER_ORDER_MAX) return ERR_LIMIT;
        buf_append(out, part, (size_t)n);
    }
    explicit_bzero(part, sizeof part);
    return n == 0 ? OK : ERR_IO;
}

/* The order comes on standard input, as it holds the secret. */
static int pass_on(const char *verb, bool has_order, buf *reply, err *e) {
    buf request = BUF_MAX(2 * KEEPER_ORDER_MAX), order = BUF_MAX(KEEPER_ORDER_MAX);
    secret_hold();
    /* At their whole size from the beginning: growing would leave copies of the secret. */
    (void)buf_reserve(&order, KEEPER_ORDER_MAX);
    (void)buf_reserve(&request, KEEPER_ORDER_MAX + 256);
    int rc = has_order ? read_all_input(&order) : OK;
    if (rc != OK) err_set(e, rc, "the order on standard input cannot be read or is too long");
    while (order.len > 0 && order.data[order.len - 1] == '\n')
        buf_truncate(&order, order.len - 1);
    if (rc == OK) {
        buf_printf(&request, "{\"do\":\"%s\"", verb);
        if (has_order) buf_puts(&request, ",\"order\":");
        if (has_order) buf_append(&request, order.data, order.len);
        buf_putc(&request, '}');
        rc = keeper_call_text(request.data, request.len, reply, e);
    }
    if (order.data != NULL) explicit_bzero(order.data, order.cap);
    if (request.data != NULL) explicit_bzero(request.data, request.cap);
    buf_release(&order);
    buf_release(&request);
    secret_drop();
    return rc;
}

int node_keeper(int argc, char **argv) {
    static const char *const verbs[] = {"start", "stop", "quit"};
    const char *verb = argc == 1 ? argv[0] : "";
    buf reply = BUF_INIT;
    err e = ERR_INIT;
    int rc = ERR_ARG;
    if (str_eq(verb, "status")) {
        rc = keeper_status_text(&reply, &e);
    } else if (str_eq(verb, "sweep")) {
        rc = keeper_sweep(&reply, &e);
    } else {
        for (size_t i = 0; i < sizeof verbs / sizeof verbs[0] && rc == ERR_ARG; i++) {
            if (str_eq(verbs[i], verb)) rc = pass_on(verb, i == 0, &reply, &e);
        }
    }
    if (rc == OK) printf("%s\n", buf_cstr(&reply));
    buf_release(&reply);
    if (rc == OK) return EXIT_FINE;
    if (e.msg[0] != '\0') return failed(&e);
    fprintf(stderr, "tandem-node: keeper takes start, stop, quit, status or sweep\n");
    return EXIT_WRONG_USE;
}

int node_port(int argc, char **argv) {
    buf reply = BUF_INIT;
    err e = ERR_INIT;
    int64_t port = 0;
    if (argc != 1 || parse_i64(argv[0], &port) != OK || port < 1 || port > 65535) {
        fprintf(stderr, "tandem-node: port needs a number from 1 to 65535\n");
        return EXIT_WRONG_USE;
    }
    int rc = port_owner((int)port, &reply, &e);
    if (rc == OK) printf("%s\n", buf_cstr(&reply));
    buf_release(&reply);
    return rc == OK ? EXIT_FINE : failed(&e);
}
