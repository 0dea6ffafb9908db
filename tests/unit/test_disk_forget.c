/* Forgetting in the prefix cache on disk: the list tells what is there, what is forgotten is gone from
 * the files at once and does not come back, and what others need stays. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/rand.h"
#include "engine/run/disk_internal.h"
#include "tests/harness/disk_side.h"

/* So many lines of a manifest find no room, or the disk takes nothing at all; the C library's calls give
 * way to these. */
static _Atomic int n_refused;
static _Atomic bool refuses;

static bool is_refused(void) {
    if (atomic_load(&refuses)) errno = EIO;
    return atomic_load(&refuses);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t offset) {
    if (is_refused()) return -1;
    if (n == sizeof(disk_line) && atomic_load(&n_refused) > 0) {
        atomic_fetch_sub(&n_refused, 1);
        errno = ENOSPC;
        return -1;
    }
    return (ssize_t)syscall(SYS_pwrite64, fd, p, n, offset);
}

int fallocate(int fd, int mode, off_t offset, off_t len) {
    return is_refused() ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, len);
}

int unlink(const char *path) {
    return is_refused() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int rename(const char *from, const char *to) {
    return is_refused() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
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
    open_side(&s, side_folder(), 1 << 24, 1);
    uint64_t n_records = records(&s);
    assert_true(n_records > 0);
    close_side(&s);
    for (int round = 0; round < 2; round++) { /* what is on its way, and what is written */
        remove_folder();
        open_side(&s, side_folder(), 1 << 24, 1);
        assert_int_equal(ask_all(&s), 0);
        if (round == 1) await_records(&s, n_records);
        assert_true(forget(&s, 0) >= N_PROMPTS);
        assert_int_equal(forget(&s, 0), 0);
        run_stats_get(s.run, &stats);
        assert_int_equal(stats.pages_cached, 0);
        assert_int_equal(stats.pages_kept, 0);
        /* At once: not a byte, a name or an empty file is left. */
        for (int i = 0; i < N_PROMPTS; i++) {
            int n_left = each_file(count_pages, &i);
            if (n_left > 0) fail_msg("round %d, prompt %d: %d", round, i, n_left);
        }
        assert_int_equal(each_file(count_file, NULL), 0);
        close_side(&s);
        open_side(&s, side_folder(), 1 << 24, 1);
        if (strstr(side_log(), "dropped") != NULL) fail_msg("%s", side_log());
        assert_int_equal(records(&s), 0);
        assert_int_equal(ask_all(&s), 0);
        close_side(&s);
    }
}

static int compare_tokens(const void *a, const void *b) {
    return ((const run_entry *)a)->n_tokens - ((const run_entry *)b)->n_tokens;
}

/* What lies on disk is listed, with what is in memory or without; each once, and it says so. */
static void the_list_tells_what_is_on_disk(void **state) {
    (void)state;
    side s;
    run_entry before[N_LIST], after[N_LIST];
    remove_folder();
    open_side(&s, side_folder(), 1 << 24, 1);
    ask_all(&s);
    int32_t n = await_stored(&s, before);
    assert_true(n > N_PROMPTS);
    for (int32_t i = 0; i < n; i++) {
        assert_true(before[i].is_in_memory);
    }
    close_side(&s);

    open_side(&s, side_folder(), 1 << 24, 1);
    assert_int_equal(list_all(&s, after), n);
    for (int32_t i = 0; i < n; i++) {
        assert_false(after[i].is_in_memory);
        assert_true(after[i].is_on_disk);
    }
    qsort(before, (size_t)n, sizeof *before, compare_tokens);
    qsort(after, (size_t)n, sizeof *after, compare_tokens);
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(after[i].n_tokens, before[i].n_tokens);
    }
    /* In memory again, before the writer has seen it: it is on disk nevertheless. */
    ask(&s, 1);
    assert_int_equal(list_all(&s, after), n);
    int32_t n_both = 0;
    for (int32_t i = 0; i < n; i++) {
        assert_true(after[i].is_on_disk);
        n_both += after[i].is_in_memory;
    }
    assert_true(n_both > 0 && n_both < n);
    close_side(&s);
}

/* By the number it had when it was listed, also when it came to memory meanwhile. */
static void what_an_earlier_start_wrote_is_forgotten(void **state) {
    (void)state;
    side s;
    run_entry list[N_LIST];
    bool was_on_disk = false;
    remove_folder();
    write_once();
    open_side(&s, side_folder(), 1 << 24, 1);
    int32_t n = list_all(&s, list);
    assert_true(n > N_PROMPTS);
    ask(&s, 2);
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(drop(&s, list[i].id, &was_on_disk), OK);
        assert_true(was_on_disk);
        assert_int_equal(drop(&s, list[i].id, &was_on_disk), ERR_NOT_FOUND);
    }
    assert_int_equal(forget(&s, 0), 0);
    assert_int_equal(records(&s), 0);
    assert_int_equal(each_file(count_file, NULL), 0);
    assert_int_equal(ask_all(&s), 0);
    close_side(&s);
    open_side(&s, side_folder(), 1 << 24, 1);
    assert_int_equal(ask_all(&s), N_PROMPTS); /* kept anew */
    close_side(&s);
}

/* Lines in manifests. */
static int count_lines(const char *path, void *ctx) {
    uint64_t size = 0;
    (void)ctx;
    if (strstr(path, "/manifest-") == NULL) return 0;
    assert_int_equal(file_size(path, &size, NULL), OK);
    assert_int_equal((size - sizeof(disk_head)) % sizeof(disk_line), 0);
    return (int)((size - sizeof(disk_head)) / sizeof(disk_line));
}

/* Of longer prompts only what shorter ones need stays. */
static void what_is_forgotten_gives_its_room_back(void **state) {
    (void)state;
    enum { N_LEFT = 3, MOST = 256 };
    side s;
    run_stats before, after;
    int last = N_PROMPTS - 1;
    int first = 0;
    uint64_t size_before = 0, size_after = 0;
    remove_folder();
    write_once();
    open_side(&s, side_folder(), 1 << 24, 1);
    run_stats_get(s.run, &before);
    each_file(add_size, &size_before);
    int n_first = each_file(count_pages, &first);
    assert_true(each_file(count_pages, &last) > MOST / PAGE);
    assert_true(forget(&s, MOST) > 0);
    run_stats_get(s.run, &after);
    each_file(add_size, &size_after);
    assert_true(each_file(count_pages, &last) <= MOST / PAGE);
    assert_int_equal(each_file(count_pages, &first), n_first);
    assert_true(size_after < size_before);
    assert_true(after.disk.bytes < before.disk.bytes);
    assert_int_equal(each_file(count_lines, NULL), after.disk.n_records);
    close_side(&s);
    open_side(&s, side_folder(), 1 << 24, 1);
    assert_null(strstr(side_log(), "dropped"));
    assert_int_equal(records(&s), after.disk.n_records);
    assert_int_equal(ask_all(&s), N_LEFT);
    close_side(&s);
}

/* Forgets one after the other and tells of each, until it is killed. */
static void forget_and_tell(int fd) {
    side s;
    run_entry list[N_LIST];
    bool was_on_disk;
    open_side(&s, side_folder(), 1 << 24, 1);
    int32_t n = list_all(&s, list);
    for (int32_t i = 0; i < n; i++) {
        if (drop(&s, list[i].id, &was_on_disk) != OK) _exit(1);
        if (write(fd, "x", 1) != 1) _exit(1);
    }
    close_side(&s);
    _exit(0);
}

/* Killed while it forgets: what was told to be gone is gone, the rest is right. */
static void killed_while_it_forgets(void **state) {
    (void)state;
    rand_state r;
    rand_init(&r, 6, 1);
    for (int round = 0; round < 6; round++) {
        side s;
        run_entry list[N_LIST];
        int ends[2];
        char told[N_LIST];
        remove_folder();
        write_once();
        open_side(&s, side_folder(), 1 << 24, 1);
        int32_t n = list_all(&s, list);
        close_side(&s);
        assert_int_equal(pipe(ends), 0);
        pid_t pid = fork();
        if (pid == 0) forget_and_tell(ends[1]);
        close(ends[1]);
        ssize_t n_told = read(ends[0], told, 1); /* it is at it */
        assert_int_equal(n_told, 1);
        usleep(rand_u32(&r) % 6000);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        for (ssize_t more; (more = read(ends[0], told, sizeof told)) > 0;) {
            n_told += more;
        }
        close(ends[0]);
        open_side(&s, side_folder(), 1 << 24, 1);
        if (strstr(side_log(), "dropped") != NULL) fail_msg("%s", side_log());
        assert_true(list_all(&s, list) <= n - (int32_t)n_told);
        ask_all(&s);
        close_side(&s);
    }
}

static void sleep_on(void *ctx) {
    (void)ctx;
}

/* One page and, if asked for, the state behind it, as a killed process leaves them. */
static uint64_t records_after(bool has_state) {
    disk_cache *d = NULL;
    disk_place place;
    disk_counts counts;
    const disk_options o = {.dir = side_folder(),
        .budget_bytes = 1 << 20,
        .page_tokens = PAGE,
        .page_bytes = 64,
        .snapshot_bytes = 64,
        .wake = sleep_on};
    const disk_name page = {.type = DISK_PAGE, .n_tokens = PAGE, .self = {3, 4}};
    const disk_name mark = {.type = DISK_MARK, .self = {3, 4}, .parent = {3, 4}};
    remove_folder();
    assert_int_equal(disk_open(&o, &d, NULL), OK);
    assert_true(disk_take_place(d, DISK_PAGE, &place));
    memset(place.page, 7, 64);
    disk_give(d, &place, &page, !has_state);
    if (has_state) {
        assert_true(disk_take_place(d, DISK_MARK, &place));
        memset(place.snapshot, 8, 64);
        disk_give(d, &place, &mark, true);
    }
    disk_close(d);
    assert_true(each_file(count_file, NULL) > 0);
    assert_int_equal(disk_open(&o, &d, NULL), OK);
    disk_count(d, &counts);
    disk_close(d);
    return counts.n_records;
}

static void pages_without_a_state_do_not_stay(void **state) {
    (void)state;
    assert_int_equal(records_after(true), 2);
    assert_true(each_file(count_file, NULL) > 0);
    assert_int_equal(records_after(false), 0);
    assert_int_equal(each_file(count_file, NULL), 0);
}

static void a_wipe_leaves_nothing(void **state) {
    (void)state;
    side s;
    remove_folder();
    open_side(&s, side_folder(), 1 << 24, 1);
    run_entry list[N_LIST];
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
    await_stored(&s, list);
    close_side(&s);
    assert_true(each_file(count_file, NULL) > 0);
    open_side(&s, side_folder(), 1 << 24, 1);
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
    run_entry list[N_LIST];
    remove_folder();
    open_side(&s, side_folder(), 1 << 24, 1);
    ask(&s, SHORT);
    int32_t n_short = ask(&s, SHORT).n_prompt + REPLY; /* its longest state */
    ask(&s, LONG);
    await_stored(&s, list);
    assert_true(forget(&s, n_short) > 0);
    close_side(&s);
    open_side(&s, side_folder(), 1 << 24, 1);
    r = ask(&s, SHORT);
    assert_int_equal(r.n_cached, r.n_prompt - 1);
    r = ask(&s, LONG);
    assert_true(r.n_cached <= n_short);
    assert_int_equal(r.n, side_want(LONG)->n);
    assert_memory_equal(r.tokens, side_want(LONG)->tokens, (size_t)r.n * sizeof r.tokens[0]);
    close_side(&s);
}

/* The line that says so finds no room until the bytes of the record are given back. */
static void a_full_disk_brings_nothing_back(void **state) {
    (void)state;
    side s;
    run_entry list[N_LIST];
    remove_folder();
    open_side(&s, side_folder(), 1 << 24, 1);
    ask_all(&s);
    int32_t n = await_stored(&s, list);
    qsort(list, (size_t)n, sizeof *list, compare_tokens);
    atomic_store(&n_refused, 1);
    int n_gone = forget(&s, list[n / 2].n_tokens);
    assert_int_equal(atomic_load(&n_refused), 0);
    assert_true(n_gone > 0 && n_gone < n);
    close_side(&s);
    open_side(&s, side_folder(), 1 << 24, 1);
    assert_int_equal(list_all(&s, list), n - n_gone);
    ask_all(&s);
    close_side(&s);
}

/* It is said, not hidden; and when the disk takes it, asking again is enough. */
static void a_disk_that_refuses_is_told(void **state) {
    (void)state;
    side s;
    run_entry list[N_LIST];
    run_wiped x;
    bool was_on_disk = false;
    err why = ERR_INIT;
    for (int round = 0; round < 2; round++) { /* one state, and all */
        bool is_one = round == 0;
        remove_folder();
        open_side(&s, side_folder(), 1 << 24, 1);
        ask_all(&s);
        close_side(&s); /* nothing is on its way any more */
        open_side(&s, side_folder(), 1 << 24, 1);
        int32_t n = list_all(&s, list);
        qsort(list, (size_t)n, sizeof *list, compare_tokens);
        uint64_t id = list[n - 1].id;
        atomic_store(&refuses, true);
        int rc = is_one ? run_entry_drop(s.run, id, &was_on_disk, &why)
                        : run_entries_wipe(s.run, &x, &why);
        assert_int_equal(rc, ERR_IO);
        assert_non_null(strstr(why.msg, "on it still"));
        assert_int_equal(list_all(&s, list), is_one ? n - 1 : 0);
        rc = is_one ? run_entry_drop(s.run, id, &was_on_disk, &why)
                    : run_entries_wipe(s.run, &x, &why);
        assert_int_equal(rc, ERR_IO);
        atomic_store(&refuses, false);
        rc = is_one ? run_entry_drop(s.run, id, &was_on_disk, &why)
                    : run_entries_wipe(s.run, &x, &why);
        assert_int_equal(rc, is_one ? ERR_NOT_FOUND : OK);
        if (!is_one) assert_int_equal(each_file(count_file, NULL), 0);
        close_side(&s);
        open_side(&s, side_folder(), 1 << 24, 1);
        assert_int_equal(list_all(&s, list), is_one ? n - 1 : 0);
        close_side(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forgotten_states_do_not_come_back),
        cmocka_unit_test(the_list_tells_what_is_on_disk),
        cmocka_unit_test(what_an_earlier_start_wrote_is_forgotten),
        cmocka_unit_test(what_is_forgotten_gives_its_room_back),
        cmocka_unit_test(killed_while_it_forgets),
        cmocka_unit_test(pages_without_a_state_do_not_stay),
        cmocka_unit_test(a_wipe_leaves_nothing),
        cmocka_unit_test(what_others_need_is_not_forgotten),
        cmocka_unit_test(a_full_disk_brings_nothing_back),
        cmocka_unit_test(a_disk_that_refuses_is_told),
    };
    return cmocka_run_group_tests(tests, side_setup, side_teardown);
}
