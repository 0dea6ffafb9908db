/* The transcript: message views as rows, and the place in them that is shown. The anchor is a place
 * in the text, so that the same words stay at the top when the width changes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tui/app_internal.h"
#include "tui/width.h"

/* Rows of a view: header, thinking line, thinking, text, remark, blank. */
typedef struct view_rows {
    int header, think_line, think, text, remark, blank;
} view_rows;

static const char *remark_of(const chat_message_view *v, char out[320]) {
    char n[16];
    part_count(v->tokens, n);
    out[0] = '\0';
    switch (v->state) {
    case SESSION_STOPPED:
        snprintf(out, 320, "stopped by you");
        break;
    case SESSION_CUT:
        snprintf(out, 320, "cut: the length limit was reached");
        break;
    case SESSION_FAILED:
        snprintf(out, 320, "stopped here: %s", v->error[0] != '\0' ? v->error : "the engine ended");
        break;
    case SESSION_INTERRUPTED:
        snprintf(out, 320, "interrupted: what was written by then is kept");
        break;
    default:
        break;
    }
    return out;
}

static view_rows rows_of(const chat_message_view *v) {
    char remark[320];
    bool has_think = v->think != NULL;
    view_rows r = {.header = 1, .think_line = has_think, .blank = 1};
    r.think = has_think && v->is_think_open ? v->think_rows : 0;
    r.text = v->is_folded ? 0 : v->text_rows;
    r.remark = remark_of(v, remark)[0] != '\0';
    return r;
}

static void layout_view(app *a, chat_message_view *v, int columns) {
    if (v->is_laid && v->columns == columns) return;
    v->text_rows = md_layout(v->text, columns, a->look);
    v->think_rows = v->think != NULL ? md_layout(v->think, columns - 4, a->look) : 0;
    v->columns = columns;
    v->is_laid = true;
}

static int view_height(const chat_message_view *v) {
    view_rows r = rows_of(v);
    return r.header + r.think_line + r.think + r.text + r.remark + r.blank;
}

int transcript_row_of(const app *a, int view) {
    int row = 0;
    for (int i = 0; i < view && i < a->chat.n_views; i++)
        row += a->chat.views[i].n_rows;
    return row;
}

int transcript_view_at(const app *a, int row) {
    for (int i = 0; i < a->chat.n_views; i++) {
        row -= a->chat.views[i].n_rows;
        if (row < 0) return i;
    }
    return a->chat.n_views - 1;
}

static int last_top(const app *a) {
    int top = a->scroll.n_rows - a->scroll.n_shown;
    return top > 0 ? top : 0;
}

/* Remembers what stands at the top. */
static void set_anchor(app *a) {
    app_scroll *s = &a->scroll;
    s->anchor_view = transcript_view_at(a, s->top);
    s->has_anchor_text = false;
    if (s->anchor_view < 0) return;
    const chat_message_view *v = &a->chat.views[s->anchor_view];
    view_rows r = rows_of(v);
    int row = s->top - transcript_row_of(a, s->anchor_view);
    s->anchor_offset = row;
    int text = row - r.header - r.think_line - r.think;
    if (text < 0 || text >= r.text) return;
    s->has_anchor_text = true;
    s->anchor_place = md_place_of_row(v->text, text);
}

static void use_anchor(app *a) {
    app_scroll *s = &a->scroll;
    if (s->anchor_view < 0 || s->anchor_view >= a->chat.n_views) return;
    const chat_message_view *v = &a->chat.views[s->anchor_view];
    view_rows r = rows_of(v);
    int row = s->anchor_offset;
    if (s->has_anchor_text) {
        row = r.header + r.think_line + r.think + md_row_of_place(v->text, s->anchor_place);
    }
    if (row >= v->n_rows) row = v->n_rows - 1;
    s->top = transcript_row_of(a, s->anchor_view) + row;
}

void transcript_layout(app *a, int columns, int n_shown) {
    app_scroll *s = &a->scroll;
    bool is_new = s->revision != a->chat.revision;
    bool has_moved = s->columns != columns;
    int total = 0;
    for (int i = 0; i < a->chat.n_views; i++) {
        chat_message_view *v = &a->chat.views[i];
        layout_view(a, v, columns);
        v->n_rows = view_height(v);
        total += v->n_rows;
    }
    s->n_rows = total;
    s->n_shown = n_shown;
    s->columns = columns;
    if (is_new) {
        s->revision = a->chat.revision;
        s->is_following = true;
        s->selected = a->chat.n_views - 1;
    } else if (has_moved && !s->is_following)
        use_anchor(a);
    if (s->is_following || s->top > last_top(a)) s->top = last_top(a);
    if (s->is_following && a->is_input_focused) s->selected = a->chat.n_views - 1;
    if (s->top < 0) s->top = 0;
    if (s->selected >= a->chat.n_views) s->selected = a->chat.n_views - 1;
}

void transcript_scroll(app *a, int rows) {
    app_scroll *s = &a->scroll;
    s->top += rows;
    if (s->top < 0) s->top = 0;
    if (s->top > last_top(a)) s->top = last_top(a);
    s->is_following = s->top == last_top(a);
    set_anchor(a);
    /* The selection follows what is in view. */
    int first = transcript_view_at(a, s->top);
    int last = transcript_view_at(a, s->top + s->n_shown - 1);
    if (s->selected < first) s->selected = first;
    if (s->selected > last) s->selected = last;
}

void transcript_to_end(app *a) {
    a->scroll.is_following = true;
    a->scroll.selected = a->chat.n_views - 1;
}

void transcript_select(app *a, int view) {
    app_scroll *s = &a->scroll;
    if (a->chat.n_views == 0) return;
    if (view < 0) view = 0;
    if (view >= a->chat.n_views) view = a->chat.n_views - 1;
    s->selected = view;
    int row = transcript_row_of(a, view), end = row + a->chat.views[view].n_rows;
    if (row < s->top || end > s->top + s->n_shown) {
        s->top = row;
        if (s->top > last_top(a)) s->top = last_top(a);
        s->is_following = s->top == last_top(a);
        set_anchor(a);
    }
}

/* --- drawing --- */

static void draw_header(app *a, const chat_message_view *v, bool is_selected, pen *p) {
    static const char *const NAMES[] = {"System", "You", "Assistant", "Tool"};
    static const canvas_role ROLES[] = {ROLE_DIM, ROLE_USER, ROLE_MODEL, ROLE_DIM};
    char clock[16];
    pen_role(p, ROLES[v->role]);
    if (is_selected) pen_str(p, "* ");
    pen_str(p, NAMES[v->role]);
    pen_role(p, ROLE_DIM);
    if (v->time_ms > 0) pen_printf(p, " %s", app_time_of(v->time_ms, clock));
    if (v->n_siblings > 1) pen_printf(p, " %d/%d", v->i_sibling, v->n_siblings);
    if (v->is_folded) pen_str(p, " (folded, Enter opens)");
    pen_role(p, ROLE_BORDER);
    pen_str(p, " ");
    pen_repeat(p, a->look->glyphs->horizontal, pen_left(p));
}

static bool is_live(const app *a, const chat_message_view *v) {
    return chat_is_busy(&a->chat) && v == &a->chat.views[a->chat.n_views - 1];
}

/* The last words of the thinking, for its folded line. */
static void last_words(const md *think, int columns, pen *p) {
    size_t n;
    const char *s = md_source(think, &n);
    size_t from = n;
    int used = 0;
    while (from > 0 && s[from - 1] == '\n')
        from--;
    size_t end = from;
    while (from > 0 && s[from - 1] != '\n') {
        size_t len = width_previous(s, from);
        int wide = width_text(s + from - len, len);
        if (used + wide > columns) break;
        used += wide;
        from -= len;
    }
    pen_text(p, s + from, end - from);
}

static void draw_think_line(app *a, const chat_message_view *v, pen *p) {
    char time[24], count[16];
    pen_role(p, ROLE_THINK);
    pen_str(p, v->is_think_open ? "v " : "> ");
    if (is_live(a, v) && a->chat.phase == CHAT_THINKING_NOW) {
        pen_printf(
            p, "Thinking %s ", part_duration((double)(a->now_ms - a->chat.first_ms) / 1000, time));
        if (!v->is_think_open) {
            pen_str(p, "... ");
            last_words(v->think, pen_left(p) - 1, p);
        }
        return;
    }
    pen_str(p, "Thought");
    if (!isnan(v->think_s)) pen_printf(p, " for %s", part_duration(v->think_s, time));
    if (v->think_tokens >= 0) pen_printf(p, ", %s tokens", part_count(v->think_tokens, count));
    pen_str(p, v->is_think_open ? "" : " (t to open)");
}

static void draw_remark(app *a, const chat_message_view *v, pen *p) {
    char remark[320];
    bool is_bad = v->state == SESSION_FAILED || v->state == SESSION_INTERRUPTED;
    pen_role(p, is_bad ? ROLE_BAD : ROLE_DIM);
    pen_str(p, "-- ");
    pen_cut(p, remark_of(v, remark), pen_left(p) - 4, a->look->glyphs->ellipsis);
    pen_str(p, " ");
    pen_repeat(p, "-", pen_left(p));
}

static void draw_view_row(app *a, const chat_message_view *v, int row, bool is_selected, pen *p) {
    view_rows r = rows_of(v);
    if (row < r.header) {
        draw_header(a, v, is_selected, p);
        return;
    }
    row -= r.header;
    if (row < r.think_line) {
        draw_think_line(a, v, p);
        return;
    }
    row -= r.think_line;
    if (row < r.think) {
        pen_role(p, ROLE_BORDER);
        pen_printf(p, "  %s ", a->look->glyphs->vertical);
        md_draw_row(v->think, row, 0, p);
        return;
    }
    row -= r.think;
    if (row < r.text) {
        md_draw_row(v->text, row, a->scroll.skip, p);
        return;
    }
    if (row - r.text < r.remark) draw_remark(a, v, p);
}

/* Text over as many rows as it needs; returns the row after it. */
static int draw_wrapped(pen *p, int row, canvas_role role, const char *text) {
    rich r = {0};
    rich_rows rows = {0};
    rich_puts(&r, text, style_of(role));
    rich_wrap(&r, 0, p->box.n_columns, 0, 0, &rows);
    for (int i = 0; i < rows.n_rows; i++) {
        pen_move(p, row + i, 0);
        rich_draw(&r, &rows.rows[i], 0, "", p);
    }
    row += rows.n_rows;
    rich_rows_release(&rows);
    rich_release(&r);
    return row;
}

static void draw_empty(app *a, pen *p) {
    const gauges *g = &a->gauges;
    bool is_broken = g->state == ENGINE_FAILED || g->state == ENGINE_DOWN;
    const char *text = "You can type already: the message is sent when the engine is ready.";
    if (g->state == ENGINE_READY)
        text = "Type a question and press Enter. /help lists the commands.";
    else if (g->state == ENGINE_ABSENT)
        text = a->options->may_start
                   ? "No engine runs. Type a question and press Enter: that starts the engine."
                   : "No engine runs. /engine start starts it; what you type waits for it.";
    int row = draw_wrapped(p, 0, ROLE_DIM, text);
    if (is_broken && g->reason[0] != '\0') {
        row = draw_wrapped(p, row + 1, ROLE_BAD, g->reason);
        draw_wrapped(p, row, ROLE_DIM, "/engine start tries again; /status says more.");
    } else if (g->state == ENGINE_STARTING && g->reason[0] != '\0') {
        draw_wrapped(p, row, ROLE_DIM, g->reason);
    } else if (g->is_demo) {
        draw_wrapped(p, row, ROLE_WARN,
            "DEMO: a very small built-in model; it answers simply and is often wrong.");
    }
}

void transcript_draw(app *a, area box, bool is_focused) {
    transcript_layout(a, box.n_columns, box.n_rows);
    pen p = pen_on(&a->frame, box);
    if (a->chat.n_views == 0) draw_empty(a, &p);
    int view = transcript_view_at(a, a->scroll.top);
    int row = view >= 0 ? a->scroll.top - transcript_row_of(a, view) : 0;
    for (int i = 0; i < box.n_rows && view >= 0 && view < a->chat.n_views; i++) {
        const chat_message_view *v = &a->chat.views[view];
        pen_move(&p, i, 0);
        draw_view_row(a, v, row, is_focused && view == a->scroll.selected, &p);
        if (++row < v->n_rows) continue;
        view++;
        row = 0;
    }
}

/* --- search --- */

static bool contains(const md *d, const char *what) {
    size_t n;
    const char *s = md_source(d, &n);
    return memmem(s, n, what, strlen(what)) != NULL;
}

int transcript_find(app *a, int direction) {
    int n = a->chat.n_views, at = a->scroll.selected;
    for (int i = 0; i < n; i++) {
        at += direction;
        if (at < 0) at = n - 1;
        if (at >= n) at = 0;
        const chat_message_view *v = &a->chat.views[at];
        if (contains(v->text, a->search) || (v->think != NULL && contains(v->think, a->search)))
            return at;
    }
    return -1;
}
