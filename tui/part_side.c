/* The side panel of the Chat screen: speed, the parts of the wait, cache and drafts, the machines.
 */
#include <math.h>
#include <stdio.h>

#include "tui/app_internal.h"
#include "tui/plot.h"

#define PLOT_ROWS 5
#define MAX_SAMPLES 512

static void heading(pen *p, int row, const char *name) {
    pen_move(p, row, 0);
    pen_role(p, ROLE_STRONG);
    pen_str(p, name);
    pen_role(p, ROLE_TEXT);
}

static void text(pen *p, int row, const char *name, const char *value) {
    pen_move(p, row, 2);
    pen_role(p, ROLE_DIM);
    pen_str(p, name);
    pen_move(p, row, 14);
    pen_role(p, ROLE_TEXT);
    pen_str(p, value);
}

/* A value with a unit; "-" when it is not known. */
static void number(pen *p, int row, const char *name, double value, const char *unit) {
    char shown[32] = "-";
    bool is_whole = unit[0] == '%' || unit[0] == 't' || value >= 100;
    if (!isnan(value))
        snprintf(shown, sizeof shown,
            is_whole     ? "%.0f %s"
            : value < 10 ? "%.2f %s"
                         : "%.1f %s",
            value, unit);
    text(p, row, name, shown);
}

static int draw_speed(app *a, pen *p, int row) {
    float samples[MAX_SAMPLES];
    char now[32];
    plot_series s = {samples, gauges_window(&a->gauges.decode, 60, samples, MAX_SAMPLES)};
    heading(p, row, "decode t/s");
    pen_move(p, row++, 20);
    pen_role(p, ROLE_DIM);
    if (isnan(a->gauges.tokens_now))
        snprintf(now, sizeof now, "now -");
    else
        snprintf(now, sizeof now, "now %.1f", a->gauges.tokens_now);
    pen_str(p, now);
    area box = {p->box.row + row, p->box.column, PLOT_ROWS, p->box.n_columns};
    pen plot = pen_on(p->on, box);
    pen_role(&plot, ROLE_PLOT1);
    a->decode_scale = plot_nice_maximum(plot_largest(&s), a->decode_scale);
    plot_columns(&plot, a->look, &s, a->decode_scale);
    return row + PLOT_ROWS + 1;
}

static int draw_reply(app *a, pen *p, int row) {
    const turn_result *r = &a->chat.result;
    bool has = a->chat.sent_ms != 0 && !chat_is_busy(&a->chat);
    double none = (double)NAN;
    heading(p, row++, "last reply");
    number(p, row++, "first token", has && r->first_s >= 0 ? r->first_s : none, "s");
    number(p, row++, "prefill",
        has && r->usage.prompt_ms > 0 && r->usage.prompt_tokens > r->usage.cached_tokens
            ? (double)(r->usage.prompt_tokens - r->usage.cached_tokens) * 1000 / r->usage.prompt_ms
            : none,
        "t/s");
    number(p, row++, "decode",
        has && r->usage.predicted_per_second > 0 ? r->usage.predicted_per_second : none, "t/s");
    number(p, row++, "drafts",
        has && r->usage.draft_n > 0
            ? 100.0 * (double)r->usage.draft_n_accepted / (double)r->usage.draft_n
            : none,
        "%");
    number(p, row++, "cached",
        has && r->usage.cached_tokens >= 0 ? (double)r->usage.cached_tokens : none, "tokens");
    return row + 1;
}

static int draw_nodes(app *a, pen *p, int row) {
    const gauges *g = &a->gauges;
    for (int i = 0; i < g->n_ranks && row + 4 < p->box.n_rows; i++) {
        const gauges_rank *r = &g->ranks[i];
        char name[16], used[16], own[16];
        snprintf(name, sizeof name, "node %c", 'A' + i);
        heading(p, row++, name);
        text(p, row++, "memory", part_bytes(r->memory_used, used));
        text(p, row++, "engine", part_bytes(r->memory_process, own));
        if (r->has_gpu)
            number(p, row++, "gpu", r->gpu_percent, "%");
        else
            number(p, row++, "cpu", r->cpu_percent, "%");
        number(p, row++, "step", r->step_ms, "ms");
    }
    return row + 1;
}

void part_side_draw(app *a, area box) {
    pen p = pen_on(&a->frame, box);
    int row = draw_speed(a, &p, 0);
    if (row + 6 < box.n_rows) row = draw_reply(a, &p, row);
    if (row + 5 < box.n_rows) draw_nodes(a, &p, row);
}
