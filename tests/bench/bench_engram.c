/* Random rows of a packed Engram table on this disk against what fio reaches with the same block
 * size in the same run. The table is generated, at least 20 GB, and removed afterwards, so it runs
 * only with TANDEM_LONG=1. BENCH_DIR names the folder (default: the working folder); with
 * BENCH_KEEP=1 the table stays there for the next run. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/model/engram_file.h"
#include "engine/model/engram_store_disk.h"

enum { D = 256, RUN_S = 8, DEPTH = 256, MAX_SAMPLES = 1 << 20 };
#define TABLE_BYTES ((int64_t)21 << 30)

static void make_row(void *ctx, int64_t row, uint8_t *record) {
    (void)ctx;
    uint64_t word = rand_mix((uint64_t)row + 1);
    for (int i = 0; i < 264; i += 8, word = word * 6364136223846793005u + 1442695040888963407u) {
        memcpy(record + i, &word, 8);
    }
}

static bool is_row(const uint8_t *record, int64_t row) {
    uint8_t want[264];
    make_row(NULL, row, want);
    return memcmp(record, want, sizeof want) == 0;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int fail(const char *what, const err *e) {
    fprintf(stderr, "bench_engram: %s: %s\n", what, e->msg);
    return 1;
}

/* Requests of n rows for a while; prints one line, returns rows a second. */
static double measure(engram_store *s, int64_t n_rows, int n, uint64_t *samples) {
    int64_t *rows = mem_array((size_t)n, sizeof *rows);
    uint8_t *out = mem_alloc((size_t)n * 264);
    rand_state random;
    rand_init(&random, 3, (uint64_t)n);
    uint64_t start = clock_mono_ns(), end = start + (uint64_t)RUN_S * 1000000000u, now = start;
    size_t n_samples = 0;
    int64_t n_bad = 0;
    err e = ERR_INIT;
    while (now < end && n_samples < MAX_SAMPLES) {
        int ticket = -1;
        for (int i = 0; i < n; i++) {
            rows[i] = (int64_t)(rand_u64(&random) % (uint64_t)n_rows);
        }
        uint64_t before = clock_mono_ns();
        if (s->ops->begin(s, 0, rows, n, out, &ticket, &e) != OK ||
            s->ops->wait(s, ticket, before + 60000000000u, &e) != OK) {
            (void)fail("reading", &e);
            break;
        }
        now = clock_mono_ns();
        samples[n_samples++] = now - before;
        n_bad += !is_row(out, rows[0]) + !is_row(out + (size_t)(n - 1) * 264, rows[n - 1]);
    }
    double seconds = (double)(now - start) / 1e9;
    double rate = (double)n_samples * n / seconds;
    qsort(samples, n_samples, sizeof *samples, by_value);
    printf("engram_read rows_per_request=%d rows_per_s=%.0f mib_per_s=%.1f p50_us=%.0f p99_us=%.0f "
           "p999_us=%.0f max_us=%.0f wrong=%lld\n",
        n, rate, rate * ENGRAM_BLOCK / 1048576.0, (double)samples[n_samples / 2] / 1e3,
        (double)samples[n_samples * 99 / 100] / 1e3, (double)samples[n_samples * 999 / 1000] / 1e3,
        (double)samples[n_samples - 1] / 1e3, (long long)n_bad);
    fflush(stdout);
    mem_free(rows);
    mem_free(out);
    return rate;
}

static double percentile_us(const json *read, const char *name) {
    double ns = -1.0;
    json_double(json_get(json_get(json_get(read, "clat_ns"), "percentile"), name), &ns);
    return ns / 1e3;
}

/* fio on the same file: random direct reads of one block. Reads a second; below 0: there is no fio. */
static double measure_fio(const char *path, int depth) {
    char command[700], text[128];
    buf out = BUF_INIT;
    json *v = NULL;
    double iops = -1.0;
    int fds[2];
    snprintf(command, sizeof command,
        "fio --name=r --filename=%s --rw=randread --bs=%d --direct=1 --ioengine=io_uring "
        "--iodepth=%d --runtime=%d --time_based --readonly --norandommap --output-format=json",
        path, ENGRAM_BLOCK, depth, RUN_S);
    if (pipe(fds) != 0) return -1.0;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    for (ssize_t n; (n = read(fds[0], text, sizeof text)) > 0;) {
        buf_append(&out, text, (size_t)n);
    }
    close(fds[0]);
    waitpid(pid, NULL, 0);
    const char *at = strchr(buf_cstr(&out), '{');
    if (at == NULL || json_parse(at, strlen(at), NULL, &v, NULL) != OK) {
        printf("fio_randread depth=%d absent\n", depth);
        buf_release(&out);
        return -1.0;
    }
    const json *read_part = json_get(json_at(json_get(v, "jobs"), 0), "read");
    json_double(json_get(read_part, "iops"), &iops);
    printf("fio_randread depth=%d iops=%.0f mib_per_s=%.1f p50_us=%.0f p99_us=%.0f p999_us=%.0f\n",
        depth, iops, iops * ENGRAM_BLOCK / 1048576.0, percentile_us(read_part, "50.000000"),
        percentile_us(read_part, "99.000000"), percentile_us(read_part, "99.900000"));
    fflush(stdout);
    json_free(v);
    buf_release(&out);
    return iops;
}

static int make_table(const char *path, engram_header *h, err *e) {
    const engram_row_source source = {NULL, make_row, 1};
    engram_pack_progress p = {0};
    int64_t n_rows = TABLE_BYTES / ENGRAM_BLOCK * 15;
    int rc = engram_header_init(h, D, (const int64_t[2]){0, n_rows}, e);
    h->table_rows = n_rows;
    h->source = 1;
    uint64_t start = clock_mono_ms();
    if (rc == OK) rc = engram_pack_file(path, h, &source, NULL, &p, e);
    double seconds = (double)(clock_mono_ms() - start) / 1e3;
    if (rc == OK) {
        printf("engram_pack bytes=%lld seconds=%.1f mib_per_s=%.0f\n", (long long)TABLE_BYTES,
            seconds, (double)TABLE_BYTES / 1048576.0 / seconds);
        fflush(stdout);
    }
    return rc;
}

int main(void) {
    static const int sizes[] = {24, 144, 3072, 24576};
    const char *dir = getenv("BENCH_DIR");
    char path[512];
    const char *paths[1] = {path};
    struct statvfs v;
    engram_header h;
    engram_store *s = NULL;
    err e = ERR_INIT;
    if (getenv("TANDEM_LONG") == NULL) {
        puts("engram_read skipped: it writes 21 GiB; set TANDEM_LONG=1");
        return 0;
    }
    if (dir == NULL) dir = ".";
    snprintf(path, sizeof path, "%s/bench-engram.tde", dir);
    if (statvfs(dir, &v) != 0 || (int64_t)(v.f_bavail * v.f_frsize) < TABLE_BYTES * 5 / 4) {
        puts("engram_read skipped: the disk has no room for 21 GiB");
        return 0;
    }
    if (make_table(path, &h, &e) != OK) return fail("packing", &e);
    engram_disk_options o = {.paths = paths, .n_tables = 1, .d = D, .depth = DEPTH};
    if (engram_store_disk_open(&o, &s, &e) != OK) return fail("opening", &e);
    uint64_t *samples = mem_array(MAX_SAMPLES, sizeof *samples);
    (void)measure_fio(path, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int depth = sizes[i] < DEPTH ? sizes[i] : DEPTH;
        /* Before and after, as the disk is not alone. */
        double before = measure_fio(path, depth);
        double rate = measure(s, h.n_rows, sizes[i], samples);
        double after = measure_fio(path, depth);
        printf("engram_share rows_per_request=%d of_fio_at_depth=%d percent=%.0f\n", sizes[i],
            depth, 200.0 * rate / (before + after));
    }
    engram_store_close(s);
    mem_free(samples);
    if (getenv("BENCH_KEEP") == NULL) (void)unlink(path);
    return 0;
}
