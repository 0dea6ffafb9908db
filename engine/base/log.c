#include "engine/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"

#define MAX_SECRETS 32
#define SECRET_MAX 256
#define TRACE_PRIME (((uint64_t)1 << 61) - 1)

/* What is kept of a secret that no line may show: its length and a sum under a random base. The secret
 * itself can be wiped by its holder. */
typedef struct trace {
    size_t len;
    uint64_t sum, first; /* first: the base to the power of len - 1 */
} trace;

static struct {
    pthread_mutex_t lock; /* guards everything below it and keeps lines whole */
    log_options options;
    char node[64];
    trace traces[MAX_SECRETS];
    size_t n_traces;
    uint64_t base;    /* of the sums, random; 0: not chosen yet */
    atomic_int level; /* -1: nothing is written */
} g_log = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = -1};

static _Thread_local char t_request[64];

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_open(const log_options *options) {
    pthread_mutex_lock(&g_log.lock);
    g_log.options = *options;
    (void)str_copy(g_log.node, sizeof g_log.node, options->node == NULL ? "" : options->node);
    g_log.options.node = g_log.node;
    pthread_mutex_unlock(&g_log.lock);
    log_set_level(options->level);
}

void log_close(void) {
    atomic_store(&g_log.level, -1);
    pthread_mutex_lock(&g_log.lock);
    g_log.options = (log_options){.fd = -1, .rank = -1};
    pthread_mutex_unlock(&g_log.lock);
}

void log_set_level(log_level level) {
    atomic_store(&g_log.level, (int)level);
}

bool log_on(log_level level) {
    return (int)level <= atomic_load_explicit(&g_log.level, memory_order_relaxed);
}

const char *log_level_name(log_level level) {
    return level_names[level];
}

int log_level_parse(const char *name, log_level *out) {
    for (int i = 0; i <= LOG_DEBUG; i++) {
        if (!str_eq_nocase(name, level_names[i])) continue;
        *out = (log_level)i;
        return OK;
    }
    return ERR_ARG;
}

/* ---- secrets ---- */

/* Polynomials over the numbers below 2^61 - 1. */
static uint64_t times(uint64_t a, uint64_t b) {
    unsigned __int128 x = (unsigned __int128)a * b;
    uint64_t sum = (uint64_t)(x & TRACE_PRIME) + (uint64_t)(x >> 61);
    return sum >= TRACE_PRIME ? sum - TRACE_PRIME : sum;
}

static uint64_t plus(uint64_t a, uint64_t b) {
    uint64_t sum = a + b;
    return sum >= TRACE_PRIME ? sum - TRACE_PRIME : sum;
}

static uint64_t byte_at(const char *text, size_t i) {
    return (uint64_t)(unsigned char)text[i] + 1;
}

static uint64_t trace_of(const char *text, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum = plus(times(sum, g_log.base), byte_at(text, i));
    return sum;
}

void log_hide(const char *secret) {
    size_t n = strlen(secret);
    if (n < 6 || n >= SECRET_MAX) return;
    pthread_mutex_lock(&g_log.lock);
    if (g_log.base == 0) {
        rand_secret(&g_log.base, sizeof g_log.base);
        g_log.base = g_log.base % (TRACE_PRIME - 1000) + 500;
    }
    trace t = {.len = n, .sum = trace_of(secret, n), .first = 1};
    for (size_t i = 1; i < n; i++)
        t.first = times(t.first, g_log.base);
    bool is_known = false;
    for (size_t i = 0; i < g_log.n_traces; i++) {
        if (g_log.traces[i].len == n && g_log.traces[i].sum == t.sum) is_known = true;
    }
    if (!is_known && g_log.n_traces < MAX_SECRETS) g_log.traces[g_log.n_traces++] = t;
    pthread_mutex_unlock(&g_log.lock);
}

/* Every window of the length is compared by its sum, which moves along the text. */
static void redact_trace(const trace *t, char *text, size_t len) {
    if (len < t->len) return;
    uint64_t sum = trace_of(text, t->len);
    for (size_t i = 0;;) {
        bool is_it = sum == t->sum;
        size_t by = is_it ? t->len : 1;
        if (i + by + t->len > len) {
            if (is_it) memset(text + i, '*', t->len);
            return;
        }
        if (is_it) {
            memset(text + i, '*', t->len);
            sum = trace_of(text + i + by, t->len);
        } else {
            uint64_t out = times(byte_at(text, i), t->first);
            sum = plus(sum, TRACE_PRIME - out);
            sum = plus(times(sum, g_log.base), byte_at(text, i + t->len));
        }
        i += by;
    }
}

void log_request(const char *id) {
    (void)str_copy(t_request, sizeof t_request, id == NULL ? "" : id);
}

static bool is_token_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("-_.~+/=", c) != NULL;
}

/* What follows one of these words is a key whoever it belongs to. */
static void redact_patterns(char *text, size_t len) {
    static const char *const marks[] = {"Bearer ", "bearer ", "hf_", "sk-", "api_key=", "token="};
    for (size_t m = 0; m < sizeof marks / sizeof marks[0]; m++) {
        size_t n = strlen(marks[m]);
        for (char *at = text; (at = memmem(at, len - (size_t)(at - text), marks[m], n)) != NULL;) {
            at += n;
            char *end = at;
            while (end < text + len && *end != '\0' && is_token_char(*end))
                end++;
            if (end - at >= 6) memset(at, '*', (size_t)(end - at));
            at = end;
        }
    }
}

static void redact_locked(char *text, size_t len) {
    for (size_t i = 0; i < g_log.n_traces; i++)
        redact_trace(&g_log.traces[i], text, len);
    redact_patterns(text, len);
}

void log_redact(char *text, size_t len) {
    pthread_mutex_lock(&g_log.lock);
    redact_locked(text, len);
    pthread_mutex_unlock(&g_log.lock);
}

/* True when this place has had its share of this second. *n_left_out gets what an earlier second
 * suppressed. */
static bool place_is_over(log_place *p, uint64_t *n_left_out) {
    uint64_t now = clock_mono_ms() / 1000 + 1;
    uint64_t seen = __atomic_load_n(&p->second, __ATOMIC_RELAXED);
    *n_left_out = 0;
    if (seen != now && __atomic_compare_exchange_n(
                           &p->second, &seen, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        uint64_t n = __atomic_exchange_n(&p->n_second, 1, __ATOMIC_RELAXED);
        if (n > LOG_BURST) *n_left_out = n - LOG_BURST;
        return false;
    }
    return __atomic_add_fetch(&p->n_second, 1, __ATOMIC_RELAXED) > LOG_BURST;
}

/* Control characters would let a value start a line of its own or steer a terminal. */
static size_t escape_controls(char *out, size_t cap, const char *in) {
    size_t n = 0;
    for (; *in != '\0' && n + 5 < cap; in++) {
        unsigned char c = (unsigned char)*in;
        if (c == '\n') {
            out[n++] = '\\';
            out[n++] = 'n';
        } else if (c < 0x20 || c == 0x7F) {
            n += (size_t)snprintf(out + n, cap - n, "\\x%02x", (unsigned)c);
        } else {
            out[n++] = (char)c;
        }
    }
    out[n] = '\0';
    return n;
}

static size_t append(char *line, size_t len, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static size_t append(char *line, size_t len, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + len, LOG_LINE_MAX - len, fmt, ap);
    va_end(ap);
    len += n < 0 ? 0 : (size_t)n;
    return len < LOG_LINE_MAX ? len : LOG_LINE_MAX - 1;
}

static void write_line_locked(log_level level, const char *line, size_t len) {
    const char *at = line;
    size_t left = len;
    while (g_log.options.fd >= 0 && left > 0) {
        ssize_t put = write(g_log.options.fd, at, left);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) break; /* nobody to tell: the log is how we would say it */
        at += put;
        left -= (size_t)put;
    }
    if (g_log.options.sink != NULL) g_log.options.sink(g_log.options.sink_ctx, level, line, len);
}

void log_write(
    log_place *place, log_level level, const char *module, const char *what, const char *fmt, ...) {
    uint64_t n_left_out;
    if (place_is_over(place, &n_left_out)) return;
    int saved_errno = errno;
    char raw[LOG_LINE_MAX / 2];
    char pairs[LOG_LINE_MAX];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    if (n < 0) raw[0] = '\0';
    (void)escape_controls(pairs, sizeof pairs - 256, raw);
    char time[32];
    clock_format_utc(clock_wall_ms(), time);
    char line[LOG_LINE_MAX];
    pthread_mutex_lock(&g_log.lock);
    size_t len = append(line, 0, "%s %-5s %s: %s", time, level_names[level], module, what);
    if (g_log.node[0] != '\0') len = append(line, len, " node=%s", g_log.node);
    if (g_log.options.rank >= 0) len = append(line, len, " rank=%d", g_log.options.rank);
    if (t_request[0] != '\0') len = append(line, len, " request=%s", t_request);
    if (n_left_out > 0) {
        len = append(line, len, " left_out=%llu", (unsigned long long)n_left_out);
    }
    if (pairs[0] != '\0' && pairs[1] != '\0') len = append(line, len, "%s", pairs);
    redact_locked(line, len);
    if (len + 1 >= sizeof line) len = sizeof line - 2;
    line[len++] = '\n';
    line[len] = '\0';
    write_line_locked(level, line, len);
    pthread_mutex_unlock(&g_log.lock);
    errno = saved_errno;
}
