/* Speed of the model on this machine: prompt and decoding in tokens a second, drafting, opening
 * time, memory. One line a case. MODEL=DIR chooses another model than the built-in one; THREADS=N
 * the number of threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/model/model.h"
#include "tests/harness/model_probe.h"

enum { CONTEXT = 2048, REPEATS = 3 };

static const char *const part_names[STEP_N_PARTS] = {
    "embed", "engram", "attention", "moe", "head", "draft feed", "exchange"};

/* With one thread this is what the work costs even while other programs run. */
static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t resident_kb(void) {
    buf text = BUF_INIT;
    err e = ERR_INIT;
    uint64_t kb = 0;
    if (file_read("/proc/self/status", &text, 1 << 16, &e) == OK) {
        const char *at = strstr(buf_cstr(&text), "VmRSS:");
        if (at != NULL) {
            kb = (uint64_t)strtoull(at + 6, NULL, 10);
        }
    }
    buf_release(&text);
    return kb;
}

static void print_parts(const uint64_t *part, double n_tokens) {
    for (int i = 0; i < STEP_N_PARTS - 1; i++) {
        printf(" %s %.0f", part_names[i], (double)part[i] / 1e3 / n_tokens);
    }
    printf(" us/token\n");
}

/* Best of the repeats; prompts in chunks, logits of the last row only. */
static void bench_prompt(model *m, int n_tokens, int chunk) {
    model_info info;
    uint64_t best = UINT64_MAX, best_cpu = UINT64_MAX, parts[STEP_N_PARTS] = {0};
    int32_t *tokens = mem_array((size_t)n_tokens, sizeof(*tokens));
    model_get_info(m, &info);
    for (int i = 0; i < n_tokens; i++) {
        tokens[i] = 3 + (i * 131 + i * i * 7) % (info.config->n_vocab - 10);
    }
    for (int k = 0; k < REPEATS; k++) {
        uint64_t sum[STEP_N_PARTS] = {0}, start = clock_mono_ns(), cpu = cpu_ns();
        probe_slot(m, 0, 0, CONTEXT);
        for (int at = 0; at < n_tokens; at += chunk) {
            plan_span s = {.slot = 0,
                .n_rows = n_tokens - at < chunk ? n_tokens - at : chunk,
                .pos = at,
                .tokens = tokens + at,
                .kind = PLAN_PROMPT};
            s.logits = at + s.n_rows == n_tokens ? PLAN_LOGITS_LAST : PLAN_LOGITS_NONE;
            batch_plan plan = {.id = 1, .n_spans = 1, .spans = &s};
            step_result out;
            err e = ERR_INIT;
            if (model_step(m, &plan, &out, &e) != OK) {
                printf("%s\n", e.msg);
                exit(1);
            }
            for (int i = 0; i < STEP_N_PARTS; i++) {
                sum[i] += out.part_ns[i];
            }
        }
        uint64_t took = clock_mono_ns() - start;
        cpu = cpu_ns() - cpu;
        best_cpu = cpu < best_cpu ? cpu : best_cpu;
        if (took < best) {
            best = took;
            memcpy(parts, sum, sizeof(sum));
        }
    }
    printf("prompt %4d tokens, chunks of %3d: %7.0f tokens/s, cpu %5.0f us/token |", n_tokens,
        chunk, n_tokens * 1e9 / (double)best, (double)best_cpu / 1e3 / n_tokens);
    print_parts(parts, n_tokens);
    mem_free(tokens);
}

/* Continues the prompt that bench_prompt left in slot 0. */
static void bench_decode(model *m, int n_tokens) {
    model_info info;
    uint64_t best = UINT64_MAX, best_cpu = UINT64_MAX, parts[STEP_N_PARTS] = {0};
    int64_t first = model_slot_len(m, 0);
    model_get_info(m, &info);
    for (int k = 0; k < REPEATS; k++) {
        uint64_t sum[STEP_N_PARTS] = {0}, start = clock_mono_ns(), cpu = cpu_ns();
        for (int i = 0; i < n_tokens; i++) {
            int32_t token = 5 + (i * 37 + k) % (info.config->n_vocab - 10);
            plan_span s = {.slot = 0,
                .n_rows = 1,
                .pos = model_slot_len(m, 0),
                .tokens = &token,
                .logits = PLAN_LOGITS_LAST,
                .kind = PLAN_DECODE};
            batch_plan plan = {.id = 1, .n_spans = 1, .spans = &s};
            step_result out;
            err e = ERR_INIT;
            if (model_step(m, &plan, &out, &e) != OK) {
                printf("%s\n", e.msg);
                exit(1);
            }
            for (int p = 0; p < STEP_N_PARTS; p++) {
                sum[p] += out.part_ns[p];
            }
        }
        uint64_t took = clock_mono_ns() - start;
        cpu = cpu_ns() - cpu;
        best_cpu = cpu < best_cpu ? cpu : best_cpu;
        if (took < best) {
            best = took;
            memcpy(parts, sum, sizeof(sum));
        }
    }
    printf("decode at %4d:                    %7.0f tokens/s, cpu %5.0f us/token |", (int)first,
        n_tokens * 1e9 / (double)best, (double)best_cpu / 1e3 / n_tokens);
    print_parts(parts, n_tokens);
}

static void bench_draft(model *m) {
    uint64_t best = UINT64_MAX;
    for (int k = 0; k < 20; k++) {
        draft_request r = {.slot = 0, .token = 5};
        draft_result out;
        err e = ERR_INIT;
        if (model_draft(m, &r, 1, NULL, NULL, &out, &e) != OK) {
            printf("%s\n", e.msg);
            return;
        }
        best = out.total_ns < best ? out.total_ns : best;
    }
    printf("draft block: %.0f us\n", (double)best / 1e3);
}

static void bench_verify(model *m, int n_rows) {
    int32_t tokens[16] = {5, 6, 7, 8, 9, 10, 11, 12};
    uint64_t best = UINT64_MAX;
    err e = ERR_INIT;
    for (int k = 0; k < 20; k++) {
        int64_t len = model_slot_len(m, 0);
        uint64_t start = clock_mono_ns();
        (void)probe_step(m, 0, tokens, n_rows, PLAN_VERIFY);
        uint64_t took = clock_mono_ns() - start;
        best = took < best ? took : best;
        (void)model_commit(m, 0, len, &e);
    }
    printf("verify window of %d rows: %.0f us\n", n_rows, (double)best / 1e3);
}

int main(void) {
    const char *dir = getenv("MODEL"), *threads = getenv("THREADS");
    int64_t n_threads = 0;
    if (dir == NULL) {
        dir = "templates/demo-model";
    }
    if (threads != NULL) {
        (void)parse_i64(threads, &n_threads);
    }
    char config[1024];
    snprintf(config, sizeof(config), "%s/config.json", dir);
    if (!file_exists(config)) {
        printf("model: %s holds no model\n", dir);
        return 0;
    }
    model_options o = {.dir = dir,
        .n_threads = (int)n_threads,
        .n_slots = 4,
        .max_rows = 256,
        .max_context = CONTEXT};
    uint64_t start = clock_mono_ns();
    model *m = probe_open(&o);
    model_info info;
    model_get_info(m, &info);
    printf("%s: opened in %.0f ms, %d threads, %s, resident %.1f MB\n", dir,
        (double)(clock_mono_ns() - start) / 1e6, info.n_threads, info.arithmetic,
        (double)resident_kb() / 1024);
    bench_prompt(m, 1024, 256);
    bench_prompt(m, 256, 256);
    bench_prompt(m, 64, 64);
    bench_decode(m, 64);
    bench_verify(m, 2);
    bench_verify(m, 6);
    if (info.has_drafts) {
        bench_draft(m);
    }
    printf("resident at the end %.1f MB; plan %.1f MB\n", (double)resident_kb() / 1024,
        (double)info.memory.total_bytes / 1048576);
    model_close(m);
    return 0;
}
