#include "tui/part_input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/line.h"
#include "tui/width.h"

#define PROMPT_COLUMNS 2
#define CHIP_BYTES 4096
#define CHIP_LINES 40
#define HISTORY_BYTES (1u << 20)
#define HISTORY_KEEP_BYTES (1u << 18)

/* A large paste stands in the line as its label; the text is put in when the message is sent. */
typedef struct chip {
    char label[64];
    char *text;
} chip;

typedef struct visual_row {
    size_t at, end;
} visual_row;

struct part_input {
    char *history_path;
    chip *chips;
    int n_chips;
    buf done; /* a finished message that was not taken yet */
    visual_row *rows;
    int n_rows, rows_cap;
    int columns;       /* of the text, at the last layout */
    int first_row;     /* first visual row shown */
    int wanted_column; /* of repeated up and down; -1: none */
};

/* --- history: one entry a line, line feeds and backslashes escaped --- */

static void escape_entry(const char *s, buf *out) {
    for (; *s != '\0'; s++) {
        if (*s == '\n')
            buf_puts(out, "\\n");
        else if (*s == '\\')
            buf_puts(out, "\\\\");
        else
            buf_putc(out, *s);
    }
    buf_putc(out, '\n');
}

static void load_entry(const char *s, size_t n) {
    buf entry = BUF_INIT;
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '\\' || i + 1 >= n)
            buf_putc(&entry, s[i]);
        else
            buf_putc(&entry, s[++i] == 'n' ? '\n' : s[i]);
    }
    if (entry.len > 0 && utf8_valid(entry.data, entry.len)) line_history_add(buf_cstr(&entry));
    buf_release(&entry);
}

static void load_history(const part_input *p) {
    buf text = BUF_INIT;
    if (p->history_path != NULL &&
        file_read(p->history_path, &text, 2 * HISTORY_BYTES, NULL) == OK) {
        for (size_t at = 0; at < text.len;) {
            const char *end = memchr(text.data + at, '\n', text.len - at);
            size_t n = end != NULL ? (size_t)(end - text.data) - at : text.len - at;
            load_entry(text.data + at, n);
            at += n + 1;
        }
    }
    buf_release(&text);
}

/* Keeps the newer part of a history that has grown too large. */
static void shorten_history(const char *path) {
    buf text = BUF_INIT;
    if (file_read(path, &text, 4 * HISTORY_BYTES, NULL) == OK && text.len > HISTORY_BYTES) {
        const char *from = text.data + text.len - HISTORY_KEEP_BYTES;
        const char *line = memchr(from, '\n', HISTORY_KEEP_BYTES);
        if (line != NULL) {
            size_t n = (size_t)(text.data + text.len - (line + 1));
            file_write_atomic(path, line + 1, n, 0600, NULL);
        }
    }
    buf_release(&text);
}

/* Best effort: a history that cannot be written must not stop a message. */
static void save_entry(const part_input *p, const char *s) {
    if (p->history_path == NULL) return;
    buf line = BUF_INIT;
    escape_entry(s, &line);
    int fd = open(p->history_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) {
        if (flock(fd, LOCK_EX) == 0) fd_write_full(fd, line.data, line.len, NULL);
        close(fd);
    }
    buf_release(&line);
}

int part_input_open(const char *history_path, part_input **out, err *e) {
    int rc = line_open(e);
    if (rc != OK) return rc;
    part_input *p = mem_alloc(sizeof *p);
    p->wanted_column = -1;
    p->columns = 78;
    if (history_path != NULL) {
        p->history_path = mem_strdup(history_path);
        shorten_history(history_path);
    }
    load_history(p);
    *out = p;
    return OK;
}

static void drop_chips(part_input *p) {
    for (int i = 0; i < p->n_chips; i++)
        mem_free(p->chips[i].text);
    p->n_chips = 0;
}

void part_input_close(part_input *p) {
    if (p == NULL) return;
    drop_chips(p);
    mem_free(p->chips);
    mem_free(p->rows);
    mem_free(p->history_path);
    buf_release(&p->done);
    line_close();
    mem_free(p);
}

/* --- chips --- */

static void open_chips(const part_input *p, const char *s, size_t n, buf *out) {
    for (size_t at = 0; at < n;) {
        const chip *found = NULL;
        for (int i = 0; i < p->n_chips && s[at] == '['; i++) {
            size_t len = strlen(p->chips[i].label);
            if (n - at >= len && memcmp(s + at, p->chips[i].label, len) == 0) found = &p->chips[i];
        }
        if (found != NULL) {
            buf_puts(out, found->text);
            at += strlen(found->label);
        } else
            buf_putc(out, s[at++]);
    }
}

static size_t count_lines(const char *s, size_t n) {
    size_t lines = 1;
    for (size_t i = 0; i < n; i++)
        lines += s[i] == '\n' && i + 1 < n;
    return lines;
}

static void take_paste(part_input *p, const char *s, size_t n) {
    size_t lines = count_lines(s, n);
    if (n == 0) return;
    if (n <= CHIP_BYTES && lines <= CHIP_LINES) {
        line_insert(s, n);
        return;
    }
    p->chips = mem_realloc(p->chips, (size_t)(p->n_chips + 1) * sizeof *p->chips);
    chip *c = &p->chips[p->n_chips++];
    c->text = mem_strndup(s, n);
    snprintf(c->label, sizeof c->label, "[pasted %zu lines, %.1fk #%d]", lines, (double)n / 1024.0,
        p->n_chips);
    line_insert(c->label, strlen(c->label));
}

/* The chip around the point; at_end also when the point stands right behind it. */
static const chip *chip_at(const part_input *p, bool at_end, size_t *from) {
    size_t n, point = line_point();
    const char *s = line_text(&n);
    for (int i = 0; i < p->n_chips; i++) {
        size_t len = strlen(p->chips[i].label);
        for (size_t at = 0; at + len <= n; at++) {
            if (s[at] != '[' || memcmp(s + at, p->chips[i].label, len) != 0) continue;
            bool is_in = at_end ? point == at + len : point >= at && point < at + len;
            *from = at;
            if (is_in) return &p->chips[i];
        }
    }
    return NULL;
}

/* --- layout --- */

/* Columns of the cluster at s as it is drawn here. */
static int shown_columns(const char *s, size_t n, size_t *len) {
    width_cluster w = width_next(s, n);
    *len = w.len;
    if (w.len == 1 && s[0] == '\t') return 4;
    if (w.len == 1 && ((unsigned char)s[0] < 0x20 || s[0] == 0x7f)) return 2;
    if (width_is_unsafe(w.base)) return 8;
    return w.columns;
}

static void add_row(part_input *p, size_t at, size_t end) {
    if (p->n_rows == p->rows_cap) {
        p->rows_cap = p->rows_cap == 0 ? 16 : 2 * p->rows_cap;
        p->rows = mem_realloc(p->rows, (size_t)p->rows_cap * sizeof *p->rows);
    }
    p->rows[p->n_rows++] = (visual_row){at, end};
}

static void layout(part_input *p, int columns) {
    size_t n, start = 0;
    const char *s = line_text(&n);
    int used = 0;
    p->columns = columns < 1 ? 1 : columns;
    p->n_rows = 0;
    for (size_t i = 0; i < n;) {
        size_t len;
        if (s[i] == '\n') {
            add_row(p, start, i);
            start = ++i;
            used = 0;
            continue;
        }
        int wide = shown_columns(s + i, n - i, &len);
        if (used + wide > p->columns && i > start) {
            add_row(p, start, i);
            start = i;
            used = 0;
        }
        used += wide;
        i += len;
    }
    add_row(p, start, n);
    /* The caret behind a full last row stands at the start of an empty one. */
    if (used >= p->columns) add_row(p, n, n);
}

static int row_of_point(const part_input *p) {
    size_t point = line_point();
    int row = 0;
    for (int i = 0; i < p->n_rows; i++) {
        if (p->rows[i].at <= point) row = i;
    }
    return row;
}

static int column_of(const part_input *p, int row, size_t point) {
    size_t n, len;
    const char *s = line_text(&n);
    int column = 0;
    for (size_t i = p->rows[row].at; i < point && i < p->rows[row].end; i += len) {
        column += shown_columns(s + i, n - i, &len);
    }
    return column;
}

static void point_to(const part_input *p, int row, int column) {
    size_t n, len, i = p->rows[row].at;
    const char *s = line_text(&n);
    int used = 0;
    while (i < p->rows[row].end) {
        used += shown_columns(s + i, n - i, &len);
        if (used > column) break;
        i += len;
    }
    line_set_point(i);
}

static void step_row(part_input *p, int direction) {
    layout(p, p->columns);
    int row = row_of_point(p), to = row + direction;
    if (to < 0 || to >= p->n_rows) {
        line_history_step(direction);
        p->wanted_column = -1;
        return;
    }
    if (p->wanted_column < 0) p->wanted_column = column_of(p, row, line_point());
    point_to(p, to, p->wanted_column);
}

/* --- events --- */

/* An odd number of lines that are only """ means that the block is still open. */
static bool is_block_open(const char *s, size_t n) {
    bool is_open = false;
    for (size_t at = 0; at <= n;) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t len = end != NULL ? (size_t)(end - s) - at : n - at;
        if (len == 3 && memcmp(s + at, "\"\"\"", 3) == 0) is_open = !is_open;
        at += len + 1;
    }
    return is_open;
}

static void without_block_marks(const char *s, size_t n, buf *out) {
    bool is_first = true;
    for (size_t at = 0; at <= n;) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t len = end != NULL ? (size_t)(end - s) - at : n - at;
        if (len != 3 || memcmp(s + at, "\"\"\"", 3) != 0) {
            if (!is_first) buf_putc(out, '\n');
            buf_append(out, s + at, len);
            is_first = false;
        }
        at += len + 1;
    }
}

static bool is_newline_key(const input_event *ev) {
    if (ev->kind != INPUT_KEY) return false;
    if (ev->key == INPUT_KEY_ENTER) return ev->mods != 0;
    return ev->key == INPUT_KEY_CHAR && ev->code == 'j' && ev->mods == INPUT_CTRL;
}

/* Enter: opens a chip, goes on with a block, or ends the message. */
static bool enter(part_input *p, const input_event *ev) {
    size_t n, from;
    const chip *c = line_message() == NULL ? chip_at(p, false, &from) : NULL;
    if (c != NULL) {
        line_delete(from, from + strlen(c->label));
        line_insert(c->text, strlen(c->text));
        return false;
    }
    const char *s = line_text(&n);
    if (line_message() == NULL && is_block_open(s, n)) {
        line_insert("\n", 1);
        return false;
    }
    line_key(ev);
    buf_reset(&p->done);
    return line_take(&p->done);
}

static bool key_event(part_input *p, const input_event *ev) {
    size_t from;
    bool is_plain = ev->kind == INPUT_KEY && ev->mods == 0 && line_message() == NULL;
    if (is_plain && ev->key == INPUT_KEY_BACKSPACE) {
        const chip *c = chip_at(p, true, &from);
        if (c != NULL) {
            line_delete(from, from + strlen(c->label));
            return false;
        }
    }
    line_key(ev);
    buf_reset(&p->done);
    return line_take(&p->done);
}

bool part_input_event(part_input *p, const input_event *ev) {
    bool is_plain = ev->kind == INPUT_KEY && ev->mods == 0;
    bool is_vertical = is_plain && (ev->key == INPUT_KEY_UP || ev->key == INPUT_KEY_DOWN);
    if (is_vertical && line_message() == NULL) {
        step_row(p, ev->key == INPUT_KEY_UP ? -1 : 1);
        return false;
    }
    p->wanted_column = -1;
    if (ev->kind == INPUT_PASTE) {
        take_paste(p, ev->paste, ev->paste_len);
        return false;
    }
    if (is_newline_key(ev)) {
        line_insert("\n", 1);
        return false;
    }
    if (is_plain && ev->key == INPUT_KEY_ENTER) return enter(p, ev);
    return key_event(p, ev);
}

void part_input_take(part_input *p, buf *out) {
    buf text = BUF_INIT;
    open_chips(p, buf_cstr(&p->done), p->done.len, &text);
    without_block_marks(buf_cstr(&text), text.len, out);
    line_history_add(buf_cstr(out));
    save_entry(p, buf_cstr(out));
    drop_chips(p);
    buf_reset(&p->done);
    buf_release(&text);
    p->first_row = 0;
}

void part_input_get(const part_input *p, buf *out) {
    size_t n;
    const char *s = line_text(&n);
    open_chips(p, s, n, out);
}

void part_input_set(part_input *p, const char *s, size_t n) {
    drop_chips(p);
    line_replace("", 0);
    if (n > CHIP_BYTES)
        take_paste(p, s, n);
    else
        line_replace(s, n);
    p->first_row = 0;
}

void part_input_insert(part_input *p, const char *s) {
    (void)p;
    line_insert(s, strlen(s));
}

bool part_input_is_empty(const part_input *p) {
    size_t n;
    (void)p;
    line_text(&n);
    return n == 0;
}

void part_input_clear(part_input *p) {
    buf text = BUF_INIT;
    part_input_get(p, &text);
    line_history_add(buf_cstr(&text));
    buf_release(&text);
    line_kill_all();
    p->first_row = 0;
}

const char *part_input_before_point(const part_input *p, size_t *n) {
    size_t all;
    const char *s = line_text(&all);
    (void)p;
    *n = line_point();
    return s;
}

int part_input_rows(part_input *p, int columns) {
    layout(p, columns - PROMPT_COLUMNS);
    return p->n_rows;
}

static void draw_row(const part_input *p, int row, pen *on) {
    size_t n, len;
    const char *s = line_text(&n);
    for (size_t i = p->rows[row].at; i < p->rows[row].end; i += len) {
        int wide = shown_columns(s + i, n - i, &len);
        width_cluster w = width_next(s + i, n - i);
        if (s[i] == '\t')
            pen_repeat(on, " ", wide);
        else if (w.base < 0x20 || w.base == 0x7f)
            pen_printf(on, "^%c", (int)((w.base + 0x40) & 0x7f));
        else if (width_is_unsafe(w.base))
            pen_printf(on, "<U+%04X>", (unsigned)w.base);
        else
            pen_text(on, s + i, len);
    }
}

void part_input_draw(part_input *p, pen *on, int *cursor_row, int *cursor_column) {
    layout(p, on->box.n_columns - PROMPT_COLUMNS);
    int shown = on->box.n_rows, caret = row_of_point(p);
    if (p->first_row > p->n_rows - shown) p->first_row = p->n_rows - shown;
    if (p->first_row < 0) p->first_row = 0;
    if (caret < p->first_row) p->first_row = caret;
    if (shown > 0 && caret >= p->first_row + shown) p->first_row = caret - shown + 1;
    for (int i = 0; i < shown && p->first_row + i < p->n_rows; i++) {
        int row = p->first_row + i;
        pen_move(on, i, 0);
        pen_role(on, ROLE_ACCENT);
        if (row == 0) pen_str(on, "> ");
        pen_move(on, i, PROMPT_COLUMNS);
        pen_role(on, ROLE_TEXT);
        draw_row(p, row, on);
    }
    int column = PROMPT_COLUMNS + column_of(p, caret, line_point());
    if (column >= on->box.n_columns) column = on->box.n_columns - 1;
    *cursor_row = on->box.row + caret - p->first_row;
    *cursor_column = on->box.column + (column < 0 ? 0 : column);
}
