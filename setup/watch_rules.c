/* The rules of the watchdog. */
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "setup/watch.h"

enum { STALL_S = 300, PROBE_S = 600, BUDGET = 3, WINDOW_S = 6 * 3600 };

const char *watch_action_name(watch_action a) {
    static const char *const names[WATCH_ACTIONS] = {
        "fine", "stands down", "counts", "heals", "gives up", "probes"};
    return a >= 0 && a < WATCH_ACTIONS ? names[a] : "unknown";
}

void watch_rules_of(const settings *s, watch_rules *out) {
    *out = (watch_rules){.fails = settings_int(s, "WATCH_FAILS"),
        .min_heal_s = settings_int(s, "WATCH_MIN_HEAL"),
        .fail_fast_heal_s = settings_int(s, "WATCH_FF_MIN_HEAL"),
        .grace_s = settings_int(s, "WATCH_GRACE"),
        .stall_s = STALL_S,
        .probe_s = PROBE_S,
        .budget = BUDGET,
        .window_s = WINDOW_S};
}

static int count_recent(const uint64_t *times, int n, uint64_t now_ms, int64_t window_s) {
    int count = 0;
    for (int i = 0; i < n; i++)
        count += times[i] <= now_ms && now_ms - times[i] < (uint64_t)window_s * 1000;
    return count;
}

static uint64_t newest(const uint64_t *times, int n) {
    uint64_t best = 0;
    for (int i = 0; i < n; i++)
        best = times[i] > best ? times[i] : best;
    return best;
}

static bool is_within(uint64_t now_ms, uint64_t since_ms, int64_t seconds) {
    return since_ms != 0 && since_ms <= now_ms && now_ms - since_ms < (uint64_t)seconds * 1000;
}

static bool is_up(pair_state s) {
    return s == PAIR_READY || s == PAIR_SERVING;
}

/* When nothing may be judged. */
static bool stands_down(const watch_rules *r, const watch_facts *f, char why[400]) {
    if (f->now_ms < f->lease_until_ms) {
        snprintf(why, 400, "maintenance: nothing is judged for another %llu s",
            (unsigned long long)((f->lease_until_ms - f->now_ms) / 1000 + 1));
    } else if (f->is_held || f->state == PAIR_STARTING || f->state == PAIR_STOPPING) {
        snprintf(why, 400, "a start or stop is under way");
    } else if (f->is_marked_stopped && !is_up(f->state)) {
        snprintf(why, 400, "the pair was stopped on purpose");
    } else if (f->state == PAIR_ABSENT || f->state == PAIR_CONFIGURED ||
               f->state == PAIR_DATA_PARTIAL || f->state == PAIR_DATA_READY ||
               f->state == PAIR_PREPARED) {
        snprintf(why, 400, "the pair has not been started yet");
    } else if (is_within(f->now_ms, f->ready_ms, r->grace_s) && !f->is_fail_fast) {
        snprintf(why, 400, "the last start is less than %lld s ago", (long long)r->grace_s);
    } else {
        return false;
    }
    return true;
}

/* What is wrong; false: nothing. */
static bool is_bad(const watch_rules *r, const watch_facts *f, watch_memory *m, char why[400]) {
    if (!is_up(f->state)) {
        snprintf(why, 400, "the pair is %s%s%.300s", pair_state_name(f->state),
            f->reason[0] != '\0' ? ": " : "", f->reason);
        return true;
    }
    if (!f->does_answer) {
        snprintf(why, 400, "the pair runs, but the engine says that it is not ready");
        return true;
    }
    if (f->has_probe && !f->has_probe_passed) {
        snprintf(why, 400, "the engine answers, but does not write a few tokens");
        return true;
    }
    if (!f->is_busy || f->progress != m->progress || m->progress_ms == 0) {
        m->progress = f->progress;
        m->progress_ms = f->now_ms;
        return false;
    }
    if (is_within(f->now_ms, m->progress_ms, r->stall_s)) return false;
    snprintf(
        why, 400, "requests are in hand and nothing has moved for %lld s", (long long)r->stall_s);
    return true;
}

static void note_heal(watch_memory *m, uint64_t now_ms) {
    if (m->n_heals == WATCH_HEALS_MAX)
        memmove(m->heals_ms, m->heals_ms + 1, (size_t)--m->n_heals * sizeof m->heals_ms[0]);
    m->heals_ms[m->n_heals++] = now_ms;
    m->n_bad = 0;
    m->progress_ms = 0;
}

static watch_action judge_bad(
    const watch_rules *r, const watch_facts *f, watch_memory *m, char why[400]) {
    char what[400];
    str_copy(what, sizeof what, why);
    uint64_t last = newest(m->heals_ms, m->n_heals);
    int n = count_recent(m->heals_ms, m->n_heals, f->now_ms, r->window_s) +
            count_recent(f->heals_ms, f->n_heals, f->now_ms, r->window_s);
    m->n_bad++;
    if (f->is_refusal) {
        snprintf(
            why, 400, "a new start would be refused again; a person has to look: %.280s", what);
        return WATCH_GIVES_UP;
    }
    if (n >= r->budget) {
        snprintf(why, 400, "%d new starts within %lld h did not help; it stays as it is: %.250s", n,
            (long long)r->window_s / 3600, what);
        return WATCH_GIVES_UP;
    }
    int64_t wait_s = f->is_fail_fast ? r->fail_fast_heal_s : r->min_heal_s;
    int64_t needed = f->is_fail_fast ? 1 : r->fails;
    if (m->n_bad < needed) {
        snprintf(why, 400, "bad look %d of %lld: %.300s", m->n_bad, (long long)needed, what);
        return WATCH_COUNTS;
    }
    if (is_within(f->now_ms, last, wait_s)) {
        snprintf(why, 400, "the last new start by itself is less than %lld s ago: %.280s",
            (long long)wait_s, what);
        return WATCH_COUNTS;
    }
    note_heal(m, f->now_ms);
    return WATCH_HEALS;
}

watch_action watch_decide(
    const watch_rules *r, const watch_facts *f, watch_memory *m, char why[400]) {
    why[0] = '\0';
    if (stands_down(r, f, why)) {
        m->n_bad = 0;
        return WATCH_STANDS_DOWN;
    }
    if (is_bad(r, f, m, why)) return judge_bad(r, f, m, why);
    m->n_bad = 0;
    m->has_given_up = false;
    bool is_probe_due =
        !f->is_busy && !f->has_probe && !is_within(f->now_ms, m->probe_ms, r->probe_s);
    if (f->has_probe) m->probe_ms = f->now_ms;
    snprintf(why, 400, is_probe_due ? "idle: a few tokens are asked for" : "the pair answers");
    return is_probe_due ? WATCH_PROBES : WATCH_FINE;
}
