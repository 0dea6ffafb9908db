/* The Home screen: is everything well, and what was I doing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/str.h"
#include "setup/job.h"
#include "tui/app_internal.h"
#include "tui/plot.h"

static void row(pen *p, int i, const char *name, canvas_role role, const char *value) {
    pen_move(p, i, 0);
    pen_role(p, ROLE_DIM);
    pen_str(p, name);
    pen_move(p, i, 9);
    pen_role(p, role);
    pen_cut(p, value, pen_left(p), "...");
}

static canvas_role state_role(engine_state s) {
    if (s == ENGINE_READY) return ROLE_GOOD;
    if (s == ENGINE_FAILED || s == ENGINE_DOWN) return ROLE_BAD;
    return ROLE_WARN;
}

static void describe_state(const app *a, char out[400]) {
    const gauges *g = &a->gauges;
    char time[24];
    part_duration((double)(a->now_ms - g->state_since_ms) / 1000, time);
    switch (g->state) {
    case ENGINE_UNKNOWN:
        snprintf(out, 400, "looking for the engine");
        break;
    case ENGINE_ABSENT:
        snprintf(out, 400, "not running; s starts it");
        break;
    case ENGINE_READY:
        snprintf(out, 400, "READY for %s", part_duration(g->uptime_s, time));
        break;
    case ENGINE_STARTING:
        snprintf(
            out, 400, "starting since %s%s%s", time, g->reason[0] != '\0' ? ": " : "", g->reason);
        break;
    default:
        snprintf(out, 400, "%s since %s%s%s", gauges_state_word(g->state), time,
            g->reason[0] != '\0' ? ": " : "", g->reason);
        break;
    }
}

static void draw_engine(app *a, area box) {
    const gauges *g = &a->gauges;
    char text[400], all[16];
    pen p = part_box(&a->frame, box, a->look, "Engine", g->is_demo ? "DEMO" : NULL);
    if (g->model_id[0] == '\0')
        row(&p, 0, "model", ROLE_DIM, "-");
    else {
        snprintf(text, sizeof text, "%.90s   window %s%s", g->model_id, part_count(g->context, all),
            g->is_demo ? "   built-in demo: small and simple" : "");
        row(&p, 0, "model", ROLE_TEXT, text);
    }
    describe_state(a, text);
    row(&p, 1, "state", state_role(g->state), text);
    snprintf(text, sizeof text, "%.300s", a->chat.last_line[0] != '\0' ? a->chat.last_line : "-");
    row(&p, 2, "last", a->chat.last_line[0] != '\0' ? ROLE_TEXT : ROLE_DIM, text);
    if (a->job_line[0] != '\0')
        row(&p, 3, "job", ROLE_INFO, a->job_line);
    else
        row(&p, 3, "socket", ROLE_DIM, a->socket_path);
}

/* One line about a job that runs; false when it does not. */
static bool describe_job(const char *name, char out[160]) {
    buf text = BUF_INIT;
    json *v = NULL;
    char rate[16], left[24];
    double per_s = 0, eta = -1;
    uint64_t done = 0, all = 0;
    bool is = job_is_running(name) && job_status_read(name, &text, NULL) == OK &&
              json_parse(buf_cstr(&text), text.len, NULL, &v, NULL) == OK;
    if (is) {
        json_u64(json_get(v, "done_bytes"), &done);
        json_u64(json_get(v, "total_bytes"), &all);
        json_double(json_get(v, "rate_now"), &per_s);
        json_double(json_get(v, "eta_s"), &eta);
        snprintf(out, 160, "%s %.0f %%, %s/s, left %s: `tandem %s --attach`", name,
            all > 0 ? 100.0 * (double)done / (double)all : 0, part_bytes(per_s, rate),
            part_duration(eta, left), name);
    }
    json_free(v);
    buf_release(&text);
    return is;
}

void screen_home_tick(app *a) {
    static const char *const NAMES[] = {"download", "copy", "prepare"};
    char line[160] = "";
    if (a->now_ms < a->job_due_ms) return;
    a->job_due_ms = a->now_ms + 1000;
    for (int i = 0; i < 3 && line[0] == '\0'; i++)
        (void)describe_job(NAMES[i], line);
    if (str_eq(line, a->job_line)) return;
    str_copy(a->job_line, sizeof a->job_line, line);
    a->is_dirty = true;
}

static void meter_row(app *a, pen *p, int i, const char *name, double used, double all) {
    char u[16], t[16];
    pen_move(p, i, 0);
    pen_role(p, ROLE_DIM);
    pen_str(p, name);
    pen_move(p, i, 9);
    pen_role(p, ROLE_PLOT2);
    plot_meter(p, a->look, all > 0 ? used / all : (double)NAN, 12);
    pen_role(p, ROLE_TEXT);
    pen_printf(p, " %s of %s", part_bytes(used, u), part_bytes(all, t));
}

static void draw_node(app *a, area box, int i) {
    const gauges *g = &a->gauges;
    char title[32], text[96], bytes[16];
    snprintf(title, sizeof title, i == 0 ? "A  head (this end)" : "%c  worker", 'A' + i);
    pen p = part_box(&a->frame, box, a->look, title, NULL);
    if (i >= g->n_ranks) {
        row(&p, 0, "memory", ROLE_DIM, "-  (no sample yet)");
        return;
    }
    const gauges_rank *r = &g->ranks[i];
    double age = gauges_age(g, a->now_ms);
    meter_row(a, &p, 0, "memory", r->memory_used, r->memory_total);
    row(&p, 1, "engine", ROLE_TEXT, part_bytes(r->memory_process, bytes));
    double load = r->has_gpu ? r->gpu_percent : r->cpu_percent;
    if (isnan(load))
        snprintf(text, sizeof text, "-");
    else
        snprintf(text, sizeof text, "%.0f %%", load);
    row(&p, 2, r->has_gpu ? "gpu" : "cpu", ROLE_TEXT, text);
    if (age > 5) {
        snprintf(text, sizeof text, "%.0f s old", age);
        row(&p, 3, "sample", ROLE_WARN, text);
    } else
        row(&p, 3, "sample", ROLE_DIM, "fresh");
}

static void session_row(app *a, pen *p, int line, int i) {
    const session_info *s = &a->sessions[i];
    bool is_selected = i == a->selected_session;
    char clock[16];
    pen_move(p, line, 0);
    pen_role(p, is_selected ? ROLE_ACCENT : ROLE_TEXT);
    pen_str(p, is_selected ? "> " : "  ");
    int tail = p->box.n_columns >= 56 ? 26 : p->box.n_columns >= 40 ? 14 : 0;
    pen_cut(p, s->title[0] != '\0' ? s->title : s->name, p->box.n_columns - 3 - tail,
        a->look->glyphs->ellipsis);
    if (tail == 0) return;
    pen_move(p, line, p->box.n_columns - tail);
    pen_role(p, ROLE_DIM);
    if (s->is_damaged)
        pen_str(p, "damaged");
    else
        pen_printf(p, "%-11s", app_time_of(s->changed_ms, clock));
    if (tail > 14)
        pen_printf(p, " %3d turn%s%s", s->n_turns, s->n_turns == 1 ? " " : "s",
            s->is_locked ? " open" : "");
}

static void draw_sessions(app *a, area box) {
    pen p = part_box(&a->frame, box, a->look, "Recent sessions", NULL);
    int shown = p.box.n_rows, first = 0;
    if (a->n_sessions == 0) {
        pen_role(&p, ROLE_DIM);
        pen_str(&p, "none yet: c begins a chat");
        return;
    }
    if (a->n_sessions > shown) shown--;
    if (a->selected_session >= shown) first = a->selected_session - shown + 1;
    for (int i = 0; i < shown && first + i < a->n_sessions; i++)
        session_row(a, &p, i, first + i);
    if (a->n_sessions <= shown) return;
    pen_move(&p, shown, 2);
    pen_role(&p, ROLE_DIM);
    pen_printf(&p, "(%d more)", a->n_sessions - shown);
}

static void draw_foot(app *a, area box) {
    pen p = pen_on(&a->frame, box);
    part_line l = {.n_left = 0};
    if (a->hint[0] != '\0' && a->now_ms < a->hint_until_ms) {
        pen_role(&p, ROLE_WARN);
        pen_cut(&p, a->hint, pen_left(&p), a->look->glyphs->ellipsis);
        return;
    }
    part_line_add(&l, 1, ROLE_DIM, "Enter open");
    part_line_add(&l, 2, ROLE_DIM, "c new chat");
    part_line_add(&l, 3, ROLE_DIM, "s start");
    part_line_add(&l, 4, ROLE_DIM, "x stop");
    part_line_add(&l, 5, ROLE_DIM, "r restart");
    part_line_add_right(&l, 2, ROLE_DIM, "F1 help");
    part_line_add_right(&l, 3, ROLE_DIM, "F10 leave");
    part_line_draw(&l, &p);
}

/* The most important boxes that fit: engine, sessions, then the machines. */
void screen_home_draw(app *a, area box) {
    int rows = box.n_rows, at = 0, n = a->gauges.n_ranks > 1 ? a->gauges.n_ranks : 1;
    draw_foot(a, (area){box.row + rows - 1, box.column, 1, box.n_columns});
    rows--;
    if (rows >= 18) {
        int half = n > 1 || box.n_columns >= 100 ? box.n_columns / 2 : box.n_columns;
        for (int i = 0; i < n && i < 2; i++) {
            int width = i == 1 ? box.n_columns - half : half;
            draw_node(a, (area){box.row, box.column + i * half, 6, width}, i);
        }
        at = 6;
    }
    if (rows >= 6) {
        draw_engine(a, (area){box.row + at, box.column, 6, box.n_columns});
        at += 6;
    }
    if (rows - at >= 3) {
        draw_sessions(a, (area){box.row + at, box.column, rows - at, box.n_columns});
    } else if (rows < 6) {
        char text[400];
        pen p = pen_on(&a->frame, (area){box.row, box.column, rows, box.n_columns});
        describe_state(a, text);
        pen_role(&p, state_role(a->gauges.state));
        pen_cut(&p, text, pen_left(&p), a->look->glyphs->ellipsis);
    }
}

void screen_home_key(app *a, key_action action) {
    switch (action) {
    case ACTION_LINE_DOWN:
        if (a->selected_session + 1 < a->n_sessions) a->selected_session++;
        break;
    case ACTION_LINE_UP:
        if (a->selected_session > 0) a->selected_session--;
        break;
    case ACTION_OPEN:
        if (a->n_sessions == 0)
            app_open_session(a, NULL);
        else
            app_open_session(a, a->sessions[a->selected_session].name);
        break;
    case ACTION_NEW_CHAT:
        app_open_session(a, NULL);
        break;
    case ACTION_START:
        if (a->gauges.state == ENGINE_READY)
            app_hint(a, "the engine is running already");
        else
            app_start_engine(a, true);
        break;
    case ACTION_STOP_ENGINE:
        app_ask(a, ACTION_STOP_ENGINE,
            "Stop the engine? Replies that are being written end, for all its clients.");
        break;
    case ACTION_RESTART:
        app_ask(a, ACTION_RESTART,
            "Restart the engine? Replies that are being written end, for all its clients.");
        break;
    case ACTION_BACK:
        app_go(a, SCREEN_CHAT);
        break;
    default:
        break;
    }
}
