/* The cases of the folder engine (CASES_DIR, default tests/data/cases) against the scheduler and its
 * caches over a stand-in for the model (paged_toy.h), at the sizes the cases name. A word of a message
 * is one token. Times are those of the stand-in's own clock. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/run/run.h"
#include "tests/harness/engine_steps.h"
#include "tests/harness/paged_toy.h"
#include "tests/harness/vectors.h"

enum { PAGE = 128, CONTEXT = 1 << 17, MAX_CHATS = 64, REPLY = 640, WAIT_MS = 120000 };
enum { LOAD_STEPS = 8, BOS = 2, FIRST_ROLE = 3, FIRST_WORD = 8 };

typedef struct chat {
    char id[32];
    int32_t *tokens; /* prompt, then reply */
    int32_t n_prompt, n_reply, n_cached, end;
    int32_t max_tokens;
    uint8_t salt;
    double first_s; /* to the first token, on the toy's clock */
} chat;

/* Minutes of the cases: as many in the long tests, seconds else. */
#define LONG_FACTOR (getenv("TANDEM_LONG") != NULL ? 60 : 1)

static vectors v;
static ticket *loads[8];
static int n_loads;
static bool has_no_stop;
static bool holds_on; /* steps wait after a submit, until somebody lets go */
static paged_toy *toy;
static run *engine;
static chat chats[MAX_CHATS];
static int n_chats;
static char cache_dir[64], log_text[1 << 16];
static size_t n_log;
static bool has_constant_hash, is_per_key;
static int32_t growth[64];
static int n_growth;
static step_facts facts;

static void keep_line(void *ctx, log_level level, const char *line, size_t len) {
    (void)ctx;
    (void)level;
    if (n_log + len >= sizeof log_text) return;
    memcpy(log_text + n_log, line, len);
    n_log += len;
    log_text[n_log] = '\0';
}

static void start_engine(void) {
    paged_toy_options to = {.n_slots = 4,
        .n_pages = 4 * CONTEXT / PAGE,
        .page_tokens = PAGE,
        .max_context = CONTEXT,
        .max_rows = 512,
        .has_drafts = true,
        .cost = {.step_ns = 5000000,
            .row_ns = 1000000,
            .prompt_row_ns = 400000,
            .prompt_row_ns_at_64k = 1200000}};
    toy = paged_toy_new(&to);
    run_options o = {.source = paged_toy_source(toy),
        .now_ns = paged_toy_now,
        .now_ctx = toy,
        .cache_dir = cache_dir,
        .cache_disk_bytes = (uint64_t)1 << 30,
        .has_constant_hash = has_constant_hash};
    if (run_open(&o, &engine, NULL) != OK) exit(1);
}

static void stop_engine(void) {
    paged_toy_let_go(toy);
    run_close(engine);
    paged_toy_free(toy);
}

/* ---- prompts ---- */

static void put(chat *c, int32_t token) {
    if (c->n_prompt < CONTEXT) c->tokens[c->n_prompt++] = token;
}

static void put_text(chat *c, const char *text) {
    while (*text != '\0') {
        size_t n = strcspn(text, " \n");
        uint64_t h = 7;
        for (size_t i = 0; i < n; i++) {
            h = rand_keyed(h, (uint64_t)(unsigned char)text[i], 1);
        }
        if (n > 0) put(c, FIRST_WORD + (int32_t)(h % (PAGED_TOY_VOCAB - FIRST_WORD)));
        text += n + (text[n] != '\0');
    }
}

static void put_words(chat *c, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        put(c, FIRST_WORD +
                   (int32_t)(rand_keyed(seed, (uint64_t)i, 5) % (PAGED_TOY_VOCAB - FIRST_WORD)));
    }
}

/* "fixed text of N tokens, seed S", "block filler A, then common text of N tokens". */
static void put_generated(chat *c, const char *how) {
    const char *of = strstr(how, "of ");
    const char *seed = strstr(how, "seed ");
    const char *filler = strstr(how, "filler ");
    if (filler != NULL) put_words(c, PAGE, (uint64_t)(unsigned char)filler[7] + 1000);
    if (of != NULL)
        put_words(c, strtol(of + 3, NULL, 10), seed ? strtoull(seed + 5, NULL, 10) : 77);
}

static void put_content(chat *c, const json *content) {
    if (json_str(content) != NULL) {
        put_text(c, json_str(content));
    } else {
        put_generated(c, json_str(json_get(content, "$generate")));
    }
}

static void put_message(chat *c, const json *m) {
    static const char *const roles[] = {"user", "system", "tool", "assistant"};
    const char *role = json_str(json_get(m, "role"));
    const json *content = json_get(m, "content");
    int32_t i = 0;
    while (i < 3 && role != NULL && strcmp(role, roles[i]) != 0) {
        i++;
    }
    put(c, FIRST_ROLE + i);
    put_content(c, content);
}

static chat *find_chat(const char *id) {
    for (int i = n_chats - 1; i >= 0; i--) {
        if (id != NULL && strcmp(chats[i].id, id) == 0) return &chats[i];
    }
    return NULL;
}

static chat *new_chat(const char *id) {
    if (n_chats == MAX_CHATS) exit(1);
    chat *c = &chats[n_chats++];
    *c = (chat){.max_tokens = 24};
    str_copy(c->id, sizeof c->id, id != NULL ? id : "");
    c->tokens = mem_array(CONTEXT + REPLY, sizeof(int32_t));
    return c;
}

/* ---- asking ---- */

static ticket *submit(const chat *c) {
    static const int32_t stop = PAGED_TOY_EOS;
    err e = ERR_INIT;
    ticket *t = NULL;
    run_request q = {.id = c->id,
        .prompt = c->tokens,
        .n_prompt = c->n_prompt,
        .max_tokens = c->max_tokens,
        .stop_ids = &stop,
        .n_stop_ids = has_no_stop ? 0 : 1,
        .salt = {c->salt}};
    sample_params_init(&q.sampling);
    q.sampling.temperature = 0.0f;
    /* Asked at one moment of the toy's clock, however long this thread takes to ask. */
    paged_toy_hold_after(toy, 0);
    int rc = run_submit(engine, &q, &t, &e);
    if (!holds_on) paged_toy_let_go(toy);
    if (rc != OK) {
        printf("submit %s: %s\n", c->id, e.msg);
        exit(1);
    }
    return t;
}

static void collect(chat *c, ticket *t, int64_t n_most) {
    run_event ev = {0};
    run_progress p;
    while (ticket_next(t, &ev, WAIT_MS) == OK && ev.kind == RUN_EVENT_TOKEN) {
        c->tokens[c->n_prompt + c->n_reply++] = ev.pick.token;
        if (c->n_reply == n_most) ticket_cancel(t);
        if (c->n_reply == REPLY) break;
    }
    c->end = ev.end;
    ticket_progress(t, &p);
    c->n_cached = p.n_cached;
    c->first_s = (double)(p.first_ns - p.submit_ns) / 1e9;
    ticket_free(t);
}

/* The conversation so far, with the reply, and a new message. */
static void go_on(chat *c, const chat *from, const json *message) {
    c->salt = from->salt;
    memcpy(c->tokens, from->tokens, (size_t)(from->n_prompt + from->n_reply) * sizeof(int32_t));
    c->n_prompt = from->n_prompt + from->n_reply;
    put(c, PAGED_TOY_EOS);
    put_message(c, message);
    put(c, FIRST_ROLE + 3);
}

static void do_chat(const json *step) {
    int64_t value = 0;
    chat *last = n_chats > 0 ? &chats[n_chats - 1] : NULL;
    chat *same = find_chat(json_str(json_get(step, "same_as")));
    const char *key = json_str(json_get(step, "key"));
    const json *append = json_get(step, "append");
    chat *c = new_chat(json_str(json_get(step, "id")));
    if (json_i64(json_get(step, "max_tokens"), &value) == OK && value < REPLY)
        c->max_tokens = (int32_t)value;
    if (append != NULL) {
        go_on(c, same != NULL ? same : last, append);
    } else if (same != NULL) {
        c->n_prompt = same->n_prompt;
        c->max_tokens = same->max_tokens;
        memcpy(c->tokens, same->tokens, (size_t)same->n_prompt * sizeof(int32_t));
    } else {
        put(c, BOS);
        JSON_EACH(m, json_get(step, "messages")) put_message(c, m);
        put(c, FIRST_ROLE + 3);
    }
    if (is_per_key && key != NULL) c->salt = (uint8_t)key[1];
    if (json_get(step, "inject") != NULL) paged_toy_fail(toy, ERR_INTERNAL);
    int64_t n_most = 0;
    json_i64(json_get(step, "abort_after_chunks"), &n_most);
    collect(c, submit(c), n_most);
}

static void do_agent_loop(const json *step) {
    static const char message[] =
        "{\"role\":\"tool\",\"content\":\"the result of the call is 42\"}";
    json *m = NULL;
    int64_t n_turns = 1;
    int64_t n_system = 0;
    json_i64(json_get(step, "tool_turns"), &n_turns);
    json_i64(json_get(step, "system_tokens"), &n_system);
    json_parse(message, strlen(message), NULL, &m, NULL);
    chat *c = new_chat(json_str(json_get(step, "id")));
    put(c, BOS);
    put(c, FIRST_ROLE + 1);
    put_words(c, n_system, 42);
    put(c, FIRST_ROLE + 3);
    collect(c, submit(c), 0);
    n_growth = 0;
    for (int64_t i = 0; i < n_turns; i++) {
        chat *next = new_chat(c->id);
        go_on(next, c, m);
        collect(next, submit(next), 0);
        growth[n_growth++] = next->n_cached;
        c = next;
    }
    json_free(m);
}

static void do_parallel(const json *step) {
    ticket *t[MAX_CHATS];
    int64_t n = 0;
    int64_t n_tokens = 0;
    json_i64(json_get(step, "count"), &n);
    json_i64(json_get(step, "tokens_each"), &n_tokens);
    for (int64_t i = 0; i < n; i++) {
        chat *c = new_chat("parallel");
        put(c, BOS);
        put_words(c, n_tokens, 500 + (uint64_t)i);
        t[i] = submit(c);
    }
    for (int64_t i = 0; i < n; i++) {
        collect(&chats[n_chats - n + i], t[i], 0);
    }
}

static void do_replay_all(void) {
    int n = n_chats;
    for (int i = 0; i < n; i++) {
        chat *c = new_chat("replay");
        c->n_prompt = chats[i].n_prompt;
        memcpy(c->tokens, chats[i].tokens, (size_t)c->n_prompt * sizeof(int32_t));
        collect(c, submit(c), 0);
    }
}

/* ---- streams beside each other ---- */

/* Takes what is there; true while the reply goes on. */
static bool pump(chat *c, ticket *t) {
    run_event ev;
    while (ticket_next(t, &ev, 0) == OK) {
        if (ev.kind == RUN_EVENT_END) {
            c->end = ev.end;
            return false;
        }
        c->tokens[c->n_prompt + c->n_reply++] = ev.pick.token;
    }
    return true;
}

static ticket *start_words(const char *id, int64_t n_words, int32_t max_tokens, chat **out) {
    chat *c = *out = new_chat(id);
    put(c, BOS);
    put_words(c, n_words, 900 + (uint64_t)n_chats);
    c->max_tokens = max_tokens;
    return submit(c);
}

/* A reply of so many tokens, without stop tokens; the next step begins another beside it. */
static ticket *stream_ticket;
static chat *stream_chat;

static void do_stream(const json *step) {
    int64_t n = 0;
    json_i64(json_get(step, "tokens"), &n);
    has_no_stop = holds_on = true;
    stream_ticket = start_words(json_str(json_get(step, "id")), 20, (int32_t)n, &stream_chat);
    has_no_stop = holds_on = false;
}

static void do_after_tokens(const json *step) {
    const json *start = json_get(step, "start");
    int64_t n = 0;
    int64_t max_tokens = 8;
    json_i64(json_get(step, "n"), &n);
    json_i64(json_get(start, "max_tokens"), &max_tokens);
    bool goes_on = true;
    while (stream_chat->n_reply < n && goes_on) {
        goes_on = pump(stream_chat, stream_ticket);
        paged_toy_hold_after(toy, 1);
        sleep_ms(1);
    }
    chat *other = new_chat(json_str(json_get(start, "id")));
    put(other, BOS);
    JSON_EACH(m, json_get(start, "messages")) put_message(other, m);
    other->max_tokens = (int32_t)max_tokens;
    collect(other, submit(other), 0);
    if (goes_on) collect(stream_chat, stream_ticket, 0);
    if (!goes_on) ticket_free(stream_ticket);
}

static void do_warm(const json *step) {
    int64_t n = 0;
    chat *c;
    json_i64(json_get(step, "tokens"), &n);
    ticket *t = start_words(json_str(json_get(step, "id")), n, 24, &c);
    collect(c, t, 0);
}

/* Goes on beside what comes next; the tickets are given back with the case. */
static void do_load(const json *step) {
    int64_t n_prompt = 0;
    int64_t n_decoders = 0;
    chat *c;
    json_i64(json_get(step, "prefill_tokens"), &n_prompt);
    json_i64(json_get(step, "decoders"), &n_decoders);
    has_no_stop = holds_on = true;
    for (int64_t i = 0; i < n_decoders; i++) {
        loads[n_loads++] = start_words("decoder", 20, 250, &c);
    }
    has_no_stop = false;
    loads[n_loads++] = start_words("prefill", n_prompt, 8, &c);
    holds_on = false;
    /* What comes next finds all of them on their way. */
    int last = paged_toy_begun(toy) + LOAD_STEPS;
    paged_toy_hold_after(toy, LOAD_STEPS);
    while (paged_toy_begun(toy) < last)
        sleep_ms(1);
}

static void end_loads(void) {
    for (int i = 0; i < n_loads; i++) {
        ticket_free(loads[i]);
    }
    n_loads = 0;
}

/* ---- killed for real ---- */

/* An engine in a process of its own answers and is killed somewhere in its writing; then another one
 * goes on with what is on disk. */
static void kill_while_saving(const json *first, uint32_t after_ms) {
    stop_engine();
    pid_t pid = fork();
    if (pid == 0) {
        start_engine();
        do_chat(first);
        for (;;) {
            sleep_ms(1000);
        }
    }
    sleep_ms(after_ms);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    start_engine();
}

/* Times over: asked in a process that is killed, then in one that finds its files. */
static void do_repeat(const json *step) {
    const json *steps = json_get(step, "steps");
    const json *first = json_at(steps, 0);
    int64_t n_times = 1;
    rand_state random;
    rand_init(&random, 12, 1);
    json_i64(json_get(step, "times"), &n_times);
    if (getenv("TANDEM_LONG") != NULL) n_times *= 10;
    do_chat(first); /* what it must be */
    stop_engine();
    dir_remove_all(cache_dir, NULL);
    start_engine();
    for (int64_t i = 0; i < n_times; i++) {
        kill_while_saving(first, rand_u32(&random) % 120);
        do_chat(json_at(steps, json_count(steps) - 1));
        const chat *want = &chats[0];
        const chat *got = &chats[n_chats - 1];
        bool is_equal = want->n_reply == got->n_reply &&
                        memcmp(want->tokens, got->tokens,
                            (size_t)(want->n_prompt + want->n_reply) * sizeof(int32_t)) == 0;
        if (!is_equal) return; /* the last two chats are compared */
        mem_free(chats[--n_chats].tokens);
    }
    do_chat(json_at(steps, json_count(steps) - 1));
}

static void limit_files(rlim_t most) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = most;
    setrlimit(RLIMIT_FSIZE, &limit);
}

static bool do_inject(const json *step) {
    const char *fault = json_str(json_get(step, "fault"));
    if (strstr(fault, "ENOSPC") != NULL) {
        limit_files(100000);
        return true;
    }
    if (strstr(fault, "drops one row at step ") == NULL) return false;
    step_drop_row((int32_t)strtol(strstr(fault, "step ") + 5, NULL, 10), &facts);
    return true;
}

/* ---- files ---- */

static int each_file(int (*fn)(const char *path, double with), double with) {
    char top[512];
    int n = 0;
    DIR *a = opendir(cache_dir);
    for (struct dirent *d; a != NULL && (d = readdir(a)) != NULL;) {
        if (d->d_name[0] == '.') continue;
        snprintf(top, sizeof top, "%s/%.200s", cache_dir, d->d_name);
        DIR *b = opendir(top);
        for (struct dirent *f; b != NULL && (f = readdir(b)) != NULL;) {
            char path[800];
            if (f->d_name[0] == '.' || strcmp(f->d_name, "lock") == 0) continue;
            snprintf(path, sizeof path, "%s/%.200s", top, f->d_name);
            n += fn(path, with);
        }
        if (b != NULL) closedir(b);
    }
    if (a != NULL) closedir(a);
    return n;
}

static int cut_file(const char *path, double fraction) {
    struct stat st;
    return stat(path, &st) == 0 && truncate(path, (off_t)((double)st.st_size * fraction)) == 0;
}

static int flip_file(const char *path, double unused) {
    struct stat st;
    char c = 0;
    (void)unused;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool is_done = fd >= 0 && fstat(fd, &st) == 0 && pread(fd, &c, 1, st.st_size / 2) == 1;
    c = (char)(c ^ 4);
    is_done = is_done && pwrite(fd, &c, 1, st.st_size / 2) == 1;
    if (fd >= 0) close(fd);
    return is_done;
}

static int wrong_mode(const char *path, double unused) {
    struct stat st;
    (void)unused;
    return stat(path, &st) != 0 || (st.st_mode & 07777) != 0600;
}

/* ---- steps ---- */

static uint64_t duration_ms(const json *step) {
    int64_t minutes = 0;
    json_i64(json_get(step, "minutes"), &minutes);
    return (uint64_t)(minutes * 1000 * LONG_FACTOR / 2);
}

static void do_spec_compare(const json *step) {
    int64_t n_prompts = 20;
    json_i64(json_get(step, "prompts"), &n_prompts);
    step_facts all = {.identical_tokens = true};
    JSON_EACH(length, json_get(step, "draft_len")) {
        int64_t n = 0;
        json_i64(length, &n);
        facts = (step_facts){0};
        step_spec_compare((int32_t)n, (int32_t)n_prompts, &facts);
        all.identical_tokens &= facts.identical_tokens;
        all.has_begin_token |= facts.has_begin_token;
    }
    facts.identical_tokens = all.identical_tokens;
    facts.has_begin_token = all.has_begin_token;
}

static void do_spec_load(const json *step) {
    const json *lengths = json_get(step, "draft_len");
    int64_t n_streams = 4;
    bool is_finished = true;
    json_i64(json_get(step, "streams"), &n_streams);
    JSON_EACH(length, lengths) {
        int64_t n = 0;
        json_i64(length, &n);
        step_spec_load(
            (int32_t)n_streams, (int32_t)n, duration_ms(step) / json_count(lengths), &facts);
        is_finished &= facts.all_finished;
    }
    facts.all_finished = is_finished;
}

static bool do_rollback(const json *step) {
    int64_t mod[8] = {0};
    int n = 0;
    JSON_EACH(m, json_get(step, "positions_mod")) {
        if (n < 8) json_i64(m, &mod[n++]);
    }
    return step_rollback(mod, n, &facts);
}

/* Whole experiments, see engine_steps.h. */
static bool do_experiment(const char *what, const json *step) {
    int64_t a = 0;
    int64_t b = 0;
    double probability = 0.0;
    if (strcmp(what, "spec_compare") == 0) {
        do_spec_compare(step);
    } else if (strcmp(what, "spec_load") == 0) {
        do_spec_load(step);
    } else if (strcmp(what, "spec_stats") == 0) {
        json_i64(json_get(step, "prompts"), &a);
        json_i64(json_get(step, "draft_len"), &b);
        step_spec_stats((int32_t)a, (int32_t)b, &facts);
    } else if (strcmp(what, "chaos") == 0) {
        json_i64(json_get(step, "streams"), &a);
        json_double(json_get(step, "abort_probability"), &probability);
        step_chaos((int32_t)a, probability, duration_ms(step), &facts);
    } else if (strcmp(what, "rollback_state_compare") == 0) {
        return do_rollback(step);
    } else if (strcmp(what, "inject") == 0) {
        return do_inject(step);
    } else {
        return strcmp(what, "wait_ready") == 0;
    }
    return true;
}

/* False: this runner does not know the step. */
static bool do_step(const json *step) {
    const char *what = json_str(json_get(step, "do"));
    bool is_cold = strcmp(what, "restart_cold") == 0;
    if (strcmp(what, "chat") == 0) {
        do_chat(step);
    } else if (strcmp(what, "agent_loop") == 0) {
        do_agent_loop(step);
    } else if (strcmp(what, "parallel") == 0) {
        do_parallel(step);
    } else if (strcmp(what, "replay_all") == 0) {
        do_replay_all();
    } else if (strcmp(what, "stop") == 0 || strcmp(what, "kill_9") == 0) {
        stop_engine(); /* killed for real: tests/unit/test_disk.c */
    } else if (strcmp(what, "start") == 0) {
        start_engine();
    } else if (strncmp(what, "restart", 7) == 0) {
        stop_engine();
        if (is_cold) dir_remove_all(cache_dir, NULL);
        start_engine();
    } else if (strcmp(what, "truncate_cache_files") == 0) {
        double fraction = 0.5;
        json_double(json_at(json_get(step, "fractions"), 2), &fraction);
        each_file(cut_file, fraction);
    } else if (strcmp(what, "flip_byte_in_each_cache_file") == 0) {
        each_file(flip_file, 0);
    } else if (strcmp(what, "set") == 0) {
        stop_engine();
        has_constant_hash = json_get(step, "test_hook") != NULL;
        is_per_key = json_get(step, "cache_per_key") != NULL;
        start_engine();
    } else if (strcmp(what, "repeat") == 0) {
        do_repeat(step);
    } else if (strcmp(what, "clear_fault") == 0) {
        limit_files(RLIM_INFINITY);
    } else if (strcmp(what, "stream") == 0) {
        do_stream(step);
    } else if (strcmp(what, "after_tokens") == 0) {
        do_after_tokens(step);
    } else if (strcmp(what, "warm") == 0) {
        do_warm(step);
    } else if (strcmp(what, "load") == 0) {
        do_load(step);
    } else {
        return do_experiment(what, step);
    }
    return true;
}

/* ---- expectations ---- */

/* A number, or "id.usage.field" of a chat. */
static double value_of(const json *x) {
    char id[64];
    double number = -1;
    const char *path = json_str(x);
    if (path == NULL) {
        json_double(x, &number);
        return number;
    }
    size_t n = strcspn(path, ".");
    str_copy(id, n + 1 < sizeof id ? n + 1 : sizeof id, path);
    const chat *c = find_chat(id);
    if (c == NULL) return -1;
    if (strstr(path, "cached_tokens") != NULL) return c->n_cached;
    if (strstr(path, "attempts") != NULL) return 1;
    return strstr(path, "prompt_tokens") != NULL ? c->n_prompt : -1;
}

static bool same_text(const json *a, const json *b) {
    const chat *x = find_chat(json_str(a));
    const chat *y = find_chat(json_str(b));
    return x != NULL && y != NULL && x->end == y->end && x->end != RUN_END_ERROR &&
           x->n_reply == y->n_reply &&
           memcmp(x->tokens + x->n_prompt, y->tokens + y->n_prompt,
               (size_t)x->n_reply * sizeof(int32_t)) == 0;
}

static bool check_status(const json *args) {
    const chat *c = find_chat(json_str(json_at(args, 0)));
    double want = value_of(json_at(args, 1));
    return c != NULL && (c->end == RUN_END_ERROR) == (want >= 500);
}

/* What experiments are expected to show; *is_known: the name is one of theirs. */
static bool check_facts(const char *op, const json *args, bool *is_known) {
    double value = 0.0;
    json_double(args, &value);
    const struct {
        const char *name;
        bool is_so;
    } all[] = {{"identical_tokens", facts.identical_tokens},
        {"never_token", !facts.has_begin_token},
        {"no_stall_longer_s", facts.longest_wait_s <= value}, {"all_finished", facts.all_finished},
        {"reported", facts.is_reported}, {"monotone_not_collapsing", facts.is_monotone},
        {"state_identical", facts.state_identical}, {"digests_equal", facts.digests_equal},
        {"error_within_s", facts.error_after_s >= 0.0 && facts.error_after_s <= value},
        {"both_nodes_report", facts.both_report}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(op, all[i].name) == 0) return all[i].is_so;
    }
    *is_known = false;
    return false;
}

static bool all_finished(const json *names) {
    JSON_EACH(name, names) {
        const chat *c = find_chat(json_str(name));
        if (c == NULL || (c->end != RUN_END_STOP && c->end != RUN_END_LENGTH)) return false;
    }
    return true;
}

static bool check(const char *op, const json *args) {
    const json *a = json_at(args, 0);
    const json *b = json_at(args, 1);
    struct stat st;
    bool is_known = true;
    bool is_so = check_facts(op, args, &is_known);
    if (is_known) return is_so;
    if (strcmp(op, "equal_text") == 0) {
        return same_text(a, b) && (json_count(args) < 3 || same_text(a, json_at(args, 2)));
    }
    if (strcmp(op, "not_equal_text") == 0) return !same_text(a, b);
    is_known = true;
    is_so = step_compare(op, value_of(a), value_of(b), &is_known);
    if (is_known) return is_so;
    if (strcmp(op, "gte_ratio") == 0) {
        return value_of(a) >= value_of(json_at(args, 2)) * value_of(b);
    }
    if (strcmp(op, "status") == 0) return check_status(args);
    if (strcmp(op, "max_gap_s") == 0) {
        double gap = (double)paged_toy_longest_gap(toy) / 1e9;
        return gap > 0.0 && gap <= value_of(b) && gap <= 0.16; /* of 150 ms that are aimed for */
    }
    if (strcmp(op, "finished") == 0) return all_finished(args);
    if (strcmp(op, "ttft_s_lte") == 0) {
        const chat *c = find_chat(json_str(a));
        return c != NULL && c->first_s <= value_of(b);
    }
    if (strcmp(op, "no_partial_files") == 0) return strstr(log_text, "dropped") == NULL;
    if (strcmp(op, "log_contains") == 0) return strstr(log_text, json_str(args)) != NULL;
    if (strcmp(op, "hits") == 0) {
        int n = 0;
        for (int i = 0; i < n_chats; i++) {
            n += strcmp(chats[i].id, "replay") == 0 && chats[i].n_cached == chats[i].n_prompt - 1;
        }
        return n == (int)value_of(args);
    }
    if (strcmp(op, "strictly_increasing") == 0) {
        for (int i = 1; i < n_growth; i++) {
            if (growth[i] <= growth[i - 1]) return false;
        }
        return n_growth > 1;
    }
    if (strcmp(op, "file_modes") == 0) {
        return each_file(wrong_mode, 0) == 0 && stat(cache_dir, &st) == 0 &&
               (st.st_mode & 07777) == 0700;
    }
    return false;
}

static void run_case(const json *c) {
    const char *id = json_str(json_get(c, "id"));
    bool is_known = true;
    n_log = 0;
    log_text[0] = '\0';
    has_constant_hash = is_per_key = false;
    facts = (step_facts){0};
    dir_remove_all(cache_dir, NULL);
    start_engine();
    JSON_EACH(step, json_get(c, "steps")) is_known = is_known && do_step(step);
    if (!is_known) {
        vectors_skip(
            &v, id, "there is no built-in model here (templates/demo-model or DEMO_WEIGHTS)");
    }
    JSON_EACH(e, json_get(c, "expect")) {
        JSON_EACH(args, e) {
            char got[400];
            if (!is_known) break;
            const json *a = json_at(args, 0);
            const chat *x = find_chat(json_str(a));
            const chat *y = find_chat(json_str(json_at(args, 1)));
            int n = snprintf(got, sizeof got, "%s values %g and %g, replies of %d and %d tokens",
                facts.detail, value_of(a), value_of(json_at(args, 1)), x != NULL ? x->n_reply : -1,
                y != NULL ? y->n_reply : -1);
            CHECK(n > 0);
            if (check(json_key(args), args)) {
                vectors_pass(&v);
            } else {
                vectors_fail(&v, id, json_key(args), got);
            }
        }
    }
    end_loads();
    stop_engine();
    for (int i = 0; i < n_chats; i++) {
        mem_free(chats[i].tokens);
    }
    n_chats = 0;
}

static int each_case(void *ctx, const char *name, err *e) {
    const char *dir = ctx;
    (void)e;
    if (!str_ends(name, ".json")) return OK;
    json *c = vectors_load(dir, name);
    run_case(c);
    json_free(c);
    return OK;
}

int main(void) {
    char dir[1024];
    err e = ERR_INIT;
    snprintf(dir, sizeof dir, "%s/engine", vectors_cases_dir());
    snprintf(cache_dir, sizeof cache_dir, "/tmp/tandem-cases-XXXXXX");
    if (mkdtemp(cache_dir) == NULL) return 1;
    log_open(&(log_options){.fd = -1, .level = LOG_WARN, .rank = -1, .sink = keep_line});
    if (dir_each(dir, each_case, dir, &e) != OK) {
        printf("%s: %s\n", dir, e.msg);
        return 1;
    }
    dir_remove_all(cache_dir, NULL);
    return vectors_end(&v);
}
