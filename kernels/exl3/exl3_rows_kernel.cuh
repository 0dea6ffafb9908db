/*
 * The persistent kernel for few rows: one CTA an SM, 16 warps, stream-K over units of 64 inputs x 64 outputs.
 *
 *   warp   a contiguous share of the units of all jobs; private ring of stages filled by its own asynchronous copies
 *          (weights and operand of one unit, a group each), no CTA barrier in the loop
 *   strip  (64 outputs of a job) left: sums go into the CTA's sums in shared memory when several of its warps work on
 *          one strip, else straight to sums[row][out] as 64-bit atomics
 *   block  (128 outputs): a counter of finished units; who completes it takes the sums and finishes the block
 *
 * Integer sums are associative, so nothing here changes a bit. At most 128 registers, n_stages * slot bytes * 16 warps of
 * shared memory. Limit on Hopper: instruction issue (kernels.md 4); on GB10: memory.
 */
#ifndef KERNELS_EXL3_ROWS_KERNEL_CUH
#define KERNELS_EXL3_ROWS_KERNEL_CUH

#include "kernels/exl3/exl3_finish.cuh"

constexpr int EXL3_WARPS = 16;
constexpr int EXL3_SLICES = 4; /* 16-input slices of a unit */
constexpr int EXL3_MAX_STAGES = 3;
constexpr int EXL3_LOCAL_JOBS = 16;  /* descriptors a CTA keeps in shared memory */
constexpr int EXL3_MOST_LOCAL = 224; /* rows of strips a CTA sums there */

/* The filling side of a warp's ring: every lane copies 16 bytes of each 512; words and operand are its own addresses.
 * (A bulk copy wants addresses, size and barrier in uniform registers: that took twice the instructions.) */
struct exl3_feed {
    const exl3_gpu_job *jobs;
    const char *words, *operand;
    int job, units_left, strips_left; /* of the strip; behind it */
    int kind, word_bytes, operand_bytes;

    __device__ static int kind_of(int k2, int row_cap) {
        return 2 * k2 + (row_cap > 4);
    }
    /* This lane's first byte of 512. */
    __device__ static int at() {
        return threadIdx.x % 32 * 16;
    }
    __device__ void enter(int j, int unit) {
        const exl3_gpu_job &b = jobs[j];
        const int units_in = b.matrix.in / EXL3_GPU_UNIT_IN, in_strip = unit % units_in;
        job = j;
        kind = kind_of(b.matrix.k2, b.row_cap);
        word_bytes = EXL3_SLICES * 64 * b.matrix.k2;
        operand_bytes = EXL3_SLICES * 32 * b.row_cap;
        strips_left = b.matrix.out / 64 - 1 - unit / units_in;
        units_left = units_in - in_strip;
        words = (const char *)b.matrix.words + (size_t)unit * word_bytes + at();
        operand = (const char *)b.operand + (size_t)in_strip * operand_bytes + at();
    }
    /* The next unit is the first of a strip. */
    __device__ void next_strip() {
        if (strips_left == 0) {
            enter(job + 1, 0);
            return;
        }
        units_left = jobs[job].matrix.in / EXL3_GPU_UNIT_IN;
        operand -= (size_t)units_left * operand_bytes;
        strips_left--;
    }
    __device__ void pass() {
        words += word_bytes, operand += operand_bytes, units_left--;
    }
    __device__ void copy_words(uint32_t slot, uint64_t policy) const {
#pragma unroll 1
        for (int i = 0; i < word_bytes - at(); i += 512)
            ptx_copy_16_once(slot + at() + i, words + i, policy);
    }
    __device__ void copy_operand(uint32_t slot) const {
#pragma unroll 1
        for (int i = 0; i < operand_bytes - at(); i += 512)
            ptx_copy_16(slot + word_bytes + at() + i, operand + i);
    }
    /* Weights or operand of the next unit, on their own. */
    __device__ void fetch_words(uint32_t slot, uint64_t policy) {
        if (units_left == 0) next_strip();
        copy_words(slot, policy);
        pass();
    }
    __device__ void fetch_operand(uint32_t slot) {
        if (units_left == 0) next_strip();
        copy_operand(slot);
        pass();
    }
    /* Both. Most likely the unit has K bits and up to 4 NB rows. */
    template <int K, int NB> __device__ __forceinline__ void fetch(uint32_t slot, uint64_t policy) {
        if (units_left == 0) next_strip();
        if (K != 0 && kind == kind_of(2 * K, 4 * NB)) {
            const uint32_t to = slot + at();
#pragma unroll
            for (int i = 0; i < EXL3_SLICES * 128 * K; i += 512)
                ptx_copy_16_once(to + i, words + i, policy);
#pragma unroll
            for (int i = 0; i < 512 * NB; i += 512)
                if (at() < operand_bytes) ptx_copy_16(to + EXL3_SLICES * 128 * K + i, operand + i);
        } else {
            copy_words(slot, policy);
            copy_operand(slot);
        }
        pass();
    }
};

/* A warp's ring of slots [slots, end) and the slot it uses next. Every fetch is a group of copies, empty ones too, so that
 * the copies of this slot are there when at most n_stages - 1 groups are under way. */
struct exl3_ring {
    uint32_t slots, end, slot_bytes, n_stages, slot;
    __device__ exl3_ring(uint32_t at, uint32_t bytes, uint32_t n)
        : slots(at), end(at + n * bytes), slot_bytes(bytes), n_stages(n), slot(at) {
    }
    __device__ __forceinline__ void wait() const {
        if (n_stages >= 3) {
            ptx_copies_wait_for<2>();
        } else if (n_stages == 2) {
            ptx_copies_wait_for<1>();
        } else {
            ptx_copies_wait_for<0>();
        }
        __syncwarp();
    }
    __device__ __forceinline__ void next() {
        slot += slot_bytes;
        if (slot == end) slot = slots;
    }
};

/* Weights, and later operands, of the first of a warp's n units. */
__device__ __forceinline__ void exl3_fill_words(const exl3_ring &ring, exl3_feed &feed, int n) {
    const uint64_t policy = ptx_policy_once();
    for (int i = 0; i < min(n, (int)ring.n_stages); i++)
        feed.fetch_words(ring.slots + i * ring.slot_bytes, policy);
}
__device__ __forceinline__ void exl3_fill_operands(const exl3_ring &ring, exl3_feed &feed, int n) {
    for (int i = 0; i < (int)ring.n_stages; i++) {
        if (i < n) feed.fetch_operand(ring.slots + i * ring.slot_bytes);
        ptx_copies_commit();
    }
}

template <int NB>
__device__ __forceinline__ void exl3_operand_words(uint32_t at, uint32_t (&b)[NB][4]) {
#pragma unroll
    for (int q = 0; q < NB; q++) {
        uint32_t w = ptx_load_shared_4(at + q * 128);
        b[q][0] = __byte_perm(w, 0, 0x0000);
        b[q][1] = __byte_perm(w, 0, 0x1111);
        b[q][2] = __byte_perm(w, 0, 0x2222);
        b[q][3] = __byte_perm(w, 0, 0x3333);
    }
}

template <int NB>
__device__ __forceinline__ void exl3_multiply(
    int (&acc)[NB][4], const uint32_t (&s)[8], const uint32_t (&b)[NB][4]) {
    uint32_t y[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        y[i] = s[i] * EXL3_MUL1_MULTIPLIER;
#pragma unroll
    for (int q = 0; q < NB; q++) {
        ptx_mma_u8s8(acc[q], y[0], y[4], y[1], y[5], b[q][0], b[q][1]);
        ptx_mma_u8s8(acc[q], y[2], y[6], y[3], y[7], b[q][2], b[q][3]);
    }
}

/* One slice of K bits: weights at words (a shared address), operand in b. */
template <int K, int NB>
__device__ __forceinline__ void exl3_slice(int (&acc)[4][NB][4], uint32_t words,
    const uint32_t (&b)[NB][4], const exl3_lane<K> &l, const exl3_powers &powers) {
    uint4 lo = ptx_load_shared_16(words + l.i0 * 16), mid = ptx_load_shared_16(words + l.i1 * 16);
    uint4 hi = mid;
    if constexpr (exl3_lane<K>::HAS_THREE) hi = ptx_load_shared_16(words + l.i2 * 16);
    const uint32_t lw[4] = {lo.x, lo.y, lo.z, lo.w}, mw[4] = {mid.x, mid.y, mid.z, mid.w};
    const uint32_t hw[4] = {hi.x, hi.y, hi.z, hi.w};
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t s[8];
        exl3_states<K>(hw[m], mw[m], lw[m], l.shift, powers, s);
        exl3_multiply<NB>(acc[m], s, b);
    }
}

/* One unit: weights at words, operand at operand. */
template <int K, int NB>
__device__ __forceinline__ void exl3_unit(int (&acc)[4][NB][4], uint32_t words, uint32_t operand,
    int row_cap, const exl3_lane<K> &l, const exl3_powers &powers) {
#pragma unroll
    for (int sl = 0; sl < EXL3_SLICES; sl++) {
        uint32_t b[NB][4];
        exl3_operand_words<NB>(operand + sl * 32 * row_cap, b);
        exl3_slice<K, NB>(acc, words + sl * 128 * K, b, l, powers);
    }
}

/* A slice of any rate, one window at a time. */
template <int NB>
__device__ __forceinline__ void exl3_slice_any(
    int (&acc)[4][NB][4], uint32_t words, const uint32_t (&b)[NB][4], int k2, int lane) {
    const int n_words = 4 * k2;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t s[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int p = lane * 8 + j, end = (p >> 1) * k2 + ((p & 1) ? k2 : k2 >> 1);
            int i0 = (end + 32 * n_words - 1) / 32 % n_words, i1 = (i0 + n_words - 1) % n_words;
            int shift = (32 * (i0 + 1) - end) & 31;
            s[j] = __funnelshift_r(ptx_load_shared_4(words + m * 4 + i0 * 16),
                       ptx_load_shared_4(words + m * 4 + i1 * 16), shift) &
                   0xffffu;
        }
        exl3_multiply<NB>(acc[m], s, b);
    }
}
template <int NB>
__device__ __forceinline__ void exl3_unit_any(
    int (&acc)[4][NB][4], uint32_t words, uint32_t operand, int row_cap, int k2, int lane) {
#pragma unroll 1
    for (int sl = 0; sl < EXL3_SLICES; sl++) {
        uint32_t b[NB][4];
        exl3_operand_words<NB>(operand + sl * 32 * row_cap, b);
        exl3_slice_any<NB>(acc, words + sl * 64 * k2, b, k2, lane);
    }
}

/* What a strip's sums go to. */
struct exl3_target {
    int *local;    /* shared [rows][64][2], or NULL */
    int64_t *sums; /* of the strip's first output, row stride out */
    int out, n_rows;
};

template <int NB>
__device__ __forceinline__ void exl3_flush(
    const int (&acc)[4][NB][4], const exl3_target &to, int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int q = 0; q < NB; q++) {
        const int r = q * 4 + t;
        if (r >= to.n_rows) continue;
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int *c = acc[m][q];
            if (to.local != nullptr) {
                int *o = to.local + (r * 64 + m * 16 + g) * 2;
                atomicAdd(o, c[0]);
                atomicAdd(o + 1, c[1]);
                atomicAdd(o + 16, c[2]);
                atomicAdd(o + 17, c[3]);
            } else {
                unsigned long long *o =
                    (unsigned long long *)to.sums + (size_t)r * to.out + m * 16 + g;
                atomicAdd(o, (unsigned long long)(c[0] * 256ll + c[1]));
                atomicAdd(o + 8, (unsigned long long)(c[2] * 256ll + c[3]));
            }
        }
    }
}

/* n units of one strip; left: units the warp still has to do, these included. K = 0: any rate. */
template <int K, int NB>
__device__ __forceinline__ void exl3_strip(exl3_ring &ring, exl3_feed &feed,
    const exl3_gpu_job &job, int2 n_left, const exl3_target &to, const exl3_powers &powers) {
    const int lane = threadIdx.x & 31, row_cap = job.row_cap, k2 = job.matrix.k2;
    const uint32_t mine = NB == 2 ? lane * 4 : (lane & (8 * row_cap - 1)) * 4;
    const uint32_t word_bytes = EXL3_SLICES * 64 * k2;
    const uint64_t policy = ptx_policy_once();
    int acc[4][NB][4];
#pragma unroll
    for (int i = 0; i < 16 * NB; i++)
        (&acc[0][0][0])[i] = 0;
    const exl3_lane<(K ? K : 1)> l(lane);
#pragma unroll 1
    for (int i = 0; i < n_left.x; i++) {
        ring.wait();
        const uint32_t words = ring.slot, operand = words + word_bytes + mine;
        if constexpr (K != 0) {
            exl3_unit<K, NB>(acc, words, operand, row_cap, l, powers);
        } else {
            exl3_unit_any<NB>(acc, words, operand, row_cap, k2, lane);
        }
        __syncwarp();
        if (n_left.y - i > (int)ring.n_stages) {
            feed.fetch<K, NB>(words, policy);
        }
        ptx_copies_commit();
        ring.next();
    }
    exl3_flush<NB>(acc, to, lane);
}

template <int NB>
__device__ __forceinline__ void exl3_strip_of(exl3_ring &ring, exl3_feed &feed,
    const exl3_gpu_job &job, int2 n_left, const exl3_target &to, const exl3_powers &powers) {
    switch (job.matrix.k2) {
    case 4:
        exl3_strip<2, NB>(ring, feed, job, n_left, to, powers);
        break;
    case 6:
        exl3_strip<3, NB>(ring, feed, job, n_left, to, powers);
        break;
    case 8:
        exl3_strip<4, NB>(ring, feed, job, n_left, to, powers);
        break;
    case 10:
        exl3_strip<5, NB>(ring, feed, job, n_left, to, powers);
        break;
    case 12:
        exl3_strip<6, NB>(ring, feed, job, n_left, to, powers);
        break;
    case 16:
        exl3_strip<8, NB>(ring, feed, job, n_left, to, powers);
        break;
    default:
        exl3_strip<0, NB>(ring, feed, job, n_left, to, powers);
        break;
    }
}

/* Share of worker w of n units over n_workers: [x, y). */
__device__ __forceinline__ int2 exl3_share(int n, int n_workers, int w) {
    int q = n / n_workers, r = n % n_workers;
    int first = w * q + min(w, r);
    return make_int2(first, first + q + (w < r));
}

/* A place in the work: a unit, its job, and the job of the unit before it. */
struct exl3_place {
    int unit, job, job_before;
};

/* The unit that cost falls into. All lanes of a warp get the answer. */
__device__ __forceinline__ exl3_place exl3_place_of(
    const exl3_gpu_list *list, int n_jobs, int cost) {
    if (cost >= list->n_cost) return {list->n_units, n_jobs - 1, n_jobs - 1};
    int found = 0;
    for (int j0 = 0; j0 < n_jobs; j0 += 32) {
        int j = j0 + (threadIdx.x & 31);
        bool is_before = j < n_jobs && list->jobs[j].first_cost <= cost;
        unsigned b = __ballot_sync(~0u, is_before);
        if (b != 0) found = j0 + 31 - __clz(b);
        if (b != ~0u) break;
    }
    const exl3_gpu_job &b = list->jobs[found];
    const int in_job = (cost - b.first_cost) / exl3_gpu_unit_cost(b.matrix.k2, b.n_rows);
    return {b.first_unit + in_job, found, in_job == 0 ? found - 1 : found};
}

/* Where the warps of a CTA begin, and where the last one ends. */
__device__ __forceinline__ void exl3_find_places(
    const exl3_gpu_list *list, int n_workers, int worker, exl3_place *places) {
    const int warp = threadIdx.x >> 5, n_jobs = list->n_jobs, n_cost = list->n_cost;
    const int2 share = exl3_share(n_cost, n_workers, worker + warp);
    const exl3_place first = exl3_place_of(list, n_jobs, share.x);
    if ((threadIdx.x & 31) == 0) places[warp] = first;
    if (warp != EXL3_WARPS - 1) return;
    const exl3_place end = exl3_place_of(list, n_jobs, share.y);
    if ((threadIdx.x & 31) == 0) places[EXL3_WARPS] = end;
}

/* Copies the descriptors this CTA needs to shared memory when they fit; indexed by job number either way. */
__device__ __forceinline__ const exl3_gpu_job *exl3_local_copy(
    const exl3_gpu_list *list, exl3_gpu_job *local, int job0, int job1) {
    if (job1 - job0 >= EXL3_LOCAL_JOBS) return list->jobs;
    static_assert(sizeof(exl3_gpu_job) % 8 == 0, "copied in words of 8 bytes");
    const int n = (job1 - job0 + 1) * (int)(sizeof(exl3_gpu_job) / 8);
    const unsigned long long *from = (const unsigned long long *)(list->jobs + job0);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        ((unsigned long long *)local)[i] = from[i];
    return local - job0;
}

/* The strips a range of units touches: first strip of job0, how many in all, and the sum of their rows. */
struct exl3_strips {
    int job0, first, n, n_rows;
    __device__ exl3_strips(const exl3_gpu_job *jobs, int2 units, int j0, int j1) : job0(j0) {
        first = (units.x - jobs[j0].first_unit) / (jobs[j0].matrix.in / EXL3_GPU_UNIT_IN);
        const int end =
            (units.y - 1 - jobs[j1].first_unit) / (jobs[j1].matrix.in / EXL3_GPU_UNIT_IN) + 1;
        n = end - first;
        for (int j = j0; j < j1; j++)
            n += jobs[j].matrix.out / 64;
        n_rows = row_of(jobs, j1, end);
    }
    /* Rows of the strips of this range before a job's strip. */
    __device__ int row_of(const exl3_gpu_job *jobs, int job, int strip) const {
        int rows = strip * jobs[job].n_rows - first * jobs[job0].n_rows;
        for (int j = job0; j < job; j++)
            rows += jobs[j].matrix.out / 64 * jobs[j].n_rows;
        return rows;
    }
    /* The inverse: {job, strip}. */
    __device__ int2 at(const exl3_gpu_job *jobs, int i) const {
        int j = job0;
        for (i += first; i >= jobs[j].matrix.out / 64; j++)
            i -= jobs[j].matrix.out / 64;
        return make_int2(j, i);
    }
};

/* What finishing the blocks of this CTA will need, on its way to the L2 cache. */
template <int EPILOGUE>
__device__ __forceinline__ void exl3_prefetch_ends(
    const exl3_rows_params &p, const exl3_gpu_job *jobs, const exl3_strips &strips) {
    for (int i = threadIdx.x; i < strips.n; i += EXL3_WARPS * 32) {
        const int2 at = strips.at(jobs, i);
        ptx_prefetch_l2(jobs[at.x].matrix.svh + at.y * 64);
        if constexpr (EPILOGUE == EXL3_GATE_UP) {
            if ((at.x & 1) == 0) ptx_prefetch_l2(p.down->jobs[at.x >> 1].matrix.suh + at.y * 64);
        }
    }
}

/* Rows of complete blocks of a CTA, for all of its warps. */
struct exl3_queue {
    int n;
    int2 item[EXL3_MOST_LOCAL]; /* {job * 8 + row, block} */
};
static_assert(EXL3_GPU_MAX_ROWS == 8, "a row in three bits");

/* Adds what the CTA summed in shared memory to the sums of all, one warp a strip, and finishes the blocks
 * that are complete then, one warp a row. */
template <int EPILOGUE>
__device__ __forceinline__ void exl3_add_local(const exl3_rows_params &p, const exl3_gpu_job *jobs,
    const exl3_strips &strips, const int *local, int2 cta, exl3_queue &queue) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll 1
    for (int i = warp; i < strips.n; i += EXL3_WARPS) {
        const int2 at = strips.at(jobs, i);
        const int *sums_of_strip = local + strips.row_of(jobs, at.x, at.y) * 128 + lane * 4;
        const exl3_gpu_job &job = jobs[at.x];
        const int units_in = job.matrix.in / EXL3_GPU_UNIT_IN;
        const int first = job.first_unit + at.y * units_in;
        const int done = min(cta.y, first + units_in) - max(cta.x, first);
        for (int r = 0; r < job.n_rows; r++) {
            int4 v = *(const int4 *)(sums_of_strip + r * 128);
            unsigned long long *sums = (unsigned long long *)p.sums + job.first_sum +
                                       (size_t)r * job.matrix.out + at.y * 64 + lane * 2;
            atomicAdd(sums, (unsigned long long)(v.x * 256ll + v.y));
            atomicAdd(sums + 1, (unsigned long long)(v.z * 256ll + v.w));
        }
        if (!exl3_arrive<EPILOGUE>(p, job, at.y, done)) continue;
        if (job.n_rows == 1) { /* nothing to share */
            exl3_finish<EPILOGUE>(p, jobs, make_int2(at.x, at.y >> 1), make_int2(0, 1));
            if constexpr (EPILOGUE == EXL3_DOWN) exl3_close_down(p, job, at.y >> 1);
            continue;
        }
        int to = 0;
        if (lane == 0) to = atomicAdd(&queue.n, job.n_rows);
        to = __shfl_sync(~0u, to, 0);
        if (lane < job.n_rows) queue.item[to + lane] = make_int2(at.x * 8 + lane, at.y >> 1);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = warp; i < queue.n; i += EXL3_WARPS) {
        const int2 item = queue.item[i];
        const int row = item.x & 7;
        exl3_finish<EPILOGUE>(p, jobs, make_int2(item.x >> 3, item.y), make_int2(row, row + 1));
    }
    if constexpr (EPILOGUE == EXL3_DOWN) {
        __syncthreads();
#pragma unroll 1
        for (int i = warp; i < queue.n; i += EXL3_WARPS) {
            const int2 item = queue.item[i];
            if ((item.x & 7) == 0) exl3_close_down(p, jobs[item.x >> 3], item.y);
        }
    }
}

template <int EPILOGUE>
__global__ void __launch_bounds__(EXL3_WARPS * 32, 1)
    exl3_rows_kernel(const __grid_constant__ exl3_rows_params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(16) exl3_gpu_job local_jobs[EXL3_LOCAL_JOBS];
    __shared__ exl3_place places[EXL3_WARPS + 1];
    __shared__ exl3_queue queue;
    const int warp = threadIdx.x >> 5;
    if (!p.has_early_list) {
        ptx_wait_for_previous();
        ptx_release_next();
    }
    const exl3_gpu_list *list = exl3_list_of(p);
    const int n_workers = gridDim.x * EXL3_WARPS, worker = blockIdx.x * EXL3_WARPS;
    exl3_find_places(list, n_workers, worker, places);
    if (threadIdx.x == 0) queue.n = 0;
    __syncthreads();
    const int2 mine = {places[warp].unit, places[warp + 1].unit};
    const int2 cta = {places[0].unit, places[EXL3_WARPS].unit};
    if (cta.x == cta.y) return; /* leaving counts as both signals */
    const int job0 = places[0].job, job1 = places[EXL3_WARPS].job_before;
    const exl3_gpu_job *jobs = exl3_local_copy(list, local_jobs, job0, job1);
    __syncthreads();
    exl3_ring ring(ptx_shared(shared) + warp * p.n_stages * p.slot_bytes, p.slot_bytes, p.n_stages);
    const int n_mine = mine.y - mine.x;
    int job = places[warp].job;
    exl3_feed feed;
    feed.jobs = jobs;
    if (n_mine > 0) feed.enter(job, mine.x - jobs[job].first_unit);
    exl3_feed operands = feed; /* follows behind while the weights are fetched early */
    exl3_fill_words(ring, feed, n_mine);
    const exl3_strips strips(jobs, cta, job0, job1);
    exl3_prefetch_ends<EPILOGUE>(p, jobs, strips);
    int *local = strips.n_rows <= p.max_local
                     ? (int *)(shared + EXL3_WARPS * p.n_stages * p.slot_bytes)
                     : nullptr;
    if (local != nullptr) {
        for (int i = threadIdx.x; i < strips.n_rows * 128; i += EXL3_WARPS * 32)
            local[i] = 0;
    }
    if (p.has_early_list) {
        ptx_wait_for_previous();
        ptx_release_next();
    }
    exl3_fill_operands(ring, operands, n_mine);
    __syncthreads();

#pragma unroll 1
    for (int done = 0; done < n_mine;) {
        const exl3_gpu_job &b = jobs[job];
        const int units_in = b.matrix.in / EXL3_GPU_UNIT_IN;
        const int unit = mine.x + done - b.first_unit, strip = unit / units_in;
        const int n = min(n_mine - done, (strip + 1) * units_in - unit);
        exl3_target to = {nullptr, p.sums + b.first_sum + strip * 64, b.matrix.out, b.n_rows};
        if (local != nullptr) to.local = local + strips.row_of(jobs, job, strip) * 128;
        const int2 n_left = {n, n_mine - done};
        if (b.row_cap <= 4) {
            exl3_strip_of<1>(ring, feed, b, n_left, to, p.powers);
        } else {
            exl3_strip_of<2>(ring, feed, b, n_left, to, p.powers);
        }
        if (local == nullptr && exl3_arrive<EPILOGUE>(p, b, strip, n)) {
            exl3_finish<EPILOGUE>(p, jobs, make_int2(job, strip >> 1), make_int2(0, b.n_rows));
            if constexpr (EPILOGUE == EXL3_DOWN) exl3_close_down(p, b, strip >> 1);
        }
        done += n;
        if (unit + n == exl3_gpu_units(b.matrix.in, b.matrix.out)) job++;
    }
    if (local != nullptr) {
        __syncthreads();
        exl3_add_local<EPILOGUE>(p, jobs, strips, local, cta, queue);
    }
}

#endif
