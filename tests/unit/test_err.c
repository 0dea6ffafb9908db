#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>

#include "engine/base/err.h"

static void set_fills_and_returns(void **state) {
    (void)state;
    err e = ERR_INIT;
    assert_int_equal(err_set(&e, ERR_LIMIT, "%d of %d", 5, 4), ERR_LIMIT);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_string_equal(e.msg, "5 of 4");
    assert_int_equal(err_set(NULL, ERR_IO, "x"), ERR_IO);
    err_place(&e, "file %d", 7);
    assert_string_equal(e.place, "file 7");
    err_node(&e, "spark-b");
    assert_string_equal(e.node, "spark-b");
}

static void add_puts_context_before(void **state) {
    (void)state;
    err e = ERR_INIT;
    assert_int_equal(err_add(&e, OK, "unused"), OK);
    assert_string_equal(e.msg, "");
    (void)err_set(&e, ERR_FORMAT, "bad magic");
    assert_int_equal(err_add(&e, ERR_FORMAT, "reading %s", "a.bin"), ERR_FORMAT);
    assert_string_equal(e.msg, "reading a.bin: bad magic");
    err none = ERR_INIT;
    assert_int_equal(err_add(&none, ERR_FULL, "writing"), ERR_FULL);
    assert_string_equal(none.msg, "writing: full");
    assert_int_equal(none.code, ERR_FULL);
}

static void long_texts_are_cut(void **state) {
    (void)state;
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    err e = ERR_INIT;
    (void)err_set(&e, ERR_IO, "cause %s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    (void)err_add(&e, ERR_IO, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    assert_non_null(strstr(e.msg, ": cause x"));
}

static void errno_is_mapped_and_named(void **state) {
    (void)state;
    static const struct {
        int errnum;
        int code;
    } table[] = {{ENOENT, ERR_NOT_FOUND}, {EEXIST, ERR_EXISTS}, {ENOSPC, ERR_FULL},
        {EACCES, ERR_AUTH}, {ENOMEM, ERR_MEMORY}, {EADDRINUSE, ERR_BUSY}, {ETIMEDOUT, ERR_TIMEOUT},
        {ECONNREFUSED, ERR_NET}, {EIO, ERR_IO}, {EMFILE, ERR_LIMIT}, {ENOSYS, ERR_UNSUPPORTED}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        err e = ERR_INIT;
        errno = table[i].errnum;
        assert_int_equal(err_errno(&e, "cannot open %s", "x"), table[i].code);
        assert_int_equal(errno, table[i].errnum);
        assert_non_null(strstr(e.msg, "cannot open x: "));
        assert_true(strlen(e.msg) > strlen("cannot open x: "));
    }
}

static void every_code_has_a_name(void **state) {
    (void)state;
    for (int code = ERR_EXISTS; code <= OK; code++) {
        assert_string_not_equal(err_name(code), "unknown error");
    }
    assert_string_equal(err_name(1), "unknown error");
    assert_string_equal(err_name(-1000), "unknown error");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_fills_and_returns),
        cmocka_unit_test(add_puts_context_before),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(errno_is_mapped_and_named),
        cmocka_unit_test(every_code_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
