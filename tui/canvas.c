#include "tui/canvas.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tui/width.h"

void canvas_init(canvas *c) {
    memset(c, 0, sizeof *c);
}

void canvas_resize(canvas *c, int n_rows, int n_columns) {
    c->n_rows = n_rows < 1 ? 1 : n_rows;
    c->n_columns = n_columns < 1 ? 1 : n_columns;
    mem_free(c->cells);
    c->cells = mem_array((size_t)c->n_rows * (size_t)c->n_columns, sizeof *c->cells);
    canvas_blank(c);
}

void canvas_release(canvas *c) {
    mem_free(c->cells);
    memset(c, 0, sizeof *c);
}

void canvas_blank(canvas *c) {
    size_t n = (size_t)c->n_rows * (size_t)c->n_columns;
    for (size_t i = 0; i < n; i++) {
        memset(&c->cells[i], 0, sizeof c->cells[i]);
        c->cells[i].columns = 1;
    }
}

static cell *at(const canvas *c, int row, int column) {
    if (row < 0 || column < 0 || row >= c->n_rows || column >= c->n_columns) return NULL;
    return &c->cells[(size_t)row * (size_t)c->n_columns + (size_t)column];
}

const cell *canvas_at(const canvas *c, int row, int column) {
    return at(c, row, column);
}

bool canvas_same_row(const canvas *a, const canvas *b, int row) {
    size_t n = (size_t)a->n_columns;
    return memcmp(a->cells + (size_t)row * n, b->cells + (size_t)row * n, n * sizeof(cell)) == 0;
}

void canvas_copy(canvas *to, const canvas *from) {
    size_t n = (size_t)from->n_rows * (size_t)from->n_columns;
    CHECK(to->n_rows == from->n_rows && to->n_columns == from->n_columns);
    memcpy(to->cells, from->cells, n * sizeof(cell));
}

area canvas_area(const canvas *c) {
    return (area){0, 0, c->n_rows, c->n_columns};
}

area area_inset(area a, int n) {
    return (area){a.row + n, a.column + n, a.n_rows - 2 * n, a.n_columns - 2 * n};
}

style style_of(canvas_role role) {
    return (style){(uint8_t)role, 0};
}

style style_with(canvas_role role, int flags) {
    return (style){(uint8_t)role, (uint8_t)flags};
}

pen pen_on(canvas *c, area box) {
    return (pen){.on = c, .box = box, .st = style_of(ROLE_TEXT)};
}

void pen_move(pen *p, int row, int column) {
    p->row = row;
    p->column = column;
}

void pen_role(pen *p, canvas_role role) {
    p->st = style_of(role);
}

void pen_style(pen *p, style st) {
    p->st = st;
}

/* Blanks what is left of a wide cell when one half of it is overwritten. */
static void break_wide(const canvas *c, int row, int column) {
    cell *k = at(c, row, column);
    if (k == NULL) return;
    if (k->columns == 0) {
        cell *left = at(c, row, column - 1);
        if (left != NULL && left->columns == 2) {
            left->len = 0;
            left->columns = 1;
        }
    } else if (k->columns == 2) {
        cell *right = at(c, row, column + 1);
        if (right != NULL && right->columns == 0) right->columns = 1;
    }
}

static cell *take(pen *p, int column) {
    int row = p->box.row + p->row, col = p->box.column + column;
    break_wide(p->on, row, col);
    cell *k = at(p->on, row, col);
    if (k == NULL) return NULL;
    memset(k, 0, sizeof *k);
    k->columns = 1;
    k->st = p->st;
    return k;
}

static void fill_cell(cell *k, const char *s, width_cluster w) {
    /* A lone mark is drawn on a dotted circle, a cluster too long for a cell loses its last marks.
     */
    char joined[CANVAS_CELL_BYTES + 4];
    size_t len = 0;
    if (w.base >= 0x80 && w.columns == 1 && width_is_mark(w.base)) {
        memcpy(joined, "\xe2\x97\x8c", 3);
        len = 3;
    }
    size_t room = CANVAS_CELL_BYTES - len, n = w.len;
    if (n > room) {
        n = room;
        while (n > 0 && ((unsigned char)s[n] & 0xc0) == 0x80)
            n--;
    }
    memcpy(joined + len, s, n);
    memcpy(k->text, joined, len + n);
    k->len = (uint8_t)(len + n);
}

static bool is_inside(const pen *p, int column) {
    return p->row >= 0 && p->row < p->box.n_rows && column >= 0 && column < p->box.n_columns;
}

/* One cluster of 1 or 2 columns. A wide one that sticks out of the box becomes a blank. */
static void put_cluster(pen *p, const char *s, width_cluster w) {
    int columns = w.columns > 2 ? 2 : w.columns;
    bool fits = is_inside(p, p->column) && is_inside(p, p->column + columns - 1);
    for (int i = 0; i < columns; i++) {
        if (!is_inside(p, p->column + i)) continue;
        cell *k = take(p, p->column + i);
        if (k == NULL || !fits) continue;
        if (i > 0) {
            k->columns = 0;
            continue;
        }
        k->columns = (uint8_t)columns;
        k->is_special = w.is_special;
        if (w.base == 0xa0)
            fill_cell(k, " ", (width_cluster){.len = 1, .columns = 1, .base = ' '});
        else if (w.base == 0xfffd && w.len == 1)
            fill_cell(k, "?", (width_cluster){.len = 1, .columns = 1, .base = '?'});
        else if (w.base != ' ' || w.len > 1)
            fill_cell(k, s, w);
    }
    p->column += columns;
    /* Clusters of several spacing marks take more than two columns: the rest stays blank. */
    for (int i = columns; i < w.columns; i++) {
        if (is_inside(p, p->column)) take(p, p->column);
        p->column++;
    }
}

void pen_text(pen *p, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        width_cluster w = width_next(s + i, n - i);
        if (w.columns > 0) put_cluster(p, s + i, w);
        i += w.len;
    }
}

void pen_str(pen *p, const char *s) {
    pen_text(p, s, strlen(s));
}

void pen_printf(pen *p, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n > 0) pen_str(p, text);
}

void pen_cut(pen *p, const char *s, int max_columns, const char *ellipsis) {
    size_t n = strlen(s);
    if (max_columns <= 0) return;
    if (width_text(s, n) <= max_columns) {
        pen_text(p, s, n);
        return;
    }
    int tail = width_text(ellipsis, strlen(ellipsis));
    if (tail >= max_columns) {
        pen_text(p, s, width_fit(s, n, max_columns, NULL));
        return;
    }
    pen_text(p, s, width_fit(s, n, max_columns - tail, NULL));
    pen_str(p, ellipsis);
}

void pen_repeat(pen *p, const char *glyph, int n) {
    size_t len = strlen(glyph);
    for (int i = 0; i < n && p->column < p->box.n_columns; i++)
        pen_text(p, glyph, len);
}

void pen_blank_to(pen *p, int column) {
    pen_repeat(p, " ", column - p->column);
}

int pen_left(const pen *p) {
    int left = p->box.n_columns - p->column;
    return left > 0 ? left : 0;
}

void pen_paint_row(pen *p, int row, style st) {
    if (row < 0 || row >= p->box.n_rows) return;
    for (int i = 0; i < p->box.n_columns; i++) {
        cell *k = at(p->on, p->box.row + row, p->box.column + i);
        if (k == NULL) continue;
        if (st.role != ROLE_TEXT) k->st.role = st.role;
        k->st.flags |= st.flags;
    }
}
