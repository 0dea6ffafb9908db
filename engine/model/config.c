#include "engine/model/config.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "engine/model/config_internal.h"

/* ---- a reader whose first error sticks ---- */

typedef struct config_reader {
    const json *top;  /* whole file */
    const json *text; /* text_config, or the whole file in the flat layout */
    bool is_flat;
    int rc;
    err *e;
} config_reader;

typedef enum key_kind { KEY_INT, KEY_I64, KEY_FLOAT, KEY_DOUBLE } key_kind;

/* One number of the config under both names. fallback is used when the key is absent; KEY_NEEDED
 * has none. */
typedef struct config_key {
    const char *hf, *flat;
    key_kind kind;
    size_t offset;
    double min, max, fallback;
} config_key;

#define KEY_NEEDED (-1e300)
#define KEY(hf, flat, kind, field, min, max, fallback)                                             \
    { hf, flat, kind, offsetof(model_config, field), min, max, fallback }

static const config_key base_keys[] = {
    KEY("vocab_size", "vocab_size", KEY_INT, n_vocab, 1, 1 << 24, KEY_NEEDED),
    KEY("hidden_size", "dim", KEY_INT, n_embd, 1, 1 << 16, KEY_NEEDED),
    KEY("num_hidden_layers", "n_layers", KEY_INT, n_layers, 1, MODEL_MAX_LAYERS, KEY_NEEDED),
    KEY("num_nextn_predict_layers", "n_mtp_layers", KEY_INT, n_stages, 0, MODEL_MAX_STAGES, 0),
    KEY("num_attention_heads", "n_heads", KEY_INT, n_heads, 1, 1024, KEY_NEEDED),
    KEY("head_dim", "head_dim", KEY_INT, d_head, 32, 4096, KEY_NEEDED),
    KEY("qk_rope_head_dim", "rope_head_dim", KEY_INT, d_rope, 2, 4096, KEY_NEEDED),
    KEY("q_lora_rank", "q_lora_rank", KEY_INT, q_rank, 1, 1 << 16, KEY_NEEDED),
    KEY("o_groups", "o_groups", KEY_INT, o_groups, 1, 256, KEY_NEEDED),
    KEY("o_lora_rank", "o_lora_rank", KEY_INT, o_rank, 1, 1 << 16, KEY_NEEDED),
    KEY("moe_intermediate_size", "moe_inter_dim", KEY_INT, n_ff, 1, 1 << 16, KEY_NEEDED),
    KEY("n_routed_experts", "n_routed_experts", KEY_INT, n_experts, 1, 4096, KEY_NEEDED),
    KEY("num_experts_per_tok", "n_activated_experts", KEY_INT, n_experts_used, 1, 64, KEY_NEEDED),
    KEY("n_shared_experts", "n_shared_experts", KEY_INT, n_shared, 1, 1, 1),
    KEY("sliding_window", "window_size", KEY_INT, window, 1, 1 << 16, KEY_NEEDED),
    KEY("swiglu_limit", "swiglu_limit", KEY_FLOAT, swiglu_limit, 1e-6, 1e6, KEY_NEEDED),
    KEY("rms_norm_eps", "norm_eps", KEY_FLOAT, norm_eps, 0, 1, KEY_NEEDED),
    KEY("routed_scaling_factor", "route_scale", KEY_FLOAT, route_scale, 1e-6, 1e6, KEY_NEEDED),
    KEY("gate_temperature", "gate_temperature", KEY_FLOAT, gate_temperature, 1e-6, 1e6, 1),
    KEY("rope_theta", "rope_theta", KEY_DOUBLE, rope_theta, 1, 1e12, KEY_NEEDED),
    KEY("compress_rope_theta", "compress_rope_theta", KEY_DOUBLE, compress_theta, 1, 1e12,
        KEY_NEEDED),
    KEY("hc_mult", "hc_mult", KEY_INT, n_streams, 1, MODEL_MAX_STREAMS, KEY_NEEDED),
    KEY("hc_sinkhorn_iters", "hc_sinkhorn_iters", KEY_INT, sinkhorn_iters, 1, 1000, KEY_NEEDED),
    KEY("hc_eps", "hc_eps", KEY_FLOAT, hc_eps, 0, 1, KEY_NEEDED),
    KEY("index_n_heads", "index_n_heads", KEY_INT, n_index_heads, 1, 1024, KEY_NEEDED),
    KEY("index_head_dim", "index_head_dim", KEY_INT, d_index, 32, 4096, KEY_NEEDED),
    KEY("index_topk", "index_topk", KEY_INT, index_topk, 1, 1 << 16, KEY_NEEDED),
    KEY("candidate_source_layer_id", "candidate_source_layer", KEY_INT, candidate_layer, -1,
        MODEL_MAX_LAYERS, -1),
    KEY("candidate_topk_blocks", "candidate_topk_blocks", KEY_INT, candidate_blocks, 1, 1 << 20, 1),
    KEY("candidate_block_size", "candidate_block_size", KEY_INT, candidate_block, 1, 1 << 16, 1),
};

static const config_key engram_keys[] = {
    KEY("engram_max_ngram_size", "engram_max_ngram_size", KEY_INT, max_ngram, 2, MODEL_MAX_NGRAM,
        KEY_NEEDED),
    KEY("engram_n_heads", "engram_n_heads", KEY_INT, engram_heads, 1, MODEL_MAX_HASHES, KEY_NEEDED),
    KEY("engram_head_dim", "engram_head_dim", KEY_INT, d_engram, 32, 4096, KEY_NEEDED),
    KEY("engram_vocab_size", "engram_vocab_size", KEY_I64, engram_vocab, 2, 1e9, KEY_NEEDED),
    KEY("engram_pad_token_id", "engram_pad_id", KEY_INT, engram_pad_id, 0, 1 << 24, KEY_NEEDED),
    KEY("engram_compressed_vocab_size", "engram_compressed_vocab_size", KEY_INT, n_classes, 1,
        1 << 24, KEY_NEEDED),
};

static const config_key draft_keys[] = {
    KEY("dspark_block_size", "dspark_block_size", KEY_INT, block, 1, MODEL_MAX_BLOCK, KEY_NEEDED),
    KEY("dspark_noise_token_id", "dspark_noise_token_id", KEY_INT, noise_id, 0, 1 << 24,
        KEY_NEEDED),
    KEY("dspark_markov_rank", "dspark_markov_rank", KEY_INT, markov_rank, 1, 1 << 16, KEY_NEEDED),
    KEY("dspark_n_routed_experts", "dspark_n_routed_experts", KEY_INT, n_stage_experts, 1, 4096,
        KEY_NEEDED),
    KEY("dspark_num_experts_per_tok", "dspark_n_activated_experts", KEY_INT, n_stage_experts_used,
        1, 64, KEY_NEEDED),
};

/* rope_scaling's members; flat files hold them at the top. */
static const config_key yarn_keys[] = {
    KEY("factor", "rope_factor", KEY_DOUBLE, yarn_factor, 1, 1e6, KEY_NEEDED),
    KEY("beta_fast", "beta_fast", KEY_DOUBLE, yarn_beta_fast, 1e-6, 1e6, KEY_NEEDED),
    KEY("beta_slow", "beta_slow", KEY_DOUBLE, yarn_beta_slow, 1e-6, 1e6, KEY_NEEDED),
    KEY("original_max_position_embeddings", "original_seq_len", KEY_I64, yarn_original, 1, 1e12,
        KEY_NEEDED),
};

static const config_key id_keys[] = {
    KEY("bos_token_id", "bos_token_id", KEY_INT, bos_id, 0, 1 << 24, 0),
    KEY("eos_token_id", "eos_token_id", KEY_INT, eos_id, 0, 1 << 24, 1),
    KEY("pad_token_id", "pad_token_id", KEY_INT, pad_id, 0, 1 << 24, 2),
    KEY("image_token_id", "image_token_id", KEY_INT, image_token_id, -1, 1 << 24, -1),
};

#define N_KEYS(a) ((int)(sizeof(a) / sizeof((a)[0])))

static void store_number(model_config *c, const config_key *k, double v) {
    char *at = (char *)c + k->offset;
    switch (k->kind) {
    case KEY_INT:
        *(int *)(void *)at = (int)v;
        break;
    case KEY_I64:
        *(int64_t *)(void *)at = (int64_t)v;
        break;
    case KEY_FLOAT:
        *(float *)(void *)at = (float)v;
        break;
    case KEY_DOUBLE:
        *(double *)(void *)at = v;
        break;
    }
}

static void read_key(config_reader *r, const json *from, const config_key *k, model_config *c) {
    if (r->rc != OK) {
        return;
    }
    const char *name = r->is_flat ? k->flat : k->hf;
    const json *v = json_get(from, name);
    if (v == NULL || json_is_null(v)) {
        if (k->fallback > KEY_NEEDED) {
            store_number(c, k, k->fallback);
            return;
        }
        r->rc = err_set(r->e, ERR_FORMAT,
            "config.json has no %s; the file is not complete, fetch it "
            "again from the model's repository",
            name);
        return;
    }
    bool is_whole = k->kind == KEY_INT || k->kind == KEY_I64;
    double d = 0;
    if (json_double(v, &d) != OK || (is_whole && !json_is_integer(v))) {
        r->rc = err_set(r->e, ERR_FORMAT, "config.json: %s must be %s, found a %s", name,
            is_whole ? "an integer" : "a number", json_kind(v));
        return;
    }
    if (d < k->min || d > k->max) {
        r->rc = err_set(r->e, ERR_FORMAT, "config.json: %s is %s, expected %.10g to %.10g", name,
            json_number_text(v), k->min, k->max);
        return;
    }
    store_number(c, k, d);
}

static void read_keys(
    config_reader *r, const json *from, const config_key *keys, int n, model_config *c) {
    for (int i = 0; i < n; i++) {
        read_key(r, from, &keys[i], c);
    }
}

/* A list of integers in [min, max]; -1 when absent. */
static int read_list(config_reader *r, const char *name, int *out, int cap, double max) {
    if (r->rc != OK) {
        return -1;
    }
    const json *list = json_get(r->text, name);
    if (list == NULL || json_is_null(list)) {
        return -1;
    }
    int n = 0;
    JSON_EACH(item, list) {
        int64_t v = 0;
        if (n == cap) {
            r->rc = err_set(r->e, ERR_LIMIT, "config.json: %s has more than %d entries", name, cap);
            return -1;
        }
        if (json_i64(item, &v) != OK || v < 0 || (double)v > max) {
            r->rc = err_set(r->e, ERR_FORMAT,
                "config.json: entry %d of %s must be an integer from 0 "
                "to %.0f",
                n, name, max);
            return -1;
        }
        out[n++] = (int)v;
    }
    return n;
}

static int read_needed_list(config_reader *r, const char *name, int *out, int cap, double max) {
    int n = read_list(r, name, out, cap, max);
    if (r->rc == OK && n < 0) {
        r->rc = err_set(r->e, ERR_FORMAT,
            "config.json has no list %s; the file is not complete, "
            "fetch it again from the model's repository",
            name);
    }
    return n < 0 ? 0 : n;
}

/* ---- values that must be what the forward pass computes ---- */

static void want_string(config_reader *r, const json *from, const char *name, const char *want) {
    const json *v = json_get(from, name);
    if (r->rc != OK || v == NULL || json_is_null(v)) {
        return;
    }
    const char *s = json_str(v);
    if (s == NULL || strcmp(s, want) != 0) {
        r->rc = err_set(r->e, ERR_UNSUPPORTED,
            "config.json: %s is \"%s\"; only \"%s\" is known to "
            "this version",
            name, s == NULL ? json_kind(v) : s, want);
    }
}

static void want_bool(config_reader *r, const char *name, bool want) {
    const json *v = json_get(r->text, name);
    bool b = false;
    if (r->rc != OK || v == NULL || json_is_null(v)) {
        return;
    }
    if (json_bool(v, &b) != OK || b != want) {
        r->rc = err_set(r->e, ERR_UNSUPPORTED, "config.json: %s must be %s in this architecture",
            name, want ? "true" : "false");
    }
}

static void want_number(config_reader *r, const char *name, double want) {
    const json *v = json_get(r->text, name);
    double d = 0;
    if (r->rc != OK || v == NULL || json_is_null(v)) {
        return;
    }
    if (json_double(v, &d) != OK || d < want || d > want) {
        r->rc = err_set(r->e, ERR_UNSUPPORTED, "config.json: %s must be %.10g in this architecture",
            name, want);
    }
}

static void want_known_values(config_reader *r) {
    want_string(r, r->text, "hidden_act", "silu");
    want_string(r, r->text, r->is_flat ? "score_func" : "scoring_func", "sqrtsoftplus");
    want_string(r, r->text, "topk_method", "noaux_tc");
    want_bool(r, "norm_topk_prob", true);
    want_bool(r, "attention_bias", false);
    want_bool(r, "tie_word_embeddings", false);
    want_number(r, "num_key_value_heads", 1);
    want_number(r, "attention_dropout", 0);
    if (!r->is_flat) {
        const json *scaling = json_get(r->text, "rope_scaling");
        want_string(r, scaling, "rope_type", "yarn");
        want_string(r, scaling, "type", "yarn");
    }
}

/* ---- which file is this ---- */

static int detect_layout(config_reader *r, model_config *c) {
    static const char known[] = "DeepseekV41ForCausalLM";
    if (!json_is_object(r->top)) {
        return err_set(
            r->e, ERR_FORMAT, "config.json holds a %s, not an object", json_kind(r->top));
    }
    const char *arch = json_str(json_at(json_get(r->top, "architectures"), 0));
    const char *type = json_str(json_get(r->top, "model_type"));
    const json *text = json_get(r->top, "text_config");
    bool is_flat = arch == NULL && type == NULL && text == NULL && json_get(r->top, "dim") != NULL;
    bool is_known =
        arch != NULL ? strcmp(arch, known) == 0 : type != NULL && strcmp(type, "deepseek_v41") == 0;
    if (!is_flat && !is_known) {
        const char *name = arch != NULL ? arch : type != NULL ? type : "none";
        return err_set(r->e, ERR_UNSUPPORTED,
            "config.json names the architecture %s; this program runs "
            "%s only",
            name, known);
    }
    if (is_flat && json_get(r->top, "kv_source_layers") == NULL) {
        return err_set(r->e, ERR_UNSUPPORTED,
            "config.json is a flat configuration without "
            "kv_source_layers; this program runs %s only",
            known);
    }
    r->is_flat = c->is_flat = is_flat;
    r->text = text != NULL ? text : r->top;
    str_copy(c->architecture, sizeof(c->architecture), known);
    const char *quant = json_str(json_get(json_get(r->top, "quantization_config"), "quant_method"));
    if (quant != NULL) {
        str_copy(c->quant_method, sizeof(c->quant_method), quant);
    }
    return OK;
}

static void read_context(config_reader *r, model_config *c) {
    c->max_context = (int64_t)((double)c->yarn_original * c->yarn_factor);
    if (r->is_flat) {
        return;
    }
    static const config_key key =
        KEY("max_position_embeddings", "", KEY_I64, max_context, 1, 1 << 30, KEY_NEEDED);
    read_key(r, r->text, &key, c);
}

static void read_engram(config_reader *r, model_config *c) {
    int layers[MODEL_MAX_ENGRAM] = {0};
    int n = read_list(r, "engram_layer_ids", layers, MODEL_MAX_ENGRAM, c->n_layers - 1);
    if (r->rc != OK || n <= 0) {
        return;
    }
    c->n_engram = n;
    read_keys(r, r->text, engram_keys, N_KEYS(engram_keys), c);
    c->n_hashes = (c->max_ngram - 1) * c->engram_heads;
    if (r->rc != OK) {
        return;
    }
    if (c->n_hashes > MODEL_MAX_HASHES || c->d_engram % 32 != 0 || c->engram_pad_id >= c->n_vocab) {
        r->rc = err_set(r->e, ERR_UNSUPPORTED,
            "config.json: Engram with %d hash columns (at most %d), "
            "engram_head_dim %d (a multiple of 32), pad token %d of %d",
            c->n_hashes, MODEL_MAX_HASHES, c->d_engram, c->engram_pad_id, c->n_vocab);
        return;
    }
    for (int i = 0; i < n; i++) {
        c->engram[i].layer = layers[i];
    }
    engram_plan_fill(c);
    const json *rows = json_get(r->text, "engram_num_embeddings");
    for (int i = 0; i < n && rows != NULL; i++) {
        int64_t said = -1;
        (void)json_i64(json_at(rows, (size_t)i), &said);
        if (said == c->engram[i].n_rows) {
            continue;
        }
        r->rc = err_set(r->e, ERR_MISMATCH,
            "config.json: engram_num_embeddings of layer %d is %lld, the "
            "primes from engram_vocab_size %lld sum to %lld",
            layers[i], (long long)said, (long long)c->engram_vocab, (long long)c->engram[i].n_rows);
        return;
    }
}

static void read_drafts(config_reader *r, model_config *c) {
    if (r->rc != OK || c->n_stages == 0) {
        return;
    }
    read_keys(r, r->text, draft_keys, N_KEYS(draft_keys), c);
    c->n_taps = read_needed_list(
        r, "dspark_target_layer_ids", c->tap_layers, MODEL_MAX_TAPS, c->n_layers - 1);
    if (r->rc == OK && (c->n_taps == 0 || c->noise_id >= c->n_vocab)) {
        r->rc = err_set(r->e, ERR_FORMAT,
            "config.json: drafting needs dspark_target_layer_ids and a "
            "dspark_noise_token_id below vocab_size %d (found %d)",
            c->n_vocab, c->noise_id);
    }
}

static void check_sizes(config_reader *r, const model_config *c) {
    if (r->rc != OK) {
        return;
    }
    const struct {
        bool is_fine;
        const char *rule;
    } rules[] = {
        {c->d_head % 32 == 0, "head_dim must be a multiple of 32"},
        {c->d_rope % 2 == 0 && c->d_rope <= c->d_head,
            "qk_rope_head_dim must be even and at most head_dim"},
        {c->d_index % 32 == 0 && c->d_rope <= c->d_index,
            "index_head_dim must be a multiple of 32 and at least qk_rope_head_dim"},
        {c->n_heads % c->o_groups == 0, "num_attention_heads must be a multiple of o_groups"},
        {c->n_experts_used <= c->n_experts, "num_experts_per_tok is above n_routed_experts"},
        {c->n_stages == 0 || c->n_stage_experts_used <= c->n_stage_experts,
            "dspark_num_experts_per_tok is above dspark_n_routed_experts"},
        {c->n_layers + c->n_stages <= MODEL_MAX_LAYERS, "too many layers"},
        {c->eos_id < c->n_vocab && c->bos_id < c->n_vocab && c->pad_id < c->n_vocab,
            "bos, eos and pad token ids must be below vocab_size"},
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (rules[i].is_fine) {
            continue;
        }
        r->rc = err_set(r->e, ERR_UNSUPPORTED, "config.json: %s", rules[i].rule);
        return;
    }
}

static void read_plan(config_reader *r, model_config *c) {
    if (r->rc != OK) {
        return;
    }
    int ratios[MODEL_MAX_LAYERS] = {0};
    int want = c->n_layers + c->n_stages;
    int n = read_needed_list(r, "compress_ratios", ratios, MODEL_MAX_LAYERS, 1 << 20);
    const char *kv = r->is_flat ? "kv_source_layers" : "kv_source_layer_ids";
    const char *index = r->is_flat ? "index_source_layers" : "index_source_layer_ids";
    c->n_kv_sources = read_needed_list(r, kv, c->kv_source_layers, c->n_layers, c->n_layers - 1);
    c->n_index_sources =
        read_needed_list(r, index, c->index_source_layers, c->n_layers, c->n_layers - 1);
    if (r->rc != OK) {
        return;
    }
    if (n < want) {
        r->rc = err_set(r->e, ERR_FORMAT,
            "config.json: compress_ratios has %d entries, %d layers and %d "
            "draft stages need %d",
            n, c->n_layers, c->n_stages, want);
        return;
    }
    r->rc = layer_plan_fill(c, ratios, r->e);
}

static void read_all(config_reader *r, model_config *c) {
    read_keys(r, r->text, base_keys, N_KEYS(base_keys), c);
    const json *yarn = r->is_flat ? r->top : json_get(r->text, "rope_scaling");
    read_keys(r, yarn, yarn_keys, N_KEYS(yarn_keys), c);
    read_keys(r, r->top, id_keys, N_KEYS(id_keys), c);
    want_known_values(r);
    read_context(r, c);
    read_engram(r, c);
    read_drafts(r, c);
    check_sizes(r, c);
    read_plan(r, c);
}

int model_config_parse(const char *text, size_t len, model_config *out, err *e) {
    json *top = NULL;
    int rc = json_parse(text, len, NULL, &top, e);
    if (rc != OK) {
        return err_add(e, rc, "config.json");
    }
    memset(out, 0, sizeof(*out));
    config_reader r = {.top = top, .text = top, .rc = OK, .e = e};
    rc = detect_layout(&r, out);
    if (rc == OK) {
        read_all(&r, out);
        rc = r.rc;
    }
    json_free(top);
    return rc;
}

int model_config_load(const char *dir, model_config *out, err *e) {
    buf path = BUF_INIT;
    buf text = BUF_MAX(MODEL_CONFIG_MAX_BYTES);
    int rc = path_join(&path, dir, "config.json");
    if (rc == OK && !file_exists(buf_cstr(&path))) {
        rc = path_join(&path, dir, "inference_config.json");
        if (rc == OK && !file_exists(buf_cstr(&path))) {
            rc = err_set(e, ERR_NOT_FOUND,
                "%s holds no config.json; name the folder of a complete model", dir);
            goto out;
        }
    }
    if (rc == OK) {
        rc = file_read(buf_cstr(&path), &text, MODEL_CONFIG_MAX_BYTES, e);
    }
    if (rc == OK) {
        rc = err_add(e, model_config_parse(text.data, text.len, out, e), "%s", dir);
    }
out:
    buf_release(&text);
    buf_release(&path);
    return rc;
}

int model_config_check_vocab(const model_config *c, int n_tokens, err *e) {
    if (n_tokens <= c->n_vocab) {
        return OK;
    }
    return err_set(e, ERR_MISMATCH,
        "the tokenizer has %d entries and the model %d; take tokenizer.json "
        "and config.json from the same model",
        n_tokens, c->n_vocab);
}

int model_config_check_world(const model_config *c, int world, err *e) {
    const struct {
        int n;
        const char *name;
    } dims[] = {{c->n_heads, "num_attention_heads"}, {c->o_groups, "o_groups"},
        {c->n_ff, "moe_intermediate_size"}, {c->n_vocab, "vocab_size"},
        {c->n_hashes, "Engram hash columns"}};
    if (world < 1 || world > 16) {
        return err_set(e, ERR_ARG, "%d ranks; 1 to 16 are possible", world);
    }
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        if (dims[i].n % world != 0) {
            return err_set(e, ERR_UNSUPPORTED,
                "%s is %d, which does not divide over %d ranks; use another "
                "number of ranks",
                dims[i].name, dims[i].n, world);
        }
    }
    return OK;
}
