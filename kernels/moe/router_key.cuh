/* What experts are chosen by. */
#ifndef TANDEM_KERNELS_MOE_ROUTER_KEY_CUH
#define TANDEM_KERNELS_MOE_ROUTER_KEY_CUH

#include <cstdint>

/* Order of the choice as an integer: larger is better, NaN below every number, 0: taken. */
__device__ __forceinline__ uint32_t router_key(float v) {
    const uint32_t u = __float_as_uint(v);
    if (isnan(v)) return 1;
    if (u == 0xff800000u) return 0;
    if (u == 0x80000000u) return 0x80000000u; /* the two zeros are equal */
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

#endif
