#include "tests/harness/disk_side.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/rand.h"

static char folder[64];
static char log_lines[65536];
static size_t n_log;
static _Atomic int n_not_written; /* lines of the writer thread, while it runs */

static reply want[N_PROMPTS];

const char *side_folder(void) {
    return folder;
}

const char *side_log(void) {
    return log_lines;
}

int side_n_not_written(void) {
    return atomic_load(&n_not_written);
}

const reply *side_want(int i) {
    return &want[i];
}

static void keep_line(void *ctx, log_level level, const char *line, size_t len) {
    (void)ctx;
    (void)level;
    if (memmem(line, len, "not written", 11) != NULL) atomic_fetch_add(&n_not_written, 1);
    if (n_log + len >= sizeof log_lines) n_log = 0;
    memcpy(log_lines + n_log, line, len);
    n_log += len;
    log_lines[n_log] = '\0';
}

void open_side(side *s, const char *dir, uint64_t budget, uint8_t identity) {
    paged_toy_options to = {.n_slots = 2,
        .n_pages = 256,
        .page_tokens = PAGE,
        .max_context = CONTEXT,
        .max_rows = 64,
        .has_drafts = true};
    s->toy = paged_toy_new(&to);
    run_options ro = {.source = paged_toy_source(s->toy),
        .cache_dir = dir,
        .cache_disk_bytes = budget,
        .cache_identity = {identity},
        .mark_tokens = 8 * PAGE,
        .no_cache = dir == NULL};
    n_log = 0;
    log_lines[0] = '\0';
    assert_int_equal(run_open(&ro, &s->run, NULL), OK);
}

void close_side(side *s) {
    run_close(s->run);
    paged_toy_free(s->toy);
}

int32_t make_prompt(int i, int32_t tokens[CONTEXT]) {
    int32_t n = 100 + i * 61;
    for (int32_t k = 0; k < n; k++) {
        uint64_t seed = k < 90 ? (uint64_t)(i / 2) : (uint64_t)i;
        tokens[k] = (int32_t)(rand_keyed(seed, (uint64_t)k, 3) % (PAGED_TOY_VOCAB - 2)) + 2;
    }
    return n;
}

reply ask(side *s, int i) {
    int32_t tokens[CONTEXT];
    const int32_t stop = PAGED_TOY_EOS;
    reply out = {.n_prompt = make_prompt(i, tokens)};
    run_event ev;
    run_progress p;
    ticket *t;
    run_request q = {.prompt = tokens,
        .n_prompt = out.n_prompt,
        .max_tokens = REPLY,
        .stop_ids = &stop,
        .n_stop_ids = 1};
    sample_params_init(&q.sampling);
    q.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    assert_int_equal(run_submit(s->run, &q, &t, NULL), OK);
    while (ticket_next(t, &ev, WAIT_MS) == OK && ev.kind == RUN_EVENT_TOKEN) {
        out.tokens[out.n++] = ev.pick.token;
    }
    assert_int_not_equal(ev.end, RUN_END_ERROR);
    ticket_progress(t, &p);
    out.n_cached = p.n_cached;
    ticket_free(t);
    return out;
}

int ask_all(side *s) {
    int n_hits = 0;
    for (int i = 0; i < N_PROMPTS; i++) {
        reply got = ask(s, i);
        assert_int_equal(got.n, want[i].n);
        assert_memory_equal(got.tokens, want[i].tokens, (size_t)got.n * sizeof got.tokens[0]);
        n_hits += got.n_cached == got.n_prompt - 1;
    }
    return n_hits;
}

void remove_folder(void) {
    assert_int_equal(dir_remove_all(folder, NULL), OK);
}

void write_once(void) {
    side s;
    run_entry list[N_LIST];
    open_side(&s, folder, 1 << 24, 1);
    ask_all(&s);
    await_stored(&s, list);
    close_side(&s);
}

int each_file(int (*fn)(const char *path, void *ctx), void *ctx) {
    int n = 0;
    DIR *top = opendir(folder);
    for (struct dirent *d; top != NULL && (d = readdir(top)) != NULL;) {
        char path[1024];
        if (d->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%.200s", folder, d->d_name);
        DIR *in = opendir(path);
        for (struct dirent *f; in != NULL && (f = readdir(in)) != NULL;) {
            char file[1400];
            if (f->d_name[0] == '.' || strcmp(f->d_name, "lock") == 0) continue;
            snprintf(file, sizeof file, "%s/%.200s", path, f->d_name);
            n += fn(file, ctx);
        }
        if (in != NULL) closedir(in);
    }
    if (top != NULL) closedir(top);
    return n;
}

int count_pages(const char *path, void *ctx) {
    const int *i_prompt = ctx;
    int32_t tokens[CONTEXT];
    int32_t n = make_prompt(*i_prompt, tokens);
    buf text = BUF_MAX((size_t)1 << 26);
    int found = 0;
    assert_int_equal(file_read(path, &text, text.max, NULL), OK);
    for (int32_t at = 0; at + PAGE <= n; at += PAGE) {
        found += memmem(text.data, text.len, tokens + at, PAGE * sizeof *tokens) != NULL;
    }
    buf_release(&text);
    return found;
}

int32_t list_all(side *s, run_entry list[N_LIST]) {
    int32_t n = 0;
    run_stats stats;
    do {
        run_stats_get(s->run, &stats);
        if (stats.n_running > 0) sleep_ms(1);
    } while (stats.n_running > 0);
    assert_int_equal(run_entries(s->run, list, N_LIST, &n, NULL), OK);
    assert_true(n <= N_LIST);
    return n;
}

int32_t await_stored(side *s, run_entry list[N_LIST]) {
    int32_t n = 0;
    int32_t n_stored = 0;
    uint64_t until = clock_mono_ms() + WAIT_MS;
    while ((n == 0 || n_stored < n) && clock_mono_ms() < until) { /* the writer gets to it */
        n = list_all(s, list);
        n_stored = 0;
        for (int32_t i = 0; i < n; i++) {
            n_stored += list[i].is_on_disk;
        }
        if (n_stored < n) sleep_ms(5);
    }
    assert_true(n > 0);
    assert_int_equal(n_stored, n);
    return n;
}

int drop(side *s, uint64_t id, bool *was_on_disk) {
    int rc = run_entry_drop(s->run, id, was_on_disk, NULL);
    if (rc != ERR_TIMEOUT) return rc;
    bool was_there = false;
    while (rc == ERR_TIMEOUT) {
        rc = run_entry_drop(s->run, id, &was_there, NULL);
        *was_on_disk |= was_there;
    }
    return rc == ERR_NOT_FOUND ? OK : rc; /* it was found the first time */
}

int forget(side *s, int32_t n_tokens) {
    run_entry list[N_LIST];
    int32_t n = list_all(s, list);
    int n_dropped = 0;
    for (int32_t i = 0; i < n; i++) {
        bool was_on_disk;
        if (list[i].n_tokens <= n_tokens) continue;
        assert_int_equal(drop(s, list[i].id, &was_on_disk), OK);
        n_dropped++;
    }
    return n_dropped;
}

uint64_t records(const side *s) {
    run_stats stats;
    run_stats_get(s->run, &stats);
    return stats.disk.n_records;
}

void await_records(const side *s, uint64_t n_records) {
    run_entry list[1];
    int32_t n;
    uint64_t until = clock_mono_ms() + WAIT_MS;
    while (records(s) < n_records && clock_mono_ms() < until) {
        assert_int_equal(run_entries(s->run, list, 1, &n, NULL), OK);
        sleep_ms(5);
    }
    assert_true(records(s) >= n_records);
}

int count_file(const char *path, void *ctx) {
    (void)path;
    (void)ctx;
    return 1;
}

int add_size(const char *path, void *ctx) {
    uint64_t size = 0;
    if (file_size(path, &size, NULL) == OK) *(uint64_t *)ctx += size;
    return 1;
}

int side_setup(void **state) {
    side s;
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tandem-disk-%d", (int)getpid());
    log_open(&(log_options){.fd = -1, .level = LOG_WARN, .rank = -1, .sink = keep_line});
    open_side(&s, NULL, 0, 0);
    for (int i = 0; i < N_PROMPTS; i++) {
        want[i] = ask(&s, i);
    }
    close_side(&s);
    return 0;
}

int side_teardown(void **state) {
    (void)state;
    log_close();
    return dir_remove_all(folder, NULL);
}
