/*
 * The only inline assembly of the project: thin wrappers with plain names. Everything here compiles for sm_90 and
 * sm_121; nothing allocates or synchronises beyond what its name says.
 */
#ifndef KERNELS_PTX_CUH
#define KERNELS_PTX_CUH

#include <cstdint>

/* Shared-memory address of a pointer, as the instructions below want it. */
__device__ __forceinline__ uint32_t ptx_shared(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* A barrier in shared memory that expects n arrivals a phase. */
__device__ __forceinline__ void ptx_barrier_init(uint32_t barrier, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n));
}
/* Makes initialised barriers visible to the copy engine. */
__device__ __forceinline__ void ptx_barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* One arrival that also announces bytes to come. */
__device__ __forceinline__ void ptx_barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Waits until the phase with this parity is complete. The bytes were announced by this grid, so the wait ends. */
__device__ __forceinline__ void ptx_barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nAGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Bulk copy to shared memory; size and both addresses are multiples of 16. Completes on the barrier. */
__device__ __forceinline__ void ptx_bulk_copy(
    uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
/* The same for data that is read once: it leaves the L2 cache first. */
__device__ __forceinline__ void ptx_bulk_copy_once(
    uint32_t to, const void *from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ uint64_t ptx_policy_once() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Asks for the line at p to be brought into the L2 cache. */
__device__ __forceinline__ void ptx_prefetch_l2(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
__device__ __forceinline__ void ptx_fence_device() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
/* Programmatic launch: wait for the kernels before this one / let the next one start. */
__device__ __forceinline__ void ptx_wait_for_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void ptx_release_next() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ uint4 ptx_load_shared_16(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address));
    return v;
}
__device__ __forceinline__ uint32_t ptx_load_shared_4(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}

/* c[16 x 8] += a[16 x 32] (u8) . b[32 x 8] (s8), 32-bit integers. */
__device__ __forceinline__ void ptx_mma_u8s8(
    int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* c[16 x 8] += a[16 x 32] (s8) . b[32 x 8] (s8), 32-bit integers. */
__device__ __forceinline__ void ptx_mma_s8s8(
    int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* c[16 x 8] += a[16 x 16] (bf16) . b[16 x 8] (bf16), 32-bit floats. */
__device__ __forceinline__ void ptx_mma_bf16(
    float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Four 8 x 8 blocks of 16-bit values; each lane gives the address of one row of one block. */
__device__ __forceinline__ void ptx_load_matrix_4(uint32_t address, uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
/* The same with every block transposed. */
__device__ __forceinline__ void ptx_load_matrix_4_transposed(uint32_t address, uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
/* Upper half of v moved down, zero extended; kept as a byte permute so that it uses the ALU pipe once. */
__device__ __forceinline__ uint32_t ptx_high_half(uint32_t v) {
    uint32_t r;
    asm("prmt.b32 %0, %1, 0, 0x4432;" : "=r"(r) : "r"(v));
    return r;
}

#endif
