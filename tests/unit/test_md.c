/* Streaming Markdown: what blocks look like, and that nothing shown changes when more text comes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "tui/canvas.h"
#include "tui/md.h"

#define MAX_ROWS 400

static theme look(void) {
    return theme_choose("none", 0, false, true);
}

/* One row as text with its styles: a letter per change of style. */
static void row_text(const md *d, int i, int columns, buf *out) {
    canvas c;
    canvas_init(&c);
    canvas_resize(&c, 1, columns);
    pen p = pen_on(&c, canvas_area(&c));
    md_draw_row(d, i, 0, &p);
    int end = columns;
    while (end > 0 && canvas_at(&c, 0, end - 1)->len == 0)
        end--;
    style now = style_of(ROLE_TEXT);
    buf_reset(out);
    for (int j = 0; j < end; j++) {
        const cell *k = canvas_at(&c, 0, j);
        if (k->columns == 0) continue;
        if (k->len > 0 && (k->st.role != now.role || k->st.flags != now.flags)) {
            buf_printf(out, "{%d%s%s%s}", (int)k->st.role, k->st.flags & STYLE_BOLD ? "b" : "",
                k->st.flags & STYLE_ITALIC ? "i" : "", k->st.flags & STYLE_UNDERLINE ? "u" : "");
            now = k->st;
        }
        if (k->len == 0)
            buf_putc(out, ' ');
        else
            buf_append(out, k->text, k->len);
    }
    canvas_release(&c);
}

static void all_rows(md *d, int columns, buf *out) {
    theme t = look();
    buf row = BUF_INIT;
    int n = md_layout(d, columns, &t);
    buf_reset(out);
    for (int i = 0; i < n; i++) {
        row_text(d, i, columns, &row);
        buf_printf(out, "%s\n", buf_cstr(&row));
    }
    buf_release(&row);
}

static void check(const char *source, int columns, const char *want) {
    buf out = BUF_INIT;
    for (size_t piece = 1; piece <= 7; piece += 3) {
        md *d = md_new(false, ROLE_TEXT);
        for (size_t i = 0; i < strlen(source); i += piece) {
            size_t n = strlen(source) - i < piece ? strlen(source) - i : piece;
            assert_int_equal(md_append(d, source + i, n), OK);
            all_rows(d, columns, &out);
        }
        md_finish(d);
        all_rows(d, columns, &out);
        assert_string_equal(buf_cstr(&out), want);
        md_free(d);
    }
    buf_release(&out);
}

static void test_paragraphs(void **state) {
    (void)state;
    check("", 20, "");
    check("one two three four", 10, "one two\nthree four\n");
    check("soft\nbreak\n\nnext", 20, "soft break\n\nnext\n");
    check("hard  \nbreak", 20, "hard\nbreak\n");
    check("hard\\\nbreak", 20, "hard\nbreak\n");
    check("abcdefghijkl mn", 5, "abcde\nfghij\nkl mn\n");
    check("\xe4\xb8\xad\xe6\x96\x87\xe4\xb8\xad\xe6\x96\x87", 5,
        "\xe4\xb8\xad\xe6\x96\x87\n\xe4\xb8\xad\xe6\x96\x87\n");
}

static void test_inline(void **state) {
    (void)state;
    check("a **bold** b", 40, "a {0b}bold {0}b\n");
    check("*it* and _it_", 40, "{0i}it {0}and {0i}it\n");
    check("***both***", 40, "{0bi}both\n");
    check("`code` x", 40, "{11}code {0}x\n");
    check("`` a`b ``", 40, "{11}a`b\n");
    check("2 * 3 * 4", 40, "2 * 3 * 4\n");
    check("snake_case_name", 40, "snake_case_name\n");
    check("a **never closed", 40, "a **never closed\n");
    check("`open", 40, "`open\n");
    check("\\*not\\* \\\\", 40, "*not* \\\n");
    check("[text](http://x.example) y", 40, "{0u}text{1}[1] {0}y\n");
    check("[ ] task [x]", 40, "[ ] task [x]\n");
    check("![a cat](cat.png)", 40, "{1}[image: {0}a cat{1}]\n");
    check("<https://x.example>", 40, "{0u}https://x.example\n");
    check("a < b && c > d", 40, "a < b && c > d\n");
    check("&lt;tag&gt; &copy;", 40, "<tag> &copy;\n");
    check("~~gone~~ ~5", 40, "{1}gone {0}~5\n");
    check("cost $5 and $x_1*y*$", 40, "cost $5 and $x_1*y*$\n");
    check("\\(a_b\\)", 40, "\\(a_b\\)\n");
    check("**bold `a*b` x**", 40, "{0b}bold {11b}a*b {0b}x\n");
    check("*a `b* c` d*", 40, "{0i}a {11i}b* c {0i}d\n");
}

static void test_long_marks(void **state) {
    (void)state;
    char text[200];
    memset(text, 'x', sizeof text);
    text[0] = text[1] = '*';
    memcpy(text + 100, "** y", 5);
    char want[200];
    snprintf(want, sizeof want, "%s\n", text);
    check(text, 150, want); /* no partner within 64 characters: literal for good */
}

static void test_blocks(void **state) {
    (void)state;
    check("# One\ntext\n## Two ##\n", 40, "{3u}One\ntext\n\n{3}Two\n");
    check("- a\n- b\n  - c\n", 40, "{3}* {0}a\n{3}* {0}b\n  {3}* {0}c\n");
    check("1. one\n2. two is long\n", 10, "{3}1. {0}one\n{3}2. {0}two is\n   long\n");
    check("> quoted\n> more\n", 40, "{12}| {1}quoted more\n");
    check("a\n\n---\nb", 10, "a\n\n{12}----------\n\nb\n");
    check("#no heading", 40, "#no heading\n");
    check("-no item", 40, "-no item\n");
    check("1984 was", 40, "1984 was\n");
    check("**bold** start", 40, "{0b}bold {0}start\n");
    check("| not a table", 40, "| not a table\n");
}

static void test_code(void **state) {
    (void)state;
    check("x\n```c\nint a; // b\n```\ny", 40,
        "x\n\n{12}code [1] c -----------------------------\n  {19}int {0}a; {21}// b\n"
        "{12}--------------------- y1 copies [1] ----\n\ny\n");
    check("```\nopen", 30,
        "{12}code [1] ---------------------\n  open\n{12}-------------- not closed ----\n");
    check("~~~\na ``` b\n~~~\n", 30,
        "{12}code [1] ---------------------\n  a ``` b\n{12}----------- y1 copies [1] ----\n");
    check("```\nabcdefghij\n```\n", 8, "{12}code [1]\n  abcde{3}>\n {12}y1 copi\n");
}

static void test_code_text(void **state) {
    (void)state;
    const char *source = "```sh\nls -l\n\nps\n```\nx\n```\nsecond\n```\n";
    md *d = md_new(false, ROLE_TEXT);
    buf out = BUF_INIT;
    md_append(d, source, strlen(source));
    md_finish(d);
    assert_int_equal(md_n_code(d), 2);
    md_code(d, 1, &out);
    assert_string_equal(buf_cstr(&out), "ls -l\n\nps\n");
    buf_reset(&out);
    md_code(d, 2, &out);
    assert_string_equal(buf_cstr(&out), "second\n");
    buf_release(&out);
    md_free(d);
}

static void test_tables(void **state) {
    (void)state;
    check("| a | bb |\n|---|---:|\n| one | 2 |\n", 40,
        "  {2}a      bb\n  {12}---   ---\n  one     2\n");
    check("| a |\n", 40, "| a |\n");
    check("| name | value |\n|-|-|\n| abcdefgh ijkl | 1 |\n", 20,
        "  {2}name         value\n  {12}----------   -----\n  abcdefgh     1\n  ijkl\n");
    check("| a | b | c |\n|-|-|-|\n| 1 | 2 | 3 |\n", 6, "{2}a: {0}1\n{2}b: {0}2\n{2}c: {0}3\n");
}

static void test_plain(void **state) {
    (void)state;
    theme t = look();
    buf out = BUF_INIT;
    md *d = md_new(true, ROLE_USER);
    md_append(d, "*as* written\n  two\n\n\nthree", 26);
    md_finish(d);
    assert_int_equal(md_layout(d, 40, &t), 4);
    all_rows(d, 40, &out);
    assert_string_equal(buf_cstr(&out), "{8}*as* written\n  {8}two\n\n{8}three\n");
    md_free(d);
    buf_release(&out);
}

/* --- stability --- */

static const char *const CORPUS[] = {
    "Intro with **bold** and `code`.\n\n# Head\n\n1. first *item* is rather long, so it wraps\n"
    "2. second\n"
    "   - nested _one_\n   - nested two\n\n```c\nint main(void) {\n    return 0; /* done */\n}\n"
    "```\n\nAfter.",
    "> quote **a** b\n> goes on\n\n| h1 | h2 |\n|----|:--:|\n| a  | `b` |\n| longer cell | x |\n"
    "\nend [link](http://e.example/x) tail",
    "**Note:** a_b_c *x* ** y `un closed\nnext ~~del~~ &amp; <http://a.example> $x_i$ $5\n***\n"
    "text\n- \n- b\n",
    "```python\nx = \"\"\"doc\nmore\"\"\"\nfor i in range(10):\n    print(i)\n\n``\n```\n~~~~\n"
    "~~~\n~~~~\ntail",
    "\xe4\xb8\xad\xe6\x96\x87 **\xe7\xb2\x97** \xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9 "
    "e\xcc\x81 words and words and words\n- \xe5\x88\x97\n",
    "+\n-\n*\n1.\n#\n>\n|\n``\n~~\n[\n<\n&\n\\\n!\n",
};

typedef struct shot {
    char *rows[MAX_ROWS];
    int n_rows;
} shot;

static void take_shot(md *d, int columns, shot *s) {
    theme t = look();
    buf row = BUF_INIT;
    s->n_rows = md_layout(d, columns, &t);
    assert_true(s->n_rows <= MAX_ROWS);
    for (int i = 0; i < s->n_rows; i++) {
        row_text(d, i, columns, &row);
        s->rows[i] = strdup(buf_cstr(&row));
    }
    buf_release(&row);
}

static void free_shot(shot *s) {
    for (int i = 0; i < s->n_rows; i++)
        free(s->rows[i]);
    s->n_rows = 0;
}

/* Whole characters only: the cleaner in front never gives half of one. */
static bool is_boundary(const char *s, size_t i) {
    return ((unsigned char)s[i] & 0xc0) != 0x80;
}

/* Every row but the last of a prefix stands unchanged in the next prefix; the last may only grow.
 * Tables are free to widen until they are closed. */
static void check_stable(const char *source, int columns) {
    shot before = {.n_rows = 0}, after;
    md *d = md_new(false, ROLE_TEXT);
    size_t n = strlen(source);
    for (size_t i = 0; i <= n; i++) {
        if (i < n)
            md_append(d, source + i, 1);
        else
            md_finish(d);
        if (i < n && !is_boundary(source, i + 1)) continue;
        take_shot(d, columns, &after);
        bool in_table =
            i < n && memchr(source + (i > 60 ? i - 60 : 0), '|', i > 60 ? 60 : i) != NULL;
        for (int j = 0; j + 1 < before.n_rows && !in_table; j++) {
            if (strstr(source, "|") != NULL && strstr(before.rows[j], "--") != NULL) continue;
            if (j >= after.n_rows || strcmp(before.rows[j], after.rows[j]) != 0) {
                fail_msg("%d columns, after \"%.*s\": row %d was \"%s\", is \"%s\"", columns,
                    (int)i, source, j, before.rows[j], j < after.n_rows ? after.rows[j] : "(gone)");
            }
        }
        free_shot(&before);
        before = after;
    }
    free_shot(&before);
    md_free(d);
}

/* The text of a prefix begins the text of the next one: nothing is taken back, no style changes. */
static void check_grows(const char *source) {
    buf before = BUF_INIT, after = BUF_INIT;
    md *d = md_new(false, ROLE_TEXT);
    for (size_t i = 0; i < strlen(source); i++) {
        md_append(d, source + i, 1);
        if (!is_boundary(source, i + 1)) continue;
        all_rows(d, 2000, &after);
        size_t n = before.len;
        while (n > 0 && (before.data[n - 1] == '\n' || before.data[n - 1] == ' '))
            n--;
        if (strncmp(buf_cstr(&before), buf_cstr(&after), n) != 0) {
            fail_msg("after \"%.*s\": \"%s\" became \"%s\"", (int)(i + 1), source,
                buf_cstr(&before), buf_cstr(&after));
        }
        buf_reset(&before);
        buf_puts(&before, buf_cstr(&after));
    }
    md_free(d);
    buf_release(&before);
    buf_release(&after);
}

static void test_stable_rows(void **state) {
    (void)state;
    static const int WIDTHS[] = {1, 7, 20, 40, 79};
    for (size_t i = 0; i < sizeof CORPUS / sizeof CORPUS[0]; i++) {
        for (size_t j = 0; j < sizeof WIDTHS / sizeof WIDTHS[0]; j++)
            check_stable(CORPUS[i], WIDTHS[j]);
    }
}

static void test_nothing_taken_back(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof CORPUS / sizeof CORPUS[0]; i++) {
        if (strchr(CORPUS[i], '|') == NULL) check_grows(CORPUS[i]);
    }
}

/* However the text is cut, the end looks the same. */
static void test_cut_anywhere(void **state) {
    (void)state;
    buf whole = BUF_INIT, cut = BUF_INIT;
    for (size_t i = 0; i < sizeof CORPUS / sizeof CORPUS[0]; i++) {
        size_t n = strlen(CORPUS[i]);
        md *d = md_new(false, ROLE_TEXT);
        md_append(d, CORPUS[i], n);
        md_finish(d);
        all_rows(d, 30, &whole);
        md_free(d);
        for (size_t at = 0; at <= n; at++) {
            if (!is_boundary(CORPUS[i], at)) continue;
            d = md_new(false, ROLE_TEXT);
            md_append(d, CORPUS[i], at);
            all_rows(d, 30, &cut);
            md_append(d, CORPUS[i] + at, n - at);
            md_finish(d);
            all_rows(d, 30, &cut);
            assert_string_equal(buf_cstr(&cut), buf_cstr(&whole));
            md_free(d);
        }
    }
    buf_release(&whole);
    buf_release(&cut);
}

static void test_places(void **state) {
    (void)state;
    theme t = look();
    md *d = md_new(false, ROLE_TEXT);
    for (int i = 0; i < 50; i++)
        md_append(d, "some words in a paragraph that wraps\n\n", 38);
    md_finish(d);
    int n = md_layout(d, 10, &t);
    size_t place = md_place_of_row(d, n / 2);
    int row = md_row_of_place(d, place);
    assert_true(row >= n / 2 - 5 && row <= n / 2 + 5);
    int wide = md_layout(d, 60, &t);
    row = md_row_of_place(d, place);
    assert_true(row >= wide / 2 - 2 && row <= wide / 2 + 2);
    md_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paragraphs),
        cmocka_unit_test(test_inline),
        cmocka_unit_test(test_long_marks),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_code),
        cmocka_unit_test(test_code_text),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_stable_rows),
        cmocka_unit_test(test_nothing_taken_back),
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
