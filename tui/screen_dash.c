/* The Dashboard: how fast, how full, how busy; live from the stats stream. */
#include <math.h>
#include <stdio.h>

#include "tui/dash.h"
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

static void draw_foot(app *a, const gauges *g, area box) {
    pen p = pen_on(&a->frame, box);
    part_line l = {.n_left = 0};
    double age = gauges_age(g, a->now_ms);
    part_line_add(&l, 2, ROLE_DIM, "+/- zoom time");
    part_line_add(&l, 4, ROLE_DIM, "p pause");
    if (g->n_ranks > 1) part_line_add(&l, 5, ROLE_DIM, "b nodes");
    part_line_add(&l, 6, ROLE_DIM, "m memory");
    part_line_add(&l, 3, ROLE_DIM, "F1 help");
    if (a->is_paused) part_line_add_right(&l, 1, ROLE_WARN, "PAUSED");
    if (age < 0)
        part_line_add_right(
            &l, 1, ROLE_WARN, "no sample: engine %s", gauges_state_word(a->gauges.state));
    else if (age > 2)
        part_line_add_right(&l, 1, ROLE_WARN, "sampled %.0f s ago", age);
    else if (g->n_ranks > 1 && !isnan(g->ranks[1].age_s))
        part_line_add_right(
            &l, 3, ROLE_DIM, "sampled A %.1f s, B %.1f s ago", age, age + g->ranks[1].age_s);
    part_line_add_right(&l, 2, ROLE_DIM, "window %s", WINDOW_NAMES[window_index(a)]);
    part_line_draw(&l, &p);
}

/* Rows of the boxes below the plots, the alert row included; what does not fit is left out, the
 * nodes last. */
typedef struct dash_rows {
    int plot, kv, node;
} dash_rows;

static dash_rows share_rows(const gauges *g, int rows) {
    dash_rows d = {0};
    int left = rows - 1; /* of alerts */
    if (left >= 6 + 5 + 4) d.node = left >= 22 ? 8 : left >= 8 + 4 + 6 ? 8 : 6;
    if (left - d.node >= 3 + 5) d.kv = dash_kv_rows(g, left - d.node - 4 - 8);
    d.plot = left - d.node - d.kv;
    return d;
}

static void draw_nodes(app *a, const gauges *g, area box) {
    int n = g->n_ranks > 1 ? 2 : 1;
    int one = a->one_node < n ? a->one_node : -1;
    if (n == 1 || one >= 0) {
        dash_node_draw(a, g, box, one >= 0 ? one : 0);
        return;
    }
    int half = box.n_columns / 2;
    dash_node_draw(a, g, (area){box.row, box.column, box.n_rows, half}, 0);
    area right = {box.row, box.column + half, box.n_rows, box.n_columns - half};
    dash_node_draw(a, g, right, 1);
}

/* Decode, prefill where there is room, and the newest reply. */
static void draw_top(app *a, const gauges *g, area box) {
    int reply = box.n_columns >= 70 ? 27 : 0;
    int plots = box.n_columns - reply;
    int half = box.n_columns >= 100 ? plots / 2 : plots;
    draw_decode(a, g, (area){box.row, box.column, box.n_rows, half});
    if (half < plots) {
        draw_prefill(a, g, (area){box.row, box.column + half, box.n_rows, plots - half});
    }
    if (reply > 0) dash_reply_draw(a, g, (area){box.row, box.column + plots, box.n_rows, reply});
}

void screen_dash_draw(app *a, area box) {
    const gauges *g = a->is_paused ? &a->paused : &a->gauges;
    int rows = box.n_rows - 1, at = box.row;
    dash_rows d = share_rows(g, rows);
    draw_top(a, g, (area){at, box.column, d.plot, box.n_columns});
    at += d.plot;
    if (d.kv > 0) dash_kv_draw(a, g, (area){at, box.column, d.kv, box.n_columns});
    at += d.kv;
    if (d.node > 0) draw_nodes(a, g, (area){at, box.column, d.node, box.n_columns});
    at += d.node;
    dash_alert_draw(a, (area){at, box.column, 1, box.n_columns});
    draw_foot(a, g, (area){box.row + rows, box.column, 1, box.n_columns});
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
    case ACTION_NODES:
        a->one_node = a->one_node >= 1 ? -1 : a->one_node + 1;
        break;
    case ACTION_PARTS:
        a->has_parts = !a->has_parts;
        break;
    case ACTION_BACK:
        app_go(a, a->last_screen);
        break;
    default:
        break;
    }
}
