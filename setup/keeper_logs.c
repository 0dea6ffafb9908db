/* The logs of a rank: packed, rotated, and only so many of them. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/keeper_internal.h"

extern char **environ;

enum { LOGS_MAX = 1024 };
#define ROTATE_BYTES ((uint64_t)64 << 20)

/* gzip FROM into TO; false when it is not installed or fails, and TO is not there then. */
static bool pack(const char *from, const char *to) {
    char name[] = "gzip", option[] = "-c";
    char *argv[] = {name, option, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    pid_t pid = -1;
    int status = -1;
    sigemptyset(&none);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, from, O_RDONLY, 0);
    posix_spawn_file_actions_addopen(
        &actions, 1, to, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&pid, name, &actions, &attr, argv, environ) == 0) {
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
    }
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    bool is_good = pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!is_good) (void)unlink(to);
    return is_good;
}

static void pack_beside(const char *path) {
    buf to = BUF_INIT;
    buf_printf(&to, "%s.gz", path);
    if (pack(path, buf_cstr(&to))) (void)unlink(path);
    buf_release(&to);
}

typedef struct old_logs {
    const char *dir, *prefix;
    char *name[LOGS_MAX];
    struct timespec time[LOGS_MAX];
    size_t n;
} old_logs;

static int note_log(void *ctx, const char *name, err *e) {
    old_logs *l = ctx;
    struct stat st;
    buf path = BUF_INIT;
    (void)e;
    path_join(&path, l->dir, name);
    if (str_starts(name, l->prefix) && l->n < LOGS_MAX && stat(buf_cstr(&path), &st) == 0) {
        l->time[l->n] = st.st_mtim;
        l->name[l->n++] = mem_strdup(name);
    }
    buf_release(&path);
    return OK;
}

static bool is_older(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

static void remove_oldest(old_logs *l) {
    size_t oldest = l->n;
    for (size_t i = 0; i < l->n; i++) {
        if (l->name[i] == NULL) continue;
        if (oldest == l->n || is_older(&l->time[i], &l->time[oldest])) oldest = i;
    }
    if (oldest == l->n) return;
    buf path = BUF_INIT;
    path_join(&path, l->dir, l->name[oldest]);
    (void)unlink(buf_cstr(&path));
    buf_release(&path);
    mem_free(l->name[oldest]);
    l->name[oldest] = NULL;
}

void keeper_logs_thin(const char *dir, int rank, int64_t keep) {
    char prefix[16];
    old_logs *l = mem_alloc(sizeof *l);
    snprintf(prefix, sizeof prefix, "rank%d-", rank);
    l->prefix = prefix;
    l->dir = dir;
    (void)dir_each(dir, note_log, l, NULL);
    for (size_t left = l->n; left >= (size_t)keep && left > 0; left--)
        remove_oldest(l);
    for (size_t i = 0; i < l->n; i++) {
        if (l->name[i] != NULL && str_ends(l->name[i], ".log")) {
            buf path = BUF_INIT;
            path_join(&path, dir, l->name[i]);
            pack_beside(buf_cstr(&path));
            buf_release(&path);
        }
        mem_free(l->name[i]);
    }
    mem_free(l);
}

void keeper_logs_rotate(const char *path) {
    buf to = BUF_INIT;
    uint64_t size = 0;
    if (path[0] == '\0' || file_size(path, &size, NULL) != OK || size < ROTATE_BYTES) return;
    buf_printf(&to, "%s.1.gz", path);
    if (pack(path, buf_cstr(&to)) && truncate(path, 0) != 0)
        LOG(LOG_WARN, "keeper", "log not begun anew", "path=%s", path);
    buf_release(&to);
}
