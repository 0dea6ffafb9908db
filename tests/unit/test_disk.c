/* The prefix cache on disk: restarted = fresh, and whatever happens to the files, or whenever the
 * process is killed, never a wrong answer. */
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
#include "engine/base/rand.h"
#include "tests/harness/disk_side.h"

static void restarted_equals_fresh(void **state) {
    (void)state;
    side s;
    remove_folder();
    write_once();
    open_side(&s, side_folder(), 1 << 24, 1);
    assert_int_equal(ask_all(&s), N_PROMPTS);
    run_stats stats;
    run_stats_get(s.run, &stats);
    assert_true(stats.n_disk_tokens > 0);
    assert_int_equal(stats.pages_used, 0);
    close_side(&s);
    open_side(&s, side_folder(), 1 << 24, 2); /* another model: nothing of it counts */
    for (int i = 0; i < N_PROMPTS; i++) {
        assert_true(ask(&s, i).n_cached < 90);
    }
    close_side(&s);
    open_side(&s, side_folder(), 1 << 24, 1);
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
    assert_int_equal(stat(side_folder(), &st), 0);
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
        run_entry list[N_LIST];
        damage d = {.fraction = fractions[i]};
        remove_folder();
        write_once();
        assert_true(each_file(spoil, &d) >= 2);
        open_side(&s, side_folder(), 1 << 24, 1);
        assert_true(ask_all(&s) < N_PROMPTS || fractions[i] > 0.5);
        assert_non_null(strstr(side_log(), "cache entry dropped"));
        await_stored(&s, list);
        close_side(&s);
        open_side(&s, side_folder(), 1 << 24, 1); /* written again meanwhile */
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
        open_side(&s, side_folder(), 1 << 24, 1);
        int n_hits = ask_all(&s);
        if (i == 0) assert_int_equal(n_hits, 0); /* one in each file, in the middle */
        close_side(&s);
    }
}

static void what_can_not_be_opened_is_a_miss(void **state) {
    (void)state;
    side s;
    side other;
    open_side(&s, "/proc/no/such", 1 << 24, 1);
    ask_all(&s);
    assert_non_null(strstr(side_log(), "no disk cache"));
    close_side(&s);
    remove_folder();
    open_side(&s, side_folder(), 1 << 24, 1);
    open_side(&other, side_folder(), 1 << 24, 1); /* the folder is taken */
    assert_non_null(strstr(side_log(), "another engine uses"));
    ask_all(&other);
    close_side(&other);
    close_side(&s);
}

/* The lock of the file's folder leads to ctx, which is not there. */
static int make_lock_a_link(const char *path, void *ctx) {
    char lock[1024];
    snprintf(ctx, 128, "%s-elsewhere", side_folder());
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
    open_side(&s, side_folder(), 1 << 24, 1);
    assert_non_null(strstr(side_log(), "no folder of this user alone"));
    assert_int_equal(ask_all(&s), 0);
    close_side(&s);
    /* A lock that is a link is none. */
    remove_folder();
    write_once();
    assert_int_equal(each_file(make_lock_a_link, link_path), 0);
    open_side(&s, side_folder(), 1 << 24, 1);
    assert_non_null(strstr(side_log(), "no disk cache"));
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
        open_side(&s, side_folder(), 1 << 24, 1);
        ask_all(&s);
        for (uint64_t until = clock_mono_ms() + WAIT_MS;
             side_n_not_written() == 0 && clock_mono_ms() < until;) {
            sleep_ms(5);
        }
        close_side(&s);
        _exit(side_n_not_written() > 0 ? 0 : 3);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    side s;
    open_side(&s, side_folder(), 1 << 24, 1);
    ask_all(&s);
    assert_null(strstr(side_log(), "dropped"));
    close_side(&s);
}

static void the_budget_is_kept(void **state) {
    (void)state;
    side s;
    remove_folder();
    open_side(&s, side_folder(), 1 << 19, 1); /* eight segments */
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
    open_side(&s, side_folder(), 1 << 19, 1);
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
            open_side(&s, side_folder(), 1 << 24, 1);
            ask_all(&s);
            close_side(&s);
            _exit(0);
        }
        usleep(rand_u32(&r) % 12000);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        side s;
        open_side(&s, side_folder(), 1 << 24, 1);
        n_hits += ask_all(&s);
        close_side(&s);
    }
    assert_true(n_hits > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restarted_equals_fresh),
        cmocka_unit_test(files_are_private),
        cmocka_unit_test(cut_files_are_a_miss),
        cmocka_unit_test(flipped_bytes_are_a_miss),
        cmocka_unit_test(what_can_not_be_opened_is_a_miss),
        cmocka_unit_test(a_folder_of_others_is_not_used),
        cmocka_unit_test(a_full_disk_is_a_miss),
        cmocka_unit_test(the_budget_is_kept),
        cmocka_unit_test(killed_at_any_time),
    };
    return cmocka_run_group_tests(tests, side_setup, side_teardown);
}
