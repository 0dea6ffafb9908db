#include "tests/harness/vt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"

enum { TEXT, ESC, ESC_MIDDLE, CSI, STRING, STRING_ESC };

static vt_cell blank(const vt *t) {
    (void)t;
    return (vt_cell){.columns = 1, .color = -1};
}

static vt_cell *at(const vt *t, int row, int column) {
    return &t->cells[(size_t)row * (size_t)t->n_columns + (size_t)column];
}

const vt_cell *vt_at(const vt *t, int row, int column) {
    return at(t, row, column);
}

void vt_init(vt *t, int n_rows, int n_columns) {
    memset(t, 0, sizeof *t);
    t->has_cursor = true;
    t->pen.color = -1;
    vt_resize(t, n_rows, n_columns);
}

void vt_release(vt *t) {
    mem_free(t->cells);
    buf_release(&t->clipboard);
    buf_release(&t->reply);
    memset(t, 0, sizeof *t);
}

void vt_resize(vt *t, int n_rows, int n_columns) {
    vt_cell *cells = mem_array((size_t)n_rows * (size_t)n_columns, sizeof *cells);
    for (int i = 0; i < n_rows * n_columns; i++)
        cells[i] = blank(t);
    for (int r = 0; r < n_rows && r < t->n_rows && t->cells != NULL; r++) {
        for (int c = 0; c < n_columns && c < t->n_columns; c++)
            cells[r * n_columns + c] = *at(t, r, c);
    }
    mem_free(t->cells);
    t->cells = cells;
    t->n_rows = n_rows;
    t->n_columns = n_columns;
    t->top = 0;
    t->bottom = n_rows - 1;
    if (t->row >= n_rows) t->row = n_rows - 1;
    if (t->column >= n_columns) t->column = n_columns - 1;
    t->must_wrap = false;
}

static void unknown(vt *t) {
    if (t->n_unknown++ == 0) str_copy(t->unknown, sizeof t->unknown, t->sequence);
}

static void erase(vt *t, int row, int from, int to) {
    for (int c = from; c < to && c < t->n_columns; c++)
        *at(t, row, c) = blank(t);
}

static void scroll(vt *t, int top, int bottom, int by) {
    int n = bottom - top + 1;
    for (int i = 0; i < n; i++) {
        int to = by > 0 ? top + i : bottom - i, from = to + by;
        for (int c = 0; c < t->n_columns; c++) {
            *at(t, to, c) = from >= top && from <= bottom ? *at(t, from, c) : blank(t);
        }
    }
}

static void line_feed(vt *t) {
    if (t->row == t->bottom)
        scroll(t, t->top, t->bottom, 1);
    else if (t->row < t->n_rows - 1)
        t->row++;
}

/* Half of a wide cell that is overwritten leaves a blank. */
static void break_wide(vt *t, int row, int column) {
    vt_cell *k = at(t, row, column);
    if (k->columns == 0 && column > 0) *at(t, row, column - 1) = blank(t);
    if (k->columns == 2 && column + 1 < t->n_columns) *at(t, row, column + 1) = blank(t);
}

static void join_mark(vt *t, const char *s, size_t n) {
    int column = t->must_wrap ? t->column : t->column - 1;
    while (column > 0 && at(t, t->row, column)->columns == 0)
        column--;
    if (column < 0) return;
    vt_cell *k = at(t, t->row, column);
    if (k->len + n <= VT_CELL_BYTES) {
        memcpy(k->text + k->len, s, n);
        k->len = (uint8_t)(k->len + n);
    }
}

static void print(vt *t, const char *s, size_t n) {
    uint32_t c;
    utf8_decode(s, n, &c);
    int columns = wcwidth((wchar_t)c);
    if (columns < 0) {
        t->n_controls++;
        return;
    }
    if (columns == 0) {
        join_mark(t, s, n);
        return;
    }
    if (t->must_wrap || t->column + columns > t->n_columns) {
        t->column = 0;
        t->must_wrap = false;
        line_feed(t);
    }
    if (columns > t->n_columns) return;
    for (int i = 0; i < columns; i++) {
        break_wide(t, t->row, t->column + i);
        vt_cell *k = at(t, t->row, t->column + i);
        *k = t->pen;
        k->len = 0;
        k->columns = (uint8_t)(i == 0 ? columns : 0);
        if (i > 0) continue;
        memcpy(k->text, s, n);
        k->len = (uint8_t)n;
    }
    memcpy(t->last, s, n);
    t->last_len = n;
    t->column += columns;
    if (t->column >= t->n_columns) {
        t->column = t->n_columns - 1;
        t->must_wrap = true;
    }
}

/* --- sequences --- */

static int numbers(const char *s, int *out, int cap) {
    int n = 0;
    while (n < cap) {
        char *end;
        out[n] = (int)strtol(s, &end, 10);
        if (end == s) out[n] = -1;
        n++;
        s = end + strspn(end, ":");
        if (*s != ';') break;
        s++;
    }
    return n;
}

static void set_mode(vt *t, int mode, bool on) {
    switch (mode) {
    case 1:
    case 7:
    case 12:
    case 4:
        break;
    case 25:
        t->has_cursor = on;
        break;
    case 1000:
    case 1002:
    case 1006:
        t->has_mouse = on;
        break;
    case 1007:
        t->has_wheel = on;
        break;
    case 1049:
        t->is_alternate = on;
        break;
    case 2004:
        t->has_paste = on;
        break;
    case 2026:
        t->in_sync = on;
        t->n_sync += on;
        break;
    default:
        unknown(t);
        break;
    }
}

static void graphics(vt *t, const int *p, int n) {
    for (int i = 0; i < n; i++) {
        int v = p[i] < 0 ? 0 : p[i];
        if (v == 0)
            t->pen = (vt_cell){.color = -1};
        else if (v == 1)
            t->pen.is_bold = 1;
        else if (v == 2)
            t->pen.is_dim = 1;
        else if (v == 4)
            t->pen.is_underlined = 1;
        else if (v == 7)
            t->pen.is_reverse = 1;
        else if (v == 22)
            t->pen.is_bold = t->pen.is_dim = 0;
        else if (v == 24)
            t->pen.is_underlined = 0;
        else if (v == 27)
            t->pen.is_reverse = 0;
        else if (v >= 30 && v <= 37)
            t->pen.color = (int16_t)(v - 30);
        else if (v >= 90 && v <= 97)
            t->pen.color = (int16_t)(v - 82);
        else if (v == 39)
            t->pen.color = -1;
        else if (v == 38 && i + 2 < n && p[i + 1] == 5) {
            t->pen.color = (int16_t)p[i + 2];
            i += 2;
        } else if (v != 3 && v != 23 && v != 49)
            unknown(t);
    }
}

static void move_to(vt *t, int row, int column) {
    t->row = row < 0 ? 0 : row >= t->n_rows ? t->n_rows - 1 : row;
    t->column = column < 0 ? 0 : column >= t->n_columns ? t->n_columns - 1 : column;
    t->must_wrap = false;
}

static void erase_display(vt *t, int how) {
    if (how == 2) t->n_clears++;
    if (how == 0) erase(t, t->row, t->column, t->n_columns);
    if (how == 1) erase(t, t->row, 0, t->column + 1);
    for (int r = 0; r < t->n_rows; r++) {
        if (how >= 2 || (how == 0 && r > t->row) || (how == 1 && r < t->row))
            erase(t, r, 0, t->n_columns);
    }
}

static void erase_line(vt *t, int how) {
    if (how == 0)
        erase(t, t->row, t->column, t->n_columns);
    else if (how == 1)
        erase(t, t->row, 0, t->column + 1);
    else
        erase(t, t->row, 0, t->n_columns);
}

static void shift_cells(vt *t, int by) {
    for (int i = 0; i < t->n_columns - t->column; i++) {
        int to = by > 0 ? t->n_columns - 1 - i : t->column + i, from = to - by;
        *at(t, t->row, to) =
            from >= t->column && from < t->n_columns ? *at(t, t->row, from) : blank(t);
    }
}

static void repeat(vt *t, int n) {
    char last[8];
    size_t len = t->last_len;
    memcpy(last, t->last, sizeof last);
    for (int i = 0; i < n && len > 0; i++)
        print(t, last, len);
}

static void private_csi(vt *t, char lead, char final, const int *p, int n) {
    if (lead == '?' && (final == 'h' || final == 'l')) {
        for (int i = 0; i < n; i++)
            set_mode(t, p[i], final == 'h');
    } else if (lead == '?' && final == 'p') {
        if (t->answers) buf_printf(&t->reply, "\033[?%d;2$y", p[0]);
    } else if (lead == '?' && final == 'u') {
        /* the kitty protocol is not known here: no answer */
    } else if (lead == '>' && final == 'u')
        t->has_kitty = true;
    else if (lead == '<' && final == 'u')
        t->has_kitty = false;
    else
        unknown(t);
}

static void set_region(vt *t, int top, int bottom) {
    t->top = top;
    t->bottom = bottom;
    /* A region for the size before a resize means the whole screen. */
    if (t->bottom >= t->n_rows || t->top >= t->bottom) {
        t->top = 0;
        t->bottom = t->n_rows - 1;
    }
    move_to(t, 0, 0);
}

/* The sequences that move the cursor; false for another one. */
static bool move_csi(vt *t, char final, int a, int b) {
    switch (final) {
    case 'A':
        move_to(t, t->row - a, t->column);
        break;
    case 'B':
        move_to(t, t->row + a, t->column);
        break;
    case 'C':
        move_to(t, t->row, t->column + a);
        break;
    case 'D':
        move_to(t, t->row, t->column - a);
        break;
    case 'G':
        move_to(t, t->row, a - 1);
        break;
    case 'd':
        move_to(t, a - 1, t->column);
        break;
    case 'H':
    case 'f':
        move_to(t, a - 1, b - 1);
        break;
    default:
        return false;
    }
    return true;
}

static void plain_csi(vt *t, char final, const int *p, int n) {
    int a = p[0] > 0 ? p[0] : 1, b = n > 1 && p[1] > 0 ? p[1] : 1;
    if (move_csi(t, final, a, b)) return;
    switch (final) {
    case 'J':
        erase_display(t, p[0] < 0 ? 0 : p[0]);
        break;
    case 'K':
        erase_line(t, p[0] < 0 ? 0 : p[0]);
        break;
    case 'L':
        scroll(t, t->row, t->bottom, -a);
        break;
    case 'M':
        scroll(t, t->row, t->bottom, a);
        break;
    case 'S':
        scroll(t, t->top, t->bottom, a);
        break;
    case 'T':
        scroll(t, t->top, t->bottom, -a);
        break;
    case '@':
        shift_cells(t, a);
        break;
    case 'P':
        shift_cells(t, -a);
        break;
    case 'X':
        erase(t, t->row, t->column, t->column + a);
        break;
    case 'b':
        repeat(t, a);
        break;
    case 'm':
        graphics(t, p, n);
        break;
    case 'r':
        set_region(t, a - 1, n > 1 && p[1] > 0 ? p[1] - 1 : t->n_rows - 1);
        break;
    case 'c':
        if (t->answers) buf_puts(&t->reply, "\033[?62;22c");
        break;
    case 'h':
    case 'l':
    case 't':
        break;
    default:
        unknown(t);
        break;
    }
}

static void end_csi(vt *t) {
    int p[16] = {-1};
    const char *s = t->sequence + 2;
    char lead = *s >= '<' && *s <= '?' ? *s++ : '\0', final = t->sequence[t->sequence_len - 1];
    int n = numbers(s, p, 16);
    if (lead != '\0')
        private_csi(t, lead, final, p, n);
    else
        plain_csi(t, final, p, n);
}

static void end_string(vt *t) {
    if (strncmp(t->sequence, "\033]52;", 5) == 0) {
        const char *payload = strchr(t->sequence + 5, ';');
        buf_reset(&t->clipboard);
        if (payload != NULL) buf_puts(&t->clipboard, payload + 1);
    } else if (strncmp(t->sequence, "\033]0;", 4) == 0)
        str_copy(t->title, sizeof t->title, t->sequence + 4);
    else
        unknown(t);
}

static void after_escape(vt *t, char c) {
    switch (c) {
    case '7':
        t->saved_row = t->row;
        t->saved_column = t->column;
        break;
    case '8':
        move_to(t, t->saved_row, t->saved_column);
        break;
    case 'M':
        if (t->row == t->top)
            scroll(t, t->top, t->bottom, -1);
        else if (t->row > 0)
            t->row--;
        break;
    case 'D':
        line_feed(t);
        break;
    case '=':
    case '>':
        break;
    default:
        unknown(t);
        break;
    }
}

static void control(vt *t, unsigned char c) {
    switch (c) {
    case '\r':
        t->column = 0;
        t->must_wrap = false;
        break;
    case '\n':
        line_feed(t);
        break;
    case '\b':
        if (t->column > 0) t->column--;
        t->must_wrap = false;
        break;
    case '\t':
        move_to(t, t->row, (t->column / 8 + 1) * 8);
        break;
    case '\a':
    case 0x0e:
    case 0x0f:
        break;
    default:
        t->n_controls++;
        break;
    }
}

static void text_byte(vt *t, unsigned char c) {
    if (c == 0x1b) {
        t->state = ESC;
        t->sequence_len = 0;
        t->sequence[t->sequence_len++] = (char)c;
        return;
    }
    if (c < 0x20 || c == 0x7f) {
        control(t, c);
        return;
    }
    t->partial[t->partial_len++] = (char)c;
    uint32_t code;
    if (utf8_decode(t->partial, t->partial_len, &code) == t->partial_len && code != UTF8_INVALID) {
        print(t, t->partial, t->partial_len);
        t->partial_len = 0;
    } else if (t->partial_len == 4) {
        t->n_controls++;
        t->partial_len = 0;
    }
}

static void sequence_byte(vt *t, unsigned char c) {
    if (t->sequence_len + 1 < sizeof t->sequence) t->sequence[t->sequence_len++] = (char)c;
    t->sequence[t->sequence_len] = '\0';
    switch (t->state) {
    case ESC:
        if (c == '[')
            t->state = CSI;
        else if (c == ']' || c == 'P')
            t->state = STRING;
        else if (c >= 0x20 && c < 0x30)
            t->state = ESC_MIDDLE;
        else {
            t->state = TEXT;
            after_escape(t, (char)c);
        }
        break;
    case ESC_MIDDLE:
        t->state = TEXT;
        break;
    case CSI:
        if (c < 0x40 || c > 0x7e) break;
        t->state = TEXT;
        end_csi(t);
        break;
    case STRING:
        if (c == 0x1b) t->state = STRING_ESC;
        if (c != '\a') break;
        t->sequence[t->sequence_len - 1] = '\0';
        t->state = TEXT;
        end_string(t);
        break;
    default:
        t->state = TEXT;
        end_string(t);
        break;
    }
}

void vt_feed(vt *t, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (t->state == TEXT)
            text_byte(t, (unsigned char)s[i]);
        else
            sequence_byte(t, (unsigned char)s[i]);
    }
}

void vt_row(const vt *t, int row, buf *out) {
    size_t start = out->len, end = start;
    for (int c = 0; c < t->n_columns; c++) {
        const vt_cell *k = at(t, row, c);
        if (k->columns == 0) continue;
        if (k->len == 0)
            buf_putc(out, ' ');
        else
            buf_append(out, k->text, k->len);
        if (k->len > 0 && (k->len > 1 || k->text[0] != ' ')) end = out->len;
    }
    buf_truncate(out, end);
}

void vt_text(const vt *t, buf *out) {
    for (int row = 0; row < t->n_rows; row++) {
        vt_row(t, row, out);
        buf_putc(out, '\n');
    }
}

bool vt_has(const vt *t, const char *text) {
    buf row = BUF_INIT;
    bool found = false;
    for (int i = 0; i < t->n_rows && !found; i++) {
        buf_reset(&row);
        vt_row(t, i, &row);
        found = strstr(buf_cstr(&row), text) != NULL;
    }
    buf_release(&row);
    return found;
}
