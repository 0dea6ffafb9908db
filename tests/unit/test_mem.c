#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/arena.h"
#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"

static void memory_is_zeroed(void **state) {
    (void)state;
    for (size_t n = 0; n < 300; n += 37) {
        unsigned char *p = mem_alloc(n);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xAA, n);
        mem_free(p);
        p = mem_aligned(64, n);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        mem_aligned_free(p);
    }
    char *s = mem_strndup("abcdef", 3);
    assert_string_equal(s, "abc");
    s = mem_realloc(s, 100);
    assert_string_equal(s, "abc");
    mem_free(s);
}

/* Runs fn in a child and gives what it wrote to stderr; it must end by SIGABRT. */
static void assert_crashes(void (*fn)(void), const char *expected) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        (void)close(ends[0]);
        signal(SIGABRT, SIG_DFL);
        fn();
        _exit(0);
    }
    (void)close(ends[1]);
    char text[1024] = {0};
    size_t len = 0;
    ssize_t got;
    while (len + 1 < sizeof text && (got = read(ends[0], text + len, sizeof text - 1 - len)) > 0) {
        len += (size_t)got;
    }
    (void)close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    if (strstr(text, expected) == NULL) fail_msg("expected %s in: %s", expected, text);
}

static void fail_check(void) {
    int answer = 41;
    CHECK_MSG(answer == 42, "answer is %d", answer);
}

static void fail_alloc(void) {
    mem_fail_after(0);
    (void)mem_alloc(123);
}

static void fail_array(void) {
    (void)mem_array(SIZE_MAX / 2, 3);
}

static void hook_writes(const char *msg) {
    (void)!write(STDERR_FILENO, "hook:", 5);
    (void)!write(STDERR_FILENO, msg, strlen(msg));
    CHECK(msg == NULL); /* a crash in the hook must still end */
}

static void fail_with_hook(void) {
    crash_set_hook(hook_writes);
    CHECK(1 == 2);
}

static void mistakes_end_through_the_crash_path(void **state) {
    (void)state;
    assert_crashes(fail_check, "answer is 41");
    assert_crashes(fail_alloc, "out of memory: 123 bytes");
    assert_crashes(fail_array, "array too large");
    assert_crashes(fail_with_hook, "hook:");
    assert_crashes(fail_with_hook, "CHECK(1 == 2) in fail_with_hook");
}

static void failures_can_be_injected(void **state) {
    (void)state;
    mem_fail_after(2);
    void *a = mem_try_alloc(1);
    void *b = mem_try_alloc(1);
    void *c = mem_try_alloc(1);
    mem_fail_after(-1);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(c);
    mem_free(a);
    mem_free(b);
}

static void buf_grows_to_its_limit(void **state) {
    (void)state;
    buf b = BUF_MAX(1000);
    for (int i = 0; i < 100; i++)
        assert_int_equal(buf_append(&b, "0123456789", 10), OK);
    assert_int_equal(b.len, 1000);
    assert_int_equal(buf_putc(&b, 'x'), ERR_LIMIT);
    assert_int_equal(buf_printf(&b, "%d", 5), ERR_LIMIT);
    assert_int_equal(buf_reserve(&b, SIZE_MAX), ERR_LIMIT);
    assert_int_equal(b.len, 1000);
    assert_int_equal(strlen(b.data), 1000);
    buf_release(&b);
    assert_int_equal(buf_append(&b, NULL, 0), OK);
    assert_string_equal(buf_cstr(&b), "");
    buf_release(&b);
}

static void buf_prints_long_and_short(void **state) {
    (void)state;
    buf b = BUF_INIT;
    char big[700];
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    assert_int_equal(buf_printf(&b, "%d-", 42), OK);
    assert_int_equal(buf_printf(&b, "%s!", big), OK);
    assert_int_equal(b.len, 3 + 699 + 1);
    assert_int_equal(memcmp(b.data, "42-yyy", 6), 0);
    assert_int_equal(b.data[b.len - 1], '!');
    buf_consume(&b, 3);
    assert_int_equal(b.len, 700);
    assert_int_equal(b.data[0], 'y');
    buf_truncate(&b, 2);
    assert_string_equal(buf_cstr(&b), "yy");
    buf_consume(&b, 100);
    assert_string_equal(buf_cstr(&b), "");
    char *taken = buf_take(&b);
    assert_string_equal(taken, "");
    mem_free(taken);
    assert_null(b.data);
}

static void buf_survives_failing_allocation(void **state) {
    (void)state;
    buf b = BUF_INIT;
    assert_int_equal(buf_puts(&b, "kept"), OK);
    char big[4096] = {0};
    mem_fail_after(0);
    int rc = buf_append(&b, big, sizeof big);
    mem_fail_after(-1);
    assert_int_equal(rc, ERR_MEMORY);
    assert_string_equal(buf_cstr(&b), "kept");
    buf_release(&b);
}

static void arena_gives_aligned_zeroed_memory(void **state) {
    (void)state;
    arena a = ARENA_INIT;
    for (int round = 0; round < 3; round++) {
        for (size_t n = 0; n < 20000; n = n * 2 + 1) {
            unsigned char *p = arena_alloc(&a, n);
            assert_int_equal((uintptr_t)p % 16, 0);
            for (size_t i = 0; i < n; i++)
                assert_int_equal(p[i], 0);
            memset(p, 0xFF, n);
            assert_string_equal(arena_strndup(&a, "abcdef", 4), "abcd");
            assert_string_equal(arena_strdup(&a, "xyz"), "xyz");
        }
        arena_reset(&a);
        assert_int_equal(a.used_bytes, 0);
    }
    arena_release(&a);
    arena_release(&a);
}

static void arena_has_a_limit(void **state) {
    (void)state;
    arena a = ARENA_MAX(64);
    assert_non_null(arena_try_alloc(&a, 64));
    assert_null(arena_try_alloc(&a, 1));
    assert_null(arena_try_alloc(&a, SIZE_MAX));
    arena_reset(&a);
    assert_non_null(arena_try_alloc(&a, 1));
    arena_release(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed),
        cmocka_unit_test(mistakes_end_through_the_crash_path),
        cmocka_unit_test(failures_can_be_injected),
        cmocka_unit_test(buf_grows_to_its_limit),
        cmocka_unit_test(buf_prints_long_and_short),
        cmocka_unit_test(buf_survives_failing_allocation),
        cmocka_unit_test(arena_gives_aligned_zeroed_memory),
        cmocka_unit_test(arena_has_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
