/* The input decoder: what each byte sequence means, and that cutting it anywhere means the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "engine/base/str.h"
#include "tui/input.h"

static void print_event(const input_event *ev, buf *out) {
    static const char *const KEYS[] = {"char", "enter", "tab", "backspace", "esc", "up", "down",
        "right", "left", "home", "end", "pgup", "pgdn", "insert", "delete"};
    char text[5] = "";
    switch (ev->kind) {
    case INPUT_TEXT:
        text[utf8_encode(ev->code, text)] = '\0';
        buf_printf(out, "%s ", text);
        break;
    case INPUT_KEY:
        buf_printf(out, "<%s%s%s", ev->mods & INPUT_CTRL ? "C-" : "",
            ev->mods & INPUT_ALT ? "M-" : "", ev->mods & INPUT_SHIFT ? "S-" : "");
        if (ev->key == INPUT_KEY_CHAR) {
            text[utf8_encode(ev->code, text)] = '\0';
            buf_puts(out, text);
        } else if (ev->key >= INPUT_KEY_F1)
            buf_printf(out, "F%d", ev->key - INPUT_KEY_F1 + 1);
        else
            buf_puts(out, KEYS[ev->key]);
        buf_puts(out, "> ");
        break;
    case INPUT_PASTE:
        buf_printf(out, "paste(%s) ", ev->paste);
        break;
    case INPUT_MOUSE:
        buf_printf(out, "mouse(%d,%d,%d%s%s) ", ev->row, ev->column, ev->button,
            ev->is_release ? ",up" : "", ev->is_motion ? ",drag" : "");
        break;
    case INPUT_FOCUS:
        buf_printf(out, "focus(%u) ", (unsigned)ev->code);
        break;
    case INPUT_REPLY:
        buf_printf(out, "reply(%d,%u) ", (int)ev->reply, (unsigned)ev->code);
        break;
    default:
        buf_printf(out, "invalid(%02x) ", (unsigned)ev->code);
        break;
    }
}

/* Feeds the bytes in pieces, then lets time pass until nothing waits. */
static void decode(const char *s, size_t n, size_t piece, buf *out) {
    input in;
    input_event ev;
    uint64_t now = 1000;
    input_init(&in, 25);
    buf_reset(out);
    for (size_t i = 0; i < n; i += piece) {
        size_t len = n - i < piece ? n - i : piece;
        assert_int_equal(input_feed(&in, s + i, len), OK);
        while (input_next(&in, now, &ev))
            print_event(&ev, out);
    }
    for (int wait = input_wait_ms(&in, now); wait >= 0; wait = input_wait_ms(&in, now)) {
        now += (uint64_t)wait;
        while (input_next(&in, now, &ev))
            print_event(&ev, out);
    }
    input_release(&in);
}

static void check(const char *bytes, const char *want) {
    buf out = BUF_INIT;
    for (size_t piece = 1; piece <= strlen(bytes) + 1; piece++) {
        decode(bytes, strlen(bytes), piece, &out);
        assert_string_equal(buf_cstr(&out), want);
    }
    buf_release(&out);
}

static void test_plain(void **state) {
    (void)state;
    check("ab", "a b ");
    check("\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80", "\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80 ");
    check("\r\n\t\x7f", "<enter> <C-j> <tab> <backspace> ");
    check("\x01\x1a\x1c", "<C-a> <C-z> <C-\\> ");
    check("\xff"
          "a",
        "invalid(ff) a ");
    check("\xe4\xb8(", "invalid(e4) invalid(b8) ( ");
    check("\xc2\x9b", "invalid(9b) ");
}

static void test_keys(void **state) {
    (void)state;
    check("\033[A\033OB\033[C", "<up> <down> <right> ");
    check("\033[1;5D\033[1;3A\033[1;2P", "<C-left> <M-up> <S-F1> ");
    check("\033[5~\033[6~\033[3~\033[3;5~", "<pgup> <pgdn> <delete> <C-delete> ");
    check("\033OP\033[15~\033[24~\033[[B", "<F1> <F5> <F12> <F2> ");
    check("\033[Z", "<S-tab> ");
    check("\033x\033X\033\r\033\x7f", "<M-x> <M-X> <M-enter> <M-backspace> ");
    check("\033[13;2u\033[97;5u\033[127;3u\033[106u", "<S-enter> <C-a> <M-backspace> j ");
    check("\033[27;5;13~\033[27;2;13~", "<C-enter> <S-enter> ");
    check("\033[97;5:3u", "");
    check("\033[999~\033[1;2;3;4;5;6;7;8;9;10x", "");
}

static void test_escape(void **state) {
    (void)state;
    check("\033", "<esc> ");
    check("\033\033", "<esc> <esc> ");
    check("\033\033[A", "<esc> <up> ");
    check("\033[", "<M-[> ");
    check("\033O", "<M-O> ");
}

static void test_reports(void **state) {
    (void)state;
    check("\033[<0;12;7M\033[<0;12;7m", "mouse(6,11,0) mouse(6,11,0,up) ");
    check("\033[<64;1;1M\033[<32;3;4M", "mouse(0,0,64) mouse(3,2,0,drag) ");
    check("\033[I\033[O", "focus(1) focus(0) ");
    check("\033[?2026;2$y\033[?2026;0$y", "reply(1,1) reply(1,0) ");
    check("\033[?1u\033[?62;22c", "reply(2,0) reply(0,0) ");
    check("\033[24;80R", "reply(3,0) ");
    check("\033]11;rgb:0000/0000/0000\033\\a\033P1$r\033\\b", "a b ");
    check("\033[M !!x", "x ");
}

static void test_paste(void **state) {
    (void)state;
    check("\033[200~one\r\ntwo\rthree\033[201~x", "paste(one\ntwo\nthree) x ");
    check("\033[200~\033[201~", "paste() ");
    check("\033[200~a\033[31mb\x07\033[201~", "paste(a^[[31mb^G) ");
    check("\033[200~never ends", "paste(never ends) ");
    check("\033[200~bad \xff byte\033[201~", "paste(bad \xef\xbf\xbd byte) ");
    check("\033[201~", "");
}

static void test_megabyte_paste(void **state) {
    (void)state;
    buf bytes = BUF_INIT;
    buf_puts(&bytes, "\033[200~");
    for (int i = 0; i < 65536; i++)
        buf_puts(&bytes, "sixteen bytes..\n");
    buf_puts(&bytes, "\033[201~");
    input in;
    input_event ev;
    input_init(&in, 25);
    size_t got = 0;
    for (size_t i = 0; i < bytes.len; i += 4096) {
        size_t n = bytes.len - i < 4096 ? bytes.len - i : 4096;
        assert_int_equal(input_feed(&in, bytes.data + i, n), OK);
        while (input_next(&in, 1, &ev)) {
            assert_int_equal(ev.kind, INPUT_PASTE);
            got = ev.paste_len;
        }
    }
    assert_int_equal(got, 1048576);
    input_release(&in);
    buf_release(&bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_escape),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_paste),
        cmocka_unit_test(test_megabyte_paste),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
