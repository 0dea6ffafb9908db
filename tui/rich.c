#include "tui/rich.h"

#include <string.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "tui/width.h"

void rich_release(rich *r) {
    buf_release(&r->text);
    mem_free(r->runs);
    memset(r, 0, sizeof *r);
}

void rich_reset(rich *r) {
    buf_reset(&r->text);
    r->n_runs = 0;
}

static void add_run(rich *r, size_t n, style st) {
    rich_run *last = r->n_runs > 0 ? &r->runs[r->n_runs - 1] : NULL;
    if (last != NULL && last->st.role == st.role && last->st.flags == st.flags) {
        last->len += (uint32_t)n;
        return;
    }
    if (r->n_runs == r->runs_cap) {
        r->runs_cap = r->runs_cap == 0 ? 8 : 2 * r->runs_cap;
        r->runs = mem_realloc(r->runs, (size_t)r->runs_cap * sizeof *r->runs);
    }
    r->runs[r->n_runs++] = (rich_run){(uint32_t)(r->text.len - n), (uint32_t)n, st};
}

void rich_add(rich *r, const char *s, size_t n, style st) {
    while (n > 0) {
        const char *tab = memchr(s, '\t', n);
        size_t len = tab != NULL ? (size_t)(tab - s) : n;
        if (len > 0 && buf_append(&r->text, s, len) == OK) add_run(r, len, st);
        if (tab == NULL) return;
        if (buf_append(&r->text, "    ", 4) == OK) add_run(r, 4, st);
        s += len + 1;
        n -= len + 1;
    }
}

void rich_puts(rich *r, const char *s, style st) {
    rich_add(r, s, strlen(s), st);
}

void rich_rows_release(rich_rows *rows) {
    mem_free(rows->rows);
    memset(rows, 0, sizeof *rows);
}

void rich_rows_reset(rich_rows *rows) {
    rows->n_rows = 0;
}

rich_row *rich_rows_add(rich_rows *rows, uint32_t at, uint32_t len, int indent) {
    if (rows->n_rows == rows->rows_cap) {
        rows->rows_cap = rows->rows_cap == 0 ? 8 : 2 * rows->rows_cap;
        rows->rows = mem_realloc(rows->rows, (size_t)rows->rows_cap * sizeof *rows->rows);
    }
    rich_row *row = &rows->rows[rows->n_rows++];
    *row = (rich_row){.at = at, .len = len, .indent = (int16_t)indent};
    return row;
}

/* Where a row that starts at byte at ends: end of its text and start of the next row. */
typedef struct row_end {
    size_t end, next;
    bool is_last;
} row_end;

/* The last place where the row may be broken, kept while walking. */
typedef struct break_place {
    size_t end, next;
    bool is_set;
} break_place;

static row_end find_end(const char *s, size_t at, size_t n, int columns) {
    int used = 0;
    break_place last = {0};
    bool was_wide = false, has_text = false;
    for (size_t i = at; i < n;) {
        if (s[i] == '\n') return (row_end){i, i + 1, false};
        width_cluster w = width_next(s + i, n - i);
        bool is_blank = s[i] == ' ';
        bool is_wide = w.columns == 2;
        if (has_text && !is_blank && (is_wide || was_wide)) {
            last = (break_place){i, i, true};
        }
        if (is_blank) {
            /* A break is after the whole stretch of blanks; they hang over the edge. */
            size_t stop = i;
            while (stop < n && s[stop] == ' ')
                stop++;
            if (has_text) last = (break_place){i, stop, true};
            if (has_text && used + (int)(stop - i) > columns && stop < n && s[stop] != '\n') {
                return (row_end){i, stop, false};
            }
            used += (int)(stop - i);
            i = stop;
            was_wide = false;
            continue;
        }
        if (used + w.columns > columns && i > at) {
            if (last.is_set) return (row_end){last.end, last.next, false};
            return (row_end){i, i, false};
        }
        used += w.columns;
        has_text = true;
        was_wide = is_wide;
        i += w.len;
    }
    return (row_end){n, n, true};
}

void rich_wrap(const rich *r, size_t from, int columns, int first, int rest, rich_rows *out) {
    const char *s = buf_cstr(&r->text);
    size_t n = r->text.len, at = from;
    int indent = first;
    while (true) {
        int room = columns - indent;
        row_end e = find_end(s, at, n, room < 1 ? 1 : room);
        size_t end = e.end;
        while (end > at && s[end - 1] == ' ')
            end--;
        rich_rows_add(out, (uint32_t)at, (uint32_t)(end - at), indent);
        indent = rest;
        at = e.next;
        if (e.is_last) return;
    }
}

static int first_run(const rich *r, uint32_t at) {
    int low = 0, high = r->n_runs;
    while (low < high) {
        int middle = (low + high) / 2;
        if (r->runs[middle].at + r->runs[middle].len <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void rich_draw(const rich *r, const rich_row *row, int skip_columns, const char *cut_mark, pen *p) {
    const char *s = buf_cstr(&r->text);
    uint32_t at = row->at, end = row->at + row->len;
    if (skip_columns > 0) at += (uint32_t)width_fit(s + at, end - at, skip_columns, NULL);
    for (int i = first_run(r, at); i < r->n_runs && at < end; i++) {
        const rich_run *run = &r->runs[i];
        uint32_t stop = run->at + run->len < end ? run->at + run->len : end;
        pen_style(p, run->st);
        pen_text(p, s + at, stop - at);
        at = stop;
    }
    if (row->flags & RICH_ROW_UNWRAPPED && p->column > p->box.n_columns) {
        pen_move(p, p->row, p->box.n_columns - 1);
        pen_role(p, ROLE_ACCENT);
        pen_str(p, cut_mark);
    }
}
