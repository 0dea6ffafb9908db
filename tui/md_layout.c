/* From blocks to rows. A closed block is laid out once per width, the open one at every call. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tui/md_internal.h"
#include "tui/width.h"

/* Rows that are no text of the source. */
enum { ROW_FENCE_TOP = 1, ROW_FENCE_BOTTOM = 2, ROW_RULE = 3 };

static style block_style(const md *d, const md_block *b) {
    if (b->kind == MD_HEADING) return style_with(ROLE_ACCENT, b->level == 1 ? STYLE_UNDERLINE : 0);
    if (b->kind == MD_QUOTE) return style_of(ROLE_DIM);
    return style_of(d->role);
}

static bool ends_hard(const md *d, const md_line *line) {
    const char *s = d->source.data;
    if (line->end == line->at) return false;
    if (s[line->end - 1] == '\\') return true;
    return line->end - line->at >= 2 && s[line->end - 1] == ' ' && s[line->end - 2] == ' ';
}

/* The bytes of a line that are shown: without trailing blanks, hard-break mark and heading tail. */
static size_t shown_end(const md *d, const md_block *b, const md_line *line) {
    const char *s = d->source.data;
    size_t end = line->end;
    if (!line->is_complete) {
        /* Closing marks of a heading are held back until something follows them. */
        while (b->kind == MD_HEADING && end > line->at && strchr("# ", s[end - 1]) != NULL)
            end--;
        return end;
    }
    while (end > line->at && s[end - 1] == ' ')
        end--;
    if (b->kind != MD_HEADING && end > line->at && s[end - 1] == '\\') end--;
    if (b->kind != MD_HEADING) return end;
    size_t tail = end;
    while (tail > line->at && s[tail - 1] == '#')
        tail--;
    if (tail < end && (tail == line->at || s[tail - 1] == ' ')) end = tail;
    while (end > line->at && s[end - 1] == ' ')
        end--;
    return end;
}

static void layout_text(md *d, md_block *b, int columns) {
    int n_links = b->first_link;
    style st = block_style(d, b);
    for (int i = 0; i < b->n_lines; i++) {
        const md_line *line = &b->lines[i];
        if (i > 0) rich_puts(&b->text, ends_hard(d, line - 1) ? "\n" : " ", st);
        md_inline(d, d->source.data + line->at, shown_end(d, b, line) - line->at, line->is_complete,
            st, &b->text, &n_links);
    }
    int first = b->indent;
    if (b->kind == MD_ITEM) first += (int)strlen(b->mark) + 1;
    if (b->kind == MD_QUOTE) first += 2;
    if (first > columns / 2) first = columns / 2;
    int from = b->rows.n_rows;
    rich_wrap(&b->text, 0, columns, first, first, &b->rows);
    b->rows.rows[from].has_mark = b->kind == MD_ITEM;
    for (int i = from; i < b->rows.n_rows && b->kind == MD_QUOTE; i++)
        b->rows.rows[i].has_mark = 1;
}

static void layout_plain(md *d, md_block *b, int columns) {
    style st = style_of(d->role);
    for (int i = 0; i < b->n_lines; i++) {
        if (i > 0) rich_puts(&b->text, "\n", st);
        rich_add(&b->text, d->source.data + b->lines[i].at, b->lines[i].end - b->lines[i].at, st);
    }
    rich_wrap(&b->text, 0, columns, 0, 0, &b->rows);
}

static void special_row(md_block *b, int what) {
    rich_row *row = rich_rows_add(&b->rows, (uint32_t)b->text.text.len, 0, b->indent);
    row->flags = (uint8_t)(what << 1);
}

static void layout_code(md *d, md_block *b) {
    int state = 0;
    special_row(b, ROW_FENCE_TOP);
    for (int i = 0; i < b->n_lines; i++) {
        size_t from = b->text.text.len;
        md_code_line(b->language, d->source.data + b->lines[i].at, b->lines[i].end - b->lines[i].at,
            b->lines[i].is_complete, &state, &b->text);
        rich_row *row = rich_rows_add(
            &b->rows, (uint32_t)from, (uint32_t)(b->text.text.len - from), b->indent + 2);
        row->flags = RICH_ROW_UNWRAPPED;
    }
    if (b->is_closed) special_row(b, ROW_FENCE_BOTTOM);
}

void md_layout_block(md *d, md_block *b, int columns) {
    if (b->columns == columns && b->is_final) return;
    rich_reset(&b->text);
    rich_rows_reset(&b->rows);
    if (b->has_gap) rich_rows_add(&b->rows, 0, 0, 0);
    switch (b->kind) {
    case MD_CODE:
        layout_code(d, b);
        break;
    case MD_TABLE:
        md_table_layout(d, b, columns);
        break;
    case MD_RULE:
        special_row(b, ROW_RULE);
        break;
    case MD_PLAIN:
        layout_plain(d, b, columns);
        break;
    default:
        layout_text(d, b, columns);
        break;
    }
    b->columns = columns;
    b->is_final = b->is_closed;
}

int md_layout(md *d, int columns, const theme *look) {
    if (columns < 1) columns = 1;
    d->columns = columns;
    d->look = look;
    if (d->first_row_cap < d->n_blocks + 1) {
        d->first_row_cap = 2 * (d->n_blocks + 1);
        d->first_row = mem_realloc(d->first_row, (size_t)d->first_row_cap * sizeof *d->first_row);
    }
    int total = 0;
    for (int i = 0; i < d->n_blocks; i++) {
        md_block *b = &d->blocks[i];
        /* Links are numbered over the document: known once the blocks before are laid out. */
        if (b->columns == 0) b->first_link = d->n_links;
        md_layout_block(d, b, columns);
        d->first_row[i] = total;
        total += b->rows.n_rows;
    }
    d->first_row[d->n_blocks] = total;
    return total;
}

/* The block that shows row i; row becomes relative to it. */
static const md_block *block_of(const md *d, int i, int *row) {
    int low = 0, high = d->n_blocks;
    if (d->n_blocks == 0 || i < 0 || i >= d->first_row[d->n_blocks]) return NULL;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (d->first_row[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    *row = i - d->first_row[low];
    return &d->blocks[low];
}

static void draw_line(const md *d, pen *p) {
    pen_repeat(p, d->look->glyphs->horizontal, d->columns - p->column);
}

static void draw_special(const md *d, const md_block *b, int what, pen *p) {
    pen_role(p, ROLE_BORDER);
    if (what == ROW_FENCE_TOP) {
        pen_printf(p, "code [%d] %s%s", b->number, b->language, b->language[0] != '\0' ? " " : "");
        draw_line(d, p);
    } else if (what == ROW_FENCE_BOTTOM) {
        char tail[48];
        int n = b->was_unclosed
                    ? snprintf(tail, sizeof tail, " not closed ")
                    : snprintf(tail, sizeof tail, " y%d copies [%d] ", b->number, b->number);
        pen_repeat(p, d->look->glyphs->horizontal, d->columns - p->column - n - 4);
        pen_str(p, tail);
        draw_line(d, p);
    } else
        draw_line(d, p);
}

static void draw_mark(const md *d, const md_block *b, pen *p) {
    int column = p->column;
    pen_move(p, p->row, column + b->indent);
    pen_role(p, b->kind == MD_QUOTE ? ROLE_BORDER : ROLE_ACCENT);
    bool is_bullet = b->mark[0] == '-' || b->mark[0] == '*' || b->mark[0] == '+';
    if (b->kind == MD_QUOTE)
        pen_str(p, d->look->glyphs->quote);
    else
        pen_str(p, is_bullet ? d->look->glyphs->bullet : b->mark);
    pen_move(p, p->row, column);
}

void md_draw_row(const md *d, int i, int skip, pen *p) {
    int row;
    const md_block *b = block_of(d, i, &row);
    if (b == NULL) return;
    const rich_row *r = &b->rows.rows[row];
    if (r->has_mark) draw_mark(d, b, p);
    pen_move(p, p->row, p->column + r->indent);
    if (r->flags >> 1)
        draw_special(d, b, r->flags >> 1, p);
    else
        rich_draw(&b->text, r, r->flags & RICH_ROW_UNWRAPPED ? skip : 0, ">", p);
}

bool md_row_is_wide(const md *d, int i, int columns) {
    int row;
    const md_block *b = block_of(d, i, &row);
    if (b == NULL || !(b->rows.rows[row].flags & RICH_ROW_UNWRAPPED)) return false;
    const rich_row *r = &b->rows.rows[row];
    return r->indent + width_text(buf_cstr(&b->text.text) + r->at, r->len) > columns;
}

size_t md_place_of_row(const md *d, int i) {
    int row;
    const md_block *b = block_of(d, i, &row);
    if (b == NULL) return i <= 0 || d->n_blocks == 0 ? 0 : d->source.len;
    /* Text of a block is no copy of its source, but grows with it: near enough to stay in place. */
    return b->place + b->rows.rows[row].at;
}

int md_row_of_place(const md *d, size_t place) {
    int found = 0;
    for (int i = 0; i < d->n_blocks; i++) {
        const md_block *b = &d->blocks[i];
        if (b->place > place) break;
        for (int j = 0; j < b->rows.n_rows; j++) {
            if (b->place + b->rows.rows[j].at <= place) found = d->first_row[i] + j;
        }
    }
    return found;
}

int md_code_at_row(const md *d, int i) {
    int row;
    const md_block *b = block_of(d, i, &row);
    return b != NULL && b->kind == MD_CODE ? b->number : 0;
}
