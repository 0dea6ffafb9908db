#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/text/compress.h"

#define MINI "tests/data/cases/tokenizer/mini-tokenizer.json"

static int32_t class_of(const class_map *m, const tokenizer *t, const char *token) {
    int32_t id = tokenizer_find(t, token, strlen(token));
    assert_true(id >= 0);
    return m->classes[id];
}

static void test_same_text_same_class(void **state) {
    (void)state;
    tokenizer *t = NULL;
    class_map m;
    err e = ERR_INIT;
    if (tokenizer_open(MINI, &t, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(class_map_build(t, &m, &e), OK);
    assert_int_equal(m.n_tokens, tokenizer_size(t));
    assert_int_equal(class_of(&m, t, "A"), class_of(&m, t, "a"));
    assert_int_not_equal(class_of(&m, t, "a"), class_of(&m, t, "b"));
    /* A tab, CR and LF fold to a blank and the blank stays. */
    assert_int_equal(class_of(&m, t, "\t"), class_of(&m, t, " "));
    assert_int_equal(class_of(&m, t, "\n"), class_of(&m, t, " "));
    /* Bytes that are no text keep their own class. */
    assert_int_not_equal(class_of(&m, t, "\xC3"), class_of(&m, t, "\xC4"));
    /* Classes are numbered in order of first use. */
    int32_t next = 0;
    for (int32_t i = 0; i < m.n_tokens; i++) {
        assert_true(m.classes[i] <= next);
        if (m.classes[i] == next) next++;
    }
    assert_int_equal(next, m.n_classes);
    class_map_release(&m);
    tokenizer_close(t);
}

static void test_reading_a_table(void **state) {
    (void)state;
    const char *path = "build/test_compress.json";
    static const char good[] = "{\"token_map\":[0,1,1,2]}", bad[] = "{\"token_map\":[0,9]}";
    class_map m;
    err e = ERR_INIT;
    assert_int_equal(dir_make_all("build", 0755, &e), OK);
    assert_int_equal(file_write_atomic(path, good, strlen(good), 0644, &e), OK);
    assert_int_equal(class_map_read(path, &m, &e), OK);
    assert_int_equal(m.n_tokens, 4);
    assert_int_equal(m.n_classes, 3);
    assert_int_equal(m.classes[3], 2);
    class_map_release(&m);
    assert_int_equal(file_write_atomic(path, bad, strlen(bad), 0644, &e), OK);
    assert_int_equal(class_map_read(path, &m, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, path));
    assert_int_equal(file_remove(path, &e), OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_text_same_class),
        cmocka_unit_test(test_reading_a_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
