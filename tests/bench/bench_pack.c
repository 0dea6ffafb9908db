/* Loading a rank pack from this disk against dd with O_DIRECT on the same file in the same run. The
 * pack is generated (BENCH_GIB, default 2) and removed afterwards. BENCH_DIR names the folder
 * (default: the working folder). */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/weights/pack.h"

extern char **environ;

enum { N_ROUNDS = 4, TENSOR_ROWS = 1152, TENSOR_COLUMNS = 960, DD_BLOCK_MIB = 4 };

static int fill(void *ctx, size_t i, const uint64_t at_n[2], void *out, err *e) {
    uint64_t word = rand_mix(i + at_n[0]);
    (void)ctx;
    (void)e;
    for (uint64_t k = 0; k + 8 <= at_n[1]; k += 8, word = word * 6364136223846793005u + 1) {
        memcpy((uint8_t *)out + k, &word, 8);
    }
    return OK;
}

static int make(const char *path, uint64_t bytes, err *e) {
    pack_list *l = pack_list_new();
    pack_source s = {.fill = fill};
    pack_make_options o = {.path = path, .build = "bench"};
    pack_make_progress p;
    o.id.world = 1;
    int rc = OK;
    for (uint64_t i = 0, n = 0; n < bytes && rc == OK; i++) {
        char name[32];
        snprintf(name, sizeof name, "expert.%llu", (unsigned long long)i);
        pack_entry t = {
            .name = name, .kind = PACK_BF16, .n_in = TENSOR_COLUMNS, .n_out = TENSOR_ROWS};
        rc = pack_list_add(l, &t, e);
        n = pack_list_data_bytes(l);
    }
    uint64_t start = clock_mono_ns();
    if (rc == OK) rc = pack_make(l, &s, &o, &p, e);
    double seconds = (double)(clock_mono_ns() - start) / 1e9;
    if (rc == OK)
        printf("making, read back included: %.2f GB in %.1f s, %.2f GB/s\n",
            (double)p.data_bytes / 1e9, seconds, (double)p.data_bytes / 1e9 / seconds);
    pack_list_free(l);
    return rc;
}

/* Seconds that dd takes for the whole file; 0: it did not work. */
static double run_dd(const char *path) {
    char from[600], block[32];
    int status = -1;
    snprintf(from, sizeof from, "if=%s", path);
    snprintf(block, sizeof block, "bs=%dM", DD_BLOCK_MIB);
    char *argv[] = {(char *)"dd", from, (char *)"of=/dev/null", block, (char *)"iflag=direct",
        (char *)"status=none", NULL};
    pid_t pid = -1;
    uint64_t start = clock_mono_ns();
    if (posix_spawnp(&pid, "dd", NULL, NULL, argv, environ) != 0) return 0;
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return 0;
    return (double)(clock_mono_ns() - start) / 1e9;
}

static int drop(void *ctx, uint64_t offset, const void *data, size_t n, err *e) {
    (void)ctx;
    (void)offset;
    (void)data;
    (void)n;
    (void)e;
    return OK;
}

typedef struct way {
    const char *name;
    int n_readers;
    bool is_area;
    double best; /* GB/s */
} way;

static int run_way(const pack *p, way *w, void *area, err *e) {
    pack_load_options o = {
        .n_readers = w->n_readers, .area = w->is_area ? area : NULL, .take = drop};
    uint64_t start = clock_mono_ns();
    int rc = pack_load(p, &o, e);
    double rate = (double)pack_get_info(p)->data_bytes / (double)(clock_mono_ns() - start);
    w->best = rate > w->best ? rate : w->best;
    return rc;
}

static int compare(const char *path, err *e) {
    way ways[] = {{"1 reader, to a taker", 1, false, 0}, {"2 readers, to a taker", 2, false, 0},
        {"4 readers, to a taker", 4, false, 0}, {"8 readers, to a taker", 8, false, 0},
        {"4 readers, into its place", 4, true, 0}};
    double dd = 0;
    pack *p = NULL;
    int rc = pack_open(path, &p, e);
    if (rc != OK) return rc;
    size_t bytes = (size_t)pack_get_info(p)->data_bytes;
    void *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < N_ROUNDS && rc == OK; round++) {
        double s = run_dd(path);
        double rate = s > 0 ? (double)pack_get_info(p)->file_bytes / 1e9 / s : 0;
        dd = rate > dd ? rate : dd;
        for (size_t i = 0; i < sizeof ways / sizeof ways[0] && rc == OK; i++) {
            rc = area != MAP_FAILED || !ways[i].is_area ? run_way(p, &ways[i], area, e) : OK;
        }
    }
    printf("dd, O_DIRECT, %d MiB blocks: %.2f GB/s (best of %d)\n", DD_BLOCK_MIB, dd, N_ROUNDS);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        printf("loading with CRC-32C, %s: %.2f GB/s, %.0f %% of dd\n", ways[i].name, ways[i].best,
            dd > 0 ? 100 * ways[i].best / dd : 0);
    }
    if (area != MAP_FAILED) munmap(area, bytes);
    pack_close(p);
    return rc;
}

int main(void) {
    const char *dir = getenv("BENCH_DIR"), *size = getenv("BENCH_GIB");
    char path[512];
    uint64_t gib = 2;
    err e = ERR_INIT;
    if (size != NULL && (parse_u64(size, &gib) != OK || gib == 0 || gib > 200)) gib = 2;
    snprintf(path, sizeof path, "%s/bench-%d.pack", dir != NULL ? dir : ".", (int)getpid());
    int rc = make(path, gib << 30, &e);
    if (rc == OK) rc = compare(path, &e);
    (void)unlink(path);
    if (rc != OK) fprintf(stderr, "bench_pack: %s\n", e.msg);
    return rc == OK ? 0 : 1;
}
