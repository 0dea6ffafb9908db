/* tandem bench: decode, prefill and first through the engine's socket, as a chat client sees them. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "tui/cmd_internal.h"

/* Text that was read in one go has one arrival, whatever the pieces. */
#define ARRIVAL_NS 50000u
/* A step makes at most six tokens (one and five drafts); a few more may come together. */
enum { TOKENS_AN_ARRIVAL = 8, MIN_ARRIVALS = 3 };
enum { MAX_REPS = 100, PROMPTS_MAX_BYTES = 1 << 20, MAX_PROMPTS = 64 };

typedef struct bench {
    const cmd_args *args;
    client *client;
    bool is_json;
    int64_t reps, tokens, prompt_tokens;
    int n_failed;
} bench;

/* One request, timed with the monotonic clock from just before its bytes are sent. */
typedef struct sample {
    uint64_t start_ns, first_event_ns, first_text_ns, last_text_ns, end_ns;
    int n_arrivals; /* times at which text came, ARRIVAL_NS apart */
    chat_usage usage;
    char finish[32];
    err error;
    bool is_over;
} sample;

static void on_event(void *ctx, const client_event *ev) {
    sample *s = ctx;
    uint64_t now = clock_mono_ns();
    if (ev->kind == CLIENT_CHAT) {
        if (s->first_event_ns == 0) s->first_event_ns = now;
        if (ev->chat->kind == CHAT_EVENT_CONTENT || ev->chat->kind == CHAT_EVENT_REASONING) {
            if (s->first_text_ns == 0) s->first_text_ns = now;
            if (s->last_text_ns == 0 || now - s->last_text_ns > ARRIVAL_NS) s->n_arrivals++;
            s->last_text_ns = now;
        }
    }
    if (ev->kind != CLIENT_END) return;
    s->end_ns = now;
    s->usage = ev->reply->usage;
    str_copy(s->finish, sizeof s->finish, ev->reply->finish);
    if (ev->error != NULL) s->error = *ev->error;
    s->is_over = true;
}

static int measure(bench *b, const char *prompt, int64_t max_tokens, sample *s, err *e) {
    chat_message m = {.role = "user", .content = prompt};
    chat_request r = {.messages = &m, .n_messages = 1};
    client_call *call = NULL;
    r.options.set = CHAT_TEMPERATURE | CHAT_MAX_TOKENS;
    r.options.max_tokens = max_tokens;
    r.options.thinking = CHAT_THINKING_OFF;
    *s = (sample){.start_ns = clock_mono_ns()};
    int rc = client_chat(b->client, &r, (client_sink){on_event, s}, &call, e);
    if (rc == OK) rc = client_wait(b->client, call, cmd_stop_fd(), -1, e);
    if (rc == ERR_CANCELLED) {
        client_cancel(b->client, call);
        client_pump(b->client);
        return rc;
    }
    if (rc == OK && s->error.code != OK) {
        if (e != NULL) *e = s->error;
        rc = s->error.code;
    }
    return rc;
}

static double seconds(uint64_t from, uint64_t to) {
    return to > from ? (double)(to - from) / 1e9 : 0;
}

/* Text that was held back and came in one piece has no rate of its own. */
static bool came_at_once(const sample *s) {
    return s->n_arrivals < MIN_ARRIVALS ||
           (int64_t)s->n_arrivals * TOKENS_AN_ARRIVAL < s->usage.completion_tokens;
}

static double decode_rate(const sample *s) {
    double t = seconds(s->first_text_ns, s->last_text_ns);
    bool is_measurable = s->usage.completion_tokens > 1 && t > 0 && !came_at_once(s);
    return is_measurable ? (double)(s->usage.completion_tokens - 1) / t : -1;
}

static double prefill_rate(const sample *s) {
    int64_t cached = s->usage.cached_tokens > 0 ? s->usage.cached_tokens : 0;
    double t = seconds(s->start_ns, s->first_text_ns);
    return s->usage.prompt_tokens > cached && t > 0 ? (double)(s->usage.prompt_tokens - cached) / t
                                                    : -1;
}

static double first_text(const sample *s) {
    return s->first_text_ns != 0 ? seconds(s->start_ns, s->first_text_ns) : -1;
}

static void put_or_null(json_w *w, const char *key, double v, int decimals) {
    json_w_key(w, key);
    if (v >= 0) {
        json_w_fixed(w, v, decimals);
    } else {
        json_w_null(w);
    }
}

typedef struct cell {
    const char *protocol, *name, *unit;
    double (*value)(const sample *s);
    int64_t rep;
} cell;

static void put_sample(const bench *b, const cell *c, const sample *s) {
    double value = c->value(s);
    if (!b->is_json && value < 0) {
        cmd_printf("%-8s %-12s rep %lld  %10s %s  prompt %lld (cached %lld), reply %lld, %s\n",
            c->protocol, c->name, (long long)c->rep, "-", c->unit,
            (long long)s->usage.prompt_tokens, (long long)s->usage.cached_tokens,
            (long long)s->usage.completion_tokens, s->finish);
        return;
    }
    if (!b->is_json) {
        cmd_printf("%-8s %-12s rep %lld  %10.3f %s  prompt %lld (cached %lld), reply %lld, %s\n",
            c->protocol, c->name, (long long)c->rep, value, c->unit,
            (long long)s->usage.prompt_tokens, (long long)s->usage.cached_tokens,
            (long long)s->usage.completion_tokens, s->finish);
        return;
    }
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "protocol", c->protocol);
    json_w_kstr(&w, "cell", c->name);
    json_w_ki64(&w, "rep", c->rep);
    json_w_kstr(&w, "version", TANDEM_VERSION);
    json_w_kstr(&w, "build", version_build_id());
    json_w_ki64(&w, "prompt_tokens", s->usage.prompt_tokens);
    json_w_ki64(&w, "cached_tokens", s->usage.cached_tokens);
    json_w_ki64(&w, "completion_tokens", s->usage.completion_tokens);
    json_w_ki64(&w, "draft_tokens", s->usage.draft_n);
    json_w_ki64(&w, "draft_tokens_accepted", s->usage.draft_n_accepted);
    json_w_kstr(&w, "finish_reason", s->finish);
    put_or_null(&w, "first_event_s",
        s->first_event_ns != 0 ? seconds(s->start_ns, s->first_event_ns) : -1, 6);
    put_or_null(&w, "first_text_s", first_text(s), 6);
    put_or_null(&w, "total_s", seconds(s->start_ns, s->end_ns), 6);
    put_or_null(&w, "decode_tokens_per_s", decode_rate(s), 3);
    put_or_null(&w, "prefill_tokens_per_s", prefill_rate(s), 3);
    cmd_put_json(&w);
    buf_release(&out);
}

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void put_summary(const bench *b, const cell *c, double *values, int n) {
    if (n == 0) return;
    qsort(values, (size_t)n, sizeof *values, by_value);
    double median = n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    if (!b->is_json) {
        cmd_printf("%-8s %-12s median %8.3f %s  (min %.3f, max %.3f, n %d)\n", c->protocol, c->name,
            median, c->unit, values[0], values[n - 1], n);
        return;
    }
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "protocol", c->protocol);
    json_w_kstr(&w, "cell", c->name);
    json_w_kstr(&w, "summary", c->unit);
    json_w_key(&w, "median");
    json_w_fixed(&w, median, 6);
    json_w_key(&w, "min");
    json_w_fixed(&w, values[0], 6);
    json_w_key(&w, "max");
    json_w_fixed(&w, values[n - 1], 6);
    json_w_ki64(&w, "n", n);
    cmd_put_json(&w);
    buf_release(&out);
}

/* What a repetition asks: the same prompt each time, or a new one. */
typedef void (*prompt_fn)(const bench *b, const char *base, int64_t rep, buf *out);

static void same_prompt(const bench *b, const char *base, int64_t rep, buf *out) {
    (void)b, (void)rep;
    buf_puts(out, base);
}

/* Common words in an order that was never seen before, so that no cache has them. */
static void fresh_prompt(const bench *b, const char *base, int64_t rep, buf *out) {
    static const char *const words[] = {"time", "water", "house", "small", "river", "green",
        "table", "light", "stone", "paper", "music", "north", "bread", "cloud", "field", "glass"};
    uint64_t seed = clock_wall_ms() * 1000003u + (uint64_t)rep;
    buf_puts(out, base);
    for (int64_t i = 0; i < b->prompt_tokens; i++) {
        buf_printf(out, " %s", words[rand_keyed(seed, (uint64_t)i, 0) % 16]);
    }
}

static int run_cell(bench *b, cell c, const char *base, prompt_fn make, int64_t max_tokens) {
    double values[MAX_REPS];
    int n = 0;
    bool is_cold = make == fresh_prompt;
    /* One run that is not counted: the same prompt is then warm; a fresh one only warms the code. */
    for (int64_t rep = 0; rep <= b->reps; rep++) {
        buf prompt = BUF_MAX(256 << 20);
        sample s;
        err e = ERR_INIT;
        make(b, base, rep, &prompt);
        int rc = measure(b, buf_cstr(&prompt), max_tokens, &s, &e);
        buf_release(&prompt);
        if (rc != OK) return cmd_fail_engine(&e);
        if (rep == 0) continue;
        c.rep = rep;
        put_sample(b, &c, &s);
        bool is_valid = c.value(&s) >= 0;
        if (is_cold && s.usage.cached_tokens * 4 > s.usage.prompt_tokens) is_valid = false;
        if (is_valid) {
            values[n++] = c.value(&s);
        } else {
            b->n_failed++;
            cmd_note("%s %s rep %lld does not count: %s", c.protocol, c.name, (long long)rep,
                c.value(&s) >= 0                ? "the prompt came from the cache"
                : s.usage.completion_tokens < 2 ? "too little text to measure"
                                                : "the text came in one piece, not as it was made");
        }
    }
    put_summary(b, &c, values, n);
    return EXIT_OK;
}

/* Decode prompts: of a file, one a line, else three short ones that every model here can answer. */
static int run_decode(bench *b) {
    static const char *const own[] = {
        "What is water?", "Tell me about the sea and the sky.", "Count from 1 to 50."};
    const char *path = cmd_value(b->args, "prompts");
    buf text = BUF_INIT;
    err e = ERR_INIT;
    int code = EXIT_OK, i = 0;
    if (path != NULL && file_read(path, &text, PROMPTS_MAX_BYTES, &e) != OK) return cmd_fail(&e);
    if (path == NULL) {
        for (i = 0; i < 3; i++)
            buf_printf(&text, "%s\n", own[i]);
    }
    i = 0;
    for (size_t at = 0; at < text.len && code == EXIT_OK && i < MAX_PROMPTS;) {
        size_t n = strcspn(text.data + at, "\n");
        char *prompt = mem_strndup(text.data + at, n);
        buf name = BUF_INIT;
        buf_printf(&name, "prompt-%d", ++i);
        cell c = {"decode", buf_cstr(&name), "tokens/s", decode_rate, 0};
        if (n > 0) code = run_cell(b, c, prompt, same_prompt, b->tokens);
        buf_release(&name);
        mem_free(prompt);
        at += n + 1;
    }
    buf_release(&text);
    return code;
}

static int run_protocol(bench *b, const char *name) {
    if (str_eq(name, "decode")) return run_decode(b);
    if (str_eq(name, "prefill")) {
        cell c = {"prefill", "cold", "tokens/s", prefill_rate, 0};
        return run_cell(b, c, "Read these words.", fresh_prompt, 1);
    }
    cell c = {"first", "short", "s", first_text, 0};
    return run_cell(b, c, "What is water?", same_prompt, 8);
}

static int check_protocols(const cmd_args *a, err *e) {
    for (int i = 0; i < a->n_args; i++) {
        const char *p = a->args[i];
        if (!str_eq(p, "decode") && !str_eq(p, "prefill") && !str_eq(p, "first")) {
            return err_set(
                e, ERR_ARG, "there is no protocol \"%.30s\"; there is: decode, prefill, first", p);
        }
    }
    return OK;
}

int cmd_bench(const cmd_args *a) {
    bench b = {.args = a, .is_json = cmd_has(a, "json")};
    err e = ERR_INIT;
    int rc = check_protocols(a, &e);
    if (rc == OK) rc = cmd_int_option(a, "reps", (cmd_range){1, MAX_REPS, 3}, &b.reps, &e);
    if (rc == OK) rc = cmd_int_option(a, "tokens", (cmd_range){2, 1 << 20, 128}, &b.tokens, &e);
    if (rc == OK) {
        rc = cmd_int_option(a, "prompt-tokens", (cmd_range){1, 1 << 20, 512}, &b.prompt_tokens, &e);
    }
    if (rc != OK) return cmd_fail_usage(&e);
    if (cmd_engine(a, true, &b.client, &e) != OK) return cmd_fail_engine(&e);
    int code = EXIT_OK;
    for (int i = 0; i < a->n_args && code == EXIT_OK; i++)
        code = run_protocol(&b, a->args[i]);
    client_close(b.client);
    if (code == EXIT_OK && b.n_failed > 0) code = EXIT_REFUSED;
    return cmd_finish(code);
}
