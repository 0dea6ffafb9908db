/* The document and its block splitter. Lines are given to blocks as soon as their kind is certain;
 * a line whose kind is not certain yet stays unattached and unseen. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tui/md_internal.h"

md *md_new(bool is_plain, canvas_role role) {
    md *d = mem_alloc(sizeof *d);
    d->is_plain = is_plain;
    d->role = role;
    return d;
}

void md_free(md *d) {
    if (d == NULL) return;
    for (int i = 0; i < d->n_blocks; i++) {
        mem_free(d->blocks[i].lines);
        rich_release(&d->blocks[i].text);
        rich_rows_release(&d->blocks[i].rows);
    }
    for (int i = 0; i < d->n_links; i++)
        mem_free(d->links[i]);
    mem_free(d->links);
    mem_free(d->blocks);
    mem_free(d->first_row);
    buf_release(&d->source);
    mem_free(d);
}

static md_block *last_block(md *d) {
    return d->n_blocks > 0 ? &d->blocks[d->n_blocks - 1] : NULL;
}

static md_block *open_block(md *d) {
    md_block *b = last_block(d);
    return b != NULL && !b->is_closed ? b : NULL;
}

static void close_block(md *d) {
    md_block *b = open_block(d);
    if (b != NULL) b->is_closed = true;
}

static bool wants_gap(const md_block *before, md_kind kind) {
    if (before->kind == MD_CODE || before->kind == MD_TABLE || before->kind == MD_RULE) return true;
    return kind == MD_CODE || kind == MD_TABLE || kind == MD_RULE || kind == MD_HEADING;
}

static md_block *add_block(md *d, md_kind kind, size_t place) {
    close_block(d);
    if (d->n_blocks == d->blocks_cap) {
        d->blocks_cap = d->blocks_cap == 0 ? 16 : 2 * d->blocks_cap;
        d->blocks = mem_realloc(d->blocks, (size_t)d->blocks_cap * sizeof *d->blocks);
    }
    md_block *b = &d->blocks[d->n_blocks];
    memset(b, 0, sizeof *b);
    b->kind = kind;
    b->place = place;
    b->has_gap = d->n_blocks > 0 && (d->had_blank || wants_gap(b - 1, kind));
    d->n_blocks++;
    d->had_blank = false;
    return b;
}

static void add_line(md_block *b, size_t at, size_t end, bool is_complete) {
    if (b->n_lines == b->lines_cap) {
        b->lines_cap = b->lines_cap == 0 ? 4 : 2 * b->lines_cap;
        b->lines = mem_realloc(b->lines, (size_t)b->lines_cap * sizeof *b->lines);
    }
    b->lines[b->n_lines++] = (md_line){at, end, is_complete};
}

/* One line as the splitter sees it. */
typedef struct view {
    const char *s; /* after the blanks */
    size_t n;
    size_t at;     /* of s in the source */
    size_t blanks; /* before s */
    size_t end;    /* in the source, without the line feed */
    size_t next;   /* start of the next line */
    bool is_complete;
} view;

static view view_line(const md *d, size_t at) {
    const char *s = d->source.data;
    view v = {.at = at, .next = d->source.len, .end = d->source.len, .is_complete = d->is_finished};
    const char *feed = memchr(s + at, '\n', d->source.len - at);
    if (feed != NULL) {
        v.end = (size_t)(feed - s);
        v.next = v.end + 1;
        v.is_complete = true;
    }
    while (v.at < v.end && (s[v.at] == ' ' || s[v.at] == '\t')) {
        v.blanks += s[v.at] == '\t' ? 4 : 1;
        v.at++;
    }
    v.s = s + v.at;
    v.n = v.end - v.at;
    return v;
}

static size_t run_of(const view *v, char c) {
    size_t n = 0;
    while (n < v->n && v->s[n] == c)
        n++;
    return n;
}

/* All of the line is the mark c and blanks; count of the marks. */
static bool is_only(const view *v, char c, size_t *count) {
    *count = 0;
    for (size_t i = 0; i < v->n; i++) {
        if (v->s[i] == c)
            (*count)++;
        else if (v->s[i] != ' ' && v->s[i] != '\t')
            return false;
    }
    return true;
}

typedef enum {
    LINE_TEXT,
    LINE_BLANK,
    LINE_HOLD,
    LINE_HEADING,
    LINE_FENCE,
    LINE_RULE,
    LINE_ITEM,
    LINE_QUOTE,
    LINE_TABLE
} line_kind;

/* What a line is, with the length of its mark. */
typedef struct line_sort {
    line_kind kind;
    size_t mark;  /* bytes before the content */
    size_t label; /* bytes of the mark without blanks */
} line_sort;

static line_sort sort_text(void) {
    return (line_sort){LINE_TEXT, 0, 0};
}

static line_sort sort_hold(const view *v) {
    return v->is_complete ? sort_text() : (line_sort){LINE_HOLD, 0, 0};
}

static line_sort sort_heading(const view *v) {
    size_t n = run_of(v, '#');
    if (n > 6) return sort_text();
    if (n == v->n) return v->is_complete ? (line_sort){LINE_HEADING, n, n} : sort_hold(v);
    if (v->s[n] != ' ') return sort_text();
    size_t i = n;
    while (i < v->n && v->s[i] == ' ')
        i++;
    if (i == v->n && !v->is_complete) return (line_sort){LINE_HOLD, 0, 0};
    return (line_sort){LINE_HEADING, i, n};
}

static line_sort sort_fence(const view *v) {
    char c = v->s[0];
    size_t n = run_of(v, c);
    if (n == v->n && n < 3) return sort_hold(v);
    if (n < 3) return sort_text();
    if (c == '`' && memchr(v->s + n, '`', v->n - n) != NULL) return sort_text();
    return v->is_complete ? (line_sort){LINE_FENCE, n, n} : (line_sort){LINE_HOLD, 0, 0};
}

/* The content after a list mark of label bytes. */
static line_sort sort_item(const view *v, size_t label) {
    size_t i = label;
    while (i < v->n && (v->s[i] == ' ' || v->s[i] == '\t'))
        i++;
    if (i == v->n) return v->is_complete ? (line_sort){LINE_ITEM, i, label} : sort_hold(v);
    if (i == label) return sort_text();
    return (line_sort){LINE_ITEM, i, label};
}

static line_sort sort_dash(const view *v) {
    size_t count;
    char c = v->s[0];
    if (is_only(v, c, &count)) {
        if (!v->is_complete) return (line_sort){LINE_HOLD, 0, 0};
        if (count >= 3) return (line_sort){LINE_RULE, 0, 0};
    }
    return c == '_' ? sort_text() : sort_item(v, 1);
}

static line_sort sort_number(const view *v) {
    size_t i = 0;
    while (i < v->n && i < 10 && isdigit((unsigned char)v->s[i]))
        i++;
    if (i == 10) return sort_text();
    if (i == v->n) return sort_hold(v);
    if (v->s[i] != '.' && v->s[i] != ')') return sort_text();
    return sort_item(v, i + 1);
}

static line_sort sort_line(const view *v) {
    if (v->n == 0)
        return v->is_complete ? (line_sort){LINE_BLANK, 0, 0} : (line_sort){LINE_HOLD, 0, 0};
    char c = v->s[0];
    if (c == '#') return sort_heading(v);
    if (c == '`' || c == '~') return sort_fence(v);
    if (c == '-' || c == '*' || c == '_') return sort_dash(v);
    if (c == '+') return sort_item(v, 1);
    if (c == '>' && v->n == 1 && !v->is_complete) return (line_sort){LINE_HOLD, 0, 0};
    if (c == '>') return (line_sort){LINE_QUOTE, v->n > 1 && v->s[1] == ' ' ? 2 : 1, 1};
    if (c == '|') return (line_sort){LINE_TABLE, 0, 0};
    if (isdigit((unsigned char)c)) return sort_number(v);
    return sort_text();
}

/* A row of dashes under a table's head: only | : - and blanks, with a dash. */
static bool can_be_delimiter(const view *v) {
    for (size_t i = 0; i < v->n; i++) {
        if (strchr("|:- \t", v->s[i]) == NULL) return false;
    }
    return true;
}

static bool is_delimiter(const view *v) {
    return can_be_delimiter(v) && memchr(v->s, '-', v->n) != NULL &&
           memchr(v->s, '|', v->n) != NULL;
}

/* --- attaching lines --- */

static void attach(md *d, md_block *b, const view *v, size_t mark) {
    add_line(b, v->at + mark, v->end, v->is_complete);
    d->has_open_line = !v->is_complete;
    d->at = v->next;
}

static void pop_lists(md *d, size_t blanks) {
    while (d->list_depth > 0 && blanks < d->list_indent[d->list_depth - 1])
        d->list_depth--;
}

static int list_columns(const md *d) {
    return d->list_depth > 0 ? (int)d->list_indent[d->list_depth - 1] : 0;
}

static void attach_item(md *d, const view *v, const line_sort *k) {
    pop_lists(d, v->blanks);
    int indent = list_columns(d);
    if (indent > 40) indent = 40;
    md_block *b = add_block(d, MD_ITEM, v->at);
    b->level = d->list_depth;
    b->indent = indent;
    size_t label = k->label < sizeof b->mark ? k->label : sizeof b->mark - 1;
    memcpy(b->mark, v->s, label);
    if (d->list_depth < MD_MAX_LIST_DEPTH) {
        d->list_indent[d->list_depth++] = v->blanks + k->label + 1;
    }
    attach(d, b, v, k->mark);
}

static void attach_fence(md *d, const view *v, const line_sort *k) {
    pop_lists(d, v->blanks);
    int indent = list_columns(d);
    md_block *b = add_block(d, MD_CODE, v->at);
    b->fence = v->s[0];
    b->level = (int)k->label;
    b->fence_indent = v->blanks;
    b->indent = indent > 40 ? 40 : indent;
    b->number = ++d->n_code;
    size_t i = k->label;
    while (i < v->n && v->s[i] == ' ')
        i++;
    size_t n = 0;
    while (i < v->n && v->s[i] != ' ' && n < sizeof b->language - 1)
        b->language[n++] = v->s[i++];
    b->language[n] = '\0';
    d->at = v->next;
}

static void attach_text(md *d, const view *v) {
    md_block *b = open_block(d);
    bool continues = b != NULL && !d->had_blank &&
                     (b->kind == MD_PARAGRAPH || b->kind == MD_ITEM || b->kind == MD_QUOTE);
    if (!continues) {
        pop_lists(d, v->blanks);
        int indent = list_columns(d);
        b = add_block(d, MD_PARAGRAPH, v->at);
        b->indent = indent > 40 ? 40 : indent;
    }
    attach(d, b, v, 0);
}

static void attach_simple(md *d, const view *v, const line_sort *k) {
    md_block *b = open_block(d);
    switch (k->kind) {
    case LINE_HEADING:
        d->list_depth = 0;
        b = add_block(d, MD_HEADING, v->at);
        b->level = (int)k->label;
        attach(d, b, v, k->mark);
        break;
    case LINE_RULE:
        d->list_depth = 0;
        add_block(d, MD_RULE, v->at);
        close_block(d);
        d->at = v->next;
        break;
    default: /* LINE_QUOTE */
        if (b == NULL || b->kind != MD_QUOTE || d->had_blank) {
            pop_lists(d, v->blanks);
            int indent = list_columns(d);
            b = add_block(d, MD_QUOTE, v->at);
            b->indent = indent > 40 ? 40 : indent;
        }
        attach(d, b, v, k->mark);
        break;
    }
}

/* A line that starts with a bar: the head of a table only if the next line says so. False: wait. */
static bool take_table_head(md *d, const view *v) {
    if (!v->is_complete) return false;
    if (v->next >= d->source.len) {
        if (!d->is_finished) return false;
        attach_text(d, v);
        return true;
    }
    view below = view_line(d, v->next);
    if (!below.is_complete && can_be_delimiter(&below)) return false;
    if (!below.is_complete || !is_delimiter(&below)) {
        attach_text(d, v);
        return true;
    }
    pop_lists(d, v->blanks);
    md_block *b = add_block(d, MD_TABLE, v->at);
    add_line(b, v->at, v->end, true);
    add_line(b, below.at, below.end, true);
    d->at = below.next;
    return true;
}

/* The line inside an open fence. False: it may still become the closing fence. */
static bool take_code_line(md *d, md_block *b, size_t at) {
    view v = view_line(d, at);
    size_t n = run_of(&v, b->fence), rest = n;
    while (rest < v.n && (v.s[rest] == ' ' || v.s[rest] == '\t'))
        rest++;
    if (rest == v.n && v.blanks < b->fence_indent + 4) {
        if (!v.is_complete) return false;
        if (n >= (size_t)b->level) {
            b->is_closed = true;
            d->at = v.next;
            return true;
        }
    }
    size_t skip = 0;
    while (skip < b->fence_indent && at + skip < v.end && d->source.data[at + skip] == ' ')
        skip++;
    add_line(b, at + skip, v.end, v.is_complete);
    d->has_open_line = !v.is_complete;
    d->at = v.next;
    return true;
}

/* A row of an open table, when it is complete. *is_row false: the table ends here. */
static bool take_table_row(md *d, md_block *b, const view *v, bool *is_row) {
    *is_row = v->n > 0 && v->s[0] == '|';
    if (!v->is_complete && (*is_row || v->n == 0)) return false;
    if (!*is_row) return true;
    add_line(b, v->at, v->end, true);
    d->at = v->next;
    return true;
}

static bool take_plain_line(md *d) {
    view v = view_line(d, d->at);
    md_block *b = open_block(d);
    if (v.n == 0 && v.is_complete) {
        close_block(d);
        d->had_blank = true;
        d->at = v.next;
        return true;
    }
    if (v.n == 0) return false;
    if (b == NULL) b = add_block(d, MD_PLAIN, d->at);
    add_line(b, d->at, v.end, v.is_complete);
    d->has_open_line = !v.is_complete;
    d->at = v.next;
    return true;
}

/* Gives the line at d->at to a block. False: more text is needed. */
static bool take_line(md *d) {
    md_block *b = open_block(d);
    if (d->is_plain) return take_plain_line(d);
    if (b != NULL && b->kind == MD_CODE) return take_code_line(d, b, d->at);
    view v = view_line(d, d->at);
    if (b != NULL && b->kind == MD_TABLE) {
        bool is_row;
        if (!take_table_row(d, b, &v, &is_row)) return false;
        if (is_row) return true;
        close_block(d);
    }
    line_sort k = sort_line(&v);
    if (v.blanks >= 4 && d->list_depth == 0 && k.kind != LINE_BLANK && k.kind != LINE_HOLD) {
        k = sort_text();
    }
    switch (k.kind) {
    case LINE_HOLD:
        return false;
    case LINE_BLANK:
        if (b != NULL) close_block(d);
        d->had_blank = true;
        d->at = v.next;
        break;
    case LINE_ITEM:
        attach_item(d, &v, &k);
        break;
    case LINE_FENCE:
        attach_fence(d, &v, &k);
        break;
    case LINE_TABLE:
        return take_table_head(d, &v);
    case LINE_TEXT:
        attach_text(d, &v);
        break;
    default:
        attach_simple(d, &v, &k);
        break;
    }
    return true;
}

/* The growing line of the last block gets the bytes that came. */
static void grow_line(md *d) {
    md_block *b = last_block(d);
    md_line *line = &b->lines[b->n_lines - 1];
    const char *s = d->source.data;
    const char *feed = memchr(s + line->end, '\n', d->source.len - line->end);
    line->end = feed != NULL ? (size_t)(feed - s) : d->source.len;
    line->is_complete = feed != NULL || d->is_finished;
    d->has_open_line = !line->is_complete;
    d->at = feed != NULL ? line->end + 1 : d->source.len;
}

static void advance(md *d) {
    if (d->has_open_line) grow_line(d);
    while (!d->has_open_line && d->at < d->source.len) {
        if (!take_line(d)) return;
    }
}

int md_append(md *d, const char *s, size_t n) {
    if (n == 0) return OK;
    int rc = buf_append(&d->source, s, n);
    if (rc == OK) advance(d);
    return rc;
}

void md_finish(md *d) {
    if (d->is_finished) return;
    d->is_finished = true;
    md_block *b = open_block(d);
    if (d->source.len > 0) advance(d);
    b = open_block(d);
    if (b != NULL && b->kind == MD_CODE) b->was_unclosed = true;
    close_block(d);
}

const char *md_source(const md *d, size_t *len) {
    *len = d->source.len;
    return buf_cstr(&d->source);
}

int md_n_code(const md *d) {
    return d->n_code;
}

void md_code(const md *d, int number, buf *out) {
    for (int i = 0; i < d->n_blocks; i++) {
        const md_block *b = &d->blocks[i];
        if (b->kind != MD_CODE || b->number != number) continue;
        for (int j = 0; j < b->n_lines; j++) {
            buf_append(out, d->source.data + b->lines[j].at, b->lines[j].end - b->lines[j].at);
            buf_putc(out, '\n');
        }
    }
}

const char *md_link(const md *d, int number) {
    return number >= 1 && number <= d->n_links ? d->links[number - 1] : NULL;
}
