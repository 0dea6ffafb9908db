/* The key table: no key means two things at one place, names are unique, keys.conf is checked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "engine/base/file.h"
#include "tui/keymap.h"

static bool has_word(const char *words, const char *word, size_t n) {
    for (const char *s = words; *s != '\0'; s += strspn(s, " ")) {
        size_t len = strcspn(s, " ");
        if (len == n && memcmp(s, word, n) == 0) return true;
        s += len;
    }
    return false;
}

static void test_no_key_twice(void **state) {
    (void)state;
    size_t n;
    const key_row *rows = keymap_rows(&n);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            assert_string_not_equal(rows[i].name, rows[j].name);
            if ((rows[i].where & rows[j].where) == 0) continue;
            for (const char *s = rows[i].keys; *s != '\0'; s += strspn(s, " ")) {
                size_t len = strcspn(s, " ");
                if (has_word(rows[j].keys, s, len)) {
                    fail_msg("%.*s is %s and %s", (int)len, s, rows[i].name, rows[j].name);
                }
                s += len;
            }
        }
    }
}

static key_action find_char(uint32_t code, int mods, int where) {
    input_event ev = {.kind = mods != 0 ? INPUT_KEY : INPUT_TEXT, .code = code, .mods = mods};
    return keymap_find(&ev, where);
}

static void test_find(void **state) {
    (void)state;
    assert_int_equal(find_char('j', 0, KEYS_TRANSCRIPT), ACTION_LINE_DOWN);
    assert_int_equal(find_char('j', 0, KEYS_INPUT), ACTION_NONE); /* it types */
    assert_int_equal(find_char('c', INPUT_CTRL, KEYS_INPUT), ACTION_STOP);
    assert_int_equal(find_char('2', INPUT_ALT, KEYS_DASH), ACTION_CHAT);
    assert_int_equal(find_char(' ', 0, KEYS_TRANSCRIPT), ACTION_PAGE_DOWN);
    input_event f10 = {.kind = INPUT_KEY, .key = (input_key)(INPUT_KEY_F1 + 9)};
    assert_int_equal(keymap_find(&f10, KEYS_HOME), ACTION_LEAVE);
    input_event mouse = {.kind = INPUT_MOUSE};
    assert_int_equal(keymap_find(&mouse, KEYS_HOME), ACTION_NONE);
}

static void check_file(const char *text, int rc, const char *message) {
    char path[] = "/tmp/tandem-keys-XXXXXX";
    err e = ERR_INIT;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (long)strlen(text));
    close(fd);
    assert_int_equal(keymap_load(path, &e), rc);
    if (message != NULL && strstr(e.msg, message) == NULL) fail_msg("%s: %s", text, e.msg);
    unlink(path);
}

static void test_file(void **state) {
    (void)state;
    err e = ERR_INIT;
    assert_int_equal(keymap_load("/nonexistent/keys.conf", &e), OK);
    check_file("# comment\n\nnonsense\n", ERR_FORMAT, ":3: expected NAME = KEYS");
    check_file("no-such = a\n", ERR_FORMAT, "there is no action \"no-such\"");
    check_file("raw = Wrong\n", ERR_FORMAT, "is no key");
    check_file("raw = j\n", ERR_FORMAT, "j is bound to \"down\" already");
    check_file("raw = M-r F9 z\n", OK, NULL);
    assert_int_equal(find_char('z', 0, KEYS_TRANSCRIPT), ACTION_RAW);
    assert_int_equal(find_char('m', 0, KEYS_TRANSCRIPT), ACTION_NONE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_key_twice),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
