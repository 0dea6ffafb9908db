/* The model from rank packs: the same bits as from the checkpoint, on one rank and on two, for EXL3
 * (the demo model) and for plain weights; a damaged block is named with the tensors in it; a pack of
 * another rank, layout or model is refused; nothing but the pack is needed where the shards are gone. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/dist/exchange.h"
#include "engine/model/engram_file.h"
#include "engine/model/engram_store_disk.h"
#include "engine/model/rank_pack.h"
#include "engine/weights/checkpoint.h"
#include "kernels/exl3/exl3_kernel_order.h"

enum { N_TOKENS = 11, WAIT_MS = 60000, MAX_BLOCK = 16 };

static char demo_dir[512], tiny_dir[512], dir[64], packs[96];

/* ---- one run of a model ---- */

typedef struct answer {
    float *logits; /* [N_TOKENS][n_vocab] */
    size_t n;
    int32_t drafts[MAX_BLOCK];
    float confidence[MAX_BLOCK];
    int block;
} answer;

typedef struct job {
    const char *model_dir, *pack;
    int rank, world;
    exchange *x;
    engram_store *store;
    const int32_t *classes;
    answer a;
    size_t weight_bytes;
    int rc;
    err e;
} job;

static model_options options_of(const job *j) {
    return (model_options){.dir = j->model_dir,
        .pack = j->pack,
        .rank = j->rank,
        .world = j->world,
        .exchange = j->x,
        .n_threads = 1,
        .n_slots = 1,
        .n_pages = 1,
        .max_context = 128,
        .max_rows = 32,
        .max_logit_rows = N_TOKENS,
        .store = j->store,
        .token_class = j->classes};
}

static int step(job *j, model *m) {
    int32_t tokens[N_TOKENS];
    model_info info;
    step_result r;
    draft_result d = {0};
    model_get_info(m, &info);
    j->weight_bytes = info.memory.weight_bytes;
    for (int i = 0; i < N_TOKENS; i++) {
        tokens[i] = (17 + i * 29) % info.config->n_vocab;
    }
    plan_span span = {0, N_TOKENS, 0, tokens, PLAN_LOGITS_ALL, PLAN_PROMPT};
    batch_plan plan = {.id = 1, .n_spans = 1, .spans = &span};
    int rc = model_slot_pages(m, 0, (const int32_t[1]){0}, 1, &j->e);
    if (rc == OK) rc = model_step(m, &plan, &r, &j->e);
    if (rc != OK) return rc;
    j->a.n = (size_t)N_TOKENS * (size_t)info.config->n_vocab;
    j->a.logits = mem_array(j->a.n, sizeof(float));
    memcpy(j->a.logits, r.logits, j->a.n * sizeof(float));
    if (!info.has_drafts) return OK;
    draft_request q = {.slot = 0, .token = tokens[3]};
    rc = model_draft(m, &q, 1, NULL, NULL, &d, &j->e);
    if (rc == OK) {
        j->a.block = d.block;
        memcpy(j->a.drafts, d.tokens, (size_t)d.block * sizeof *d.tokens);
        memcpy(j->a.confidence, d.confidence, (size_t)d.block * sizeof *d.confidence);
    }
    return rc;
}

static void *run(void *ctx) {
    job *j = ctx;
    model *m = NULL;
    model_options o = options_of(j);
    j->rc = model_open(&o, &m, &j->e);
    if (j->rc == OK) j->rc = step(j, m);
    if (j->rc != OK && j->x != NULL) exchange_abort(j->x, &j->e);
    model_close(m);
    return NULL;
}

/* All ranks, each a thread. */
static void run_world(job *jobs, int world, const job *what) {
    exchange *x[2] = {NULL, NULL};
    pthread_t t[2];
    err e = ERR_INIT;
    if (world > 1) assert_int_equal(exchange_local_open(world, 0, WAIT_MS, x, &e), OK);
    for (int r = 0; r < world; r++) {
        jobs[r] = *what;
        jobs[r].rank = r;
        jobs[r].world = world;
        jobs[r].x = x[r];
        assert_int_equal(pthread_create(&t[r], NULL, run, &jobs[r]), 0);
    }
    for (int r = 0; r < world; r++) {
        pthread_join(t[r], NULL);
    }
    for (int r = 0; r < world; r++) {
        if (jobs[r].rc != OK) fail_msg("rank %d: %s", r, jobs[r].e.msg);
        if (x[r] != NULL) exchange_close(x[r]);
    }
}

static rank_pack_options pack_options(const char *model_dir, int rank, int world) {
    return (rank_pack_options){.model_dir = model_dir,
        .out_dir = packs,
        .rank = rank,
        .world = world,
        .block_bytes = 256 << 10, /* the largest tensors lie in many blocks */
        .n_threads = 2,
        .build = "test"};
}

static void make_packs(const char *model_dir, int world) {
    for (int r = 0; r < world; r++) {
        rank_pack_options o = pack_options(model_dir, r, world);
        pack_make_progress p;
        err e = ERR_INIT;
        uint64_t size = 0;
        if (rank_pack_make(&o, NULL, &p, &e) != OK) fail_msg("%s", e.msg);
        assert_int_equal(rank_pack_size(&o, &size, &e), OK);
        assert_int_equal(size, p.data_bytes);
    }
}

static void compare(const char *model_dir, int world, const int32_t *classes) {
    job direct[2], packed[2];
    job what = {.model_dir = model_dir, .classes = classes};
    run_world(direct, world, &what);
    make_packs(model_dir, world);
    what.pack = packs;
    run_world(packed, world, &what);
    for (int r = 0; r < world; r++) {
        const answer *a = &direct[r].a, *b = &packed[r].a;
        assert_int_equal(a->n, b->n);
        for (size_t i = 0; i < a->n; i++) {
            if (memcmp(&a->logits[i], &b->logits[i], sizeof(float)) != 0)
                fail_msg("rank %d of %d logit %zu: %.9g, from the pack %.9g", r, world, i,
                    (double)a->logits[i], (double)b->logits[i]);
        }
        assert_int_equal(a->block, b->block);
        assert_memory_equal(a->drafts, b->drafts, sizeof a->drafts);
        assert_memory_equal(a->confidence, b->confidence, sizeof a->confidence);
        mem_free(a->logits);
        mem_free(b->logits);
    }
    printf("%s, %d ranks: %zu logits a rank equal, %d drafted tokens, %zu KiB of %zu KiB\n",
        strrchr(model_dir, '/') + 1, world, direct[0].a.n, direct[0].a.block,
        packed[0].weight_bytes >> 10, direct[0].weight_bytes >> 10);
}

static int clean(void **state) {
    (void)state;
    return dir_remove_all(packs, NULL);
}

static void exl3_is_bit_equal_on_one_rank(void **state) {
    (void)state;
    compare(demo_dir, 1, NULL);
}

static void exl3_is_bit_equal_on_two_ranks(void **state) {
    (void)state;
    compare(demo_dir, 2, NULL);
}

static void plain_is_bit_equal_on_one_rank(void **state) {
    (void)state;
    int32_t *classes = mem_array(1 << 20, sizeof *classes);
    compare(tiny_dir, 1, classes);
    mem_free(classes);
}

static void plain_is_bit_equal_on_two_ranks(void **state) {
    (void)state;
    int32_t *classes = mem_array(1 << 20, sizeof *classes);
    compare(tiny_dir, 2, classes);
    mem_free(classes);
}

/* ---- what is refused ---- */

static int try_open(const char *model_dir, const char *place, const int rank_world[2], err *e) {
    model *m = NULL;
    exchange *x[2] = {NULL, NULL};
    if (rank_world[1] > 1) assert_int_equal(exchange_local_open(2, 0, 100, x, e), OK);
    job j = {.model_dir = model_dir, .pack = place, .rank = rank_world[0], .world = rank_world[1]};
    j.x = x[rank_world[0]];
    model_options o = options_of(&j);
    int rc = model_open(&o, &m, e);
    model_close(m);
    for (int r = 0; r < 2; r++) {
        if (x[r] != NULL) exchange_close(x[r]);
    }
    return rc;
}

static void place_of(buf *out, int rank, int world, exl3_layout layout) {
    (void)pack_path(out, packs, layout, (const int[2]){rank, world});
}

static void a_damaged_block_is_named(void **state) {
    (void)state;
    err e = ERR_INIT;
    buf path = BUF_INIT;
    uint8_t byte = 0;
    pack *p = NULL;
    make_packs(demo_dir, 1);
    place_of(&path, 0, 1, EXL3_LAYOUT_CPU);
    assert_int_equal(pack_open(buf_cstr(&path), &p, &e), OK);
    const pack_entry *t = pack_find(p, "layers.1.ffn.experts.2.w1");
    assert_non_null(t);
    off_t at = (off_t)(pack_get_info(p)->data_offset + t->offset + 77);
    uint64_t block = (t->offset + 77) / pack_get_info(p)->block_bytes;
    pack_close(p);
    int fd = open(buf_cstr(&path), O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    assert_int_equal(try_open(demo_dir, packs, (const int[2]){0, 1}, &e), ERR_FORMAT);
    char want[64];
    snprintf(want, sizeof want, "block %llu of", (unsigned long long)block + 1);
    if (strstr(e.msg, want) == NULL || strstr(e.msg, "is damaged; it holds layers.") == NULL ||
        strstr(e.msg, "tandem prepare --check") == NULL)
        fail_msg("%s", e.msg);
    rank_pack_options o = pack_options(demo_dir, 0, 1);
    pack_make_progress progress;
    o.checks = true;
    if (rank_pack_make(&o, NULL, &progress, &e) != OK) fail_msg("%s", e.msg);
    assert_true(progress.is_kept);
    assert_int_equal(progress.n_mended, 1);
    if (try_open(demo_dir, packs, (const int[2]){0, 1}, &e) != OK) fail_msg("%s", e.msg);
    buf_release(&path);
}

static void packs_of_something_else_are_refused(void **state) {
    (void)state;
    err e = ERR_INIT;
    buf path = BUF_INIT;
    make_packs(demo_dir, 2);
    place_of(&path, 1, 2, EXL3_LAYOUT_CPU);
    assert_int_equal(try_open(demo_dir, buf_cstr(&path), (const int[2]){0, 2}, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "holds rank 1 of 2, this process is rank 0 of 2"));
    assert_int_equal(try_open(demo_dir, packs, (const int[2]){0, 1}, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "tandem prepare"));
    assert_int_equal(try_open(tiny_dir, buf_cstr(&path), (const int[2]){1, 2}, &e), ERR_MISMATCH);
    rank_pack_options o = pack_options(demo_dir, 0, 1);
    pack_make_progress p;
    o.layout = EXL3_LAYOUT_GPU;
    if (rank_pack_make(&o, NULL, &p, &e) != OK) fail_msg("%s", e.msg);
    place_of(&path, 0, 1, EXL3_LAYOUT_GPU);
    assert_int_equal(try_open(demo_dir, buf_cstr(&path), (const int[2]){0, 1}, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "tandem prepare --layout cpu-1"));
    buf_release(&path);
}

/* ---- a node without shards ---- */

static void copy_file(const char *name) {
    buf from = BUF_INIT, to = BUF_INIT, data = BUF_MAX(64 << 20);
    err e = ERR_INIT;
    path_join(&from, demo_dir, name);
    path_join(&to, dir, name);
    if (file_read(buf_cstr(&from), &data, 64 << 20, &e) != OK ||
        file_write_atomic(buf_cstr(&to), data.data, data.len, 0644, &e) != OK)
        fail_msg("%s", e.msg);
    buf_release(&from);
    buf_release(&to);
    buf_release(&data);
}

static void shards_are_not_needed(void **state) {
    (void)state;
    err e = ERR_INIT;
    model_config *c = mem_alloc(sizeof *c);
    engram_pack_options eo = {.in_dir = demo_dir, .out_dir = dir};
    engram_disk_options so = {.cache_bytes = 1 << 16};
    job direct[1], packed[1];
    job what = {.model_dir = demo_dir};
    make_packs(demo_dir, 1);
    run_world(direct, 1, &what);
    copy_file("config.json");
    copy_file("tokenizer.json");
    assert_int_equal(model_config_load(dir, c, &e), OK);
    assert_int_equal(engram_pack(&eo, &e), OK);
    assert_int_equal(engram_store_dir_open(dir, c, (const int[2]){0, 1}, &so, &what.store, &e), OK);
    what.model_dir = dir;
    what.pack = packs;
    run_world(packed, 1, &what);
    assert_memory_equal(direct[0].a.logits, packed[0].a.logits, direct[0].a.n * sizeof(float));
    engram_store_close(what.store);
    mem_free(direct[0].a.logits);
    mem_free(packed[0].a.logits);
    mem_free(c);
}

/* ---- the GPU's layout ---- */

/* Every EXL3 tensor of a gpu-1 pack is words, suh, svh in the order of exl3_kernel_order.h. */
static void gpu_layout_is_the_kernels_order(void **state) {
    (void)state;
    err e = ERR_INIT;
    buf path = BUF_INIT;
    pack *p = NULL;
    checkpoint *k = NULL;
    model_config *c = mem_alloc(sizeof *c);
    rank_pack_options o = pack_options(demo_dir, 1, 2);
    pack_make_progress progress;
    int n = 0;
    o.layout = EXL3_LAYOUT_GPU;
    if (rank_pack_make(&o, &path, &progress, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(pack_open(buf_cstr(&path), &p, &e), OK);
    uint8_t *area = mem_aligned(PACK_PAGE, (size_t)pack_get_info(p)->data_bytes);
    pack_load_options lo = {.area = area};
    assert_int_equal(pack_load(p, &lo, &e), OK);
    assert_int_equal(model_config_load(demo_dir, c, &e), OK);
    assert_int_equal(checkpoint_open(demo_dir, c, NULL, &k, &e), OK);
    for (size_t i = 0; i < pack_get_info(p)->n_entries; i++) {
        const pack_entry *t = pack_at(p, i);
        linear_source s;
        tp_part part;
        if (t->kind != PACK_EXL3) continue;
        assert_int_equal(
            checkpoint_linear_part(k, t->name, (const int[2]){1, 2}, &s, &part, &e), OK);
        size_t bytes = exl3_trellis_bytes(t->n_in, t->n_out, t->exl3.k2);
        uint32_t *words = mem_alloc(bytes);
        exl3_image_parts at = exl3_image_layout(&t->exl3);
        assert_int_equal(exl3_kernel_order_pack(&s.exl3, words, &e), OK);
        assert_memory_equal(area + t->offset, words, bytes);
        assert_memory_equal(area + t->offset + at.suh, s.exl3.suh, (size_t)t->n_in * 2);
        assert_memory_equal(area + t->offset + at.svh, s.exl3.svh, (size_t)t->n_out * 2);
        mem_free(words);
        n++;
    }
    assert_true(n > 100);
    checkpoint_close(k);
    pack_close(p);
    mem_aligned_free(area);
    mem_free(c);
    buf_release(&path);
}

/* The tiny model's folder also holds expected values; the model alone, by links. */
static bool find_tiny(const char *source) {
    static const char *const names[] = {"config.json", "model.safetensors"};
    const char *golden = getenv("GOLDEN_DIR");
    char from[PATH_MAX], real[PATH_MAX], to[PATH_MAX];
    snprintf(tiny_dir, sizeof tiny_dir, "%s/tiny", dir);
    if (dir_make_all(tiny_dir, 0755, NULL) != OK) return false;
    for (int i = 0; i < 2; i++) {
        if (golden != NULL) {
            snprintf(from, sizeof from, "%s/model/tiny-a/%s", golden, names[i]);
        } else {
            snprintf(from, sizeof from, "%s/tests/data/golden/model/tiny-a/%s", source, names[i]);
        }
        snprintf(to, sizeof to, "%s/%s", tiny_dir, names[i]);
        if (realpath(from, real) == NULL || symlink(real, to) != 0) return false;
    }
    return true;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(exl3_is_bit_equal_on_one_rank, clean),
        cmocka_unit_test_setup(exl3_is_bit_equal_on_two_ranks, clean),
        cmocka_unit_test_setup(plain_is_bit_equal_on_one_rank, clean),
        cmocka_unit_test_setup(plain_is_bit_equal_on_two_ranks, clean),
        cmocka_unit_test_setup(a_damaged_block_is_named, clean),
        cmocka_unit_test_setup(packs_of_something_else_are_refused, clean),
        cmocka_unit_test_setup(shards_are_not_needed, clean),
        cmocka_unit_test_setup(gpu_layout_is_the_kernels_order, clean),
    };
    const char *source = getenv("TANDEM_SOURCE_DIR");
    snprintf(demo_dir, sizeof demo_dir, "%s/templates/demo-model", source != NULL ? source : ".");
    snprintf(dir, sizeof dir, "/tmp/tandem-rank-pack-XXXXXX");
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(packs, sizeof packs, "%s/packs", dir);
    if (!find_tiny(source != NULL ? source : ".")) return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)dir_remove_all(dir, NULL);
    return rc;
}
