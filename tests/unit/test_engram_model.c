/* The demo model over packed Engram tables: the same bits as over tables in memory; a damaged table
 * and a row that goes wrong end their own streams and change nothing for the others. */
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

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/model/engram_file.h"
#include "engine/model/engram_store_disk.h"
#include "engine/model/model.h"

enum { N_SLOTS = 3, N_TOKENS = 9 };

static char model_dir[512], dir[64];
static model_config config;

/* Different prompts; only the last holds token 77. */
static int32_t token_at(int slot, int i) {
    if (slot == N_SLOTS - 1 && i == 4) return 77;
    return 100 + (slot * 331 + i * 37) % 500;
}

static model *open_model(engram_store *store, int32_t fault_token) {
    model_options o = {.dir = model_dir,
        .n_threads = 1,
        .n_slots = N_SLOTS,
        .n_pages = N_SLOTS,
        .max_context = 128,
        .max_rows = 64,
        .store = store,
        .fault_token = fault_token};
    model *m = NULL;
    err e = ERR_INIT;
    if (model_open(&o, &m, &e) != OK) fail_msg("%s", e.msg);
    return m;
}

/* One step over all prompts; logits [N_SLOTS][n_vocab] of their last rows. */
static void step(model *m, step_result *result, float *logits) {
    int32_t tokens[N_SLOTS][N_TOKENS];
    plan_span spans[N_SLOTS];
    batch_plan plan = {.id = 1, .n_spans = N_SLOTS, .spans = spans};
    err e = ERR_INIT;
    for (int32_t s = 0; s < N_SLOTS; s++) {
        model_slot_reset(m, s);
        if (model_slot_pages(m, s, &s, 1, &e) != OK) fail_msg("%s", e.msg);
        for (int i = 0; i < N_TOKENS; i++) {
            tokens[s][i] = token_at(s, i);
        }
        spans[s] = (plan_span){s, N_TOKENS, 0, tokens[s], PLAN_LOGITS_LAST, PLAN_PROMPT};
    }
    if (model_step(m, &plan, result, &e) != OK) fail_msg("%s", e.msg);
    memcpy(logits, result->logits, (size_t)N_SLOTS * (size_t)config.n_vocab * sizeof *logits);
}

static float *new_logits(void) {
    return mem_array((size_t)N_SLOTS * (size_t)config.n_vocab, sizeof(float));
}

static bool is_equal(const float *a, const float *b, int slot) {
    size_t n = (size_t)config.n_vocab;
    return memcmp(a + (size_t)slot * n, b + (size_t)slot * n, n * sizeof *a) == 0;
}

static float *clean_logits(void) {
    float *logits = new_logits();
    step_result result;
    model *m = open_model(NULL, 0);
    step(m, &result, logits);
    assert_null(result.fault);
    for (int s = 0; s < N_SLOTS; s++) {
        assert_int_equal(result.is_span_finite[s], 1);
    }
    model_close(m);
    return logits;
}

static void pack(int rank, int world) {
    engram_pack_options o = {.in_dir = model_dir, .out_dir = dir, .rank = rank, .world = world};
    err e = ERR_INIT;
    if (engram_pack(&o, &e) != OK) fail_msg("%s", e.msg);
}

static engram_store *open_packed(int rank, int world) {
    engram_store *s = NULL;
    err e = ERR_INIT;
    engram_disk_options o = {.cache_bytes = 1 << 16};
    if (engram_store_dir_open(dir, &config, (const int[2]){rank, world}, &o, &s, &e) != OK) {
        fail_msg("%s", e.msg);
    }
    return s;
}

static void packed_is_bit_equal(void **state) {
    (void)state;
    float *clean = clean_logits(), *logits = new_logits();
    step_result result;
    pack(0, 1);
    engram_store *s = open_packed(0, 1);
    model *m = open_model(s, 0);
    for (int round = 0; round < 2; round++) { /* from disk, then from the cache */
        step(m, &result, logits);
        assert_null(result.fault);
        for (int i = 0; i < N_SLOTS; i++) {
            assert_true(is_equal(clean, logits, i));
        }
    }
    model_close(m);
    engram_store_close(s);
    mem_free(clean);
    mem_free(logits);
}

/* The halves of two ranks together hold every row once; a half alone is not the whole table. */
static void halves_split_the_rows(void **state) {
    (void)state;
    err e = ERR_INIT;
    buf path = BUF_INIT;
    for (int i = 0; i < config.n_engram; i++) {
        int64_t sum = 0;
        for (int r = 0; r < 2; r++) {
            engram_header h;
            pack(r, 2);
            engram_file_path(&path, dir, config.engram[i].layer, (const int[2]){r, 2});
            if (engram_file_verify(buf_cstr(&path), &h, &e) != OK) fail_msg("%s", e.msg);
            assert_int_equal(h.first_row, sum);
            sum += h.n_rows;
            engram_store_close(open_packed(r, 2));
        }
        assert_int_equal(sum, config.engram[i].n_rows);
    }
    buf_release(&path);
}

/* Flips a byte in every n-th block. */
static void damage(int layer, int n) {
    buf path = BUF_INIT;
    uint64_t size = 0;
    engram_file_path(&path, dir, layer, (const int[2]){0, 1});
    assert_int_equal(file_size(buf_cstr(&path), &size, NULL), OK);
    int fd = open(buf_cstr(&path), O_RDWR | O_CLOEXEC);
    for (uint64_t at = ENGRAM_BLOCK; at < size; at += (uint64_t)n * ENGRAM_BLOCK) {
        uint8_t byte = 0;
        assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    }
    close(fd);
    buf_release(&path);
}

static int run_damaged(const float *clean, float *logits) {
    step_result result;
    int n_bad = 0;
    engram_store *s = open_packed(0, 1);
    model *m = open_model(s, 0);
    step(m, &result, logits);
    for (int i = 0; i < N_SLOTS; i++) {
        n_bad += !result.is_span_finite[i];
        assert_true(!result.is_span_finite[i] || is_equal(clean, logits, i));
    }
    if (n_bad > 0) {
        assert_non_null(result.fault);
        assert_non_null(strstr(result.fault->msg, "is damaged"));
    }
    model_close(m);
    engram_store_close(s);
    return n_bad;
}

static void damage_ends_only_what_needs_it(void **state) {
    (void)state;
    float *clean = clean_logits(), *logits = new_logits();
    pack(0, 1);
    damage(config.engram[0].layer, 31);
    int n_some = run_damaged(clean, logits);
    print_message("%d of %d streams read a damaged block\n", n_some, N_SLOTS);
    damage(config.engram[config.n_engram - 1].layer, 1);
    assert_int_equal(run_damaged(clean, logits), N_SLOTS);
    mem_free(clean);
    mem_free(logits);
}

/* The guard: a row that goes wrong in one stream. */
static void a_bad_row_ends_its_stream_alone(void **state) {
    (void)state;
    float *clean = clean_logits(), *logits = new_logits();
    step_result result;
    model *m = open_model(NULL, 77);
    step(m, &result, logits);
    for (int i = 0; i < N_SLOTS - 1; i++) {
        assert_int_equal(result.is_span_finite[i], 1);
        assert_int_equal(result.is_finite[i], 1);
        assert_true(is_equal(clean, logits, i));
    }
    assert_int_equal(result.is_span_finite[N_SLOTS - 1], 0);
    assert_null(result.fault);
    model_close(m);
    mem_free(clean);
    mem_free(logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(packed_is_bit_equal),
        cmocka_unit_test(halves_split_the_rows), cmocka_unit_test(damage_ends_only_what_needs_it),
        cmocka_unit_test(a_bad_row_ends_its_stream_alone)};
    const char *weights = getenv("DEMO_WEIGHTS");
    err e = ERR_INIT;
    str_copy(model_dir, sizeof model_dir, "templates/demo-model");
    if (!dir_exists(model_dir) && weights != NULL) str_copy(model_dir, sizeof model_dir, weights);
    if (model_config_load(model_dir, &config, &e) != OK) return 77;
    str_copy(dir, sizeof dir, "/tmp/tandem-packed.XXXXXX");
    if (mkdtemp(dir) == NULL) return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)dir_remove_all(dir, NULL);
    return rc;
}
