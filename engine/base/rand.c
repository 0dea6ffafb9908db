#include "engine/base/rand.h"

#include <errno.h>
#include <math.h>
#include <sys/random.h>

#include "engine/base/mem.h"

void rand_init(rand_state *r, uint64_t seed, uint64_t stream) {
    r->state = 0;
    r->inc = rand_mix(stream + 0x9E3779B97F4A7C15u) << 1 | 1;
    (void)rand_u32(r);
    r->state += rand_mix(seed + 0x9E3779B97F4A7C15u);
    (void)rand_u32(r);
}

uint32_t rand_u32(rand_state *r) {
    uint64_t old = r->state;
    r->state = old * 6364136223846793005u + r->inc;
    uint32_t shifted = (uint32_t)((old >> 18 ^ old) >> 27);
    uint32_t turn = (uint32_t)(old >> 59);
    return shifted >> turn | shifted << (-turn & 31);
}

uint64_t rand_u64(rand_state *r) {
    uint64_t high = rand_u32(r);
    return high << 32 | rand_u32(r);
}

uint32_t rand_below(rand_state *r, uint32_t n) {
    CHECK(n > 0);
    /* Values below 2^32 mod n would make the small results likelier. */
    uint32_t floor = -n % n;
    uint32_t v;
    do {
        v = rand_u32(r);
    } while (v < floor);
    return v % n;
}

double rand_uniform(rand_state *r) {
    return (double)(rand_u64(r) >> 11) * 0x1p-53;
}

double rand_normal(rand_state *r) {
    double u = 1.0 - rand_uniform(r); /* (0, 1] */
    double v = rand_uniform(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

void rand_secret(void *out, size_t n) {
    unsigned char *at = out;
    while (n > 0) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0 && errno == EINTR) continue;
        CHECK_MSG(got > 0, "the kernel gives no random bytes");
        at += got;
        n -= (size_t)got;
    }
}
