#include "tests/gpu/synthetic_model.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/dist/exchange_internal.h"
#include "engine/weights/checkpoint.h"
#include "kernels/cuda_ops.h"

/* ---- configuration ---- */

static const char config_head[] =
    "{\"architectures\":[\"DeepseekV41ForCausalLM\"],\"model_type\":\"deepseek_v41\","
    "\"bos_token_id\":0,\"eos_token_id\":1,\"pad_token_id\":2,\"image_token_id\":129264,"
    "\"quantization_config\":{\"quant_method\":\"exl3\"},\"text_config\":{"
    "\"vocab_size\":129280,\"hidden_size\":5120,\"num_hidden_layers\":40,"
    "\"num_key_value_heads\":1,\"qk_rope_head_dim\":64,\"o_lora_rank\":1024,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-20,\"attention_bias\":false,"
    "\"max_position_embeddings\":1048576,\"n_routed_experts\":384,\"num_experts_per_tok\":6,"
    "\"topk_method\":\"noaux_tc\",\"routed_scaling_factor\":1.5,\"moe_intermediate_size\":2304,"
    "\"num_attention_heads\":64,\"head_dim\":512,\"q_lora_rank\":1280,\"o_groups\":8,"
    "\"swiglu_limit\":10.0,\"tie_word_embeddings\":false,\"attention_dropout\":0.0,"
    "\"rope_theta\":10000,\"compress_rope_theta\":160000,\"n_shared_experts\":1,"
    "\"scoring_func\":\"sqrtsoftplus\",\"norm_topk_prob\":true,\"sliding_window\":128,"
    "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":16,\"beta_fast\":32,\"beta_slow\":1,"
    "\"original_max_position_embeddings\":65536},\"kv_source_layer_ids\":[2,8,14,20],"
    "\"index_source_layer_ids\":[2,8,14,20,24,28,32,36],\"index_n_heads\":32,"
    "\"index_head_dim\":128,\"index_topk\":512,\"candidate_source_layer_id\":20,"
    "\"candidate_topk_blocks\":2048,\"candidate_block_size\":8,\"hc_mult\":4,"
    "\"hc_sinkhorn_iters\":20,\"hc_eps\":1e-6,\"engram_layer_ids\":[1,14],"
    "\"engram_num_embeddings\":[384006168,384016682],\"engram_max_ngram_size\":4,"
    "\"engram_vocab_size\":16000000,\"engram_n_heads\":8,\"engram_head_dim\":256,"
    "\"engram_pad_token_id\":2,\"engram_compressed_vocab_size\":99092,"
    "\"num_nextn_predict_layers\":3,\"dspark_block_size\":5,\"dspark_noise_token_id\":128799,"
    "\"dspark_target_layer_ids\":[37,38,39],\"dspark_markov_rank\":256,"
    "\"dspark_n_routed_experts\":128,\"dspark_num_experts_per_tok\":3,\"compress_ratios\":[0,0,";

static void config_text(buf *out) {
    buf_puts(out, config_head);
    for (int i = 0; i < 18; i++)
        buf_puts(out, "2,");
    for (int i = 0; i < 20; i++)
        buf_puts(out, "1,");
    buf_puts(out, "0,0,0]}}");
}

/* ---- the weight file ---- */

/* Order of the data: markers, plain values, what is never written. */
typedef enum part { PART_MARKER, PART_PLAIN, PART_HOLE, N_PARTS } part;

typedef struct entry {
    char name[112];
    const char *dtype;
    int n_dims;
    uint64_t dims[3], bytes, at;
    part part;
} entry;

typedef struct layout {
    entry *entries;
    size_t n, cap;
    const model_config *c;
} layout;

static void add(layout *l, const char *name, const char *dtype, const uint64_t dims[3], part p) {
    if (l->n == l->cap) {
        l->cap = l->cap == 0 ? 4096 : 2 * l->cap;
        l->entries = mem_realloc(l->entries, l->cap * sizeof(*l->entries));
    }
    entry *x = &l->entries[l->n++];
    *x = (entry){.dtype = dtype, .part = p};
    snprintf(x->name, sizeof(x->name), "%s", name);
    x->bytes = strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0 ? 4 : 2;
    for (int i = 0; i < 3 && dims[i] != 0; i++) {
        x->dims[x->n_dims++] = dims[i];
        x->bytes *= dims[i];
    }
}

/* Bits of the 2.9 bits pack (model.md 2.3). */
static uint64_t bits_of(const char *name) {
    int layer = 0;
    if (strncmp(name, "mtp.", 4) == 0) return 4;
    if (strcmp(name, "head") == 0) return 6;
    (void)sscanf(name, "layers.%d.", &layer);
    if (strstr(name, ".experts.") != NULL) return layer >= 18 && layer <= 22 ? 2 : 3;
    if (strstr(name, "shared_experts") != NULL) return layer >= 11 && layer <= 28 ? 4 : 5;
    if (strstr(name, "indexer.wk") != NULL) return 8;
    if (strstr(name, "engram.wkv") != NULL) return layer == 1 ? 5 : 4;
    if (layer == 0 && (strstr(name, "attn.wq_a") != NULL || strstr(name, "attn.wkv") != NULL))
        return 6;
    return 5;
}

static void add_packed(layout *l, const char *name, uint64_t out, uint64_t in) {
    char full[112];
    snprintf(full, sizeof(full), "%s.trellis", name);
    add(l, full, "I16", (uint64_t[3]){in / 16, out / 16, 16 * bits_of(name)}, PART_HOLE);
    snprintf(full, sizeof(full), "%s.suh", name);
    add(l, full, "F16", (uint64_t[3]){in, 0, 0}, PART_HOLE);
    snprintf(full, sizeof(full), "%s.svh", name);
    add(l, full, "F16", (uint64_t[3]){out, 0, 0}, PART_HOLE);
    snprintf(full, sizeof(full), "%s.mul1", name);
    add(l, full, "I32", (uint64_t[3]){0, 0, 0}, PART_MARKER);
}

static int add_spec(void *ctx, const weight_spec *w, err *e) {
    layout *l = ctx;
    (void)e;
    if (w->role == WEIGHT_TABLE || w->role == WEIGHT_OPTIONAL) return OK;
    if (w->role == WEIGHT_PLAIN) {
        bool is_large = w->n_dims == 2 && strstr(w->name, "hc_") == NULL;
        add(l, w->name, is_large ? "BF16" : "F32", (uint64_t[3]){w->dims[0], w->dims[1], 0},
            PART_PLAIN);
        return OK;
    }
    if (!str_ends(w->name, "attn.wo_a")) {
        add_packed(l, w->name, w->dims[0], w->dims[1]);
        return OK;
    }
    for (int g = 0; g < l->c->o_groups; g++) {
        char name[112];
        snprintf(name, sizeof(name), "%s.slice.%d", w->name, g);
        add_packed(l, name, w->dims[0] / (uint64_t)l->c->o_groups, w->dims[1]);
    }
    return OK;
}

/* Values of a plain tensor: middle + width * u, u uniform in -1 .. 1. */
typedef struct range {
    float middle, width;
} range;

static range range_of(const char *name) {
    if (strstr(name, "norm") != NULL || strstr(name, "q_weight") != NULL ||
        strstr(name, "k_weight") != NULL)
        return (range){1.0f, 0.1f};
    if (strstr(name, "_scale") != NULL) return (range){1.0f, 0.0f};
    if (strstr(name, "_fn") != NULL) return (range){0.0f, 0.01f};
    if (strstr(name, "embed") != NULL) return (range){0.0f, 1.0f};
    return (range){0.0f, 0.03f};
}

static int write_at(int fd, const void *data, size_t n, uint64_t at, err *e) {
    const char *p = data;
    while (n > 0) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k <= 0) return err_errno(e, "writing the synthetic weights");
        p += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    return OK;
}

static int write_plain(int fd, const entry *x, uint64_t base, err *e) {
    uint64_t n = x->bytes, state = x->at + 99;
    if (strcmp(x->name, "embed.weight") == 0) n = (uint64_t)SYNTHETIC_TOKENS * x->dims[1] * 2;
    range r = range_of(x->name);
    uint8_t *data = mem_alloc(n);
    bool is_wide = strcmp(x->dtype, "F32") == 0;
    for (uint64_t i = 0; i < n / (is_wide ? 4 : 2); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        float v = r.middle + r.width * ((float)(int32_t)(state >> 32) * 0x1p-31f);
        uint32_t u;
        memcpy(&u, &v, 4);
        uint16_t half = (uint16_t)(u >> 16);
        memcpy(data + i * (is_wide ? 4 : 2), is_wide ? (void *)&u : (void *)&half, is_wide ? 4 : 2);
    }
    int rc = write_at(fd, data, n, base + x->at, e);
    mem_free(data);
    return rc;
}

static uint64_t place(layout *l, uint64_t *n_markers) {
    uint64_t at = 0;
    for (int p = 0; p < N_PARTS; p++) {
        for (size_t i = 0; i < l->n; i++) {
            if (l->entries[i].part != (part)p) continue;
            l->entries[i].at = at;
            at += l->entries[i].bytes;
        }
        if (p == PART_MARKER) *n_markers = at / 4;
    }
    return at;
}

static void header_text(const layout *l, buf *out) {
    buf_puts(out, "{");
    for (size_t i = 0; i < l->n; i++) {
        const entry *x = &l->entries[i];
        buf_printf(
            out, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i > 0 ? "," : "", x->name, x->dtype);
        for (int d = 0; d < x->n_dims; d++)
            buf_printf(out, "%s%llu", d > 0 ? "," : "", (unsigned long long)x->dims[d]);
        buf_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)x->at,
            (unsigned long long)(x->at + x->bytes));
    }
    buf_puts(out, "}");
    while (out->len % 8 != 0)
        buf_puts(out, " ");
}

static int write_file(const layout *l, int fd, const buf *header, uint64_t sizes[2], err *e) {
    uint64_t length = header->len, base = 8 + length;
    int rc = write_at(fd, &length, 8, 0, e);
    if (rc == OK) rc = write_at(fd, header->data, header->len, 8, e);
    if (rc == OK && ftruncate(fd, (off_t)(base + sizes[0])) != 0)
        rc = err_errno(e, "sizing the synthetic weights");
    uint32_t *markers = mem_array(sizes[1], 4);
    for (uint64_t i = 0; i < sizes[1]; i++)
        markers[i] = EXL3_MUL1_MULTIPLIER;
    if (rc == OK) rc = write_at(fd, markers, sizes[1] * 4, base, e);
    mem_free(markers);
    for (size_t i = 0; i < l->n && rc == OK; i++) {
        if (l->entries[i].part == PART_PLAIN) rc = write_plain(fd, &l->entries[i], base, e);
    }
    return rc;
}

int synthetic_folder_make(const char *dir, err *e) {
    model_config *c = mem_alloc(sizeof(*c));
    buf config = BUF_INIT, header = BUF_MAX((size_t)96 << 20);
    char path[512];
    layout l = {.c = c};
    uint64_t sizes[2] = {0, 0};
    config_text(&config);
    snprintf(path, sizeof(path), "%s/config.json", dir);
    int rc = file_write_atomic(path, config.data, config.len, 0600, e);
    if (rc == OK) rc = model_config_load(dir, c, e);
    if (rc == OK) rc = weight_specs_each(c, add_spec, &l, e);
    sizes[0] = place(&l, &sizes[1]);
    header_text(&l, &header);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    int fd = rc == OK ? open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600) : -1;
    if (rc == OK && fd < 0) rc = err_errno(e, "making %s", path);
    if (rc == OK) rc = write_file(&l, fd, &header, sizes, e);
    if (fd >= 0) close(fd);
    buf_release(&config);
    buf_release(&header);
    mem_free(l.entries);
    mem_free(c);
    return rc;
}

/* ---- exchange and store ---- */

/* A gather gives every rank this rank's part. */

static int no_sum(exchange *x, float *rows, size_t n, void *stream, err *e) {
    (void)x, (void)rows, (void)n, (void)stream, (void)e;
    return OK;
}

static int no_gather(exchange *x, const void *mine, size_t bytes, void *all, void *stream, err *e) {
    for (int r = 0; r < x->world; r++) {
        char *to = (char *)all + (size_t)r * bytes;
        if (to != mine && cudaMemcpyAsync(to, mine, bytes, cudaMemcpyDefault,
                              (cudaStream_t)stream) != cudaSuccess)
            return err_set(e, ERR_DEVICE, "copying a rank's part");
    }
    return OK;
}

static int no_host_gather(exchange *x, const void *mine, size_t bytes, void *all, err *e) {
    (void)e;
    for (int r = 0; r < x->world; r++)
        memmove((char *)all + (size_t)r * bytes, mine, bytes);
    return OK;
}

static void no_close(exchange *x) {
    exchange_release(x);
    mem_free(x);
}

exchange *synthetic_exchange(int world) {
    static const exchange_ops ops = {
        .gather = no_host_gather, .sum_rows = no_sum, .gather_rows = no_gather, .close = no_close};
    exchange *x = mem_alloc(sizeof(*x));
    err e = ERR_INIT;
    CHECK(exchange_init(x, &ops, (int[2]){0, world}, 0, &e) == OK);
    return x;
}

static int store_begin(
    engram_store *s, int i_table, const int64_t *rows, int n, uint8_t *out, int *ticket, err *e) {
    size_t bytes = engram_record_bytes(s->d);
    (void)e;
    for (int i = 0; i < n; i++) {
        uint64_t state = (uint64_t)rows[i] + (uint64_t)i_table;
        for (int k = 0; k < s->d; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            out[(size_t)i * bytes + (size_t)k] = (uint8_t)(state >> 57 | (state >> 40 & 0x80u));
            if ((out[(size_t)i * bytes + (size_t)k] & 0x7f) == 0x7f)
                out[(size_t)i * bytes + (size_t)k] = 0;
        }
        memset(out + (size_t)i * bytes + s->d, 120, bytes - (size_t)s->d);
    }
    *ticket = i_table;
    return OK;
}

static int store_wait(engram_store *s, int ticket, uint64_t deadline_ns, err *e) {
    (void)s, (void)ticket, (void)deadline_ns, (void)e;
    return OK;
}

static void store_hint(engram_store *s, int i_table, const int64_t *rows, int n) {
    (void)s, (void)i_table, (void)rows, (void)n;
}

static void store_stats(const engram_store *s, engram_store_stats *out) {
    (void)s;
    *out = (engram_store_stats){0};
}

static void store_close(engram_store *s) {
    mem_free(s);
}

engram_store *synthetic_store(int n_tables, int d) {
    static const engram_store_ops ops = {
        store_begin, store_wait, store_hint, store_stats, store_close};
    engram_store *s = mem_alloc(sizeof(*s));
    *s = (engram_store){&ops, n_tables, d};
    return s;
}

/* ---- the back end ---- */

static struct synthetic {
    kernels table;
    const kernels *real;
    char *pool;
    size_t pool_bytes, at;
    uint16_t *scales; /* fp16 signs times a size that keeps values near one */
} self;

enum { N_SCALES = 1 << 18 };

static uint16_t scale_of(int i, bool is_input) {
    uint32_t x = (uint32_t)i * 2654435761u;
    x ^= x >> 15;
    return (uint16_t)((is_input ? 0x2400 : 0x3c00) | (x & 0x8000u));
}

static int take_packed(kernel_context *k, const exl3_matrix *m, const void **out, err *e) {
    size_t bytes = (exl3_trellis_bytes(m->in, m->out, m->k2) + 255) / 256 * 256;
    (void)k;
    if (bytes > self.pool_bytes) return err_set(e, ERR_MEMORY, "a matrix larger than the pool");
    if (self.at + bytes > self.pool_bytes) self.at = 0;
    exl3_gpu_matrix g = {.words = (const uint32_t *)(const void *)(self.pool + self.at),
        .suh = self.scales,
        .svh = self.scales + N_SCALES / 2,
        .in = m->in,
        .out = m->out,
        .k2 = m->k2};
    self.at += bytes;
    *out = linear_cuda_packed_of(&g);
    return OK;
}

static bool fill_pool(size_t bytes) {
    enum { PATTERN = 64 << 20 };
    uint64_t *pattern = mem_alloc(PATTERN), state = 12345;
    uint16_t *scales = mem_array(N_SCALES, 2);
    for (size_t i = 0; i < PATTERN / 8; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        pattern[i] = state ^ (state >> 29);
    }
    for (int i = 0; i < N_SCALES; i++)
        scales[i] = scale_of(i, i < N_SCALES / 2);
    bool is_made = cudaMalloc((void **)&self.pool, bytes) == cudaSuccess &&
                   cudaMalloc((void **)&self.scales, N_SCALES * 2) == cudaSuccess &&
                   cudaMemcpy(self.scales, scales, N_SCALES * 2, cudaMemcpyDefault) == cudaSuccess;
    for (size_t at = 0; is_made && at < bytes; at += PATTERN) {
        size_t n = bytes - at < PATTERN ? bytes - at : PATTERN;
        const void *from = at == 0 ? (const void *)pattern : self.pool;
        is_made = cudaMemcpy(self.pool + at, from, n, cudaMemcpyDefault) == cudaSuccess;
    }
    self.pool_bytes = bytes;
    mem_free(pattern);
    mem_free(scales);
    return is_made;
}

/* ---- timing of operators ---- */

enum { MAX_SPANS = 8192, N_OPERATORS = 25 };

static struct profile {
    bool is_on;
    int n;
    cudaEvent_t from[MAX_SPANS], to[MAX_SPANS];
    int operator_of[MAX_SPANS];
    int n_events;
} profile;

static int span_begin(kernel_context *k, int i_operator) {
    if (!profile.is_on || profile.n == MAX_SPANS || k->rc != OK) return -1;
    int i = profile.n++;
    while (profile.n_events <= i) {
        (void)cudaEventCreate(&profile.from[profile.n_events]);
        (void)cudaEventCreate(&profile.to[profile.n_events++]);
    }
    profile.operator_of[i] = i_operator;
    (void)cudaEventRecord(profile.from[i], cuda_of(k)->stream);
    return i;
}

static void span_end(kernel_context *k, int i) {
    if (i >= 0) (void)cudaEventRecord(profile.to[i], cuda_of(k)->stream);
}

#define EACH_OPERATOR(X)                                                                           \
    X(embed)                                                                                       \
    X(rmsnorm)                                                                                     \
    X(linear)                                                                                      \
    X(rope_table)                                                                                  \
    X(rope)                                                                                        \
    X(mhc_mix)                                                                                     \
    X(mhc_collapse)                                                                                \
    X(mhc_expand)                                                                                  \
    X(mhc_mean)                                                                                    \
    X(kv_pack)                                                                                     \
    X(kv_ring_write)                                                                               \
    X(kv_page_write)                                                                               \
    X(index_queries)                                                                               \
    X(indexer) X(attn) X(router) X(moe) X(engram_decode) X(engram_gate) X(finite) X(join)
#define NUMBER(name) AT_##name,
enum { EACH_OPERATOR(NUMBER) N_TIMED };
#define NAME(name) #name,
static const char *const operator_names[] = {EACH_OPERATOR(NAME)};
#define TIMED(name)                                                                                \
    static void timed_##name(kernel_context *k, const name##_args *a) {                            \
        int i = span_begin(k, AT_##name);                                                          \
        self.real->name(k, a);                                                                     \
        span_end(k, i);                                                                            \
    }
EACH_OPERATOR(TIMED)
#define USE(name) self.table.name = timed_##name;

const kernels *synthetic_kernels(size_t pool_bytes) {
    self.real = kernels_cuda();
    self.table = *self.real;
    self.table.name = "cuda-synthetic";
    self.table.packed_new = take_packed;
    EACH_OPERATOR(USE)
    return fill_pool(pool_bytes) ? &self.table : NULL;
}

void synthetic_profile_start(void) {
    profile.n = 0;
    profile.is_on = true;
}

void synthetic_profile_stop(const char *title) {
    double total[N_TIMED] = {0}, all = 0;
    int count[N_TIMED] = {0};
    profile.is_on = false;
    for (int i = 0; i < profile.n; i++) {
        float ms = 0;
        (void)cudaEventSynchronize(profile.to[i]);
        (void)cudaEventElapsedTime(&ms, profile.from[i], profile.to[i]);
        total[profile.operator_of[i]] += (double)ms;
        count[profile.operator_of[i]]++;
    }
    printf("operators of %s (each between events, so with launch gaps):\n", title);
    for (int i = 0; i < N_TIMED; i++) {
        if (count[i] == 0) continue;
        printf("  %-14s %5d x %9.2f us = %9.3f ms\n", operator_names[i], count[i],
            1e3 * total[i] / count[i], total[i]);
        all += total[i];
    }
    printf("  %-14s %31.3f ms\n", "all", all);
}
