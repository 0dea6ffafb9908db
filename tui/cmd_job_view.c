#include "tui/cmd_job_view.h"

#include <math.h>
#include <string.h>

#include "engine/base/str.h"
#include "tui/cmd_internal.h"
#include "tui/width.h"

enum { NAME_COLUMNS = 34, STATE_COLUMNS = 10, BAR_MIN = 6, BAR_MAX = 60, PLOT_LABEL = 14 };

static uint64_t number(const json *v, const char *key) {
    uint64_t n = 0;
    json_u64(json_get(v, key), &n);
    return n;
}

static double real(const json *v, const char *key) {
    double n = 0;
    json_double(json_get(v, key), &n);
    return n;
}

void job_view_sample(job_view *v, const json *status) {
    if (v->n_samples == JOB_VIEW_SAMPLES) {
        memmove(v->samples, v->samples + 1, sizeof v->samples - sizeof v->samples[0]);
        v->n_samples--;
    }
    v->samples[v->n_samples++] = (float)real(status, "rate_now");
}

static void put_bar(const job_view *v, double share, int columns, buf *out) {
    int full = (int)(share * columns);
    buf_putc(out, '[');
    for (int i = 0; i < columns; i++)
        buf_puts(out, i < full ? v->look->glyphs->bar_full : v->look->glyphs->bar_empty);
    buf_putc(out, ']');
}

static double share_of(uint64_t done, uint64_t all) {
    return all == 0 ? 0 : done >= all ? 1 : (double)done / (double)all;
}

static int bar_room(int columns, int others) {
    int room = columns - others;
    return room < BAR_MIN ? BAR_MIN : room > BAR_MAX ? BAR_MAX : room;
}

static void put_total(const job_view *v, const json *s, buf *out) {
    char done[32], total[32], rate[32], minute[32], mean[32], left[32];
    uint64_t all = number(s, "total_bytes"), there = number(s, "done_bytes");
    double share = share_of(there, all), eta = real(s, "eta_s");
    bool is_verifying = str_eq(json_str(json_get(s, "phase")), "verifying");
    const char *profile = json_str(json_get(s, "profile"));
    buf_printf(out, "%s%s%s: %s of %s, verified %llu of %llu files%s\n", v->name,
        profile != NULL ? " of " : "", profile != NULL ? profile : "",
        cmd_bytes_text((double)there, done), cmd_bytes_text((double)all, total),
        (unsigned long long)number(s, "n_ok"), (unsigned long long)number(s, "n_files"),
        is_verifying ? ", reading back" : "");
    put_bar(v, share, bar_room(v->n_columns, 10), out);
    buf_printf(out, " %5.1f %%\n", share * 100);
    buf_printf(out, "now %s/s", cmd_bytes_text(real(s, "rate_now"), rate));
    if (json_get(s, "rate_minute") != NULL)
        buf_printf(out, "  minute %s/s", cmd_bytes_text(real(s, "rate_minute"), minute));
    buf_printf(out, "  mean %s/s  left %s\n", cmd_bytes_text(real(s, "rate_mean"), mean),
        eta > 0 ? cmd_time_text(eta, left) : "-");
}

static void put_trouble(const json *s, buf *out) {
    char text[32];
    const char *reason = json_str(json_get(s, "last_reason"));
    if (json_get(s, "connections") != NULL)
        buf_printf(out, "connections %llu of %llu  free disk %s  tries again %llu\n",
            (unsigned long long)number(s, "busy"), (unsigned long long)number(s, "connections"),
            cmd_bytes_text((double)number(s, "free_bytes"), text),
            (unsigned long long)number(s, "retries"));
    if (number(s, "wait_ms") > 0)
        buf_printf(out, "waiting %llu s on request of the hub\n",
            (unsigned long long)(number(s, "wait_ms") + 999) / 1000);
    if (number(s, "again_bytes") > 0)
        buf_printf(out, "%s again\n", cmd_bytes_text((double)number(s, "again_bytes"), text));
    if (reason != NULL && number(s, "retries") > 0)
        buf_printf(out, "the last reason: %s\n", reason);
}

static void put_plot(job_view *v, buf *out) {
    plot_series s = {v->samples, v->n_samples};
    char top[32];
    int columns = v->n_columns - PLOT_LABEL;
    if (columns < 10 || plot_largest(&s) <= 0) return;
    if (columns > JOB_VIEW_SAMPLES) columns = JOB_VIEW_SAMPLES;
    v->maximum = plot_nice_maximum(plot_largest(&s), v->maximum);
    buf_printf(out, "%-13s", "rate");
    for (int i = v->n_samples - columns; i < v->n_samples; i++) {
        double share = i < 0 || v->maximum <= 0 ? 0 : (double)v->samples[i] / v->maximum;
        int level = share <= 0 ? 0 : (int)ceil(share * 8);
        buf_puts(out, v->look->glyphs->levels[level > 8 ? 8 : level]);
    }
    buf_printf(out, "\n%-13s0 to %s/s, newest at the right\n", "", cmd_bytes_text(v->maximum, top));
}

/* Files in work, then how many wait. */
static void put_files(const job_view *v, const json *s, int room, buf *out) {
    int n_shown = 0, n_more = 0, n_waiting = 0;
    int name = v->n_columns >= 100 ? NAME_COLUMNS + 10 : NAME_COLUMNS;
    JSON_EACH(f, json_get(s, "files")) {
        const char *path = json_str(json_get(f, "path")), *state = json_str(json_get(f, "state"));
        char rate[32];
        double share = share_of(number(f, "done_bytes"), number(f, "size"));
        if (path == NULL || state == NULL || str_eq(state, "ok")) continue;
        n_waiting += str_eq(state, "waiting");
        if (str_eq(state, "waiting")) continue;
        if (n_shown == room - 1) {
            n_more++;
            continue;
        }
        n_shown++;
        buf_printf(out, "%-*.*s %-*.*s", name, name, path, STATE_COLUMNS, STATE_COLUMNS, state);
        put_bar(v, share, bar_room(v->n_columns, name + STATE_COLUMNS + 22), out);
        buf_printf(
            out, " %3.0f %% %s/s\n", floor(share * 100), cmd_bytes_text(real(f, "rate"), rate));
    }
    if (n_more + n_waiting > 0 && room > 0)
        buf_printf(out, "%d files wait or are not shown\n", n_more + n_waiting);
}

/* Cuts each row to the width; control characters never reach the terminal. */
static int cut(const buf *text, int n_columns, int n_rows, buf *out) {
    int n = 0;
    for (const char *s = text->data; n < n_rows && s < text->data + text->len; n++) {
        size_t len = strcspn(s, "\n");
        buf clean = BUF_INIT;
        width_cleaner c;
        int columns = 0;
        width_cleaner_reset(&c);
        if (width_clean(&c, s, len, &clean) == OK) (void)width_clean_end(&c, &clean);
        size_t fit = width_fit(buf_cstr(&clean), clean.len, n_columns - 1, &columns);
        buf_append(out, buf_cstr(&clean), fit);
        buf_putc(out, '\n');
        buf_release(&clean);
        s += len + 1;
    }
    return n;
}

int job_view_rows(job_view *v, const json *s, buf *out) {
    buf text = BUF_INIT, foot = BUF_INIT;
    int n_foot = v->foot != NULL;
    put_total(v, s, &text);
    put_plot(v, &text);
    put_trouble(s, &text);
    int used = 0;
    for (size_t i = 0; i < text.len; i++)
        used += text.data[i] == '\n';
    int room = v->n_rows - 1 - n_foot - used;
    if (room > 0 && v->notes == NULL) put_files(v, s, room, &text);
    if (v->notes != NULL) buf_puts(&text, v->notes);
    (void)buf_cstr(&text);
    int n = cut(&text, v->n_columns, v->n_rows - 1 - n_foot, out);
    if (n_foot) {
        buf_puts(&foot, v->foot);
        buf_putc(&foot, '\n');
        n += cut(&foot, v->n_columns, 1, out);
    }
    buf_release(&text);
    buf_release(&foot);
    return n;
}
