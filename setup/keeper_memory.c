/* Memory around a load and while serving. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/keeper_internal.h"

enum { DEPTH_MAX = 4, PROCESSES_MAX = 4096 };

static void evict_file(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static void evict_below(const char *dir, int depth) {
    DIR *d = depth < DEPTH_MAX ? opendir(dir) : NULL;
    if (d == NULL) return;
    buf path = BUF_INIT;
    for (struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d)) {
        struct stat st;
        if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, "..")) continue;
        path_join(&path, dir, entry->d_name);
        if (lstat(buf_cstr(&path), &st) != 0) continue;
        if (S_ISDIR(st.st_mode)) evict_below(buf_cstr(&path), depth + 1);
        if (S_ISREG(st.st_mode)) evict_file(buf_cstr(&path));
    }
    buf_release(&path);
    closedir(d);
}

void keeper_evict(const char *dir) {
    if (dir != NULL) evict_below(dir, 0);
}

/* A number of kilobytes behind a name in a file of /proc. */
static uint64_t kilobytes(const char *path, const char *name) {
    buf text = BUF_INIT;
    unsigned long long value = 0;
    if (file_read(path, &text, 64 << 10, NULL) == OK) {
        const char *at = strstr(buf_cstr(&text), name);
        if (at != NULL) value = strtoull(at + strlen(name), NULL, 10);
    }
    buf_release(&text);
    return (uint64_t)value << 10;
}

uint64_t keeper_available(void) {
    return kilobytes("/proc/meminfo", "MemAvailable:");
}

/* ---- the guard ---- */

typedef struct sample {
    long pid;
    uint64_t bytes;
} sample;

struct keeper_guard {
    uint64_t limit_bytes, low_from_ms, sampled_ms;
    uint64_t for_ms;
    sample before[PROCESSES_MAX];
    size_t n_before;
};

keeper_guard *keeper_guard_new(int64_t limit_mib, int64_t seconds) {
    keeper_guard *g = mem_alloc(sizeof *g);
    g->limit_bytes = (uint64_t)limit_mib << 20;
    g->for_ms = (uint64_t)seconds * 1000;
    return g;
}

void keeper_guard_free(keeper_guard *g) {
    mem_free(g);
}

static uint64_t resident(long pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/status", pid);
    return kilobytes(path, "VmRSS:");
}

/* Calls fn with every process that can be seen. */
static void each_process(void (*fn)(void *ctx, long pid), void *ctx) {
    DIR *d = opendir("/proc");
    for (struct dirent *entry = d != NULL ? readdir(d) : NULL; entry != NULL; entry = readdir(d)) {
        char *end = NULL;
        long pid = strtol(entry->d_name, &end, 10);
        if (pid > 0 && *end == '\0') fn(ctx, pid);
    }
    if (d != NULL) closedir(d);
}

static void keep_sample(void *ctx, long pid) {
    keeper_guard *g = ctx;
    if (g->n_before < PROCESSES_MAX) g->before[g->n_before++] = (sample){pid, resident(pid)};
}

typedef struct growth {
    const keeper_guard *g;
    long pid;
    uint64_t bytes, grown;
} growth;

static void find_growth(void *ctx, long pid) {
    growth *best = ctx;
    uint64_t now = resident(pid), before = 0;
    for (size_t i = 0; i < best->g->n_before; i++) {
        if (best->g->before[i].pid == pid) before = best->g->before[i].bytes;
    }
    if (now <= before || now - before <= best->grown) return;
    *best = (growth){best->g, pid, now, now - before};
}

static void name_growth(const keeper_guard *g, uint64_t available, char *why, size_t cap) {
    growth best = {.g = g};
    char path[64], name[64] = "";
    buf text = BUF_INIT;
    each_process(find_growth, &best);
    snprintf(path, sizeof path, "/proc/%ld/comm", best.pid);
    if (best.pid > 0 && file_read(path, &text, 4096, NULL) == OK)
        str_copy(name, sizeof name, buf_cstr(&text));
    name[strcspn(name, "\n")] = '\0';
    int n = snprintf(why, cap, "only %llu MiB of memory were available, the limit is %llu",
        (unsigned long long)(available >> 20), (unsigned long long)(g->limit_bytes >> 20));
    if (best.pid > 0 && n > 0 && (size_t)n < cap)
        snprintf(why + n, cap - (size_t)n,
            "; %s (process %ld) grew most, by %llu MiB to %llu: give it a memory limit", name,
            best.pid, (unsigned long long)(best.grown >> 20),
            (unsigned long long)(best.bytes >> 20));
    buf_release(&text);
}

bool keeper_guard_look(keeper_guard *g, char *why, size_t cap) {
    uint64_t now = clock_mono_ms(), available = keeper_available();
    if (available == 0 || available >= g->limit_bytes) {
        g->low_from_ms = 0;
        /* What the processes held while all was well is what growth is measured against. */
        if (g->sampled_ms == 0 || now - g->sampled_ms >= 30000) {
            g->n_before = 0;
            each_process(keep_sample, g);
            g->sampled_ms = now;
        }
        return false;
    }
    if (g->low_from_ms == 0) g->low_from_ms = now;
    if (now - g->low_from_ms < g->for_ms) return false;
    name_growth(g, available, why, cap);
    return true;
}
