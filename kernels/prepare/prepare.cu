#include "kernels/prepare/prepare_few_kernel.cuh"
#include "kernels/prepare/prepare_many_kernel.cuh"

/* For prompts: rows of hidden states, and short ones with all that may be asked of them. Blocks an SM by
 * measurement on an H200 at 8,192 rows (2026-12-01): more of them spill. */
typedef prepare_many<8, 5> prepare_many_wide;
typedef prepare_many<4, 3> prepare_many_short;
enum { PREPARE_MANY_ROWS = 128, PREPARE_FEW_ROWS = 8 };

static bool is_for_many(const prepare_args *a, const prepare_task *t) {
    if (t->kind == PREPARE_MIX) return true;
    if (t->kind != PREPARE_ROWS || (t->n_operands > 1 && t->y == NULL)) return false;
    for (int q = 0; q < t->n_operands; q++) {
        const int tile_rows = a->operands[t->first_operand + q].tile_rows;
        if (tile_rows == 0 || tile_rows % PREPARE_PAIR != 0) return false;
    }
    return true;
}

/* Whether the launch was made. */
static bool run_many(kernel_context *k, const prepare_args *a, int rows, int n) {
    constexpr int MOST_SHORT = prepare_many_short::WARPS * prepare_many_short::BLOCKS * 128;
    constexpr int MOST_WIDE = prepare_many_wide::WARPS * prepare_many_wide::BLOCKS * 128;
    bool has_mix = false, has_rope = false;
    if (rows < PREPARE_MANY_ROWS || n > MOST_WIDE) return false;
    for (int i = 0; i < a->n_tasks; i++) {
        const prepare_task *t = &a->tasks[i];
        if (!is_for_many(a, t)) return false;
        has_mix = has_mix || t->kind == PREPARE_MIX;
        has_rope = has_rope || t->rope != NULL || t->packed != NULL;
    }
    const unsigned blocks =
        (unsigned)(rows + PREPARE_PAIR - 1) / PREPARE_PAIR * (unsigned)a->n_tasks;
    if (n <= MOST_SHORT) {
        CUDA_RUN(k, "row work", (prepare_many_kernel<prepare_many_short, true, true, 6>), blocks,
            prepare_many_short::WARPS * 32, 0, *a);
    } else if (has_rope) {
        return false;
    } else if (has_mix) {
        CUDA_RUN(k, "row work", (prepare_many_kernel<prepare_many_wide, false, true, 2>), blocks,
            prepare_many_wide::WARPS * 32, 0, *a);
    } else {
        CUDA_RUN(k, "row work", (prepare_many_kernel<prepare_many_wide, false, false, 4>), blocks,
            prepare_many_wide::WARPS * 32, 0, *a);
    }
    return true;
}

/* Whether the form for few rows can do a task: a warp has whole blocks of 128 values, what it holds a second
 * of is not turned or packed, and heads of attention lie side by side in a tile. */
static bool is_for_few(const prepare_args *a, const prepare_task *t) {
    if (t->kind == PREPARE_MIX || t->kind == PREPARE_RING) return true;
    const bool is_short = t->n <= PREPARE_WARPS * 128;
    if (t->n <= 0 || t->n % 128 != 0 || t->n > FEW_BLOCKS * PREPARE_WARPS * 128 || !t->is_wide ||
        t->x_rows != NULL || t->n_operands > 1)
        return false;
    if (t->n_operands > 0 && a->operands[t->first_operand].tile_rows != 0) return false;
    if (t->kind == PREPARE_ATTN &&
        t->first_value / ATTN_SUM_D % ATTN_SUM_GROUP + t->n / ATTN_SUM_D > ATTN_SUM_GROUP)
        return false;
    return is_short || (t->kind == PREPARE_ROWS && t->rope == NULL && t->packed == NULL);
}

/* Whether the launch was made, or failed. */
static bool run_few(kernel_context *k, const prepare_args *a, int rows) {
    int tile_bytes = 0;
    if (rows > PREPARE_FEW_ROWS) return false;
    for (int i = 0; i < a->n_tasks; i++) {
        const prepare_task *t = &a->tasks[i];
        if (!is_for_few(a, t)) return false;
        const int bytes = t->kind == PREPARE_ATTN ? a->attn.max_tiles * t->n * 4 : 0;
        tile_bytes = bytes > tile_bytes ? bytes : tile_bytes;
    }
    const dim3 grid((unsigned)rows, (unsigned)a->n_tasks);
    if (tile_bytes == 0) {
        CUDA_RUN(k, "row work", prepare_few_kernel<false>, grid, PREPARE_THREADS, 0, *a);
        return true;
    }
    /* Where a block has less shared memory, as on sm_121, the other form runs. What is static is rounded up. */
    const int room = cuda_of(k)->shared_bytes - (int)sizeof(few_shared) - 1024;
    if (tile_bytes > room) return false;
    k->rc = cuda_check(&k->error, /* always the same: another context may set it meanwhile */
        cudaFuncSetAttribute(
            prepare_few_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
        "row work");
    if (k->rc != OK) return true;
    CUDA_RUN(
        k, "row work", prepare_few_kernel<true>, grid, PREPARE_THREADS, (size_t)tile_bytes, *a);
    return true;
}

void prepare_run(kernel_context *k, const prepare_args *a) {
    int rows = 0, n = 0;
    if (k->rc != OK) return;
    for (int i = 0; i < a->n_tasks; i++) {
        const prepare_task *t = &a->tasks[i];
        if (t->n < 0 || t->n > EXL3_MAX_IN) {
            k->rc = err_set(&k->error, ERR_LIMIT, "rows of %d values; the GPU engine takes %d",
                t->n, (int)EXL3_MAX_IN);
            return;
        }
        if (t->kind == PREPARE_ATTN &&
            (t->n > PREPARE_HEADS * ATTN_SUM_D || t->n % ATTN_SUM_D != 0 ||
                t->first_value % ATTN_SUM_D != 0)) {
            k->rc = err_set(
                &k->error, ERR_LIMIT, "attention: %d values from %d on", t->n, t->first_value);
            return;
        }
        rows = t->n_rows > rows ? t->n_rows : rows;
        n = t->n > n ? t->n : n;
    }
    if (rows == 0 || run_many(k, a, rows, n)) return;
    if (run_few(k, a, rows)) return;
    const dim3 grid((unsigned)rows, (unsigned)a->n_tasks);
    if (n <= PREPARE_FEW * PREPARE_WARPS * 128) {
        CUDA_RUN(k, "row work", prepare_kernel<PREPARE_FEW>, grid, PREPARE_THREADS, 0, *a);
    } else {
        CUDA_RUN(k, "row work", prepare_kernel<PREPARE_MOST>, grid, PREPARE_THREADS, 0, *a);
    }
}
