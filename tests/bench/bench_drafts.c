/* What drafts bring on the built-in model, for prose, code-like and structured prompts: tokens a step,
 * how many drafts are kept, by position, and time, against the same replies without drafts. Serial and
 * drafted runs alternate; the best of each is given. One thread computes and its processor time is what
 * counts, also for the engine's own choices, so that other work on the machine does not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/file.h"
#include "engine/model/model.h"
#include "engine/run/run.h"
#include "engine/text/tokenizer.h"

enum { N_ROUNDS = 3, N_PROMPTS = 6, REPLY = 120, MAX_PROMPT = 400, PAGE = 128 };

typedef struct kind {
    const char *name;
    const char *texts[N_PROMPTS];
} kind;

static const kind kinds[] = {
    {"prose", {"Tell me a story about a dog who lived by the sea and found a friend.",
                  "What is the capital of France?", "Why is the sky blue?",
                  "Write a letter to an old friend.", "Who are you?",
                  "Tell me about the king and the river."}},
    {"code-like", {"Repeat this exactly:\nfor (int i = 0; i < n; i++) {\n    sum += a[i];\n}\n"
                   "for (int i = 0; i < n; i++) {\n    sum += b[i];\n}\n"
                   "for (int i = 0; i < n; i++) {\n",
                      "Write a function in C that adds two numbers.",
                      "Repeat: x = x + 1; y = y + 1; x = x + 1; y = y + 1; x = x + 1;",
                      "Continue: a[0] = 0; a[1] = 1; a[2] = 2; a[3] = 3; a[4] =",
                      "Repeat this: if (a > b) { return a; } else { return b; }",
                      "Write a loop in Python that counts to ten."}},
    {"structured", {"Continue: {\"name\": \"Ann\", \"age\": 30}\n{\"name\": \"Bob\", \"age\": 31}\n"
                    "{\"name\": \"Cid\", \"age\": 32}\n{\"name\":",
                       "Count from one to one hundred.", "List the days of the week, one a line.",
                       "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,",
                       "a,b,c\n1,2,3\n4,5,6\n7,8,9\n10,11,12\n", "List ten animals with numbers."}},
};

static void die(const char *what, const err *e) {
    fprintf(stderr, "bench_drafts: %s: %s\n", what, e->msg);
    exit(1);
}

typedef struct prompt {
    int32_t ids[MAX_PROMPT];
    int32_t n;
} prompt;

static void encode(const tokenizer *tok, const char *text, prompt *out) {
    control_ids c = tokenizer_controls(tok);
    const int32_t around[4] = {c.bos, c.user, c.assistant, c.think_close};
    token_list ids = {0};
    err e = ERR_INIT;
    token_list_push(&ids, around[0]);
    token_list_push(&ids, around[1]);
    if (tokenizer_encode(tok, (text_span){.text = text, .len = strlen(text)}, &ids, &e) != OK) {
        die("encoding", &e);
    }
    token_list_push(&ids, around[2]);
    token_list_push(&ids, around[3]);
    out->n = (int32_t)ids.len < MAX_PROMPT ? (int32_t)ids.len : MAX_PROMPT;
    memcpy(out->ids, ids.ids, (size_t)out->n * sizeof *out->ids);
    token_list_release(&ids);
}

typedef struct figures {
    uint64_t n_tokens, n_steps, n_drafted, n_accepted, accepted_at[RUN_DRAFT_MAX];
    double seconds; /* between first and last tokens */
} figures;

static void add_reply(run *r, const prompt *p, float temperature, figures *f) {
    ticket *t = NULL;
    run_event ev = {0};
    run_progress done;
    err e = ERR_INIT;
    run_request q = {.id = "bench", .prompt = p->ids, .n_prompt = p->n, .max_tokens = REPLY};
    sample_params_init(&q.sampling);
    q.sampling.temperature = temperature;
    q.sampling.seed = 7;
    if (run_submit(r, &q, &t, &e) != OK) die("asking", &e);
    while (ticket_next(t, &ev, -1) == OK && ev.kind == RUN_EVENT_TOKEN) {
    }
    ticket_progress(t, &done);
    f->seconds += (double)(done.last_ns - done.first_ns) / 1e9;
    ticket_free(t);
}

/* All prompts of a kind once. */
static figures one_round(run *r, const prompt *prompts, float temperature) {
    figures f = {0};
    run_stats before;
    run_stats after;
    run_stats_get(r, &before);
    for (int i = 0; i < N_PROMPTS; i++) {
        add_reply(r, &prompts[i], temperature, &f);
    }
    run_stats_get(r, &after);
    /* The first token of a reply comes with its prompt's last step. */
    f.n_tokens = after.n_generated - before.n_generated - N_PROMPTS;
    f.n_steps = after.n_steps - before.n_steps - N_PROMPTS;
    f.n_drafted = after.n_drafted - before.n_drafted;
    f.n_accepted = after.n_accepted - before.n_accepted;
    for (int i = 0; i < RUN_DRAFT_MAX; i++) {
        f.accepted_at[i] = after.accepted_at[i] - before.accepted_at[i];
    }
    return f;
}

static void print_kind(
    const char *name, float temperature, const figures *serial, const figures *f) {
    printf("drafts kind=%s temperature=%g serial_tokens_per_step=%.2f drafted_tokens_per_step=%.2f "
           "drafted=%llu kept=%llu kept_percent=%.0f by_position=",
        name, (double)temperature, (double)serial->n_tokens / (double)serial->n_steps,
        (double)f->n_tokens / (double)f->n_steps, (unsigned long long)f->n_drafted,
        (unsigned long long)f->n_accepted, 100.0 * (double)f->n_accepted / (double)f->n_drafted);
    for (int i = 0; i < RUN_DRAFT_MAX && f->accepted_at[i] > 0; i++) {
        printf("%s%llu", i > 0 ? "," : "", (unsigned long long)f->accepted_at[i]);
    }
    double a = (double)serial->n_tokens / serial->seconds;
    double b = (double)f->n_tokens / f->seconds;
    printf(" serial_tokens_per_cpu_s=%.0f drafted_tokens_per_cpu_s=%.0f time_gain=%.2f\n", a, b,
        b / a);
    fflush(stdout);
}

static uint64_t processor_time(void *ctx) {
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static run *open_run(const run_source *source, bool no_drafts) {
    run *r = NULL;
    err e = ERR_INIT;
    run_options o = {
        .source = source, .no_cache = true, .no_drafts = no_drafts, .now_ns = processor_time};
    if (run_open(&o, &r, &e) != OK) die("run_open", &e);
    return r;
}

static void bench_kind(const run_source *source, const tokenizer *tok, const kind *k, float t) {
    prompt prompts[N_PROMPTS];
    figures best[2] = {0};
    for (int i = 0; i < N_PROMPTS; i++) {
        encode(tok, k->texts[i], &prompts[i]);
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int drafted = 0; drafted < 2; drafted++) {
            run *r = open_run(source, drafted == 0);
            figures f = one_round(r, prompts, t);
            run_close(r);
            if (round == 0 || f.seconds < best[drafted].seconds) best[drafted] = f;
        }
    }
    print_kind(k->name, t, &best[0], &best[1]);
}

int main(void) {
    const char *weights = getenv("DEMO_WEIGHTS");
    const char *dir = dir_exists("templates/demo-model") ? "templates/demo-model" : weights;
    char path[600];
    tokenizer *tok = NULL;
    model *m = NULL;
    run_source source;
    err e = ERR_INIT;
    if (dir == NULL) {
        puts("drafts skipped: no built-in model here");
        return 0;
    }
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    model_options o = {.dir = dir,
        .n_threads = 1,
        .n_slots = 1,
        .n_pages = 8,
        .page_tokens = PAGE,
        .max_rows = 256,
        .max_context = 8 * PAGE};
    if (tokenizer_open(path, &tok, &e) != OK || model_open(&o, &m, &e) != OK) die(dir, &e);
    source_from_model(m, &source);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bench_kind(&source, tok, &kinds[i], 0.0f);
        bench_kind(&source, tok, &kinds[i], 0.8f);
    }
    model_close(m);
    tokenizer_close(tok);
    return 0;
}
