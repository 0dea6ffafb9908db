/* The line editor behind our own decoder (readline, or the built-in one), and the input pane on top
 * of it: what keys do to the text, new lines, block mode, chips, visual rows, history. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "engine/base/str.h"
#include "tui/line.h"
#include "tui/part_input.h"

static part_input *pane;

static bool key(input_key k, int mods, uint32_t code) {
    input_event ev = {.kind = INPUT_KEY, .key = k, .mods = mods, .code = code};
    return part_input_event(pane, &ev);
}

static void type(const char *s) {
    for (size_t i = 0; i < strlen(s);) {
        input_event ev = {.kind = INPUT_TEXT};
        i += utf8_decode(s + i, strlen(s) - i, &ev.code);
        part_input_event(pane, &ev);
    }
}

static void paste(const char *s, size_t n) {
    input_event ev = {.kind = INPUT_PASTE, .paste = s, .paste_len = n};
    part_input_event(pane, &ev);
}

static void check_text(const char *want) {
    buf text = BUF_INIT;
    part_input_get(pane, &text);
    assert_string_equal(buf_cstr(&text), want);
    buf_release(&text);
}

static void take(const char *want) {
    buf text = BUF_INIT;
    part_input_take(pane, &text);
    assert_string_equal(buf_cstr(&text), want);
    buf_release(&text);
}

static int open_pane(void **state) {
    (void)state;
    setenv("INPUTRC", "/dev/null", 1);
    return part_input_open(NULL, &pane, NULL);
}

static int close_pane(void **state) {
    (void)state;
    part_input_close(pane);
    return 0;
}

static void test_editing(void **state) {
    (void)state;
    type("hello w\xc3\xb6rld");
    key(INPUT_KEY_LEFT, 0, 0);
    key(INPUT_KEY_BACKSPACE, 0, 0);
    check_text("hello w\xc3\xb6rd");
    key(INPUT_KEY_HOME, 0, 0);
    type("x");
    key(INPUT_KEY_CHAR, INPUT_CTRL, 'e');
    key(INPUT_KEY_CHAR, INPUT_CTRL, 'w');
    check_text("xhello ");
    key(INPUT_KEY_CHAR, INPUT_CTRL, 'y');
    check_text("xhello w\xc3\xb6rd");
    key(INPUT_KEY_LEFT, INPUT_CTRL, 0);
    type("(");
    check_text("xhello (w\xc3\xb6rd");
    assert_true(key(INPUT_KEY_ENTER, 0, 0));
    take("xhello (w\xc3\xb6rd");
    check_text("");
}

static void test_keys_leave_nothing_behind(void **state) {
    (void)state;
    type("ab");
    for (int k = INPUT_KEY_PAGE_UP; k <= INPUT_KEY_F12; k++) {
        if (k != INPUT_KEY_DELETE) key((input_key)k, INPUT_CTRL | INPUT_SHIFT, 0);
    }
    check_text("ab");
}

static void test_lines(void **state) {
    (void)state;
    type("one");
    key(INPUT_KEY_ENTER, INPUT_ALT, 0);
    type("two");
    key(INPUT_KEY_CHAR, INPUT_CTRL, 'j');
    type("three");
    assert_int_equal(part_input_rows(pane, 80), 3);
    key(INPUT_KEY_UP, 0, 0);
    type("!");
    check_text("one\ntwo!\nthree");
    key(INPUT_KEY_UP, 0, 0);
    key(INPUT_KEY_UP, 0, 0); /* the first row: history, which is empty */
    check_text("one\ntwo!\nthree");
    assert_true(key(INPUT_KEY_ENTER, 0, 0));
    take("one\ntwo!\nthree");
}

static void test_block(void **state) {
    (void)state;
    type("\"\"\"");
    assert_false(key(INPUT_KEY_ENTER, 0, 0));
    type("a");
    assert_false(key(INPUT_KEY_ENTER, 0, 0));
    type("\"\"\"");
    assert_true(key(INPUT_KEY_ENTER, 0, 0));
    take("a");
}

static void test_chip(void **state) {
    (void)state;
    char big[6000];
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    type("see ");
    paste(big, sizeof big - 1);
    size_t n;
    line_text(&n);
    assert_true(n < 60); /* the line holds only the label */
    type(" end");
    assert_true(key(INPUT_KEY_ENTER, 0, 0));
    buf text = BUF_INIT;
    part_input_take(pane, &text);
    assert_int_equal(text.len, 4 + sizeof big - 1 + 4);
    buf_release(&text);
    paste(big, sizeof big - 1);
    key(INPUT_KEY_BACKSPACE, 0, 0); /* a chip goes as one */
    check_text("");
}

static void test_wrap(void **state) {
    (void)state;
    type("\xe4\xb8\xad\xe6\x96\x87\xe4\xb8\xad\xe6\x96\x87"); /* 8 columns */
    assert_int_equal(part_input_rows(pane, 2 + 9), 1);
    assert_int_equal(part_input_rows(pane, 2 + 8), 2); /* the caret needs a place */
    assert_int_equal(part_input_rows(pane, 2 + 5), 2);
    assert_int_equal(part_input_rows(pane, 1), 5);
}

static void test_history(void **state) {
    (void)state;
    type("first");
    key(INPUT_KEY_ENTER, 0, 0);
    take("first");
    type("second\\n");
    key(INPUT_KEY_ENTER, 0, 0);
    take("second\\n");
    type("draft");
    key(INPUT_KEY_UP, 0, 0);
    check_text("second\\n");
    key(INPUT_KEY_UP, 0, 0);
    check_text("first");
    key(INPUT_KEY_DOWN, 0, 0);
    key(INPUT_KEY_DOWN, 0, 0);
    check_text("draft");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_editing, open_pane, close_pane),
        cmocka_unit_test_setup_teardown(test_keys_leave_nothing_behind, open_pane, close_pane),
        cmocka_unit_test_setup_teardown(test_lines, open_pane, close_pane),
        cmocka_unit_test_setup_teardown(test_block, open_pane, close_pane),
        cmocka_unit_test_setup_teardown(test_chip, open_pane, close_pane),
        cmocka_unit_test_setup_teardown(test_wrap, open_pane, close_pane),
        cmocka_unit_test_setup_teardown(test_history, open_pane, close_pane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
