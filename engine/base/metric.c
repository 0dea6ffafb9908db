#include "engine/base/metric.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

typedef enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM } metric_kind;

typedef struct family {
    char *name;
    char *help;
    metric_kind kind;
    size_t n_bounds;
    double bounds[METRIC_MAX_BUCKETS];
    metric *first;
    metric *last;
    struct family *next;
} family;

struct metric {
    const family *of;
    char *labels; /* "" for none */
    metric *next;
    _Atomic uint64_t bits; /* a double; NaN while unknown */
    _Atomic uint64_t time_ms;
    _Atomic uint64_t buckets[METRIC_MAX_BUCKETS + 1]; /* not cumulative; the last is the rest */
};

struct metrics {
    pthread_mutex_t lock; /* guards the lists; the values are atomic */
    char *prefix;
    family *first;
    family *last;
    size_t n_series;
};

static const double seconds[] = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
const metric_bounds METRIC_SECONDS = {seconds, sizeof seconds / sizeof seconds[0]};

static uint64_t to_bits(double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static double from_bits(uint64_t bits) {
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

metrics *metrics_new(const char *prefix) {
    metrics *m = mem_alloc(sizeof *m);
    CHECK(pthread_mutex_init(&m->lock, NULL) == 0);
    m->prefix = mem_strdup(prefix);
    return m;
}

static void family_free(family *f) {
    metric *next;
    for (metric *v = f->first; v != NULL; v = next) {
        next = v->next;
        mem_free(v->labels);
        mem_free(v);
    }
    mem_free(f->name);
    mem_free(f->help);
    mem_free(f);
}

void metrics_free(metrics *m) {
    if (m == NULL) return;
    family *next;
    for (family *f = m->first; f != NULL; f = next) {
        next = f->next;
        family_free(f);
    }
    (void)pthread_mutex_destroy(&m->lock);
    mem_free(m->prefix);
    mem_free(m);
}

static family *family_of_locked(metrics *m, metric_kind kind, const char *name, const char *help) {
    for (family *f = m->first; f != NULL; f = f->next) {
        if (strcmp(f->name, name) != 0) continue;
        CHECK_MSG(f->kind == kind, "metric %s has two kinds", name);
        return f;
    }
    family *f = mem_alloc(sizeof *f);
    f->kind = kind;
    f->name = mem_strdup(name);
    f->help = mem_strdup(help);
    if (m->last == NULL) {
        m->first = f;
    } else {
        m->last->next = f;
    }
    m->last = f;
    return f;
}

static metric *series_of_locked(metrics *m, family *f, const char *labels) {
    bool is_full = m->n_series >= METRIC_MAX_SERIES;
    /* Label values can come from outside: past the limit they share one series per family. */
    for (int again = 0; again < 2; again++) {
        for (metric *v = f->first; v != NULL; v = v->next) {
            if (strcmp(v->labels, labels) == 0) return v;
        }
        if (!is_full) break;
        labels = "dropped=\"1\"";
    }
    metric *v = mem_alloc(sizeof *v);
    v->of = f;
    v->labels = mem_strdup(labels);
    atomic_store(&v->bits, to_bits(f->kind == METRIC_GAUGE ? (double)NAN : 0.0));
    if (f->last == NULL) {
        f->first = v;
    } else {
        f->last->next = v;
    }
    f->last = v;
    m->n_series++;
    return v;
}

static metric *metric_of(
    metrics *m, metric_kind kind, const char *name, const char *help, const char *labels) {
    pthread_mutex_lock(&m->lock);
    family *f = family_of_locked(m, kind, name, help);
    metric *v = series_of_locked(m, f, labels == NULL ? "" : labels);
    pthread_mutex_unlock(&m->lock);
    return v;
}

metric *metric_counter(metrics *m, const char *name, const char *help, const char *labels) {
    return metric_of(m, METRIC_COUNTER, name, help, labels);
}

metric *metric_gauge(metrics *m, const char *name, const char *help, const char *labels) {
    return metric_of(m, METRIC_GAUGE, name, help, labels);
}

metric *metric_histogram(
    metrics *m, const char *name, const char *help, const char *labels, metric_bounds bounds) {
    CHECK(bounds.n > 0 && bounds.n <= METRIC_MAX_BUCKETS);
    pthread_mutex_lock(&m->lock);
    family *f = family_of_locked(m, METRIC_HISTOGRAM, name, help);
    if (f->n_bounds == 0) {
        f->n_bounds = bounds.n;
        memcpy(f->bounds, bounds.values, bounds.n * sizeof *f->bounds);
    }
    metric *v = series_of_locked(m, f, labels == NULL ? "" : labels);
    pthread_mutex_unlock(&m->lock);
    return v;
}

int metric_label(buf *out, const char *key, const char *value) {
    int rc = buf_printf(out, "%s%s=\"", out->len > 0 ? "," : "", key);
    for (; rc == OK && *value != '\0'; value++) {
        if (*value == '\n') {
            rc = buf_puts(out, "\\n");
        } else {
            if (*value == '"' || *value == '\\') rc = buf_putc(out, '\\');
            if (rc == OK) rc = buf_putc(out, *value);
        }
    }
    return rc == OK ? buf_putc(out, '"') : rc;
}

static void touch(metric *v) {
    atomic_store_explicit(&v->time_ms, clock_wall_ms(), memory_order_relaxed);
}

static void add_to(metric *v, double amount) {
    uint64_t old = atomic_load_explicit(&v->bits, memory_order_relaxed);
    uint64_t new;
    do {
        double value = from_bits(old);
        new = to_bits((isnan(value) ? 0.0 : value) + amount);
    } while (!atomic_compare_exchange_weak(&v->bits, &old, new));
    touch(v);
}

void metric_add(metric *c, double v) {
    CHECK_MSG(c->of->kind == METRIC_COUNTER && v >= 0, "metric %s: add %g", c->of->name, v);
    add_to(c, v);
}

void metric_set(metric *g, double v) {
    CHECK_MSG(g->of->kind == METRIC_GAUGE, "metric %s is no gauge", g->of->name);
    atomic_store(&g->bits, to_bits(isfinite(v) ? v : (double)NAN));
    touch(g);
}

void metric_unset(metric *g) {
    metric_set(g, (double)NAN);
}

void metric_shift(metric *g, double v) {
    CHECK_MSG(g->of->kind == METRIC_GAUGE, "metric %s is no gauge", g->of->name);
    add_to(g, v);
}

void metric_observe(metric *h, double v) {
    const family *f = h->of;
    CHECK_MSG(f->kind == METRIC_HISTOGRAM, "metric %s is no histogram", f->name);
    if (!isfinite(v)) return;
    size_t i = 0;
    while (i < f->n_bounds && v > f->bounds[i])
        i++;
    atomic_fetch_add_explicit(&h->buckets[i], 1, memory_order_relaxed);
    add_to(h, v);
}

static uint64_t count_of(const metric *h, uint64_t counts[METRIC_MAX_BUCKETS + 1]) {
    uint64_t n = 0;
    for (size_t i = 0; i <= h->of->n_bounds; i++) {
        counts[i] = atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
        n += counts[i];
    }
    return n;
}

metric_value metric_read(const metric *v) {
    uint64_t counts[METRIC_MAX_BUCKETS + 1];
    metric_value out = {.value = from_bits(atomic_load(&v->bits)),
        .time_ms = atomic_load_explicit(&v->time_ms, memory_order_relaxed)};
    if (v->of->kind == METRIC_HISTOGRAM) out.n = count_of(v, counts);
    out.is_valid = !isnan(out.value);
    if (!out.is_valid) out.value = 0;
    return out;
}

bool metric_quantile(const metric *h, double q, double *out) {
    const family *f = h->of;
    uint64_t counts[METRIC_MAX_BUCKETS + 1];
    uint64_t n = f->kind == METRIC_HISTOGRAM ? count_of(h, counts) : 0;
    if (n == 0) return false;
    double rank = q * (double)n;
    double below = 0;
    for (size_t i = 0; i < f->n_bounds; i++) {
        double here = (double)counts[i];
        if (below + here >= rank && here > 0) {
            double low = i == 0 ? 0.0 : f->bounds[i - 1];
            *out = low + (f->bounds[i] - low) * (rank > below ? rank - below : 0.0) / here;
            return true;
        }
        below += here;
    }
    *out = f->bounds[f->n_bounds - 1];
    return true;
}

static int print_number(buf *out, double v) {
    char text[40];
    size_t n = print_double(v, text);
    if (n > 2 && strcmp(text + n - 2, ".0") == 0) text[n - 2] = '\0';
    int rc = buf_puts(out, text);
    return rc == OK ? buf_putc(out, '\n') : rc;
}

/* prefix + name + suffix + {labels, le="bound"} and a space */
static int print_name(
    buf *out, const metrics *m, const metric *v, const char *suffix, const char *le) {
    int rc = buf_printf(out, "%s%s%s", m->prefix, v->of->name, suffix);
    bool has_labels = v->labels[0] != '\0';
    if (rc == OK && (has_labels || le != NULL)) {
        rc = buf_printf(out, "{%s%s%s%s%s}", v->labels, has_labels && le != NULL ? "," : "",
            le == NULL ? "" : "le=\"", le == NULL ? "" : le, le == NULL ? "" : "\"");
    }
    return rc == OK ? buf_putc(out, ' ') : rc;
}

static int print_histogram(buf *out, const metrics *m, const metric *v) {
    uint64_t counts[METRIC_MAX_BUCKETS + 1];
    uint64_t n = count_of(v, counts);
    uint64_t below = 0;
    int rc = OK;
    for (size_t i = 0; rc == OK && i <= v->of->n_bounds; i++) {
        char le[40] = "+Inf";
        if (i < v->of->n_bounds) (void)print_double(v->of->bounds[i], le);
        below += counts[i];
        rc = print_name(out, m, v, "_bucket", le);
        if (rc == OK) rc = buf_printf(out, "%llu\n", (unsigned long long)below);
    }
    if (rc == OK) rc = print_name(out, m, v, "_sum", NULL);
    if (rc == OK) rc = print_number(out, metric_read(v).value);
    if (rc == OK) rc = print_name(out, m, v, "_count", NULL);
    return rc == OK ? buf_printf(out, "%llu\n", (unsigned long long)n) : rc;
}

static int print_series(buf *out, const metrics *m, const metric *v) {
    if (v->of->kind == METRIC_HISTOGRAM) return print_histogram(out, m, v);
    metric_value value = metric_read(v);
    if (!value.is_valid) return OK;
    int rc = print_name(out, m, v, "", NULL);
    return rc == OK ? print_number(out, value.value) : rc;
}

int metrics_print(metrics *m, buf *out) {
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    int rc = OK;
    pthread_mutex_lock(&m->lock);
    for (const family *f = m->first; rc == OK && f != NULL; f = f->next) {
        rc = buf_printf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", m->prefix, f->name, f->help,
            m->prefix, f->name, kinds[f->kind]);
        for (const metric *v = f->first; rc == OK && v != NULL; v = v->next) {
            rc = print_series(out, m, v);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}
