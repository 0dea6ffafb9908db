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
/* One arrival. */
__device__ __forceinline__ void ptx_barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
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

/* n threads, whole warps, meet at barrier id, 1 to 15; __syncthreads is 0. */
__device__ __forceinline__ void ptx_named_barrier(int id, int n) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
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

/* 16 bytes to shared memory, both addresses multiples of 16, by one thread; then: an arrival on a barrier, which
 * counts it among those it expects, when all of the thread's copies so far are there. */
__device__ __forceinline__ void ptx_copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* The same for data that is read once: it leaves the L2 cache first. */
__device__ __forceinline__ void ptx_copy_16_once(uint32_t to, const void *from, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void ptx_copies_arrive(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Ends a group of this thread's copies, which may be empty. / Waits until at most N groups are under way. */
__device__ __forceinline__ void ptx_copies_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void ptx_copies_wait_for() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Copies 8 bytes to shared memory while the thread goes on; for the thread itself they are there after the wait. */
__device__ __forceinline__ void ptx_copy_8(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void ptx_copies_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Asks for the line at p to be brought into the L2 cache. */
__device__ __forceinline__ void ptx_prefetch_l2(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
__device__ __forceinline__ void ptx_fence_device() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
/* Two 8-byte words that other blocks may be writing, each read and written at once. */
__device__ __forceinline__ ulonglong2 ptx_load_device_16(const void *p) {
    ulonglong2 v;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0,%1}, [%2];"
                 : "=l"(v.x), "=l"(v.y)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ void ptx_store_device_8(void *p, uint64_t v) {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void ptx_store_device_16(void *p, ulonglong2 v) {
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1,%2};" ::"l"(p), "l"(v.x), "l"(v.y)
                 : "memory");
}
/* 8 bytes of constant memory of the device, read here and not later. */
__device__ __forceinline__ uint2 ptx_load_constant_8(const void *p) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
/* threadIdx.x, read here: what is made of it is not kept from elsewhere. */
__device__ __forceinline__ int ptx_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
/* True in one thread of a warp; the compiler knows that it is one. */
__device__ __forceinline__ bool ptx_elect_one() {
    uint32_t is_it;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(is_it));
    return is_it != 0;
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
__device__ __forceinline__ void ptx_store_shared_16(uint32_t address, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ uint2 ptx_load_shared_8(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
}
__device__ __forceinline__ void ptx_store_shared_2(uint32_t address, uint32_t v) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"((uint16_t)v) : "memory");
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
/* The nearest bf16 values, a in the low half; a NaN becomes 0x7fff. */
__device__ __forceinline__ uint32_t ptx_bf16_pair(float a, float b) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}
/* c[16 x 8] += a[16 x 16] (bf16) . b[16 x 8] (bf16), 32-bit floats. */
__device__ __forceinline__ void ptx_mma_bf16(
    float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PTX_HAS_WGMMA 1
/* Products of a warpgroup that run beside its other work. Before the first of a batch, after A or the
 * sums were written by anything else: */
__device__ __forceinline__ void ptx_wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void ptx_wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most N batches are under way. */
template <int N> __device__ __forceinline__ void ptx_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Behind the wait for the last batch: sums are read from here on. To the compiler a sum is ready as soon as its product is
 * issued, and what reads registers only may go ahead of the wait (seen: wrong sums in a kernel that spilled). */
template <int N> __device__ __forceinline__ void ptx_wgmma_settle(int (&d)[N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++)
        asm volatile("" : "+r"(d[i >> 2][i & 3])::"memory");
}
template <int N> __device__ __forceinline__ void ptx_wgmma_settle(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
/* B of 32 columns of k in shared memory: blocks of 8 rows by 16 bytes (128 bytes), the second 16 of
 * k next_k bytes on, the next 8 rows 128 bytes on. */
__device__ __forceinline__ uint64_t ptx_wgmma_matrix(uint32_t address, uint32_t next_k) {
    return (uint64_t)(address >> 4) | (uint64_t)(next_k >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
}
/* d[64 x 8 COLUMNS] += a[64 x 32] (s8 or u8, registers as in ptx_mma_s8s8, 16 rows a warp) . b (s8). */
#define PTX_WGMMA_FORMS(NAME, TYPE)                                                                                                                                                                                                                                         \
    __device__ __forceinline__ void NAME(int(&d)[4][4], const uint32_t(&a)[4], uint64_t b) {                                                                                                                                                                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                                                                                                                                                                                             \
                     "wgmma.mma_async.sync.aligned.m64n32k32.s32." TYPE                                                                                                                                                                                                     \
                     ".s8 {%0,%1,%2,%3,%4,%5,%6,%7,"                                                                                                                                                                                                                        \
                     "%8,%9,%10,%11,%12,%13,%14,%15}, "                                                                                                                                                                                                                     \
                     "{%16,%17,%18,%19}, %20, p;\n}"                                                                                                                                                                                                                        \
                     : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]),                                                                                                                                                                           \
                     "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]),                                                                                                                                                                             \
                     "+r"(d[2][2]), "+r"(d[2][3]), "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]),                                                                                                                                                                             \
                     "+r"(d[3][3])                                                                                                                                                                                                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                                                                                                                                                                 \
    }                                                                                                                                                                                                                                                                       \
    __device__ __forceinline__ void NAME(int(&d)[8][4], const uint32_t(&a)[4], uint64_t b) {                                                                                                                                                                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                                                                                                                                                                                             \
                     "wgmma.mma_async.sync.aligned.m64n64k32.s32." TYPE                                                                                                                                                                                                     \
                     ".s8 {%0,%1,%2,%3,%4,%5,%6,%7,"                                                                                                                                                                                                                        \
                     "%8,%9,%10,%11,%12,%13,%14,%15,"                                                                                                                                                                                                                       \
                     "%16,%17,%18,%19,%20,%21,%22,%23,"                                                                                                                                                                                                                     \
                     "%24,%25,%26,%27,%28,%29,%30,%31}, "                                                                                                                                                                                                                   \
                     "{%32,%33,%34,%35}, %36, p;\n}"                                                                                                                                                                                                                        \
                     : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]),                                                                                                                                                                           \
                     "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]),                                                                                                                                                                             \
                     "+r"(d[2][2]), "+r"(d[2][3]), "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]),                                                                                                                                                                             \
                     "+r"(d[3][3]), "+r"(d[4][0]), "+r"(d[4][1]), "+r"(d[4][2]), "+r"(d[4][3]),                                                                                                                                                                             \
                     "+r"(d[5][0]), "+r"(d[5][1]), "+r"(d[5][2]), "+r"(d[5][3]), "+r"(d[6][0]),                                                                                                                                                                             \
                     "+r"(d[6][1]), "+r"(d[6][2]), "+r"(d[6][3]), "+r"(d[7][0]), "+r"(d[7][1]),                                                                                                                                                                             \
                     "+r"(d[7][2]), "+r"(d[7][3])                                                                                                                                                                                                                           \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                                                                                                                                                                 \
    }                                                                                                                                                                                                                                                                       \
    __device__ __forceinline__ void NAME(int(&d)[12][4], const uint32_t(&a)[4], uint64_t b) {                                                                                                                                                                               \
        asm volatile(                                                                                                                                                                                                                                                       \
            "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                                                                                                                                                                                                      \
            "wgmma.mma_async.sync.aligned.m64n96k32.s32." TYPE                                                                                                                                                                                                              \
            ".s8 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "                                                                 \
            "{%48,%49,%50,%51}, %52, p;\n}"                                                                                                                                                                                                                                 \
            : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]),                                                                                                                                                                                    \
            "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]),                                                                                                                                                                                      \
            "+r"(d[2][2]), "+r"(d[2][3]), "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]),                                                                                                                                                                                      \
            "+r"(d[3][3]), "+r"(d[4][0]), "+r"(d[4][1]), "+r"(d[4][2]), "+r"(d[4][3]),                                                                                                                                                                                      \
            "+r"(d[5][0]), "+r"(d[5][1]), "+r"(d[5][2]), "+r"(d[5][3]), "+r"(d[6][0]),                                                                                                                                                                                      \
            "+r"(d[6][1]), "+r"(d[6][2]), "+r"(d[6][3]), "+r"(d[7][0]), "+r"(d[7][1]),                                                                                                                                                                                      \
            "+r"(d[7][2]), "+r"(d[7][3]), "+r"(d[8][0]), "+r"(d[8][1]), "+r"(d[8][2]),                                                                                                                                                                                      \
            "+r"(d[8][3]), "+r"(d[9][0]), "+r"(d[9][1]), "+r"(d[9][2]), "+r"(d[9][3]),                                                                                                                                                                                      \
            "+r"(d[10][0]), "+r"(d[10][1]), "+r"(d[10][2]), "+r"(d[10][3]), "+r"(d[11][0]),                                                                                                                                                                                 \
            "+r"(d[11][1]), "+r"(d[11][2]), "+r"(d[11][3])                                                                                                                                                                                                                  \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                                                                                                                                                                          \
    }                                                                                                                                                                                                                                                                       \
    __device__ __forceinline__ void NAME(int(&d)[16][4], const uint32_t(&a)[4], uint64_t b) {                                                                                                                                                                               \
        asm volatile(                                                                                                                                                                                                                                                       \
            "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                                                                                                                                                                                                      \
            "wgmma.mma_async.sync.aligned.m64n128k32.s32." TYPE                                                                                                                                                                                                             \
            ".s8 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, " \
            "{%64,%65,%66,%67}, %68, p;\n}"                                                                                                                                                                                                                                 \
            : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]),                                                                                                                                                                                    \
            "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]),                                                                                                                                                                                      \
            "+r"(d[2][2]), "+r"(d[2][3]), "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]),                                                                                                                                                                                      \
            "+r"(d[3][3]), "+r"(d[4][0]), "+r"(d[4][1]), "+r"(d[4][2]), "+r"(d[4][3]),                                                                                                                                                                                      \
            "+r"(d[5][0]), "+r"(d[5][1]), "+r"(d[5][2]), "+r"(d[5][3]), "+r"(d[6][0]),                                                                                                                                                                                      \
            "+r"(d[6][1]), "+r"(d[6][2]), "+r"(d[6][3]), "+r"(d[7][0]), "+r"(d[7][1]),                                                                                                                                                                                      \
            "+r"(d[7][2]), "+r"(d[7][3]), "+r"(d[8][0]), "+r"(d[8][1]), "+r"(d[8][2]),                                                                                                                                                                                      \
            "+r"(d[8][3]), "+r"(d[9][0]), "+r"(d[9][1]), "+r"(d[9][2]), "+r"(d[9][3]),                                                                                                                                                                                      \
            "+r"(d[10][0]), "+r"(d[10][1]), "+r"(d[10][2]), "+r"(d[10][3]), "+r"(d[11][0]),                                                                                                                                                                                 \
            "+r"(d[11][1]), "+r"(d[11][2]), "+r"(d[11][3]), "+r"(d[12][0]), "+r"(d[12][1]),                                                                                                                                                                                 \
            "+r"(d[12][2]), "+r"(d[12][3]), "+r"(d[13][0]), "+r"(d[13][1]), "+r"(d[13][2]),                                                                                                                                                                                 \
            "+r"(d[13][3]), "+r"(d[14][0]), "+r"(d[14][1]), "+r"(d[14][2]), "+r"(d[14][3]),                                                                                                                                                                                 \
            "+r"(d[15][0]), "+r"(d[15][1]), "+r"(d[15][2]), "+r"(d[15][3])                                                                                                                                                                                                  \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                                                                                                                                                                          \
    }
PTX_WGMMA_FORMS(ptx_wgmma_s8s8, "s8")
PTX_WGMMA_FORMS(ptx_wgmma_u8s8, "u8")
#undef PTX_WGMMA_FORMS
/* Makes this thread's stores to shared memory visible to products that read it. */
__device__ __forceinline__ void ptx_wgmma_fence_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* A matrix in shared memory for the bf16 products below: rows of 128 bytes whose unit i of 16 bytes lies at i ^ row % 8;
 * eight rows are 1,024 bytes and so aligned. Uniform over the warp. 32 bytes further on are the next 16 of a row. */
__device__ __forceinline__ uint32_t ptx_wgmma_rows(uint32_t address) {
    return __shfl_sync(~0u, address >> 4 | 1u << 16, 0);
}
/* Sums d[j * 4 + i] of row 16 (warp) + lane / 4 + 8 (i / 2) and column 8 j + 2 (lane % 4) + i % 2.
 * d[64 x 48] += a[64 x 16] . b[48 x 16]^T, both in shared memory. */
__device__ __forceinline__ void ptx_wgmma_bf16(float (&d)[24], uint32_t a, uint32_t b) {
    asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, 1, 0;\n"
                 "mov.b64 a, {%24, 0x40000040};\nmov.b64 b, {%25, 0x40000040};\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,"
                 "%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, "
                 "a, b, p, 1, 1, 0, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
                 : "r"(a), "r"(b));
}
/* d[64 x 32] += a[64 x 16] (registers as in ptx_mma_bf16, 16 rows a warp) . b[32 x 16]^T (shared memory). */
__device__ __forceinline__ void ptx_wgmma_bf16(float (&d)[16], const uint32_t (&a)[4], uint32_t b) {
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, 1, 0;\n"
                 "mov.b64 b, {%20, 0x40000040};\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,"
                 "%8,%9,%10,%11,%12,%13,%14,%15}, "
                 "{%16,%17,%18,%19}, b, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
/* The first of a sum in integers: d = a . b, whatever d was. */
__device__ __forceinline__ void ptx_wgmma_s8s8_first(
    int (&d)[4][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
        "{%16,%17,%18,%19}, %20, p;\n}"
        : "=r"(d[0][0]), "=r"(d[0][1]), "=r"(d[0][2]), "=r"(d[0][3]), "=r"(d[1][0]), "=r"(d[1][1]),
        "=r"(d[1][2]), "=r"(d[1][3]), "=r"(d[2][0]), "=r"(d[2][1]), "=r"(d[2][2]), "=r"(d[2][3]),
        "=r"(d[3][0]), "=r"(d[3][1]), "=r"(d[3][2]), "=r"(d[3][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void ptx_wgmma_s8s8_first(
    int (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, %36, p;\n}"
        : "=r"(d[0][0]), "=r"(d[0][1]), "=r"(d[0][2]), "=r"(d[0][3]), "=r"(d[1][0]), "=r"(d[1][1]),
        "=r"(d[1][2]), "=r"(d[1][3]), "=r"(d[2][0]), "=r"(d[2][1]), "=r"(d[2][2]), "=r"(d[2][3]),
        "=r"(d[3][0]), "=r"(d[3][1]), "=r"(d[3][2]), "=r"(d[3][3]), "=r"(d[4][0]), "=r"(d[4][1]),
        "=r"(d[4][2]), "=r"(d[4][3]), "=r"(d[5][0]), "=r"(d[5][1]), "=r"(d[5][2]), "=r"(d[5][3]),
        "=r"(d[6][0]), "=r"(d[6][1]), "=r"(d[6][2]), "=r"(d[6][3]), "=r"(d[7][0]), "=r"(d[7][1]),
        "=r"(d[7][2]), "=r"(d[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif

/* CTAs of this CTA's cluster; all of its threads meet and see each other's shared memory. */
__device__ __forceinline__ uint32_t ptx_cluster_size() {
    uint32_t n;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
    return n;
}
__device__ __forceinline__ void ptx_cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
/* The same variable of shared memory in CTA rank of the cluster. */
template <typename T> __device__ __forceinline__ const T *ptx_cluster_at(const T *mine, int rank) {
    const T *there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(mine), "r"(rank));
    return there;
}
/* 16 bytes of shared memory of CTA rank of the cluster, at an address of this CTA's. */
__device__ __forceinline__ int4 ptx_load_cluster_16(uint32_t address, int rank) {
    int4 v;
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.s32 {%0,%1,%2,%3}, [there];\n}"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address), "r"(rank)
                 : "memory");
    return v;
}
/* Adds to an integer in the shared memory of CTA rank of the cluster, at an address of this CTA's. */
__device__ __forceinline__ void ptx_add_cluster(uint32_t address, int rank, int v) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "red.relaxed.cluster.shared::cluster.add.s32 [there], %2;\n}" ::"r"(address),
                 "r"(rank), "r"(v)
                 : "memory");
}
/* Stores two integers there. */
__device__ __forceinline__ void ptx_store_cluster_8(uint32_t address, int rank, int2 v) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.v2.s32 [there], {%2,%3};\n}" ::"r"(address),
                 "r"(rank), "r"(v.x), "r"(v.y)
                 : "memory");
}

/* Two E4M3 codes in the low half of c as fp16 values, the lower one first. */
__device__ __forceinline__ uint32_t ptx_e4m3_pair(uint32_t c) {
    uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((uint16_t)c));
    return r;
}
/* Byte i of the result: byte (places >> 4 i & 7) of the eight bytes low, high; bit 3 there spreads its sign. */
__device__ __forceinline__ uint32_t ptx_permute(uint32_t low, uint32_t high, uint32_t places) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(places));
    return r;
}
/* Two products of bf16. */
__device__ __forceinline__ uint32_t ptx_multiply_bf16(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
/* The same two, but kept where they stand: work between products of the tensor cores. */
__device__ __forceinline__ uint32_t ptx_permute_here(uint32_t low, uint32_t high, uint32_t places) {
    uint32_t r;
    asm volatile("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(places));
    return r;
}
__device__ __forceinline__ uint32_t ptx_multiply_bf16_here(uint32_t a, uint32_t b) {
    uint32_t r;
    asm volatile("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
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
/* Bytes of all ones where the codes (four bits) in the low half of c have their upper bit set, else zero. */
__device__ __forceinline__ uint32_t ptx_spread_signs(uint32_t c) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, 0xd9c8;" : "=r"(r) : "r"(c << 4), "r"(c));
    return r;
}
/* The larger one; NaN if either is. */
__device__ __forceinline__ float ptx_max_nan(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
/* Upper half of v moved down, zero extended; kept as a byte permute so that it uses the ALU pipe once. */
__device__ __forceinline__ uint32_t ptx_high_half(uint32_t v) {
    uint32_t r;
    asm("prmt.b32 %0, %1, 0, 0x4432;" : "=r"(r) : "r"(v));
    return r;
}

#endif
