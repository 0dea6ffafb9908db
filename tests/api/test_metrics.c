/* The metrics page and the stats stream of two real ranks with every part switched on: each name that
 * api.md promises is there with its kind, its labels and a value, the text is well formed, and the
 * stream has what the Dashboard shows of both ranks. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/base/str.h"
#include "tests/harness/rank_pair.h"
#include "tui/gauges.h"

typedef struct wanted {
    const char *name, *kind;
    const char *labels; /* names in the order of the page, "" for none */
} wanted;

/* api.md 5, GET /metrics, in its order. */
static const wanted names[] = {
    {"requests_total", "counter", "endpoint,status,finish_reason"},
    {"requests_running", "gauge", ""},
    {"requests_waiting", "gauge", ""},
    {"prompt_tokens_total", "counter", ""},
    {"prompt_tokens_cached_total", "counter", ""},
    {"generation_tokens_total", "counter", ""},
    {"reasoning_tokens_total", "counter", ""},
    {"draft_tokens_total", "counter", ""},
    {"draft_tokens_accepted_total", "counter", ""},
    {"kv_cache_usage_ratio", "gauge", ""},
    {"kv_cache_evictions_total", "counter", ""},
    {"time_to_first_token_seconds", "histogram", ""},
    {"time_per_output_token_seconds", "histogram", ""},
    {"queue_seconds", "histogram", ""},
    {"prefill_seconds", "histogram", ""},
    {"request_seconds", "histogram", ""},
    {"tool_parse_recoveries_total", "counter", "kind"},
    {"grammar_compile_seconds", "histogram", ""},
    {"process_start_time_seconds", "gauge", ""},
    {"build_info", "gauge", "version"},
    {"step_seconds", "histogram", ""},
    {"step_rows", "histogram", ""},
    {"draft_tokens_accepted_by_position_total", "counter", "position"},
    {"kv_pages", "gauge", ""},
    {"kv_pages_used", "gauge", ""},
    {"prefix_cache_hit_tokens_total", "counter", "tier"},
    {"disk_cache_bytes", "gauge", ""},
    {"disk_cache_errors_total", "counter", "kind"},
    {"engram_rows_total", "counter", ""},
    {"engram_read_seconds", "histogram", ""},
    {"exchange_wait_seconds_total", "counter", ""},
    {"rank_memory_bytes", "gauge", "rank,part"},
    {"node_memory_available_bytes", "gauge", "rank"},
    {"link_bytes_total", "counter", "rank,rail,kind"},
    {"rank_up", "gauge", "rank"},
};
enum { N_NAMES = sizeof names / sizeof names[0] };

/* The line of a sample: name, labels and value. */
typedef struct sample {
    char name[96], labels[256];
    double value;
} sample;

static bool read_sample(const char *line, sample *s) {
    size_t n = strcspn(line, "{ ");
    if (n == 0 || n >= sizeof s->name) return false;
    memcpy(s->name, line, n);
    s->name[n] = '\0';
    s->labels[0] = '\0';
    line += n;
    if (*line == '{') {
        n = strcspn(line, "}");
        if (line[n] != '}' || n >= sizeof s->labels) return false;
        memcpy(s->labels, line + 1, n - 1);
        s->labels[n - 1] = '\0';
        line += n + 1;
    }
    char *end = NULL;
    if (*line != ' ') return false;
    s->value = strtod(line + 1, &end);
    return end != line + 1 && *end == '\0';
}

/* The label names of a sample, without le. */
static void names_of(const char *labels, char *out, size_t cap) {
    out[0] = '\0';
    for (const char *at = labels; *at != '\0';) {
        size_t n = strcspn(at, "=");
        if (strncmp(at, "le=", 3) != 0) {
            size_t used = strlen(out);
            snprintf(out + used, cap - used, "%s%.*s", used > 0 ? "," : "", (int)n, at);
        }
        at += n;
        if (*at == '=') at += 2; /* ="  */
        while (*at != '\0' && *at != '"') {
            at += *at == '\\' && at[1] != '\0' ? 2 : 1;
        }
        if (*at == '"') at++;
        if (*at == ',') at++;
    }
}

typedef struct page_check {
    bool has_type[N_NAMES], has_help[N_NAMES], has_value[N_NAMES];
    int n_lines;
    char family[96], kind[16]; /* of the last TYPE line */
} page_check;

static int index_of(const char *family) {
    for (int i = 0; i < N_NAMES; i++) {
        if (str_eq(names[i].name, family)) return i;
    }
    return -1;
}

static void take_comment(page_check *p, const char *line) {
    char name[96], kind[16];
    if (sscanf(line, "# TYPE tandem_%95s %15s", name, kind) == 2) {
        int i = index_of(name);
        str_copy(p->family, sizeof p->family, name);
        str_copy(p->kind, sizeof p->kind, kind);
        bool is_total = str_ends(name, "_total");
        if (str_eq(kind, "counter") != is_total) fail_msg("%s: counters end in _total", line);
        if (i < 0) return;
        if (p->has_type[i]) fail_msg("%s twice", name);
        p->has_type[i] = true;
        assert_string_equal(kind, names[i].kind);
    } else if (sscanf(line, "# HELP tandem_%95s", name) == 1) {
        int i = index_of(name);
        if (i >= 0) p->has_help[i] = true;
    } else {
        fail_msg("a comment of no form: %s", line);
    }
}

static void take_line(page_check *p, const char *line) {
    sample s;
    char labels[200];
    p->n_lines++;
    if (line[0] == '#') {
        take_comment(p, line);
        return;
    }
    if (!read_sample(line, &s)) fail_msg("no sample: %s", line);
    if (strncmp(s.name, "tandem_", 7) != 0) fail_msg("without the prefix: %s", line);
    /* Families stand together: each sample belongs to the last TYPE line. */
    size_t n = strlen(p->family);
    const char *name = s.name + 7;
    const char *tail = name + n;
    bool is_own =
        strncmp(name, p->family, n) == 0 &&
        (*tail == '\0' ||
            (str_eq(p->kind, "histogram") &&
                (str_eq(tail, "_bucket") || str_eq(tail, "_sum") || str_eq(tail, "_count"))));
    if (!is_own) fail_msg("%s stands under %s", line, p->family);
    int i = index_of(p->family);
    if (i < 0) return;
    names_of(s.labels, labels, sizeof labels);
    if (!str_eq(labels, names[i].labels))
        fail_msg("%s: labels should be %s", line, names[i].labels);
    p->has_value[i] |= s.value >= 0.0;
}

static void check_page(buf *page) {
    page_check p;
    memset(&p, 0, sizeof p);
    char *line = page->data;
    for (char *end = strchr(line, '\n'); end != NULL; line = end + 1, end = strchr(line, '\n')) {
        *end = '\0';
        take_line(&p, line);
    }
    assert_string_equal(line, "");
    for (int i = 0; i < N_NAMES; i++) {
        if (!p.has_type[i]) fail_msg("tandem_%s is missing", names[i].name);
        if (!p.has_help[i]) fail_msg("tandem_%s has no HELP", names[i].name);
        if (!p.has_value[i]) fail_msg("tandem_%s has no value", names[i].name);
    }
}

/* ---- the stats stream ---- */

static void read_stats(buf *out) {
    wire w;
    wire_open_unix(&w, pair_socket());
    assert_true(w.fd >= 0);
    wire_request(&w, "GET", "/tandem/v1/stats?interval_ms=200", "", NULL);
    /* The third object has rates. */
    for (;;) {
        const char *at = buf_cstr(&w.in);
        for (int i = 0; i < 3 && at != NULL; i++) {
            at = strstr(i == 0 ? at : at + 1, "data: ");
        }
        const char *end = at != NULL ? strstr(at, "}\n\n") : NULL;
        if (end != NULL) {
            buf_append(out, at + 6, (size_t)(end + 1 - (at + 6)));
            break;
        }
        if (!wire_receive(&w, PAIR_END_MS)) fail_msg("the stream ended: %s", buf_cstr(&w.in));
    }
    wire_close(&w);
}

static bool is_number(double v) {
    return v == v;
}

static void check_stats(const buf *text) {
    gauges *g = calloc(1, sizeof *g);
    err e = ERR_INIT;
    gauges_init(g);
    if (gauges_take_stats(g, text->data, text->len, 1, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(g->n_ranks, 2);
    for (int i = 0; i < 2; i++) {
        const gauges_rank *r = &g->ranks[i];
        assert_string_equal(r->state, "up");
        assert_true(r->age_s >= 0.0 && r->age_s < 60.0);
        assert_true(r->steps > 0.0 && r->step_ms > 0.0 && r->step_ms_p95 > 0.0);
        assert_true(r->exchange_ms >= 0.0 && is_number(r->exchange_share));
        assert_true(is_number(r->link_per_s) && is_number(r->cpu_percent));
        assert_true(r->memory_process > 1e6 && r->memory_total > r->memory_available);
        assert_true(r->memory_weights > 1e6 && r->memory_cache > 1e5 && r->memory_work > 1e5);
        assert_true(is_number(r->memory_engram));
    }
    assert_true(
        g->kv_total > 0 && g->kv_used >= 0 && g->hit_tokens >= 0 && g->disk_hit_tokens >= 0);
    assert_true(g->kv_kept > 0 && g->kv_used + g->kv_kept <= g->kv_total); /* of the replies */
    assert_true(g->disk_bytes >= 0.0 && g->steps > 0 && g->rows >= g->steps);
    assert_true(g->n_positions > 0 && g->proposed_at[0] >= g->accepted_at[0]);
    assert_true(g->reply.first_token_ms > 0.0 && g->reply.tokens > 0 && g->reply.prompt > 0);
    free(g);
}

static void every_name_is_there(void **state) {
    (void)state;
    char dir[160];
    buf page = BUF_INIT, stats = BUF_INIT, reply = BUF_INIT;
    snprintf(dir, sizeof dir, "%s/cache", pair_dir());
    pid_t pair = pair_start((const char *const[]){"--cache-dir", dir, NULL});
    pair_wait_ready();
    for (int i = 0; i < 2; i++) { /* the second comes from the cache */
        wire w;
        pair_ask_prompt(&w, 60, 8);
        pair_read_one(&w, &reply);
        wire_close(&w);
    }
    assert_int_equal(pair_get("/metrics", &page), 200);
    check_page(&page);
    assert_true(pair_metric("tandem_prefix_cache_hit_tokens_total{tier=\"ram\"}") > 0.0);
    for (int rank = 0; rank < 2; rank++) {
        char name[64];
        snprintf(name, sizeof name, "tandem_rank_up{rank=\"%d\"}", rank);
        assert_true(pair_metric(name) == 1.0);
        snprintf(name, sizeof name, "tandem_link_bytes_total{rank=\"%d\",rail=\"tcp\"", rank);
        assert_true(pair_metric(name) > 1000.0);
        snprintf(name, sizeof name, "tandem_rank_memory_bytes{rank=\"%d\",part=\"weights\"}", rank);
        assert_true(pair_metric(name) > 1e6);
    }
    read_stats(&stats);
    check_stats(&stats);
    pair_stop(pair);
    buf_release(&page);
    buf_release(&stats);
    buf_release(&reply);
    (void)dir_remove_all(dir, NULL);
}

/* Acceptance by place: what was kept adds up, and no place kept more than it verified. */
static void drafts_by_position_add_up(void **state) {
    (void)state;
    wire w;
    buf got = BUF_INIT;
    double kept = 0.0, verified = 0.0;
    pid_t pair = pair_start((const char *const[]){NULL});
    pair_wait_ready();
    pair_ask_long(&w, 60);
    pair_read_one(&w, &got);
    wire_close(&w);
    for (int i = 1; i <= 16; i++) {
        char name[96];
        snprintf(name, sizeof name,
            "tandem_draft_tokens_accepted_by_position_total{position=\"%d\"}", i);
        double k = pair_metric(name);
        snprintf(name, sizeof name, "tandem_draft_tokens_by_position_total{position=\"%d\"}", i);
        double v = pair_metric(name);
        if (v < 0.0) break;
        assert_true(k <= v);
        kept += k;
        verified += v;
    }
    assert_true(verified > 0.0 && verified == pair_metric("tandem_draft_tokens_total"));
    assert_true(kept == pair_metric("tandem_draft_tokens_accepted_total"));
    pair_stop(pair);
    buf_release(&got);
}

#define PAIR_TEST(f) cmocka_unit_test_teardown(f, pair_kill_rest)

int main(void) {
    const struct CMUnitTest tests[] = {
        PAIR_TEST(every_name_is_there), PAIR_TEST(drafts_by_position_add_up)};
    if (!pair_init()) return 77;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    pair_end();
    return rc;
}
