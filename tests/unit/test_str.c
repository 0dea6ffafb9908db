#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <locale.h>
#include <math.h>

#include "engine/base/err.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"

static void every_scalar_goes_round(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp >= 0xD800 && cp <= 0xDFFF) continue;
        char text[4];
        size_t n = utf8_encode(cp, text);
        uint32_t back;
        size_t used = utf8_decode(text, n, &back);
        if (used != n || back != cp) fail_msg("U+%04X gives U+%04X of %zu bytes", cp, back, used);
        for (size_t cut = 1; cut < n; cut++) {
            used = utf8_decode(text, cut, &back);
            if (used != 1 || back != UTF8_INVALID) fail_msg("U+%04X cut to %zu is taken", cp, cut);
            if (utf8_partial_tail(text, cut) != cut) fail_msg("U+%04X cut: tail not seen", cp);
        }
        if (utf8_partial_tail(text, n) != 0) fail_msg("U+%04X whole: a tail is seen", cp);
    }
}

static void bad_utf8_is_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF",
        "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
        "\xFF", "\xE2\x28\xA1", "a\xE2\x82"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (utf8_valid(bad[i], strlen(bad[i]))) fail_msg("sequence %zu was taken", i);
    }
    assert_true(utf8_valid("", 0));
    const char *mixed = "0123456789 \xE2\x82\xAC 0123456789\xFF tail";
    assert_int_equal(utf8_valid_prefix(mixed, strlen(mixed)), 25);
    char text[4];
    assert_int_equal(utf8_encode(0xD800, text), 3);
    assert_memory_equal(text, "\xEF\xBF\xBD", 3);
}

static void integers_are_whole_strings(void **state) {
    (void)state;
    int64_t i = 7;
    uint64_t u = 7;
    assert_int_equal(parse_i64("-9223372036854775808", &i), OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(parse_i64("9223372036854775807", &i), OK);
    assert_true(i == INT64_MAX);
    assert_int_equal(parse_i64("9223372036854775808", &i), ERR_LIMIT);
    assert_int_equal(parse_i64("-9223372036854775809", &i), ERR_LIMIT);
    assert_int_equal(parse_u64("18446744073709551615", &u), OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(parse_u64("18446744073709551616", &u), ERR_LIMIT);
    assert_true(u == UINT64_MAX);
    static const char *const bad[] = {"", " 1", "1 ", "-", "+", "--1", "1x", "0x10", "1.0", "1e3"};
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        assert_int_equal(parse_i64(bad[k], &i), ERR_FORMAT);
        assert_int_equal(parse_u64(bad[k], &u), ERR_FORMAT);
    }
    assert_int_equal(parse_u64("+1", &u), ERR_FORMAT);
}

static void doubles_go_round(void **state) {
    (void)state;
    rand_state r;
    rand_init(&r, 1, 0);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = rand_u64(&r);
        double v;
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v)) continue;
        char text[40];
        size_t n = print_double(v, text);
        double back = 0;
        if (n != strlen(text) || parse_double(text, &back) != OK || memcmp(&back, &v, 8) != 0) {
            fail_msg("%a prints as %s", v, text);
        }
    }
    double v = 0;
    static const char *const bad[] = {
        "", "inf", "nan", "0x1p3", "1e", ".", "1,5", " 1", "1 ", "e5"};
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        assert_int_equal(parse_double(bad[k], &v), ERR_FORMAT);
    }
    assert_int_equal(parse_double("1e400", &v), ERR_LIMIT);
    assert_int_equal(parse_double(".5", &v), OK);
    assert_true(v == 0.5);
}

static void doubles_do_not_know_the_locale(void **state) {
    (void)state;
    /* Without such a locale on the machine this part has nothing to say. */
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) skip();
    char text[40];
    double v = 0;
    (void)print_double(1.5, text);
    int rc = parse_double("2.5", &v);
    (void)setlocale(LC_NUMERIC, "C");
    assert_string_equal(text, "1.5");
    assert_int_equal(rc, OK);
    assert_true(v == 2.5);
}

static void sizes_have_units(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0}, {"1024", 1024}, {"1K", 1024}, {"2 MiB", 2097152}, {"1.5G", 1610612736},
        {"3kb", 3000}, {"1TB", 1000000000000}, {"18446744073709551615", UINT64_MAX}, {"7b", 7}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t v = 1;
        assert_int_equal(parse_bytes(good[i].text, &v), OK);
        assert_true(v == good[i].bytes);
    }
    uint64_t v = 9;
    assert_int_equal(parse_bytes("1X", &v), ERR_FORMAT);
    assert_int_equal(parse_bytes("K", &v), ERR_FORMAT);
    assert_int_equal(parse_bytes("-1K", &v), ERR_FORMAT);
    assert_int_equal(parse_bytes("99999999999T", &v), ERR_LIMIT);
    assert_int_equal(v, 9);
}

static void small_helpers(void **state) {
    (void)state;
    char dst[4] = "zzz";
    assert_int_equal(str_copy(dst, sizeof dst, "abcdef"), 6);
    assert_string_equal(dst, "abc");
    assert_int_equal(str_copy(dst, 0, "q"), 1);
    assert_string_equal(dst, "abc");
    assert_true(str_starts("abc", "ab") && str_starts("abc", "") && !str_starts("a", "ab"));
    assert_true(str_ends("abc", "bc") && !str_ends("c", "bc"));
    assert_true(str_eq(NULL, NULL) && !str_eq("a", NULL) && str_eq("a", "a"));
    assert_true(str_eq_nocase("MiB", "mib") && !str_eq_nocase("a", "ab"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar_goes_round),
        cmocka_unit_test(bad_utf8_is_refused),
        cmocka_unit_test(integers_are_whole_strings),
        cmocka_unit_test(doubles_go_round),
        cmocka_unit_test(doubles_do_not_know_the_locale),
        cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(small_helpers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
