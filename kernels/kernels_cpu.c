#include "kernels/kernels.h"

#include <string.h>

#include "engine/base/mem.h"

static void *cpu_mem_new(size_t bytes) {
    return mem_aligned(64, bytes == 0 ? 64 : bytes);
}

static void cpu_round(kernel_context *k, float *x, size_t n) {
    if (k->rc == OK) {
        context_round(k, x, n);
    }
}

static int cpu_open(kernel_context *k, err *e) {
    (void)k;
    (void)e;
    return OK;
}

static void cpu_close(kernel_context *k) {
    (void)k;
}

static void cpu_copy(kernel_context *k, void *to, const void *from, size_t bytes) {
    if (k->rc == OK && bytes > 0) {
        memcpy(to, from, bytes);
    }
}

static void cpu_wait(kernel_context *k) {
    (void)k;
}

static int cpu_packed_new(kernel_context *k, const exl3_matrix *m, const void **out, err *e) {
    exl3_linear *made = NULL;
    (void)k;
    int rc = exl3_linear_new(m, &made, e);
    *out = made;
    return rc;
}

static int cpu_packed_view(
    kernel_context *k, const exl3_image *image, const void *bytes, const void **out, err *e) {
    exl3_linear *made = NULL;
    (void)k;
    int rc = exl3_linear_view(image, bytes, &made, e);
    *out = made;
    return rc;
}

static void cpu_packed_free(const void *packed) {
    exl3_linear_free((exl3_linear *)(uintptr_t)packed);
}

static int cpu_expert_table(kernel_context *k, const expert_weights *experts, int n,
    const expert_weights *shared, void **out, err *e) {
    (void)k;
    (void)experts;
    (void)n;
    (void)shared;
    (void)e;
    *out = NULL;
    return OK;
}

static size_t cpu_scratch_bytes(const kernel_limits *l) {
    return linear_scratch_bytes(l->n_jobs, l->n_rows, l->max_in);
}

static const kernels cpu = {
    .name = "cpu",
    .is_host = true,
    .open = cpu_open,
    .close = cpu_close,
    .copy = cpu_copy,
    .fetch = cpu_copy,
    .wait = cpu_wait,
    .round = cpu_round,
    .packed_new = cpu_packed_new,
    .packed_free = cpu_packed_free,
    .layout = EXL3_LAYOUT_CPU,
    .packed_view = cpu_packed_view,
    .expert_table = cpu_expert_table,
    .moe_work_bytes = moe_work_bytes,
    .scratch_bytes = cpu_scratch_bytes,
    .mem_new = cpu_mem_new,
    .mem_free = mem_aligned_free,
    .embed = embed_run,
    .lookup = lookup_run,
    .gather = gather_run,
    .rmsnorm = rmsnorm_run,
    .linear = linear_run,
    .rope_table = rope_table_run,
    .rope = rope_run,
    .mhc_mix = mhc_mix_run,
    .mhc_collapse = mhc_collapse_run,
    .mhc_expand = mhc_expand_run,
    .mhc_mean = mhc_mean_run,
    .kv_pack = kv_pack_run,
    .kv_ring_write = kv_ring_write_run,
    .kv_page_write = kv_page_write_run,
    .compress_pair = compress_pair_run,
    .compress_tail_write = compress_tail_write_run,
    .index_queries = index_queries_run,
    .indexer = indexer_run,
    .attn = attn_run,
    .router = router_run,
    .moe = moe_run,
    .engram_decode = engram_decode_run,
    .engram_gate = engram_gate_run,
    .finite = finite_run,
    .argmax = argmax_run,
    .shortlist = shortlist_run,
    .add = add_run,
    .join = join_run,
};

const kernels *kernels_cpu(void) {
    return &cpu;
}

/* Back ends beside the CPU's, filled at the start of a program only. */
enum { MAX_ADDED = 4 };
static const kernels *added[MAX_ADDED];
static int n_added;

void kernels_add(const kernels *table) {
    CHECK(n_added < MAX_ADDED);
    added[n_added++] = table;
}

const kernels *kernels_find(const char *name) {
    if (name == NULL || strcmp(name, cpu.name) == 0) {
        return &cpu;
    }
    for (int i = 0; i < n_added; i++) {
        if (strcmp(name, added[i]->name) == 0) {
            return added[i];
        }
    }
    return NULL;
}
