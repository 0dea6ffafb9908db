#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"

static json *parse(const char *text) {
    json *v = NULL;
    err e = ERR_INIT;
    int rc = json_parse(text, strlen(text), NULL, &v, &e);
    if (rc != OK) fail_msg("%s: %s", text, e.msg);
    return v;
}

static void assert_prints(const char *text, const char *expected) {
    json *v = parse(text);
    buf out = BUF_INIT;
    assert_int_equal(json_print(v, &out), OK);
    assert_string_equal(buf_cstr(&out), expected);
    buf_release(&out);
    json_free(v);
}

static void prints_as_python(void **state) {
    (void)state;
    assert_prints("{\"a\" : [ 1,2 , {} , [] ],\"b\":null}", "{\"a\": [1, 2, {}, []], \"b\": null}");
    assert_prints("[[[1],[2]],[[3]],true,false,\"x\"]", "[[[1], [2]], [[3]], true, false, \"x\"]");
    assert_prints("123456789012345678901234567890", "123456789012345678901234567890");
    assert_prints("[9007199254740993,-0,-0.0,0.0]", "[9007199254740993, 0, -0.0, 0.0]");
    assert_prints("[1e20,1E-7,1e15,1e16,123456789.125]",
        "[1e+20, 1e-07, 1000000000000000.0, 1e+16, 123456789.125]");
    assert_prints("[0.0001,0.00001,5e-324,1.7976931348623157e308,0.1,3.0,100.5e1]",
        "[0.0001, 1e-05, 5e-324, 1.7976931348623157e+308, 0.1, 3.0, 1005.0]");
    assert_prints("\"\\u0001\\u001f\\u007f\\/\\u2028\\\"\\\\\\n\\r\\t\\b\\f\"",
        "\"\\u0001\\u001f\x7f/\xe2\x80\xa8\\\"\\\\\\n\\r\\t\\b\\f\"");
    assert_prints("\"a\\u0000b\\\\u0000\"", "\"a\\u0000b\\\\u0000\"");
    assert_prints("\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\"");
}

static void repeated_key_keeps_place_and_last_value(void **state) {
    (void)state;
    assert_prints("{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}");
    assert_prints(
        "{\"a\":1,\"a\":{\"c\":1,\"c\":[2]},\"b\":0,\"b\":1}", "{\"a\": {\"c\": [2]}, \"b\": 1}");
    assert_prints("{\"a\":1,\"a\":2,\"a\":3}", "{\"a\": 3}");
    assert_prints("{\"x\":0,\"a\":1,\"y\":5,\"a\":2}", "{\"x\": 0, \"a\": 2, \"y\": 5}");
}

static void many_repeated_keys(void **state) {
    (void)state;
    buf text = BUF_INIT;
    assert_int_equal(buf_puts(&text, "{"), OK);
    for (int i = 0; i < 40000; i++) {
        assert_int_equal(buf_printf(&text, "%s\"k%d\":%d", i ? "," : "", i % 20000, i), OK);
    }
    assert_int_equal(buf_puts(&text, "}"), OK);
    json *v = parse(buf_cstr(&text));
    assert_int_equal(json_count(v), 20000);
    int64_t i = 0;
    JSON_EACH(member, v) {
        int64_t value = 0;
        assert_int_equal(json_i64(member, &value), OK);
        assert_int_equal(value, 20000 + i);
        i++;
    }
    json_free(v);
    buf_release(&text);
}

static void numbers_keep_their_digits(void **state) {
    (void)state;
    json *v =
        parse("[18446744073709551615,-9223372036854775808,9223372036854775808,1.0,1e3,-1,"
              "0.10000000000000000000000000000000000000000000000000000000000000000000000001]");
    uint64_t u = 0;
    int64_t i = 0;
    double d = 0;
    assert_int_equal(json_u64(json_at(v, 0), &u), OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(json_i64(json_at(v, 0), &i), ERR_LIMIT);
    assert_int_equal(json_i64(json_at(v, 1), &i), OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(json_i64(json_at(v, 2), &i), ERR_LIMIT);
    assert_string_equal(json_number_text(json_at(v, 2)), "9223372036854775808");
    assert_int_equal(json_i64(json_at(v, 3), &i), ERR_FORMAT);
    assert_int_equal(json_double(json_at(v, 4), &d), OK);
    assert_true(d == 1000.0);
    assert_int_equal(json_u64(json_at(v, 5), &u), ERR_LIMIT);
    assert_int_equal(json_double(json_at(v, 6), &d), OK);
    assert_true(d == 0.1);
    assert_null(json_at(v, 7));
    json_free(v);
}

static void refuses(void **state) {
    (void)state;
    static const char *const bad[] = {"", " ", "{", "[1,]", "{\"a\":1,}", "{a:1}", "[1 2]", "01",
        "-", "1.", ".5", "1e", "+1", "NaN", "Infinity", "-Infinity", "nul", "truex", "\"\\x\"",
        "\"a", "\"\\u12g4\"", "\"\\ud800\"", "\"\t\"", "[1]]", "{\"a\"}", "{\"a\":}", "{,}", "'a'",
        "1e999", "\xef\xbb\xbf{}", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "[\"a\":1]", "{\"a\",1}",
        "//x\n1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json *v = NULL;
        err e = ERR_INIT;
        int rc = json_parse(bad[i], strlen(bad[i]), NULL, &v, &e);
        if (rc == OK || v != NULL || e.msg[0] == '\0') fail_msg("accepted or mute: %s", bad[i]);
    }
    json *v = NULL;
    assert_int_equal(json_parse("{}\0", 3, NULL, &v, NULL), ERR_FORMAT);
}

static void depth_and_size_are_limited(void **state) {
    (void)state;
    char text[2100];
    for (int n = 511; n <= 513; n++) {
        memset(text, '[', (size_t)n);
        memset(text + n, ']', (size_t)n);
        json *v = NULL;
        int rc = json_parse(text, 2 * (size_t)n, NULL, &v, NULL);
        assert_int_equal(rc, n <= 512 ? OK : ERR_LIMIT);
        buf out = BUF_INIT;
        if (rc == OK) assert_int_equal(json_print(v, &out), OK);
        if (rc == OK) assert_int_equal(out.len, 2 * (size_t)n);
        buf_release(&out);
        json_free(v);
    }
    json *v = NULL;
    json_limits limits = {.max_bytes = 5, .max_depth = 1, .max_nodes = 3};
    assert_int_equal(json_parse("[1,2]", 5, &limits, &v, NULL), OK);
    json_free(v);
    assert_int_equal(json_parse("[1,2 ]", 6, &limits, &v, NULL), ERR_LIMIT);
    assert_int_equal(json_parse("[[]]", 4, &limits, &v, NULL), ERR_LIMIT);
    limits.max_bytes = 100;
    assert_int_equal(json_parse("[1,2,3]", 7, &limits, &v, NULL), ERR_LIMIT);
}

static void errors_name_line_and_column(void **state) {
    (void)state;
    json *v = NULL;
    err e = ERR_INIT;
    const char *text = "{\n  \"a\": 1,\n  \"b\": tru\n}";
    assert_int_equal(json_parse(text, strlen(text), NULL, &v, &e), ERR_FORMAT);
    assert_string_equal(e.msg, "JSON line 3 column 8: a value was expected");
}

static void strings_with_nul(void **state) {
    (void)state;
    json *v = parse("\"a\\u0000b\"");
    assert_string_equal(json_str(v), "a\xC0\x80"
                                     "b");
    buf out = BUF_INIT;
    assert_int_equal(json_str_bytes(v, &out), OK);
    assert_int_equal(out.len, 3);
    assert_memory_equal(out.data, "a\0b", 3);
    buf_release(&out);
    json_free(v);
}

static void lookups_accept_null(void **state) {
    (void)state;
    assert_null(json_get(NULL, "a"));
    assert_null(json_at(NULL, 0));
    assert_null(json_str(NULL));
    assert_int_equal(json_count(NULL), 0);
    assert_false(json_is_null(NULL));
    assert_string_equal(json_kind(NULL), "nothing");
    json *v = parse("{\"a\":{\"b\":[1,\"x\",null]}}");
    const json *list = json_get(json_get(v, "a"), "b");
    assert_int_equal(json_count(list), 3);
    assert_string_equal(json_str(json_at(list, 1)), "x");
    assert_true(json_is_null(json_at(list, 2)));
    assert_null(json_get(list, "b"));
    json_free(v);
}

static void writer_writes(void **state) {
    (void)state;
    buf out = BUF_INIT;
    json_w w;
    json_w_begin(&w, &out);
    json_w_object(&w);
    json_w_kstr(&w, "s", "a\"\x01\xff");
    json_w_ki64(&w, "i", INT64_MIN);
    json_w_ku64(&w, "u", UINT64_MAX);
    json_w_kdouble(&w, "d", 0.5);
    json_w_kdouble(&w, "nan", NAN);
    json_w_key(&w, "list");
    json_w_array(&w);
    json_w_bool(&w, true);
    json_w_fixed(&w, 1.0 / 3, 3);
    json_w_object(&w);
    json_w_close(&w);
    json_w_close(&w);
    json_w_knull(&w, "n");
    json_w_close(&w);
    assert_int_equal(json_w_end(&w), OK);
    assert_string_equal(buf_cstr(&out),
        "{\"s\":\"a\\\"\\u0001\xef\xbf\xbd\",\"i\":-9223372036854775808,\"u\":18446744073709551615,"
        "\"d\":0.5,\"nan\":null,\"list\":[true,0.333,{}],\"n\":null}");
    buf_release(&out);
}

static void writer_reports_a_full_buffer(void **state) {
    (void)state;
    buf out = BUF_MAX(8);
    json_w w;
    json_w_begin(&w, &out);
    json_w_array(&w);
    for (int i = 0; i < 10; i++)
        json_w_str(&w, "abc");
    json_w_close(&w);
    assert_int_equal(json_w_end(&w), ERR_LIMIT);
    assert_true(out.len <= 8);
    buf_release(&out);
}

static void survives_failing_allocations(void **state) {
    (void)state;
    const char *text = "{\"a\":[1,2.5,\"x\\u0000\"],\"a\":2,\"b\":{}}";
    int n_failed = 0;
    for (long n = 0; n < 40; n++) {
        json *v = NULL;
        err e = ERR_INIT;
        mem_fail_after(n);
        int rc = json_parse(text, strlen(text), NULL, &v, &e);
        mem_fail_after(-1);
        n_failed += rc == ERR_MEMORY;
        assert_true(rc == OK || (rc == ERR_MEMORY && v == NULL && e.msg[0] != '\0'));
        json_free(v);
    }
    assert_true(n_failed > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prints_as_python),
        cmocka_unit_test(repeated_key_keeps_place_and_last_value),
        cmocka_unit_test(many_repeated_keys),
        cmocka_unit_test(numbers_keep_their_digits),
        cmocka_unit_test(refuses),
        cmocka_unit_test(depth_and_size_are_limited),
        cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(strings_with_nul),
        cmocka_unit_test(lookups_accept_null),
        cmocka_unit_test(writer_writes),
        cmocka_unit_test(writer_reports_a_full_buffer),
        cmocka_unit_test(survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
