/* The built-in demo model from embedding to logits: the CUDA back end against the CPU's (with exact
 * cache rows: a code of a packed row that falls on the other side of a tie moves everything behind
 * it), and against itself with a tap set. A tap reads every value between operators, so nothing is held back and no
 * operators share a launch: the bits must be the same either way, for prompt chunks of any size and
 * for recorded steps. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/model.h"
#include "engine/model/rank_pack.h"
#include "engine/model/record.h"
#include "kernels/kernels.h"
#include "tests/gpu/gpu_backend.h"
#include "tests/harness/model_probe.h"
#include "tests/harness/vectors.h"

enum { PROMPT = 75, DECODED = 8, VERIFY = 5, CONTEXT = 256 };

typedef struct whole_run {
    const char *backend, *pack;
    int chunk; /* rows of a prompt step */
    bool has_tap, has_exact_kv, records;
    int n_vocab, n_rows;
    float *logits; /* [n_rows][n_vocab] */
} whole_run;

static int32_t tokens[PROMPT + DECODED + VERIFY];
static size_t n_tapped;

static void count_tap(void *user, const tap_data *t) {
    (void)user;
    n_tapped += (size_t)t->n_rows;
}

static void keep(whole_run *r, const float *rows, int n) {
    size_t width = (size_t)r->n_vocab;
    memcpy(r->logits + (size_t)r->n_rows * width, rows, (size_t)n * width * sizeof(float));
    r->n_rows += n;
}

/* The same tokens every time: a prompt in chunks, single rows (recorded from the second on), and a
 * verify window. */
static void run(whole_run *r) {
    model_options o = {.dir = "templates/demo-model",
        .backend = r->backend,
        .pack = r->pack,
        .n_threads = 2,
        .max_rows = 128,
        .max_context = CONTEXT,
        .has_exact_kv = r->has_exact_kv,
        .max_logit_rows = 128};
    model *m = probe_open(&o);
    model_info info;
    model_get_info(m, &info);
    r->n_vocab = info.config->n_vocab;
    r->logits = mem_array((size_t)(PROMPT + DECODED + VERIFY) * (size_t)r->n_vocab, sizeof(float));
    for (int i = 0; i < PROMPT + DECODED + VERIFY; i++)
        tokens[i] = (i * 131 + 7) % r->n_vocab;
    err e = ERR_INIT;
    CHECK(!r->records || model_record_steps(m, &e) == OK);
    if (r->has_tap) model_set_tap(m, count_tap, NULL);
    probe_slot(m, 0, 0, CONTEXT);
    for (int at = 0; at < PROMPT; at += r->chunk) {
        int n = PROMPT - at < r->chunk ? PROMPT - at : r->chunk;
        keep(r, probe_step(m, 0, tokens + at, n, PLAN_PROMPT), n);
    }
    for (int i = 0; i < DECODED; i++)
        keep(r, probe_step(m, 0, tokens + PROMPT + i, 1, PLAN_DECODE), 1);
    keep(r, probe_step(m, 0, tokens + PROMPT + DECODED, VERIFY, PLAN_VERIFY), VERIFY);
    model_close(m);
}

static void check_bits(vectors *v, const char *what, const whole_run *a, const whole_run *b) {
    char got[80] = "";
    size_t n = (size_t)a->n_rows * (size_t)a->n_vocab;
    for (size_t i = 0; i < n && got[0] == '\0'; i++) {
        if (memcmp(&a->logits[i], &b->logits[i], sizeof(float)) == 0) continue;
        snprintf(got, sizeof(got), "row %zu, logit %zu: %.9g and %.9g", i / (size_t)a->n_vocab,
            i % (size_t)a->n_vocab, (double)a->logits[i], (double)b->logits[i]);
    }
    if (got[0] == '\0') {
        vectors_pass(v);
    } else {
        vectors_fail(v, what, "equal bits", got);
    }
}

static void check_near(vectors *v, const char *what, const whole_run *a, const whole_run *b) {
    double worst = 0, size = 0;
    int n_same = 0;
    char got[96];
    for (int r = 0; r < a->n_rows; r++) {
        const float *x = a->logits + (size_t)r * (size_t)a->n_vocab,
                    *y = b->logits + (size_t)r * (size_t)a->n_vocab;
        for (int i = 0; i < a->n_vocab; i++) {
            double d = fabs((double)x[i] - (double)y[i]);
            if (!(d <= worst)) worst = d;
            size += (double)y[i] * (double)y[i];
        }
        n_same += probe_argmax(x, a->n_vocab) == probe_argmax(y, a->n_vocab);
    }
    worst /= sqrt(size / ((double)a->n_rows * a->n_vocab));
    snprintf(got, sizeof(got), "off by %.3g of the rms, %d of %d rows choose the same", worst,
        n_same, a->n_rows);
    printf("%s: %s\n", what, got);
    if (worst < 0.02 && n_same == a->n_rows) {
        vectors_pass(v);
    } else {
        vectors_fail(v, what, "within 0.02, the same choices", got);
    }
}

/* A rank pack in the order of the GPU's kernels, used where it was read to. */
static void check_pack(vectors *v, const whole_run *plain) {
    char dir[] = "/tmp/tandem-pack-XXXXXX";
    whole_run packed = {.backend = "cuda", .chunk = 75, .pack = dir};
    pack_make_progress progress;
    err e = ERR_INIT;
    CHECK(mkdtemp(dir) != NULL);
    rank_pack_options o = {.model_dir = "templates/demo-model",
        .out_dir = dir,
        .world = 1,
        .layout = EXL3_LAYOUT_GPU,
        .build = "test"};
    if (rank_pack_make(&o, NULL, &progress, &e) == OK) {
        run(&packed);
        check_bits(v, "from a rank pack", &packed, plain);
    } else {
        vectors_fail(v, "rank pack", "made", e.msg);
    }
    (void)dir_remove_all(dir, &e);
}

/* The lists and rows of a step that came as lists, against the whole rows of `want` from row first on. */
static void check_lists(vectors *v, model *m, const step_result *out, const shortlist_ask *asks,
    const float *want, size_t n_vocab) {
    static shortlist plain;
    kernel_context k = {0};
    char got[96];
    for (int i = 0; i < out->n_logit_rows; i++, want += n_vocab) {
        const float *row = NULL;
        err e = ERR_INIT;
        bool is_same = model_logit_row(m, i, &row, &e) == OK &&
                       memcmp(row, want, n_vocab * sizeof(float)) == 0;
        kernels_cpu()->shortlist(&k, &(shortlist_args){want, &asks[i], &plain, 1, (int)n_vocab});
        const shortlist *l = &out->lists[i];
        size_t n = (size_t)plain.n * sizeof(*l->entries);
        bool is_listed = memcmp(l, &plain, offsetof(shortlist, entries)) == 0 &&
                         memcmp(l->entries, plain.entries, n) == 0;
        snprintf(got, sizeof(got), "row %d: %s, %s; token %d, %d tokens, mass %llx", i,
            is_same ? "same" : "another row", is_listed ? "same list" : "another list", l->token,
            l->n, (unsigned long long)l->mass);
        if (is_same && is_listed) {
            vectors_pass(v);
        } else {
            vectors_fail(v, "step that lists its rows", "the rows and lists of whole rows", got);
        }
    }
}

/* The prompt and the verify window again, as a sampler asks for them. */
static void check_listed(vectors *v, const whole_run *plain) {
    model_options o = {.dir = "templates/demo-model",
        .backend = "cuda",
        .max_rows = 128,
        .max_context = CONTEXT,
        .max_logit_rows = 128};
    shortlist_ask asks[PROMPT];
    model *m = probe_open(&o);
    size_t width = (size_t)plain->n_vocab;
    probe_slot(m, 0, 0, CONTEXT);
    for (int i = 0; i < PROMPT; i++)
        asks[i] = (shortlist_ask){.seed = 5, .position = i, .inverse = 1, .has_noise = i % 2};
    for (int turn = 0; turn < 3; turn++) {
        int at = turn == 0 ? 0 : PROMPT + turn - 1, n = turn == 0 ? PROMPT : 1;
        plan_span span = {.n_rows = n,
            .pos = at,
            .tokens = tokens + at,
            .logits = PLAN_LOGITS_ALL,
            .kind = turn == 0 ? PLAN_PROMPT : PLAN_DECODE};
        batch_plan plan = {.id = 1, .n_spans = 1, .spans = &span, .form = PLAN_FORM_LISTED};
        step_result out;
        err e = ERR_INIT;
        plan.asks = asks;
        if (model_step(m, &plan, &out, &e) != OK || out.logits != NULL || out.lists == NULL) {
            vectors_fail(v, "step that lists its rows", "lists and no rows", e.msg);
            break;
        }
        check_lists(v, m, &out, asks, plain->logits + (size_t)at * width, width);
    }
    model_close(m);
}

int main(void) {
    static whole_run cpu = {.backend = "cpu", .chunk = 32, .has_exact_kv = true};
    static whole_run exact = {.backend = "cuda", .chunk = 75, .has_exact_kv = true};
    static whole_run plain = {.backend = "cuda", .chunk = 75},
                     small = {.backend = "cuda", .chunk = 7};
    static whole_run recorded = {.backend = "cuda", .chunk = 75, .records = true};
    static whole_run tapped = {.backend = "cuda", .chunk = 75, .has_tap = true};
    vectors v = {0};
    if (!gpu_backend_use()) return 77;
    run(&cpu);
    run(&exact);
    run(&plain);
    run(&small);
    run(&tapped);
    run(&recorded);
    check_near(&v, "GPU against CPU", &exact, &cpu);
    check_bits(&v, "chunks of 7 and of 75", &small, &plain);
    check_bits(&v, "with and without a tap", &tapped, &plain);
    check_bits(&v, "steps recorded before the first one", &recorded, &plain);
    check_listed(&v, &plain);
    check_pack(&v, &plain);
    if (n_tapped == 0) vectors_fail(&v, "tap", "values", "none");
    return vectors_end(&v);
}
