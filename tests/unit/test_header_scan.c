/* The scanner below the safetensors reader: what it takes, what it refuses, where it stops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/weights/header_scan.h"

static header_scan over(const char *text) {
    header_scan s;
    header_scan_init(&s, text, strlen(text));
    return s;
}

static void test_strings(void **state) {
    static const char *const good[][2] = {{"\"\"", ""}, {" \"a.b\"", "a.b"},
        {"\"\\u0041\\n\\\\\\/\"", "A\n\\/"}, {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80"}};
    static const char *const bad[] = {"", "x", "\"", "\"\\\"", "\"\\x\"", "\"\\u12\"",
        "\"\\ud83d\"", "\"\\udc00\"", "\"\\u0000\"", "\"\x01\"", "\"\xff\"", "\"\xc0\x80\"",
        "\"\\ud83d\\u0041\""};
    char out[64];
    size_t len;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        header_scan s = over(good[i][0]);
        assert_true(header_scan_string(&s, out, sizeof out, &len));
        assert_string_equal(out, good[i][1]);
        assert_int_equal(len, strlen(good[i][1]));
        assert_true(header_scan_at_end(&s));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        header_scan s = over(bad[i]);
        if (header_scan_string(&s, out, sizeof out, &len)) fail_msg("taken: %s", bad[i]);
        assert_non_null(s.wrong);
    }
}

static void test_string_longer_than_room(void **state) {
    char out[4];
    size_t len;
    header_scan s = over("\"abcd\"");
    (void)state;
    assert_false(header_scan_string(&s, out, sizeof out, &len));
    s = over("\"abc\"");
    assert_true(header_scan_string(&s, out, sizeof out, &len));
}

static void test_numbers(void **state) {
    static const char *const bad[] = {"", "-1", "1.0", "1e3", "01", "\"1\"", "18446744073709551616",
        "99999999999999999999999", "null"};
    uint64_t v = 7;
    header_scan s = over("18446744073709551615");
    (void)state;
    assert_true(header_scan_u64(&s, &v));
    assert_true(v == UINT64_MAX);
    s = over("0]");
    assert_true(header_scan_u64(&s, &v));
    assert_true(v == 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        s = over(bad[i]);
        if (header_scan_u64(&s, &v)) fail_msg("taken: %s", bad[i]);
    }
}

static void test_skip(void **state) {
    static const char *const good[] = {
        "1", "null", "\"a\\\"]\"", "[]", "{}", "{\"a\":[1,2,{\"b\":null}],\"c\":-1.5e3}"};
    static const char *const bad[] = {"", "[", "{\"a\":", "[1,2", "\"a", "]"};
    char deep[200];
    header_scan s;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        s = over(good[i]);
        if (!header_scan_skip(&s) || !header_scan_at_end(&s)) fail_msg("not skipped: %s", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        s = over(bad[i]);
        if (header_scan_skip(&s)) fail_msg("skipped: %s", bad[i]);
    }
    memset(deep, '[', sizeof deep);
    header_scan_init(&s, deep, sizeof deep);
    assert_false(header_scan_skip(&s));
    assert_string_equal(s.wrong, "nested too deep");
}

static void test_first_fault_is_kept(void **state) {
    header_scan s = over("x");
    (void)state;
    assert_false(header_scan_take(&s, '{'));
    assert_false(header_scan_fail(&s, "another"));
    assert_string_equal(s.wrong, "an object was expected");
    assert_int_equal(header_scan_offset(&s), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_string_longer_than_room),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_first_fault_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
