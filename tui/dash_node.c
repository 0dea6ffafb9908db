/* One node's box on the Dashboard: the rows that there is room for, the most telling first. */
#include <math.h>
#include <stdio.h>

#include "engine/base/str.h"
#include "tui/dash.h"
#include "tui/plot.h"

#define METER 12

static void row_name(pen *p, int row, const char *name) {
    pen_move(p, row, 0);
    pen_role(p, ROLE_DIM);
    pen_str(p, name);
    pen_move(p, row, 8);
    pen_role(p, ROLE_TEXT);
}

static void row_text(pen *p, int row, const char *name, const char *text) {
    row_name(p, row, name);
    pen_str(p, text);
}

static void row_meter(app *a, pen *p, int row, const char *name, double share, const char *text) {
    row_name(p, row, name);
    pen_role(p, ROLE_PLOT2);
    plot_meter(p, a->look, share, METER);
    pen_role(p, ROLE_TEXT);
    pen_printf(p, " %s", text);
}

/* "-" or the value with its unit. */
static const char *value(char out[24], double v, const char *unit) {
    if (isnan(v)) {
        snprintf(out, 24, "-");
    } else {
        snprintf(out, 24, v < 100 && v != floor(v) ? "%.1f%s" : "%.0f%s", v, unit);
    }
    return out;
}

static const char *share_text(char out[24], double share) {
    return value(out, isnan(share) ? share : floor(100 * share + 0.5), " %");
}

/* ---- rows ---- */

typedef struct node_rows {
    app *a;
    pen *p;
    const gauges *g;
    const gauges_rank *r;
    int i_rank, row;
} node_rows;

static void put_memory(node_rows *n) {
    char text[48], used[16], share[24];
    double part = n->r->memory_used / n->r->memory_total;
    snprintf(
        text, sizeof text, "%s %s", part_bytes(n->r->memory_used, used), share_text(share, part));
    row_meter(n->a, n->p, n->row++, "mem", part, text);
}

static void put_engine(node_rows *n) {
    char used[16];
    row_meter(n->a, n->p, n->row++, "engine", n->r->memory_process / n->r->memory_total,
        part_bytes(n->r->memory_process, used));
}

static void put_load(node_rows *n) {
    char text[48], share[24], mhz[24];
    bool has_gpu = n->r->has_gpu;
    double load = (has_gpu ? n->r->gpu_percent : n->r->cpu_percent) / 100;
    if (has_gpu) {
        snprintf(
            text, sizeof text, "%s %s", share_text(share, load), value(mhz, n->r->gpu_mhz, " MHz"));
    } else {
        snprintf(text, sizeof text, "%s", share_text(share, load));
    }
    row_meter(n->a, n->p, n->row++, has_gpu ? "gpu" : "cpu", load, text);
}

static void put_heat(node_rows *n) {
    char text[64], celsius[24], watt[24];
    if (!n->r->has_gpu) return;
    snprintf(text, sizeof text, "%s  %s%s", value(celsius, n->r->gpu_celsius, " C"),
        value(watt, n->r->gpu_watt, " W"), n->r->is_throttled ? "  throttled" : "");
    row_text(n->p, n->row++, "heat", text);
}

static void put_step(node_rows *n) {
    char text[64], mean[24], p95[24];
    snprintf(text, sizeof text, "%s  p95 %s", value(mean, n->r->step_ms, " ms"),
        value(p95, n->r->step_ms_p95, " ms"));
    row_text(n->p, n->row++, "step", text);
}

/* RDMA or TCP between the ranks; waiting is the share of the time spent for the other. */
static void put_link(node_rows *n) {
    char text[64], bytes[16], share[24];
    if (n->g->n_ranks < 2) return;
    snprintf(text, sizeof text, "%s/s  wait %s", part_bytes(n->r->link_per_s, bytes),
        share_text(share, n->r->exchange_share));
    row_text(n->p, n->row++, "link", isnan(n->r->link_per_s) ? "-" : text);
}

static void put_past(node_rows *n) {
    float samples[64];
    plot_series s = {samples, gauges_window(&n->g->load[n->i_rank], 60, samples, 64)};
    double most = plot_largest(&s);
    int columns = n->p->box.n_columns - 8;
    row_name(n->p, n->row++, "load");
    pen_role(n->p, ROLE_PLOT3);
    plot_sparkline(n->p, n->a->look, &s, most > 100 ? most : 100, columns > 40 ? 40 : columns);
}

static void put_part(node_rows *n, const char *name, double bytes) {
    char text[16];
    row_meter(n->a, n->p, n->row++, name, bytes / n->r->memory_total, part_bytes(bytes, text));
}

static void put_parts(node_rows *n) {
    memory_view v;
    char text[64];
    memory_view_of(n->r, &v);
    if (isnan(v.available_gib)) {
        row_text(n->p, n->row++, "free", "-");
    } else {
        snprintf(text, sizeof text, "%.1f of %.1f GiB, %s", v.available_gib, v.total_gib, v.label);
        row_text(n->p, n->row++, "free", text);
    }
    put_part(n, "weights", n->r->memory_weights);
    put_part(n, "cache", n->r->memory_cache);
    put_part(n, "work", n->r->memory_work);
    put_part(n, "engram", n->r->memory_engram);
    put_engine(n);
}

/* ---- the box ---- */

/* "A up", with the age when the sample is old. */
static void make_note(const node_rows *n, char *note, size_t cap) {
    double age = gauges_age(n->g, n->a->now_ms);
    if (age > 5) {
        snprintf(note, cap, "%.0f s old", age);
    } else {
        snprintf(note, cap, "%s", n->r->state);
    }
}

void dash_node_draw(app *a, const gauges *g, area box, int i_rank) {
    static void (*const rows[])(node_rows *) = {
        put_memory, put_load, put_heat, put_step, put_link, put_engine, put_past};
    char title[24], note[24] = "";
    node_rows n = {.a = a, .g = g, .i_rank = i_rank};
    bool is_known = i_rank < g->n_ranks;
    if (is_known) {
        n.r = &g->ranks[i_rank];
        make_note(&n, note, sizeof note);
    }
    snprintf(title, sizeof title, "Node %c", 'A' + i_rank);
    pen p = part_box(&a->frame, box, a->look, title, note[0] != '\0' ? note : NULL);
    n.p = &p;
    if (!is_known) {
        pen_role(&p, ROLE_DIM);
        pen_str(&p, "- no sample yet");
    } else if (a->has_parts) {
        put_parts(&n);
    } else {
        for (size_t i = 0; i < sizeof rows / sizeof rows[0] && n.row < p.box.n_rows; i++) {
            rows[i](&n);
        }
    }
}
