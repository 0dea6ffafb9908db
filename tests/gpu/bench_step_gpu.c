/* Steps of a model of the released size with made-up weights on one GPU: one rank of --world ranks
 * without its exchanges, or with them: bench_step_gpu WORLD POOL_GIB RANK PORT on every GPU of this
 * machine. SYNTHETIC_CHUNK: rows of a prompt step. Prefill, decoding, verify windows, several streams, long contexts; medians
 * and spread in milliseconds. Not a test: nothing is checked but that steps succeed and logits are
 * finite. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/dist/exchange_peer.h"
#include "engine/model/model.h"
#include "engine/model/record.h"
#include "tests/gpu/gpu_backend.h"
#include "tests/gpu/synthetic_model.h"

enum { MAX_CHUNK = 8192, SLOTS = 4, REPEATS = 15, VERIFY_ROWS = 6 };

static model *m;
static model_info info;
static int32_t tokens[MAX_CHUNK];
static int chunk = 2048; /* rows of a prompt step */
static int n_bad;        /* logit rows that were not finite */
static bool has_lists;   /* rows come as short lists, as samplers ask for them */

static void stop(const char *what, const err *e) {
    printf("%s: %s\n", what, e->msg);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool has_reported;

/* Names the first value that is not finite. */
static void find_bad(void *user, const tap_data *t) {
    (void)user;
    for (int r = 0; r < t->n_rows && t->type == TAP_F32 && !has_reported; r++) {
        for (int c = 0; c < t->n_cols; c++) {
            float v = ((const float *)t->data)[(size_t)r * t->stride + (size_t)c];
            if (v - v == 0.0f || strcmp(t->name, "index_score") == 0) continue;
            printf("not finite: %s, layer %d, row %d, column %d\n", t->name, t->layer, r, c);
            has_reported = true;
            break;
        }
    }
}

/* One step of n_slots spans of n_rows rows; milliseconds. */
static double step(int n_slots, int n_rows, plan_kind kind, plan_logits logits) {
    static shortlist_ask asks[SLOTS * VERIFY_ROWS];
    plan_span spans[SLOTS];
    step_result out;
    err e = ERR_INIT;
    for (int s = 0; s < n_slots; s++) {
        spans[s] = (plan_span){.slot = s,
            .n_rows = n_rows,
            .pos = model_slot_len(m, s),
            .tokens = tokens + s * 7,
            .logits = (uint8_t)logits,
            .kind = (uint8_t)kind};
    }
    for (int i = 0; i < SLOTS * VERIFY_ROWS; i++) {
        asks[i] = (shortlist_ask){.seed = 1, .position = i, .inverse = 1, .has_noise = i % 2};
    }
    batch_plan plan = {.id = 1, .n_spans = n_slots, .spans = spans, .asks = asks};
    plan.form = has_lists ? PLAN_FORM_LISTED : PLAN_FORM_WHOLE;
    uint64_t start = clock_mono_ns();
    if (model_step(m, &plan, &out, &e) != OK) stop("step", &e);
    double ms = (double)(clock_mono_ns() - start) / 1e6;
    for (int i = 0; i < out.n_logit_rows; i++) {
        n_bad += !out.is_finite[i];
    }
    return ms;
}

static void report(const char *what, double *ms, int n) {
    qsort(ms, (size_t)n, sizeof(*ms), by_value);
    printf("%-44s %8.3f ms [%.3f .. %.3f]", what, ms[n / 2], ms[0], ms[n - 1]);
    printf(n_bad > 0 ? "  %d rows NOT FINITE\n" : "\n", n_bad);
    n_bad = 0;
    fflush(stdout);
}

/* Steps that end where they began. */
static void bench_rows(const char *what, int n_slots, int n_rows) {
    double ms[REPEATS];
    err e = ERR_INIT;
    plan_kind kind = n_rows > 1 ? PLAN_VERIFY : PLAN_DECODE;
    for (int i = -4; i < REPEATS; i++) {
        double t = step(n_slots, n_rows, kind, PLAN_LOGITS_ALL);
        if (i >= 0) ms[i] = t;
        for (int s = 0; s < n_slots && kind == PLAN_VERIFY; s++) {
            if (model_commit(m, s, model_slot_len(m, s) - n_rows + 2, &e) != OK) stop("commit", &e);
        }
    }
    report(what, ms, REPEATS);
}

static void give_pages(int slot, int first, int64_t n_tokens) {
    int n = (int)((n_tokens + info.page_tokens - 1) / info.page_tokens);
    int32_t *pages = mem_array((size_t)n, sizeof(*pages));
    err e = ERR_INIT;
    for (int i = 0; i < n; i++)
        pages[i] = first + i;
    model_slot_reset(m, slot);
    if (model_slot_pages(m, slot, pages, n, &e) != OK) stop("pages", &e);
    mem_free(pages);
}

/* A slot at a length that was never computed: state of zeros, stale pages. */
static void pretend_length(int slot, int64_t len) {
    struct head {
        uint32_t magic, version;
        uint64_t layout;
        int64_t len;
    } head;
    uint8_t *blob = mem_alloc(info.snapshot_bytes);
    err e = ERR_INIT;
    if (model_slot_save(m, slot, blob, info.snapshot_bytes, &e) != OK) stop("snapshot", &e);
    memcpy(&head, blob, sizeof(head));
    head.len = len;
    memcpy(blob, &head, sizeof(head));
    if (model_slot_load(m, slot, blob, info.snapshot_bytes, &e) != OK) stop("snapshot", &e);
    mem_free(blob);
}

static void bench_prefill(int n_chunks, const char *title) {
    double all = 0;
    for (int i = 0; i < n_chunks; i++) {
        double ms =
            step(1, chunk, PLAN_PROMPT, i + 1 == n_chunks ? PLAN_LOGITS_LAST : PLAN_LOGITS_NONE);
        printf("%s chunk %d of %d tokens: %.2f ms, %.0f tokens/s\n", title, i, chunk, ms,
            chunk / ms * 1e3);
        fflush(stdout);
        if (i > 0) all += ms;
    }
    if (n_chunks > 1) printf("%s: %.0f tokens/s\n", title, (n_chunks - 1) * chunk / all * 1e3);
}

static void bench_draft(void) {
    double ms[REPEATS];
    err e = ERR_INIT;
    draft_request r = {.slot = 0, .token = 5};
    draft_result out;
    for (int i = -3; i < REPEATS; i++) {
        uint64_t start = clock_mono_ns();
        if (model_draft(m, &r, 1, NULL, NULL, &out, &e) != OK) stop("draft", &e);
        if (i >= 0) ms[i] = (double)(clock_mono_ns() - start) / 1e6;
    }
    report("draft block of 5 rows", ms, REPEATS);
}

/* Ranks of two processes, brought together on a port of this machine; over NCCL if SYNTHETIC_NCCL is
 * set. */
static exchange *open_ranks(int world, int rank, int port) {
    exchange_tcp_options o = {
        .rank = rank, .world = world, .port = port, .listen_fd = -1, .secret = {1}, .identity = 1};
    exchange *control = NULL, *x = NULL;
    err e = ERR_INIT;
    if (cudaSetDevice(rank) != cudaSuccess) stop("choosing a GPU", &e);
    if (exchange_tcp_open(&o, &control, &e) != OK) stop("control connection", &e);
    exchange_kind kind = getenv("SYNTHETIC_NCCL") != NULL ? EXCHANGE_NCCL : EXCHANGE_AUTO;
    if (exchange_gpu_open(control, kind, &x, &e) != OK) stop("exchange of the ranks", &e);
    printf("exchange: %s\n", exchange_gpu_name(x));
    return x;
}

static void open_model(const char *dir, int world, exchange *x) {
    err e = ERR_INIT;
    int32_t *classes = mem_array(129280, sizeof(*classes));
    for (int i = 0; i < 129280; i++)
        classes[i] = i % 99092;
    model_options o = {.dir = dir,
        .backend = "cuda-synthetic",
        .world = world,
        .rank = x == NULL ? 0 : exchange_rank(x),
        .exchange = x,
        .n_slots = SLOTS,
        .max_rows = chunk,
        .n_pages = 16384,
        .store = synthetic_store(2, 256),
        .token_class = classes};
    uint64_t start = clock_mono_ns();
    if (model_open(&o, &m, &e) != OK) stop("open", &e);
    model_get_info(m, &info);
    printf("opened in %.1f s; weights %.1f GiB, scratch %.2f GiB, pages %.2f GiB\n",
        (double)(clock_mono_ns() - start) / 1e9, (double)info.memory.weight_bytes / 0x1p30,
        (double)info.memory.scratch_bytes / 0x1p30, (double)info.memory.pages_bytes / 0x1p30);
    mem_free(classes);
    size_t before = 0, after = 0, all = 0;
    (void)cudaMemGetInfo(&before, &all);
    start = clock_mono_ns();
    if (model_record_steps(m, &e) != OK) stop("recording", &e);
    (void)cudaMemGetInfo(&after, &all);
    printf("steps recorded in %.2f s, %.0f MiB\n", (double)(clock_mono_ns() - start) / 1e9,
        (double)(before - after) / 0x1p20);
}

static void bench_contexts(void) {
    static const int64_t lengths[] = {8192, 131072, 1048000};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        char what[64];
        give_pages(0, 0, lengths[i] + 512);
        pretend_length(0, lengths[i]);
        snprintf(what, sizeof(what), "one row at context %lld", (long long)lengths[i]);
        bench_rows(what, 1, 1);
        snprintf(what, sizeof(what), "six rows at context %lld", (long long)lengths[i]);
        bench_rows(what, 1, VERIFY_ROWS);
    }
}

/* For a profiler, after a prompt chunk: n_rows rows between its start and stop. */
static void profile_step(int n_rows) {
    (void)step(1, chunk, PLAN_PROMPT, PLAN_LOGITS_LAST);
    (void)cudaProfilerStart();
    (void)step(1, n_rows, PLAN_PROMPT, PLAN_LOGITS_LAST);
    (void)cudaProfilerStop();
}

/* Rows with a tap, which lets nothing be held back, and without: the same bits. */
static void check_tapped(int n_rows) {
    size_t n = (size_t)n_rows * (size_t)info.config->n_vocab;
    float *logits[2] = {mem_array(n, sizeof(float)), mem_array(n, sizeof(float))};
    err e = ERR_INIT;
    for (int i = 0; i < 2; i++) {
        model_set_tap(m, i == 0 ? find_bad : NULL, NULL);
        int64_t len = model_slot_len(m, 0);
        plan_span span = {.n_rows = n_rows,
            .pos = len,
            .tokens = tokens,
            .logits = PLAN_LOGITS_ALL,
            .kind = PLAN_VERIFY};
        batch_plan plan = {.id = 1, .n_spans = 1, .spans = &span};
        step_result out;
        if (model_step(m, &plan, &out, &e) != OK) stop("step", &e);
        memcpy(logits[i], out.logits, n * sizeof(float));
        if (model_commit(m, 0, len, &e) != OK) stop("commit", &e);
    }
    model_set_tap(m, NULL, NULL);
    size_t n_other = 0;
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        n_other += memcmp(&logits[0][i], &logits[1][i], sizeof(float)) != 0;
        double d = (double)logits[0][i] - (double)logits[1][i];
        worst = d > worst ? d : -d > worst ? -d : worst;
    }
    printf("%d rows with and without a tap: %zu of %zu logits differ, by %.3g at most\n", n_rows,
        n_other, n, worst);
    mem_free(logits[0]);
    mem_free(logits[1]);
}

/* What a change of kernels shows first: a chunk, one row, six rows, four streams. */
static void bench_short(void) {
    bench_prefill(2, "prefill");
    check_tapped(1);
    check_tapped(VERIFY_ROWS);
    bench_rows("one row", 1, 1);
    bench_rows("six rows", 1, VERIFY_ROWS);
    has_lists = true;
    bench_rows("one row, listed", 1, 1);
    bench_rows("six rows, listed", 1, VERIFY_ROWS);
    has_lists = false;
    for (int s = 1; s < SLOTS; s++) {
        give_pages(s, s * 256, 16384);
        pretend_length(s, 4096);
    }
    bench_rows("four streams, one row each", SLOTS, 1);
}

/* Decoding, verify windows, drafts, streams, contexts, a prompt far on. */
static void bench_long(void) {
    bench_rows("one row", 1, 1);
    bench_rows("six rows", 1, VERIFY_ROWS);
    model_set_tap(m, find_bad, NULL);
    (void)step(1, VERIFY_ROWS, PLAN_PROMPT, PLAN_LOGITS_ALL);
    model_set_tap(m, NULL, NULL);
    bench_draft();
    for (int s = 1; s < SLOTS; s++) {
        give_pages(s, s * 256, 16384);
        pretend_length(s, 4096);
    }
    model_set_tap(m, find_bad, NULL);
    (void)step(SLOTS, 1, PLAN_PROMPT, PLAN_LOGITS_ALL);
    model_set_tap(m, NULL, NULL);
    bench_rows("four streams, one row each", SLOTS, 1);
    bench_rows("four streams, four rows each", SLOTS, 4);
    bench_contexts();
    give_pages(0, 0, 16384);
    pretend_length(0, 8192);
    (void)step(1, 2, PLAN_PROMPT, PLAN_LOGITS_LAST);
    synthetic_profile_start();
    (void)step(1, 3, PLAN_PROMPT, PLAN_LOGITS_LAST);
    synthetic_profile_stop("three rows");
    give_pages(0, 0, 262144);
    pretend_length(0, 131072);
    bench_prefill(2, "prefill at 131072");
}

int main(int argc, char **argv) {
    char dir[] = "/tmp/tandem-synthetic-XXXXXX";
    int world = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2;
    size_t pool_bytes = argc > 2 ? (size_t)strtoull(argv[2], NULL, 10) << 30 : (size_t)90 << 30;
    err e = ERR_INIT;
    if (!gpu_backend_use()) return 77;
    const char *rows = getenv("SYNTHETIC_CHUNK");
    if (rows != NULL) chunk = (int)strtol(rows, NULL, 10);
    if (chunk < 16 || chunk > MAX_CHUNK) return 2;
    int rank = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0;
    exchange *x = world == 1 ? NULL
                  : argc > 4 ? open_ranks(world, rank, (int)strtol(argv[4], NULL, 10))
                             : synthetic_exchange(world);
    const kernels *table = synthetic_kernels(pool_bytes);
    if (table == NULL || mkdtemp(dir) == NULL) {
        printf("no device memory for the pool, or no folder\n");
        return 1;
    }
    kernels_add(table);
    if (synthetic_folder_make(dir, &e) != OK) stop("making the model", &e);
    open_model(dir, world, x);
    for (int i = 0; i < MAX_CHUNK; i++)
        tokens[i] = (int32_t)((i * 7919 + 13) % SYNTHETIC_TOKENS);
    give_pages(0, 0, 16384);
    const char *n_rows = getenv("SYNTHETIC_PROFILE_ROWS");
    if (n_rows != NULL) {
        profile_step((int)strtol(n_rows, NULL, 10));
        return 0;
    }
    if (getenv("SYNTHETIC_SHORT") != NULL) {
        bench_short();
        return 0;
    }
    bench_prefill(chunk <= 2048 ? 4 : 2, "prefill");
    synthetic_profile_start();
    (void)step(1, chunk, PLAN_PROMPT, PLAN_LOGITS_LAST);
    synthetic_profile_stop("a prompt chunk");
    (void)step(1, 1, PLAN_PROMPT, PLAN_LOGITS_LAST);

    bench_long();
    model_close(m);
    (void)dir_remove_all(dir, &e);
    return 0;
}
