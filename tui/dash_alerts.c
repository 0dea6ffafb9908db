#include "tui/dash_alerts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"

#define GIB 1073741824.0
#define HOLD_MS 2000 /* a rule holds for so long before it fires, and clears the same way */
#define SLOW_FACTOR 1.25
#define BUSY_PERCENT 90.0
#define LOW_MHZ 1900.0
#define VERY_LOW_MHZ 1200.0
#define SILENT_S 3.0
#define GONE_S 10.0
#define STANDSTILL_MS 5000
#define DRAFTS_SEEN 200
#define BASE_MIN 16 /* steps that make a baseline */
#define BIG_MACHINE (64.0 * GIB)

void alerts_init(alerts *a) {
    memset(a, 0, sizeof *a);
    a->last_steps = -1;
    for (int i = 0; i < GAUGES_MAX_RANKS; i++) {
        a->steps[i].last_steps = -1.0;
    }
}

const alert *alerts_first(const alerts *a) {
    return a->n > 0 ? &a->list[0] : NULL;
}

/* ---- steps ---- */

void alert_steps_add(alert_steps *s, double ms) {
    if (isnan(ms) || ms <= 0) return;
    s->ms[s->n % ALERT_STEPS] = (float)ms;
    s->n++;
}

/* The median of n values that end skip values before the newest; NAN when there are too few. */
static double median(const alert_steps *s, uint32_t skip, uint32_t n) {
    float sorted[ALERT_STEPS];
    uint32_t kept = s->n < ALERT_STEPS ? s->n : ALERT_STEPS;
    if (kept <= skip) return (double)NAN;
    if (n > kept - skip) n = kept - skip;
    for (uint32_t i = 0; i < n; i++) {
        float v = s->ms[(s->n - 1 - skip - i) % ALERT_STEPS];
        uint32_t j = i;
        for (; j > 0 && sorted[j - 1] > v; j--) {
            sorted[j] = sorted[j - 1];
        }
        sorted[j] = v;
    }
    return n > 0 ? (double)sorted[n / 2] : (double)NAN;
}

/* True if the newest ALERT_SLOW steps are all over the limit. */
static bool are_over(const alert_steps *s, double limit) {
    if (s->n < ALERT_SLOW || isnan(limit)) return false;
    for (uint32_t i = 0; i < ALERT_SLOW; i++) {
        if (!((double)s->ms[(s->n - 1 - i) % ALERT_STEPS] > limit)) return false;
    }
    return true;
}

bool alert_is_slow(const alert_steps *s, const alert_steps *other) {
    double own = s->n >= BASE_MIN + ALERT_SLOW ? median(s, ALERT_SLOW, ALERT_STEPS) : (double)NAN;
    if (are_over(s, own * SLOW_FACTOR)) return true;
    if (other == NULL || other->n < ALERT_SLOW) return false;
    return are_over(s, median(other, 0, ALERT_SLOW) * SLOW_FACTOR);
}

/* ---- one sample ---- */

alert_level alert_low_power(const gauges_rank *r) {
    if (isnan(r->gpu_mhz) || isnan(r->gpu_percent) || !(r->gpu_percent > BUSY_PERCENT))
        return ALERT_NONE;
    if (r->gpu_mhz < VERY_LOW_MHZ) return ALERT_CRITICAL;
    return r->gpu_mhz < LOW_MHZ ? ALERT_WARN : ALERT_NONE;
}

void memory_view_of(const gauges_rank *r, memory_view *out) {
    out->total_gib = r->memory_total / GIB;
    out->available_gib = r->memory_available / GIB;
    out->engine_gib = r->memory_process / GIB;
    out->label = r->has_gpu ? "shared" : "machine";
}

/* 5 and 4 GiB on the machines that this is for, shares of that on small ones. */
static alert_level low_memory(const gauges_rank *r) {
    double unit = r->memory_total >= BIG_MACHINE ? GIB : r->memory_total / 64.0;
    if (isnan(r->memory_available) || isnan(unit)) return ALERT_NONE;
    if (r->memory_available < 4.0 * unit) return ALERT_CRITICAL;
    return r->memory_available < 5.0 * unit ? ALERT_WARN : ALERT_NONE;
}

static alert_level over(double value, double warn, double critical) {
    if (isnan(value) || value < warn) return ALERT_NONE;
    return value < critical ? ALERT_WARN : ALERT_CRITICAL;
}

/* ---- holding ---- */

static struct alert_hold *hold_of(alerts *a, const char *cause, int rank) {
    for (int i = 0; i < a->n_holds; i++) {
        if (a->holds[i].rank == rank && strcmp(a->holds[i].cause, cause) == 0) return &a->holds[i];
    }
    if (a->n_holds == ALERTS_MAX * 2) return NULL;
    struct alert_hold *h = &a->holds[a->n_holds++];
    *h = (struct alert_hold){.cause = cause, .rank = rank};
    return h;
}

static int find(const alerts *a, const char *cause, int rank) {
    for (int i = 0; i < a->n; i++) {
        if (a->list[i].rank == rank && strcmp(a->list[i].cause, cause) == 0) return i;
    }
    return -1;
}

/* The rule says this now; it fires or clears when that has held. */
static void judge(alerts *a, const alert *now, uint64_t now_ms) {
    struct alert_hold *h = hold_of(a, now->cause, now->rank);
    bool is_on = now->level != ALERT_NONE;
    int at = find(a, now->cause, now->rank);
    if (h == NULL) return;
    if (is_on != h->is_on || h->changed_ms == 0) {
        h->is_on = is_on;
        h->changed_ms = now_ms;
    }
    bool has_held = now_ms - h->changed_ms >= HOLD_MS;
    if (is_on && at < 0 && has_held && a->n < ALERTS_MAX) {
        a->list[a->n] = *now;
        a->list[a->n++].since_ms = h->changed_ms;
    } else if (is_on && at >= 0) { /* the value is the newest one */
        uint64_t since = a->list[at].since_ms;
        a->list[at] = *now;
        a->list[at].since_ms = since;
    } else if (!is_on && at >= 0 && has_held) {
        memmove(&a->list[at], &a->list[at + 1], (size_t)(a->n - at - 1) * sizeof a->list[0]);
        a->n--;
    }
}

static void sort(alerts *a) {
    for (int i = 1; i < a->n; i++) {
        alert moved = a->list[i];
        int j = i;
        for (; j > 0 && a->list[j - 1].level < moved.level; j--) {
            a->list[j] = a->list[j - 1];
        }
        a->list[j] = moved;
    }
}

/* ---- all rules ---- */

static void judge_memory(alerts *a, const gauges_rank *r, int rank, uint64_t now_ms) {
    alert m = {.cause = "memory", .rank = rank, .level = low_memory(r)};
    m.action = "end other programs, or restart with a smaller context";
    snprintf(m.text, sizeof m.text, "memory: %.1f GiB available", r->memory_available / GIB);
    judge(a, &m, now_ms);
    alert p = {.cause = "memory_pressure", .rank = rank, .level = over(r->pressure, 1, 10)};
    p.action = "look for the program that grew";
    snprintf(p.text, sizeof p.text, "memory pressure %.1f %%", r->pressure);
    judge(a, &p, now_ms);
}

static void judge_gpu(alerts *a, const gauges_rank *r, int rank, uint64_t now_ms) {
    alert c = {.cause = "low_power_state", .rank = rank, .level = alert_low_power(r)};
    c.action = "check the power supply; unplug it for a minute";
    snprintf(
        c.text, sizeof c.text, "low clock: %.0f MHz at %.0f %% use", r->gpu_mhz, r->gpu_percent);
    judge(a, &c, now_ms);
    alert t = {.cause = "throttled", .rank = rank};
    t.level = r->is_throttled ? ALERT_CRITICAL : ALERT_NONE;
    t.action = "check the air flow";
    snprintf(t.text, sizeof t.text, "slowed down by heat or power at %.0f C", r->gpu_celsius);
    judge(a, &t, now_ms);
}

/* Ranks wait for each other, so a rank's own time is its step without that. */
static void take_step(alert_steps *s, const gauges_rank *r) {
    double own = isnan(r->exchange_ms) ? r->step_ms : r->step_ms - r->exchange_ms;
    if (isnan(r->steps) || r->steps == s->last_steps) return;
    s->last_steps = r->steps;
    alert_steps_add(s, own);
}

static void judge_node(alerts *a, const gauges *g, int rank, uint64_t now_ms) {
    const gauges_rank *r = &g->ranks[rank];
    double age = r->age_s + gauges_age(g, now_ms);
    bool is_lost = str_eq(r->state, "lost") || str_eq(r->state, "failed");
    alert n = {.cause = "node_silent", .rank = rank, .level = over(age, SILENT_S, GONE_S)};
    n.action = "look at its log: tandem logs";
    if (is_lost) n.level = ALERT_CRITICAL;
    snprintf(n.text, sizeof n.text, is_lost ? "is lost" : "silent for %.0f s", age);
    judge(a, &n, now_ms);
    take_step(&a->steps[rank], r);
    const alert_steps *other = g->n_ranks == 2 ? &a->steps[1 - rank] : NULL;
    alert s = {.cause = "slow_node", .rank = rank};
    s.level = alert_is_slow(&a->steps[rank], other) ? ALERT_WARN : ALERT_NONE;
    s.action = "check its clock, heat and other programs";
    snprintf(s.text, sizeof s.text, "slow: %.1f ms a step", r->step_ms);
    judge(a, &s, now_ms);
}

static void judge_engine(alerts *a, const gauges *g, uint64_t now_ms) {
    bool moves = g->running <= 0 || g->steps != a->last_steps || a->moved_ms == 0;
    if (moves) a->moved_ms = now_ms;
    a->last_steps = g->steps;
    alert s = {.cause = "no_progress", .rank = -1};
    s.level = now_ms - a->moved_ms >= STANDSTILL_MS ? ALERT_CRITICAL : ALERT_NONE;
    s.action = "look at the log, or restart: tandem restart";
    snprintf(s.text, sizeof s.text, "no step for %.0f s with %lld running",
        (double)(now_ms - a->moved_ms) / 1e3, (long long)g->running);
    judge(a, &s, now_ms);
    bool is_first = g->drafts_accepted != a->last_accepted || g->drafts_proposed < a->last_proposed;
    if (is_first) {
        a->last_accepted = g->drafts_accepted;
        a->last_proposed = g->drafts_proposed;
    }
    alert d = {.cause = "drafts_fail", .rank = -1};
    d.level = g->drafts_proposed - a->last_proposed >= DRAFTS_SEEN ? ALERT_WARN : ALERT_NONE;
    d.action = "check the model: tandem verify";
    snprintf(d.text, sizeof d.text, "no draft accepted of the last %lld",
        (long long)(g->drafts_proposed - a->last_proposed));
    judge(a, &d, now_ms);
}

void alerts_update(alerts *a, const gauges *g, uint64_t now_ms) {
    if (!g->has_sample) return;
    for (int i = 0; i < g->n_ranks; i++) {
        judge_node(a, g, i, now_ms);
        judge_memory(a, &g->ranks[i], i, now_ms);
        judge_gpu(a, &g->ranks[i], i, now_ms);
    }
    judge_engine(a, g, now_ms);
    sort(a);
}
