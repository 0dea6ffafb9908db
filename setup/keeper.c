/* The process: lock, socket, signals, and one look at everything whenever something happens. */
#include "setup/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "setup/keeper_internal.h"
#include "setup/paths.h"

enum { LOOK_MS = 50, LINGER_MS = 500 };

static int take_lock(keeper *k, err *e) {
    buf dir = BUF_INIT, path = BUF_INIT;
    int rc = keeper_file("lock", &path, e);
    if (rc == OK) rc = path_dir(&dir, buf_cstr(&path));
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    if (rc == OK) {
        k->lock_fd = open(buf_cstr(&path), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (k->lock_fd < 0) rc = err_errno(e, "opening %s", buf_cstr(&path));
    }
    if (rc == OK && flock(k->lock_fd, LOCK_EX | LOCK_NB) != 0)
        rc = err_set(e, ERR_BUSY, "a keeper runs here already (it holds %s)", buf_cstr(&path));
    buf_release(&dir);
    buf_release(&path);
    return rc;
}

static int take_signals(keeper *k, err *e) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGHUP);
    (void)signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) return err_errno(e, "blocking signals");
    k->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return k->signal_fd >= 0 ? OK : err_errno(e, "making a descriptor for signals");
}

static void take_signal(keeper *k) {
    struct signalfd_siginfo s;
    while (read(k->signal_fd, &s, sizeof s) == (ssize_t)sizeof s) {
        if (s.ssi_signo != SIGTERM && s.ssi_signo != SIGINT) continue;
        k->wants_quit = true;
        keeper_ask_stop(k);
    }
}

static bool is_done(const keeper *k) {
    if (!keeper_is_over(k)) return false;
    uint64_t idle_ms = clock_mono_ms() - k->idle_from_ms;
    if (k->wants_quit || (k->has_order && !k->options.stays)) return idle_ms >= LINGER_MS;
    return k->options.idle_s > 0 && idle_ms >= (uint64_t)k->options.idle_s * 1000;
}

static void follow(keeper *k) {
    struct pollfd p[3] = {{.fd = k->listen_fd, .events = POLLIN},
        {.fd = k->wake_fd, .events = POLLIN}, {.fd = k->signal_fd, .events = POLLIN}};
    while (!is_done(k)) {
        uint64_t count;
        (void)poll(p, 3, LOOK_MS);
        while (read(k->wake_fd, &count, sizeof count) == (ssize_t)sizeof count)
            continue;
        take_signal(k);
        keeper_answer(k);
        keeper_step(k);
    }
}

static void close_fd(int fd) {
    if (fd >= 0) close(fd);
}

int keeper_run(const keeper_options *o, err *e) {
    buf path = BUF_INIT;
    keeper *k = mem_alloc(sizeof *k);
    k->options = *o;
    k->last_code = -1;
    k->lock_fd = k->listen_fd = k->signal_fd = -1;
    k->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    k->idle_from_ms = clock_mono_ms();
    keeper_order_init(&k->order);
    int rc = take_lock(k, e);
    if (rc == OK) rc = take_signals(k, e);
    if (rc == OK) rc = keeper_listen(k, e);
    if (rc == OK) {
        LOG(LOG_INFO, "keeper", "waits for orders", "stays=%d", o->stays);
        follow(k);
        k->is_leaving = true;
        if (k->has_order) keeper_state_write(k);
        if (keeper_socket_path(&path, NULL) == OK) (void)unlink(buf_cstr(&path));
    }
    keeper_order_release(&k->order);
    close_fd(k->listen_fd);
    close_fd(k->signal_fd);
    close_fd(k->wake_fd);
    close_fd(k->lock_fd);
    buf_release(&path);
    mem_free(k);
    return rc;
}
