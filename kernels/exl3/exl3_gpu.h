/*
 * EXL3 (mul1) linears for few rows on a GPU, in the integer form of exl3.h: the same bits as the CPU back end for dense
 * linears, whatever the grid, the split of the work, the other rows and the other matrices of a launch (kernels.md 2).
 *
 *   rotate   x -> integer operand:  t = H (x * suh), a = rint(t * 32512 / max|t|), two signed bytes a value
 *   rows     S[r][n] = sum_k bytes(state) * a;  z = scale * (S - c * sum a);  y = H z * svh + bias
 *   experts  gate and up of every picked expert in one launch (SwiGLU and the operand of down inside), down in another
 *
 *   gemm     the same sums for many rows: weights decoded once per tile of rows to two signed digits (base 256) of
 *            bytes - 510, multiplied as s8 with the two bytes of a value; the same integers, hence the same bits
 *
 * A job is one matrix and the rows that use it: up to 8 in rows and experts, any number in gemm.
 * Weights are in kernel order, exl3_kernel_order.h: [out/64][in/16][4 * k2 words][4 tiles], so that what a warp streams for 64
 * outputs is one contiguous run; 16-byte aligned. in and out are multiples of 128, in at most 16384.
 * Rates: 2, 3, 4, 5, 6 and 8 bits have their own loops, all others (1, 7, halves) a general one.
 *
 * Launchers allocate nothing, never synchronise and may be captured in a graph. Accumulators and counters must be zero
 * before the first launch; every launch leaves them zero. Scratch belongs to one stream at a time.
 * Threads: the thread that owns the stream.
 */
#ifndef KERNELS_EXL3_GPU_H
#define KERNELS_EXL3_GPU_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/base/err.h"
#include "kernels/exl3/exl3_codec.h"

enum {
    EXL3_GPU_MAX_ROWS = 8,   /* rows of one job */
    EXL3_GPU_MAX_JOBS = 512, /* jobs of one launch */
    EXL3_GPU_UNIT_IN = 64    /* inputs of a unit of work, 64 outputs wide */
};

/* One matrix in device memory. */
typedef struct exl3_gpu_matrix {
    const uint32_t *words; /* kernel order */
    const uint16_t *suh;   /* fp16 [in], 8-byte aligned */
    const uint16_t *svh;   /* fp16 [out], likewise */
    const uint16_t *bias;  /* fp16 [out], likewise, or NULL */
    int32_t in, out, k2;
    int32_t reserved;
} exl3_gpu_matrix;

/* What belongs to one rotated row. */
typedef struct exl3_gpu_scale {
    float scale; /* max|t| / 32512 */
    int32_t sum; /* sum of the integers */
} exl3_gpu_scale;

/* One job; an array of them lies in device memory, made by the host or by a kernel. */
typedef struct exl3_gpu_job {
    exl3_gpu_matrix matrix;
    const float *x; /* row i is x + (x_rows ? x_rows[i] : i) * x_stride */
    const int32_t *x_rows;
    int64_t x_stride; /* floats, a multiple of 4 */
    uint32_t
        *operand; /* integer rows, 16-byte aligned: rows and experts [in/16][8 * row_cap words],
                            * gemm by tiles of rows, exl3_operand.cuh */
    exl3_gpu_scale *scale; /* [n_rows], 8-byte aligned */
    float *y; /* [n_rows], row stride y_stride; rows: the result. Experts' down: unused */
    int64_t y_stride;
    int32_t n_rows;        /* rows and experts: 1..8 */
    int32_t row_cap;       /* n_rows rounded up to 1, 2, 4 or 8; gemm: to a multiple of 8 */
    int32_t first_sum;     /* accumulators begin at sums + first_sum; [n_rows][out] of them */
    int32_t first_counter; /* out/128 counters; gate and up of one expert share them */
    int32_t first_unit;    /* units of the jobs before this one */
    int32_t first_pair;    /* experts: index of row 0 in the list of (token, expert) pairs */
    int32_t is_bf16;       /* round y (experts: and what lies between) to bf16 */
    int32_t first_cost;    /* rows and experts: exl3_gpu_unit_cost of all units before */
} exl3_gpu_job;

/* A list of jobs in device memory. */
typedef struct exl3_gpu_list {
    int32_t n_jobs;
    int32_t n_units; /* sum of (out/64) * (in/64) */
    int32_t n_cost;  /* sum of their costs: the work is dealt out by it */
    int32_t reserved;
    exl3_gpu_job jobs[];
} exl3_gpu_list;

enum { EXL3_GPU_OWN_JOBS = 8 };

/* Rows of a gemm tile. The last two need the tensor cores of sm_90. */
enum {
    EXL3_GPU_SHORT_ROWS = 32,
    EXL3_GPU_TILE_ROWS = 64,
    EXL3_GPU_WIDE_ROWS = 96,
    EXL3_GPU_WIDEST_ROWS = 128
};

/* A short list that travels inside a launch. */
typedef struct exl3_gpu_own_list {
    int32_t n_jobs, n_units, n_cost;
    int32_t reserved;
    exl3_gpu_job jobs[EXL3_GPU_OWN_JOBS];
} exl3_gpu_own_list;

/* Up to tile_rows rows of a job: what one block of gemm takes. */
typedef struct exl3_gpu_tile {
    int32_t job, row;
} exl3_gpu_tile;

/* CTAs that leave a block's sums to another. */
enum { EXL3_GPU_MAX_SLOTS = 256 };
enum { EXL3_GPU_LEAST_SUMS = EXL3_GPU_MAX_SLOTS * 128 };

/* Work space of the launchers. */
typedef struct exl3_gpu_scratch {
    int64_t *
        sums; /* zeroed once; at least first_sum + n_rows * out of every job, and EXL3_GPU_LEAST_SUMS */
    int32_t *counters; /* zeroed once; likewise */
} exl3_gpu_scratch;

#ifdef __CUDACC__
#define EXL3_BOTH_SIDES __host__ __device__
#else
#define EXL3_BOTH_SIDES
#endif

/* Units of a matrix, for first_unit and n_units. */
EXL3_BOTH_SIDES static inline int exl3_gpu_units(int in, int out) {
    return (in / EXL3_GPU_UNIT_IN) * (out / 64);
}
/* What a unit costs, in sixteenths of one of 3 bits and few rows. From the times of whole matrices on an
 * H200 (bench_exl3_gpu, 2026-11-30: 47, 57 and 58 cycles for 256 weights at 3, 5 and 6 bits, 12 more
 * with more than four rows). */
EXL3_BOTH_SIDES static inline int exl3_gpu_unit_cost(int k2, int n_rows) {
    const int few = k2 == 4 || k2 == 6 || k2 == 8 ? 16
                    : k2 == 10                    ? 19
                    : k2 == 12 || k2 == 16        ? 20
                                                  : 64;
    return few + (n_rows > 4 ? 4 : 0);
}
/* Words of the operand of row_cap rows. */
static inline size_t exl3_gpu_operand_words(int in, int row_cap) {
    return (size_t)(in / 16) * 8 * (size_t)row_cap;
}

/* Words of the operand of a gemm job. */
static inline size_t exl3_gpu_gemm_operand_words(int in, int row_cap) {
    return (size_t)(in / 32) * 16 * (size_t)row_cap;
}

typedef struct exl3_gpu_rotate_args {
    const exl3_gpu_list *list;    /* device; writes operand and scale of every job */
    const exl3_gpu_own_list *own; /* host, instead of list */
    int n_jobs, max_rows;         /* host's bounds: the grid */
} exl3_gpu_rotate_args;
/* Rotates and quantises the rows of every job. */
int exl3_gpu_rotate_run(const exl3_gpu_rotate_args *a, cudaStream_t stream, err *e);

typedef struct exl3_gpu_rows_args {
    const exl3_gpu_list *list;    /* device */
    const exl3_gpu_own_list *own; /* host, instead of list */
    exl3_gpu_scratch scratch;
    int max_rows;        /* host's bounds, for the choice of variant */
    int max_stage_bytes; /* exl3_gpu_stage_bytes of the largest job */
    int has_early_list;  /* weights may be fetched before the kernel before this one ends */
} exl3_gpu_rows_args;
/* y of every job. */
int exl3_gpu_rows_run(const exl3_gpu_rows_args *a, cudaStream_t stream, err *e);

typedef struct exl3_gpu_gemm_args {
    const exl3_gpu_job *jobs;     /* device, with tiles */
    const exl3_gpu_tile *tiles;   /* device [*n_tiles] */
    const int32_t *n_tiles;       /* device */
    const exl3_gpu_own_list *own; /* host, instead of these */
    int max_tiles;                /* host's bound of *n_tiles; own: of tiles of one job */
    int max_out, max_k2;          /* of all jobs */
    int tile_rows;                /* of the four above; run with tiles: at least of every tile */
    int is_beside;                /* run: may begin before the gemm launched before it has ended */
} exl3_gpu_gemm_args;
/* Rows of a tile for matrices with n_blocks blocks of 128 outputs in all, n_rows rows each, on n_sms SMs:
 * what takes the fewest waves, each as long as its tile takes. is_sm90: as cuda_device.is_sm90. */
int exl3_gpu_gemm_tile_rows(int n_rows, int n_blocks, int n_sms, int is_sm90);
/* Operand (gemm form) and scale of every row of every tile. */
int exl3_gpu_gemm_rotate_run(const exl3_gpu_gemm_args *a, cudaStream_t stream, err *e);
/* y of every tile. */
int exl3_gpu_gemm_run(const exl3_gpu_gemm_args *a, cudaStream_t stream, err *e);

typedef struct exl3_gpu_groups_args {
    const exl3_gpu_job
        *jobs; /* device; up NULL: jobs 2i and 2i + 1 are gate and up of the same rows */
    const exl3_gpu_tile
        *groups;             /* device [*n_groups]: every eighth row of every job or pair of jobs */
    const int32_t *n_groups; /* device */
    int in, tile_rows;       /* of all jobs; of the gemm that reads the operands */
    int n_sms;
    const float *up; /* down: [pairs][in], row i of a job is pair first_pair + i; its x is gate */
    const float *weight; /* [pairs] */
    float limit;
    int is_bf16; /* rounds what is rotated */
} exl3_gpu_groups_args;
/* Whether rows of in inputs fit; if not, exl3_gpu_gemm_rotate_run does the same row by row. */
int exl3_gpu_groups_fit(int in, int is_down);
/* Operand (gemm form) and scale of every row, as exl3_gpu_gemm_rotate_run gives them: of x for gate and up, of
 * weight * silu(min(gate, limit)) * clamp(up, +-limit) for down. */
int exl3_gpu_groups_run(const exl3_gpu_groups_args *a, cudaStream_t stream, err *e);

typedef struct exl3_gpu_experts_args {
    const exl3_gpu_list *
        gate_up; /* device; jobs 2i and 2i+1 are gate and up of expert i: same rows, operands ready */
    const exl3_gpu_list *down; /* device; job i; operands are written here */
    exl3_gpu_scratch scratch;  /* separate ranges for both lists */
    float *hidden;             /* [pairs][width] work space */
    uint32_t *row_max;         /* [pairs] zeroed once */
    int32_t *row_counter;      /* [pairs] zeroed once */
    int32_t *block_counter;    /* [out/128] zeroed once */
    const float *weight;       /* [pairs] routing weight, applied before down (model.md 9.2) */
    float *part;               /* [pairs][out] work space */
    const int32_t *pair_of; /* [n_tokens][n_choices] pair of each choice, in the order of the sum */
    float *y;               /* [n_tokens][out] */
    int n_tokens, n_choices;
    float limit; /* swiglu_limit */
    int max_rows, max_stage_bytes;
    int is_bf16;
    int has_early_list; /* gate_up is complete when the kernel before this one has begun */
} exl3_gpu_experts_args;
/* y[t] = sum over choices of down(weight * silu(min(gate, limit)) * clamp(up, +-limit)), in the order of pair_of. */
int exl3_gpu_experts_run(const exl3_gpu_experts_args *a, cudaStream_t stream, err *e);

/* Bytes of a pipeline stage for a job: weights and operand of 64 inputs. */
static inline int exl3_gpu_stage_bytes(int k2, int row_cap) {
    return 4 * (64 * k2 + 32 * row_cap);
}

#ifdef __cplusplus
}
#endif

#endif
