/* The checks on stored trees: a healthy pair, and one tree for each fault with what it must give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/check.h"
#include "tests/harness/spark_tree.h"

static const char *data_dir(void) {
    static char path[400];
    const char *source = getenv("TANDEM_SOURCE_DIR");
    (void)snprintf(path, sizeof path, "%s/tests/data/spark", source != NULL ? source : ".");
    return path;
}

typedef struct pair {
    char dir[64], root[2][80];
    settings *s;
    node_access *node[2];
    check_context *c;
    char baseline[100];
} pair;

static void pair_open(pair *p) {
    char healthy[500];
    memset(p, 0, sizeof *p);
    (void)snprintf(p->dir, sizeof p->dir, "/tmp/tandem-spark.XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    (void)snprintf(healthy, sizeof healthy, "%s/healthy.tree", data_dir());
    (void)snprintf(p->baseline, sizeof p->baseline, "%s/baselines.json", p->dir);
    for (int i = 0; i < 2; i++) {
        static const char *const names[] = {"head", "worker"};
        (void)snprintf(p->root[i], sizeof p->root[i], "%s/%s", p->dir, names[i]);
        spark_tree_lay(healthy, p->root[i], i + 1, NULL);
        p->node[i] = node_access_local(names[i], p->root[i]);
    }
    p->s = settings_new();
    assert_int_equal(settings_set(p->s, "HEAD_DATA", "/data", SETTING_FILE, NULL), OK);
    assert_int_equal(settings_set(p->s, "WORKER_DATA", "/data", SETTING_FILE, NULL), OK);
    check_options o = {.node = {p->node[0], p->node[1]},
        .settings = p->s,
        .baseline = p->baseline,
        .need_bytes = {532000000000, 532000000000},
        .has_need = true,
        .need_text = "model files"};
    p->c = check_context_new(&o);
}

static void pair_close(pair *p) {
    check_context_free(p->c);
    settings_free(p->s);
    node_access_close(p->node[0]);
    node_access_close(p->node[1]);
    (void)dir_remove_all(p->dir, NULL);
}

typedef struct collected {
    int n;
    check_result all[160];
} collected;

static int collect(void *ctx, const check_row *row, const check_result *r) {
    collected *k = ctx;
    (void)row;
    assert_true(k->n < 160);
    assert_string_not_equal(r->fact, "");
    assert_string_not_equal(r->reason, "");
    k->all[k->n++] = *r;
    return OK;
}

static const check_result *result_of(const collected *k, const char *node, const char *id) {
    for (int i = 0; i < k->n; i++) {
        if (str_eq(k->all[i].id, id) && str_eq(k->all[i].node, node)) return &k->all[i];
    }
    return NULL;
}

/* Those that need the hardware, traffic, a terminal or ssh can only say so. */
static bool may_be_open(const check_result *r) {
    static const char *const open[] = {"V9", "D4", "P1", "P5", "U5", "S1", "N-latency", "N-tcp",
        "N-rdma", "N-collective", "N-socket"};
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++) {
        if (str_eq(r->id, open[i]))
            return r->status == CHECK_STATUS_SKIP || r->status == CHECK_STATUS_UNKNOWN;
    }
    return false;
}

static void one_port_for_two_uses_is_a_fault(void **state) {
    (void)state;
    pair p;
    collected *k = calloc(1, sizeof *k);
    check_status worst;
    err e = ERR_INIT;
    pair_open(&p);
    assert_int_equal(settings_set(p.s, "MASTER_PORT", "8888", SETTING_FILE, NULL), OK);
    assert_int_equal(check_run(p.c, "U3", -1, collect, k, &worst, &e), OK);
    assert_int_equal(result_of(k, "head", "U3")->status, CHECK_STATUS_FAIL);
    assert_non_null(strstr(result_of(k, "head", "U3")->fact, "API_PORT is 8888"));
    assert_int_equal(result_of(k, "worker", "U3")->status, CHECK_STATUS_PASS);
    free(k);
    pair_close(&p);
}

static void a_healthy_pair_passes(void **state) {
    (void)state;
    pair p;
    collected *k = calloc(1, sizeof *k);
    check_status worst;
    err e = ERR_INIT;
    pair_open(&p);
    assert_int_equal(check_run(p.c, NULL, -1, collect, k, &worst, &e), OK);
    for (int i = 0; i < k->n; i++) {
        const check_result *r = &k->all[i];
        if (r->status == CHECK_STATUS_PASS || may_be_open(r)) continue;
        fail_msg("%s on %s: %s: %s", r->id, r->node, check_status_name(r->status), r->fact);
    }
    size_t n_rows = 0;
    (void)check_rows(&n_rows);
    assert_true((size_t)k->n > n_rows);
    free(k);
    pair_close(&p);
}

static void run_expected(pair *p, const char *name, const spark_fault *f) {
    for (int i = 0; i < f->n_expect; i++) {
        const spark_expect *x = &f->expect[i];
        collected *k = calloc(1, sizeof *k);
        check_status worst;
        err e = ERR_INIT;
        if (check_run(p->c, x->id, -1, collect, k, &worst, &e) != OK)
            fail_msg("%s: %s", name, e.msg);
        const check_result *r = result_of(k, x->node, x->id);
        if (r == NULL) fail_msg("%s: no result of %s on %s", name, x->id, x->node);
        if (!str_eq(check_status_name(r->status), x->status) ||
            (x->contains[0] != '\0' && strstr(r->fact, x->contains) == NULL)) {
            fail_msg("%s: %s on %s: expected %s with \"%s\", got %s: %s", name, x->id, x->node,
                x->status, x->contains, check_status_name(r->status), r->fact);
        }
        if (r->status == CHECK_STATUS_FAIL && r->remedy[0] == '\0') {
            fail_msg("%s: %s fails without a remedy", name, x->id);
        }
        free(k);
    }
}

/* One pair for all faults: each tree is laid over the healthy one and taken away again. */
static int n_faults;
static int one_fault(void *ctx, const char *name, err *e) {
    pair *p = ctx;
    (void)e;
    if (!str_starts(name, "fault-")) return OK;
    char path[700], healthy[500];
    spark_fault f;
    (void)snprintf(path, sizeof path, "%s/%s", data_dir(), name);
    (void)snprintf(healthy, sizeof healthy, "%s/healthy.tree", data_dir());
    spark_tree_expect(path, &f);
    assert_true(f.n_expect > 0);
    bool is_hit[2] = {!str_eq(f.node, "worker"), !str_eq(f.node, "head")};
    for (int i = 0; i < 2; i++) {
        if (is_hit[i]) spark_tree_lay(path, p->root[i], i + 1, NULL);
    }
    check_options o = {.node = {p->node[0], p->node[1]},
        .settings = p->s,
        .baseline = p->baseline,
        .need_bytes = {532000000000, 532000000000},
        .has_need = true,
        .need_text = "model files"};
    check_context_free(p->c);
    p->c = check_context_new(&o);
    run_expected(p, name, &f);
    for (int i = 0; i < 2; i++) {
        if (is_hit[i]) spark_tree_restore(healthy, path, p->root[i], i + 1);
    }
    n_faults++;
    return OK;
}

static void each_fault_is_found(void **state) {
    (void)state;
    pair p;
    err e = ERR_INIT;
    pair_open(&p);
    if (dir_each(data_dir(), one_fault, &p, &e) != OK) fail_msg("%s", e.msg);
    assert_true(n_faults >= 40);
    pair_close(&p);
}

static void a_missing_worker_is_unknown_or_skipped(void **state) {
    (void)state;
    pair p;
    pair_open(&p);
    check_options o = {
        .node = {p.node[0], NULL}, .missing = {NULL, "no route to host"}, .settings = p.s};
    check_context *c = check_context_new(&o);
    collected *k = calloc(1, sizeof *k);
    check_status worst;
    assert_int_equal(check_run(c, "M1", -1, collect, k, &worst, NULL), OK);
    assert_int_equal(result_of(k, "head", "M1")->status, CHECK_STATUS_PASS);
    assert_int_equal(result_of(k, "worker", "M1")->status, CHECK_STATUS_UNKNOWN);
    assert_non_null(strstr(result_of(k, "worker", "M1")->fact, "no route to host"));
    check_context_free(c);
    o.missing[1] = NULL;
    c = check_context_new(&o);
    k->n = 0;
    assert_int_equal(check_run(c, "V3", -1, collect, k, &worst, NULL), OK);
    assert_int_equal(result_of(k, "both", "V3")->status, CHECK_STATUS_SKIP);
    assert_int_equal(check_run(c, "X9", -1, collect, k, &worst, NULL), ERR_NOT_FOUND);
    check_context_free(c);
    free(k);
    pair_close(&p);
}

static void baselines_are_kept_and_compared(void **state) {
    (void)state;
    pair p;
    check_baseline b = {.value = 94.5, .wall_ms = 1234, .text = "x"}, got;
    err e = ERR_INIT;
    pair_open(&p);
    assert_int_equal(check_baseline_get(p.baseline, "P5", "head", &got, &e), ERR_NOT_FOUND);
    assert_int_equal(check_baseline_put(p.baseline, "P5", "head", &b, &e), OK);
    b.value = 90;
    assert_int_equal(check_baseline_put(p.baseline, "P5", "worker", &b, &e), OK);
    b.value = 95.25;
    assert_int_equal(check_baseline_put(p.baseline, "P5", "head", &b, &e), OK);
    assert_int_equal(check_baseline_get(p.baseline, "P5", "head", &got, &e), OK);
    assert_true(got.value == 95.25);
    assert_int_equal(check_baseline_get(p.baseline, "P5", "worker", &got, &e), OK);
    assert_true(got.value == 90);
    assert_int_equal(check_judge_baseline(91, 100, true), CHECK_STATUS_PASS);
    assert_int_equal(check_judge_baseline(85, 100, true), CHECK_STATUS_WARN);
    assert_int_equal(check_judge_baseline(65, 100, true), CHECK_STATUS_FAIL);
    assert_int_equal(check_judge_baseline(94, 63, false), CHECK_STATUS_FAIL);
    assert_int_equal(check_judge_baseline(1, 0, true), CHECK_STATUS_UNKNOWN);
    /* A boot that differs from the proved one is a warning. */
    str_copy(b.text, sizeof b.text, "another boot");
    assert_int_equal(check_baseline_put(p.baseline, "V8", "head", &b, &e), OK);
    collected *k = calloc(1, sizeof *k);
    check_status worst;
    assert_int_equal(check_run(p.c, "v8", 0, collect, k, &worst, &e), OK);
    assert_int_equal(k->all[0].status, CHECK_STATUS_WARN);
    free(k);
    pair_close(&p);
}

static void results_are_json(void **state) {
    (void)state;
    buf out = BUF_INIT;
    json_w w;
    json *v = NULL;
    check_result r = {.id = "M1",
        .node = "head",
        .status = CHECK_STATUS_WARN,
        .fact = "a \"fact\"",
        .reason = "because",
        .has_value = true,
        .value = 1.5};
    json_w_begin(&w, &out);
    check_write_json(&w, check_find("m1"), &r);
    assert_int_equal(json_w_end(&w), OK);
    assert_int_equal(json_parse(out.data, out.len, NULL, &v, NULL), OK);
    assert_string_equal(json_str(json_get(v, "status")), "WARN");
    assert_string_equal(json_str(json_get(v, "fact")), "a \"fact\"");
    assert_true(json_is_null(json_get(v, "remedy")));
    json_free(v);
    buf_release(&out);
}

/* Every row of the specification: machine (4.1 to 4.6) and cable (2.6, in its order). */
static void every_row_of_the_specification_is_there(void **state) {
    (void)state;
    static const char *const ids[] = {"V1", "V2", "V3", "V4", "V5", "V6", "V7", "V8", "V9", "K1",
        "M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "M9", "M10", "D1", "D2", "D3", "D4", "D5",
        "D6", "P1", "P2", "P3", "P4", "P5", "P6", "T1", "T2", "U1", "U2", "U3", "U4", "U5", "U6",
        "N-inventory", "N-peer", "N-route", "N-latency", "N-tcp", "N-rdma", "N-collective",
        "N-errors", "N-mtu", "N-gid", "N-half", "N-socket", "N-env", "S1"};
    size_t n = 0;
    (void)check_rows(&n);
    assert_int_equal(n, sizeof ids / sizeof ids[0]);
    for (size_t i = 0; i < n; i++) {
        const check_row *row = check_find(ids[i]);
        if (row == NULL) fail_msg("there is no check %s", ids[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_healthy_pair_passes),
        cmocka_unit_test(one_port_for_two_uses_is_a_fault),
        cmocka_unit_test(each_fault_is_found),
        cmocka_unit_test(a_missing_worker_is_unknown_or_skipped),
        cmocka_unit_test(baselines_are_kept_and_compared),
        cmocka_unit_test(results_are_json),
        cmocka_unit_test(every_row_of_the_specification_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
