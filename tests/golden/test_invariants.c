/* What the engine promises about its own answers, bit for bit: chunking, batching, threads, verify
 * windows and snapshots change nothing; two ranks agree with each other exactly and with one rank
 * closely; and breaking the arithmetic on purpose is noticed. Runs the tiny golden model and, where
 * it is there, the packed demo model. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/dist/meet.h"
#include "engine/model/model.h"
#include "tests/harness/model_probe.h"
#include "tests/harness/sabotage.h"
#include "tests/harness/vectors.h"

enum { N_TOKENS = 120, N_DECODE = 24, PAGES = 8, PAGE_TOKENS = 32 };

typedef struct bench {
    vectors v;
    const char *name; /* of the model */
    char folder[256];
    model *m;
    const model_config *c;
    int32_t tokens[N_TOKENS];
    float *want; /* [N_TOKENS][n_vocab] of the whole prompt in one step */
    bool has_exact_kv;
    exchange *x; /* one of several ranks, which all do the same; NULL: alone */
} bench;

/* For devices: called by the thread of a rank before anything else. */
static void (*rank_begins)(int rank);

static void verdict(bench *b, const char *what, bool is_fine, const char *got) {
    char id[256];
    snprintf(id, sizeof(id), "%s: %s", b->name, what);
    if (is_fine) {
        vectors_pass(&b->v);
    } else {
        vectors_fail(&b->v, id, "the same bits", got);
    }
}

static model_options options_of(const bench *b, int n_threads) {
    return (model_options){.dir = b->folder,
        .rank = b->x != NULL ? exchange_rank(b->x) : 0,
        .world = b->x != NULL ? exchange_world(b->x) : 1,
        .exchange = b->x,
        .n_threads = n_threads,
        .n_slots = 4,
        .max_rows = 160,
        .max_logit_rows = 160,
        .page_tokens = PAGE_TOKENS,
        .n_pages = 4 * PAGES,
        .max_context = PAGES * PAGE_TOKENS,
        .max_rollback = 8,
        .has_exact_kv = b->has_exact_kv};
}

static size_t row_bytes(const bench *b) {
    return (size_t)b->c->n_vocab * sizeof(float);
}

static void fresh_slot(bench *b, int slot) {
    probe_slot(b->m, slot, slot * PAGES, PAGES * PAGE_TOKENS);
}

static void fill_tokens(bench *b) {
    rand_state r;
    rand_init(&r, 7, 1);
    for (int i = 0; i < N_TOKENS; i++) {
        b->tokens[i] = (int32_t)(rand_u32(&r) % (uint32_t)b->c->n_vocab);
    }
    /* Repeated pieces, so that Engram rows and near keys repeat too. */
    memcpy(b->tokens + 60, b->tokens + 10, 20 * sizeof(int32_t));
}

/* ---- chunks, threads ---- */

static bool chunks_equal(bench *b, uint64_t seed, int most) {
    rand_state r;
    rand_init(&r, seed, 1);
    fresh_slot(b, 0);
    bool is_same = true;
    for (int at = 0; at < N_TOKENS;) {
        int n = most == 1 ? 1 : 1 + (int)(rand_u32(&r) % (uint32_t)most);
        if (n > N_TOKENS - at) {
            n = N_TOKENS - at;
        }
        const float *got = probe_step(b->m, 0, b->tokens + at, n, PLAN_PROMPT);
        is_same = is_same && memcmp(got, b->want + (size_t)at * (size_t)b->c->n_vocab,
                                 (size_t)n * row_bytes(b)) == 0;
        at += n;
    }
    return is_same;
}

static void check_chunks(bench *b) {
    verdict(b, "token by token", chunks_equal(b, 1, 1), "other logits");
    verdict(b, "chunks of up to 5", chunks_equal(b, 2, 5), "other logits");
    verdict(b, "chunks of up to 50", chunks_equal(b, 3, 50), "other logits");
}

static void check_threads(bench *b) {
    model *kept = b->m;
    for (int n = 1; n <= 3; n += 2) {
        model_options o = options_of(b, n);
        b->m = probe_open(&o);
        fresh_slot(b, 0);
        const float *got = probe_step(b->m, 0, b->tokens, N_TOKENS, PLAN_PROMPT);
        verdict(b, n == 1 ? "one thread" : "three threads",
            memcmp(got, b->want, N_TOKENS * row_bytes(b)) == 0, "other logits");
        model_close(b->m);
    }
    b->m = kept;
}

/* ---- several streams in one pass ---- */

static bool mixed_step(bench *b, plan_span *spans, const int *from, int n_spans) {
    batch_plan plan = {.id = 5, .n_spans = n_spans, .spans = spans};
    step_result out;
    err e = ERR_INIT;
    for (int i = 0; i < n_spans; i++) {
        spans[i].tokens = b->tokens + from[i];
        spans[i].pos = from[i];
        spans[i].logits = PLAN_LOGITS_ALL;
    }
    if (model_step(b->m, &plan, &out, &e) != OK) {
        printf("mixed step: %s\n", e.msg);
        return false;
    }
    bool is_same = true;
    for (int i = 0; i < n_spans; i++) {
        const float *got = out.logits + (size_t)out.first_logit[i] * (size_t)b->c->n_vocab;
        const float *want = b->want + (size_t)from[i] * (size_t)b->c->n_vocab;
        is_same = is_same && memcmp(got, want, (size_t)spans[i].n_rows * row_bytes(b)) == 0;
    }
    return is_same;
}

/* Four slots run the same tokens at different places: prompt pieces, single rows and windows side by side. */
static void check_batched(bench *b) {
    int at[4] = {0, 0, 0, 0};
    bool is_same = true;
    for (int s = 0; s < 4; s++) {
        fresh_slot(b, s);
        at[s] = s * 17;
        if (at[s] > 0) {
            (void)probe_step(b->m, s, b->tokens, at[s], PLAN_PROMPT);
        }
    }
    for (int round = 0; round < 12; round++) {
        plan_span spans[4];
        int from[4];
        for (int s = 0; s < 4; s++) {
            int n = (s + round) % 3 == 0 ? 1 : (s + round) % 3 == 1 ? 5 : 2;
            spans[s] =
                (plan_span){.slot = s, .n_rows = n, .kind = n == 1 ? PLAN_DECODE : PLAN_PROMPT};
            from[s] = at[s];
            at[s] += n;
        }
        is_same = mixed_step(b, spans, from, 4) && is_same;
    }
    verdict(b, "four streams in one pass", is_same, "other logits than alone");
}

/* ---- verify windows ---- */

typedef struct draft_copy {
    int32_t tokens[16];
    float confidence[16];
} draft_copy;

static draft_copy draft_of(bench *b, int slot, int32_t token) {
    draft_copy d = {0};
    draft_request request = {.slot = slot, .token = token};
    draft_result out;
    err e = ERR_INIT;
    if (model_draft(b->m, &request, 1, NULL, NULL, &out, &e) != OK) {
        printf("draft: %s\n", e.msg);
        return d;
    }
    memcpy(d.tokens, out.tokens, (size_t)out.block * sizeof(int32_t));
    memcpy(d.confidence, out.confidence, (size_t)out.block * sizeof(float));
    return d;
}

/* Windows of the true next tokens and wrong ones after them, of which `accepted` are kept, until the prompt's end. */
static bool windows_equal(bench *b, int accepted, int wrong) {
    bool is_same = true;
    int at = 37;
    fresh_slot(b, 0);
    fresh_slot(b, 1);
    (void)probe_step(b->m, 0, b->tokens, at, PLAN_PROMPT);
    (void)probe_step(b->m, 1, b->tokens, at, PLAN_PROMPT);
    while (at + accepted < N_TOKENS) {
        int32_t window[16];
        for (int i = 0; i < accepted; i++) {
            window[i] = b->tokens[at + i];
        }
        for (int i = 0; i < wrong; i++) {
            window[accepted + i] = (b->tokens[at] + i + 1) % b->c->n_vocab;
        }
        const float *got = probe_step(b->m, 0, window, accepted + wrong, PLAN_VERIFY);
        is_same = is_same && memcmp(got, b->want + (size_t)at * (size_t)b->c->n_vocab,
                                 (size_t)accepted * row_bytes(b)) == 0;
        err e = ERR_INIT;
        is_same = model_commit(b->m, 0, at + accepted, &e) == OK && is_same;
        (void)probe_step(b->m, 1, b->tokens + at, accepted, PLAN_PROMPT);
        at += accepted;
        draft_copy x = draft_of(b, 0, b->tokens[at]), y = draft_of(b, 1, b->tokens[at]);
        is_same = is_same && memcmp(&x, &y, sizeof(x)) == 0;
    }
    return is_same;
}

static void check_windows(bench *b) {
    verdict(b, "verify windows, 1 kept of 4", windows_equal(b, 1, 3), "other logits or drafts");
    verdict(b, "verify windows, 3 kept of 4", windows_equal(b, 3, 1), "other logits or drafts");
    verdict(b, "verify windows, 2 kept of 9", windows_equal(b, 2, 7), "other logits or drafts");
    verdict(b, "verify windows, all 5 kept", windows_equal(b, 5, 0), "other logits or drafts");
}

static void check_truncate(bench *b) {
    err e = ERR_INIT;
    fresh_slot(b, 0);
    int32_t wrong[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)probe_step(b->m, 0, b->tokens, 61, PLAN_PROMPT);
    (void)probe_step(b->m, 0, wrong, 8, PLAN_PROMPT);
    bool is_fine = model_slot_truncate(b->m, 0, 60, &e) == ERR_ARG;
    is_fine = model_slot_truncate(b->m, 0, 61, &e) == OK && is_fine;
    const float *got = probe_step(b->m, 0, b->tokens + 61, N_TOKENS - 61, PLAN_PROMPT);
    is_fine = is_fine && memcmp(got, b->want + 61 * (size_t)b->c->n_vocab,
                             (N_TOKENS - 61) * row_bytes(b)) == 0;
    verdict(b, "rollback of eight positions", is_fine, "other logits, or more was allowed");
}

/* ---- snapshots ---- */

static bool snapshot_equal(bench *b, int len) {
    model_info info;
    err e = ERR_INIT;
    model_get_info(b->m, &info);
    void *blob = mem_alloc(info.snapshot_bytes), *page = mem_alloc(info.page_bytes);
    fresh_slot(b, 0);
    (void)probe_step(b->m, 0, b->tokens, len, PLAN_PROMPT);
    bool is_fine = model_slot_save(b->m, 0, blob, info.snapshot_bytes, &e) == OK;
    for (int p = 0; p < PAGES; p++) {
        is_fine = is_fine && model_page_read(b->m, p, page, &e) == OK;
        is_fine = is_fine && model_page_write(b->m, 2 * PAGES + p, page, &e) == OK;
    }
    fresh_slot(b, 2);
    is_fine = is_fine && model_slot_load(b->m, 2, blob, info.snapshot_bytes, &e) == OK;
    draft_copy x = draft_of(b, 0, b->tokens[len]), y = draft_of(b, 2, b->tokens[len]);
    is_fine = is_fine && memcmp(&x, &y, sizeof(x)) == 0;
    const float *got = probe_step(b->m, 2, b->tokens + len, N_TOKENS - len, PLAN_PROMPT);
    is_fine = is_fine && memcmp(got, b->want + (size_t)len * (size_t)b->c->n_vocab,
                             (size_t)(N_TOKENS - len) * row_bytes(b)) == 0;
    ((char *)blob)[8] ^= 1;
    is_fine = is_fine && model_slot_load(b->m, 2, blob, info.snapshot_bytes, &e) == ERR_MISMATCH;
    mem_free(blob);
    mem_free(page);
    return is_fine;
}

static void check_snapshots(bench *b) {
    verdict(b, "snapshot at 64", snapshot_equal(b, 64), "other logits or drafts");
    verdict(b, "snapshot at 5", snapshot_equal(b, 5), "other logits or drafts");
    verdict(
        b, "snapshot with an open group at 77", snapshot_equal(b, 77), "other logits or drafts");
}

/* ---- one bad stream beside good ones ---- */

/* Puts a NaN into the first row of the step at the input of layer 1. */
static void poison(void *user, const tap_data *t) {
    (void)user;
    if (!t->is_draft && t->layer == 1 && strcmp(t->name, "attn_in") == 0) {
        ((float *)t->data)[3] = NAN;
    }
}

static void check_poison(bench *b) {
    plan_span spans[3];
    step_result out;
    err e = ERR_INIT;
    size_t vocab = (size_t)b->c->n_vocab;
    for (int s = 0; s < 3; s++) {
        fresh_slot(b, s);
        (void)probe_step(b->m, s, b->tokens, 20, PLAN_PROMPT);
        spans[s] = (plan_span){.slot = s,
            .n_rows = s + 1,
            .pos = 20,
            .tokens = b->tokens + 20,
            .logits = PLAN_LOGITS_LAST,
            .kind = PLAN_PROMPT};
    }
    batch_plan plan = {.id = 2, .n_spans = 3, .spans = spans};
    model_set_tap(b->m, poison, NULL);
    bool is_fine = model_step(b->m, &plan, &out, &e) == OK;
    model_set_tap(b->m, NULL, NULL);
    is_fine = is_fine && out.is_finite[0] == 0 && out.is_finite[1] == 1 && out.is_finite[2] == 1;
    for (int s = 1; s < 3 && is_fine; s++) {
        const float *got = out.logits + (size_t)out.first_logit[s] * vocab;
        is_fine = memcmp(got, b->want + (size_t)(20 + s) * vocab, row_bytes(b)) == 0;
    }
    verdict(b, "a stream with a NaN is named, the others keep their bits", is_fine,
        "it spread or was not seen");
    /* The slot is as good as new after a reset. */
    fresh_slot(b, 0);
    const float *got = probe_step(b->m, 0, b->tokens, N_TOKENS, PLAN_PROMPT);
    verdict(
        b, "reset after a NaN", memcmp(got, b->want, N_TOKENS * row_bytes(b)) == 0, "other logits");
}

static void check_copy(bench *b) {
    err e = ERR_INIT;
    fresh_slot(b, 0);
    (void)probe_step(b->m, 0, b->tokens, 45, PLAN_PROMPT);
    /* The copy reads the same first pages and writes its own ones after them. */
    fresh_slot(b, 1);
    int32_t pages[PAGES] = {PAGES, PAGES + 1};
    for (int i = 2; i < PAGES; i++) {
        pages[i] = PAGES + i;
    }
    bool is_fine =
        model_page_copy(b->m, PAGES, 0, &e) == OK && model_page_copy(b->m, PAGES + 1, 1, &e) == OK;
    is_fine = is_fine && model_slot_pages(b->m, 1, pages, PAGES, &e) == OK;
    is_fine = is_fine && model_slot_copy(b->m, 1, 0, &e) == OK;
    int32_t other[3] = {9, 8, 7};
    (void)probe_step(b->m, 0, other, 3, PLAN_PROMPT);
    const float *got = probe_step(b->m, 1, b->tokens + 45, N_TOKENS - 45, PLAN_PROMPT);
    is_fine = is_fine && memcmp(got, b->want + 45 * (size_t)b->c->n_vocab,
                             (N_TOKENS - 45) * row_bytes(b)) == 0;
    verdict(b, "a copied slot goes its own way", is_fine, "other logits");
}

/* ---- two ranks ---- */

typedef struct rank_job {
    bench *b;
    exchange *x;
    int rank;
    float *logits; /* [N_TOKENS][n_vocab] */
    draft_copy draft;
    probe taps;
} rank_job;

static void *run_rank(void *arg) {
    rank_job *j = arg;
    model_options o = options_of(j->b, 1);
    o.rank = j->rank;
    o.world = exchange_world(j->x);
    o.exchange = j->x;
    bench local = *j->b;
    local.m = probe_open(&o);
    fresh_slot(&local, 0);
    model_set_tap(local.m, probe_tap, &j->taps);
    const float *got = probe_step(local.m, 0, j->b->tokens, N_TOKENS - 1, PLAN_PROMPT);
    memcpy(j->logits, got, (N_TOKENS - 1) * row_bytes(j->b));
    model_set_tap(local.m, NULL, NULL);
    got = probe_step(local.m, 0, j->b->tokens + N_TOKENS - 1, 1, PLAN_DECODE);
    memcpy(j->logits + (size_t)(N_TOKENS - 1) * (size_t)j->b->c->n_vocab, got, row_bytes(j->b));
    j->draft = draft_of(&local, 0, 3);
    model_close(local.m);
    exchange_close(j->x);
    return NULL;
}

static double worst_difference(const float *a, const float *b, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most)) {
            most = d;
        }
    }
    return most;
}

/* Root mean square of a - b over that of b. */
static double relative_difference(const float *a, const float *b, size_t n) {
    double sum = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        sum += d * d;
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(sum / all);
}

/* Lists that ranks must have in common with a run alone. */
static bool same_lists(const probe *a, const probe *b) {
    static const char *const names[] = {
        "router_ids", "used_ids", "index_ids", "candidate_blocks", "engram_ids"};
    bool is_same = true;
    for (int i = 0; i < a->n; i++) {
        const probe_entry *e = &a->entries[i];
        bool is_list = false;
        for (int k = 0; k < 5; k++) {
            is_list = is_list || strcmp(e->name, names[k]) == 0;
        }
        if (!is_list) {
            continue;
        }
        const probe_entry *o = probe_find(b, e->name, e->layer, e->is_draft);
        size_t size = (size_t)e->n_rows * (size_t)e->n_cols * (e->type == TAP_I64 ? 8 : 4);
        is_same = is_same && o != NULL && memcmp(e->data, o->data, size) == 0;
    }
    return is_same;
}

/* How two ranks compare with one, row by row. A near tie in a router or selection may fall
 * differently and moves a whole row, so one row in 50 may be off where has_ties says so. */
typedef struct closeness {
    double tolerance;
    bool has_ties;
} closeness;

static void verdict_close(bench *b, const char *what, const float *got, const closeness *c) {
    size_t vocab = (size_t)b->c->n_vocab;
    int n_off = 0;
    double most = 0;
    char text[160];
    for (size_t r = 0; r < N_TOKENS; r++) {
        double d = relative_difference(got + r * vocab, b->want + r * vocab, vocab);
        if (d <= c->tolerance) {
            most = d > most ? d : most;
        } else {
            n_off++;
        }
    }
    snprintf(text, sizeof(text),
        "%d of %d rows are off by more than %.2g of their rms, the others by %.2g", n_off, N_TOKENS,
        c->tolerance, most);
    printf("note %s: %s: %s\n", b->name, what, text);
    verdict(b, what, n_off <= (c->has_ties ? N_TOKENS / 50 : 0), text);
}

static void check_ranks(bench *b, const closeness *c) {
    exchange *x[2];
    static rank_job j[2];
    pthread_t t[2];
    err e = ERR_INIT;
    probe alone = {.n = 0};
    size_t n = (size_t)N_TOKENS * (size_t)b->c->n_vocab;
    fresh_slot(b, 0);
    model_set_tap(b->m, probe_tap, &alone);
    (void)probe_step(b->m, 0, b->tokens, N_TOKENS - 1, PLAN_PROMPT);
    model_set_tap(b->m, NULL, NULL);
    if (exchange_local_open(2, 0, 60000, x, &e) != OK) {
        verdict(b, "two ranks", false, e.msg);
        return;
    }
    for (int r = 0; r < 2; r++) {
        memset(&j[r], 0, sizeof(j[r]));
        j[r].b = b;
        j[r].x = x[r];
        j[r].rank = r;
        j[r].logits = mem_array(n, sizeof(float));
        pthread_create(&t[r], NULL, run_rank, &j[r]);
    }
    for (int r = 0; r < 2; r++) {
        pthread_join(t[r], NULL);
    }
    bool is_same = memcmp(j[0].logits, j[1].logits, n * sizeof(float)) == 0 &&
                   memcmp(&j[0].draft, &j[1].draft, sizeof(j[0].draft)) == 0;
    verdict(b, "two ranks hold equal bits", is_same, "different bits");
    verdict_close(b, "two ranks against one", j[0].logits, c);
    if (!c->has_ties) {
        verdict(b, "two ranks pick the same lists", same_lists(&alone, &j[0].taps), "other lists");
    }
    for (int r = 0; r < 2; r++) {
        mem_free(j[r].logits);
        probe_clear(&j[r].taps);
    }
    probe_clear(&alone);
}

/* Where rank 0 is found; it listens on a port that is free. */
typedef struct tcp_place {
    int port, listen_fd; /* -1: rank 1 */
} tcp_place;

/* Connects and runs one rank; j->b and j->rank are set. */
static int run_tcp_rank(rank_job *j, const tcp_place *place) {
    exchange_tcp_options o = {.rank = j->rank,
        .world = 2,
        .port = place->port,
        .listen_fd = place->listen_fd,
        .secret = {7},
        .identity = 3,
        .open_timeout_ms = 120000,
        .timeout_ms = 120000};
    err e = ERR_INIT;
    j->logits = mem_array((size_t)N_TOKENS * (size_t)j->b->c->n_vocab, sizeof(float));
    int rc = exchange_tcp_open(&o, &j->x, &e);
    if (rc == OK) {
        (void)run_rank(j);
    }
    return rc;
}

/* This program started anew as rank 1: `test_invariants FOLDER PORT`. Its logits go to standard output. */
static int be_rank_one(char **arg) {
    static bench b;
    static model_config c;
    static rank_job j;
    err e = ERR_INIT;
    int64_t port = 0;
    snprintf(b.folder, sizeof(b.folder), "%s", arg[1]);
    b.has_exact_kv = true;
    b.c = &c;
    if (parse_i64(arg[2], &port) != OK || model_config_load(b.folder, &c, &e) != OK) {
        return 1;
    }
    fill_tokens(&b);
    j.b = &b;
    j.rank = 1;
    if (run_tcp_rank(&j, &(tcp_place){(int)port, -1}) != OK) {
        return 1;
    }
    size_t n = (size_t)N_TOKENS * (size_t)c.n_vocab;
    int rc = fd_write_full(STDOUT_FILENO, j.logits, n * sizeof(float), &e);
    mem_free(j.logits);
    probe_clear(&j.taps);
    return rc == OK ? 0 : 1;
}

static pid_t start_rank_one(const bench *b, int port, int out_fd) {
    char number[16], folder[256];
    snprintf(number, sizeof(number), "%d", port);
    snprintf(folder, sizeof(folder), "%s", b->folder);
    char *arg[] = {(char[]){"rank"}, folder, number, NULL};
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    (void)dup2(out_fd, STDOUT_FILENO);
    execv("/proc/self/exe", arg);
    _exit(127);
}

/* The same over tcp, rank 1 in a process of its own. */
static void check_processes(bench *b, const closeness *c) {
    static rank_job j;
    err e = ERR_INIT;
    size_t n = (size_t)N_TOKENS * (size_t)b->c->n_vocab;
    int pipe_fd[2], status = 1;
    tcp_place place = {0, -1};
    if (pipe2(pipe_fd, O_CLOEXEC) != 0 ||
        meet_listen("127.0.0.1", &place.port, &place.listen_fd, &e) != OK) {
        verdict(b, "two processes", false, "no pipe or no port");
        return;
    }
    memset(&j, 0, sizeof(j));
    j.b = b;
    pid_t pid = start_rank_one(b, place.port, pipe_fd[1]);
    close(pipe_fd[1]);
    int rc = run_tcp_rank(&j, &place);
    float *other = mem_array(n, sizeof(float));
    int read_rc = fd_read_full(pipe_fd[0], other, n * sizeof(float), &e);
    close(pipe_fd[0]);
    waitpid(pid, &status, 0);
    bool is_same = rc == OK && read_rc == OK && memcmp(other, j.logits, n * sizeof(float)) == 0;
    verdict(b, "two processes hold equal bits", is_same, "different bits or a failed rank");
    verdict_close(b, "two processes against one", j.logits, c);
    mem_free(other);
    mem_free(j.logits);
    probe_clear(&j.taps);
}

/* ---- breaking it on purpose ---- */

static void check_sabotage(bench *b) {
    static const struct {
        char what;
        const char *name;
    } kinds[] = {{'r', "no inverse rotation"}, {'c', "comb indices swapped"},
        {'p', "own pre, not the previous one"}};
    saboteur s = {.c = b->c, .own_pre = mem_array(N_TOKENS * 8, sizeof(float))};
    for (int i = 0; i < 3; i++) {
        s.what = kinds[i].what;
        fresh_slot(b, 0);
        model_set_tap(b->m, sabotage_tap, &s);
        const float *got = probe_step(b->m, 0, b->tokens, N_TOKENS, PLAN_PROMPT);
        double most = worst_difference(got, b->want, (size_t)N_TOKENS * (size_t)b->c->n_vocab);
        model_set_tap(b->m, NULL, NULL);
        verdict(b, kinds[i].name, most > 0.05,
            "no difference: the golden comparison could not have seen it");
    }
    mem_free(s.own_pre);
}

static void check_without_sinks(bench *b) {
    char path[512];
    buf data = BUF_MAX((size_t)64 << 20);
    err e = ERR_INIT;
    snprintf(path, sizeof(path), "%s/model.safetensors", b->folder);
    bool is_fine = file_read(path, &data, (size_t)64 << 20, &e) == OK && unlink(path) == 0 &&
                   file_write_atomic(path, data.data, data.len, 0600, &e) == OK &&
                   sabotage_sinks(path);
    buf_release(&data);
    if (!is_fine) {
        verdict(b, "no sink", false, "the weights could not be changed");
        return;
    }
    model *kept = b->m;
    model_options o = options_of(b, 2);
    b->m = probe_open(&o);
    fresh_slot(b, 0);
    const float *got = probe_step(b->m, 0, b->tokens, N_TOKENS, PLAN_PROMPT);
    double most = worst_difference(got, b->want, (size_t)N_TOKENS * (size_t)b->c->n_vocab);
    verdict(
        b, "no sink", most > 0.05, "no difference: the golden comparison could not have seen it");
    model_close(b->m);
    b->m = kept;
}

/* ---- bad plans ---- */

static void check_refusals(bench *b) {
    err e = ERR_INIT;
    step_result out;
    fresh_slot(b, 0);
    plan_span s = {.slot = 0, .n_rows = 4, .pos = 0, .tokens = b->tokens};
    batch_plan plan = {.id = 1, .n_spans = 1, .spans = &s};
    int32_t bad[4] = {0, 1, b->c->n_vocab, 2};
    s.pos = 3;
    verdict(b, "wrong position", model_step(b->m, &plan, &out, &e) == ERR_ARG, e.msg);
    s.pos = 0;
    s.tokens = bad;
    verdict(b, "token out of range", model_step(b->m, &plan, &out, &e) == ERR_ARG, e.msg);
    s.tokens = b->tokens;
    s.slot = 9;
    verdict(b, "no such slot", model_step(b->m, &plan, &out, &e) == ERR_ARG, e.msg);
    s.slot = 0;
    (void)model_slot_pages(b->m, 0, NULL, 0, &e);
    verdict(b, "no pages", model_step(b->m, &plan, &out, &e) == ERR_FULL, e.msg);
    fresh_slot(b, 0);
    const float *got = probe_step(b->m, 0, b->tokens, N_TOKENS, PLAN_PROMPT);
    verdict(b, "refused plans change nothing", memcmp(got, b->want, N_TOKENS * row_bytes(b)) == 0,
        "other logits");
}

static void open_model(bench *b) {
    model_options o = options_of(b, 2);
    model_info info;
    b->m = probe_open(&o);
    model_get_info(b->m, &info);
    b->c = info.config;
    fill_tokens(b);
    mem_free(b->want);
    b->want = mem_array((size_t)N_TOKENS * (size_t)b->c->n_vocab, sizeof(float));
    fresh_slot(b, 0);
    memcpy(b->want, probe_step(b->m, 0, b->tokens, N_TOKENS, PLAN_PROMPT), N_TOKENS * row_bytes(b));
}

static void check_model(bench *b) {
    open_model(b);
    check_chunks(b);
    check_threads(b);
    check_batched(b);
    check_windows(b);
    check_truncate(b);
    check_snapshots(b);
    check_copy(b);
    check_poison(b);
    check_refusals(b);
}

/* Rounding to the stored formats turns float noise into whole steps, so ranks are compared with one
 * rank on unquantized KV; equal bits between ranks hold either way. */
static void check_worlds(bench *b, const closeness *c) {
    b->has_exact_kv = true;
    open_model(b);
    check_ranks(b, c);
    check_processes(b, c);
    model_close(b->m);
    b->has_exact_kv = false;
}

/* ---- all rules on each of two ranks ---- */

static void *run_rules(void *arg) {
    bench *b = arg;
    if (rank_begins != NULL) {
        rank_begins(exchange_rank(b->x));
    }
    check_model(b);
    model_close(b->m);
    return NULL;
}

/* Both ranks do the same at once; x stays the caller's. Each counts its own vectors. */
static void check_rules_of_ranks(bench *b, const char *name, exchange *const x[2]) {
    static bench rank[2];
    pthread_t t[2];
    for (int r = 0; r < 2; r++) {
        rank[r] = (bench){.name = name, .x = x[r]};
        snprintf(rank[r].folder, sizeof(rank[r].folder), "%s", b->folder);
        pthread_create(&t[r], NULL, run_rules, &rank[r]);
    }
    for (int r = 0; r < 2; r++) {
        pthread_join(t[r], NULL);
        b->v.passed += rank[r].v.passed;
        b->v.failed += rank[r].v.failed;
    }
    bool is_same = memcmp(rank[0].want, rank[1].want, (size_t)N_TOKENS * row_bytes(b)) == 0;
    verdict(b, name, is_same, "other bits on the other rank");
    mem_free(rank[0].want);
    mem_free(rank[1].want);
}

static void check_rules_over_threads(bench *b, const char *name) {
    exchange *x[2];
    err e = ERR_INIT;
    if (exchange_local_open(2, 0, 60000, x, &e) != OK) {
        verdict(b, name, false, e.msg);
        return;
    }
    check_rules_of_ranks(b, name, x);
    exchange_close(x[0]);
    exchange_close(x[1]);
}

int main(int argc, char **argv) {
    static bench b;
    if (argc == 3) {
        return be_rank_one(argv);
    }
    char dir[1024];
    snprintf(dir, sizeof(dir), "%s/model/tiny-a", vectors_golden_dir());
    b.name = "tiny-a";
    probe_folder(dir, "config.json", b.folder);
    check_worlds(&b, &(closeness){1e-5, false});
    check_model(&b);
    check_rules_over_threads(&b, "tiny-a, as two ranks");
    check_sabotage(&b);
    check_without_sinks(&b);
    model_close(b.m);
    probe_folder_remove(b.folder);
    if (probe_is_slow()) {
        vectors_skip(&b.v, "demo, EXL3", "takes minutes under the thread sanitizer");
    } else if (file_exists("templates/demo-model/config.json")) {
        b.name = "demo, EXL3";
        snprintf(b.folder, sizeof(b.folder), "templates/demo-model");
        check_worlds(&b, &(closeness){1e-3, true});
        check_model(&b);
        model_close(b.m);
    } else {
        vectors_skip(&b.v, "demo, EXL3", "templates/demo-model holds no weights");
    }
    mem_free(b.want);
    return vectors_end(&b.v);
}
