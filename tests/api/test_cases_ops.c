/* Runs cases/ops: memory plan and guard, progress, what the Dashboard makes of samples, and the health
 * of two real ranks of which one is killed, stopped or cut off. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/memory.h"
#include "engine/run/run.h"
#include "tests/harness/rank_pair.h"
#include "tests/harness/stub_source.h"
#include "tests/harness/two_nets.h"
#include "tests/harness/vectors.h"
#include "tui/dash_alerts.h"
#include "tui/gauges.h"

enum { PATIENCE_MS = 120000 };

static uint64_t gib(const json *v) {
    double value = 0.0;
    json_double(v, &value);
    return (uint64_t)(value * (double)((uint64_t)1 << 30));
}

static void memory_plan_case(vectors *v, const char *id, const json *c) {
    const json *plan = json_get(c, "plan");
    const json *expect = json_get(c, "expect");
    const char *words = json_str(json_get(expect, "message_contains"));
    memory_plan p = {.weight_bytes = gib(json_get(plan, "weights_gib")),
        .cache_bytes = gib(json_get(plan, "cache_gib")),
        .work_bytes = gib(json_get(plan, "work_gib")),
        .reserve_bytes = gib(json_get(c, "reserve_gib"))};
    err e = ERR_INIT;
    bool starts = memory_plan_check(&p, gib(json_get(c, "available_gib")), &e) == OK;
    bool is_ok = starts == json_is_true(json_get(expect, "start"));
    if (is_ok && words != NULL) is_ok = strstr(e.msg, words) != NULL;
    if (is_ok) {
        vectors_pass(v);
    } else {
        vectors_fail(v, id, words != NULL ? words : "it starts", starts ? "it starts" : e.msg);
    }
}

static void memory_guard_case(vectors *v, const char *id, const json *c) {
    const json *expect = json_get(c, "expect");
    memory_guard g = {.reserve_bytes = gib(json_get(c, "reserve_gib"))};
    uint64_t from = gib(json_get(expect, "new_prefill_refused_from"));
    char got[64] = "";
    JSON_EACH(item, json_get(c, "available_gib_over_time")) {
        bool is_refused = !memory_guard_allows(&g, gib(item));
        if (is_refused != (gib(item) <= from)) {
            snprintf(got, sizeof got, "%s at %s GiB", is_refused ? "refused" : "taken",
                json_number_text(item));
        }
    }
    if (got[0] == '\0') {
        vectors_pass(v);
    } else {
        vectors_fail(v, id, "refused from the given point on", got);
    }
}

/* A long prompt read in chunks: progress must move with every chunk, never back. */
static void progress_case(vectors *v, const char *id, const json *c) {
    static const char *const pieces[] = {"x"};
    int64_t n_prompt = 0;
    int64_t chunk = 0;
    int64_t least = 0;
    _Atomic int n_allowed = 0;
    json_i64(json_get(c, "prompt_tokens"), &n_prompt);
    json_i64(json_get(c, "chunk"), &chunk);
    json_i64(json_get(json_get(c, "expect"), "updates_min"), &least);
    stub_script script = {.pieces = pieces,
        .n_pieces = 1,
        .n_allowed = &n_allowed,
        .n_base = 10,
        .eos_id = 1,
        .max_context = n_prompt + 100,
        .max_rows = (int32_t)chunk};
    stub *s = stub_new(&script);
    run_options o = {.source = stub_source(s)};
    run *r = NULL;
    ticket *t = NULL;
    run_progress p;
    run_event ev;
    err e = ERR_INIT;
    int32_t *prompt = mem_array((size_t)n_prompt, sizeof *prompt);
    run_request q = {.prompt = prompt, .n_prompt = (int32_t)n_prompt, .max_tokens = 1};
    int n_updates = 0;
    int32_t last = 0;
    bool moves = true;
    sample_params_init(&q.sampling);
    if (run_open(&o, &r, &e) != OK || run_submit(r, &q, &t, &e) != OK) {
        vectors_fail(v, id, "a start", e.msg);
        exit(1);
    }
    /* Chunk by chunk: nobody sees each of them where they go by at their own speed. */
    while (moves && last < (int32_t)n_prompt) {
        uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
        n_allowed = 1;
        do {
            sleep_ms(1);
            ticket_progress(t, &p);
        } while (p.n_prefilled == last && clock_mono_ms() < deadline);
        moves = p.n_prefilled > last;
        n_updates += moves;
        last = p.n_prefilled;
    }
    n_allowed = 1000;
    while (ticket_next(t, &ev, 1000) != OK || ev.kind != RUN_EVENT_END) {
    }
    if (moves && n_updates >= least) {
        vectors_pass(v);
    } else {
        char want[64];
        char got[64];
        snprintf(want, sizeof want, "%lld rising updates", (long long)least);
        snprintf(got, sizeof got, "%d updates, then %s", n_updates, moves ? "the end" : "no more");
        vectors_fail(v, id, want, got);
    }
    ticket_free(t);
    run_close(r);
    stub_free(s);
    mem_free(prompt);
}

/* ---- what the Dashboard makes of samples ---- */

static double number_of(const json *v, const char *key) {
    double d = (double)NAN;
    (void)json_double(json_get(v, key), &d);
    return d;
}

/* As the engine sends it. NULL: none. */
static gauges *take_sample(const char *rank_fields) {
    gauges *g = mem_alloc(sizeof *g);
    buf text = BUF_INIT;
    err e = ERR_INIT;
    gauges_init(g);
    buf_printf(
        &text, "{\"state\":\"ready\",\"ranks\":[{\"rank\":0,\"state\":\"up\",%s}]}", rank_fields);
    if (gauges_take_stats(g, buf_cstr(&text), text.len, 1000, &e) != OK) {
        fprintf(stderr, "sample: %s\n", e.msg);
        exit(1);
    }
    buf_release(&text);
    return g;
}

static bool is_shown(double value, const json *wanted) {
    double want = 0.0;
    char a[32], b[32];
    if (json_double(wanted, &want) != OK) return false;
    snprintf(a, sizeof a, "%.1f", value);
    snprintf(b, sizeof b, "%.1f", want);
    return strcmp(a, b) == 0;
}

static void memory_display_case(vectors *v, const char *id, const json *c) {
    const json *info = json_get(c, "meminfo"), *expect = json_get(c, "expect");
    double total = number_of(info, "MemTotal_kB") * 1024.0;
    double available = number_of(info, "MemAvailable_kB") * 1024.0;
    double engine = 0.0;
    JSON_EACH(process, json_get(c, "processes")) {
        engine += number_of(process, "used_mib") * 1048576.0;
    }
    char fields[400], got[120];
    memory_view m;
    snprintf(fields, sizeof fields,
        "\"mem_process_bytes\":%.0f,\"mem_machine_total_bytes\":%.0f,"
        "\"mem_machine_available_bytes\":%.0f,\"mem_machine_used_bytes\":%.0f,"
        "\"gpu\":{\"percent\":94,\"mhz\":2400,\"watt\":58,\"celsius\":61,\"throttled\":false}",
        engine, total, available, total - available);
    gauges *g = take_sample(fields);
    memory_view_of(&g->ranks[0], &m);
    bool is_ok = is_shown(m.total_gib, json_get(expect, "total_gib")) &&
                 is_shown(m.available_gib, json_get(expect, "available_gib")) &&
                 is_shown(m.engine_gib, json_get(expect, "engine_gib")) &&
                 str_eq(m.label, json_str(json_get(expect, "label")));
    snprintf(got, sizeof got, "%.1f, %.1f, %.1f GiB, %s", m.total_gib, m.available_gib,
        m.engine_gib, m.label);
    if (is_ok) {
        vectors_pass(v);
    } else {
        vectors_fail(v, id, "the figures of the case", got);
    }
    mem_free(g);
}

/* An alert that holds fires. */
static const alert *alert_of(alerts *a, gauges *g, int n_samples) {
    for (int i = 0; i < n_samples; i++) {
        g->sample_ms = 1000 + 500 * (uint64_t)i;
        alerts_update(a, g, g->sample_ms);
    }
    return alerts_first(a);
}

static void gpu_sample_case(vectors *v, const char *id, const json *c) {
    const char *want = json_str(json_get(json_get(c, "expect"), "alert"));
    char fields[300];
    alerts a;
    snprintf(fields, sizeof fields,
        "\"gpu\":{\"percent\":%.0f,\"mhz\":%.0f,\"watt\":%.0f,\"celsius\":%.0f,"
        "\"throttled\":false}",
        number_of(c, "util"), number_of(c, "sm_mhz"), number_of(c, "power_w"),
        number_of(c, "temp_c"));
    gauges *g = take_sample(fields);
    alerts_init(&a);
    const alert *first = alert_of(&a, g, 20);
    bool is_ok = first == NULL ? want == NULL : want != NULL && str_eq(first->cause, want);
    if (is_ok) {
        vectors_pass(v);
    } else {
        vectors_fail(
            v, id, want != NULL ? want : "no alert", first != NULL ? first->cause : "none");
    }
    mem_free(g);
}

/* A sample for each step; both nodes are numbered from 1. */
static void step_series_case(vectors *v, const char *id, const json *c) {
    const json *expect = json_get(c, "expect");
    const json *series[2] = {json_get(c, "node1_ms"), json_get(c, "node2_ms")};
    int64_t node = 0;
    alerts a;
    gauges *g = take_sample("\"step_ms\":1");
    char got[64] = "no alert";
    (void)json_i64(json_get(expect, "node"), &node);
    g->n_ranks = 2;
    g->ranks[1] = g->ranks[0];
    alerts_init(&a);
    const alert *first = NULL;
    for (size_t i = 0; i < json_count(series[0]); i++) {
        for (int r = 0; r < 2; r++) {
            (void)json_double(json_at(series[r], i), &g->ranks[r].step_ms);
            g->ranks[r].steps = (double)i + 1;
            g->ranks[r].age_s = 0.0;
        }
        g->sample_ms = 1000 + 500 * (uint64_t)i;
        alerts_update(&a, g, g->sample_ms);
        if (i == 19 && alerts_first(&a) != NULL) break; /* too early: nothing has changed yet */
    }
    first = alerts_first(&a);
    if (first != NULL) snprintf(got, sizeof got, "%s on node %d", first->cause, first->rank + 1);
    const char *want = json_str(json_get(expect, "alert"));
    bool is_ok = first == NULL ? want == NULL
                               : a.n == 1 && first->rank + 1 == node && str_eq(first->cause, want);
    if (is_ok) {
        vectors_pass(v);
    } else {
        vectors_fail(v, id, want != NULL ? "slow_node on the node of the case" : "no alert", got);
    }
    mem_free(g);
}

/* ---- the health of two real ranks ---- */

static vectors counted;
static const char *const none[] = {NULL};

static void say(const char *id, bool is_ok, const char *want, const char *got) {
    if (is_ok) {
        vectors_pass(&counted);
    } else {
        vectors_fail(&counted, id, want, got);
    }
}

/* A reply that is on its way gets an error event or a 503. */
static bool open_request_ends(wire *w, buf *got) {
    buf_reset(got);
    buf_append(got, w->in.data, w->in.len);
    pair_read_to_end(w, got);
    return strstr(buf_cstr(got), "engine_failed") != NULL || strstr(buf_cstr(got), " 503 ") != NULL;
}

static void await_text(wire *w) {
    while (strstr(buf_cstr(&w->in), "\"content\":") == NULL) {
        assert_true(wire_receive(w, PAIR_END_MS));
    }
}

/* Whether the report has every word that the case names. */
static bool has_words(const json *words, const char *text) {
    JSON_EACH(word, words) {
        if (strstr(text, json_str(word)) == NULL) return false;
    }
    return true;
}

typedef struct injury {
    const char *id;
    const json *expect;
    wire open; /* a reply that was being written */
} injury;

static void judge(injury *n) {
    int64_t within_s = 0;
    buf got = BUF_INIT, ready = BUF_INIT;
    (void)json_i64(json_get(n->expect, "within_s"), &within_s);
    int took = pair_wait_not_ready((int)within_s * 1000);
    int status = pair_get("/ready", &ready);
    print_message("%s: /ready failed after %d ms\n", n->id, took);
    bool is_ok = status == 503 || status == 0; /* 0: it is being started again already */
    if (json_get(n->expect, "open_requests") != NULL) is_ok &= open_request_ends(&n->open, &got);
    wire_close(&n->open);
    is_ok &= has_words(json_get(n->expect, "report_has"), pair_log());
    say(n->id, is_ok, "not ready, open requests told, the report of the case", buf_cstr(&got));
    buf_release(&got);
    buf_release(&ready);
}

static void signal_case(const char *id, const json *c, int how) {
    int pid[2];
    injury n = {.id = id, .expect = json_get(c, "expect")};
    pid_t pair = pair_start(none);
    pair_wait_ready();
    int i_start = pair_newest_ranks(pid);
    pair_ask_long(&n.open, 3000);
    await_text(&n.open);
    kill(pid[1], how);
    judge(&n);
    pair_find_ranks(i_start + 1, pid);
    pair_wait_ready(); /* it came back by itself */
    pair_stop(pair);
}

static void link_case(const char *id, const json *c) {
    two_nets nets;
    injury n = {.id = id, .expect = json_get(c, "expect")};
    if (!two_nets_open(&nets)) {
        vectors_skip(&counted, id, "network namespaces are not permitted here");
        return;
    }
    pair_clear_log();
    pid_t head = pair_start_in(&nets, 0, none);
    pid_t worker = pair_start_in(&nets, 1, none);
    pair_wait_ready();
    pair_ask_long(&n.open, 3000);
    await_text(&n.open);
    two_nets_cut(&nets, true);
    judge(&n);
    (void)pair_wait_exit(head, PAIR_END_MS);
    (void)pair_wait_exit(worker, PAIR_END_MS);
    two_nets_close(&nets);
}

/* Whether a process holds a socket that listens for TCP: by the inodes of /proc. */
static bool listens(pid_t pid) {
    char dir[64], path[400], link[80], line[320];
    bool found = false;
    snprintf(dir, sizeof dir, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d)) {
        unsigned long inode = 0, other = 0;
        unsigned state = 0;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        ssize_t n = readlink(path, link, sizeof link - 1);
        link[n > 0 ? n : 0] = '\0';
        if (sscanf(link, "socket:[%lu]", &inode) != 1) continue;
        FILE *f = fopen("/proc/net/tcp", "re");
        while (f != NULL && fgets(line, sizeof line, f) != NULL) {
            bool is_row =
                sscanf(line, " %*d: %*s %*s %x %*s %*s %*s %*u %*d %lu", &state, &other) == 2;
            found |= is_row && other == inode && state == 0x0A;
        }
        if (f != NULL) fclose(f);
    }
    closedir(d);
    return found;
}

/* A worker serves nothing and is healthy all the same. */
static void role_case(const char *id, const json *c) {
    int pid[2];
    buf body = BUF_INIT;
    pid_t pair = pair_start(none);
    pair_wait_ready();
    (void)pair_newest_ranks(pid);
    bool is_healthy = pair_metric("tandem_rank_up{rank=\"1\"}") == 1.0;
    is_healthy &= pair_get("/tandem/v1/state", &body) == 200 &&
                  strstr(buf_cstr(&body), "{\"rank\":1,\"state\":\"up\"") != NULL;
    bool has_port = listens(pid[1]);
    bool is_ok = has_port == json_is_true(json_get(c, "http_port_open")) &&
                 is_healthy == json_is_true(json_get(json_get(c, "expect"), "healthy"));
    say(id, is_ok, "up, without a port", buf_cstr(&body));
    buf_release(&body);
    pair_stop(pair);
}

static void health_case(const char *id, const json *c) {
    const char *inject = json_str(json_get(c, "inject"));
    if (str_eq(json_str(json_get(c, "role")), "worker")) {
        role_case(id, c);
    } else if (str_eq(inject, "SIGKILL worker")) {
        signal_case(id, c, SIGKILL);
    } else if (str_eq(inject, "SIGSTOP worker")) {
        signal_case(id, c, SIGSTOP);
    } else if (str_eq(inject, "data link down on the worker")) {
        link_case(id, c);
    } else {
        say(id, false, "an injury that is known", inject != NULL ? inject : "none");
    }
    (void)pair_kill_rest(NULL);
}

/* ---- all of them ---- */

static void run_case(const char *id, const json *c) {
    static const struct {
        const char *kind;
        void (*run)(vectors *v, const char *id, const json *c);
    } kinds[] = {{"memory_plan", memory_plan_case}, {"memory_guard", memory_guard_case},
        {"progress", progress_case}, {"memory_display", memory_display_case},
        {"gpu_sample", gpu_sample_case}, {"step_series", step_series_case}};
    const char *kind = json_str(json_get(c, "kind"));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (str_eq(kind, kinds[i].kind)) {
            kinds[i].run(&counted, id, c);
            return;
        }
    }
    if (str_eq(kind, "health")) {
        health_case(id, c);
    } else {
        vectors_fail(&counted, id, "a kind that is known", kind != NULL ? kind : "none");
    }
}

static int run_file(void *ctx, const char *name, err *e) {
    char dir[512];
    (void)ctx;
    (void)e;
    if (!str_ends(name, ".json")) return OK;
    snprintf(dir, sizeof dir, "%s/ops", vectors_cases_dir());
    json *c = vectors_load(dir, name);
    run_case(json_str(json_get(c, "id")), c);
    json_free(c);
    return OK;
}

static void all_cases(void **state) {
    char dir[512];
    err e = ERR_INIT;
    (void)state;
    snprintf(dir, sizeof dir, "%s/ops", vectors_cases_dir());
    if (dir_each(dir, run_file, NULL, &e) != OK)
        vectors_fail(&counted, "cases/ops", "a folder of cases", e.msg);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_cases)};
    if (!pair_init()) return 77;
    if (cmocka_run_group_tests(tests, NULL, NULL) != 0)
        vectors_fail(&counted, "cases/ops", "an end", "a case stopped the others");
    pair_end();
    return vectors_end(&counted);
}
