/* The CUDA back end behind kernels.h: its context and its operators. The operators have the
 * arguments and formulas of their CPU forms; all pointers are device memory, except batch-independent
 * structs (jobs, weights) which the launchers read on the host. Results of a row never depend on the
 * other rows of the pass; sums run in a fixed order of their own, so they agree with the CPU within
 * rounding, and EXL3 linears bit for bit given the same input. Operators launch on the stream of the
 * context, allocate nothing and never wait. One thread at a time. */
#ifndef TANDEM_KERNELS_CUDA_OPS_H
#define TANDEM_KERNELS_CUDA_OPS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#define _Noreturn __attribute__((noreturn)) /* for C headers */
extern "C" {
#endif

#include "engine/base/mem.h"
#include "kernels/cuda_check.h"
#include "kernels/exl3/exl3_gpu.h"
#include "kernels/exl3/exl3_kernel_order.h"
#include "kernels/kernels.h"

enum { CUDA_STAGING_BYTES = 8 << 20, CUDA_SLAB_BYTES = 256 << 20 };

/* What kernel_context.device points to. */
typedef struct cuda_device {
    cudaStream_t stream;
    int id, n_sms, shared_bytes; /* shared memory one block may ask for */
    int is_sm90;                 /* its tensor cores read shared memory themselves */
    char *staging;               /* pinned ring for copies from the host */
    size_t staging_at;
    char *slab; /* weights are cut from slabs: one allocation for many matrices */
    size_t slab_left;
    void **slabs;
    size_t n_slabs, cap_slabs;
    void **kept; /* host memory to free at close */
    size_t n_kept, cap_kept;
    int64_t *sums;                 /* of EXL3 runs of few rows: zero between runs */
    int32_t *counters;             /* likewise */
    struct moe_row_link *row_link; /* of the experts of one token */
    struct moe_few_link *few_link; /* of a few */
    struct cuda_pending *pending;  /* operators held back: kernels/prepare */
    size_t tail_bytes;             /* of the scratch's end, in use by them */
} cuda_device;

/* The device of a context. */
static inline cuda_device *cuda_of(kernel_context *k) {
    return (cuda_device *)k->device;
}

/* Host memory, zeroed, that lives until the context is closed. */
void *cuda_keep(cuda_device *d, size_t bytes);
/* Device memory for weights that lives until the context is closed; NULL when there is
 * none left. 256-byte aligned. */
void *cuda_slab_take(cuda_device *d, size_t bytes);

/* The device in use; ERR_DEVICE in a sentence when there is none or its driver is too old. */
int cuda_find_device(int *id, err *e);
/* Host memory to device memory, there before it returns: a plain cudaMemcpy from pageable memory may
 * still be on its way, and the context's stream does not wait for it. */
int cuda_upload(void *to, const void *from, size_t bytes, const char *what, err *e);

/* ---- operators ---- */

void embed_cuda(kernel_context *k, const embed_args *a);
void lookup_cuda(kernel_context *k, const lookup_args *a);
void gather_cuda(kernel_context *k, const gather_args *a);
void linear_cuda(kernel_context *k, const linear_args *a);
void rope_table_cuda(kernel_context *k, const rope_table_args *a);
void rope_cuda(kernel_context *k, const rope_args *a);
void mhc_mean_cuda(kernel_context *k, const mhc_mean_args *a);
void kv_pack_cuda(kernel_context *k, const kv_pack_args *a);
void kv_ring_write_cuda(kernel_context *k, const kv_ring_write_args *a);
void kv_page_write_cuda(kernel_context *k, const kv_page_write_args *a);
void compress_pair_cuda(kernel_context *k, const compress_args *a);
void compress_tail_write_cuda(kernel_context *k, const compress_args *a);
void index_queries_cuda(kernel_context *k, const index_queries_args *a);
void indexer_cuda(kernel_context *k, const indexer_args *a);
void attn_cuda(kernel_context *k, const attn_args *a);
void router_cuda(kernel_context *k, const router_args *a);
void moe_cuda(kernel_context *k, const moe_args *a);
void engram_decode_cuda(kernel_context *k, const engram_decode_args *a);
void engram_gate_cuda(kernel_context *k, const engram_gate_args *a);
void finite_cuda(kernel_context *k, const finite_args *a);
void argmax_cuda(kernel_context *k, const argmax_args *a);
void shortlist_cuda(kernel_context *k, const shortlist_args *a);
void add_cuda(kernel_context *k, const add_args *a);
void join_cuda(kernel_context *k, const join_args *a);
void round_cuda(kernel_context *k, float *x, size_t n);

/* Work space of one moe_cuda run; the device table of a layer's experts. */
size_t moe_cuda_work_bytes(int n_rows, int n_experts, int n_used, int d, int n_ff);
int moe_cuda_table_new(kernel_context *k, const expert_weights *experts, int n,
    const expert_weights *shared, void **out, err *e);
/* A packed matrix in device memory; the handle is host memory, freed with linear_cuda_packed_free. */
int linear_cuda_packed_new(kernel_context *k, const exl3_matrix *m, const void **out, err *e);
void linear_cuda_packed_free(const void *packed);
/* A handle of an image of layout gpu-1 in device memory, used where it lies. */
int linear_cuda_packed_view(
    kernel_context *k, const exl3_image *image, const void *bytes, const void **out, err *e);
/* A handle of a matrix that lies in device memory already. */
const void *linear_cuda_packed_of(const exl3_gpu_matrix *m);
/* Bytes of kernel_context.scratch that linear_cuda and moe_cuda need. */
size_t linear_cuda_scratch_bytes(int n_jobs, int n_rows, int max_in, int max_out);

/* The back end's table. */
const kernels *kernels_cuda(void);

#ifdef __cplusplus
}
#endif

/* Launches a kernel on the context's stream and keeps the first error under the operator's name. The
 * kernel may be set up while the one before it ends: it begins with kernel_begin of device.cuh. */
#define CUDA_RUN(k, what, kernel, grid, block, shared, ...)                                        \
    do {                                                                                           \
        cudaLaunchConfig_t config_ = {};                                                           \
        cudaLaunchAttribute early_;                                                                \
        early_.id = cudaLaunchAttributeProgrammaticStreamSerialization;                            \
        early_.val.programmaticStreamSerializationAllowed = 1;                                     \
        config_.gridDim = (grid);                                                                  \
        config_.blockDim = (block);                                                                \
        config_.dynamicSmemBytes = (shared);                                                       \
        config_.stream = cuda_of(k)->stream;                                                       \
        config_.attrs = &early_;                                                                   \
        config_.numAttrs = 1;                                                                      \
        (k)->rc =                                                                                  \
            cuda_check(&(k)->error, cudaLaunchKernelEx(&config_, kernel, __VA_ARGS__), (what));    \
    } while (0)

#endif
