/* Configuration, layer plan and Engram constants, with the released model's values and their golden numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/model/config_internal.h"
#include "engine/model/model_internal.h"

static const char real_head[] =
    "{\"architectures\":[\"DeepseekV41ForCausalLM\"],\"model_type\":\"deepseek_v41\",\"bos_token_id\":0,"
    "\"eos_token_id\":1,\"pad_token_id\":2,\"image_token_id\":129264,\"text_config\":{"
    "\"vocab_size\":129280,\"hidden_size\":5120,\"num_hidden_layers\":40,\"num_key_value_heads\":1,"
    "\"qk_rope_head_dim\":64,\"o_lora_rank\":1024,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-20,"
    "\"attention_bias\":false,\"max_position_embeddings\":1048576,\"n_routed_experts\":384,"
    "\"num_experts_per_tok\":6,\"topk_method\":\"noaux_tc\",\"routed_scaling_factor\":1.5,"
    "\"moe_intermediate_size\":2304,\"num_attention_heads\":64,\"head_dim\":512,\"q_lora_rank\":1280,"
    "\"o_groups\":8,\"swiglu_limit\":10.0,\"tie_word_embeddings\":false,\"attention_dropout\":0.0,"
    "\"rope_theta\":10000,\"compress_rope_theta\":160000,\"n_shared_experts\":1,"
    "\"scoring_func\":\"sqrtsoftplus\",\"norm_topk_prob\":true,\"sliding_window\":128,"
    "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":16,\"beta_fast\":32,\"beta_slow\":1,"
    "\"original_max_position_embeddings\":65536},"
    "\"kv_source_layer_ids\":[2,8,14,20],\"index_source_layer_ids\":[2,8,14,20,24,28,32,36],"
    "\"index_n_heads\":32,\"index_head_dim\":128,\"index_topk\":512,\"candidate_source_layer_id\":20,"
    "\"candidate_topk_blocks\":2048,\"candidate_block_size\":8,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,"
    "\"hc_eps\":1e-6,\"engram_layer_ids\":[1,14],\"engram_num_embeddings\":[384006168,384016682],"
    "\"engram_max_ngram_size\":4,\"engram_vocab_size\":16000000,\"engram_n_heads\":8,"
    "\"engram_head_dim\":256,\"engram_pad_token_id\":2,\"engram_compressed_vocab_size\":99092,"
    "\"num_nextn_predict_layers\":3,\"dspark_block_size\":5,\"dspark_noise_token_id\":128799,"
    "\"dspark_target_layer_ids\":[37,38,39],\"dspark_markov_rank\":256,"
    "\"dspark_n_routed_experts\":128,\"dspark_num_experts_per_tok\":3,\"compress_ratios\":[0,0,";

/* The released configuration; what stands for `from` becomes `to`. */
static void real_config(buf *out, const char *from, const char *to) {
    buf text = BUF_INIT;
    buf_puts(&text, real_head);
    for (int i = 0; i < 18; i++) {
        buf_puts(&text, "2,");
    }
    for (int i = 0; i < 20; i++) {
        buf_puts(&text, "1,");
    }
    buf_puts(&text, "0,0,0]}}");
    buf_reset(out);
    const char *at = from == NULL ? NULL : strstr(buf_cstr(&text), from);
    assert_true(from == NULL || at != NULL);
    if (at == NULL) {
        buf_puts(out, buf_cstr(&text));
    } else {
        buf_append(out, text.data, (size_t)(at - text.data));
        buf_puts(out, to);
        buf_puts(out, at + strlen(from));
    }
    buf_release(&text);
}

static int parse_with(const char *from, const char *to, model_config *c, err *e) {
    buf text = BUF_INIT;
    real_config(&text, from, to);
    int rc = model_config_parse(text.data, text.len, c, e);
    buf_release(&text);
    return rc;
}

static void test_real_plan(void **state) {
    (void)state;
    static model_config c;
    err e = ERR_INIT;
    assert_int_equal(parse_with(NULL, NULL, &c, &e), OK);
    assert_false(c.is_flat);
    assert_int_equal(c.max_context, 1048576);
    static const struct {
        int layer, mode, ratio, kv, index;
    } want[] = {{0, LAYER_WINDOW, 0, -1, -1}, {1, LAYER_WINDOW, 0, -1, -1},
        {2, LAYER_FULL, 2, 2, 2}, {7, LAYER_REUSE, 2, 2, 2}, {8, LAYER_FULL, 2, 8, 8},
        {19, LAYER_REUSE, 2, 14, 14}, {20, LAYER_FULL, 1, 20, 20}, {23, LAYER_REUSE, 1, 20, 20},
        {24, LAYER_REINDEX, 1, 20, 24}, {39, LAYER_REUSE, 1, 20, 36},
        {41, LAYER_WINDOW, 0, -1, -1}};
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        const layer_plan *p = &c.layers[want[i].layer];
        assert_int_equal(p->mode, want[i].mode);
        assert_int_equal(p->ratio, want[i].ratio);
        assert_int_equal(p->kv_source, want[i].kv);
        assert_int_equal(p->index_source, want[i].index);
    }
    assert_true(c.layers[20].is_candidate_source);
    assert_true(
        c.layers[24].has_candidates && c.layers[36].has_candidates && !c.layers[20].has_candidates);
    assert_int_equal(c.layers[14].i_engram, 1);
    assert_int_equal(c.layers[39].i_tap, 2);
    assert_int_equal(c.layers[40].n_experts, 128);
    assert_int_equal(c.layers[40].n_experts_used, 3);
    assert_int_equal(model_window_row_bytes(512), 528);
    assert_int_equal(model_compressed_row_bytes(512), 288);
    assert_int_equal(model_key_row_bytes(128), 68);
    assert_int_equal(model_config_check_world(&c, 2, &e), OK);
    assert_int_equal(model_config_check_world(&c, 3, &e), ERR_UNSUPPORTED);
}

static void test_numpy_generator(void **state) {
    (void)state;
    double got = engram_numpy_double(42);
    if (!(got > 0.7739560485559632 && got < 0.7739560485559634)) {
        fail_msg("%.17g", got);
    }
}

static void test_engram_constants(void **state) {
    (void)state;
    static model_config c;
    err e = ERR_INIT;
    assert_int_equal(parse_with(NULL, NULL, &c, &e), OK);
    static const int64_t multipliers[2][4] = {
        {76632096046245, 4839876093313, 35959672319349, 73987337458391},
        {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 4; k++) {
            assert_true(c.engram[i].multipliers[k] == multipliers[i][k]);
        }
    }
    assert_true(c.engram[0].n_rows == 384006168 && c.engram[1].n_rows == 384016682);
    assert_true(c.engram[0].primes[0] == 16000057 && c.engram[0].primes[23] == 16000463);
    assert_true(c.engram[1].primes[8] == 16000667 && c.engram[1].primes[23] == 16000889);
    static const int columns[6] = {1, 2, 3, 8, 16, 23};
    static const int64_t offsets[2][6] = {
        {16000057, 32000136, 48000217, 128000880, 256002934, 368005705},
        {16000477, 32000964, 48001463, 128004290, 256009984, 368015793}};
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 6; k++) {
            assert_true(c.engram[i].offsets[columns[k]] == offsets[i][k]);
        }
    }
}

/* model.md 20; the tokens' classes are their ids here. */
static void test_engram_rows(void **state) {
    (void)state;
    model *m = mem_alloc(sizeof(*m));
    err e = ERR_INIT;
    assert_int_equal(parse_with(NULL, NULL, &m->config, &e), OK);
    int32_t classes[128];
    for (int i = 0; i < 128; i++) {
        classes[i] = i;
    }
    m->token_class = classes;
    m->pad_class = 2;
    static const int columns[6] = {0, 7, 8, 15, 16, 23};
    static const struct {
        int32_t history[4];
        int layer;
        int64_t want[6];
    } cases[] = {
        {{5, -1, -1, -1}, 0, {5412672, 127351390, 143494632, 247008214, 256353435, 372009279}},
        {{5, -1, -1, -1}, 1, {6939818, 119840903, 131576092, 243164617, 268363546, 382274687}},
        {{100, 99, 98, 97}, 0, {13554623, 127813155, 139634127, 241382397, 262311158, 377747864}},
        {{100, 99, 98, 97}, 1, {96415, 112714398, 131018338, 255522927, 262449821, 381538879}}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t ids[MODEL_MAX_HASHES];
        engram_hash(m, cases[i].layer, cases[i].history, ids);
        for (int k = 0; k < 6; k++) {
            assert_true(ids[columns[k]] == cases[i].want[k]);
        }
    }
    /* A cut in the history makes everything older the pad class, whatever stands there. */
    int64_t a[MODEL_MAX_HASHES], b[MODEL_MAX_HASHES];
    engram_hash(m, 0, (int32_t[]){5, -1, 7, 9}, a);
    engram_hash(m, 0, (int32_t[]){5, -1, -1, -1}, b);
    assert_memory_equal(a, b, 24 * sizeof(int64_t));
    mem_free(m);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        int rc;
        const char *word; /* that must stand in the sentence */
    } cases[] = {
        {"DeepseekV41ForCausalLM", "LlamaForCausalLM", ERR_UNSUPPORTED, "LlamaForCausalLM"},
        {"\"hidden_size\":5120,", "", ERR_FORMAT, "hidden_size"},
        {"\"hidden_size\":5120", "\"hidden_size\":\"5120\"", ERR_FORMAT, "hidden_size"},
        {"\"head_dim\":512", "\"head_dim\":500", ERR_UNSUPPORTED, "head_dim"},
        {"\"hidden_act\":\"silu\"", "\"hidden_act\":\"gelu\"", ERR_UNSUPPORTED, "gelu"},
        {"sqrtsoftplus", "softmax", ERR_UNSUPPORTED, "softmax"},
        {"\"norm_topk_prob\":true", "\"norm_topk_prob\":false", ERR_UNSUPPORTED, "norm_topk_prob"},
        {"\"rope_type\":\"yarn\"", "\"rope_type\":\"linear\"", ERR_UNSUPPORTED, "linear"},
        {"384006168", "384006169", ERR_MISMATCH, "engram_num_embeddings"},
        {"[2,8,14,20]", "[8,2,14,20]", ERR_FORMAT, "KV source"},
        {"[2,8,14,20]", "[8,14,20]", ERR_FORMAT, "layer 2"},
        {"[2,8,14,20,24,28,32,36]", "[2,8,14,24,28,32,36]", ERR_UNSUPPORTED, "layer 20"},
        {"\"candidate_source_layer_id\":20", "\"candidate_source_layer_id\":21", ERR_FORMAT, "21"},
        {"\"compress_ratios\":[0,0,2", "\"compress_ratios\":[0,0,3", ERR_UNSUPPORTED,
            "compress_ratios[2]"},
        {"\"num_experts_per_tok\":6", "\"num_experts_per_tok\":60000", ERR_FORMAT,
            "num_experts_per_tok"},
        {"\"num_hidden_layers\":40", "\"num_hidden_layers\":41", ERR_FORMAT, "compress_ratios"},
        {"{\"architectures\"", "[\"architectures\"", ERR_FORMAT, "config.json"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static model_config c;
        err e = ERR_INIT;
        int rc = parse_with(cases[i].from, cases[i].to, &c, &e);
        if (rc != cases[i].rc || strstr(e.msg, cases[i].word) == NULL) {
            fail_msg("case %zu: %d, \"%s\"", i, rc, e.msg);
        }
    }
}

static void test_files(void **state) {
    (void)state;
    static model_config c;
    err e = ERR_INIT;
    assert_int_equal(model_config_load("/nonexistent/model", &c, &e), ERR_NOT_FOUND);
    assert_int_equal(parse_with(NULL, NULL, &c, &e), OK);
    assert_int_equal(model_config_check_vocab(&c, 129280, &e), OK);
    assert_int_equal(model_config_check_vocab(&c, 129281, &e), ERR_MISMATCH);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_real_plan),
        cmocka_unit_test(test_numpy_generator), cmocka_unit_test(test_engram_constants),
        cmocka_unit_test(test_engram_rows), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
