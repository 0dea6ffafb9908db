/* The built-in demo model (EXL3) against the greedy answers that the published inference code gives
 * with the unquantized weights: how many texts are equal, by task, and which differ. MODEL=DIR
 * chooses another model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "tests/harness/model_probe.h"
#include "tests/harness/vectors.h"

enum { MAX_TOKENS = 2048, CONTEXT = 2048, MAX_TASKS = 64 };

typedef struct task_count {
    char name[32];
    int n, n_equal;
} task_count;

typedef struct eval {
    model *m;
    model_info info;
    const tokenizer *t;
    task_count tasks[MAX_TASKS];
    int n_tasks, n, n_equal, n_tokens;
} eval;

static int read_ids(const json *list, int32_t *out) {
    int n = 0;
    JSON_EACH(item, list) {
        int64_t v = 0;
        CHECK(json_i64(item, &v) == OK && n < MAX_TOKENS);
        out[n++] = (int32_t)v;
    }
    return n;
}

static int answer(eval *e, const int32_t *prompt, int n_prompt, int most, int32_t *out) {
    int n_vocab = e->info.config->n_vocab, n = 0;
    probe_slot(e->m, 0, 0, CONTEXT);
    const float *logits = NULL;
    for (int at = 0; at < n_prompt; at += e->info.max_rows) {
        int rows = n_prompt - at < e->info.max_rows ? n_prompt - at : e->info.max_rows;
        logits = probe_step(e->m, 0, prompt + at, rows, PLAN_PROMPT) +
                 (size_t)(rows - 1) * (size_t)n_vocab;
    }
    while (n < most) {
        out[n] = probe_argmax(logits, n_vocab);
        if (out[n++] == e->info.config->eos_id) {
            break;
        }
        logits = probe_step(e->m, 0, &out[n - 1], 1, PLAN_DECODE);
    }
    return n;
}

static void text_of(const eval *e, const int32_t *ids, int n, buf *out) {
    buf_reset(out);
    for (int i = 0; i < n; i++) {
        size_t len = 0;
        const char *bytes = tokenizer_bytes(e->t, ids[i], &len);
        if (bytes != NULL) {
            (void)buf_append(out, bytes, len);
        }
    }
}

static task_count *task_of(eval *e, const char *name) {
    for (int i = 0; i < e->n_tasks; i++) {
        if (strcmp(e->tasks[i].name, name) == 0) {
            return &e->tasks[i];
        }
    }
    CHECK(e->n_tasks < MAX_TASKS);
    task_count *t = &e->tasks[e->n_tasks++];
    snprintf(t->name, sizeof(t->name), "%s", name);
    return t;
}

static void run_case(eval *e, const json *row) {
    static int32_t prompt[MAX_TOKENS], want[MAX_TOKENS], got[MAX_TOKENS];
    const json *answers = json_get(row, "qat");
    int n_prompt = read_ids(json_get(row, "ids"), prompt),
        n_want = read_ids(json_get(answers, "ids"), want);
    int n_got = answer(e, prompt, n_prompt, n_want + 24, got);
    buf a = BUF_INIT, b = BUF_INIT;
    text_of(e, want, n_want, &a);
    text_of(e, got, n_got, &b);
    bool is_equal = a.len == b.len && memcmp(buf_cstr(&a), buf_cstr(&b), a.len) == 0;
    task_count *t = task_of(e, json_str(json_get(row, "task")));
    t->n++;
    e->n++;
    e->n_tokens += n_got + n_prompt;
    t->n_equal += is_equal;
    e->n_equal += is_equal;
    if (!is_equal) {
        printf("%s\n  reference: %s\n  here:      %s\n", json_str(json_get(row, "id")),
            buf_cstr(&a), buf_cstr(&b));
    }
    buf_release(&a);
    buf_release(&b);
}

int main(void) {
    static eval e;
    const char *dir = getenv("MODEL");
    char path[1024];
    err er = ERR_INIT;
    tokenizer *t = NULL;
    if (dir == NULL) {
        dir = "templates/demo-model";
    }
    snprintf(path, sizeof(path), "%s/config.json", dir);
    if (!file_exists(path)) {
        printf("demo-eval: %s holds no model\n", dir);
        return 0;
    }
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    if (tokenizer_open(path, &t, &er) != OK) {
        printf("%s\n", er.msg);
        return 1;
    }
    model_options o = {.dir = dir,
        .max_rows = 256,
        .max_logit_rows = 256,
        .max_context = CONTEXT,
        .without_drafts = true};
    e.t = t;
    e.m = probe_open(&o);
    model_get_info(e.m, &e.info);
    json *all = vectors_load(vectors_golden_dir(), "demo/answers.json");
    uint64_t start = clock_mono_ns();
    JSON_EACH(row, json_get(all, "cases")) {
        run_case(&e, row);
    }
    double seconds = (double)(clock_mono_ns() - start) / 1e9;
    for (int i = 0; i < e.n_tasks; i++) {
        printf("%-12s %d of %d\n", e.tasks[i].name, e.tasks[i].n_equal, e.tasks[i].n);
    }
    printf("demo-eval %s: %d of %d texts equal the reference (%.1f %%), %d tokens in %.1f s\n", dir,
        e.n_equal, e.n, 100.0 * e.n_equal / (e.n > 0 ? e.n : 1), e.n_tokens, seconds);
    json_free(all);
    model_close(e.m);
    tokenizer_close(t);
    return 0;
}
