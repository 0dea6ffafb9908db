#include "tests/gpu/spin.h"

static __global__ void __launch_bounds__(32) spin_kernel(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < ns);
}

void spin_start(int ms, cudaStream_t stream) {
    spin_kernel<<<1, 32, 0, stream>>>((unsigned long long)ms * 1000000ull);
}
