/* Rank packs as files: what is written comes back the same way in every manner of reading, damage is
 * named and mended, making one goes on after a stop and after kill -9, and what is not a pack for this
 * purpose is refused with a remedy. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/weights/pack_internal.h"

enum { BLOCK = 16 << 10, N_SMALL = 20 };

static char dir[64], path[128];

/* ---- a source whose byte at every place is known ---- */

static uint8_t byte_at(size_t i, uint64_t at) {
    return (uint8_t)(rand_mix(i * 1000003 + at / 8) >> (at % 8 * 8));
}

typedef struct toy {
    pack_list *list;
    atomic_ullong n_filled; /* bytes */
    atomic_uint n_fills;
    unsigned die_at; /* fills before it; 0: it lives */
    int slow_us;     /* per tensor */
    size_t bad;      /* this tensor fails; SIZE_MAX: none */
} toy;

static int toy_fill(void *ctx, size_t i, const uint64_t at_n[2], void *out, err *e) {
    toy *t = ctx;
    if (i == t->bad) return err_set(e, ERR_IO, "the source is gone");
    if (atomic_fetch_add(&t->n_fills, 1) + 1 == t->die_at) kill(getpid(), SIGKILL);
    for (uint64_t k = 0; k < at_n[1]; k++) {
        ((uint8_t *)out)[k] = byte_at(i, at_n[0] + k);
    }
    if (t->slow_us > 0) usleep((useconds_t)t->slow_us);
    atomic_fetch_add(&t->n_filled, at_n[1]);
    return OK;
}

static void toy_add(toy *t, const char *name, pack_entry entry) {
    err e = ERR_INIT;
    entry.name = name;
    if (pack_list_add(t->list, &entry, &e) != OK) fail_msg("%s", e.msg);
}

static void toy_init(toy *t) {
    static const exl3_image image = {EXL3_LAYOUT_CPU, 256, 128, 6, EXL3_MUL1, true};
    *t = (toy){.list = pack_list_new(), .bad = SIZE_MAX};
    for (int i = 0; i < N_SMALL; i++) {
        char name[32];
        snprintf(name, sizeof name, "small.%d", i);
        toy_add(t, name, (pack_entry){.kind = PACK_FLOATS, .n_in = 1 + i * 97, .n_out = 1});
    }
    toy_add(t, "wide", (pack_entry){.kind = PACK_BF16, .n_in = 300, .n_out = 211});
    toy_add(t, "packed", (pack_entry){.kind = PACK_EXL3, .n_in = 256, .n_out = 128, .exl3 = image});
    toy_add(t, "tall", (pack_entry){.kind = PACK_F32, .n_in = 7, .n_out = 1999});
    toy_add(t, "last", (pack_entry){.kind = PACK_FLOATS, .n_in = 3, .n_out = 1});
}

static void toy_release(toy *t) {
    pack_list_free(t->list);
}

static pack_make_options toy_options(void) {
    pack_make_options o = {.path = path, .build = "test", .block_bytes = BLOCK, .n_threads = 2};
    o.id = (pack_identity){
        .layout = EXL3_LAYOUT_CPU, .rank = 1, .world = 2, .has_drafts = true, .source = {7}};
    return o;
}

static int toy_make(toy *t, const pack_make_options *o, pack_make_progress *p, err *e) {
    pack_source s = {.ctx = t, .fill = toy_fill};
    return pack_make(t->list, &s, o, p, e);
}

/* A finished pack of the toy. */
static void make_file(void) {
    toy t;
    pack_make_progress p;
    pack_make_options o = toy_options();
    err e = ERR_INIT;
    toy_init(&t);
    if (toy_make(&t, &o, &p, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(p.phase, PACK_DONE);
    toy_release(&t);
}

static pack *open_file(void) {
    pack *p = NULL;
    err e = ERR_INIT;
    if (pack_open(path, &p, &e) != OK) fail_msg("%s", e.msg);
    return p;
}

static int clean(void **state) {
    (void)state;
    char part[160];
    snprintf(part, sizeof part, "%s.part", path);
    unlink(path);
    unlink(part);
    return 0;
}

/* ---- reading ---- */

static void check_bytes(const pack *p, const uint8_t *area) {
    uint64_t n = 0;
    for (size_t i = 0; i < pack_get_info(p)->n_entries; i++) {
        const pack_entry *t = pack_at(p, i);
        assert_int_equal(t->offset % PACK_ALIGN, 0);
        for (uint64_t k = 0; k < t->bytes; k++) {
            if (area[t->offset + k] != byte_at(i, k))
                fail_msg("%s byte %llu", t->name, (unsigned long long)k);
        }
        for (; n < t->offset; n++) {
            assert_int_equal(area[n], 0);
        }
        n = t->offset + t->bytes;
    }
}

static uint8_t *new_area(const pack *p) {
    return mem_aligned(PACK_PAGE, (size_t)pack_get_info(p)->data_bytes);
}

static int copy_piece(void *ctx, uint64_t offset, const void *data, size_t n, err *e) {
    (void)e;
    memcpy((uint8_t *)ctx + offset, data, n);
    return OK;
}

static void every_way_of_reading_gives_the_same(void **state) {
    (void)state;
    err e = ERR_INIT;
    make_file();
    pack *p = open_file();
    assert_int_equal(pack_get_info(p)->id.rank, 1);
    assert_int_equal(pack_get_info(p)->n_entries, N_SMALL + 4);
    assert_non_null(pack_find(p, "tall"));
    assert_int_equal(pack_find(p, "packed")->exl3.k2, 6);
    assert_null(pack_find(p, "tal"));
    uint8_t *area = new_area(p), *staging = mem_aligned(PACK_PAGE, 7 * PACK_PAGE);
    const pack_load_options ways[] = {{.area = area},
        {.area = area, .n_readers = 5, .piece_bytes = 4096}, {.take = copy_piece, .ctx = area},
        {.take = copy_piece,
            .ctx = area,
            .n_readers = 3,
            .staging = staging,
            .staging_bytes = 7 * PACK_PAGE}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        memset(area, 0xee, (size_t)pack_get_info(p)->data_bytes);
        if (pack_load(p, &ways[i], &e) != OK) fail_msg("way %zu: %s", i, e.msg);
        check_bytes(p, area);
    }
    if (pack_verify(p, NULL, NULL, &e) != OK) fail_msg("%s", e.msg);
    mem_aligned_free(area);
    mem_aligned_free(staging);
    pack_close(p);
}

static int stop_reading(void *ctx, uint64_t offset, const void *data, size_t n, err *e) {
    (void)ctx;
    (void)data;
    (void)n;
    return offset >= 2 * BLOCK ? err_set(e, ERR_CANCELLED, "enough") : OK;
}

static void a_taker_that_fails_stops_the_reading(void **state) {
    (void)state;
    err e = ERR_INIT;
    make_file();
    pack *p = open_file();
    pack_load_options o = {.take = stop_reading, .n_readers = 2, .piece_bytes = 4096};
    assert_int_equal(pack_load(p, &o, &e), ERR_CANCELLED);
    assert_string_equal(e.msg, "enough");
    pack_close(p);
}

/* Reading and writing leave the page cache as it was. */
static void the_page_cache_stays_as_it_was(void **state) {
    (void)state;
    err e = ERR_INIT;
    bool is_direct = false;
    make_file();
    int fd = pack_open_direct(path, O_RDONLY, &is_direct, &e);
    pack *p = open_file();
    size_t n = (size_t)pack_get_info(p)->file_bytes, n_pages = (n + 4095) / 4096, resident = 0;
    uint8_t *area = new_area(p), *in_core = mem_alloc(n_pages);
    pack_load_options o = {.area = area};
    assert_int_equal(pack_load(p, &o, &e), OK);
    void *map = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    assert_int_equal(mincore(map, n, in_core), 0);
    for (size_t i = (size_t)pack_get_info(p)->data_offset / 4096; i < n_pages; i++) {
        resident += in_core[i] & 1;
    }
    munmap(map, n);
    close(fd);
    if (is_direct) assert_int_equal(resident, 0);
    mem_free(in_core);
    mem_aligned_free(area);
    pack_close(p);
}

/* ---- damage ---- */

static void flip(uint64_t at) {
    uint8_t byte = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static void damage_is_named_and_mended(void **state) {
    (void)state;
    err e = ERR_INIT;
    toy t;
    pack_make_progress progress;
    make_file();
    pack *p = open_file();
    const pack_entry *wide = pack_find(p, "wide");
    uint64_t block = wide->offset / BLOCK + 2; /* nothing but this tensor */
    uint8_t *area = new_area(p), *damaged = mem_alloc((size_t)pack_get_info(p)->n_blocks);
    pack_load_options o = {.area = area};
    flip(pack_get_info(p)->data_offset + block * BLOCK + 99);
    assert_int_equal(pack_load(p, &o, &e), ERR_FORMAT);
    char want[64];
    snprintf(want, sizeof want, "block %llu of", (unsigned long long)block + 1);
    assert_non_null(strstr(e.msg, want));
    assert_non_null(strstr(e.msg, "it holds wide; run `tandem prepare --check`"));
    assert_int_equal(pack_verify(p, NULL, damaged, &e), ERR_FORMAT);
    for (uint64_t i = 0; i < pack_get_info(p)->n_blocks; i++) {
        assert_int_equal(damaged[i], i == block);
    }
    pack_close(p);
    /* Made again without --check it is kept as it is; with it, only that block is made. */
    toy_init(&t);
    pack_make_options mo = toy_options();
    assert_int_equal(toy_make(&t, &mo, &progress, &e), OK);
    assert_true(progress.is_kept);
    assert_int_equal(atomic_load(&t.n_filled), 0);
    mo.checks = true;
    if (toy_make(&t, &mo, &progress, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(progress.n_mended, 1);
    assert_int_equal(atomic_load(&t.n_filled), BLOCK);
    p = open_file();
    assert_int_equal(pack_load(p, &o, &e), OK);
    check_bytes(p, area);
    pack_close(p);
    toy_release(&t);
    mem_aligned_free(area);
    mem_free(damaged);
}

static void refuse(int code, const char *word) {
    pack *p = NULL;
    err e = ERR_INIT;
    int rc = pack_open(path, &p, &e);
    if (rc != code || strstr(e.msg, word) == NULL || strstr(e.msg, "tandem prepare") == NULL)
        fail_msg("code %d, wanted %d and '%s' and a remedy in: %s", rc, code, word, e.msg);
    assert_null(p);
}

static void what_is_no_sound_pack_is_refused(void **state) {
    (void)state;
    pack_header h;
    refuse(ERR_NOT_FOUND, "no prepared file");
    assert_int_equal(file_write_atomic(path, "TDRKPACK", 8, 0644, NULL), OK);
    refuse(ERR_FORMAT, "too short");
    make_file();
    pack *p = open_file();
    h = p->h;
    pack_close(p);
    const struct {
        uint64_t at;
        int code;
        const char *word;
    } cases[] = {{0, ERR_FORMAT, "no rank pack"}, {8, ERR_UNSUPPORTED, "version"},
        {40, ERR_FORMAT, "header is damaged"}, {4095, ERR_FORMAT, "header is damaged"},
        {h.table_offset + 40, ERR_FORMAT, "table of tensors is damaged"},
        {h.digests_offset + 70, ERR_FORMAT, "digest of block 1 is damaged"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        flip(cases[i].at);
        refuse(cases[i].code, cases[i].word);
        flip(cases[i].at);
    }
    assert_int_equal(truncate(path, (off_t)h.file_bytes - 4096), 0);
    refuse(ERR_FORMAT, "not complete");
}

static void check_wrong(const pack *p, pack_identity want, const char *word) {
    err e = ERR_INIT;
    int rc = pack_check_identity(p, &want, &e);
    if (rc != ERR_MISMATCH || strstr(e.msg, word) == NULL)
        fail_msg("code %d, wanted '%s' in: %s", rc, word, e.msg);
}

static void a_pack_of_something_else_is_refused(void **state) {
    (void)state;
    make_file();
    pack *p = open_file();
    const pack_identity good = toy_options().id;
    pack_identity w = good;
    assert_int_equal(pack_check_identity(p, &good, NULL), OK);
    w.rank = 0;
    check_wrong(p, w, "holds rank 1 of 2, this process is rank 0 of 2");
    w = good;
    w.world = 1;
    w.rank = 0;
    check_wrong(p, w, "this process is rank 0 of 1");
    w = good;
    w.layout = EXL3_LAYOUT_GPU;
    check_wrong(p, w, "tandem prepare --layout gpu-1");
    w = good;
    w.source[31] = 1;
    check_wrong(p, w, "other weights");
    w = good;
    w.config[0] = 1;
    check_wrong(p, w, "config.json");
    memset(w.source, 0, sizeof w.source); /* no shards there: not compared */
    w.config[0] = 0;
    w.has_drafts = false;
    assert_int_equal(pack_check_identity(p, &w, NULL), OK);
    pack_close(p);
}

/* ---- stopping and going on ---- */

typedef struct stopper {
    uint64_t at_bytes;
    pack_make_progress last;
} stopper;

static int stop_at(void *ctx, const pack_make_progress *p) {
    stopper *s = ctx;
    s->last = *p;
    return p->phase == PACK_WRITING && p->done_bytes >= s->at_bytes ? ERR_CANCELLED : OK;
}

static void a_stopped_pack_goes_on(void **state) {
    (void)state;
    err e = ERR_INIT;
    toy t;
    stopper s = {.at_bytes = 3 * BLOCK};
    pack_make_progress p;
    pack_make_options o = toy_options();
    toy_init(&t);
    o.progress = stop_at;
    o.ctx = &s;
    o.n_threads = 1;
    t.slow_us = 30000; /* longer than progress is told */
    assert_int_equal(toy_make(&t, &o, &p, &e), ERR_CANCELLED);
    assert_false(file_exists(path));
    uint64_t before = atomic_load(&t.n_filled);
    assert_true(before >= 3 * BLOCK);
    t.slow_us = 0;
    s.at_bytes = UINT64_MAX;
    if (toy_make(&t, &o, &p, &e) != OK) fail_msg("%s", e.msg);
    assert_true(p.n_had_blocks >= 3);
    uint64_t data = 0;
    for (size_t i = 0; i < pack_list_count(t.list); i++) {
        data += pack_list_at(t.list, i)->bytes;
    }
    /* Only blocks that were in work (filled, not yet written) were made twice. */
    assert_in_range(atomic_load(&t.n_filled), data, data + 4 * BLOCK);
    pack *file = open_file();
    assert_int_equal(pack_verify(file, NULL, NULL, &e), OK);
    pack_close(file);
    toy_release(&t);
}

static void a_source_that_fails_is_named(void **state) {
    (void)state;
    err e = ERR_INIT;
    toy t;
    pack_make_progress p;
    pack_make_options o = toy_options();
    toy_init(&t);
    t.bad = N_SMALL;
    assert_int_equal(toy_make(&t, &o, &p, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "wide: the source is gone"));
    assert_false(file_exists(path));
    toy_release(&t);
}

/* Another layout of the same name is begun anew and never mixed with what was there. */
static void leftovers_of_another_pack_are_not_used(void **state) {
    (void)state;
    err e = ERR_INIT;
    toy t;
    stopper s = {.at_bytes = 2 * BLOCK};
    pack_make_progress p;
    pack_make_options o = toy_options();
    toy_init(&t);
    t.slow_us = 30000;
    o.n_threads = 1;
    o.progress = stop_at;
    o.ctx = &s;
    assert_int_equal(toy_make(&t, &o, &p, &e), ERR_CANCELLED);
    t.slow_us = 0;
    s.at_bytes = UINT64_MAX;
    o.id.source[5] = 9;
    if (toy_make(&t, &o, &p, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(p.n_had_blocks, 0);
    toy_release(&t);
}

static void two_makers_do_not_meet(void **state) {
    (void)state;
    err e = ERR_INIT;
    char part[160];
    toy t;
    pack_make_progress p;
    pack_make_options o = toy_options();
    toy_init(&t);
    snprintf(part, sizeof part, "%s.part", path);
    int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(toy_make(&t, &o, &p, &e), ERR_BUSY);
    close(fd);
    assert_int_equal(toy_make(&t, &o, &p, &e), OK);
    toy_release(&t);
}

static void too_little_room_is_said_before_writing(void **state) {
    (void)state;
    err e = ERR_INIT;
    toy t = {.list = pack_list_new(), .bad = SIZE_MAX};
    pack_make_progress p;
    pack_make_options o = toy_options();
    o.block_bytes = (uint64_t)1 << 40;
    toy_add(&t, "huge", (pack_entry){.kind = PACK_F32, .n_in = 1 << 28, .n_out = 1 << 20});
    assert_int_equal(toy_make(&t, &o, &p, &e), ERR_FULL);
    assert_non_null(strstr(e.msg, "GB free"));
    assert_int_equal(atomic_load(&t.n_filled), 0);
    toy_release(&t);
}

/* ---- kill -9 ---- */

static _Noreturn void child(unsigned die_at) {
    toy t;
    pack_make_progress p;
    pack_make_options o = toy_options();
    err e = ERR_INIT;
    toy_init(&t);
    t.slow_us = 300;
    t.die_at = die_at;
    _exit(toy_make(&t, &o, &p, &e) == OK ? 0 : 1);
}

static void killed_at_any_point_it_goes_on(void **state) {
    (void)state;
    rand_state r;
    int n_kills = 0, n_rounds = 0, n_before = 0;
    err e = ERR_INIT;
    rand_init(&r, 20261130, 1);
    for (n_rounds = 0; n_rounds < 4; n_rounds++) {
        (void)clean(NULL);
        bool is_done = false;
        for (uint32_t n = 0; !is_done; n++) { /* later and later: a slow machine gets there too */
            int status = 0;
            pid_t pid = fork();
            assert_true(pid >= 0);
            /* The first one in the middle for sure, the others whenever it is. */
            unsigned die_at = n == 0 ? 1 + rand_below(&r, N_SMALL) : 0;
            if (pid == 0) child(die_at);
            if (die_at == 0) {
                usleep((useconds_t)(500 + rand_below(&r, 9000 + 2000 * n)));
                kill(pid, SIGKILL);
            }
            assert_int_equal(waitpid(pid, &status, 0), pid);
            is_done = file_exists(path); /* the kill may come after the end */
            n_kills += WIFSIGNALED(status) ? 1 : 0;
            n_before += WIFSIGNALED(status) && !is_done;
            assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        }
        pack *p = open_file(); /* what has its name is whole, always */
        uint8_t *area = new_area(p);
        pack_load_options o = {.area = area};
        if (pack_load(p, &o, &e) != OK || pack_verify(p, NULL, NULL, &e) != OK)
            fail_msg("%s", e.msg);
        check_bytes(p, area);
        mem_aligned_free(area);
        pack_close(p);
    }
    printf("%d kills in %d rounds, %d before the end\n", n_kills, n_rounds, n_before);
    assert_true(n_before >= n_rounds);
}

/* ---- memory ---- */

static void memory_is_asked_for_before(void **state) {
    (void)state;
    static const char text[] = "MemTotal: 125829120 kB\nMemFree:    20971520 kB\n"
                               "MemAvailable:  115343360 kB\n"; /* 20 free, 110 available GiB */
    const uint64_t gib = (uint64_t)1 << 30;
    err e = ERR_INIT;
    assert_int_equal(
        pack_check_meminfo(text, (const uint64_t[2]){100 * gib, 4 * gib}, false, &e), OK);
    assert_int_equal(
        pack_check_meminfo(text, (const uint64_t[2]){108 * gib, 4 * gib}, false, &e), ERR_MEMORY);
    assert_non_null(strstr(e.msg, "only 110.0 GiB of memory are available (20.0 GiB free)"));
    assert_int_equal(
        pack_check_meminfo(text, (const uint64_t[2]){100 * gib, 4 * gib}, true, &e), ERR_MEMORY);
    assert_non_null(strstr(e.msg, "only 20.0 GiB are free"));
    assert_non_null(strstr(e.msg, "page cache"));
    assert_int_equal(pack_check_meminfo("", (const uint64_t[2]){gib, 0}, true, &e), OK);
}

/* ---- list ---- */

static void a_list_takes_no_nonsense(void **state) {
    (void)state;
    err e = ERR_INIT;
    pack_list *l = pack_list_new();
    pack_entry t = {.name = "a", .kind = PACK_FLOATS, .n_in = 0, .n_out = 1};
    assert_int_equal(pack_list_add(l, &t, &e), ERR_ARG);
    t.n_in = 5;
    assert_int_equal(pack_list_add(l, &t, &e), OK);
    assert_int_equal(pack_list_add(l, &t, &e), ERR_EXISTS);
    t.name = "b";
    t.kind = PACK_EXL3;
    t.exl3 = (exl3_image){EXL3_LAYOUT_GPU, 128, 128, 6, EXL3_MCG, false};
    t.n_in = t.n_out = 128;
    assert_int_equal(pack_list_add(l, &t, &e), ERR_ARG); /* the GPU has no form of it */
    assert_int_equal(pack_list_count(l), 1);
    assert_int_equal(pack_list_data_bytes(l), PACK_PAGE);
    pack_list_free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_way_of_reading_gives_the_same, clean),
        cmocka_unit_test_setup(a_taker_that_fails_stops_the_reading, clean),
        cmocka_unit_test_setup(the_page_cache_stays_as_it_was, clean),
        cmocka_unit_test_setup(damage_is_named_and_mended, clean),
        cmocka_unit_test_setup(what_is_no_sound_pack_is_refused, clean),
        cmocka_unit_test_setup(a_pack_of_something_else_is_refused, clean),
        cmocka_unit_test_setup(a_stopped_pack_goes_on, clean),
        cmocka_unit_test_setup(a_source_that_fails_is_named, clean),
        cmocka_unit_test_setup(leftovers_of_another_pack_are_not_used, clean),
        cmocka_unit_test_setup(two_makers_do_not_meet, clean),
        cmocka_unit_test_setup(too_little_room_is_said_before_writing, clean),
        cmocka_unit_test_setup(killed_at_any_point_it_goes_on, clean),
        cmocka_unit_test(memory_is_asked_for_before),
        cmocka_unit_test(a_list_takes_no_nonsense),
    };
    snprintf(dir, sizeof dir, "/tmp/tandem-pack-XXXXXX");
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(path, sizeof path, "%s/x/rank.pack", dir);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)dir_remove_all(dir, NULL);
    return rc;
}
