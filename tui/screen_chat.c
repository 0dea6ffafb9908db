/* The Chat screen: title, transcript, status line, waiting messages, input, context line, and the
 * side panel when there is room. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/app_internal.h"
#include "tui/plot.h"
#include "tui/width.h"

#define PANEL_COLUMNS 34
#define PANEL_LEAST_COLUMNS 100

/* --- status line --- */

static void rate_text(double rate, char out[24]) {
    if (isnan(rate))
        snprintf(out, 24, "- t/s");
    else
        snprintf(out, 24, "%.1f t/s", rate);
}

static void add_share(part_line *l, int rank, const char *name, double share) {
    if (!isnan(share)) part_line_add(l, rank, ROLE_TEXT, "%s %.0f %%", name, 100 * share);
}

static void live_fields(const app *a, part_line *l) {
    const chat *c = &a->chat;
    char rate[24], time[24], first[24], done[16], total[16];
    rate_text(a->shown_rate, rate);
    part_duration((double)(a->now_ms - c->sent_ms) / 1000, time);
    part_duration((double)(c->first_ms - c->sent_ms) / 1000, first);
    switch (c->phase) {
    case CHAT_WAITING:
        if (a->gauges.queued > 0)
            part_line_add(l, 1, ROLE_INFO, "waiting: %d in the queue, started %s ago",
                (int)a->gauges.queued, time);
        else
            part_line_add(l, 1, ROLE_INFO, "waiting, started %s ago", time);
        break;
    case CHAT_READING:
        part_line_add(l, 1, ROLE_INFO, "reading %s of %s", part_count(c->read_done, done),
            part_count(c->read_total, total));
        part_line_add(l, 3, ROLE_TEXT, "%s", time);
        break;
    case CHAT_THINKING_NOW:
        part_duration((double)(a->now_ms - c->first_ms) / 1000, time);
        part_line_add(l, 1, ROLE_INFO, "thinking %s", time);
        part_line_add(l, 3, ROLE_TEXT, "%d tok", (int)a->shown_pieces);
        part_line_add(l, 2, ROLE_STRONG, "%s", rate);
        part_line_add(l, 4, ROLE_TEXT, "first %s", first);
        break;
    default:
        part_line_add(l, 3, ROLE_TEXT, "gen %d tok", (int)a->shown_pieces);
        part_line_add(l, 1, ROLE_STRONG, "%s", rate);
        part_line_add(l, 4, ROLE_TEXT, "first %s", first);
        break;
    }
    add_share(l, 6, "drafts", gauges_draft_share(&a->gauges));
    add_share(l, 7, "cache", gauges_hit_share(&a->gauges));
    part_line_add_right(l, 2, ROLE_DIM, "Ctrl-C stops");
}

/* The last reply, until the next one. */
static void done_fields(const app *a, part_line *l) {
    static const char *const WORDS[] = {
        "done", "writing", "stopped", "cut", "failed", "interrupted"};
    const turn_result *r = &a->chat.result;
    const chat_usage *u = &r->usage;
    char time[24], first[24], count[16];
    part_duration(r->total_s, time);
    part_line_add(l, 1, ROLE_DIM, "%s %s tok in %s", WORDS[r->state],
        part_count(r->state == SESSION_DONE || u->completion_tokens > 0 ? u->completion_tokens
                                                                        : a->chat.n_pieces,
            count),
        time);
    if (u->predicted_per_second > 0)
        part_line_add(l, 2, ROLE_DIM, "%.1f t/s", u->predicted_per_second);
    if (r->first_s >= 0)
        part_line_add(l, 3, ROLE_DIM, "first %s", part_duration(r->first_s, first));
    if (u->draft_n > 0)
        part_line_add(l, 4, ROLE_DIM, "drafts %.0f %%",
            100.0 * (double)u->draft_n_accepted / (double)u->draft_n);
    if (u->cached_tokens >= 0 && u->prompt_tokens > 0)
        part_line_add(l, 5, ROLE_DIM, "cache %.0f %%",
            100.0 * (double)u->cached_tokens / (double)u->prompt_tokens);
    if (r->finish[0] != '\0')
        part_line_add(l, 6, ROLE_DIM, "stop: %s", str_eq(r->finish, "stop") ? "end" : r->finish);
}

static void draw_status(app *a, pen *p) {
    part_line l = {.n_left = 0};
    if (a->hint[0] != '\0' && a->now_ms < a->hint_until_ms) {
        pen_role(p, ROLE_WARN);
        pen_cut(p, a->hint, pen_left(p), a->look->glyphs->ellipsis);
        return;
    }
    if (chat_is_busy(&a->chat))
        live_fields(a, &l);
    else if (a->gauges.state == ENGINE_DOWN || a->gauges.state == ENGINE_FAILED) {
        part_line_add(&l, 1, ROLE_BAD, "! engine %s", gauges_state_word(a->gauges.state));
        part_line_add(&l, 3, ROLE_TEXT, "%.80s", a->gauges.reason);
        part_line_add(&l, 2, ROLE_TEXT, "%s",
            a->options->may_start ? "the next message starts it" : "/engine start starts it");
    } else if (a->chat.last_line[0] != '\0')
        done_fields(a, &l);
    else if (a->gauges.state == ENGINE_READY)
        part_line_add(&l, 1, ROLE_DIM, "ready");
    else
        part_line_add(&l, 1, ROLE_WARN, "engine %s", gauges_state_word(a->gauges.state));
    part_line_draw(&l, p);
}

/* --- context line --- */

static void settings_text(const app *a, char out[96]) {
    const chat_settings *s = &a->chat.settings;
    int n = 0;
    out[0] = '\0';
    if (s->options.set & CHAT_TEMPERATURE)
        n += snprintf(out + n, 96 - (size_t)n, "temp %.2f ", s->options.temperature);
    if (s->options.set & CHAT_TOP_P)
        n += snprintf(out + n, 96 - (size_t)n, "top-p %.2f ", s->options.top_p);
    if (s->options.thinking == CHAT_THINKING_ON)
        snprintf(out + n, 96 - (size_t)n, "think on");
    else if (s->options.effort[0] != '\0')
        snprintf(out + n, 96 - (size_t)n, "think %s", s->options.effort);
    else
        snprintf(out + n, 96 - (size_t)n, "think off");
}

static void draw_context(app *a, pen *p) {
    part_line l = {.n_left = 0};
    char used[16], all[16], settings[96];
    int64_t now = a->chat.context_used, most = a->gauges.context;
    if (chat_is_busy(&a->chat) && now >= 0) now += a->shown_pieces;
    settings_text(a, settings);
    double share = now >= 0 && most > 0 ? (double)now / (double)most : (double)NAN;
    pen_role(p, ROLE_TEXT);
    if (p->box.n_columns >= 60) {
        pen_str(p, "ctx ");
        pen_role(p, share >= 0.95 ? ROLE_BAD : share >= 0.8 ? ROLE_WARN : ROLE_GOOD);
        plot_meter(p, a->look, share, 10);
        pen_role(p, ROLE_TEXT);
        pen_str(p, " ");
    }
    area rest = p->box;
    rest.row += p->row;
    rest.n_rows = 1;
    rest.column += p->column;
    rest.n_columns -= p->column;
    pen q = pen_on(&a->frame, rest);
    canvas_role role = share >= 0.95 ? ROLE_BAD : share >= 0.8 ? ROLE_WARN : ROLE_TEXT;
    if (isnan(share))
        part_line_add(&l, 1, ROLE_TEXT, "-/%s", part_count(most, all));
    else
        part_line_add(&l, 1, role, "%s/%s %.0f %%", part_count(now, used), part_count(most, all),
            100 * share);
    part_line_add(&l, 4, ROLE_DIM, "%s", settings);
    part_line_add_right(&l, 5, ROLE_DIM, a->is_input_focused ? "Esc transcript" : "i input");
    part_line_add_right(&l, 2, ROLE_DIM, "F1 help");
    part_line_draw(&l, &q);
}

/* --- parts --- */

static void draw_title(app *a, pen *p) {
    part_line l = {.n_left = 0};
    const char *title = session_title(a->chat.open);
    int turns = 0;
    for (int i = 0; i < a->chat.n_views; i++)
        turns += a->chat.views[i].role == SESSION_USER;
    part_line_add(&l, 1, ROLE_STRONG, "session: %.70s", title[0] != '\0' ? title : "(new)");
    if (a->chat.edit_parent >= 0)
        part_line_add_right(&l, 1, ROLE_WARN, "editing: sending makes a branch");
    if (turns > 0) part_line_add_right(&l, 3, ROLE_DIM, "turn %d", turns);
    part_line_draw(&l, p);
}

static void draw_queue(app *a, area box) {
    pen p = pen_on(&a->frame, box);
    for (int i = 0; i < box.n_rows; i++) {
        char line[160];
        size_t n = strcspn(a->chat.queue[i], "\n");
        snprintf(line, sizeof line, "%.*s", (int)(n < 150 ? n : 150), a->chat.queue[i]);
        pen_move(&p, i, 0);
        pen_role(&p, ROLE_INFO);
        pen_printf(&p, "queued %d: ", i + 1);
        pen_role(&p, ROLE_DIM);
        pen_cut(&p, line, pen_left(&p), a->look->glyphs->ellipsis);
    }
}

static void rule(app *a, area box, int row) {
    pen p = pen_on(&a->frame, box);
    pen_move(&p, row, 0);
    pen_role(&p, ROLE_BORDER);
    pen_repeat(&p, a->look->glyphs->horizontal, box.n_columns);
}

static void draw_input(app *a, area box, int *cursor_row, int *cursor_column) {
    pen p = pen_on(&a->frame, box);
    int row = -1, column = 0;
    part_input_draw(a->input, &p, &row, &column);
    if (!a->is_input_focused || a->overlay != OVERLAY_NONE || a->prompt.is_open) return;
    *cursor_row = row;
    *cursor_column = column;
}

static area slice(area box, int row, int n_rows) {
    return (area){box.row + row, box.column, n_rows, box.n_columns};
}

static void draw_prompt(app *a, pen *p, int *cursor_row, int *cursor_column) {
    pen_role(p, ROLE_ACCENT);
    pen_printf(p, "%c", a->prompt.label);
    pen_role(p, ROLE_TEXT);
    pen_str(p, buf_cstr(&a->prompt.text));
    *cursor_row = p->box.row + p->row;
    *cursor_column =
        p->box.column + (p->column < p->box.n_columns ? p->column : p->box.n_columns - 1);
    pen_role(p, ROLE_DIM);
    pen_str(p, "  ");
    pen_cut(p, a->prompt.hint, pen_left(p), a->look->glyphs->ellipsis);
}

/* From 7 rows on all parts are there; below, the input and as much of the transcript as fits. */
static void draw_column(app *a, area box, int *cursor_row, int *cursor_column) {
    int rows = box.n_rows, typed = part_input_rows(a->input, box.n_columns);
    bool has_title = rows >= 12, has_rules = rows >= 9, has_context = rows >= 6,
         has_status = rows >= 3;
    int most = rows * 2 / 5 < 1 ? 1 : rows * 2 / 5;
    if (typed > most) typed = most;
    int queue = rows >= 12 ? (a->chat.n_queue < 3 ? a->chat.n_queue : 3) : 0;
    int foot = typed + queue + (has_status ? 1 : 0) + (has_rules ? 2 : 0) + (has_context ? 1 : 0);
    int transcript = rows - foot - (has_title ? 1 : 0), row = 0;
    if (has_title) {
        pen p = pen_on(&a->frame, slice(box, row++, 1));
        draw_title(a, &p);
    }
    transcript_draw(a, slice(box, row, transcript > 0 ? transcript : 0), !a->is_input_focused);
    row += transcript > 0 ? transcript : 0;
    if (has_status) {
        pen p = pen_on(&a->frame, slice(box, row++, 1));
        if (a->prompt.is_open)
            draw_prompt(a, &p, cursor_row, cursor_column);
        else
            draw_status(a, &p);
    }
    if (queue > 0) draw_queue(a, slice(box, row, queue));
    row += queue;
    if (has_rules) rule(a, box, row++);
    draw_input(a, slice(box, row, typed), cursor_row, cursor_column);
    row += typed;
    if (has_rules) rule(a, box, row++);
    if (has_context) {
        pen p = pen_on(&a->frame, slice(box, row, 1));
        draw_context(a, &p);
    }
}

void screen_chat_draw(app *a, area box, int *cursor_row, int *cursor_column) {
    bool has_panel = a->has_panel && box.n_columns >= PANEL_LEAST_COLUMNS && box.n_rows >= 20;
    area left = box;
    if (has_panel) {
        left.n_columns -= PANEL_COLUMNS + 2;
        area bar = {box.row, box.column + left.n_columns, box.n_rows, 1};
        pen p = pen_on(&a->frame, bar);
        pen_role(&p, ROLE_BORDER);
        for (int i = 0; i < box.n_rows; i++) {
            pen_move(&p, i, 0);
            pen_str(&p, a->look->glyphs->vertical);
        }
        part_side_draw(a, (area){box.row, bar.column + 2, box.n_rows, PANEL_COLUMNS});
    }
    draw_column(a, left, cursor_row, cursor_column);
}

/* --- actions --- */

static chat_message_view *selected(app *a) {
    int i = a->scroll.selected;
    return i >= 0 && i < a->chat.n_views ? &a->chat.views[i] : NULL;
}

static void fold_all(app *a) {
    bool open = true;
    for (int i = 0; i < a->chat.n_views; i++) {
        if (a->chat.views[i].think != NULL && a->chat.views[i].is_think_open) open = false;
    }
    for (int i = 0; i < a->chat.n_views; i++)
        a->chat.views[i].is_think_open = open;
}

static void fold_selected(app *a) {
    chat_message_view *v = selected(a);
    if (v == NULL) return;
    if (v->role == SESSION_SYSTEM || v->role == SESSION_TOOL)
        v->is_folded = !v->is_folded;
    else if (v->think != NULL)
        v->is_think_open = !v->is_think_open;
    else
        v->is_folded = !v->is_folded;
}

static void show_details(app *a) {
    chat_message_view *v = selected(a);
    if (v == NULL) return;
    const session_turn *t = session_turn_at(a->chat.open, v->id);
    buf out = BUF_INIT;
    buf_printf(
        &out, "turn %d, %s, %s\n", v->id, session_role_name(v->role), session_state_name(v->state));
    if (t != NULL && t->settings != NULL) buf_printf(&out, "settings  %s\n", t->settings);
    if (t != NULL && t->stats != NULL) buf_printf(&out, "result    %s\n", t->stats);
    if (v->error[0] != '\0') buf_printf(&out, "error     %s\n", v->error);
    app_show_text(a, "This turn", buf_cstr(&out));
    buf_release(&out);
}

static void edit_selected(app *a) {
    buf text = BUF_INIT;
    err e = ERR_INIT;
    if (chat_edit(&a->chat, a->scroll.selected, &text, &e) != OK)
        app_hint(a, "%s", e.msg);
    else {
        part_input_set(a->input, buf_cstr(&text), text.len);
        a->is_input_focused = true;
    }
    buf_release(&text);
}

static void set_raw(app *a) {
    a->is_raw = !a->is_raw;
    for (int i = 0; i < a->chat.n_views; i++) {
        chat_message_view *v = &a->chat.views[i];
        if (v->role != SESSION_ASSISTANT || v->state == SESSION_WRITING) continue;
        size_t n;
        const char *s = md_source(v->text, &n);
        md *other = md_new(a->is_raw, ROLE_TEXT);
        md_append(other, s, n);
        md_finish(other);
        md_free(v->text);
        v->text = other;
        v->is_laid = false;
    }
}

static void fork_here(app *a) {
    session *copy = NULL;
    err e = ERR_INIT;
    if (session_fork(a->chat.open, a->session_dir, &copy, &e) != OK) {
        app_hint(a, "%s", e.msg);
        return;
    }
    char *name = mem_strdup(session_name(copy));
    session_close(copy);
    app_open_session(a, name);
    mem_free(name);
    app_hint(a, "forked: this is the copy");
}

static void find(app *a, int direction) {
    if (a->search[0] == '\0') return;
    int view = transcript_find(a, direction);
    if (view < 0)
        app_hint(a, "\"%.60s\" was not found", a->search);
    else
        transcript_select(a, view);
}

static void report(app *a, int rc, const err *e) {
    if (rc != OK) app_hint(a, "%s", e->msg);
}

static void scroll_action(app *a, key_action action) {
    int page = a->scroll.n_shown > 1 ? a->scroll.n_shown - 1 : 1;
    switch (action) {
    case ACTION_LINE_DOWN:
    case ACTION_SCROLL_LINE_DOWN:
        transcript_scroll(a, 1);
        break;
    case ACTION_LINE_UP:
    case ACTION_SCROLL_LINE_UP:
        transcript_scroll(a, -1);
        break;
    case ACTION_HALF_DOWN:
        transcript_scroll(a, page / 2);
        break;
    case ACTION_HALF_UP:
        transcript_scroll(a, -page / 2);
        break;
    case ACTION_PAGE_DOWN:
    case ACTION_SCROLL_DOWN:
        transcript_scroll(a, page);
        break;
    case ACTION_PAGE_UP:
    case ACTION_SCROLL_UP:
        transcript_scroll(a, -page);
        break;
    case ACTION_TOP:
        transcript_scroll(a, -a->scroll.n_rows);
        a->scroll.selected = 0;
        break;
    case ACTION_END:
        transcript_to_end(a);
        break;
    case ACTION_NEXT_MESSAGE:
        transcript_select(a, a->scroll.selected + 1);
        break;
    case ACTION_PREVIOUS_MESSAGE:
        transcript_select(a, a->scroll.selected - 1);
        break;
    case ACTION_LEFT:
        a->scroll.skip -= a->scroll.skip >= 8 ? 8 : a->scroll.skip;
        break;
    case ACTION_RIGHT:
        a->scroll.skip += a->scroll.skip < 2000 ? 8 : 0;
        break;
    default:
        break;
    }
}

static void copy_session(app *a) {
    buf out = BUF_INIT;
    err e = ERR_INIT;
    if (session_export(a->chat.open, SESSION_MD, &out, &e) != OK)
        app_hint(a, "%s", e.msg);
    else
        app_copy(a, buf_cstr(&out), out.len, "the session");
    buf_release(&out);
}

/* What changes the branch or asks the engine; false for another action. */
static bool turn_action(app *a, key_action action) {
    err e = ERR_INIT;
    switch (action) {
    case ACTION_EDIT:
        edit_selected(a);
        break;
    case ACTION_AGAIN:
        report(a, chat_again(&a->chat, a->now_ms, &e), &e);
        break;
    case ACTION_CONTINUE:
        report(a, chat_continue(&a->chat, a->now_ms, &e), &e);
        break;
    case ACTION_FORK:
        fork_here(a);
        break;
    case ACTION_OLDER_BRANCH:
        report(a, chat_sibling(&a->chat, a->scroll.selected, -1, &e), &e);
        break;
    case ACTION_NEWER_BRANCH:
        report(a, chat_sibling(&a->chat, a->scroll.selected, 1, &e), &e);
        break;
    default:
        return false;
    }
    return true;
}

void screen_chat_action(app *a, key_action action) {
    chat_message_view *v = selected(a);
    switch (action) {
    case ACTION_TRANSCRIPT:
        a->is_input_focused = false;
        break;
    case ACTION_INPUT:
        a->is_input_focused = true;
        break;
    case ACTION_THINK_ALL:
        fold_all(a);
        break;
    case ACTION_FOLD:
        fold_selected(a);
        break;
    case ACTION_THINK:
        if (v != NULL) v->is_think_open = !v->is_think_open;
        break;
    case ACTION_COPY:
        a->prefix = 'y';
        a->prefix_ms = a->now_ms;
        break;
    case ACTION_COPY_ALL:
        copy_session(a);
        break;
    case ACTION_RAW:
        set_raw(a);
        break;
    case ACTION_DETAILS:
        show_details(a);
        break;
    case ACTION_SEARCH:
        a->prompt.is_open = true;
        a->prompt.label = '/';
        buf_reset(&a->prompt.text);
        a->prompt.hint[0] = '\0';
        break;
    case ACTION_SEARCH_NEXT:
        find(a, 1);
        break;
    case ACTION_SEARCH_PREVIOUS:
        find(a, -1);
        break;
    default:
        if (!turn_action(a, action)) scroll_action(a, action);
        break;
    }
}
