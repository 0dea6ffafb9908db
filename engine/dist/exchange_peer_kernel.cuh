/* Device side of the exchange between GPUs of one host.
 *
 *   calls    are numbered from 1 by a counter in each rank's memory, which the kernels read and count
 *            up, so that a recorded step can be replayed; the counters of all ranks agree
 *   inboxes  two halves, by odd and even calls: a rank that is in call n has everybody's parts of n - 1,
 *            so nobody reads the half of n - 2 any more
 *   small    a pair of values is two 64-bit words (number of the call, value), 16 bytes a store; words are
 *            single-copy atomic, so a word with the right number holds the right value
 *   large    tiles of 16 KB by plain stores, then a flag with the number, release and acquire
 *   old words: every 2^20 calls the half of the next call is cleared before anything is sent, so no word
 *            of 2^32 calls ago can be taken for a new one
 *   end      whoever waits looks now and then for an abort of the host and at the clock; a wait that
 *            ends so marks the exchange as broken, and later kernels do nothing
 *
 * Bound by latency for a few rows (two crossings of NVLink, about 2.5 us with the launch), by the link for
 * prompts. */
#ifndef TANDEM_ENGINE_DIST_EXCHANGE_PEER_KERNEL_CUH
#define TANDEM_ENGINE_DIST_EXCHANGE_PEER_KERNEL_CUH

#include "kernels/device.cuh"

constexpr int PEER_MAX_WORLD = 16;
constexpr int PEER_SMALL_THREADS = 128, PEER_LARGE_THREADS = 512;
constexpr int PEER_SMALL_FLOATS = 128 << 10;
constexpr int PEER_TILE_FLOATS = 4096, PEER_LARGE_TILES = 1024;
constexpr int PEER_LARGE_FLOATS = PEER_TILE_FLOATS * PEER_LARGE_TILES;
constexpr uint32_t PEER_CLEAR_MASK = (1u << 20) - 1;
constexpr uint32_t PEER_ASK_EVERY = 4096; /* polls between looks at the host and the clock */

/* One rank's inbox, in its own memory; a part of it for every other rank. */
struct peer_inbox {
    uint64_t small[2][PEER_SMALL_FLOATS];
    float large[2][PEER_LARGE_FLOATS];
    uint32_t flags[2][PEER_LARGE_TILES];
};

/* In the rank's own device memory. */
struct peer_state {
    uint32_t call;    /* number of the last call */
    uint32_t arrived; /* blocks of this launch that have read it */
    uint32_t is_broken;
    uint32_t reserved;
};

/* In host memory that the device sees. */
struct peer_host {
    uint32_t is_aborted; /* by the host */
    uint32_t is_late;    /* by the device: a deadline passed */
};

struct peer_view {
    int rank, world;
    peer_inbox *to[PEER_MAX_WORLD];   /* this rank's part of rank r's inbox */
    peer_inbox *from[PEER_MAX_WORLD]; /* rank r's part of the own inbox */
    peer_state *state;
    volatile peer_host *host;
    uint64_t timeout_ns;
};

struct peer_args {
    peer_view v;
    const float *mine; /* [n] */
    float *out;        /* gather: [world][n], rows stride apart; sum: [n], may be mine */
    size_t stride;     /* gather: of out, in floats */
    int n;
    bool is_gather, is_wide; /* is_wide: n, stride and the addresses are multiples of four floats */
};

__device__ __forceinline__ uint64_t peer_time_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
__device__ __forceinline__ void peer_store_words(uint64_t *to, uint64_t a, uint64_t b) {
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b)
                 : "memory");
}
__device__ __forceinline__ void peer_load_words(const uint64_t *from, uint64_t &a, uint64_t &b) {
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(a), "=l"(b)
                 : "l"(from)
                 : "memory");
}
__device__ __forceinline__ void peer_store_flag(uint32_t *to, uint32_t v) {
    asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t peer_load_flag(const uint32_t *from) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}
__device__ __forceinline__ void peer_fence() {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Number of this call for every thread of the block; 0: the exchange is broken. The last block to read
 * it counts up, which the next kernel sees: it begins behind the end of this one. */
__device__ __forceinline__ uint32_t peer_begin(const peer_view &v) {
    __shared__ uint32_t number;
    if (threadIdx.x == 0) {
        const uint32_t last = v.state->call;
        const uint32_t call = last == ~0u ? 2 : last + 1; /* odd and even in turn; 0 is no number */
        number = *(volatile uint32_t *)&v.state->is_broken != 0 ? 0 : call;
        ptx_fence_device();
        if (atomicInc(&v.state->arrived, gridDim.x - 1) == gridDim.x - 1) v.state->call = call;
    }
    __syncthreads();
    return number;
}

/* Whether to wait no longer; asked at every poll. */
struct peer_patience {
    uint64_t since;
    uint32_t n;
    __device__ peer_patience() : since(0), n(0) {
    }
    __device__ bool is_over(const peer_view &v) {
        if (++n % PEER_ASK_EVERY != 0) return false;
        const uint64_t now = peer_time_ns();
        if (since == 0) since = now;
        const bool is_late = now - since > v.timeout_ns;
        if (*(volatile uint32_t *)&v.state->is_broken != 0) return true;
        if (!is_late && v.host->is_aborted == 0) return false;
        *(volatile uint32_t *)&v.state->is_broken = 1;
        if (is_late) v.host->is_late = 1;
        return true;
    }
};

__device__ __forceinline__ uint64_t peer_word(uint32_t number, float value) {
    return (uint64_t)number << 32 | __float_as_uint(value);
}

/* Before the first word of a call that is due for it: the own half of the next call becomes zero. Peers
 * write there once they have all of this call, which is sent behind it. */
__device__ __forceinline__ void peer_clear(const peer_view &v, uint32_t number) {
    if ((number & PEER_CLEAR_MASK) != 0) return;
    const int half = (number + 1) & 1, step = gridDim.x * blockDim.x;
    for (int r = 0; r < v.world; r++) {
        if (r == v.rank) continue;
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < PEER_SMALL_FLOATS; i += step)
            v.from[r]->small[half][i] = 0;
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < PEER_LARGE_TILES; i += step)
            v.from[r]->flags[half][i] = 0;
    }
    peer_fence();
    __syncthreads();
}

/* At most PEER_SMALL_FLOATS. A thread takes two values at a time. */
static __global__ void __launch_bounds__(PEER_SMALL_THREADS)
    exchange_peer_small_kernel(const __grid_constant__ peer_args a) {
    kernel_begin();
    const peer_view &v = a.v;
    const uint32_t number = peer_begin(v);
    if (number == 0) return;
    peer_clear(v, number);
    const int half = number & 1, first = 2 * (blockIdx.x * PEER_SMALL_THREADS + threadIdx.x),
              step = 2 * gridDim.x * PEER_SMALL_THREADS;
    for (int i = first; i < a.n; i += step) {
        const uint64_t x = peer_word(number, a.mine[i]),
                       y = peer_word(number, i + 1 < a.n ? a.mine[i + 1] : 0.f);
        for (int r = 0; r < v.world; r++) {
            if (r != v.rank) peer_store_words(&v.to[r]->small[half][i], x, y);
        }
    }
    peer_patience patience;
    for (int i = first; i < a.n; i += step) {
        const bool has_two = i + 1 < a.n;
        const float own[2] = {a.mine[i], has_two ? a.mine[i + 1] : 0.f};
        float sum[2] = {0.f, 0.f};
        for (int r = 0; r < v.world; r++) {
            float part[2] = {own[0], own[1]};
            if (r != v.rank) {
                uint64_t x, y;
                for (;;) {
                    peer_load_words(&v.from[r]->small[half][i], x, y);
                    if ((uint32_t)(x >> 32) == number && (uint32_t)(y >> 32) == number) break;
                    if (patience.is_over(v)) return;
                }
                part[0] = __uint_as_float((uint32_t)x);
                part[1] = __uint_as_float((uint32_t)y);
            }
            if (a.is_gather) {
                a.out[(size_t)r * a.stride + i] = part[0];
                if (has_two) a.out[(size_t)r * a.stride + i + 1] = part[1];
            }
            sum[0] = r == 0 ? part[0] : sum[0] + part[0];
            sum[1] = r == 0 ? part[1] : sum[1] + part[1];
        }
        if (a.is_gather) continue;
        a.out[i] = sum[0];
        if (has_two) a.out[i + 1] = sum[1];
    }
}

/* Four values from i on; those behind n are zero. */
__device__ __forceinline__ float4 peer_load4(const float *x, int i, int n, bool is_wide) {
    if (is_wide) return *(const float4 *)(x + i);
    float v[4];
#pragma unroll
    for (int c = 0; c < 4; c++)
        v[c] = i + c < n ? x[i + c] : 0.f;
    return make_float4(v[0], v[1], v[2], v[3]);
}
__device__ __forceinline__ void peer_store4(float *x, int i, int n, bool is_wide, float4 u) {
    if (is_wide) {
        *(float4 *)(x + i) = u;
        return;
    }
    const float v[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int c = 0; c < 4; c++) {
        if (i + c < n) x[i + c] = v[c];
    }
}

/* Sends this block's tiles, each with its flag. */
__device__ __forceinline__ void peer_send_tiles(const peer_args &a, uint32_t number, int n_tiles) {
    const peer_view &v = a.v;
    const int half = number & 1;
    for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
        const int end = min(a.n, (t + 1) * PEER_TILE_FLOATS);
        for (int i = t * PEER_TILE_FLOATS + threadIdx.x * 4; i < end; i += PEER_LARGE_THREADS * 4) {
            const float4 u = peer_load4(a.mine, i, a.n, a.is_wide);
            for (int r = 0; r < v.world; r++) {
                if (r != v.rank) *(float4 *)&v.to[r]->large[half][i] = u;
            }
        }
        __syncthreads();
        if ((int)threadIdx.x < v.world && (int)threadIdx.x != v.rank) {
            peer_fence();
            peer_store_flag(&v.to[threadIdx.x]->flags[half][t], number);
        }
    }
}

/* At most PEER_LARGE_FLOATS. All tiles of a block are on their way before it waits for the first. */
static __global__ void __launch_bounds__(PEER_LARGE_THREADS)
    exchange_peer_large_kernel(const __grid_constant__ peer_args a) {
    kernel_begin();
    const peer_view &v = a.v;
    const uint32_t number = peer_begin(v);
    if (number == 0) return;
    peer_clear(v, number);
    const int half = number & 1, n_tiles = (a.n + PEER_TILE_FLOATS - 1) / PEER_TILE_FLOATS;
    peer_send_tiles(a, number, n_tiles);
    peer_patience patience;
    for (int t = blockIdx.x; t < n_tiles; t += gridDim.x) {
        bool is_over = false;
        if ((int)threadIdx.x < v.world && (int)threadIdx.x != v.rank) {
            while (!is_over && peer_load_flag(&v.from[threadIdx.x]->flags[half][t]) != number)
                is_over = patience.is_over(v);
        }
        if (__syncthreads_or(is_over)) return;
        const int end = min(a.n, (t + 1) * PEER_TILE_FLOATS);
        for (int i = t * PEER_TILE_FLOATS + threadIdx.x * 4; i < end; i += PEER_LARGE_THREADS * 4) {
            const float4 own = peer_load4(a.mine, i, a.n, a.is_wide);
            float4 sum = own;
            for (int r = 0; r < v.world; r++) {
                const float4 u = r == v.rank ? own : *(const float4 *)&v.from[r]->large[half][i];
                if (a.is_gather) peer_store4(a.out + (size_t)r * a.stride, i, a.n, a.is_wide, u);
                sum = r == 0 ? u : make_float4(sum.x + u.x, sum.y + u.y, sum.z + u.z, sum.w + u.w);
            }
            if (!a.is_gather) peer_store4(a.out, i, a.n, a.is_wide, sum);
        }
    }
}

#endif
