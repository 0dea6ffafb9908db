/* Both ranks on one machine: starts them with a secret of their own, starts them again when one is
 * lost (within a budget), and ends them together. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/secret.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/daemon_internal.h"

enum {
    PAIR_RANKS = 2,
    PAIR_LOOK_MS = 20,
    PAIR_OTHER_MS = 4000,
    PAIR_REFUSED_MS = 500,
    PAIR_STOP_EXTRA_MS = 10000
};
enum { PAIR_BACKOFF_MS = 300, PAIR_MAX_ARGS = 96, PAIR_MAX_RESTARTS = 1000 };
#define PAIR_WINDOW_MS ((uint64_t)6 * 3600 * 1000)

typedef struct pair {
    const daemon_options *o;
    int argc;
    char **argv;
    pid_t pid[PAIR_RANKS];  /* 0: not running */
    int status[PAIR_RANKS]; /* of waitpid */
    bool has_ended[PAIR_RANKS];
    uint64_t restarts_ms[PAIR_MAX_RESTARTS];
    int n_restarts;
    char gpus[128]; /* CUDA_VISIBLE_DEVICES as it was; empty: all */
} pair;

/* ---- starting ---- */

/* The line that each rank reads: a new secret and id for every start, so that a rank of an earlier
 * one is turned away. */
static size_t make_start(char *line, size_t cap) {
    uint8_t secret[SHA256_BYTES], id[8];
    char hex[SHA256_HEX];
    size_t n = 0;
    rand_secret(secret, sizeof secret);
    rand_secret(id, sizeof id);
    sha256_hex(secret, hex);
    n = (size_t)snprintf(line, cap, "%s ", hex);
    for (size_t i = 0; i < sizeof id; i++) {
        n += (size_t)snprintf(line + n, cap - n, "%02x", id[i]);
    }
    n += (size_t)snprintf(line + n, cap - n, "\n");
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(hex, sizeof hex);
    return n;
}

typedef struct rank_start {
    int rank, port, listen_fd;
    const char *line;
    size_t line_len;
} rank_start;

/* In the child, between fork and exec: only calls that are safe there. */
static _Noreturn void become_rank(char **argv, int in_fd, int listen_fd) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(in_fd, STDIN_FILENO);
    if (listen_fd >= 0) (void)fcntl(listen_fd, F_SETFD, 0);
    execv("/proc/self/exe", argv);
    _exit(EXIT_CODE_INTERNAL);
}

/* One GPU for each rank: the rank-th of those that are visible to this process. Before the fork, since
 * nothing may be allocated behind it. */
static void show_own_gpu(const pair *p, int rank) {
    char own[64];
    const char *all = p->gpus[0] != '\0' ? p->gpus : NULL;
    if (p->o->backend.len == 0 || strcmp(buf_cstr(&p->o->backend), "cuda") != 0) return;
    for (int i = 0; all != NULL && i < rank; i++) {
        const char *comma = strchr(all, ',');
        if (comma == NULL) return; /* fewer than ranks: the rank says what it finds */
        all = comma + 1;
    }
    snprintf(
        own, sizeof own, "%.*s", all == NULL ? 0 : (int)strcspn(all, ","), all == NULL ? "" : all);
    if (all == NULL) snprintf(own, sizeof own, "%d", rank);
    (void)setenv("CUDA_VISIBLE_DEVICES", own, 1);
}

/* The own arguments without the word pair, then what makes a rank of them. */
static int start_rank(pair *p, const rank_start *s, err *e) {
    char meet[32], fd[16], word[] = "rank", meet_fd[] = "--meet-fd";
    char ranks_name[] = "--ranks", two[] = "2", meet_name[] = "--meet";
    char *argv[PAIR_MAX_ARGS], status[600];
    int n = 0, in[2];
    if (p->argc + 12 > PAIR_MAX_ARGS) return err_set(e, ERR_LIMIT, "too many options");
    snprintf(meet, sizeof meet, "127.0.0.1:%d", s->port);
    snprintf(fd, sizeof fd, "%d", s->listen_fd);
    argv[n++] = p->argv[0];
    if (s->rank > 0) argv[n++] = word;
    for (int i = 2; i < p->argc; i++) {
        argv[n++] = p->argv[i];
    }
    if (s->rank > 0 && p->o->status_path.len > 0) { /* the first has the file itself */
        snprintf(
            status, sizeof status, "--status=%s.rank%d", buf_cstr(&p->o->status_path), s->rank);
        argv[n++] = status;
    }
    char *more[] = {ranks_name, two, meet_name, meet};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        argv[n++] = more[i];
    }
    if (s->rank == 0) {
        argv[n++] = meet_fd;
        argv[n++] = fd;
    }
    argv[n] = NULL;
    if (pipe2(in, O_CLOEXEC) != 0) return err_errno(e, "making a pipe for rank %d", s->rank);
    show_own_gpu(p, s->rank);
    pid_t pid = fork();
    if (pid == 0) become_rank(argv, in[0], s->rank == 0 ? s->listen_fd : -1);
    int rc = pid > 0 ? fd_write_full(in[1], s->line, s->line_len, e)
                     : err_errno(e, "starting rank %d", s->rank);
    close(in[0]);
    close(in[1]);
    p->pid[s->rank] = pid > 0 ? pid : 0;
    p->has_ended[s->rank] = false;
    return rc;
}

static int start_both(pair *p, err *e) {
    char line[160];
    int port = (int)p->o->meet_port, listener = -1;
    int rc = meet_listen("127.0.0.1", &port, &listener, e);
    if (rc != OK) return rc;
    secret_hold();
    size_t n = make_start(line, sizeof line);
    for (int r = 0; r < PAIR_RANKS && rc == OK; r++) {
        rc = start_rank(p, &(rank_start){r, port, listener, line, n}, e);
    }
    explicit_bzero(line, sizeof line);
    secret_drop();
    close(listener);
    LOG(LOG_INFO, "pair", "ranks started", "rank0=%ld rank1=%ld port=%d", (long)p->pid[0],
        (long)p->pid[1], port);
    return rc;
}

/* ---- ending ---- */

static void look(pair *p) {
    for (int r = 0; r < PAIR_RANKS; r++) {
        if (p->pid[r] == 0 || waitpid(p->pid[r], &p->status[r], WNOHANG) != p->pid[r]) continue;
        p->pid[r] = 0;
        p->has_ended[r] = true;
    }
}

static bool is_any_left(const pair *p) {
    return p->pid[0] != 0 || p->pid[1] != 0;
}

static void await_ends(pair *p, uint64_t wait_ms) {
    uint64_t deadline = clock_mono_ms() + wait_ms;
    while (is_any_left(p) && clock_mono_ms() < deadline) {
        look(p);
        sleep_ms(PAIR_LOOK_MS);
    }
}

static void signal_rest(const pair *p, int signal_number) {
    for (int r = 0; r < PAIR_RANKS; r++) {
        if (p->pid[r] != 0) kill(p->pid[r], signal_number);
    }
}

/* Waits until both have ended. What is left after half of the time is asked to (it may wait for the
 * other one to meet it), after all of it killed (a stopped rank, too). */
static void end_both(pair *p, uint64_t wait_ms) {
    await_ends(p, wait_ms / 2);
    signal_rest(p, SIGTERM);
    await_ends(p, wait_ms - wait_ms / 2);
    signal_rest(p, SIGKILL);
    while (is_any_left(p)) {
        look(p);
        sleep_ms(1);
    }
}

/* What a rank ended with: an exit code, or 128 + the signal. */
static int code_of(const pair *p, int r) {
    if (!p->has_ended[r]) return 0;
    return WIFEXITED(p->status[r]) ? WEXITSTATUS(p->status[r]) : 128 + WTERMSIG(p->status[r]);
}

/* Waits until a rank ends (its number) or the pair is asked to stop (-1). */
static int wait_for_end(pair *p) {
    struct pollfd stop = {.fd = daemon_stop_fd(), .events = POLLIN};
    for (;;) {
        look(p);
        for (int r = 0; r < PAIR_RANKS; r++) {
            if (p->has_ended[r]) return r;
        }
        if (poll(&stop, 1, PAIR_LOOK_MS) > 0) return -1;
    }
}

static bool is_refusal(int code) {
    return code == EXIT_CODE_REFUSED || code == EXIT_CODE_USAGE;
}

/* True if one more start is within the budget. */
static bool take_restart(pair *p) {
    uint64_t now = clock_mono_ms();
    int kept = 0;
    for (int i = 0; i < p->n_restarts; i++) {
        if (now - p->restarts_ms[i] < PAIR_WINDOW_MS) p->restarts_ms[kept++] = p->restarts_ms[i];
    }
    p->n_restarts = kept;
    if (kept >= p->o->n_restarts || kept >= PAIR_MAX_RESTARTS) return false;
    p->restarts_ms[p->n_restarts++] = now;
    return true;
}

/* After a rank ended: OK to start again, or the end of the pair. *is_over: it ends well. */
static int judge(pair *p, int first, bool *is_over, err *e) {
    int code[PAIR_RANKS];
    end_both(p, is_refusal(code_of(p, first)) ? PAIR_REFUSED_MS : PAIR_OTHER_MS);
    for (int r = 0; r < PAIR_RANKS; r++) {
        code[r] = code_of(p, r);
    }
    *is_over = code[0] == 0; /* rank 0 ends well only when the engine was asked to stop */
    if (*is_over) return OK;
    LOG(LOG_ERROR, "pair", "a rank ended", "first=%d code0=%d code1=%d", first, code[0], code[1]);
    if (is_refusal(code[0]) || is_refusal(code[1])) {
        return err_set(e, ERR_UNSUPPORTED,
            "rank %d refused to start; its reason is above and in the log",
            is_refusal(code[0]) ? 0 : 1);
    }
    if (take_restart(p)) return OK;
    return err_set(e, ERR_PEER,
        "a rank was lost again and %lld new starts within 6 hours are used up; look at the log, "
        "then start by hand",
        (long long)p->o->n_restarts);
}

static int stop_both(pair *p, err *e) {
    LOG(LOG_INFO, "pair", "stopping", "drain_s=%lld", (long long)p->o->drain_s);
    if (p->pid[0] != 0) kill(p->pid[0], SIGTERM);
    await_ends(
        p, (uint64_t)p->o->drain_s * 1000 + PAIR_STOP_EXTRA_MS); /* one SIGTERM: a second cuts */
    end_both(p, 0);
    if (code_of(p, 0) == 0 || code_of(p, 0) == EXIT_CODE_STOPPED) return OK;
    return err_set(e, ERR_PEER, "rank 0 did not end well (code %d)", code_of(p, 0));
}

int daemon_pair(const daemon_options *o, int argc, char **argv, err *e) {
    pair *p = mem_alloc(sizeof *p);
    bool is_over = false;
    int rc = OK;
    *p = (pair){.o = o, .argc = argc, .argv = argv};
    const char *gpus = getenv("CUDA_VISIBLE_DEVICES");
    str_copy(p->gpus, sizeof p->gpus, gpus == NULL ? "" : gpus);
    while (rc == OK && !is_over) {
        rc = start_both(p, e);
        int first = rc == OK ? wait_for_end(p) : 0;
        if (rc != OK) {
            end_both(p, 0);
        } else if (first < 0) {
            rc = stop_both(p, e);
            is_over = true;
        } else {
            rc = judge(p, first, &is_over, e);
            if (rc == OK && !is_over) sleep_ms(PAIR_BACKOFF_MS * (uint64_t)p->n_restarts);
        }
    }
    mem_free(p);
    return rc;
}
