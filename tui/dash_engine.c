/* What the engine does, on the Dashboard: the newest reply, KV pages and caches, alerts. */
#include <math.h>
#include <stdio.h>

#include "tui/dash.h"
#include "tui/plot.h"

static void percent(char out[16], double share) {
    if (isnan(share)) {
        snprintf(out, 16, "-");
    } else {
        snprintf(out, 16, "%.0f %%", 100 * share);
    }
}

static double share_of(int64_t part, int64_t whole) {
    return part >= 0 && whole > 0 ? (double)part / (double)whole : (double)NAN;
}

static void named(pen *p, int row, const char *name, const char *value) {
    pen_move(p, row, 0);
    pen_role(p, ROLE_DIM);
    pen_str(p, name);
    pen_move(p, row, 12);
    pen_role(p, ROLE_TEXT);
    pen_str(p, value);
}

/* ---- the newest reply ---- */

static void rate(char out[24], double v) {
    if (isnan(v)) {
        snprintf(out, 24, "-");
    } else {
        snprintf(out, 24, v < 100 ? "%.1f t/s" : "%.0f t/s", v);
    }
}

void dash_reply_draw(app *a, const gauges *g, area box) {
    const gauges_reply *r = &g->reply;
    char text[48], share[16], used[16], all[16];
    pen p = part_box(&a->frame, box, a->look, "last reply", NULL);
    if (isnan(r->first_token_ms)) {
        pen_role(&p, ROLE_DIM);
        pen_str(&p, "- none yet");
    } else {
        named(&p, 0, "first token", part_duration(r->first_token_ms / 1e3, text));
        rate(text, r->prefill_per_s);
        named(&p, 1, "prefill", text);
        rate(text, r->tokens_per_s);
        named(&p, 2, "decode", text);
        percent(share, share_of(r->accepted, r->drafted));
        named(&p, 3, "drafts", share);
        percent(share, share_of(r->cached, r->prompt));
        named(&p, 4, "cache hit", share);
    }
    snprintf(text, sizeof text, "%s, queue %s", part_count(g->running, used),
        part_count(g->queued, all));
    if (p.box.n_rows > 5) named(&p, 5, "running", text);
}

/* ---- KV and caches ---- */

/* "A [" and "]", and the words of the longest numbers behind the meter. */
#define KV_TEXT_COLUMNS 46

int dash_kv_rows(const gauges *g, int n_free) {
    int nodes = g->n_ranks > 1 ? 2 : 1;
    int more = n_free < 0 ? 0 : n_free > 3 ? 3 : n_free;
    return nodes + more + 2;
}

/* So many pages, as bytes of the node where these are known. */
static void put_pages(pen *p, const gauges *g, int64_t n, double node_bytes, const char *behind) {
    char text[16];
    if (isnan(node_bytes)) {
        pen_printf(p, "%s%s", part_count(n, text), behind);
    } else {
        double bytes = n >= 0 ? node_bytes * share_of(n, g->kv_total) : (double)NAN;
        pen_printf(p, "%s%s", part_bytes(bytes, text), behind);
    }
}

/* Every node holds the same pages: the bytes are its own. What streams use, and behind it what only
 * the prefix cache keeps, which gives way when streams need it. */
static void kv_row(app *a, pen *p, const gauges *g, int i_rank) {
    char used[16], kept[16];
    double bytes = i_rank < g->n_ranks ? g->ranks[i_rank].memory_cache : (double)NAN;
    double part = share_of(g->kv_used, g->kv_total), more = share_of(g->kv_kept, g->kv_total);
    int columns = p->box.n_columns - KV_TEXT_COLUMNS;
    pen_move(p, i_rank, 0);
    pen_role(p, ROLE_DIM);
    pen_printf(p, "%c ", 'A' + i_rank);
    pen_role(p, ROLE_PLOT2);
    plot_meter_two(p, a->look, part, more, columns < 8 ? 8 : columns > 40 ? 40 : columns);
    pen_role(p, ROLE_TEXT);
    pen_str(p, "  ");
    put_pages(p, g, g->kv_used, bytes, " used, ");
    put_pages(p, g, g->kv_kept, bytes, " kept of ");
    put_pages(p, g, g->kv_total, bytes, isnan(bytes) ? " pages" : "");
    if (pen_left(p) < 16) return;
    percent(used, part);
    percent(kept, more);
    pen_printf(p, "  %s + %s", used, kept);
}

static void cache_row(pen *p, const gauges *g, int row) {
    char text[96], share[16], hit[16], disk[16], bytes[16];
    percent(share, gauges_hit_share(g));
    snprintf(text, sizeof text, "hit %s, %s tokens, %s from disk", share,
        part_count(g->hit_tokens, hit), part_count(g->disk_hit_tokens, disk));
    named(p, row, "cache", text);
    if (isnan(g->disk_bytes)) return;
    pen_role(p, ROLE_DIM);
    pen_printf(p, "; disk %s", part_bytes(g->disk_bytes, bytes));
}

/* Kept of those verified, then by place in the block. */
static void draft_row(pen *p, const gauges *g, int row) {
    char share[16];
    percent(share, gauges_draft_share(g));
    named(p, row, "drafts", share);
    pen_role(p, ROLE_DIM);
    for (int i = 0; i < g->n_positions; i++) {
        percent(share, share_of(g->accepted_at[i], g->proposed_at[i]));
        pen_printf(p, "%s%d: %s", i == 0 ? "   by place  " : "  ", i + 1, share);
    }
}

static void request_row(pen *p, const gauges *g, int row) {
    char text[96], n[4][16];
    snprintf(text, sizeof text, "%s running, %s waiting, %s done, %s failed",
        part_count(g->running, n[0]), part_count(g->queued, n[1]), part_count(g->done, n[2]),
        part_count(g->failed, n[3]));
    named(p, row, "requests", text);
}

void dash_kv_draw(app *a, const gauges *g, area box) {
    pen p = part_box(&a->frame, box, a->look, "KV cache", NULL);
    int nodes = g->n_ranks > 1 ? 2 : 1;
    for (int i = 0; i < nodes && i < p.box.n_rows; i++) {
        kv_row(a, &p, g, i);
    }
    static void (*const more[])(pen *, const gauges *, int) = {draft_row, cache_row, request_row};
    for (int i = 0; i < 3 && nodes + i < p.box.n_rows; i++) {
        more[i](&p, g, nodes + i);
    }
}

/* ---- alerts ---- */

void dash_alert_draw(app *a, area row) {
    const alert *first = alerts_first(&a->alerts);
    pen p = pen_on(&a->frame, row);
    if (first == NULL) {
        pen_role(&p, ROLE_DIM);
        pen_str(&p, "no alerts");
        return;
    }
    pen_role(&p, first->level == ALERT_CRITICAL ? ROLE_BAD : ROLE_WARN);
    if (first->rank >= 0) {
        pen_printf(&p, "! %c: %s", 'A' + first->rank, first->text);
    } else {
        pen_printf(&p, "! %s", first->text);
    }
    pen_role(&p, ROLE_DIM);
    pen_printf(&p, " - %s", first->action);
    if (a->alerts.n > 1) pen_printf(&p, " (%d alerts)", a->alerts.n);
}
