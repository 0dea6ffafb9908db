/* Tables: columns as wide as their cells, cells wrapped when the pane is narrow, and one "Header:
 * value" line per cell when even that does not fit. */
#include <string.h>

#include "tui/md_internal.h"
#include "tui/width.h"

#define COLUMN_GAP 3
#define TABLE_INDENT 2
#define COLUMN_LEAST 6

typedef struct cell_text {
    size_t at, end; /* in the source */
} cell_text;

typedef struct table {
    md *d;
    md_block *b;
    int n_columns;
    int widths[MD_MAX_TABLE_COLUMNS];
    char align[MD_MAX_TABLE_COLUMNS]; /* l, r or c */
    int n_links;
} table;

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

/* Splits a row at bars that are not escaped and not in a code span. */
static int split_row(const md *d, const md_line *line, cell_text *cells) {
    const char *s = d->source.data;
    size_t at = line->at, end = line->end;
    while (end > at && is_blank(s[end - 1]))
        end--;
    if (at < end && s[at] == '|') at++;
    if (end > at && s[end - 1] == '|' && (end - 1 == at || s[end - 2] != '\\')) end--;
    int n = 0;
    bool in_code = false;
    size_t from = at;
    for (size_t i = at; i <= end && n < MD_MAX_TABLE_COLUMNS; i++) {
        if (i < end && s[i] == '\\') {
            i++;
            continue;
        }
        if (i < end && s[i] == '`') in_code = !in_code;
        if (i < end && (s[i] != '|' || in_code)) continue;
        size_t stop = i < end ? i : end;
        while (from < stop && is_blank(s[from]))
            from++;
        while (stop > from && is_blank(s[stop - 1]))
            stop--;
        cells[n++] = (cell_text){from, stop};
        from = i + 1;
    }
    return n;
}

static void render_cell(table *t, const cell_text *c, bool is_head, rich *out) {
    style base = is_head ? style_of(ROLE_STRONG) : style_of(t->d->role);
    md_inline(t->d, t->d->source.data + c->at, c->end - c->at, true, base, out, &t->n_links);
}

static void measure(table *t) {
    cell_text cells[MD_MAX_TABLE_COLUMNS];
    rich text = {0};
    t->n_links = t->b->first_link;
    for (int i = 0; i < t->b->n_lines; i++) {
        if (i == 1) continue; /* the row of dashes */
        int n = split_row(t->d, &t->b->lines[i], cells);
        if (n > t->n_columns) t->n_columns = n;
        for (int j = 0; j < n; j++) {
            rich_reset(&text);
            render_cell(t, &cells[j], i == 0, &text);
            int width = width_text(buf_cstr(&text.text), text.text.len);
            if (width > t->widths[j]) t->widths[j] = width;
        }
    }
    rich_release(&text);
    int n = split_row(t->d, &t->b->lines[1], cells);
    const char *s = t->d->source.data;
    for (int j = 0; j < t->n_columns; j++) {
        t->align[j] = 'l';
        if (t->widths[j] < 3) t->widths[j] = 3;
        if (j >= n || cells[j].at >= cells[j].end) continue;
        bool left = s[cells[j].at] == ':', right = s[cells[j].end - 1] == ':';
        t->align[j] = left && right ? 'c' : right ? 'r' : 'l';
    }
}

static int total_width(const table *t) {
    int total = TABLE_INDENT;
    for (int j = 0; j < t->n_columns; j++)
        total += t->widths[j] + (j > 0 ? COLUMN_GAP : 0);
    return total;
}

/* Takes from the widest column until the table fits; false when the least widths do not. */
static bool shrink(table *t, int columns) {
    while (total_width(t) > columns) {
        int widest = 0;
        for (int j = 1; j < t->n_columns; j++) {
            if (t->widths[j] > t->widths[widest]) widest = j;
        }
        if (t->widths[widest] <= COLUMN_LEAST) return false;
        t->widths[widest]--;
    }
    return true;
}

static void blanks(rich *out, int n) {
    static const char SPACES[] = "                                ";
    while (n > 0) {
        int part = n < 32 ? n : 32;
        rich_add(out, SPACES, (size_t)part, style_of(ROLE_TEXT));
        n -= part;
    }
}

/* Copies one wrapped row of a cell with its styles. */
static void copy_row(const rich *from, const rich_row *row, rich *out) {
    for (int i = 0; i < from->n_runs; i++) {
        const rich_run *run = &from->runs[i];
        uint32_t a = run->at > row->at ? run->at : row->at;
        uint32_t end = row->at + row->len, stop = run->at + run->len;
        uint32_t b = stop < end ? stop : end;
        if (a < b) rich_add(out, from->text.data + a, b - a, run->st);
    }
}

static void put_cell_row(table *t, int j, const rich *text, const rich_row *row, rich *out) {
    int width = row != NULL ? width_text(buf_cstr(&text->text) + row->at, row->len) : 0;
    int left = t->widths[j] - width;
    int before = t->align[j] == 'r' ? left : t->align[j] == 'c' ? left / 2 : 0;
    blanks(out, before);
    if (row != NULL) copy_row(text, row, out);
    if (j + 1 < t->n_columns) blanks(out, left - before + COLUMN_GAP);
}

static void end_row(md_block *b, size_t from) {
    rich_rows_add(&b->rows, (uint32_t)from, (uint32_t)(b->text.text.len - from), TABLE_INDENT);
}

static void grid_row(table *t, const md_line *line, bool is_head) {
    cell_text cells[MD_MAX_TABLE_COLUMNS];
    rich texts[MD_MAX_TABLE_COLUMNS] = {0};
    rich_rows rows[MD_MAX_TABLE_COLUMNS] = {0};
    int n = split_row(t->d, line, cells), height = 1;
    for (int j = 0; j < n && j < t->n_columns; j++) {
        render_cell(t, &cells[j], is_head, &texts[j]);
        rich_wrap(&texts[j], 0, t->widths[j], 0, 0, &rows[j]);
        if (rows[j].n_rows > height) height = rows[j].n_rows;
    }
    for (int i = 0; i < height; i++) {
        size_t from = t->b->text.text.len;
        for (int j = 0; j < t->n_columns; j++) {
            put_cell_row(
                t, j, &texts[j], i < rows[j].n_rows ? &rows[j].rows[i] : NULL, &t->b->text);
        }
        end_row(t->b, from);
    }
    for (int j = 0; j < MD_MAX_TABLE_COLUMNS; j++) {
        rich_release(&texts[j]);
        rich_rows_release(&rows[j]);
    }
}

static void dash_row(table *t) {
    size_t from = t->b->text.text.len;
    for (int j = 0; j < t->n_columns; j++) {
        for (int i = 0; i < t->widths[j]; i++)
            rich_puts(&t->b->text, "-", style_of(ROLE_BORDER));
        if (j + 1 < t->n_columns) blanks(&t->b->text, COLUMN_GAP);
    }
    end_row(t->b, from);
}

static void records(table *t, int columns) {
    cell_text heads[MD_MAX_TABLE_COLUMNS], cells[MD_MAX_TABLE_COLUMNS];
    int n_heads = split_row(t->d, &t->b->lines[0], heads);
    rich *out = &t->b->text;
    for (int i = 2; i < t->b->n_lines; i++) {
        int n = split_row(t->d, &t->b->lines[i], cells);
        if (i > 2) rich_rows_add(&t->b->rows, (uint32_t)out->text.len, 0, 0);
        for (int j = 0; j < n; j++) {
            size_t from = out->text.len;
            if (j < n_heads) render_cell(t, &heads[j], true, out);
            rich_puts(out, ": ", style_of(ROLE_STRONG));
            render_cell(t, &cells[j], false, out);
            rich_wrap(out, from, columns, 0, 2, &t->b->rows);
        }
    }
}

void md_table_layout(md *d, md_block *b, int columns) {
    table t = {.d = d, .b = b};
    measure(&t);
    t.n_links = b->first_link;
    if (!shrink(&t, columns)) {
        records(&t, columns);
        return;
    }
    for (int i = 0; i < b->n_lines; i++) {
        if (i == 1)
            dash_row(&t);
        else
            grid_row(&t, &b->lines[i], i == 0);
    }
}
