#include "kernels/kernels.h"

#include "engine/base/mem.h"

static void *cpu_mem_new(size_t bytes) {
    return mem_aligned(64, bytes == 0 ? 64 : bytes);
}

static const kernels cpu = {
    .name = "cpu",
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
    .kv_unpack = kv_unpack_run,
    .kv_ring_write = kv_ring_write_run,
    .kv_page_write = kv_page_write_run,
    .compress_pair = compress_pair_run,
    .compress_tail_write = compress_tail_write_run,
    .indexer = indexer_run,
    .attn = attn_run,
    .router = router_run,
    .moe = moe_run,
    .engram_decode = engram_decode_run,
    .engram_gate = engram_gate_run,
    .finite = finite_run,
    .argmax = argmax_run,
    .add = add_run,
    .join = join_run,
};

const kernels *kernels_cpu(void) {
    return &cpu;
}
