/* The canvas: clipping, wide cells and what overwriting half of one does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tui/canvas.h"

static void row_text(const canvas *c, int row, char *out) {
    for (int i = 0; i < c->n_columns; i++) {
        const cell *k = canvas_at(c, row, i);
        if (k->columns == 0) continue;
        if (k->len == 0) *out++ = '.';
        memcpy(out, k->text, k->len);
        out += k->len;
    }
    *out = '\0';
}

static void check_row(const canvas *c, int row, const char *want) {
    char text[512];
    row_text(c, row, text);
    assert_string_equal(text, want);
}

static void test_clip(void **state) {
    (void)state;
    canvas c;
    canvas_init(&c);
    canvas_resize(&c, 3, 6);
    pen p = pen_on(&c, (area){1, 2, 1, 3});
    pen_str(&p, "abcdef");
    check_row(&c, 0, "......");
    check_row(&c, 1, "..abc.");
    pen_move(&p, -1, 0);
    pen_str(&p, "x");
    pen_move(&p, 1, 0);
    pen_str(&p, "x");
    pen_move(&p, 0, -2);
    pen_str(&p, "123");
    check_row(&c, 0, "......");
    check_row(&c, 1, "..3bc.");
    check_row(&c, 2, "......");
    canvas_release(&c);
}

static void test_box_outside(void **state) {
    (void)state;
    canvas c;
    canvas_init(&c);
    canvas_resize(&c, 0, 0); /* at least one cell */
    pen p = pen_on(&c, (area){-5, -5, 100, 100});
    for (int row = 0; row < 20; row++) {
        pen_move(&p, row, 0);
        pen_str(&p, "\xe4\xb8\xad\xe6\x96\x87 wide");
    }
    p = pen_on(&c, (area){0, 0, -1, -1});
    pen_str(&p, "no");
    assert_int_equal(c.n_rows, 1);
    canvas_release(&c);
}

static void test_wide(void **state) {
    (void)state;
    canvas c;
    canvas_init(&c);
    canvas_resize(&c, 1, 5);
    pen p = pen_on(&c, canvas_area(&c));
    pen_str(&p, "\xe4\xb8\xad\xe6\x96\x87\xe4\xb8\xad");
    check_row(&c, 0, "\xe4\xb8\xad\xe6\x96\x87."); /* the third does not fit */
    pen_move(&p, 0, 1);
    pen_str(&p, "x"); /* right half: the character goes */
    check_row(&c, 0, ".x\xe6\x96\x87.");
    pen_move(&p, 0, 2);
    pen_str(&p, "y"); /* left half */
    check_row(&c, 0, ".xy..");
    canvas_release(&c);
}

static void test_marks(void **state) {
    (void)state;
    canvas c;
    canvas_init(&c);
    canvas_resize(&c, 1, 4);
    pen p = pen_on(&c, canvas_area(&c));
    pen_str(&p, "\xcc\x81x");
    check_row(&c, 0, "\xe2\x97\x8c\xcc\x81x..");
    char zalgo[200] = "a";
    for (int i = 0; i < 90; i++)
        strncat(zalgo, "\xcc\x81", 3);
    pen_move(&p, 0, 0);
    pen_str(&p, zalgo);
    assert_true(canvas_at(&c, 0, 0)->len <= CANVAS_CELL_BYTES);
    assert_int_equal(canvas_at(&c, 0, 0)->len % 2, 1); /* no half of a mark */
    canvas_release(&c);
}

static void test_cut(void **state) {
    (void)state;
    canvas c;
    canvas_init(&c);
    canvas_resize(&c, 1, 12);
    pen p = pen_on(&c, canvas_area(&c));
    pen_cut(&p, "a long text", 8, "...");
    check_row(&c, 0, "a.lon.......");
    canvas_blank(&c);
    p = pen_on(&c, canvas_area(&c));
    pen_cut(&p, "short", 8, "...");
    pen_cut(&p, "abcdef", 2, "...");
    check_row(&c, 0, "shortab.....");
    canvas_release(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_box_outside),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
