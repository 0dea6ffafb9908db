/* Text width: clusters, cutting, and the cleaning of text from outside. The field cases are run by
 * tests/screen/test_cases_tui.c; here are the edges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "tui/width.h"

static int width(const char *s) {
    return width_text(s, strlen(s));
}

static void test_clusters(void **state) {
    (void)state;
    assert_int_equal(width(""), 0);
    assert_int_equal(width("abc"), 3);
    assert_int_equal(width("\xe4\xb8\xad\xe6\x96\x87"), 4);
    assert_int_equal(width("e\xcc\x81"), 1);
    assert_int_equal(width("\xcc\x81"), 1); /* alone: on a dotted circle */
    assert_int_equal(width("a\xe2\x80\x8b"
                           "b"),
        2);                                                         /* zero width space */
    assert_int_equal(width("\xf0\x9f\x87\xab\xf0\x9f\x87\xb7"), 2); /* flag */
    assert_int_equal(
        width("\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7"), 2);
    assert_int_equal(width("\xe2\x9d\xa4\xef\xb8\x8f"), 2); /* VS16 */
    assert_int_equal(width("\xff\xfe"), 2);                 /* bytes that are no UTF-8: one each */
    /* a decomposed Korean syllable, as in file names of some systems */
    assert_int_equal(width("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab"), 2);
    /* a joiner in a word: Sinhala "sri" */
    assert_int_equal(width("\xe0\xb7\x81\xe0\xb7\x8a\xe2\x80\x8d"), 1);
    assert_int_equal(width("ab\xe2\x80\x8d"), 2);
}

static void test_ambiguous(void **state) {
    (void)state;
    width_set_ambiguous(2);
    assert_int_equal(width("\xce\xb1"), 2);
    assert_int_equal(width("a"), 1);
    width_set_ambiguous(1);
    assert_int_equal(width("\xce\xb1"), 1);
}

static void test_fit_never_splits(void **state) {
    (void)state;
    const char *s = "ab\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9xy";
    int columns;
    assert_int_equal(width_fit(s, strlen(s), 3, &columns), 2);
    assert_int_equal(columns, 2);
    assert_int_equal(width_fit(s, strlen(s), 4, &columns), 13);
    assert_int_equal(width_fit(s, strlen(s), 0, &columns), 0);
    assert_int_equal(width_fit(s, strlen(s), 100, &columns), strlen(s));
}

static void test_previous(void **state) {
    (void)state;
    const char *s = "ae\xcc\x81\xe4\xb8\xad";
    assert_int_equal(width_previous(s, strlen(s)), 3);
    assert_int_equal(width_previous(s, 4), 3);
    assert_int_equal(width_previous(s, 1), 1);
    assert_int_equal(width_previous(s, 0), 0);
    char many[600];
    memset(many, 'x', sizeof many);
    assert_int_equal(width_previous(many, 600), 1);
}

static void clean(const char *in, size_t n, size_t piece, buf *out) {
    width_cleaner k;
    width_cleaner_reset(&k);
    buf_reset(out);
    for (size_t i = 0; i < n; i += piece) {
        size_t len = n - i < piece ? n - i : piece;
        assert_int_equal(width_clean(&k, in + i, len, out), OK);
    }
    assert_int_equal(width_clean_end(&k, out), OK);
}

static void check_clean(const char *in, const char *want) {
    buf out = BUF_INIT;
    for (size_t piece = 1; piece <= strlen(in) + 1; piece++) {
        clean(in, strlen(in), piece, &out);
        assert_string_equal(buf_cstr(&out), want);
    }
    buf_release(&out);
}

static void test_clean(void **state) {
    (void)state;
    check_clean("plain\ttext\n", "plain\ttext\n");
    check_clean("a\033[1;31mred\033[0mb", "aredb");
    check_clean("a\033]0;title\033\\b", "ab");
    check_clean("a\033(Bb", "ab");
    check_clean("a\033]0;open\nnext", "a\nnext");
    check_clean("a\033[31\nnext", "a\nnext");
    check_clean("line\r\nnext\r\n", "line\nnext\n");
    check_clean("over\rwrite", "over^Mwrite");
    check_clean("b\bs\x7f", "b^Hs^?");
    check_clean("x\xe2\x80\xaey", "x<U+202E>y");
    check_clean("\xc2\x9b"
                "31mred",
        "red");
    check_clean("\xc2\x85z", "<U+0085>z");
    check_clean("a\x9b"
                "31m",
        "a\xef\xbf\xbd"
        "31m");
    check_clean("cut\xe4\xb8", "cut\xef\xbf\xbd");
    check_clean("cut\xe4(", "cut\xef\xbf\xbd(");
    check_clean("\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80");
    check_clean("end\r", "end^M");
    check_clean("\033\033[2Jx", "x");
    check_clean("a\033\xc3\xa9", "a\xc3\xa9");
}

/* No byte sequence can put a control byte into the output. */
static void test_clean_every_pair(void **state) {
    (void)state;
    buf out = BUF_INIT;
    for (int a = 0; a < 256; a++) {
        for (int b = 0; b < 256; b++) {
            char in[3] = {(char)a, (char)b, 'z'};
            clean(in, 3, 3, &out);
            for (size_t i = 0; i < out.len; i++) {
                unsigned char c = (unsigned char)out.data[i];
                if (c == '\n' || c == '\t') continue;
                if (c < 0x20 || c == 0x7f) fail_msg("bytes %02x %02x let %02x through", a, b, c);
            }
        }
    }
    buf_release(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clusters),
        cmocka_unit_test(test_ambiguous),
        cmocka_unit_test(test_fit_never_splits),
        cmocka_unit_test(test_previous),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_clean_every_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
