/* The quantizer above the trellis search: bit maps, one matrix, a whole made-up model. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/quantize.h"
#include "engine/weights/quantize_matrix.h"
#include "engine/weights/quantize_plan.h"

static void test_maps(void **state) {
    quantize_map *m;
    err e = ERR_INIT;
    (void)state;
    assert_int_equal(quantize_map_parse("demo", &m, &e), OK);
    assert_int_equal(quantize_map_find(m, "head").k2, 12);
    assert_int_equal(quantize_map_find(m, "layers.3.ffn.experts.5.w2").k2, 6);
    assert_int_equal(quantize_map_find(m, "layers.3.ffn.shared_experts.w2").k2, 8);
    assert_int_equal(quantize_map_find(m, "layers.2.attn.indexer.wk").k2, 16);
    assert_int_equal(quantize_map_find(m, "layers.2.attn.compressor.wkv").k2, 8);
    assert_int_equal(quantize_map_find(m, "mtp.0.ffn.experts.1.w1").k2, 8);
    assert_int_equal(quantize_map_find(m, "layers.1.hc_ffn_fn").dtype, ST_F16);
    assert_int_equal(quantize_map_find(m, "embed.weight").action, ACTION_KEEP);
    quantize_map_free(m);
    assert_int_equal(quantize_map_parse("# all\na.*=2.5, b?=keep\n*=8", &m, &e), OK);
    assert_int_equal(quantize_map_find(m, "a.b.c").k2, 5);
    assert_int_equal(quantize_map_find(m, "b1").action, ACTION_KEEP);
    assert_int_equal(quantize_map_find(m, "b12").k2, 16);
    quantize_map_free(m);
}

static void test_bad_maps(void **state) {
    static const char *const bad[] = {"", " # nothing", "a", "=4", "a=", "a=9", "a=0", "a=2.25",
        "a=4.5", "a=x", "a=4,b", "@/nonexistent-file"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        quantize_map *m;
        err e = ERR_INIT;
        if (quantize_map_parse(bad[i], &m, &e) == OK) fail_msg("map taken: %s", bad[i]);
        assert_null(m);
        assert_true(e.msg[0] != '\0');
    }
}

/* [out][in] normal numbers with uneven channels; column 1 of the outputs is zero. */
static float *make_weights(int in, int out, uint64_t seed) {
    float *w = mem_array((size_t)in * (size_t)out, sizeof *w);
    rand_state r;
    rand_init(&r, seed, 0);
    for (int o = 0; o < out; o++) {
        for (int i = 0; i < in; i++) {
            double scale = 0.02 * (1.0 + (double)(o % 7)) * (1.0 + 0.2 * (double)(i % 5));
            w[(size_t)o * (size_t)in + (size_t)i] =
                o == 1 ? 0.0f : (float)(rand_normal(&r) * scale);
        }
    }
    return w;
}

/* |decoded - w|^2 / |w|^2 of the official orientation. */
static double decoded_error(const quantized_matrix *q, const float *w, int in, int out) {
    exl3_matrix m = {.trellis = q->trellis,
        .suh = q->suh,
        .svh = q->svh,
        .in = q->in,
        .out = q->out,
        .k2 = q->k2,
        .codebook = q->codebook};
    float *full = mem_array((size_t)q->in * (size_t)q->out, sizeof *full);
    err e = ERR_INIT;
    double error = 0.0;
    double all = 0.0;
    assert_int_equal(exl3_decode_full(&m, full, &e), OK);
    for (int o = 0; o < out; o++) {
        for (int i = 0; i < in; i++) {
            double want = (double)w[(size_t)o * (size_t)in + (size_t)i];
            double d = (double)full[(size_t)i * (size_t)q->out + (size_t)o] - want;
            error += d * d;
            all += want * want;
        }
        if (o == 1) assert_true(error == error && full[1] == 0.0f);
    }
    mem_free(full);
    return error / all;
}

static quantized_matrix quantized(const quantize_matrix_args *a, int k2, int n_threads) {
    pool *p = pool_new(n_threads);
    quantize_rate *rate;
    quantized_matrix q;
    err e = ERR_INIT;
    assert_int_equal(quantize_rate_new(EXL3_MUL1, k2, p, &rate, &e), OK);
    if (quantize_matrix(a, rate, p, &q, &e) != OK) fail_msg("%s", e.msg);
    quantize_rate_free(rate);
    pool_free(p);
    return q;
}

static void test_matrix(void **state) {
    float *w = make_weights(100, 90, 3);
    quantize_matrix_args a = {.weight = w, .in = 100, .out = 90, .seed = 5};
    quantized_matrix one = quantized(&a, 8, 1);
    quantized_matrix two = quantized(&a, 8, 2);
    (void)state;
    assert_int_equal(one.in, 128);
    assert_int_equal(one.out, 128);
    assert_false(one.is_calibrated);
    assert_int_equal(one.svh[1], 0);
    assert_int_equal(one.svh[127], 0);
    double error = decoded_error(&one, w, 100, 90);
    if (error > 0.006) fail_msg("error %g at 4 bits", error);
    assert_memory_equal(one.trellis, two.trellis, exl3_trellis_bytes(128, 128, 8));
    assert_memory_equal(one.suh, two.suh, 256);
    quantized_matrix_release(&one);
    quantized_matrix_release(&two);
    mem_free(w);
}

/* A Hessian of correlated inputs: feedback must beat rounding to nearest under its measure. */
static void test_feedback_helps(void **state) {
    enum { IN = 128, ROWS = 200 };
    float *w = make_weights(IN, 64, 4);
    float *h = mem_array(IN * IN, sizeof *h);
    rand_state r;
    (void)state;
    rand_init(&r, 9, 9);
    for (int row = 0; row < ROWS; row++) {
        double x[IN];
        double common = rand_normal(&r);
        for (int i = 0; i < IN; i++) {
            x[i] = rand_normal(&r) * 0.4 + common;
        }
        for (int i = 0; i < IN * IN; i++) {
            h[i] += (float)(x[i / IN] * x[i % IN]);
        }
    }
    quantize_matrix_args a = {
        .weight = w, .in = IN, .out = 64, .hessian_sum = h, .hessian_rows = ROWS};
    quantized_matrix with = quantized(&a, 8, 2);
    assert_true(with.is_calibrated);
    assert_true(with.proxy_error < 0.8 * with.square_error);
    memset(h, 0, IN * IN * sizeof *h);
    quantized_matrix without = quantized(&a, 8, 2);
    assert_false(without.is_calibrated);
    assert_true(without.square_error < with.square_error);
    quantized_matrix_release(&with);
    quantized_matrix_release(&without);
    mem_free(w);
    mem_free(h);
}

static void test_matrix_refusals(void **state) {
    float w[4] = {1.0f, NAN, 0.0f, 2.0f};
    atomic_bool stop = true;
    float fine[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    quantize_matrix_args a = {.weight = w, .in = 2, .out = 2};
    quantized_matrix q;
    quantize_rate *rate;
    err e = ERR_INIT;
    (void)state;
    assert_int_equal(quantize_rate_new(EXL3_MUL1, 17, NULL, &rate, &e), ERR_ARG);
    assert_null(rate);
    assert_int_equal(quantize_rate_new(EXL3_MUL1, 16, NULL, &rate, &e), OK);
    assert_int_equal(quantize_matrix(&a, rate, NULL, &q, &e), ERR_ARG);
    a.in = 0;
    assert_int_equal(quantize_matrix(&a, rate, NULL, &q, &e), ERR_ARG);
    a = (quantize_matrix_args){.weight = fine, .in = 2, .out = 2, .cancel = &stop};
    assert_int_equal(quantize_matrix(&a, rate, NULL, &q, &e), ERR_CANCELLED);
    assert_null(q.trellis);
    quantize_rate_free(rate);
}

/* A model of one window layer without draft stages and one expert. */
static const model_config config = {.n_vocab = 128,
    .n_embd = 128,
    .n_layers = 1,
    .n_heads = 2,
    .d_head = 64,
    .q_rank = 64,
    .o_groups = 2,
    .o_rank = 64,
    .n_ff = 64,
    .n_shared = 0,
    .n_streams = 2,
    .layers = {{.i_kv_source = -1, .i_index_source = -1, .i_engram = -1, .n_experts = 1}}};

typedef struct forge {
    st_writer *w;
    bool is_writing;
    int n;
} forge;

static int forge_spec(void *ctx, const weight_spec *w, err *e) {
    forge *f = ctx;
    char name[128];
    if (w->role == WEIGHT_OPTIONAL) return OK;
    snprintf(name, sizeof name, "%s%s", w->name, w->role == WEIGHT_LINEAR ? ".weight" : "");
    if (!f->is_writing) {
        f->n++;
        int id = st_writer_add(f->w, name, ST_F32, w->n_dims, w->dims, e);
        return id < 0 ? id : OK;
    }
    int in = (int)(w->n_dims > 1 ? w->dims[1] : w->dims[0]);
    int out = (int)(w->n_dims > 1 ? w->dims[0] : 1);
    float *v = make_weights(in, out, (uint64_t)f->n + 1);
    int rc = st_writer_put(f->w, f->n++, 0, v, (uint64_t)in * (uint64_t)out * 4, e);
    mem_free(v);
    return rc;
}

static char base_dir[64];

static void path_of(const char *name, char out[160]) {
    snprintf(out, 160, "%s/%s", base_dir, name);
}

static void put_file(const char *name, const char *text) {
    char path[160];
    path_of(name, path);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0644, NULL), OK);
}

static int set_up(void **state) {
    char path[160];
    err e = ERR_INIT;
    (void)state;
    snprintf(base_dir, sizeof base_dir, "/tmp/tandem-q.XXXXXX");
    if (mkdtemp(base_dir) == NULL) return -1;
    path_of("in", path);
    assert_int_equal(dir_make_all(path, 0755, &e), OK);
    path_of("in/model.safetensors", path);
    forge f = {.w = st_writer_new(path)};
    assert_int_equal(weight_specs_each(&config, forge_spec, &f, &e), OK);
    assert_int_equal(st_writer_begin(f.w, &e), OK);
    f.is_writing = true;
    f.n = 0;
    assert_int_equal(weight_specs_each(&config, forge_spec, &f, &e), OK);
    assert_int_equal(st_writer_finish(f.w, &e), OK);
    st_writer_free(f.w);
    put_file("in/config.json",
        "{\"big\":123456789012345678901,\"quantization_config\":{\"quant_method\":\"fp8\"}}");
    put_file("in/tokenizer.json", "{}");
    put_file("in/secret.txt", "not copied");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return dir_remove_all(base_dir, NULL);
}

typedef struct watch {
    int n_calls, n_resumed, stop_after;
    atomic_bool cancel;
} watch;

static void note(void *ctx, const quantize_progress *p) {
    watch *w = ctx;
    w->n_calls++;
    w->n_resumed += p->was_resumed && p->n_done > 0;
    assert_true(p->n_done <= p->n_total && p->weights_done <= p->weights_total);
    if (p->n_done == w->stop_after) {
        atomic_store(&w->cancel, true);
    }
}

static int run(
    const char *to, const char *rules, watch *w, uint64_t shard_bytes, quantize_report *r, err *e) {
    char in[160];
    char out[160];
    quantize_map *m;
    path_of("in", in);
    path_of(to, out);
    assert_int_equal(quantize_map_parse(rules, &m, e), OK);
    quantize_options o = {.map = m,
        .n_threads = 2,
        .shard_bytes = shard_bytes,
        .progress = note,
        .progress_ctx = w,
        .cancel = &w->cancel};
    int rc = quantize_model(in, out, &config, &o, r, e);
    quantize_map_free(m);
    return rc;
}

static const char rules[] = "*.hc_*_fn=f16 head=4 *.attn.wo_a=3 *.ffn.*.w2=4";

static void check_pack(const char *to, bool has_index) {
    char out[160];
    checkpoint *k;
    linear_source s;
    json *c;
    err e = ERR_INIT;
    buf text = BUF_INIT;
    path_of(to, out);
    if (checkpoint_open(out, &config, NULL, &k, &e) != OK) fail_msg("%s", e.msg);
    assert_string_equal(checkpoint_warnings(k), "");
    assert_int_equal(checkpoint_linear(k, "layers.0.attn.wo_a.slice.1", &s, &e), OK);
    assert_int_equal(s.kind, LINEAR_EXL3);
    assert_int_equal(s.exl3.k2, 6);
    assert_int_equal(checkpoint_linear(k, "layers.0.attn.wq_b", &s, &e), OK);
    assert_int_equal(s.kind, LINEAR_FLOAT);
    assert_int_equal(st_find(checkpoint_set(k), "layers.0.hc_attn_fn")->dtype, ST_F16);
    assert_int_equal(st_find(checkpoint_set(k), "norm.weight")->dtype, ST_F32);
    assert_true((st_n_files(checkpoint_set(k)) > 1) == has_index);
    checkpoint_close(k);
    path_join(&text, out, "config.json");
    assert_int_equal(json_parse_file(buf_cstr(&text), NULL, &c, &e), OK);
    assert_string_equal(json_number_text(json_get(c, "big")), "123456789012345678901");
    const json *q = json_get(c, "quantization_config");
    assert_string_equal(json_str(json_get(q, "quant_method")), "exl3");
    assert_string_equal(
        json_str(json_get(json_get(q, "original_quantization_config"), "quant_method")), "fp8");
    json_free(c);
    path_join(&text, out, "tokenizer.json");
    assert_true(file_exists(buf_cstr(&text)));
    path_join(&text, out, "secret.txt");
    assert_false(file_exists(buf_cstr(&text)));
    path_join(&text, out, ".quantize");
    assert_false(dir_exists(buf_cstr(&text)));
    buf_release(&text);
}

static void test_model_stop_and_resume(void **state) {
    watch w = {.stop_after = 2};
    quantize_report r;
    char out[160];
    checkpoint *k;
    err e = ERR_INIT;
    (void)state;
    assert_int_equal(run("out", rules, &w, 0, &r, &e), ERR_CANCELLED);
    path_of("out", out);
    assert_int_not_equal(checkpoint_open(out, &config, NULL, &k, &e), OK);
    w = (watch){.stop_after = -1};
    if (run("out", rules, &w, 0, &r, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(w.n_resumed, 2);
    assert_int_equal(r.n_resumed, 2);
    assert_int_equal(w.n_calls, r.n_matrices + 1);
    assert_true(r.mean_bits > 3.0 && r.mean_bits < 4.0);
    assert_true(r.worst_proxy_error < 0.03 && r.mean_proxy_error > 0.001);
    check_pack("out", false);
    assert_int_equal(run("out", rules, &w, 0, &r, &e), ERR_EXISTS);
}

static void test_model_in_shards(void **state) {
    watch w = {.stop_after = -1};
    quantize_report r;
    err e = ERR_INIT;
    (void)state;
    if (run("shards", rules, &w, 40000, &r, &e) != OK) fail_msg("%s", e.msg);
    check_pack("shards", true);
}

static void test_model_is_quantized_already(void **state) {
    watch w = {.stop_after = -1};
    quantize_map *m;
    char in[160];
    char out[160];
    err e = ERR_INIT;
    (void)state;
    path_of("out", in);
    path_of("again", out);
    assert_int_equal(quantize_map_parse(rules, &m, &e), OK);
    quantize_options o = {.map = m, .n_threads = 1, .cancel = &w.cancel};
    assert_int_equal(quantize_model(in, out, &config, &o, NULL, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "EXL3 already"));
    quantize_map_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maps),
        cmocka_unit_test(test_bad_maps),
        cmocka_unit_test(test_matrix),
        cmocka_unit_test(test_feedback_helps),
        cmocka_unit_test(test_matrix_refusals),
        cmocka_unit_test(test_model_stop_and_resume),
        cmocka_unit_test(test_model_in_shards),
        cmocka_unit_test(test_model_is_quantized_already),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
