/*
 * Device side of moe_few.h: one CTA an SM, 16 warps, each with a private ring of stages that its lanes fill themselves,
 * operands resident in shared memory.
 *
 *   plan   moe_few_plan.cuh: a CTA works on parts of one to three matrices of gate and up, then of down, and makes the
 *          operands of their rows itself
 *   work   a warp's pieces of both, one behind the other in its ring: the weights of down arrive while gate and up end
 *   meet   moe_row_link.cuh: a strip's sums go straight to the sums of all; one warp finishes a block of 128 hidden values of
 *          a row, or of outputs of a token's expert
 *
 * On an H200 (2026-12-01) six tokens with 36 experts of 3 bits, half width, take 136 us, 181 with plan, rotation and lists:
 * 4 to the plan, 5 to the operands, 77 gate and up, 7 from the last sum to the operand of down, 39 down, 4 for its end, at
 * 1.82 GHz. The loop is bound by instruction issue.
 */
#ifndef TANDEM_KERNELS_MOE_MOE_FEW_KERNEL_CUH
#define TANDEM_KERNELS_MOE_MOE_FEW_KERNEL_CUH

#include "kernels/exl3/exl3_operand.cuh"
#include "kernels/moe/moe_few_plan.cuh"

constexpr int MOE_FEW_HELD =
    (MOE_FEW_WIDTH / 128 + MOE_FEW_WARPS - 1) / MOE_FEW_WARPS; /* blocks of a row of a warp */

/* ---- weights ---- */

/* The filling side of a warp's ring: what comes next of its pieces. Every lane copies 16 bytes of each 512; next is its own
 * address. (A bulk copy wants addresses, size and barrier in uniform registers, from one lane: that took 1.5 us longer for six rows.) */
struct moe_few_feed {
    const char *next;
    int at, segment; /* slice; segment: the one behind */
    int left;        /* stages of the warp that are not used up */
};

/* Slices of the stage at a slice: none reaches over the end of size of them. */
__device__ __forceinline__ int moe_few_stage(int at, int end, int size) {
    return min(end, (at & ~(size - 1)) + size) - at;
}

/* Where the stage lies behind which left - 1 follow. */
__device__ __forceinline__ uint32_t moe_few_slot(const moe_few_params &p, int left) {
    extern __shared__ __align__(128) unsigned char shared[];
    return ptx_shared(shared) +
           ((ptx_thread() >> 5) * MOE_FEW_STAGES + left % MOE_FEW_STAGES) * p.slot_bytes;
}

/* Fills a slot with the warp's next stage, most likely a full one of K bits. */
template <int K>
__device__ __forceinline__ void moe_few_fetch(
    const moe_few_shared &sh, moe_few_feed &f, uint32_t slot) {
    const int lane16 = (ptx_thread() & 31) * 16;
    const int2 *pieces = sh.piece[ptx_thread() >> 5];
    const uint64_t policy = ptx_policy_once();
    int end = f.segment == 0 ? f.at : pieces[f.segment - 1].y;
    if (f.at == end) {
        do {
            f.at = pieces[f.segment].x;
            end = pieces[f.segment++].y;
        } while (f.at == end);
        f.next = sh.segment[f.segment - 1].words +
                 (size_t)f.at * (64 * sh.segment[f.segment - 1].k2) + lane16;
    }
    const int k2 = sh.segment[f.segment - 1].k2;
    const int n = moe_few_stage(f.at, end, moe_few_stage_size(k2));
    if (K != 0 && k2 == 2 * K && n == moe_few_stage_size(2 * K)) {
#pragma unroll
        for (int i = 0; i < moe_few_stage_size(2 * K) * 128 * K; i += 512)
            ptx_copy_16_once(slot + lane16 + i, f.next + i, policy);
    } else {
#pragma unroll 1
        for (int i = 0; i < n * 64 * k2 - lane16; i += 512)
            ptx_copy_16_once(slot + lane16 + i, f.next + i, policy);
    }
    f.next += n * 64 * k2;
    f.at += n;
}

/* ---- operands ---- */

/* exl3_put_operand for one row on its own: [in/16][hi, lo][16 bytes]. The same integers. */
__device__ __forceinline__ int moe_few_put(uint32_t row, int at, float4 v, float inv) {
    const float f[4] = {v.x, v.y, v.z, v.w};
    const float big = 12582912.f; /* 1.5 * 2^23: adding it rounds to the nearest, ties to even */
    uint32_t a[4], h[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i] = inv == 0.f ? 0 : __float_as_uint(f[i] * inv + big) - 0x4b400000u;
        h[i] = a[i] + 128;
    }
    const int q = (at >> 2) & 3;
    const uint32_t to = row + (at >> 4) * 32 + (q & 1) * 8 + (q >> 1) * 2;
    ptx_store_shared_2(to, __byte_perm(h[0], h[1], 0x0051));
    ptx_store_shared_2(to + 4, __byte_perm(h[2], h[3], 0x0051));
    ptx_store_shared_2(to + 16, __byte_perm(a[0], a[1], 0x0040));
    ptx_store_shared_2(to + 20, __byte_perm(a[2], a[3], 0x0040));
    return (int)(a[0] + a[1] + a[2] + a[3]);
}

/* This block tells the scales and sums of the group's rows of which it has the first slice. */
__device__ __forceinline__ void moe_few_tell(
    const moe_few_args &a, const moe_few_shared &sh, const moe_few_group &g, uint32_t run) {
    if ((int)threadIdx.x >= g.n_ops) return;
    const int o = g.first_op + threadIdx.x;
    const moe_few_op &x = sh.op[o];
    const exl3_row_range range(sh.most[o]);
    if (!x.is_first) return;
    moe_row_store(x.which == 2 ? a.link->out_scale[x.row] : a.link->in_scale[x.row][x.which],
        __float_as_uint(range.scale), (uint32_t)sh.sum[o], run);
}

/* x and its scales of gate or up on their way to this thread's part of the stage: [d] floats, [d] halves. */
__device__ __forceinline__ void moe_few_ask(
    const moe_few_args &a, const moe_few_op &o, uint32_t stage) {
    const int thread = ptx_thread();
    for (int at = thread * 4; at < a.d; at += MOE_FEW_WARPS * 128) {
        ptx_copy_8(stage + a.d * 4 + at * 2, o.suh + at);
        ptx_copy_16(stage + at * 4, a.x + (size_t)o.token * a.d + at);
    }
}

/* Rows of a group of gate and up as operands: x times the scales, rotated. The first row has been asked for. */
__device__ __forceinline__ void moe_few_rotate(const moe_few_params &p, moe_few_shared &sh,
    const moe_few_group &g, uint32_t room, uint32_t stage) {
    const int thread = ptx_thread(), lane = thread & 31, d = p.a.d;
#pragma unroll 1
    for (int o = g.first_op; o < g.first_op + g.n_ops; o++) {
        float4 v[MOE_FEW_HELD];
        uint32_t most = 0;
        if (o == 0) { /* the weights behind it may still be on their way */
            ptx_copies_wait_for<MOE_FEW_STAGES>();
        } else {
            ptx_copies_wait_for<0>();
        }
        uint2 suh[MOE_FEW_HELD];
#pragma unroll
        for (int i = 0; i < MOE_FEW_HELD; i++) {
            const int at = (thread + i * MOE_FEW_WARPS * 32) * 4;
            if (at >= d) continue;
            const uint4 x = ptx_load_shared_16(stage + at * 4);
            suh[i] = ptx_load_shared_8(stage + d * 4 + at * 2);
            v[i] = make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
                __uint_as_float(x.w));
        }
        if (o + 1 < g.first_op + g.n_ops) {
            moe_few_ask(p.a, sh.op[o + 1], stage);
            ptx_copies_commit();
        }
#pragma unroll
        for (int i = 0; i < MOE_FEW_HELD; i++) {
            if ((thread + i * MOE_FEW_WARPS * 32) * 4 >= d) continue;
            v[i] = exl3_rotate(exl3_times(v[i], exl3_half4_value(suh[i])), lane);
            most = max(most, exl3_magnitude(v[i]));
        }
        most = __reduce_max_sync(~0u, most);
        if (lane == 0) atomicMax(sh.most + o, most);
        __syncthreads(); /* also: nobody reads the operands of the group before */
        const exl3_row_range range(sh.most[o]);
        const uint32_t to = room + sh.op[o].at;
        int sum = 0;
#pragma unroll
        for (int i = 0; i < MOE_FEW_HELD; i++) {
            const int at = (thread + i * MOE_FEW_WARPS * 32) * 4;
            if (at < d) sum += moe_few_put(to, at, v[i], range.inv);
        }
        sum = __reduce_add_sync(~0u, sum);
        if (lane == 0) atomicAdd(sh.sum + o, sum);
    }
    __syncthreads();
}

/* Rows of a group of down as operands, as soon as their hidden values are there. */
__device__ __forceinline__ void moe_few_receive(const moe_few_params &p, moe_few_shared &sh,
    const moe_few_group &g, uint32_t room, uint32_t stage, uint32_t run) {
    const int warp = ptx_thread() >> 5, lane = ptx_thread() & 31, n_ff = p.a.n_ff;
    const int n_blocks = n_ff / 128, at_once = p.stage / (n_ff * 4);
#pragma unroll 1
    for (int o0 = g.first_op; o0 < g.first_op + g.n_ops; o0 += at_once) {
        const int n = min(at_once, g.first_op + g.n_ops - o0) * n_blocks;
#pragma unroll 1
        for (int k = warp; k < n; k += MOE_FEW_WARPS) {
            const int o = o0 + k / n_blocks;
            const moe_row_word *from =
                p.a.link->hidden + (size_t)sh.op[o].row * n_ff + k % n_blocks * 128 + lane * 4;
            moe_row_pair x, y;
            do {
                x.load(from);
                y.load(from + 2);
            } while (!x.is_of(run) || !y.is_of(run));
            __syncwarp();
            const uint4 v = make_uint4(x.first(), x.second(), y.first(), y.second());
            ptx_store_shared_16(stage + k * 512 + lane * 16, v);
            const uint32_t most = __reduce_max_sync(
                ~0u, exl3_magnitude(make_float4(__uint_as_float(v.x), __uint_as_float(v.y),
                         __uint_as_float(v.z), __uint_as_float(v.w))));
            if (lane == 0) atomicMax(sh.most + o, most);
        }
        __syncthreads(); /* also: nobody reads the operands of the group before */
#pragma unroll 1
        for (int k = warp; k < n; k += MOE_FEW_WARPS) {
            const int o = o0 + k / n_blocks;
            const exl3_row_range range(sh.most[o]);
            const uint4 v = ptx_load_shared_16(stage + k * 512 + lane * 16);
            int sum = moe_few_put(room + sh.op[o].at, k % n_blocks * 128 + lane * 4,
                make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                    __uint_as_float(v.w)),
                range.inv);
            sum = __reduce_add_sync(~0u, sum);
            if (lane == 0) atomicAdd(sh.sum + o, sum);
        }
    }
    __syncthreads();
}

/* ---- products ---- */

/* The sums of a row of a matrix. */
__device__ __forceinline__ int64_t *moe_few_sums(const moe_few_args &a, int which, int row) {
    if (which == 2) return a.sums + (size_t)row * a.d;
    return a.sums + (size_t)moe_few_rows(a) * a.d + (size_t)(2 * row + which) * a.n_ff;
}

/* A strip's sums of n_slices go to the sums of all. */
template <int NB>
__device__ __forceinline__ void moe_few_flush(const moe_few_args &a, const moe_few_segment &s,
    const int (&acc)[4][NB][4], int strip, int n_slices) {
    const int lane = ptx_thread() & 31, t = lane & 3;
    const int stride = s.which == 2 ? a.d : 2 * a.n_ff;
    unsigned long long *sums =
        (unsigned long long *)moe_few_sums(a, s.which, s.row) + strip * 64 + (lane >> 2);
#pragma unroll
    for (int q = 0; q < NB; q++) {
        const int r = q * 4 + t;
        if (r >= s.n_rows) continue;
        unsigned long long *o = sums + (size_t)r * stride;
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int *c = acc[m][q];
            atomicAdd(o + m * 16, moe_row_counted(c[0] * 256ll + c[1], n_slices));
            atomicAdd(o + m * 16 + 8, moe_row_counted(c[2] * 256ll + c[3], n_slices));
        }
    }
}

/* A slice of K bits, or of any rate when K is 0. */
template <int K, int NB, int OFFSET>
__device__ __forceinline__ void moe_few_slice(int (&acc)[4][NB][4], uint32_t words,
    const uint32_t (&operand)[NB], const exl3_lane<(K ? K : 1)> &l, const exl3_powers &powers,
    int k2) {
    uint32_t b[NB][4];
#pragma unroll
    for (int q = 0; q < NB; q++) {
        const uint32_t w = ptx_load_shared_4(operand[q] + OFFSET);
        b[q][0] = __byte_perm(w, 0, 0x0000);
        b[q][1] = __byte_perm(w, 0, 0x1111);
        b[q][2] = __byte_perm(w, 0, 0x2222);
        b[q][3] = __byte_perm(w, 0, 0x3333);
    }
    if constexpr (K != 0) {
        exl3_slice<K, NB>(acc, words, b, l, powers);
    } else {
        exl3_slice_any<NB>(acc, words, b, k2, threadIdx.x & 31);
    }
}

/* Slices part of one strip of a segment, with slices_in of it. room: where operands begin. K = 0: any rate. */
template <int K, int NB>
__device__ __forceinline__ void moe_few_strip_of(const moe_few_params &p, moe_few_feed &feed,
    const moe_few_shared &sh, const moe_few_segment &s, int2 part, int slices_in, uint32_t room) {
    const int lane = ptx_thread() & 31, k2 = s.k2, bytes = 64 * (K ? 2 * K : k2);
    const int size = moe_few_stage_size(K ? 2 * K : k2),
              row_bytes = moe_few_row_bytes(slices_in * 16);
    uint32_t operand[NB]; /* of row lane / 8 of four; what is beyond the last row is not used */
#pragma unroll
    for (int q = 0; q < NB; q++)
        operand[q] = room + s.operand + part.x % slices_in * 32 +
                     min(q * 4 + (lane >> 3), s.n_rows - 1) * row_bytes + (lane & 7) * 4;
    const exl3_lane<(K ? K : 1)> l(lane);
    int acc[4][NB][4];
#pragma unroll
    for (int i = 0; i < 16 * NB; i++)
        (&acc[0][0][0])[i] = 0;
#pragma unroll 1
    for (int at = part.x; at < part.y;) {
        int n = moe_few_stage(at, part.y, size);
        uint32_t words = moe_few_slot(p, feed.left);
        at += n;
        ptx_copies_wait_for<MOE_FEW_STAGES - 1>();
        __syncwarp();
        if constexpr (K != 0) {
#pragma unroll 1
            for (; n >= EXL3_SLICES; n -= EXL3_SLICES) {
                moe_few_slice<K, NB, 0>(acc, words, operand, l, p.powers, k2);
                moe_few_slice<K, NB, 32>(acc, words + bytes, operand, l, p.powers, k2);
                moe_few_slice<K, NB, 64>(acc, words + 2 * bytes, operand, l, p.powers, k2);
                moe_few_slice<K, NB, 96>(acc, words + 3 * bytes, operand, l, p.powers, k2);
                words += EXL3_SLICES * bytes;
#pragma unroll
                for (int q = 0; q < NB; q++)
                    operand[q] += EXL3_SLICES * 32;
            }
        }
#pragma unroll 1
        for (; n > 0; n--) {
            moe_few_slice<K, NB, 0>(acc, words, operand, l, p.powers, k2);
            words += bytes;
#pragma unroll
            for (int q = 0; q < NB; q++)
                operand[q] += 32;
        }
        __syncwarp();
        if (feed.left > MOE_FEW_STAGES) moe_few_fetch<K>(sh, feed, moe_few_slot(p, feed.left));
        ptx_copies_commit();
        feed.left--;
    }
    moe_few_flush<NB>(p.a, s, acc, part.x / slices_in, part.y - part.x);
}

template <int NB>
__device__ __forceinline__ void moe_few_strip(const moe_few_params &p, moe_few_feed &feed,
    const moe_few_shared &sh, const moe_few_segment &s, int2 part, int slices_in, uint32_t room) {
    switch (s.k2) {
    case 4:
        moe_few_strip_of<2, NB>(p, feed, sh, s, part, slices_in, room);
        break;
    case 6:
        moe_few_strip_of<3, NB>(p, feed, sh, s, part, slices_in, room);
        break;
    case 8:
        moe_few_strip_of<4, NB>(p, feed, sh, s, part, slices_in, room);
        break;
    case 10:
        moe_few_strip_of<5, NB>(p, feed, sh, s, part, slices_in, room);
        break;
    case 12:
        moe_few_strip_of<6, NB>(p, feed, sh, s, part, slices_in, room);
        break;
    default:
        moe_few_strip_of<0, NB>(p, feed, sh, s, part, slices_in, room);
        break;
    }
}

/* The warp's pieces of a group, strip by strip. room: where operands begin. */
__device__ __forceinline__ void moe_few_run_group(const moe_few_params &p, const moe_few_shared &sh,
    const moe_few_group &g, moe_few_feed &feed, uint32_t room) {
    const int slices_in = (g.is_down ? p.a.n_ff : p.a.d) / 16;
#pragma unroll 1
    for (int i = g.first; i < g.last; i++) {
        const moe_few_segment &s = sh.segment[i];
        const int2 mine = sh.piece[ptx_thread() >> 5][i];
#pragma unroll 1
        for (int at = mine.x; at < mine.y;) {
            const int2 part = make_int2(at, min(mine.y, (at / slices_in + 1) * slices_in));
            if (s.n_rows <= 4) {
                moe_few_strip<1>(p, feed, sh, s, part, slices_in, room);
            } else {
                moe_few_strip<2>(p, feed, sh, s, part, slices_in, room);
            }
            at = part.y;
        }
    }
}

/* ---- ends ---- */

/* Block of hidden values of a row, rotated for down. One warp. */
__device__ __forceinline__ void moe_few_finish_up(
    const moe_few_args &a, const moe_few_shared &sh, int row, int block, uint32_t run) {
    const int lane = threadIdx.x & 31, at = block * 128 + lane * 4, slices = a.d / 16;
    const int pair = sh.pair[row];
    const moe_few_matrix *m = sh.matrix[sh.owner[pair]];
    const bool is_bf16 = a.is_bf16 != 0;
    const float4 gate_svh = exl3_half4(m[0].svh + at), up_svh = exl3_half4(m[1].svh + at),
                 suh = exl3_half4(m[2].suh + at);
    const float w = pair < moe_few_pairs(a) ? __ldcg(a.weight + pair) : 1.f;
    moe_row_sums gate(moe_few_sums(a, 0, row) + block * 128, lane),
        up(moe_few_sums(a, 1, row) + block * 128, lane);
    moe_row_pair gate_scale, up_scale;
    do {
        gate.load();
        up.load();
        gate_scale.load(a.link->in_scale[row][0]);
        up_scale.load(a.link->in_scale[row][1]);
    } while (
        !gate.has(slices) || !up.has(slices) || !gate_scale.is_of(run) || !up_scale.is_of(run));
    __syncwarp();
    float4 g = gate.take(slices, gate_scale.scale()), u = up.take(slices, up_scale.scale());
    g = bf16_near_4_if(is_bf16, exl3_times(exl3_rotate(g, lane), gate_svh));
    u = bf16_near_4_if(is_bf16, exl3_times(exl3_rotate(u, lane), up_svh));
    moe_row_hand_on(a.link->hidden + (size_t)row * a.n_ff + at,
        exl3_rotate(exl3_times(bf16_near_4_if(is_bf16, swiglu_4(g, u, a.limit, w)), suh), lane),
        run);
}

/* Task k of all goes to a warp of CTA k % n_ctas, the last warps first. */
__device__ __forceinline__ int moe_few_task() {
    return (int)blockIdx.x + (MOE_FEW_WARPS - 1 - (int)(threadIdx.x >> 5)) * (int)gridDim.x;
}
__device__ __forceinline__ void moe_few_finish_ups(
    const moe_few_args &a, const moe_few_shared &sh, uint32_t run) {
    const int n_blocks = a.n_ff / 128;
    for (int k = moe_few_task(); k < moe_few_rows(a) * n_blocks;
         k += (int)gridDim.x * MOE_FEW_WARPS)
        moe_few_finish_up(a, sh, k / n_blocks, k % n_blocks, run);
}

/* Tasks of a block at the end: (token, block of 128 outputs). */
__host__ __device__ __forceinline__ int moe_few_ends(const moe_few_args &a, int n_ctas) {
    return (a.n_tokens * (a.d / 128) + n_ctas - 1) / n_ctas;
}

/* A block of outputs of one of a token's experts. One warp. */
__device__ __forceinline__ void moe_few_finish_down(const moe_few_args &a, const moe_few_shared &sh,
    int task, int s, uint32_t run, float4 (*part)[32]) {
    const int lane = threadIdx.x & 31, slices = a.n_ff / 16, n_blocks = a.d / 128;
    const int token = task / n_blocks, block = task % n_blocks;
    const int pair = s < a.n_used ? token * a.n_used + s : moe_few_pairs(a) + token;
    const int row = sh.row[pair];
    const float4 svh = exl3_half4(sh.matrix[sh.owner[pair]][2].svh + block * 128 + lane * 4);
    moe_row_sums sums(moe_few_sums(a, 2, row) + block * 128, lane);
    moe_row_pair scale;
    do {
        sums.load();
        scale.load(a.link->out_scale[row]);
    } while (!sums.has(slices) || !scale.is_of(run));
    __syncwarp();
    const float4 z = exl3_rotate(sums.take(slices, scale.scale()), lane);
    int place = 0; /* ascending experts, the shared one last */
    if (s == a.n_used) place = a.n_used;
    for (int i = 0; s < a.n_used && i < a.n_used; i++)
        place += sh.expert[token * a.n_used + i] < sh.expert[pair];
    part[place][lane] = bf16_near_4_if(a.is_bf16 != 0, exl3_times(z, svh));
}

/* Outputs of this block. part: [tasks][MOE_ROW_SLOTS] blocks. All threads. */
__device__ __forceinline__ void moe_few_finish_downs(
    const moe_few_args &a, const moe_few_shared &sh, uint32_t run, float4 (*part)[32]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_slots = a.n_used + a.has_shared;
    const int n_blocks = a.d / 128, n_ctas = (int)gridDim.x, cta = (int)blockIdx.x;
    const int n = (a.n_tokens * n_blocks - cta + n_ctas - 1) / n_ctas;
    for (int i = warp; i < n * n_slots; i += MOE_FEW_WARPS)
        moe_few_finish_down(a, sh, cta + i / n_slots * n_ctas, i % n_slots, run,
            part + i / n_slots * MOE_ROW_SLOTS);
    __syncthreads();
    for (int i = warp; i < n; i += MOE_FEW_WARPS) {
        const int task = cta + i * n_ctas;
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int s = 0; s < n_slots; s++) {
            const float4 y = part[i * MOE_ROW_SLOTS + s][lane];
            sum = make_float4(sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w);
        }
        *(float4 *)(a.y + (size_t)(task / n_blocks) * a.d + task % n_blocks * 128 + lane * 4) = sum;
    }
}

/* What finishing this warp's blocks will need, on its way to the L2 cache. */
__device__ __forceinline__ void moe_few_prefetch_ends(
    const moe_few_args &a, const moe_few_shared &sh) {
    const int lane = threadIdx.x & 31, n_blocks = a.n_ff / 128, n_down = a.d / 128;
    const int n_slots = a.n_used + a.has_shared, warp = threadIdx.x >> 5;
    const int k = moe_few_task(), s = warp % n_slots;
    const int task = (int)blockIdx.x + warp / n_slots * (int)gridDim.x, token = task / n_down;
    const uint16_t *at = nullptr;
    if (lane < 6 && k < moe_few_rows(a) * n_blocks) {
        const moe_few_matrix *m = sh.matrix[sh.owner[sh.pair[k / n_blocks]]];
        at = (lane < 2 ? m[0].svh : lane < 4 ? m[1].svh : m[2].suh) + k % n_blocks * 128;
    }
    if (lane >= 16 && lane < 18 && token < a.n_tokens) {
        const int pair = s < a.n_used ? token * a.n_used + s : moe_few_pairs(a) + token;
        at = sh.matrix[sh.owner[pair]][2].svh + task % n_down * 128;
    }
    if (at != nullptr) ptx_prefetch_l2(at + lane % 2 * 64);
}

/* The same for the scales of the rows behind the first. */
__device__ __forceinline__ void moe_few_prefetch_scales(
    const moe_few_args &a, const moe_few_shared &sh) {
    const int lines = a.d / 64;
    for (int k = threadIdx.x; k < (sh.n_segments[0] - 1) * lines; k += MOE_FEW_WARPS * 32)
        ptx_prefetch_l2(sh.segment[1 + k / lines].suh + k % lines * 64);
}

/* ---- the kernel ---- */

/* Grid: one CTA an SM. */
static __global__ void __launch_bounds__(MOE_FEW_WARPS * 32, 1)
    moe_few_kernel(const __grid_constant__ moe_few_params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(16) moe_few_shared sh;
    const moe_few_args &a = p.a;
    const int cta = (int)blockIdx.x;
    unsigned char *room = shared + MOE_FEW_WARPS * MOE_FEW_STAGES * p.slot_bytes;
    const uint32_t to = ptx_shared(room), stage = to + p.room;
    ptx_wait_for_previous();
    ptx_release_next();
    const uint32_t run = __ldcg(a.link->run + cta) + 1;
    moe_few_plan(p, sh);
    if (sh.n_groups[0] > 0)
        moe_few_ask(a, sh.op[0], stage); /* before the weights, which would keep it waiting */
    ptx_copies_commit();
    moe_few_prefetch_scales(a, sh);
    moe_few_feed feed = {nullptr, 0, 0, moe_few_pieces(sh)};
#pragma unroll 1
    for (int i = 0; i < MOE_FEW_STAGES; i++) { /* a group of copies each, empty ones too */
        if (i < feed.left) moe_few_fetch<0>(sh, feed, moe_few_slot(p, feed.left - i));
        ptx_copies_commit();
    }
    moe_few_prefetch_ends(a, sh);
#pragma unroll 1
    for (int i = 0; i < sh.n_groups[0] + sh.n_groups[1]; i++) {
        const bool is_down = i >= sh.n_groups[0];
        const moe_few_group &g = sh.group[is_down ? MOE_FEW_SEGMENTS + i - sh.n_groups[0] : i];
        if (!is_down) {
            if (i > 0) {
                moe_few_ask(a, sh.op[g.first_op], stage);
                ptx_copies_commit();
            }
            moe_few_rotate(p, sh, g, to, stage);
        } else {
            if (i == sh.n_groups[0]) moe_few_finish_ups(a, sh, run);
            moe_few_receive(p, sh, g, to, stage, run);
        }
        moe_few_tell(a, sh, g, run);
        moe_few_run_group(p, sh, g, feed, to);
    }
    if (sh.n_groups[1] == 0) moe_few_finish_ups(a, sh, run);
    __syncthreads(); /* the operands are not read any more */
    moe_few_finish_downs(a, sh, run, (float4(*)[32])room);
    if (threadIdx.x == 0) __stcg(a.link->run + cta, run);
}

#endif
