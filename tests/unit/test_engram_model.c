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

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/dist/exchange.h"
#include "engine/model/engram_file.h"
#include "engine/model/engram_store_disk.h"
#include "engine/model/model.h"
#include "engine/weights/safetensors.h"

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

/* Writes the tensors of the demo model that are, or are not, of the tables. */
static void write_tensors(const char *path, bool want_tables) {
    st_set *s = NULL;
    st_writer *w = st_writer_new(path);
    err e = ERR_INIT;
    if (st_open(model_dir, ST_MAPPED, &s, &e) != OK) fail_msg("%s", e.msg);
    for (int pass = 0; pass < 2; pass++) { /* declare, then write */
        int n = 0;
        for (size_t i = 0; i < st_count(s); i++) {
            const st_tensor *t = st_at(s, i);
            if ((strstr(t->name, "engram.embed") != NULL) != want_tables) continue;
            int rc = pass == 0 ? st_writer_add(w, t->name, t->dtype, t->n_dims, t->dims, &e)
                               : st_writer_put(w, n, 0, t->data, t->bytes, &e);
            if (rc < 0) fail_msg("%s", e.msg);
            n++;
        }
        if (pass == 0) assert_int_equal(st_writer_begin(w, &e), OK);
    }
    assert_int_equal(st_writer_finish(w, &e), OK);
    st_writer_free(w);
    st_close(s);
}

static void copy_file(const char *to_dir, const char *name) {
    buf from = BUF_INIT, to = BUF_INIT, text = BUF_MAX(16 << 20);
    err e = ERR_INIT;
    path_join(&from, model_dir, name);
    path_join(&to, to_dir, name);
    assert_int_equal(file_read(buf_cstr(&from), &text, 16 << 20, &e), OK);
    assert_int_equal(file_write_atomic(buf_cstr(&to), text.data, text.len, 0644, &e), OK);
    buf_release(&from);
    buf_release(&to);
    buf_release(&text);
}

/* As a download lays it out: the weights under models/, and under engram/ the two shards of the
 * release that hold the tables, with an index that names all of its shards. */
static void tables_of_a_download_are_found(void **state) {
    (void)state;
    static const char index[] = "{\"weight_map\":{\"x\":\"model-00001-of-00002.safetensors\","
                                "\"layers.1.engram.embed.weight\":"
                                "\"model-00002-of-00002.safetensors\"}}";
    static char usual[sizeof model_dir];
    char models[128], tables[128], path[200];
    float *clean = clean_logits(), *logits = new_logits();
    step_result result;
    err e = ERR_INIT;
    snprintf(models, sizeof models, "%s/models/p", dir);
    snprintf(tables, sizeof tables, "%s/engram/p", dir);
    assert_int_equal(dir_make_all(models, 0755, &e), OK);
    assert_int_equal(dir_make_all(tables, 0755, &e), OK);
    snprintf(path, sizeof path, "%s/model.safetensors", models);
    write_tensors(path, false);
    copy_file(models, "config.json");
    copy_file(models, "tokenizer.json");
    snprintf(path, sizeof path, "%s/model-00002-of-00002.safetensors", tables);
    write_tensors(path, true);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", tables);
    assert_int_equal(file_write_atomic(path, index, sizeof index - 1, 0644, &e), OK);
    memcpy(usual, model_dir, sizeof usual);
    str_copy(model_dir, sizeof model_dir, models);
    model *m = open_model(NULL, 0);
    step(m, &result, logits);
    for (int i = 0; i < N_SLOTS; i++)
        assert_true(is_equal(clean, logits, i));
    model_close(m);
    memcpy(model_dir, usual, sizeof model_dir);
    /* and they can be packed, with no more than the configuration beside them */
    copy_file(tables, "config.json");
    engram_pack_options o = {.in_dir = tables, .out_dir = dir, .world = 1};
    if (engram_pack(&o, &e) != OK) fail_msg("%s", e.msg);
    engram_store_close(open_packed(0, 1));
    mem_free(clean);
    mem_free(logits);
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
/* Waits until the store has read so many records ahead, over all. */
static void await_ahead(engram_store *s, uint64_t n) {
    engram_store_stats stats = {0};
    uint64_t deadline = clock_mono_ms() + 60000;
    while (stats.n_ahead < n && clock_mono_ms() < deadline) {
        sleep_ms(1);
        s->ops->stats(s, &stats);
    }
    assert_int_equal(stats.n_ahead, n);
}

/* Steps one span; all of its Engram rows must be in memory already. */
static void step_from_memory(model *m, engram_store *s, const plan_span *span) {
    batch_plan plan = {.id = 1, .n_spans = 1, .spans = span};
    engram_store_stats before, after;
    step_result result;
    err e = ERR_INIT;
    s->ops->stats(s, &before);
    if (model_step(m, &plan, &result, &e) != OK) fail_msg("%s", e.msg);
    s->ops->stats(s, &after);
    assert_int_equal(
        after.n_rows - before.n_rows, config.n_engram * config.n_hashes * span->n_rows);
    assert_int_equal(after.n_cached - before.n_cached, after.n_rows - before.n_rows);
}

/* The scheduler's hint brings the rows of a slice into memory, and a draft those of its tokens. */
static void slices_and_drafts_are_read_ahead(void **state) {
    (void)state;
    int32_t tokens[N_TOKENS + 1], page = 0;
    engram_disk_options o = {.cache_bytes = 4 << 20};
    engram_store *s = NULL;
    draft_result draft;
    err e = ERR_INIT;
    pack(0, 1);
    assert_int_equal(engram_store_dir_open(dir, &config, (const int[2]){0, 1}, &o, &s, &e), OK);
    model *m = open_model(s, 0);
    uint64_t per_row = (uint64_t)(config.n_engram * config.n_hashes);
    for (int i = 0; i < N_TOKENS; i++) {
        tokens[i] = token_at(0, i);
    }
    model_slot_reset(m, 0);
    assert_int_equal(model_slot_pages(m, 0, &page, 1, &e), OK);
    model_prefetch(m, tokens, 0, 4); /* the start of the sequence, then a slice behind it */
    await_ahead(s, 4 * per_row);
    step_from_memory(m, s, &(plan_span){0, 4, 0, tokens, PLAN_LOGITS_NONE, PLAN_PROMPT});
    model_prefetch(m, tokens, 4, N_TOKENS - 4);
    await_ahead(s, N_TOKENS * per_row);
    step_from_memory(
        m, s, &(plan_span){0, N_TOKENS - 4, 4, tokens + 4, PLAN_LOGITS_LAST, PLAN_PROMPT});
    draft_request q = {.slot = 0, .token = 300};
    if (model_draft(m, &q, 1, NULL, NULL, &draft, &e) != OK) fail_msg("%s", e.msg);
    await_ahead(s, (uint64_t)(N_TOKENS + 1 + draft.block) * per_row);
    int32_t verify[32] = {q.token};
    memcpy(verify + 1, draft.tokens, (size_t)draft.block * sizeof(int32_t));
    step_from_memory(
        m, s, &(plan_span){0, draft.block + 1, N_TOKENS, verify, PLAN_LOGITS_ALL, PLAN_VERIFY});
    const int32_t outside[2] = {-1, config.n_vocab};
    model_prefetch(m, outside, 1, 1); /* harmless */
    model_close(m);
    engram_store_close(s);
}

/* A store that only remembers which rows were hinted. */
typedef struct note_store {
    engram_store base;
    int64_t first[8], last[8];
    int n;
} note_store;

static void note_hint(engram_store *base, int i_table, const int64_t *rows, int n) {
    note_store *s = (note_store *)(void *)base;
    for (int i = 0; i < n; i++, s->n++) {
        if (s->n == 0 || rows[i] < s->first[i_table]) s->first[i_table] = rows[i];
        if (rows[i] > s->last[i_table]) s->last[i_table] = rows[i];
    }
}

/* Each of two ranks asks for rows of its own half only, and together for all. */
static void ranks_read_their_halves_ahead(void **state) {
    (void)state;
    static const engram_store_ops ops = {.hint = note_hint};
    exchange *x[2];
    int32_t tokens[20];
    err e = ERR_INIT;
    int n = 0;
    assert_int_equal(exchange_local_open(2, 0, 1000, x, &e), OK);
    for (int i = 0; i < 20; i++) {
        tokens[i] = token_at(1, i);
    }
    for (int rank = 0; rank < 2; rank++) {
        note_store notes = {.base = {&ops, config.n_engram, config.d_engram}};
        model_options o = {.dir = model_dir,
            .n_threads = 1,
            .rank = rank,
            .world = 2,
            .exchange = x[rank],
            .n_slots = 1,
            .n_pages = 1,
            .max_context = 128,
            .max_rows = 16, /* fewer than the hint has positions */
            .store = &notes.base};
        model *m = NULL;
        if (model_open(&o, &m, &e) != OK) fail_msg("%s", e.msg);
        for (int t = 0; t < config.n_engram; t++) {
            notes.first[t] = INT64_MAX;
            notes.last[t] = -1;
        }
        model_prefetch(m, tokens, 0, 20);
        for (int t = 0; t < config.n_engram; t++) {
            int64_t range[2];
            engram_rank_rows(&config, t, (const int[2]){rank, 2}, range);
            assert_in_range(notes.first[t], range[0], notes.last[t]);
            assert_in_range(notes.last[t], range[0], range[0] + range[1] - 1);
        }
        n += notes.n;
        model_close(m);
    }
    assert_int_equal(n, 20 * config.n_engram * config.n_hashes);
    exchange_close(x[0]);
    exchange_close(x[1]);
}

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
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables_of_a_download_are_found),
        cmocka_unit_test(packed_is_bit_equal), cmocka_unit_test(slices_and_drafts_are_read_ahead),
        cmocka_unit_test(ranks_read_their_halves_ahead), cmocka_unit_test(halves_split_the_rows),
        cmocka_unit_test(damage_ends_only_what_needs_it),
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
