/* This machine: files directly, commands as children without a shell. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/node_access_internal.h"

enum { TOOL_MS = 20000, TOOL_MAX = 1 << 20, PIECE = 32 << 10, WAIT_MS = 50 };

int node_local_read(node_access *n, const char *path, size_t max, buf *out, err *e) {
    buf full = BUF_INIT;
    int rc = node_path(n, path, &full);
    if (rc == OK) rc = file_read(buf_cstr(&full), out, max, e);
    buf_release(&full);
    return rc;
}

static int add_name(void *ctx, const char *name, err *e) {
    (void)e;
    return buf_printf(ctx, "%s\n", name);
}

int node_local_list(node_access *n, const char *path, buf *out, err *e) {
    buf full = BUF_INIT;
    int rc = node_path(n, path, &full);
    if (rc == OK) rc = dir_each(buf_cstr(&full), add_name, out, e);
    buf_release(&full);
    return rc;
}

/* ERR_ARG when it is there but no link. */
int node_local_link(node_access *n, const char *path, buf *out, err *e) {
    char target[4096];
    buf full = BUF_INIT;
    int rc = node_path(n, path, &full);
    ssize_t len = rc == OK ? readlink(buf_cstr(&full), target, sizeof target) : -1;
    if (rc == OK && len < 0 && errno == EINVAL) rc = err_set(e, ERR_ARG, "%s is no link", path);
    if (rc == OK && len < 0) rc = err_errno(e, "%s cannot be read", path);
    if (rc == OK) rc = buf_append(out, target, (size_t)len);
    buf_release(&full);
    return rc;
}

int node_local_write(
    node_access *n, const char *path, const void *data, size_t len, unsigned mode, err *e) {
    buf full = BUF_INIT;
    int rc = node_path(n, path, &full);
    if (rc == OK) rc = file_write_atomic(buf_cstr(&full), data, len, mode, e);
    buf_release(&full);
    return rc;
}

typedef struct child {
    pid_t pid;
    int in, out[2]; /* our ends; -1 when closed */
} child;

static void child_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Tools answer in English and are found in the sbin folders too. */
static char **tool_environment(const node_access *n) {
    extern char **environ;
    size_t count = 0;
    while (environ[count] != NULL)
        count++;
    char **list = mem_array(count + 4, sizeof *list);
    size_t k = 0;
    for (size_t i = 0; i < count; i++) {
        if (!str_starts(environ[i], "LC_ALL=") && !str_starts(environ[i], "PATH=")) {
            list[k++] = mem_strdup(environ[i]);
        }
    }
    const char *path = getenv("PATH");
    buf text = BUF_INIT;
    (void)buf_printf(&text, "PATH=%s:/usr/sbin:/sbin", path != NULL ? path : "/usr/bin:/bin");
    list[k++] = mem_strdup("LC_ALL=C");
    list[k++] = buf_take(&text);
    (void)buf_printf(&text, "NODE_ROOT=%s", n->root);
    list[k] = buf_take(&text);
    return list;
}

static void list_free(char **list) {
    for (size_t i = 0; list[i] != NULL; i++)
        mem_free(list[i]);
    mem_free(list);
}

static int spawn_in(
    const node_access *n, const node_command *c, const int theirs[3], child *k, err *e) {
    buf tool = BUF_INIT;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    /* A group of its own, so that a deadline ends its children too. */
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attr, &none);
    for (int i = 0; i < 3; i++)
        posix_spawn_file_actions_adddup2(&actions, theirs[i], i);
    int rc = n->root[0] != '\0' && c->argv[0][0] != '/'
                 ? buf_printf(&tool, "%s/tools/%s", n->root, c->argv[0])
                 : buf_puts(&tool, c->argv[0]);
    char **env = tool_environment(n);
    int problem = rc != OK ? ENOMEM
                           : posix_spawnp(&k->pid, buf_cstr(&tool), &actions, &attr,
                                 (char *const *)(uintptr_t)c->argv, env);
    list_free(env);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    buf_release(&tool);
    if (problem == ENOENT) return node_no_tool(n, c->argv[0], e);
    if (problem != 0)
        return err_set(e, ERR_IO, "%s cannot be run: %s", c->argv[0], strerror(problem));
    return OK;
}

static int child_start(const node_access *n, const node_command *c, child *k, err *e) {
    int in[2] = {-1, -1}, out[2] = {-1, -1}, errs[2] = {-1, -1};
    *k = (child){-1, -1, {-1, -1}};
    int rc = pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0 && pipe2(errs, O_CLOEXEC) == 0
                 ? OK
                 : err_errno(e, "no pipe for %s", c->argv[0]);
    if (rc == OK) {
        const int theirs[3] = {in[0], out[1], errs[1]};
        rc = spawn_in(n, c, theirs, k, e);
    }
    child_close(&in[0]);
    child_close(&out[1]);
    child_close(&errs[1]);
    if (rc != OK) {
        child_close(&in[1]);
        child_close(&out[0]);
        child_close(&errs[0]);
        return rc;
    }
    k->in = in[1];
    k->out[0] = out[0];
    k->out[1] = errs[0];
    for (int i = 0; i < 2; i++)
        (void)fcntl(k->out[i], F_SETFL, O_NONBLOCK);
    (void)fcntl(k->in, F_SETFL, O_NONBLOCK);
    return OK;
}

static int take(const node_command *c, remote_result *r, int i, const char *p, size_t n, err *e) {
    if (c->sink != NULL) return c->sink(c->sink_ctx, i == 1, p, n);
    buf *b = i == 1 ? &r->err : &r->out;
    size_t max = c->max_out > 0 ? c->max_out : TOOL_MAX;
    if (b->len + n > max) {
        return err_set(e, ERR_LIMIT, "%s printed more than %zu bytes", c->argv[0], max);
    }
    return buf_append(b, p, n);
}

static int move_bytes(const node_command *c, child *k, size_t *sent, remote_result *r, err *e) {
    char piece[PIECE];
    struct pollfd p[3] = {{.fd = k->out[0], .events = POLLIN}, {.fd = k->out[1], .events = POLLIN},
        {.fd = k->in, .events = POLLOUT}};
    (void)poll(p, 3, WAIT_MS);
    for (int i = 0; i < 2; i++) {
        if (k->out[i] < 0) continue;
        ssize_t n = read(k->out[i], piece, sizeof piece);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n <= 0) {
            child_close(&k->out[i]);
            continue;
        }
        int rc = take(c, r, i, piece, (size_t)n, e);
        if (rc != OK) return rc;
    }
    if (k->in < 0) return OK;
    if (*sent < c->n_input) {
        ssize_t n = write(k->in, (const char *)c->input + *sent, c->n_input - *sent);
        if (n > 0) *sent += (size_t)n;
        if (n < 0 && errno != EAGAIN && errno != EINTR) *sent = c->n_input;
    }
    if (*sent >= c->n_input) child_close(&k->in);
    return OK;
}

static int child_pump(const node_command *c, child *k, remote_result *r, err *e) {
    uint64_t deadline = UINT64_MAX;
    if (c->timeout_ms >= 0)
        deadline = clock_mono_ms() + (uint64_t)(c->timeout_ms > 0 ? c->timeout_ms : TOOL_MS);
    size_t sent = 0;
    while (k->out[0] >= 0 || k->out[1] >= 0) {
        int rc = move_bytes(c, k, &sent, r, e);
        if (rc != OK) return rc;
        if (c->stop != NULL && atomic_load(c->stop)) {
            return err_set(e, ERR_CANCELLED, "%s was stopped", c->argv[0]);
        }
        if (clock_mono_ms() >= deadline) {
            return err_set(e, ERR_TIMEOUT, "%s did not end in time", c->argv[0]);
        }
    }
    return OK;
}

int node_local_run(node_access *n, const node_command *c, remote_result *r, err *e) {
    child k;
    buf_reset(&r->out);
    buf_reset(&r->err);
    r->exit_code = -1;
    r->signal[0] = '\0';
    int rc = child_start(n, c, &k, e);
    if (rc != OK) return rc;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    /* A command that does not read its input must not end us. */
    (void)sigaction(SIGPIPE, &ignore, &before);
    rc = child_pump(c, &k, r, e);
    (void)sigaction(SIGPIPE, &before, NULL);
    if (rc != OK) (void)kill(-k.pid, SIGKILL);
    child_close(&k.in);
    child_close(&k.out[0]);
    child_close(&k.out[1]);
    int status = 0;
    while (waitpid(k.pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFEXITED(status)) r->exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) {
        const char *name = sigabbrev_np(WTERMSIG(status));
        str_copy(r->signal, sizeof r->signal, name != NULL ? name : "?");
    }
    return rc;
}
