/* The Setup screen's picture. */
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "tui/app_internal.h"
#include "tui/plot.h"
#include "tui/rich.h"
#include "tui/width.h"
#include "tui/wizard.h"

enum { LIST_COLUMNS = 22, TABLE_LABEL = 24, MIN_LIST_COLUMNS = 60 };

static canvas_role status_role(check_status s) {
    static const canvas_role roles[] = {ROLE_GOOD, ROLE_WARN, ROLE_BAD, ROLE_DIM, ROLE_WARN};
    return roles[s];
}

static const char *status_word(check_status s) {
    static const char *const words[] = {"ok", "WARN", "FAIL", "skip", "?"};
    return words[s];
}

/* --- steps at the left --- */

static void draw_steps(app *a, area box) {
    const wizard *w = a->wizard;
    pen p = part_box(&a->frame, box, a->look, "Steps", NULL);
    for (int i = 0; i < STEP_COUNT && i < p.box.n_rows; i++) {
        step_state s = w->states[i];
        bool is_here = i == w->i_step;
        canvas_role role = s == STEP_IS_FAILED                      ? ROLE_BAD
                           : s == STEP_IS_OK || s == STEP_IS_WARNED ? ROLE_GOOD
                           : s == STEP_IS_STALE                     ? ROLE_WARN
                                                                    : ROLE_DIM;
        pen_move(&p, i, 0);
        pen_style(&p, is_here ? style_with(ROLE_FOCUS, STYLE_BOLD) : style_of(role));
        pen_printf(&p, "%s %2d %s", is_here ? ">>" : step_state_mark(s), i, step_info_of(i)->title);
        /* The mark of here hides the state, which must not be told by colour alone. */
        bool must_say = is_here && (s == STEP_IS_FAILED || s == STEP_IS_STALE);
        if (must_say && pen_left(&p) >= 3) pen_printf(&p, " %s", step_state_mark(s));
    }
}

/* --- content at the right --- */

static void put(rich *r, canvas_role role, const char *text) {
    rich_puts(r, text, style_of(role));
}

static void put_clean(rich *r, canvas_role role, const char *text) {
    buf out = BUF_INIT;
    width_cleaner c;
    width_cleaner_reset(&c);
    if (width_clean(&c, text, strlen(text), &out) == OK) (void)width_clean_end(&c, &out);
    put(r, role, buf_cstr(&out));
    buf_release(&out);
}

static void put_labelled(rich *r, const char *label, canvas_role role, const char *text) {
    if (text[0] == '\0') return;
    put(r, ROLE_STRONG, label);
    put_clean(r, role, text);
    put(r, ROLE_TEXT, "\n");
}

static void put_message(rich *r, const step_message *m, canvas_role role) {
    if (m->what[0] == '\0') return;
    put(r, ROLE_TEXT, "\n");
    put_labelled(r, "What happened: ", role, m->what);
    put_labelled(r, "Why it matters: ", ROLE_TEXT, m->why);
    put_labelled(r, "What to do: ", ROLE_TEXT, m->next);
}

static void put_cell(rich *r, canvas_role role, const char *text, int columns) {
    int used = 0;
    size_t n = width_fit(text, strlen(text), columns - 1, &used);
    rich_add(r, text, n, style_of(role));
    for (; used < columns; used++)
        put(r, ROLE_TEXT, " ");
}

/* One line of the table: name, head, worker, verdict; facts that are long go below. */
static void put_row(rich *r, const step_row *x, int columns) {
    int each = (columns - TABLE_LABEL - 5) / 2;
    canvas_role role = status_role(x->status);
    bool is_fine = x->status == CHECK_STATUS_PASS || x->status == CHECK_STATUS_SKIP;
    bool is_two = x->worker[0] != '\0' && each >= 12;
    put_cell(r, is_fine ? ROLE_TEXT : ROLE_STRONG, x->label, TABLE_LABEL);
    if (is_two) {
        bool is_equal = str_eq(x->head, x->worker);
        put_cell(r, is_equal ? ROLE_DIM : ROLE_TEXT, x->head, each);
        put_cell(r, is_equal ? ROLE_DIM : ROLE_TEXT, x->worker, each);
    } else {
        put_cell(r, ROLE_TEXT, x->fact, 2 * each);
    }
    put(r, role, status_word(x->status));
    put(r, ROLE_TEXT, "\n");
    bool is_cut = width_text(x->fact, strlen(x->fact)) > 2 * each - 1;
    if (is_fine && (is_two || !is_cut)) return;
    if (is_cut || is_two) put_labelled(r, "  > ", role, x->fact);
    if (is_fine) return;
    put_labelled(r, "    why: ", ROLE_DIM, x->reason);
    put_labelled(r, "    do:  ", ROLE_TEXT, x->remedy);
}

static void put_plan(rich *r, const setup_plan *p) {
    if (p->n == 0) return;
    put(r, ROLE_STRONG, "\nThis will be changed:\n");
    for (size_t i = 0; i < p->n; i++) {
        const plan_action *x = &p->actions[i];
        char line[700];
        snprintf(
            line, sizeof line, "%s%s: %.600s\n", x->node, x->is_root ? " (as root)" : "", x->what);
        put_clean(r, ROLE_ACCENT, line);
        put_labelled(r, "  ", ROLE_CODE, x->command);
        put_labelled(r, "  undo: ", ROLE_DIM, x->undo);
    }
}

static void put_view(const wizard *w, rich *r, int columns) {
    const step_view *v = &w->view;
    if (v->summary[0] != '\0') {
        put_clean(r, v->worst == CHECK_STATUS_FAIL ? ROLE_BAD : ROLE_TEXT, v->summary);
        put(r, ROLE_TEXT, "\n");
    }
    put_message(r, &v->message, v->plan.n > 0 ? ROLE_WARN : ROLE_BAD);
    if (v->n_rows > 0) put(r, ROLE_TEXT, "\n");
    /* What is wrong stands first: it is what the person must read. */
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < v->n_rows; i++) {
            check_status s = v->rows[i].status;
            bool is_fine = s == CHECK_STATUS_PASS || s == CHECK_STATUS_SKIP;
            if (is_fine == (k == 1)) put_row(r, &v->rows[i], columns);
        }
    }
    put_plan(r, &v->plan);
}

static void put_question(wizard *w, rich *r) {
    put(r, ROLE_ACCENT, w->question);
    put(r, ROLE_STRONG, " ");
    if (w->is_secret) {
        for (size_t i = 0; i < strlen(w->typed); i++)
            put(r, ROLE_STRONG, "*");
    } else {
        put_clean(r, ROLE_STRONG, w->typed);
    }
    put(r, ROLE_STRONG, "_\n");
    put(r, ROLE_DIM, "Enter answers, Esc refuses\n");
}

/* The rate of the last minute or so as one row, newest at the right. */
static void put_rates(const app *a, const wizard *w, rich *r, int columns) {
    plot_series s = {w->rates, w->n_rates};
    double maximum = plot_nice_maximum(plot_largest(&s), 0);
    char top[16], line[64];
    if (columns > WIZARD_RATES) columns = WIZARD_RATES;
    if (columns < 10) return;
    for (int i = w->n_rates - columns; i < w->n_rates; i++) {
        double share = i < 0 || maximum <= 0 ? 0 : (double)w->rates[i] / maximum;
        int level = share <= 0 ? 0 : (int)(share * 8 + 0.999);
        put(r, ROLE_PLOT1, a->look->glyphs->levels[level > 8 ? 8 : level]);
    }
    snprintf(
        line, sizeof line, "\nrate: 0 to %s/s, newest at the right\n", part_bytes(maximum, top));
    put(r, ROLE_DIM, line);
}

static void put_progress(const app *a, wizard *w, rich *r, int columns) {
    const flow_progress *p = &w->progress;
    char done[16], total[16], left[24], line[300];
    int bar = columns - 30 > 10 ? columns - 30 : 10;
    double share = p->total_bytes > 0 ? (double)p->done_bytes / (double)p->total_bytes : 0;
    put(r, ROLE_STRONG, p->title);
    put(r, ROLE_TEXT, "\n[");
    for (int i = 0; i < bar; i++)
        put(r, ROLE_PLOT2,
            i < (int)(share * bar) ? a->look->glyphs->bar_full : a->look->glyphs->bar_empty);
    snprintf(line, sizeof line, "] %s of %s %3.0f %%\n", part_bytes((double)p->done_bytes, done),
        part_bytes((double)p->total_bytes, total), share * 100);
    put(r, ROLE_TEXT, line);
    char rate[16];
    snprintf(line, sizeof line, "%s/s   left %s   verified %d of %d\n", part_bytes(p->rate, rate),
        part_duration(p->eta_s, left), (int)p->n_ok, (int)p->n_files);
    put(r, ROLE_TEXT, line);
    put_rates(a, w, r, columns - 2);
    if (p->note[0] != '\0') put_labelled(r, "", ROLE_WARN, p->note);
    for (int i = 0; i < p->n_shown; i++) {
        put_clean(r, ROLE_TEXT, p->files[i]);
        put(r, ROLE_TEXT, "\n");
    }
    put(r, ROLE_DIM, "Stop any time: finished parts are kept and checked again on return.\n\n");
}

/* What runs now: question first, then progress, then the newest lines. */
static void put_work(app *a, wizard *w, rich *r, int columns, int n_rows) {
    pthread_mutex_lock(&w->lock);
    bool has_question = w->question[0] != '\0' && !w->is_answered;
    if (has_question) {
        put_question(w, r);
    } else {
        put(r, ROLE_ACCENT,
            w->phase == WIZARD_INSPECT ? "Looking; nothing is changed.\n" : "Working.\n");
        if (w->has_progress) put_progress(a, w, r, columns);
        int room = n_rows - (w->has_progress ? 8 + 2 + w->progress.n_shown : 4),
            first = w->n_lines - (room > 3 ? room : 3);
        if (first < w->n_lines - WIZARD_LINES) first = w->n_lines - WIZARD_LINES;
        if (first < 0) first = 0;
        for (int i = first; i < w->n_lines; i++) {
            put(r, ROLE_DIM, w->lines[i % WIZARD_LINES]);
            put(r, ROLE_TEXT, "\n");
        }
    }
    pthread_mutex_unlock(&w->lock);
}

static void draw_rich(wizard *w, const rich *r, pen *p) {
    rich_rows rows = {0};
    /* A key that is shown must stand in one row, also at 80 columns: no room for an indent. */
    int indent = wizard_has_question(w) ? 0 : 2;
    rich_wrap(r, 0, p->box.n_columns, 0, indent, &rows);
    w->n_content = rows.n_rows;
    w->n_room = p->box.n_rows;
    int most = w->n_content - w->n_room;
    if (w->top > most) w->top = most;
    if (w->top < 0) w->top = 0;
    for (int i = 0; i < p->box.n_rows && w->top + i < rows.n_rows; i++) {
        pen_move(p, i, 0);
        rich_draw(r, &rows.rows[w->top + i], 0, "", p);
    }
    rich_rows_release(&rows);
}

static int draw_fields(wizard *w, pen *p, int *cursor_row, int *cursor_column) {
    const step_field *x = step_info_of(w->i_step)->fields;
    int row = 0;
    for (int k = 0; k < w->n_fields; k++) {
        bool is_focused = w->focus == k;
        pen_move(p, row, 0);
        pen_style(p, is_focused ? style_with(ROLE_FOCUS, STYLE_BOLD) : style_of(ROLE_DIM));
        pen_printf(p, "%s%s", is_focused ? "* " : "  ", x[k].label);
        if (x[k].choices != NULL) pen_printf(p, " (%s)", x[k].choices);
        row++;
        pen_move(p, row, 2);
        pen_role(p, ROLE_TEXT);
        pen_str(p, "[ ");
        pen_role(p, ROLE_STRONG);
        pen_cut(p, w->fields[k], p->box.n_columns - 6, "...");
        if (is_focused) {
            *cursor_row = p->box.row + row;
            *cursor_column = p->box.column + p->column;
        }
        pen_role(p, ROLE_TEXT);
        pen_str(p, " ]");
        row++;
        if (w->field_error[k][0] == '\0') continue;
        pen_move(p, row, 4);
        pen_role(p, ROLE_BAD);
        pen_cut(p, w->field_error[k], p->box.n_columns - 4, "...");
        row++;
    }
    return row > 0 ? row + 1 : 0;
}

static void draw_buttons(const wizard *w, pen *p) {
    for (int i = 0; i < w->n_buttons; i++) {
        bool is_focused = w->focus == w->n_fields + i;
        pen_style(p, is_focused ? style_with(ROLE_SELECT, STYLE_REVERSE) : style_of(ROLE_TEXT));
        pen_printf(p, is_focused ? "[>%s<]" : "[ %s ]", wizard_button_name(w, w->buttons[i]));
        pen_role(p, ROLE_TEXT);
        if (i + 1 < w->n_buttons) pen_str(p, " ");
    }
}

static void draw_step(app *a, area box, int *cursor_row, int *cursor_column) {
    wizard *w = a->wizard;
    char title[64];
    const step_info *info = step_info_of(w->i_step);
    snprintf(title, sizeof title, "%d  %s", w->i_step, info->title);
    pen p = part_box(&a->frame, box, a->look, title, info->typical);
    bool is_busy = wizard_is_busy(w);
    int n_fields = is_busy ? 0 : draw_fields(w, &p, cursor_row, cursor_column);
    area rest = p.box;
    rest.row += n_fields;
    rest.n_rows -= n_fields + 2;
    rich r = {0};
    if (is_busy) {
        put_work(a, w, &r, rest.n_columns, rest.n_rows);
    } else {
        put(&r, ROLE_DIM, info->about);
        put(&r, ROLE_TEXT, "\n");
        const char *why = flow_state_reason(w->f, w->i_step);
        if (why[0] != '\0') put_labelled(&r, "stale or waiting: ", ROLE_WARN, why);
        if (w->has_view) put_view(w, &r, rest.n_columns);
    }
    pen content = pen_on(&a->frame, rest);
    draw_rich(w, &r, &content);
    rich_release(&r);
    area foot = p.box;
    foot.row += foot.n_rows - 1;
    foot.n_rows = 1;
    pen q = pen_on(&a->frame, foot);
    draw_buttons(w, &q);
    if (w->n_content <= w->n_room) return;
    foot.row--;
    q = pen_on(&a->frame, foot);
    pen_role(&q, ROLE_DIM);
    pen_printf(&q, "lines %d to %d of %d (PgDn PgUp)", w->top + 1,
        w->top + w->n_room < w->n_content ? w->top + w->n_room : w->n_content, w->n_content);
}

static void draw_foot(app *a, area box) {
    pen p = pen_on(&a->frame, box);
    part_line l = {.n_left = 0};
    if (a->hint[0] != '\0' && a->now_ms < a->hint_until_ms) {
        pen_role(&p, ROLE_WARN);
        pen_cut(&p, a->hint, pen_left(&p), a->look->glyphs->ellipsis);
        return;
    }
    part_line_add(&l, 1, ROLE_DIM, "Tab move");
    part_line_add(&l, 1, ROLE_DIM, "Enter choose");
    part_line_add(&l, 3, ROLE_DIM, "? why");
    part_line_add(&l, 4, ROLE_DIM, "[ ] step");
    part_line_add(&l, 5, ROLE_DIM, ".. open  -- waits  st stale  !! failed");
    part_line_add_right(&l, 2, ROLE_DIM, "F1 help");
    part_line_add_right(&l, 2, ROLE_DIM, "F10 leave");
    part_line_draw(&l, &p);
}

static void draw_problem(app *a, area box) {
    pen p = part_box(&a->frame, box, a->look, "Setup", NULL);
    rich r = {0};
    step_message m = {0};
    step_explain(-1, &a->wizard->problem, REMOTE_FINE, &m);
    put(&r, ROLE_STRONG, "Set-up cannot be opened.\n");
    put_message(&r, &m, ROLE_BAD);
    draw_rich(a->wizard, &r, &p);
    rich_release(&r);
}

void screen_setup_draw(app *a, area box, int *cursor_row, int *cursor_column) {
    wizard *w = a->wizard;
    area body = {box.row, box.column, box.n_rows - 1, box.n_columns};
    draw_foot(a, (area){box.row + box.n_rows - 1, box.column, 1, box.n_columns});
    if (w->f == NULL) {
        draw_problem(a, body);
        return;
    }
    if (box.n_columns >= MIN_LIST_COLUMNS) {
        draw_steps(a, (area){body.row, body.column, body.n_rows, LIST_COLUMNS});
        body.column += LIST_COLUMNS;
        body.n_columns -= LIST_COLUMNS;
    }
    draw_step(a, body, cursor_row, cursor_column);
}
