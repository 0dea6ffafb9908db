/* The prefix cache on disk: restarted = fresh, and whatever happens to the files, or whenever the
 * process is killed, never a wrong answer. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/entries.h"
#include "engine/run/run.h"
#include "tests/harness/paged_toy.h"

enum { PAGE = 16, CONTEXT = 1024, REPLY = 12, N_PROMPTS = 6, WAIT_MS = 120000 };

static char folder[64];
static char log_lines[65536];
static size_t n_log;
static _Atomic int n_not_written; /* lines of the writer thread, while it runs */

static void keep_line(void *ctx, log_level level, const char *line, size_t len) {
    (void)ctx;
    (void)level;
    if (memmem(line, len, "not written", 11) != NULL) atomic_fetch_add(&n_not_written, 1);
    if (n_log + len >= sizeof log_lines) n_log = 0;
    memcpy(log_lines + n_log, line, len);
    n_log += len;
    log_lines[n_log] = '\0';
}

typedef struct side {
    paged_toy *toy;
    run *run;
} side;

static void open_side(side *s, const char *dir, uint64_t budget, uint8_t identity) {
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

static void close_side(side *s) {
    run_close(s->run);
    paged_toy_free(s->toy);
}

typedef struct reply {
    int32_t tokens[REPLY];
    int n;
    int32_t n_cached, n_prompt;
} reply;

/* Prompt i: of a length of its own; every second one shares a beginning with the one before. */
static int32_t make_prompt(int i, int32_t tokens[CONTEXT]) {
    int32_t n = 100 + i * 61;
    for (int32_t k = 0; k < n; k++) {
        uint64_t seed = k < 90 ? (uint64_t)(i / 2) : (uint64_t)i;
        tokens[k] = (int32_t)(rand_keyed(seed, (uint64_t)k, 3) % (PAGED_TOY_VOCAB - 2)) + 2;
    }
    return n;
}

static reply ask(side *s, int i) {
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

static reply want[N_PROMPTS];

/* Asks all; every answer must be the fresh one. Returns how many came from the cache. */
static int ask_all(side *s) {
    int n_hits = 0;
    for (int i = 0; i < N_PROMPTS; i++) {
        reply got = ask(s, i);
        assert_int_equal(got.n, want[i].n);
        assert_memory_equal(got.tokens, want[i].tokens, (size_t)got.n * sizeof got.tokens[0]);
        n_hits += got.n_cached == got.n_prompt - 1;
    }
    return n_hits;
}

static void remove_folder(void) {
    assert_int_equal(dir_remove_all(folder, NULL), OK);
}

static void write_once(void) {
    side s;
    open_side(&s, folder, 1 << 24, 1);
    ask_all(&s);
    close_side(&s);
}

/* Calls fn for each file of the cache. */
static int each_file(int (*fn)(const char *path, void *ctx), void *ctx) {
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

static void restarted_equals_fresh(void **state) {
    (void)state;
    side s;
    remove_folder();
    write_once();
    open_side(&s, folder, 1 << 24, 1);
    assert_int_equal(ask_all(&s), N_PROMPTS);
    run_stats stats;
    run_stats_get(s.run, &stats);
    assert_true(stats.n_disk_tokens > 0);
    assert_int_equal(stats.pages_used, 0);
    close_side(&s);
    open_side(&s, folder, 1 << 24, 2); /* another model: nothing of it counts */
    for (int i = 0; i < N_PROMPTS; i++) {
        assert_true(ask(&s, i).n_cached < 90);
    }
    close_side(&s);
    open_side(&s, folder, 1 << 24, 1);
    assert_int_equal(ask_all(&s), N_PROMPTS);
    close_side(&s);
}

static int check_modes(const char *path, void *ctx) {
    struct stat st;
    (void)ctx;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    return 1;
}

static void files_are_private(void **state) {
    (void)state;
    struct stat st;
    remove_folder();
    write_once();
    assert_true(each_file(check_modes, NULL) >= 2);
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
}

typedef struct damage {
    double fraction; /* >= 0: cut there; else flip a byte */
    rand_state *rand;
} damage;

static int spoil(const char *path, void *ctx) {
    damage *d = ctx;
    uint64_t size = 0;
    assert_int_equal(file_size(path, &size, NULL), OK);
    if (d->fraction >= 0) {
        assert_int_equal(truncate(path, (off_t)((double)size * d->fraction)), 0);
        return 1;
    }
    uint64_t at = size / 2;
    if (d->rand != NULL) {
        if (rand_u32(d->rand) % 2 == 0) return 0; /* not every file each time */
        at = rand_u64(d->rand) % size;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char c;
    assert_int_equal(pread(fd, &c, 1, (off_t)at), 1);
    c = (char)(c ^ (1 << (at % 8)));
    assert_int_equal(pwrite(fd, &c, 1, (off_t)at), 1);
    close(fd);
    return 1;
}

static void cut_files_are_a_miss(void **state) {
    (void)state;
    static const double fractions[] = {0, 0.01, 0.25, 0.5, 0.9, 0.999};
    for (size_t i = 0; i < sizeof fractions / sizeof fractions[0]; i++) {
        side s;
        damage d = {.fraction = fractions[i]};
        remove_folder();
        write_once();
        assert_true(each_file(spoil, &d) >= 2);
        open_side(&s, folder, 1 << 24, 1);
        assert_true(ask_all(&s) < N_PROMPTS || fractions[i] > 0.5);
        assert_non_null(strstr(log_lines, "cache entry dropped"));
        close_side(&s);
        open_side(&s, folder, 1 << 24, 1); /* written again meanwhile */
        assert_int_equal(ask_all(&s), N_PROMPTS);
        close_side(&s);
    }
}

static void flipped_bytes_are_a_miss(void **state) {
    (void)state;
    rand_state r;
    rand_init(&r, 11, 1);
    for (int i = 0; i < 40; i++) {
        side s;
        damage d = {.fraction = -1, .rand = i == 0 ? NULL : &r};
        remove_folder();
        write_once();
        each_file(spoil, &d);
        open_side(&s, folder, 1 << 24, 1);
        int n_hits = ask_all(&s);
        if (i == 0) assert_int_equal(n_hits, 0); /* one in each file, in the middle */
        close_side(&s);
    }
}

/* How often whole pages of a prompt stand in a file. */
static int count_pages(const char *path, void *ctx) {
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

/* Forgets saved states of more than n_tokens; how many there were. */
static int forget(side *s, int32_t n_tokens) {
    run_entry list[256];
    int32_t n = 0;
    int n_dropped = 0;
    run_stats stats;
    do { /* the last state of a stream is saved behind its last token */
        run_stats_get(s->run, &stats);
    } while (stats.n_running > 0);
    assert_int_equal(run_entries(s->run, list, 256, &n, NULL), OK);
    assert_true(n <= 256);
    for (int32_t i = 0; i < n; i++) {
        bool was_on_disk;
        if (list[i].n_tokens <= n_tokens) continue;
        assert_int_equal(run_entry_drop(s->run, list[i].id, &was_on_disk, NULL), OK);
        n_dropped++;
    }
    return n_dropped;
}

static uint64_t records(const side *s) {
    run_stats stats;
    run_stats_get(s->run, &stats);
    return stats.disk.n_records;
}

/* Until so many are written; a thread that sleeps counts them when it is asked something. */
static void await_records(const side *s, uint64_t n_records) {
    run_entry list[1];
    int32_t n;
    uint64_t until = clock_mono_ms() + WAIT_MS;
    while (records(s) < n_records && clock_mono_ms() < until) {
        assert_int_equal(run_entries(s->run, list, 1, &n, NULL), OK);
        sleep_ms(5);
    }
    assert_true(records(s) >= n_records);
}

static void forgotten_states_do_not_come_back(void **state) {
    (void)state;
    side s;
    run_stats stats;
    remove_folder();
    write_once();
    for (int i = 0; i < N_PROMPTS; i++) {
        assert_true(each_file(count_pages, &i) > 0);
    }
    open_side(&s, folder, 1 << 24, 1);
    uint64_t n_records = records(&s);
    assert_true(n_records > 0);
    close_side(&s);
    for (int round = 0; round < 2; round++) { /* what is on its way, and what is written */
        remove_folder();
        open_side(&s, folder, 1 << 24, 1);
        assert_int_equal(ask_all(&s), 0);
        if (round == 1) await_records(&s, n_records);
        assert_true(forget(&s, 0) >= N_PROMPTS);
        assert_int_equal(forget(&s, 0), 0);
        run_stats_get(s.run, &stats);
        assert_int_equal(stats.pages_cached, 0);
        close_side(&s);
        for (int i = 0; i < N_PROMPTS; i++) {
            int n_left = each_file(count_pages, &i);
            if (n_left > 0) fail_msg("round %d, prompt %d: %d", round, i, n_left);
        }
        open_side(&s, folder, 1 << 24, 1);
        if (strstr(log_lines, "dropped") != NULL) fail_msg("%s", log_lines);
        assert_int_equal(records(&s), 0);
        assert_int_equal(ask_all(&s), 0);
        close_side(&s);
    }
}

static int count_file(const char *path, void *ctx) {
    (void)path;
    (void)ctx;
    return 1;
}

static void a_wipe_leaves_nothing(void **state) {
    (void)state;
    side s;
    remove_folder();
    open_side(&s, folder, 1 << 24, 1);
    run_wiped x;
    for (int round = 0; round < 2; round++) { /* what is on its way, and what is written */
        assert_int_equal(ask_all(&s), 0);
        if (round == 1) await_records(&s, 1);
        int n_gone = 0;
        uint64_t n_bytes = 0;
        int rc;
        do { /* a disk that takes long has to be asked again */
            rc = run_entries_wipe(s.run, &x, NULL);
            n_gone += x.n_entries;
            n_bytes += x.disk_bytes;
        } while (rc == ERR_TIMEOUT);
        assert_int_equal(rc, OK);
        assert_true(n_gone >= N_PROMPTS);
        assert_int_equal(x.n_kept, 0);
        assert_true(round == 0 || n_bytes > 0);
        /* Now, not later: no file is left, and neither memory nor disk knows a prompt. */
        assert_int_equal(each_file(count_file, NULL), 0);
        run_stats stats;
        run_stats_get(s.run, &stats);
        assert_int_equal(stats.pages_cached, 0);
    }
    /* It goes on as before. */
    assert_int_equal(ask_all(&s), 0);
    assert_int_equal(ask_all(&s), N_PROMPTS);
    close_side(&s);
    assert_true(each_file(count_file, NULL) > 0);
    open_side(&s, folder, 1 << 24, 1);
    assert_int_equal(ask_all(&s), N_PROMPTS);
    close_side(&s);
    open_side(&s, NULL, 0, 0); /* without a cache there is nothing to do */
    assert_int_equal(run_entries_wipe(s.run, &x, NULL), OK);
    assert_int_equal(x.n_entries, 0);
    close_side(&s);
}

static void what_others_need_is_not_forgotten(void **state) {
    (void)state;
    enum { SHORT = 0, LONG = 1 };
    side s;
    reply r;
    remove_folder();
    open_side(&s, folder, 1 << 24, 1);
    ask(&s, SHORT);
    int32_t n_short = ask(&s, SHORT).n_prompt + REPLY; /* its longest state */
    ask(&s, LONG);
    assert_true(forget(&s, n_short) > 0);
    close_side(&s);
    open_side(&s, folder, 1 << 24, 1);
    r = ask(&s, SHORT);
    assert_int_equal(r.n_cached, r.n_prompt - 1);
    r = ask(&s, LONG);
    assert_true(r.n_cached <= n_short);
    assert_int_equal(r.n, want[LONG].n);
    assert_memory_equal(r.tokens, want[LONG].tokens, (size_t)r.n * sizeof r.tokens[0]);
    close_side(&s);
}

static void what_can_not_be_opened_is_a_miss(void **state) {
    (void)state;
    side s;
    side other;
    open_side(&s, "/proc/no/such", 1 << 24, 1);
    ask_all(&s);
    assert_non_null(strstr(log_lines, "no disk cache"));
    close_side(&s);
    remove_folder();
    open_side(&s, folder, 1 << 24, 1);
    open_side(&other, folder, 1 << 24, 1); /* the folder is taken */
    assert_non_null(strstr(log_lines, "another engine uses"));
    ask_all(&other);
    close_side(&other);
    close_side(&s);
}

/* The lock of the file's folder leads to ctx, which is not there. */
static int make_lock_a_link(const char *path, void *ctx) {
    char lock[1024];
    snprintf(ctx, 128, "%s-elsewhere", folder);
    snprintf(lock, sizeof lock, "%.*s/lock", (int)(strrchr(path, '/') - path), path);
    (void)unlink(lock);
    return symlink(ctx, lock);
}

static int open_to_all(const char *path, void *ctx) {
    char dir[1024];
    (void)ctx;
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    return chmod(dir, 0777);
}

/* Others could lay files there, or make it lead to another place. */
static void a_folder_of_others_is_not_used(void **state) {
    (void)state;
    side s;
    char link_path[128];
    remove_folder();
    write_once();
    assert_int_equal(each_file(open_to_all, NULL), 0);
    open_side(&s, folder, 1 << 24, 1);
    assert_non_null(strstr(log_lines, "no folder of this user alone"));
    assert_int_equal(ask_all(&s), 0);
    close_side(&s);
    /* A lock that is a link is none. */
    remove_folder();
    write_once();
    assert_int_equal(each_file(make_lock_a_link, link_path), 0);
    open_side(&s, folder, 1 << 24, 1);
    assert_non_null(strstr(log_lines, "no disk cache"));
    close_side(&s);
    assert_int_not_equal(access(link_path, F_OK), 0);
}

/* In a process of its own, as the limit stays. */
static void a_full_disk_is_a_miss(void **state) {
    (void)state;
    remove_folder();
    pid_t pid = fork();
    if (pid == 0) {
        side s;
        struct rlimit limit = {20000, 20000};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        open_side(&s, folder, 1 << 24, 1);
        ask_all(&s);
        for (uint64_t until = clock_mono_ms() + WAIT_MS;
             atomic_load(&n_not_written) == 0 && clock_mono_ms() < until;) {
            sleep_ms(5);
        }
        close_side(&s);
        _exit(atomic_load(&n_not_written) > 0 ? 0 : 3);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    side s;
    open_side(&s, folder, 1 << 24, 1);
    ask_all(&s);
    assert_null(strstr(log_lines, "dropped"));
    close_side(&s);
}

static int add_size(const char *path, void *ctx) {
    uint64_t size = 0;
    if (file_size(path, &size, NULL) == OK) *(uint64_t *)ctx += size;
    return 1;
}

static void the_budget_is_kept(void **state) {
    (void)state;
    side s;
    remove_folder();
    open_side(&s, folder, 1 << 19, 1); /* eight segments */
    run_stats stats = {0};
    for (int i = 0; i < 5000 && stats.disk.n_written_bytes < (1u << 20); i++) {
        int32_t tokens[CONTEXT];
        ticket *t;
        run_event ev;
        for (int32_t k = 0; k < 1000; k++) {
            tokens[k] = (int32_t)(rand_keyed((uint64_t)i, (uint64_t)k, 9) % 50) + 2;
        }
        run_request q = {.prompt = tokens, .n_prompt = 1000, .max_tokens = 1};
        sample_params_init(&q.sampling);
        assert_int_equal(run_submit(s.run, &q, &t, NULL), OK);
        while (ticket_next(t, &ev, WAIT_MS) == OK && ev.kind == RUN_EVENT_TOKEN) {
        }
        ticket_free(t);
        sleep_ms(1);
        run_stats_get(s.run, &stats);
    }
    close_side(&s);
    uint64_t total = 0;
    each_file(add_size, &total);
    assert_true(stats.disk.n_written_bytes >= (1u << 20));
    assert_in_range(total, 1 << 17, 5 << 17); /* manifest and the segment being written on top */
    open_side(&s, folder, 1 << 19, 1);
    ask_all(&s);
    close_side(&s);
}

/* Killed at any time while it writes, many times over: what is found afterwards is right. */
static void killed_at_any_time(void **state) {
    (void)state;
    rand_state r;
    int n_kills = getenv("TANDEM_LONG") != NULL ? 200 : 20;
    int n_hits = 0;
    rand_init(&r, 5, 1);
    remove_folder();
    for (int i = 0; i < n_kills; i++) {
        if (i % 5 == 0) remove_folder();
        pid_t pid = fork();
        if (pid == 0) {
            side s;
            open_side(&s, folder, 1 << 24, 1);
            ask_all(&s);
            close_side(&s);
            _exit(0);
        }
        usleep(rand_u32(&r) % 12000);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        side s;
        open_side(&s, folder, 1 << 24, 1);
        n_hits += ask_all(&s);
        close_side(&s);
    }
    assert_true(n_hits > 0);
}

static int setup(void **state) {
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

static int teardown(void **state) {
    (void)state;
    log_close();
    return dir_remove_all(folder, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restarted_equals_fresh),
        cmocka_unit_test(files_are_private),
        cmocka_unit_test(cut_files_are_a_miss),
        cmocka_unit_test(flipped_bytes_are_a_miss),
        cmocka_unit_test(forgotten_states_do_not_come_back),
        cmocka_unit_test(a_wipe_leaves_nothing),
        cmocka_unit_test(what_others_need_is_not_forgotten),
        cmocka_unit_test(what_can_not_be_opened_is_a_miss),
        cmocka_unit_test(a_folder_of_others_is_not_used),
        cmocka_unit_test(a_full_disk_is_a_miss),
        cmocka_unit_test(the_budget_is_kept),
        cmocka_unit_test(killed_at_any_time),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
