/* P1 to P6: clocks, heat, and what the kernel says about the hardware. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/check_internal.h"

#define CLOCK_PASS_MHZ 1900.0
#define CLOCK_FAIL_MHZ 1200.0
#define LOAD_PERCENT 90.0

/* One csv line of numbers or words from nvidia-smi, cut at the commas. */
static int query(
    check_context *c, int i, const char *what, char *line, size_t cap, char *word[8], err *e) {
    buf option = BUF_INIT;
    int rc = buf_printf(&option, "--query-gpu=%s", what), n = 0;
    const char *argv[] = {"nvidia-smi", buf_cstr(&option), "--format=csv,noheader,nounits", NULL};
    if (rc == OK) rc = check_tool_line(c, i, argv, line, cap, e);
    buf_release(&option);
    if (rc != OK) return 0;
    char *save = NULL;
    for (char *w = strtok_r(line, ",", &save); w != NULL && n < 8; w = strtok_r(NULL, ",", &save))
        word[n++] = w + strspn(w, " ");
    return n;
}

CHECK_RUN(check_p1) {
    char line[200], *w[8];
    double clock = 0, load = 0;
    err e = ERR_INIT;
    int n = query(c, i, "clocks.sm,utilization.gpu", line, sizeof line, w, &e);
    if (n != 2 || parse_double(w[0], &clock) != OK || parse_double(w[1], &load) != OK) {
        check_unknown(r, "The GPU clock", &e);
        return;
    }
    check_value(r, clock);
    if (load < LOAD_PERCENT) {
        check_say(r, CHECK_STATUS_UNKNOWN, "The GPU runs at %.0f MHz, but only %.0f%% busy.", clock,
            load);
        check_remedy(
            r, "The clock means something under load only: check again while the engine answers.");
        return;
    }
    check_status s = clock >= CLOCK_PASS_MHZ  ? CHECK_STATUS_PASS
                     : clock < CLOCK_FAIL_MHZ ? CHECK_STATUS_FAIL
                                              : CHECK_STATUS_WARN;
    check_say(r, s, "The GPU runs at %.0f MHz under %.0f%% load; about 2,000 or more is normal.",
        clock, load);
    if (s != CHECK_STATUS_PASS) {
        check_remedy(r,
            "Shut down, unplug the power for one minute, start again. A restart alone does not "
            "help.");
    }
}

CHECK_RUN(check_p2) {
    static const char *const names[] = {
        "hardware slowdown", "hardware thermal", "power brake", "software thermal", "power cap"};
    char line[300], *w[8];
    err e = ERR_INIT;
    buf active = BUF_INIT;
    int n = query(c, i,
        "clocks_throttle_reasons.hw_slowdown,clocks_throttle_reasons.hw_thermal_slowdown,"
        "clocks_throttle_reasons.hw_power_brake_slowdown,clocks_throttle_reasons.sw_thermal_slowdown,"
        "clocks_throttle_reasons.sw_power_cap",
        line, sizeof line, w, &e);
    bool is_hard = false;
    for (int k = 0; k < n && n == 5; k++) {
        if (!str_eq(w[k], "Active")) continue;
        (void)buf_printf(&active, "%s%s", active.len > 0 ? ", " : "", names[k]);
        is_hard = is_hard || k < 3;
    }
    if (n != 5) {
        check_unknown(r, "The throttle reasons", &e);
    } else if (active.len == 0) {
        check_say(r, CHECK_STATUS_PASS, "Nothing slows the GPU down.");
    } else {
        check_say(r, is_hard ? CHECK_STATUS_FAIL : CHECK_STATUS_WARN, "Slowed by: %s.",
            buf_cstr(&active));
        check_remedy(r,
            "Improve the airflow; a clock limit of 2000 to 2300 MHz (sudo nvidia-smi -lgc "
            "300,2200) cost no speed in reports.");
    }
    buf_release(&active);
}

CHECK_RUN(check_p3) {
    char line[120], *w[8];
    double degrees = 0, load = 0;
    err e = ERR_INIT;
    int n = query(c, i, "temperature.gpu,utilization.gpu", line, sizeof line, w, &e);
    if (n < 1 || parse_double(w[0], &degrees) != OK) {
        check_unknown(r, "The GPU's temperature", &e);
        return;
    }
    bool is_busy = n == 2 && parse_double(w[1], &load) == OK && load > 50;
    check_value(r, degrees);
    check_status s = degrees > 90                    ? CHECK_STATUS_FAIL
                     : degrees < (is_busy ? 80 : 60) ? CHECK_STATUS_PASS
                                                     : CHECK_STATUS_WARN;
    check_say(r, s, "The GPU has %.0f C %s.", degrees, is_busy ? "under load" : "at rest");
    if (s != CHECK_STATUS_PASS) check_remedy(r, "Improve the airflow around this machine.");
}

CHECK_RUN(check_p4) {
    char line[160], *w[8];
    err e = ERR_INIT;
    int n = query(c, i, "clocks.max.sm,clocks.sm", line, sizeof line, w, &e);
    double most = 0;
    if (n != 2 || parse_double(w[0], &most) != OK) {
        check_unknown(r, "The clock limit", &e);
        return;
    }
    check_value(r, most);
    check_say(r, CHECK_STATUS_PASS, "The highest clock is %s MHz, now %s MHz.", w[0], w[1]);
}

CHECK_RUN(check_p5) {
    check_baseline before;
    (void)i;
    bool has =
        c->baseline != NULL && check_baseline_get(c->baseline, "P5", r->node, &before, NULL) == OK;
    check_say(r, CHECK_STATUS_UNKNOWN,
        has ? "A baseline of %.1f is stored; the GPU test was not run."
            : "The GPU test was not run and there is no baseline (%.0f).",
        has ? before.value : 0.0);
    check_remedy(r, "It is measured with the engine: tandem bench decode");
}

typedef struct faults {
    buf text;
    int n;
} faults;

static void look_at_line(faults *f, const char *line) {
    static const char *const marks[] = {"NV_ERR_NO_MEMORY", "NVRM: Xid", "AER: Uncorrectable",
        "AER: Fatal", "severity=Fatal", "mlx5_core: health", "health compromised", "Machine check",
        "mce: [Hardware Error]", "Hardware Error"};
    for (size_t k = 0; k < sizeof marks / sizeof marks[0]; k++) {
        if (strstr(line, marks[k]) == NULL) continue;
        if (f->n++ == 0) (void)buf_printf(&f->text, "%.180s", line);
        return;
    }
}

CHECK_RUN(check_p6) {
    static const char *const journal[] = {
        "journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic", NULL};
    static const char *const dmesg[] = {"dmesg", NULL};
    buf text = BUF_INIT;
    faults f = {BUF_INIT, 0};
    err e = ERR_INIT;
    int code = 0, rc = check_tool(c, i, journal, &text, &code, &e);
    if (rc != OK || code != 0 || text.len == 0) rc = check_tool(c, i, dmesg, &text, &code, &e);
    bool is_read = rc == OK && code == 0 && text.len > 0;
    char *save = NULL;
    for (char *l = is_read ? strtok_r(text.data, "\n", &save) : NULL; l != NULL;
         l = strtok_r(NULL, "\n", &save))
        look_at_line(&f, l);
    if (!is_read) {
        check_unknown(r, "The kernel log", &e);
        check_remedy(r, "The user may not read it; look yourself: sudo dmesg");
    } else if (f.n > 0) {
        check_value(r, f.n);
        check_say(r, CHECK_STATUS_FAIL, "%d fault lines since this boot, first: %s.", f.n,
            buf_cstr(&f.text));
        check_remedy(r, "Keep the log for a report (tandem support), then restart this machine.");
    } else {
        check_say(r, CHECK_STATUS_PASS, "The kernel log of this boot names no fault.");
    }
    buf_release(&text);
    buf_release(&f.text);
}
