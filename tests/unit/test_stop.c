#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "engine/base/err.h"
#include "engine/text/stop.h"

/* Feeds text in steps; out is what came, held what came before the end. */
static int run(stop_matcher *m, const char *text, size_t step, buf *out) {
    bool is_hit = false;
    size_t n = strlen(text);
    stop_matcher_reset(m);
    buf_reset(out);
    for (size_t at = 0; at < n; at += step) {
        size_t len = n - at < step ? n - at : step;
        assert_int_equal(stop_matcher_feed(m, text + at, len, out, &is_hit), OK);
    }
    assert_int_equal(stop_matcher_end(m, out), OK);
    assert_int_equal(is_hit, stop_matcher_which(m) >= 0);
    return stop_matcher_which(m);
}

static void check(
    const char *const *strings, size_t n, const char *text, const char *want, int which) {
    stop_matcher *m = stop_matcher_new(strings, n);
    buf out = BUF_INIT;
    for (size_t step = 1; step <= strlen(text) + 1; step++) {
        assert_int_equal(run(m, text, step, &out), which);
        assert_string_equal(buf_cstr(&out), want);
    }
    stop_matcher_free(m);
    buf_release(&out);
}

static void test_cut_anywhere(void **state) {
    (void)state;
    const char *const one[] = {"END"};
    check(one, 1, "abc END def", "abc ", 0);
    check(one, 1, "abc EN", "abc EN", -1);
    check(one, 1, "EENEND", "EEN", 0);
    check(one, 1, "", "", -1);
    const char *const repeats[] = {"aab"};
    check(repeats, 1, "aaaab", "aa", 0);
    const char *const wide[] = {"\xE4\xB8\xAD\xE6\x96\x87"};
    check(wide, 1, "x\xE4\xB8\xAD\xE4\xB8\xAD\xE6\x96\x87", "x\xE4\xB8\xAD", 0);
}

static void test_several_strings(void **state) {
    (void)state;
    const char *const two[] = {"\n\n", "stop"};
    check(two, 2, "a\nstop\n\n", "a\n", 1);
    check(two, 2, "a\n\nstop", "a", 0);
    /* The one that ends first counts; of those that end together the longest. */
    const char *const nested[] = {"", "bc", "abc", "abcd"};
    check(nested, 4, "xabcd", "x", 2);
}

static void test_holds_back_no_more_than_needed(void **state) {
    (void)state;
    const char *const one[] = {"stop"};
    stop_matcher *m = stop_matcher_new(one, 1);
    buf out = BUF_INIT;
    bool is_hit = true;
    assert_int_equal(stop_matcher_feed(m, "no st", 5, &out, &is_hit), OK);
    assert_string_equal(buf_cstr(&out), "no ");
    assert_false(is_hit);
    assert_int_equal(stop_matcher_feed(m, "e", 1, &out, &is_hit), OK);
    assert_string_equal(buf_cstr(&out), "no ste");
    assert_int_equal(stop_matcher_feed(m, "stop more", 9, &out, &is_hit), OK);
    assert_true(is_hit);
    assert_int_equal(stop_matcher_feed(m, "later", 5, &out, &is_hit), OK);
    assert_true(is_hit);
    assert_string_equal(buf_cstr(&out), "no ste");
    stop_matcher_free(m);
    buf_release(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_several_strings),
        cmocka_unit_test(test_holds_back_no_more_than_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
