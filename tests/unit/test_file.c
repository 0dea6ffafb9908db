#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"

static char g_dir[256];

static int make_dir(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    (void)snprintf(g_dir, sizeof g_dir, "%s/tandem-file.XXXXXX", base == NULL ? "/tmp" : base);
    return mkdtemp(g_dir) == NULL ? -1 : 0;
}

static int remove_dir(void **state) {
    (void)state;
    return dir_remove_all(g_dir, NULL);
}

static const char *in_dir(buf *path, const char *name) {
    assert_int_equal(path_join(path, g_dir, name), OK);
    return path->data;
}

static void writes_and_reads_back(void **state) {
    (void)state;
    buf path = BUF_INIT;
    buf text = BUF_INIT;
    err e = ERR_INIT;
    const char *p = in_dir(&path, "a");
    mode_t old = umask(0777);
    assert_int_equal(file_write_atomic(p, "one\0two", 7, 0640, &e), OK);
    (void)umask(old);
    struct stat st;
    assert_int_equal(stat(p, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(file_read(p, &text, 7, &e), OK);
    assert_int_equal(text.len, 7);
    assert_memory_equal(text.data, "one\0two", 8);
    assert_int_equal(file_read(p, &text, 6, &e), ERR_LIMIT);
    assert_int_equal(text.len, 0);
    assert_non_null(strstr(e.msg, p));
    assert_string_equal(e.place, p);
    assert_int_equal(file_write_atomic(p, "", 0, 0600, &e), OK);
    assert_int_equal(file_read(p, &text, 0, &e), OK);
    uint64_t size = 9;
    assert_int_equal(file_size(p, &size, &e), OK);
    assert_int_equal(size, 0);
    assert_true(file_exists(p));
    assert_false(dir_exists(p));
    assert_int_equal(file_remove(p, &e), OK);
    assert_int_equal(file_remove(p, &e), OK);
    assert_false(file_exists(p));
    buf_release(&path);
    buf_release(&text);
}

static void errors_say_what_and_where(void **state) {
    (void)state;
    buf path = BUF_INIT;
    buf text = BUF_INIT;
    err e = ERR_INIT;
    const char *p = in_dir(&path, "missing");
    assert_int_equal(file_read(p, &text, 10, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, p));
    assert_int_equal(file_read(g_dir, &text, 10, &e), ERR_ARG);
    assert_int_equal(file_size(p, &(uint64_t){0}, &e), ERR_NOT_FOUND);
    p = in_dir(&path, "no/such/folder");
    assert_int_equal(file_write_atomic(p, "x", 1, 0600, &e), ERR_NOT_FOUND);
    assert_string_equal(e.place, p);
    assert_int_equal(file_read("/proc/self/status", &text, 1 << 20, &e), OK);
    assert_true(text.len > 100);
    buf_release(&path);
    buf_release(&text);
}

static int count_entry(void *ctx, const char *name, err *e) {
    (void)e;
    (void)snprintf((char *)ctx + strlen(ctx), 100, "%s,", name);
    return OK;
}

static void a_failed_write_leaves_the_old_file(void **state) {
    (void)state;
    buf path = BUF_INIT;
    buf text = BUF_INIT;
    err e = ERR_INIT;
    const char *p = in_dir(&path, "kept");
    assert_int_equal(file_write_atomic(p, "old", 3, 0600, &e), OK);
    /* A file size limit stands in for the full disk: write(2) fails half way. */
    struct rlimit saved;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &saved), 0);
    void (*old_handler)(int) = signal(SIGXFSZ, SIG_IGN);
    struct rlimit small = {4096, saved.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    char *big = mem_alloc(100000);
    int rc = file_write_atomic(p, big, 100000, 0600, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &saved), 0);
    (void)signal(SIGXFSZ, old_handler);
    mem_free(big);
    assert_int_equal(rc, ERR_LIMIT);
    assert_int_equal(file_read(p, &text, 10, &e), OK);
    assert_string_equal(text.data, "old");
    char names[400] = "";
    assert_int_equal(dir_each(g_dir, count_entry, names, &e), OK);
    assert_string_equal(names, "kept,");
    assert_int_equal(file_remove(p, &e), OK);
    buf_release(&path);
    buf_release(&text);
}

static void folders(void **state) {
    (void)state;
    buf path = BUF_INIT;
    err e = ERR_INIT;
    const char *p = in_dir(&path, "x/y//z/");
    assert_int_equal(dir_make_all(p, 0755, &e), OK);
    assert_int_equal(dir_make_all(p, 0755, &e), OK);
    assert_true(dir_exists(p));
    p = in_dir(&path, "x/y/file");
    assert_int_equal(file_write_atomic(p, "1", 1, 0600, &e), OK);
    assert_int_equal(dir_make_all(p, 0755, &e), ERR_EXISTS);
    p = in_dir(&path, "x/link");
    assert_int_equal(symlink(g_dir, p), 0); /* must not be followed */
    p = in_dir(&path, "x/nowhere");
    assert_int_equal(symlink("no such folder", p), 0);
    assert_int_equal(dir_make_all(p, 0755, &e), ERR_EXISTS); /* why mkdir failed, not stat */
    p = in_dir(&path, "other");
    assert_int_equal(file_write_atomic(p, "1", 1, 0600, &e), OK);
    char names[400] = "";
    assert_int_equal(dir_each(g_dir, count_entry, names, &e), OK);
    assert_string_equal(names, "other,x,");
    p = in_dir(&path, "x");
    assert_int_equal(dir_remove_all(p, &e), OK);
    assert_int_equal(dir_remove_all(p, &e), OK);
    assert_false(dir_exists(p));
    p = in_dir(&path, "other");
    assert_true(file_exists(p));
    assert_int_equal(file_remove(p, &e), OK);
    assert_int_equal(dir_each(p, count_entry, names, &e), ERR_NOT_FOUND);
    buf_release(&path);
}

static void paths(void **state) {
    (void)state;
    buf out = BUF_INIT;
    static const char *const join[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"a", "/b", "/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < sizeof join / sizeof join[0]; i++) {
        assert_int_equal(path_join(&out, join[i][0], join[i][1]), OK);
        assert_string_equal(out.data, join[i][2]);
    }
    static const char *const dir[][2] = {{"a/b", "a"}, {"a", "."}, {"/a", "/"}, {"a/b/", "a"},
        {"/", "/"}, {"a//b", "a"}, {"", "."}, {"//", "/"}};
    for (size_t i = 0; i < sizeof dir / sizeof dir[0]; i++) {
        assert_int_equal(path_dir(&out, dir[i][0]), OK);
        assert_string_equal(out.data, dir[i][1]);
    }
    assert_string_equal(path_base("a/b"), "b");
    assert_string_equal(path_base("b"), "b");
    assert_string_equal(path_base("b/"), "");
    buf_release(&out);
}

static void descriptors_read_exactly(void **state) {
    (void)state;
    buf path = BUF_INIT;
    err e = ERR_INIT;
    const char *p = in_dir(&path, "d");
    int fd = open(p, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_full(fd, "0123456789", 10, &e), OK);
    assert_int_equal(fd_write_at(fd, "XY", 2, 4, &e), OK);
    char got[11] = {0};
    assert_int_equal(fd_read_at(fd, got, 10, 0, &e), OK);
    assert_string_equal(got, "0123XY6789");
    assert_int_equal(fd_read_at(fd, got, 5, 8, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "3 bytes too early"));
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_int_equal(fd_read_full(fd, got, 10, &e), OK);
    assert_int_equal(fd_read_full(fd, got, 1, &e), ERR_FORMAT);
    (void)close(fd);
    assert_int_equal(fd_read_full(fd, got, 1, &e), ERR_IO);
    assert_int_equal(fd_write_full(fd, got, 1, &e), ERR_IO);
    assert_int_equal(file_remove(p, &e), OK);
    buf_release(&path);
}

/* A lock that another process lets go of soon is waited for; one that is kept is busy. */
static void locks_wait_for_one_that_dies(void **state) {
    (void)state;
    buf path = BUF_INIT;
    const char *p = in_dir(&path, "lock");
    int ends[2], fd = open(p, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    char byte;
    assert_true(fd >= 0 && pipe(ends) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        int own = open(p, O_RDWR | O_CLOEXEC);
        bool is_locked = own >= 0 && fd_lock(own) == OK && write(ends[1], "x", 1) == 1;
        sleep(is_locked ? 600 : 0);
        _exit(1);
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(fd_lock(fd), ERR_BUSY);
    assert_int_equal(kill(pid, SIGKILL), 0); /* not waited for */
    bool is_gone = false;
    while (fd_lock(fd) != OK) {
        assert_false(is_gone);
        is_gone = waitpid(pid, NULL, WNOHANG) == pid; /* later than two seconds on a busy machine */
    }
    assert_true(is_gone || waitpid(pid, NULL, 0) == pid);
    (void)close(fd);
    (void)close(ends[0]);
    (void)close(ends[1]);
    buf_release(&path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_and_reads_back),
        cmocka_unit_test(errors_say_what_and_where),
        cmocka_unit_test(a_failed_write_leaves_the_old_file),
        cmocka_unit_test(folders),
        cmocka_unit_test(paths),
        cmocka_unit_test(descriptors_read_exactly),
        cmocka_unit_test(locks_wait_for_one_that_dies),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
