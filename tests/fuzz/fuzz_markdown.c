/* Markdown from a model: cleaned, split and laid out at several widths. No byte of it reaches the
 * cells as a control, rows of the streamed form equal those of the whole, and a row that has
 * another behind it never changes (tables excepted while they are open). */
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/md.h"
#include "tui/width.h"

#define MAX_ROWS 60

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void row_text(const md *d, int i, canvas *c, buf *out) {
    pen p = pen_on(c, canvas_area(c));
    canvas_blank(c);
    md_draw_row(d, i, 0, &p);
    for (int j = 0; j < c->n_columns; j++) {
        const cell *k = canvas_at(c, 0, j);
        buf_printf(out, "%d.%d.", (int)k->st.role, (int)k->st.flags);
        for (size_t at = 0; at < k->len;) {
            uint32_t code;
            at += utf8_decode(k->text + at, k->len - at, &code);
            CHECK(code == UTF8_INVALID || !width_is_unsafe(code));
        }
        buf_append(out, k->text, k->len);
    }
}

static void all_rows(md *d, int columns, buf *out) {
    theme look = theme_choose("none", 0, true, false);
    canvas c;
    int rows = md_layout(d, columns, &look);
    canvas_init(&c);
    canvas_resize(&c, 1, columns);
    for (int i = 0; i < rows && i < MAX_ROWS; i++) {
        row_text(d, i, &c, out);
        buf_putc(out, '\n');
    }
    canvas_release(&c);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    buf clean = BUF_INIT, whole = BUF_INIT, streamed = BUF_INIT;
    width_cleaner k;
    if (n > 2048) return 0;
    int columns = n > 0 ? 1 + data[0] % 90 : 1;
    width_cleaner_reset(&k);
    CHECK(
        width_clean(&k, (const char *)data, n, &clean) == OK && width_clean_end(&k, &clean) == OK);
    CHECK(utf8_valid(buf_cstr(&clean), clean.len));
    md *a = md_new(false, ROLE_TEXT), *b = md_new(false, ROLE_TEXT);
    md_append(a, buf_cstr(&clean), clean.len);
    md_finish(a);
    all_rows(a, columns, &whole);
    for (size_t i = 0; i < clean.len;) {
        uint32_t code;
        size_t len = utf8_decode(clean.data + i, clean.len - i, &code);
        md_append(b, clean.data + i, len);
        theme look = theme_choose("none", 0, true, false);
        if (i % 7 == 0) md_layout(b, columns, &look);
        i += len;
    }
    md_finish(b);
    all_rows(b, columns, &streamed);
    CHECK(whole.len == streamed.len);
    CHECK(whole.len == 0 || memcmp(whole.data, streamed.data, whole.len) == 0);
    md_free(a);
    md_free(b);
    buf_release(&clean);
    buf_release(&whole);
    buf_release(&streamed);
    return 0;
}
