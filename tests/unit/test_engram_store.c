/* Packed Engram tables: the file, packing with stops and damage, and the store over it. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/model/engram_cache.h"
#include "engine/model/engram_file.h"
#include "engine/model/engram_store_disk.h"

enum { D = 64, RECORD = 66, ROWS = 150000, ASK = 3000, WAIT_MS = 120000 };

static char dir[64], path[128];

/* The record of a row, a function of its number; never all NaN. */
static void make_row(void *ctx, int64_t row, uint8_t *record) {
    (void)ctx;
    for (int i = 0; i < RECORD; i++) {
        record[i] = (uint8_t)(rand_keyed(5, (uint64_t)row, (uint64_t)i) % 120);
    }
}

static bool is_row(const uint8_t *record, int64_t row) {
    uint8_t want[RECORD];
    make_row(NULL, row, want);
    return memcmp(record, want, RECORD) == 0;
}

static bool is_nan(const uint8_t *record) {
    uint8_t want[RECORD];
    engram_record_poison(want, 1, D);
    return memcmp(record, want, RECORD) == 0;
}

static void make_header(engram_header *h, int64_t first, int64_t n) {
    err e = ERR_INIT;
    const int64_t range[2] = {first, n};
    assert_int_equal(engram_header_init(h, D, range, &e), OK);
    h->layer = 3;
    h->table_rows = ROWS;
    h->source = 77;
}

static const engram_row_source source = {NULL, make_row, 77};

static void pack(int64_t first, int64_t n) {
    engram_header h;
    engram_pack_progress p = {0};
    err e = ERR_INIT;
    make_header(&h, first, n);
    (void)unlink(path);
    if (engram_pack_file(path, &h, &source, NULL, &p, &e) != OK) fail_msg("%s", e.msg);
}

static engram_store *open_store(const engram_disk_options *more) {
    const char *paths[1] = {path};
    engram_disk_options o = *more;
    engram_store *s = NULL;
    err e = ERR_INIT;
    o.paths = paths;
    o.n_tables = 1;
    o.d = D;
    if (engram_store_disk_open(&o, &s, &e) != OK) fail_msg("%s", e.msg);
    return s;
}

static uint64_t later(int ms) {
    return clock_mono_ns() + (uint64_t)ms * 1000000u;
}

static int ask(engram_store *s, const int64_t *rows, int n, uint8_t *out) {
    err e = ERR_INIT;
    int ticket = -1;
    if (s->ops->begin(s, 0, rows, n, out, &ticket, &e) != OK) fail_msg("%s", e.msg);
    return s->ops->wait(s, ticket, later(WAIT_MS), &e);
}

static void check_rows(engram_store *s, int64_t first, int64_t n_rows, rand_state *random) {
    int64_t *rows = mem_array(ASK, sizeof *rows);
    uint8_t *out = mem_alloc((size_t)ASK * RECORD);
    for (int i = 0; i < ASK; i++) {
        rows[i] = first + (int64_t)(rand_u64(random) % (uint64_t)n_rows);
    }
    rows[0] = first;
    rows[1] = first + n_rows - 1;
    rows[2] = rows[3]; /* the same row twice */
    assert_int_equal(ask(s, rows, ASK, out), OK);
    for (int i = 0; i < ASK; i++) {
        assert_true(is_row(out + (size_t)i * RECORD, rows[i]));
    }
    mem_free(rows);
    mem_free(out);
}

/* Every kind of reading gives the rows that were packed; a file of a range holds its rows only. */
static void rows_come_back(void **state) {
    (void)state;
    static const engram_disk_options kinds[] = {{.cache_bytes = 0},
        {.cache_bytes = 1 << 20, .depth = 8}, {.cache_bytes = 64 << 20},
        {.without_ring = true, .cache_bytes = 4096}};
    static const int64_t ranges[][2] = {{0, ROWS}, {50001, 70000}, {ROWS - 1, 1}};
    rand_state random;
    rand_init(&random, 1, 1);
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        pack(ranges[r][0], ranges[r][1]);
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            engram_store *s = open_store(&kinds[k]);
            check_rows(s, ranges[r][0], ranges[r][1], &random);
            check_rows(s, ranges[r][0], ranges[r][1], &random);
            int64_t beyond = ranges[r][0] + ranges[r][1];
            uint8_t out[RECORD];
            int ticket = -1;
            err e = ERR_INIT;
            assert_int_equal(s->ops->begin(s, 0, &beyond, 1, out, &ticket, &e), ERR_ARG);
            engram_store_close(s);
        }
    }
}

/* What was hinted comes from memory. */
static void hints_fill_the_cache(void **state) {
    (void)state;
    int64_t rows[24];
    uint8_t out[24 * RECORD];
    engram_store_stats before, after;
    pack(0, ROWS);
    engram_store *s = open_store(&(engram_disk_options){.cache_bytes = 1 << 20});
    for (int i = 0; i < 24; i++) {
        rows[i] = i * 5003;
    }
    s->ops->hint(s, 0, rows, 24);
    uint64_t deadline = clock_mono_ms() + WAIT_MS;
    do { /* asking for the last one waits for its read at most */
        sleep_ms(5);
        s->ops->stats(s, &before);
        assert_int_equal(ask(s, rows, 24, out), OK);
        s->ops->stats(s, &after);
    } while (after.n_cached - before.n_cached < 24 && clock_mono_ms() < deadline);
    assert_int_equal(after.n_cached - before.n_cached, 24);
    engram_store_close(s);
}

/* Somebody waits for one row while many are only hinted: the row comes before them. */
static void what_is_waited_for_comes_before_hints(void **state) {
    (void)state;
    enum { N = 2000 };
    static int64_t rows[N];
    uint8_t out[RECORD];
    engram_store_stats stats;
    pack(0, ROWS);
    for (int kind = 0; kind < 2; kind++) {
        engram_store *s = open_store(&(engram_disk_options){
            .cache_bytes = 4 << 20, .depth = 1, .test_delay_ms = 5, .without_ring = kind == 1});
        for (int i = 0; i < N; i++) {
            rows[i] = (int64_t)i * 30;
        }
        s->ops->hint(s, 0, rows, N);
        /* One that nobody hinted, one that was hinted last. */
        const int64_t wanted[2] = {31, rows[N - 1]};
        for (int i = 0; i < 2; i++) {
            assert_int_equal(ask(s, &wanted[i], 1, out), OK);
            assert_true(is_row(out, wanted[i]));
        }
        s->ops->stats(s, &stats);
        /* In the order of asking all others would have come first; that takes ten seconds. */
        assert_true(stats.n_ahead < N - 1);
        assert_int_equal(stats.n_errors, 0);
        engram_store_close(s);
    }
}

static void damage(int64_t block, int at) {
    uint8_t byte = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t offset = (off_t)(1 + block) * ENGRAM_BLOCK + at;
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    fsync(fd);
    close(fd);
}

/* A damaged block spoils its own records and no others; the reason names file and block. */
static void damage_ends_only_its_rows(void **state) {
    (void)state;
    enum { N = 400 };
    int64_t rows[N];
    uint8_t out[N * RECORD];
    engram_header h;
    err e = ERR_INIT;
    int ticket = -1;
    pack(0, ROWS);
    damage(7, 100);
    make_header(&h, 0, ROWS);
    for (int kind = 0; kind < 2; kind++) {
        engram_store *s =
            open_store(&(engram_disk_options){.cache_bytes = 1 << 20, .without_ring = kind == 1});
        for (int i = 0; i < N; i++) {
            rows[i] = (int64_t)i * 3 + 1;
        }
        assert_int_equal(s->ops->begin(s, 0, rows, N, out, &ticket, &e), OK);
        assert_int_equal(s->ops->wait(s, ticket, later(WAIT_MS), &e), ERR_FORMAT);
        assert_non_null(strstr(e.msg, path));
        assert_non_null(strstr(e.msg, "block 7"));
        for (int i = 0; i < N; i++) {
            bool is_bad = rows[i] / h.records_per_block == 7;
            const uint8_t *record = out + (size_t)i * RECORD;
            assert_true(is_bad ? is_nan(record) : is_row(record, rows[i]));
        }
        engram_store_close(s);
    }
    assert_int_equal(engram_file_verify(path, NULL, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "block 7"));
}

/* A disk that is late: the wait ends in time, what did not come is NaN, later requests are right and
 * nothing is written into a buffer that was given back. */
static void late_reads_end_in_time(void **state) {
    (void)state;
    enum { N = 300 };
    int64_t rows[N];
    uint8_t *out = mem_alloc(N * RECORD);
    err e = ERR_INIT;
    int ticket = -1;
    pack(0, ROWS);
    for (int i = 0; i < N; i++) {
        rows[i] = (int64_t)i * 400;
    }
    /* Where this thread has to wait so long for the processor that all have come, they come later. */
    engram_store *s = NULL;
    for (int delay_ms = 2, rc = OK; rc == OK && delay_ms < 2000; delay_ms *= 2) {
        engram_store_close(s);
        s = open_store(&(engram_disk_options){.test_delay_ms = delay_ms});
        assert_int_equal(s->ops->begin(s, 0, rows, N, out, &ticket, &e), OK);
        rc = s->ops->wait(s, ticket, later(60), &e);
    }
    assert_int_equal(e.code, ERR_TIMEOUT);
    int n_nan = 0;
    for (int i = 0; i < N; i++) {
        bool was_late = is_nan(out + (size_t)i * RECORD);
        n_nan += was_late;
        assert_true(was_late || is_row(out + (size_t)i * RECORD, rows[i]));
    }
    assert_true(n_nan > 0);
    memset(out, 0xab, N * RECORD);
    uint8_t next[5 * RECORD];
    assert_int_equal(ask(s, rows, 5, next), OK);
    for (int i = 0; i < 5; i++) {
        assert_true(is_row(next + (size_t)i * RECORD, rows[i]));
    }
    for (int i = 0; i < N * RECORD; i++) {
        assert_int_equal(out[i], 0xab);
    }
    engram_store_close(s);
    mem_free(out);
}

static int stop_half(void *ctx, const engram_pack_progress *p) {
    int *n = ctx;
    return ++*n > 1 && p->bytes_done > 3 * 1024 * ENGRAM_BLOCK / 2 ? ERR_CANCELLED : OK;
}

/* Stopped in the middle, packing goes on there; a finished file is kept. */
static void packing_goes_on(void **state) {
    (void)state;
    int n = 0;
    engram_header h, got;
    engram_pack_progress p = {0};
    engram_pack_options o = {.progress = stop_half, .ctx = &n};
    err e = ERR_INIT;
    char part[160];
    snprintf(part, sizeof part, "%s.part", path);
    (void)unlink(path);
    (void)unlink(part);
    make_header(&h, 0, ROWS);
    int rc = OK, n_calls = 0;
    do {
        p = (engram_pack_progress){0};
        n = 0;
        o.progress = n_calls == 0 ? stop_half : NULL;
        rc = engram_pack_file(path, &h, &source, &o, &p, &e);
        assert_int_equal(file_exists(path), rc == OK);
    } while (rc == ERR_CANCELLED && ++n_calls < 3);
    assert_int_equal(rc, OK);
    assert_false(file_exists(part));
    if (n_calls > 0) assert_true(p.is_resumed);
    assert_int_equal(engram_file_verify(path, &got, &e), OK);
    assert_int_equal(got.n_rows, ROWS);
    engram_store *s = open_store(&(engram_disk_options){0});
    rand_state random;
    rand_init(&random, 2, 2);
    check_rows(s, 0, ROWS, &random);
    engram_store_close(s);
    p = (engram_pack_progress){0};
    assert_int_equal(engram_pack_file(path, &h, &source, NULL, &p, &e), OK);
    assert_true(p.is_resumed);
}

/* Wrong headers are refused with the reason. */
static void bad_headers_are_refused(void **state) {
    (void)state;
    const char *paths[1] = {path};
    engram_disk_options o = {.paths = paths, .n_tables = 1, .d = D};
    engram_store *s = NULL;
    err e = ERR_INIT;
    pack(0, 100);
    o.d = 32;
    assert_int_equal(engram_store_disk_open(&o, &s, &e), ERR_MISMATCH);
    o.d = D;
    for (int at = 0; at < 112; at += 9) {
        pack(0, 100);
        damage(-1, at);
        assert_int_equal(engram_store_disk_open(&o, &s, &e), ERR_FORMAT);
        assert_null(s);
    }
    pack(0, 100);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_not_equal(engram_store_disk_open(&o, &s, &e), OK);
    (void)unlink(path);
    assert_int_equal(engram_store_disk_open(&o, &s, &e), ERR_NOT_FOUND);
}

static void cache_keeps_the_newest(void **state) {
    (void)state;
    uint8_t record[8] = {0};
    engram_cache *c = engram_cache_new(1 << 12, sizeof record);
    assert_non_null(c);
    assert_null(engram_cache_new(10, 8));
    for (int64_t row = 0; row < 1000; row++) {
        memcpy(record, &row, sizeof row);
        engram_cache_put(c, (int)(row % 2), row, record);
        const uint8_t *got = engram_cache_get(c, (int)(row % 2), row);
        assert_memory_equal(got, record, sizeof record);
        assert_null(engram_cache_get(c, (int)(row % 2) + 2, row));
    }
    int n = 0;
    for (int64_t row = 0; row < 1000; row++) {
        const uint8_t *got = engram_cache_get(c, (int)(row % 2), row);
        if (got == NULL) continue;
        n++;
        assert_memory_equal(got, &row, sizeof row);
    }
    assert_true(n > 64 && n < 300);
    engram_cache_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_come_back),
        cmocka_unit_test(hints_fill_the_cache),
        cmocka_unit_test(what_is_waited_for_comes_before_hints),
        cmocka_unit_test(damage_ends_only_its_rows), cmocka_unit_test(late_reads_end_in_time),
        cmocka_unit_test(packing_goes_on), cmocka_unit_test(bad_headers_are_refused),
        cmocka_unit_test(cache_keeps_the_newest)};
    snprintf(dir, sizeof dir, "/tmp/tandem-engram.XXXXXX");
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(path, sizeof path, "%s/t.tde", dir);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)dir_remove_all(dir, NULL);
    return rc;
}
