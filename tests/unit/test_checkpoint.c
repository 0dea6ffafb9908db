/* The checkpoint map on a made-up model of the smallest sizes: all storage forms, what is missing or
 * wrong, lookups, cuts for two ranks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/weights/checkpoint.h"
#include "kernels/half.h"

static char dir[64];

/* The layer modes window + Engram and Full, one draft stage. */
static const model_config config = {.n_vocab = 256,
    .n_embd = 128,
    .n_layers = 2,
    .n_stages = 1,
    .n_heads = 4,
    .d_head = 64,
    .q_rank = 64,
    .o_groups = 2,
    .o_rank = 64,
    .n_ff = 64,
    .n_shared = 1,
    .n_streams = 2,
    .n_index_heads = 2,
    .d_index = 32,
    .n_engram = 1,
    .d_engram = 32,
    .n_hashes = 4,
    .engram = {{.layer = 0, .n_rows = 50}},
    .markov_rank = 8,
    .n_taps = 1,
    .layers = {{.i_kv_source = -1, .i_index_source = -1, .i_engram = 0, .n_experts = 2},
        {.ratio = 2, .i_kv_source = 0, .i_index_source = 0, .i_engram = -1, .n_experts = 2},
        {.i_kv_source = -1, .i_index_source = -1, .i_engram = -1, .n_experts = 2}}};

typedef struct forge {
    st_writer *w;
    bool is_writing;
    int n;
    const char *leave_out;
    const char *spoil; /* gets one more row */
} forge;

static float value_at(size_t i) {
    return (float)((int)(i % 13) - 6) * 0.25f;
}

static void put(forge *f, const char *name, st_dtype dtype, int n_dims, const uint64_t *dims) {
    uint64_t grown[2] = {dims[0], n_dims > 1 ? dims[1] : 0};
    err e = ERR_INIT;
    if (f->leave_out != NULL && str_starts(name, f->leave_out)) return;
    grown[0] += f->spoil != NULL && strcmp(name, f->spoil) == 0;
    if (!f->is_writing) {
        assert_int_equal(st_writer_add(f->w, name, dtype, n_dims, grown, &e), f->n++);
        return;
    }
    size_t n = (size_t)(grown[0] * (n_dims > 1 ? grown[1] : 1));
    size_t size = st_dtype_bytes(dtype);
    unsigned char *data = mem_alloc(n * size);
    for (size_t i = 0; i < n; i++) {
        float v = value_at(i);
        uint16_t h = dtype == ST_F16 ? half_from_float(v) : bf16_from_float(v);
        if (size == 4) {
            memcpy(data + i * 4, &v, 4);
        } else if (size == 2) {
            memcpy(data + i * 2, &h, 2);
        } else {
            data[i] = dtype == ST_F8_E8M0 ? (unsigned char)(126 + i % 3) : (unsigned char)(i % 120);
        }
    }
    assert_int_equal(st_writer_put(f->w, f->n++, 0, data, n * size, &e), OK);
    mem_free(data);
}

/* Experts in FP4, attention in FP8, the rest in BF16; norms turn about between the float kinds. */
static int forge_spec(void *ctx, const weight_spec *w, err *e) {
    forge *f = ctx;
    char name[128];
    uint64_t blocks[2] = {(w->dims[0] + 31) / 32, (w->dims[1] + 31) / 32};
    uint64_t rows[2] = {w->dims[0], w->dims[1] / 32};
    (void)e;
    if (w->role == WEIGHT_OPTIONAL) return OK;
    if (w->role == WEIGHT_PLAIN) {
        put(f, w->name,
            str_ends(w->name, "q_norm.weight") ? ST_F16
            : str_ends(w->name, "bias")        ? ST_F32
                                               : ST_BF16,
            w->n_dims, w->dims);
        return OK;
    }
    bool is_fp4 = strstr(w->name, ".experts.") != NULL;
    bool is_fp8 = strstr(w->name, ".attn.w") != NULL || w->role == WEIGHT_TABLE;
    uint64_t dims[2] = {w->dims[0], is_fp4 ? w->dims[1] / 2 : w->dims[1]};
    snprintf(name, sizeof name, "%s.weight", w->name);
    put(f, name, is_fp4 ? ST_I8 : is_fp8 ? ST_F8_E4M3 : ST_BF16, 2, dims);
    snprintf(name, sizeof name, "%s.scale", w->name);
    if (is_fp4 || is_fp8) {
        put(f, name, ST_F8_E8M0, 2, is_fp4 || w->role == WEIGHT_TABLE ? rows : blocks);
    }
    return OK;
}

static void make_model(const char *leave_out, const char *spoil) {
    char path[128];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    forge f = {.w = st_writer_new(path), .leave_out = leave_out, .spoil = spoil};
    assert_int_equal(weight_specs_each(&config, forge_spec, &f, &e), OK);
    assert_int_equal(st_writer_begin(f.w, &e), OK);
    f.is_writing = true;
    f.n = 0;
    assert_int_equal(weight_specs_each(&config, forge_spec, &f, &e), OK);
    assert_int_equal(st_writer_finish(f.w, &e), OK);
    st_writer_free(f.w);
}

static int set_up(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/tandem-ck.XXXXXX");
    if (mkdtemp(dir) == NULL) return -1;
    make_model(NULL, NULL);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return dir_remove_all(dir, NULL);
}

static checkpoint *opened(void) {
    checkpoint *k;
    err e = ERR_INIT;
    if (checkpoint_open(dir, &config, NULL, &k, &e) != OK) fail_msg("%s", e.msg);
    return k;
}

static void test_forms(void **state) {
    static const struct {
        const char *name;
        linear_kind kind;
        int in, out;
    } want[] = {{"layers.0.attn.wq_b", LINEAR_FP8, 64, 256},
        {"layers.1.ffn.experts.1.w2", LINEAR_FP4, 64, 128},
        {"layers.1.attn.compressor.wgate", LINEAR_FLOAT, 128, 64},
        {"mtp.0.main_proj", LINEAR_FLOAT, 128, 128},
        {"layers.0.attn.wo_a.slice.1", LINEAR_FP8, 128, 64}, {"head", LINEAR_FLOAT, 128, 256},
        {"layers.0.engram.wkv", LINEAR_FLOAT, 128, 384}};
    checkpoint *k = opened();
    err e = ERR_INIT;
    linear_source s;
    int n_exl3, n_plain;
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(checkpoint_linear(k, want[i].name, &s, &e), OK);
        assert_int_equal(s.kind, want[i].kind);
        assert_int_equal(s.in, want[i].in);
        assert_int_equal(s.out, want[i].out);
    }
    assert_int_equal(checkpoint_linear(k, "layers.9.attn.wkv", &s, &e), ERR_NOT_FOUND);
    checkpoint_count(k, &n_exl3, &n_plain);
    assert_int_equal(n_exl3, 0);
    assert_true(n_plain > 30);
    assert_string_equal(checkpoint_warnings(k), "");
    assert_true(checkpoint_has(k, "norm.weight"));
    assert_false(checkpoint_has(k, "layers.0.ffn.gate.bias_vl"));
    checkpoint_close(k);
}

static void test_values(void **state) {
    checkpoint *k = opened();
    err e = ERR_INIT;
    linear_source s;
    float row[128];
    float norm[64];
    (void)state;
    assert_int_equal(checkpoint_linear(k, "layers.0.attn.wq_b", &s, &e), OK);
    linear_source_rows(&s, 33, 1, row);
    /* Row 33 of 64 columns: code (33 * 64 + c) % 120, scale blocks [8][2], block row 1. */
    for (int c = 0; c < 64; c++) {
        float want =
            fp8_e4m3_value((uint8_t)((33 * 64 + c) % 120)) * ldexpf(1.0f, (2 + c / 32) % 3 - 1);
        assert_true(row[c] == want);
    }
    assert_int_equal(checkpoint_linear(k, "layers.1.ffn.experts.0.w1", &s, &e), OK);
    linear_source_rows(&s, 2, 1, row);
    for (int c = 0; c < 128; c++) {
        unsigned byte = (unsigned)(2 * 64 + c / 2) % 120;
        float want = fp4_e2m1_value(c % 2 == 0 ? byte & 15 : byte >> 4) *
                     ldexpf(1.0f, (2 * 4 + c / 32) % 3 - 1);
        assert_true(row[c] == want);
    }
    assert_int_equal(checkpoint_floats(k, "layers.1.attn.q_norm.weight", norm, 64, &e), OK);
    assert_true(norm[5] == value_at(5));
    assert_int_equal(checkpoint_floats(k, "layers.1.attn.q_norm.weight", norm, 63, &e), ERR_FORMAT);
    assert_int_equal(checkpoint_floats(k, "nothing", norm, 64, &e), ERR_NOT_FOUND);
    checkpoint_close(k);
}

static void test_engram_table(void **state) {
    checkpoint *k = opened();
    err e = ERR_INIT;
    const uint8_t *values, *scales;
    int64_t n;
    (void)state;
    assert_int_equal(checkpoint_engram(k, 0, &values, &scales, &n, &e), OK);
    assert_int_equal(n, 50);
    assert_int_equal(values[32 * 3 + 1], 97);
    assert_int_equal(scales[4], 127);
    checkpoint_close(k);
}

/* The parts of two ranks put together are the whole, for splits of outputs and of inputs. */
static void test_two_ranks(void **state) {
    static const char *const names[] = {"layers.0.attn.wq_b", "layers.0.attn.wo_b",
        "layers.1.ffn.experts.1.w1", "layers.1.ffn.shared_experts.w2", "head",
        "layers.0.engram.wkv"};
    checkpoint *k = opened();
    err e = ERR_INIT;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        linear_source whole, half;
        tp_part part;
        float *all = mem_array(384 * 256, sizeof *all);
        float *piece = mem_array(384 * 256, sizeof *piece);
        int seen = 0;
        assert_int_equal(checkpoint_linear(k, names[i], &whole, &e), OK);
        assert_int_equal(linear_source_floats(&whole, all, &e), OK);
        for (int rank = 0; rank < 2; rank++) {
            int rank_world[2] = {rank, 2};
            assert_int_equal(checkpoint_linear_part(k, names[i], rank_world, &half, &part, &e), OK);
            assert_int_equal(linear_source_floats(&half, piece, &e), OK);
            assert_true(part.is_partial_sum == (half.in != whole.in));
            for (int r = 0; r < half.out; r++) {
                for (int c = 0; c < half.in; c++, seen++) {
                    assert_true(
                        piece[r * half.in + c] == all[(r + part.out0) * whole.in + c + part.in0]);
                }
            }
        }
        assert_int_equal(seen, whole.in * whole.out);
        mem_free(all);
        mem_free(piece);
    }
    checkpoint_close(k);
}

static void test_replicated_and_absent(void **state) {
    int rank_world[2] = {1, 2};
    checkpoint *k = opened();
    err e = ERR_INIT;
    linear_source s;
    tp_part part;
    (void)state;
    assert_int_equal(checkpoint_linear_part(k, "layers.0.attn.wkv", rank_world, &s, &part, &e), OK);
    assert_int_equal(s.out, 64);
    assert_int_equal(
        checkpoint_linear_part(k, "layers.1.attn.indexer.wq_b", rank_world, &s, &part, &e), OK);
    assert_int_equal(s.out, 64);
    assert_int_equal(checkpoint_linear_part(k, "mtp.0.main_proj", rank_world, &s, &part, &e), OK);
    assert_int_equal(s.in, 128);
    assert_int_equal(
        checkpoint_linear_part(k, "layers.0.attn.wo_a.slice.0", rank_world, &s, &part, &e), OK);
    assert_true(part.is_absent);
    assert_int_equal(
        checkpoint_linear_part(k, "layers.0.attn.wo_a.slice.1", rank_world, &s, &part, &e), OK);
    assert_false(part.is_absent);
    rank_world[1] = 3;
    assert_int_equal(checkpoint_linear_part(k, "head", rank_world, &s, &part, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "head"));
    checkpoint_close(k);
}

static void test_missing(void **state) {
    static const char *const parts[] = {"layers.1.attn.wkv", "embed.weight",
        "layers.1.ffn.experts.0.w3", "layers.0.attn.wo_a", "layers.0.engram.embed",
        "mtp.0.markov_head.head.weight"};
    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        checkpoint *k;
        err e = ERR_INIT;
        make_model(parts[i], NULL);
        int rc = checkpoint_open(dir, &config, NULL, &k, &e);
        if (rc != ERR_NOT_FOUND || strstr(e.msg, parts[i]) == NULL || strstr(e.msg, dir) == NULL) {
            fail_msg("%s left out: %d %s", parts[i], rc, e.msg);
        }
        assert_null(k);
    }
    checkpoint *k;
    err e = ERR_INIT;
    checkpoint_options o = {.without_stages = true};
    assert_int_equal(checkpoint_open(dir, &config, &o, &k, &e), OK);
    checkpoint_close(k);
    make_model("layers.0.engram.embed", NULL);
    o = (checkpoint_options){.without_engram = true};
    assert_int_equal(checkpoint_open(dir, &config, &o, &k, &e), OK);
    checkpoint_close(k);
    make_model("layers", NULL);
    assert_int_equal(checkpoint_open(dir, &config, NULL, &k, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "..."));
    make_model(NULL, NULL);
}

static void test_wrong_shapes(void **state) {
    static const char *const names[] = {"layers.1.attn.wkv.weight", "layers.1.attn.wkv.scale",
        "norm.weight", "layers.0.ffn.experts.1.w1.weight", "layers.0.engram.embed.scale",
        "layers.0.hc_attn_fn"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        checkpoint *k;
        err e = ERR_INIT;
        make_model(NULL, names[i]);
        int rc = checkpoint_open(dir, &config, NULL, &k, &e);
        if (rc != ERR_FORMAT || strstr(e.msg, dir) == NULL)
            fail_msg("%s spoiled: %d %s", names[i], rc, e.msg);
    }
    make_model(NULL, NULL);
}

static void test_small_formats(void **state) {
    (void)state;
    assert_true(fp8_e4m3_value(0x00) == 0.0f && fp8_e4m3_value(0x01) == 0x1p-9f);
    assert_true(fp8_e4m3_value(0x08) == 0x1p-6f && fp8_e4m3_value(0x38) == 1.0f);
    assert_true(fp8_e4m3_value(0x7e) == 448.0f && fp8_e4m3_value(0xfe) == -448.0f);
    assert_true(isnan(fp8_e4m3_value(0x7f)) && isnan(fp8_e4m3_value(0xff)));
    assert_true(
        fp4_e2m1_value(7) == 6.0f && fp4_e2m1_value(9) == -0.5f && fp4_e2m1_value(3) == 1.5f);
    assert_true(e8m0_value(127) == 1.0f && e8m0_value(0) == 0x1p-127f && isnan(e8m0_value(255)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_engram_table),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_replicated_and_absent),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_wrong_shapes),
        cmocka_unit_test(test_small_formats),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
