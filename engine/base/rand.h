#ifndef TANDEM_BASE_RAND_H
#define TANDEM_BASE_RAND_H
/* Random numbers that are the same on every machine. rand_state is a sequence (pcg32) for tests, data
 * and jitter; rand_keyed is no sequence but a function of its key, which is what makes sampling
 * independent of batching, drafting and restarts. Neither is for secrets: rand_secret is. */
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define RAND_INLINE static __host__ __device__ inline
#else
#define RAND_INLINE static inline
#endif

/* The finalizer of splitmix64: a bijection in which every input bit reaches every output bit. */
RAND_INLINE uint64_t rand_mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    x ^= x >> 31;
    return x;
}

/* Noise for one token id at one absolute position of one request. Host and device agree bit for bit.
 * The three parts go in one after another, each through a full mix, so that keys which differ by
 * small numbers in several parts do not meet. */
RAND_INLINE uint64_t rand_keyed(uint64_t seed, uint64_t pos, uint64_t token) {
    uint64_t h = rand_mix(seed + 0x9E3779B97F4A7C15u);
    h = rand_mix((h ^ pos) + 0xD1B54A32D192ED03u);
    h = rand_mix((h ^ token) + 0x8CB92BA72F3D8DD7u);
    return rand_mix(h + seed);
}

/* The same as a number strictly between 0 and 1; its logarithm is always finite and below 0. */
RAND_INLINE double rand_keyed_uniform(uint64_t seed, uint64_t pos, uint64_t token) {
    return ((double)(rand_keyed(seed, pos, token) >> 12) + 0.5) * 0x1p-52;
}

typedef struct rand_state {
    uint64_t state;
    uint64_t inc;
} rand_state;

/* Different streams of one seed are independent. */
void rand_init(rand_state *r, uint64_t seed, uint64_t stream);
uint32_t rand_u32(rand_state *r);
uint64_t rand_u64(rand_state *r);
/* In [0, n) without bias; n > 0. */
uint32_t rand_below(rand_state *r, uint32_t n);
/* In [0, 1). */
double rand_uniform(rand_state *r);
/* Mean 0, variance 1. */
double rand_normal(rand_state *r);

/* n bytes from the kernel's generator, for ids and secrets; ends the process if there is none. */
void rand_secret(void *out, size_t n);

#endif
