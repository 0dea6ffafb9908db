#include "tests/harness/pty.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

static void change_environment(const char *const *env) {
    /* Set-up refuses to run as root; tests do in containers. */
    setenv("TANDEM_ALLOW_ROOT", "1", 1);
    for (; *env != NULL; env++) {
        const char *equals = strchr(*env, '=');
        if (equals == NULL) {
            unsetenv(*env);
            continue;
        }
        char *name = strndup(*env, (size_t)(equals - *env));
        setenv(name, equals + 1, 1);
        free(name);
    }
}

void pty_start(pty *p, const char *const *argv, const char *const *env, int n_rows, int n_columns) {
    struct winsize size = {.ws_row = (unsigned short)n_rows, .ws_col = (unsigned short)n_columns};
    memset(p, 0, sizeof *p);
    vt_init(&p->screen, n_rows, n_columns);
    p->pid = forkpty(&p->master, NULL, NULL, &size);
    if (p->pid < 0) {
        perror("forkpty");
        exit(1);
    }
    if (p->pid == 0) {
        change_environment(env);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        perror(argv[0]);
        _exit(127);
    }
    fcntl(p->master, F_SETFD, FD_CLOEXEC);
}

static void look_for_end(pty *p) {
    if (!p->has_ended && waitpid(p->pid, &p->status, WNOHANG) == p->pid) p->has_ended = true;
}

void pty_stop(pty *p) {
    look_for_end(p);
    if (!p->has_ended) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, &p->status, 0);
    }
    close(p->master);
    vt_release(&p->screen);
    buf_release(&p->raw);
}

bool pty_read(pty *p, int ms) {
    char bytes[16384];
    struct pollfd f = {.fd = p->master, .events = POLLIN};
    if (poll(&f, 1, ms) <= 0) return false;
    ssize_t n = read(p->master, bytes, sizeof bytes);
    if (n <= 0) return false;
    p->n_bytes += (uint64_t)n;
    if (p->keeps_raw) buf_append(&p->raw, bytes, (size_t)n);
    vt_feed(&p->screen, bytes, (size_t)n);
    if (p->screen.reply.len > 0) {
        pty_send(p, p->screen.reply.data, p->screen.reply.len);
        buf_reset(&p->screen.reply);
    }
    return true;
}

void pty_send(pty *p, const char *s, size_t n) {
    while (n > 0) {
        ssize_t done = write(p->master, s, n);
        if (done < 0) {
            if (errno == EINTR || errno == EAGAIN) continue;
            return;
        }
        s += done;
        n -= (size_t)done;
        /* A program that is writing while we are must be able to go on. */
        if (n > 0) pty_read(p, 0);
    }
}

void pty_keys(pty *p, const char *s) {
    pty_send(p, s, strlen(s));
}

void pty_settle(pty *p, int quiet_ms, int limit_ms) {
    uint64_t end = clock_mono_ms() + (uint64_t)limit_ms;
    while (clock_mono_ms() < end && pty_read(p, quiet_ms))
        continue;
}

bool pty_wait(pty *p, const char *text, bool wanted, int limit_ms) {
    uint64_t end = clock_mono_ms() + (uint64_t)limit_ms;
    while (vt_has(&p->screen, text) != wanted || p->screen.in_sync) {
        if (clock_mono_ms() >= end) return false;
        if (!pty_read(p, 20)) {
            look_for_end(p);
            if (p->has_ended && !pty_read(p, 0)) return vt_has(&p->screen, text) == wanted;
        }
    }
    return true;
}

bool pty_redraw(pty *p, int limit_ms) {
    enum { QUIET_MS = 60, FRAME_MS = 3000 };
    uint64_t end = clock_mono_ms() + (uint64_t)limit_ms;
    int before = p->screen.n_clears;
    pty_keys(p, "\f");
    while (p->screen.n_clears == before) {
        if (clock_mono_ms() >= end) return false;
        pty_read(p, 20);
    }
    pty_settle(p, QUIET_MS, FRAME_MS);
    return true;
}

bool pty_wait_end(pty *p, int limit_ms) {
    uint64_t end = clock_mono_ms() + (uint64_t)limit_ms;
    while (!p->has_ended && clock_mono_ms() < end) {
        pty_read(p, 10);
        look_for_end(p);
    }
    while (pty_read(p, 0))
        continue;
    return p->has_ended;
}

void pty_resize(pty *p, int n_rows, int n_columns) {
    struct winsize size = {.ws_row = (unsigned short)n_rows, .ws_col = (unsigned short)n_columns};
    vt_resize(&p->screen, n_rows, n_columns);
    ioctl(p->master, TIOCSWINSZ, &size);
}
