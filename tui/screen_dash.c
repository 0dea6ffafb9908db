/* The Dashboard: how fast, how full, how busy; live from the stats stream. */
#include <math.h>
#include <stdio.h>

#include "tui/app_internal.h"
#include "tui/plot.h"

#define MAX_SAMPLES 8640

static const int WINDOWS[] = {60, 300, 1800, 21600, 86400};
static const char *const WINDOW_NAMES[] = {"60 s", "5 m", "30 m", "6 h", "24 h"};
#define N_WINDOWS 5

static int window_index(const app *a) {
    for (int i = 0; i < N_WINDOWS; i++) {
        if (WINDOWS[i] == a->window_s) return i;
    }
    return 0;
}

static void value_text(char *out, size_t cap, const char *name, double v, const char *unit) {
    if (isnan(v))
        snprintf(out, cap, "%s -", name);
    else
        snprintf(out, cap, v < 100 ? "%s %.1f%s" : "%s %.0f%s", name, v, unit);
}

/* One plot in a box. Samples are kept on the side because 24 hours are too much for a stack frame.
 */
static void draw_plot(
    app *a, area box, const char *title, const char *note, const gauges_ring *ring, double *scale) {
    static float samples[MAX_SAMPLES];
    pen p = part_box(&a->frame, box, a->look, title, note);
    plot_series s = {samples, gauges_window(ring, a->window_s, samples, MAX_SAMPLES)};
    *scale = plot_nice_maximum(plot_largest(&s), *scale);
    p.box.column--;
    p.box.n_columns++;
    pen_role(&p, ROLE_PLOT1);
    plot_columns(&p, a->look, &s, *scale);
}

static void draw_decode(app *a, const gauges *g, area box) {
    char now[32], minute[32], note[72];
    value_text(now, sizeof now, "now", g->tokens_now, "");
    value_text(minute, sizeof minute, "minute", g->tokens_minute, "");
    snprintf(note, sizeof note, "%s  %s", now, minute);
    draw_plot(a, box, "decode t/s", note, &g->decode, &a->decode_scale);
}

static void draw_prefill(app *a, const gauges *g, area box) {
    char note[40];
    value_text(note, sizeof note, "now", g->prefill_now, "");
    draw_plot(a, box, "prefill t/s", note, &g->prefill, &a->prefill_scale);
}

static void named(pen *p, int row, int column, const char *name, const char *value) {
    pen_move(p, row, column);
    pen_role(p, ROLE_DIM);
    pen_str(p, name);
    pen_move(p, row, column + 10);
    pen_role(p, ROLE_TEXT);
    pen_str(p, value);
}

static void percent(char *out, size_t cap, double share) {
    if (isnan(share))
        snprintf(out, cap, "-");
    else
        snprintf(out, cap, "%.0f %%", 100 * share);
}

static void draw_kv(app *a, const gauges *g, area box) {
    char used[16], all[16], text[64];
    pen p = part_box(&a->frame, box, a->look, "KV and cache", NULL);
    pen_role(&p, ROLE_DIM);
    pen_str(&p, "KV pages  ");
    pen_role(&p, ROLE_PLOT2);
    double share =
        g->kv_used >= 0 && g->kv_total > 0 ? (double)g->kv_used / (double)g->kv_total : (double)NAN;
    int meter = p.box.n_columns - 36 < 8    ? 8
                : p.box.n_columns - 36 > 30 ? 30
                                            : p.box.n_columns - 36;
    plot_meter(&p, a->look, share, meter);
    pen_role(&p, ROLE_TEXT);
    percent(text, sizeof text, share);
    pen_printf(&p, " %s/%s  %s", part_count(g->kv_used, used), part_count(g->kv_total, all), text);
    percent(text, sizeof text, gauges_hit_share(g));
    named(&p, 1, 0, "cache hit", text);
    snprintf(text, sizeof text, "%s of %s tokens", part_count(g->hit_tokens, used),
        part_count(
            g->hit_tokens < 0 || g->miss_tokens < 0 ? -1 : g->hit_tokens + g->miss_tokens, all));
    pen_str(&p, "  ");
    pen_role(&p, ROLE_DIM);
    pen_str(&p, text);
    percent(text, sizeof text, gauges_draft_share(g));
    named(&p, 2, 0, "drafts", text);
    snprintf(text, sizeof text, "  %s of %s accepted", part_count(g->drafts_accepted, used),
        part_count(g->drafts_proposed, all));
    pen_role(&p, ROLE_DIM);
    pen_str(&p, text);
    snprintf(text, sizeof text, "%s running, %s waiting", part_count(g->running, used),
        part_count(g->queued, all));
    named(&p, 3, 0, "requests", text);
    snprintf(text, sizeof text, ", %s done, %s failed", part_count(g->done, used),
        part_count(g->failed, all));
    pen_str(&p, text);
}

static void bar_row(app *a, pen *p, int row, const char *name, double share, const char *text) {
    pen_move(p, row, 0);
    pen_role(p, ROLE_DIM);
    pen_str(p, name);
    pen_move(p, row, 8);
    pen_role(p, ROLE_PLOT2);
    plot_meter(p, a->look, share, 12);
    pen_role(p, ROLE_TEXT);
    pen_printf(p, " %s", text);
}

static void draw_node(app *a, const gauges *g, area box, int i) {
    char title[24], text[64], used[16], all[16], note[24];
    double age = gauges_age(g, a->now_ms);
    snprintf(title, sizeof title, "Node %c", 'A' + i);
    if (age > 5) snprintf(note, sizeof note, "%.0f s old", age);
    pen p = part_box(&a->frame, box, a->look, title, age > 5 ? note : NULL);
    if (i >= g->n_ranks) {
        pen_role(&p, ROLE_DIM);
        pen_str(&p, "- no sample yet");
        return;
    }
    const gauges_rank *r = &g->ranks[i];
    snprintf(text, sizeof text, "%s of %s", part_bytes(r->memory_used, used),
        part_bytes(r->memory_total, all));
    bar_row(a, &p, 0, "machine", r->memory_used / r->memory_total, text);
    bar_row(a, &p, 1, "engine", r->memory_process / r->memory_total,
        part_bytes(r->memory_process, used));
    double load = r->has_gpu ? r->gpu_percent : r->cpu_percent;
    percent(text, sizeof text, load / 100);
    bar_row(a, &p, 2, r->has_gpu ? "gpu" : "cpu", load / 100, text);
    char now[32], p95[32];
    value_text(now, sizeof now, "", r->step_ms, " ms");
    value_text(p95, sizeof p95, "p95", r->step_ms_p95, " ms");
    snprintf(text, sizeof text, "%s   %s", now, p95);
    pen_move(&p, 3, 0);
    pen_role(&p, ROLE_DIM);
    pen_str(&p, "step");
    pen_move(&p, 3, 8);
    pen_role(&p, ROLE_TEXT);
    pen_str(&p, text[0] == ' ' ? text + 1 : text);
    float samples[64];
    plot_series s = {samples, gauges_window(&g->load[i], 60, samples, 64)};
    if (p.box.n_rows < 5) return;
    pen_move(&p, 4, 0);
    pen_role(&p, ROLE_DIM);
    pen_str(&p, "load");
    pen_move(&p, 4, 8);
    pen_role(&p, ROLE_PLOT3);
    plot_sparkline(&p, a->look, &s, plot_largest(&s) > 100 ? plot_largest(&s) : 100,
        p.box.n_columns - 8 > 40 ? 40 : p.box.n_columns - 8);
}

static void draw_foot(app *a, const gauges *g, area box) {
    pen p = pen_on(&a->frame, box);
    part_line l = {.n_left = 0};
    double age = gauges_age(g, a->now_ms);
    part_line_add(&l, 2, ROLE_DIM, "+/- zoom time");
    part_line_add(&l, 4, ROLE_DIM, "p pause");
    part_line_add(&l, 3, ROLE_DIM, "F1 help");
    if (a->is_paused) part_line_add_right(&l, 1, ROLE_WARN, "PAUSED");
    if (age < 0)
        part_line_add_right(
            &l, 1, ROLE_WARN, "no sample: engine %s", gauges_state_word(a->gauges.state));
    else if (age > 2)
        part_line_add_right(&l, 1, ROLE_WARN, "sampled %.0f s ago", age);
    part_line_add_right(&l, 2, ROLE_DIM, "window %s", WINDOW_NAMES[window_index(a)]);
    part_line_draw(&l, &p);
}

void screen_dash_draw(app *a, area box) {
    const gauges *g = a->is_paused ? &a->paused : &a->gauges;
    int rows = box.n_rows - 1, n = g->n_ranks > 1 ? 2 : 1, at = 0;
    bool is_wide = box.n_columns >= 100;
    draw_foot(a, g, (area){box.row + rows, box.column, 1, box.n_columns});
    int node = rows >= 22 ? 7 : 6;
    int boxes = rows >= 18 ? 6 + node : rows >= 12 ? 6 : 0;
    int plot = rows - boxes;
    int half = is_wide ? box.n_columns / 2 : box.n_columns;
    draw_decode(a, g, (area){box.row, box.column, plot, half});
    if (is_wide) draw_prefill(a, g, (area){box.row, box.column + half, plot, box.n_columns - half});
    at = plot;
    if (boxes >= 6) {
        draw_kv(a, g, (area){box.row + at, box.column, 6, box.n_columns});
        at += 6;
    }
    for (int i = 0; i < n && boxes > 6; i++) {
        int width = n == 2 ? box.n_columns / 2 : box.n_columns;
        draw_node(a, g, (area){box.row + at, box.column + i * width, node, width}, i);
    }
}

void screen_dash_key(app *a, key_action action) {
    int i = window_index(a);
    switch (action) {
    case ACTION_ZOOM_IN:
        a->window_s = WINDOWS[i > 0 ? i - 1 : 0];
        break;
    case ACTION_ZOOM_OUT:
        a->window_s = WINDOWS[i + 1 < N_WINDOWS ? i + 1 : i];
        break;
    case ACTION_ZOOM_RESET:
        a->window_s = WINDOWS[0];
        break;
    case ACTION_PAUSE:
        a->is_paused = !a->is_paused;
        if (a->is_paused) a->paused = a->gauges;
        break;
    case ACTION_BACK:
        app_go(a, a->last_screen);
        break;
    default:
        break;
    }
}
