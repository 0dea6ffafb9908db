#include "setup/stream_spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"

extern char **environ;

enum { RETRY_MS = 500 };

static int write_input(int fd, const stream_setup *s, const manifest *m, err *e) {
    buf text = BUF_INIT;
    int rc = stream_setup_print(s, m, &text, e);
    /* A command that ends at once must not end this program: SIGPIPE is blocked around the write. */
    sigset_t pipe_only, before;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    if (rc == OK) rc = fd_write_full(fd, text.data, text.len, e);
    struct timespec now = {0};
    while (rc != OK && sigtimedwait(&pipe_only, NULL, &now) > 0)
        continue;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (text.data != NULL) explicit_bzero(text.data, text.cap);
    buf_release(&text);
    return rc;
}

static int start(stream_child *c, char *const *argv, int in_fd, int out_fd, err *e) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in_fd, 0);
    posix_spawn_file_actions_adddup2(&actions, out_fd, 1);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    int cause = posix_spawnp(&c->pid, argv[0], &actions, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    if (cause == 0) return OK;
    c->pid = 0;
    errno = cause;
    return err_errno(e, "starting %s", argv[0]);
}

int stream_spawn(
    stream_child *c, char *const *argv, const stream_setup *s, const manifest *m, err *e) {
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    c->pid = 0;
    c->lines_fd = -1;
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
        int rc = err_errno(e, "pipe");
        if (in[0] >= 0) close(in[0]), close(in[1]);
        return rc;
    }
    int rc = start(c, argv, in[0], out[1], e);
    close(in[0]);
    close(out[1]);
    c->lines_fd = out[0];
    if (rc == OK) rc = write_input(in[1], s, m, e);
    close(in[1]);
    if (rc != OK) stream_child_end(c, 0);
    return rc;
}

void stream_child_end(stream_child *c, int wait_ms) {
    if (c->lines_fd >= 0) close(c->lines_fd);
    c->lines_fd = -1;
    if (c->pid <= 0) return;
    uint64_t until = clock_mono_ms() + (uint64_t)wait_ms;
    while (waitpid(c->pid, NULL, WNOHANG) == 0) {
        if (clock_mono_ms() >= until) {
            kill(c->pid, SIGTERM);
            sleep_ms(100);
            if (waitpid(c->pid, NULL, WNOHANG) == 0) {
                kill(c->pid, SIGKILL);
                waitpid(c->pid, NULL, 0);
            }
            break;
        }
        sleep_ms(20);
    }
    c->pid = 0;
}

typedef struct watched {
    const stream_copy *c;
    uint64_t best; /* bytes there, in any session */
    bool has_moved;
} watched;

static int on_tick(void *ctx, const stream_progress *p) {
    watched *w = ctx;
    uint64_t there = p->had_bytes + p->sent_bytes + (uint64_t)p->n_ok;
    if (there > w->best) {
        w->best = there;
        w->has_moved = true;
    }
    return w->c->send.tick != NULL ? w->c->send.tick(w->c->send.tick_ctx, p) : OK;
}

int stream_copy_run(const stream_copy *c, err *e) {
    watched w = {.c = c};
    int rc = OK;
    for (int n = 0; n < c->n_tries; n++) {
        stream_child child;
        stream_setup s = *c->setup;
        stream_send_options o = c->send;
        rand_secret(s.secret, sizeof s.secret); /* one secret a session */
        w.has_moved = false;
        rc = stream_spawn(&child, c->command, &s, c->m, e);
        if (rc != OK) {
            explicit_bzero(&s, sizeof s);
            return rc;
        }
        o.lines_fd = child.lines_fd;
        o.tick = on_tick;
        o.tick_ctx = &w;
        rc = stream_send(&s, c->m, &o, e);
        stream_child_end(&child, rc == OK ? 3000 : 200);
        explicit_bzero(&s, sizeof s);
        if (rc != ERR_NET && rc != ERR_PEER && rc != ERR_TIMEOUT) break;
        LOG(LOG_WARN, "stream", "session lost", "reason=%s", e != NULL ? e->msg : "");
        if (w.has_moved) n = 0;
        sleep_ms(RETRY_MS);
    }
    return rc;
}
