#include "tui/part_frame.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tui/width.h"

static void top_edge(pen *p, area a, const theme *look, const char *title, const char *note) {
    const glyph_set *g = look->glyphs;
    int room = a.n_columns - 2, note_columns = 0;
    pen_str(p, g->top_left);
    pen_repeat(p, g->horizontal, room);
    pen_str(p, g->top_right);
    if (note != NULL) {
        note_columns = width_text(note, strlen(note)) + 4;
        if (note_columns > room - 12) note_columns = 0;
    }
    if (title != NULL && room > 6) {
        pen_move(p, 0, 2);
        pen_str(p, "[ ");
        pen_role(p, ROLE_STRONG);
        pen_cut(p, title, room - 6 - note_columns, look->glyphs->ellipsis);
        pen_role(p, ROLE_BORDER);
        pen_str(p, " ]");
    }
    if (note_columns > 0) {
        pen_move(p, 0, a.n_columns - 1 - note_columns);
        pen_str(p, "[ ");
        pen_role(p, ROLE_TEXT);
        pen_str(p, note);
        pen_role(p, ROLE_BORDER);
        pen_str(p, " ]");
    }
}

pen part_box(canvas *c, area a, const theme *look, const char *title, const char *note) {
    const glyph_set *g = look->glyphs;
    pen p = pen_on(c, a);
    pen_role(&p, ROLE_BORDER);
    if (a.n_columns >= 2 && a.n_rows >= 2) {
        top_edge(&p, a, look, title, note);
        for (int i = 1; i < a.n_rows - 1; i++) {
            pen_move(&p, i, 0);
            pen_str(&p, g->vertical);
            pen_move(&p, i, a.n_columns - 1);
            pen_str(&p, g->vertical);
        }
        pen_move(&p, a.n_rows - 1, 0);
        pen_str(&p, g->bottom_left);
        pen_repeat(&p, g->horizontal, a.n_columns - 2);
        pen_str(&p, g->bottom_right);
    }
    area inside = area_inset(a, 1);
    inside.column++;
    inside.n_columns -= 2;
    return pen_on(c, inside);
}

static void add_field(part_field *f, int *n, int rank, canvas_role role) {
    f[*n].rank = rank;
    f[*n].role = role;
    (*n)++;
}

void part_line_add(part_line *l, int rank, canvas_role role, const char *fmt, ...) {
    if (l->n_left == PART_MAX_FIELDS) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(l->left[l->n_left].text, sizeof l->left[0].text, fmt, ap);
    va_end(ap);
    add_field(l->left, &l->n_left, rank, role);
}

void part_line_add_right(part_line *l, int rank, canvas_role role, const char *fmt, ...) {
    if (l->n_right == PART_MAX_FIELDS) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(l->right[l->n_right].text, sizeof l->right[0].text, fmt, ap);
    va_end(ap);
    add_field(l->right, &l->n_right, rank, role);
}

static int fields_width(const part_field *f, int n, int max_rank) {
    int columns = 0;
    for (int i = 0; i < n; i++) {
        if (f[i].rank > max_rank) continue;
        columns += (columns > 0 ? 2 : 0) + width_text(f[i].text, strlen(f[i].text));
    }
    return columns;
}

static void draw_fields(const part_field *f, int n, int max_rank, pen *p) {
    bool is_first = true;
    for (int i = 0; i < n; i++) {
        if (f[i].rank > max_rank) continue;
        pen_role(p, ROLE_TEXT);
        if (!is_first) pen_str(p, "  ");
        pen_role(p, f[i].role);
        pen_str(p, f[i].text);
        is_first = false;
    }
}

void part_line_draw(const part_line *l, pen *p) {
    int room = p->box.n_columns, rank = 99, row = p->row;
    while (rank > 1) {
        int left = fields_width(l->left, l->n_left, rank),
            right = fields_width(l->right, l->n_right, rank);
        if (left + right + (left > 0 && right > 0 ? 2 : 0) <= room) break;
        rank--;
    }
    draw_fields(l->left, l->n_left, rank, p);
    int right = fields_width(l->right, l->n_right, rank);
    if (right == 0 || right > room) return;
    pen_move(p, row, room - right);
    draw_fields(l->right, l->n_right, rank, p);
}

const char *part_count(int64_t n, char out[16]) {
    if (n < 0)
        snprintf(out, 16, "-");
    else if (n < 10000)
        snprintf(out, 16, "%d", (int)n);
    else if (n < 100000)
        snprintf(out, 16, "%.1fk", (double)n / 1000);
    else if (n < 1000000)
        snprintf(out, 16, "%.0fk", (double)n / 1000);
    else
        snprintf(out, 16, "%.1fM", (double)n / 1e6);
    return out;
}

const char *part_bytes(double bytes, char out[16]) {
    static const char *const UNITS[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    if (isnan(bytes) || bytes < 0) {
        snprintf(out, 16, "-");
        return out;
    }
    int i = 0;
    while (bytes >= 1024 && i < 4) {
        bytes /= 1024;
        i++;
    }
    snprintf(out, 16, i == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, UNITS[i]);
    return out;
}

const char *part_duration(double s, char out[24]) {
    if (isnan(s) || s < 0)
        snprintf(out, 24, "-");
    else if (s < 9.995)
        snprintf(out, 24, "%.2f s", s);
    else if (s < 60)
        snprintf(out, 24, "%.0f s", s);
    else if (s < 3600)
        snprintf(out, 24, "%d m %d s", (int)s / 60, (int)s % 60);
    else if (s < 86400)
        snprintf(out, 24, "%d h %d m", (int)s / 3600, (int)s / 60 % 60);
    else
        snprintf(out, 24, "%d d %d h", (int)(s / 86400), (int)s / 3600 % 24);
    return out;
}
