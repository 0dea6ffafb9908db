/* The cases of the folder engine (CASES_DIR, default tests/data/cases) against the scheduler and its
 * caches over a stand-in for the model (paged_toy.h), at the sizes the cases name. A word of a message
 * is one token. What is about the model, several ranks or time has tests of its own and is skipped
 * here with the place named. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/run/run.h"
#include "tests/harness/paged_toy.h"
#include "tests/harness/vectors.h"

enum { PAGE = 128, CONTEXT = 40960, MAX_CHATS = 64, REPLY = 64 };
enum { BOS = 2, FIRST_ROLE = 3, FIRST_WORD = 8 };

typedef struct chat {
    char id[32];
    int32_t *tokens; /* prompt, then reply */
    int32_t n_prompt, n_reply, n_cached, end;
    int32_t max_tokens;
    uint8_t salt;
} chat;

static vectors v;
static paged_toy *toy;
static run *engine;
static chat chats[MAX_CHATS];
static int n_chats;
static char cache_dir[64], log_text[1 << 16];
static size_t n_log;
static bool has_constant_hash, is_per_key;
static int32_t growth[64];
static int n_growth;

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
        .has_drafts = true};
    toy = paged_toy_new(&to);
    run_options o = {.source = paged_toy_source(toy),
        .cache_dir = cache_dir,
        .cache_disk_bytes = (uint64_t)1 << 30,
        .has_constant_hash = has_constant_hash};
    if (run_open(&o, &engine, NULL) != OK) exit(1);
}

static void stop_engine(void) {
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

static void put_message(chat *c, const json *m) {
    static const char *const roles[] = {"user", "system", "tool", "assistant"};
    const char *role = json_str(json_get(m, "role"));
    const json *content = json_get(m, "content");
    int32_t i = 0;
    while (i < 3 && role != NULL && strcmp(role, roles[i]) != 0) {
        i++;
    }
    put(c, FIRST_ROLE + i);
    if (json_str(content) != NULL) {
        put_text(c, json_str(content));
    } else {
        put_generated(c, json_str(json_get(content, "$generate")));
    }
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
        .n_stop_ids = 1,
        .salt = {c->salt}};
    sample_params_init(&q.sampling);
    q.sampling.temperature = 0.0f;
    if (run_submit(engine, &q, &t, &e) != OK) {
        printf("submit %s: %s\n", c->id, e.msg);
        exit(1);
    }
    return t;
}

static void collect(chat *c, ticket *t, int64_t n_most) {
    run_event ev = {0};
    run_progress p;
    while (ticket_next(t, &ev, 60000) == OK && ev.kind == RUN_EVENT_TOKEN) {
        c->tokens[c->n_prompt + c->n_reply++] = ev.pick.token;
        if (c->n_reply == n_most) ticket_cancel(t);
        if (c->n_reply == REPLY) break;
    }
    c->end = ev.end;
    ticket_progress(t, &p);
    c->n_cached = p.n_cached;
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
    } else {
        return strcmp(what, "wait_ready") == 0;
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

static bool check(const char *op, const json *args) {
    const json *a = json_at(args, 0);
    const json *b = json_at(args, 1);
    struct stat st;
    if (strcmp(op, "equal_text") == 0) {
        return same_text(a, b) && (json_count(args) < 3 || same_text(a, json_at(args, 2)));
    }
    if (strcmp(op, "not_equal_text") == 0) return !same_text(a, b);
    if (strcmp(op, "equal") == 0) return value_of(a) == value_of(b);
    if (strcmp(op, "gt") == 0) return value_of(a) > value_of(b);
    if (strcmp(op, "lte") == 0) return value_of(a) <= value_of(b);
    if (strcmp(op, "gte_ratio") == 0) {
        return value_of(a) >= value_of(json_at(args, 2)) * value_of(b);
    }
    if (strcmp(op, "status") == 0) return check_status(args);
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
    dir_remove_all(cache_dir, NULL);
    start_engine();
    JSON_EACH(step, json_get(c, "steps")) is_known = is_known && do_step(step);
    if (!is_known) {
        vectors_skip(&v, id,
            "needs the model, several ranks or time: test_run, test_disk, test_serving, test_soak");
    }
    JSON_EACH(e, json_get(c, "expect")) {
        JSON_EACH(args, e) {
            char got[160];
            if (!is_known) break;
            const json *a = json_at(args, 0);
            const chat *x = find_chat(json_str(a));
            const chat *y = find_chat(json_str(json_at(args, 1)));
            snprintf(got, sizeof got, "values %g and %g, replies of %d and %d tokens", value_of(a),
                value_of(json_at(args, 1)), x != NULL ? x->n_reply : -1,
                y != NULL ? y->n_reply : -1);
            if (check(json_key(args), args)) {
                vectors_pass(&v);
            } else {
                vectors_fail(&v, id, json_key(args), got);
            }
        }
    }
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
    snprintf(cache_dir, sizeof cache_dir, "/tmp/tandem-cases-%d", (int)getpid());
    log_open(&(log_options){.fd = -1, .level = LOG_WARN, .rank = -1, .sink = keep_line});
    if (dir_each(dir, each_case, dir, &e) != OK) {
        printf("%s: %s\n", dir, e.msg);
        return 1;
    }
    dir_remove_all(cache_dir, NULL);
    return vectors_end(&v);
}
