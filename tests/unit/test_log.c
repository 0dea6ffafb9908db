#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/log.h"
#include "engine/base/metric.h"

/* Lines as the sink gets them, joined. */
static void keep_line(void *ctx, log_level level, const char *line, size_t len) {
    (void)level;
    assert_int_equal(line[len - 1], '\n');
    assert_int_equal(buf_append(ctx, line, len), OK);
}

static void open_log(buf *lines, log_level level) {
    log_options o = {.fd = -1,
        .level = level,
        .node = "spark-a",
        .rank = 1,
        .sink = keep_line,
        .sink_ctx = lines};
    log_open(&o);
}

static void a_line_stands_alone(void **state) {
    (void)state;
    buf lines = BUF_INIT;
    LOG(LOG_ERROR, "test", "before opening nothing is written");
    open_log(&lines, LOG_INFO);
    log_request("r-7");
    LOG(LOG_WARN, "run", "queue full", "depth=%d name=%s", 5, "a\nb\x1b[31m");
    log_request(NULL);
    LOG(LOG_DEBUG, "run", "too detailed");
    LOG(LOG_INFO, "run", "no pairs");
    log_close();
    LOG(LOG_ERROR, "test", "after closing nothing is written");
    const char *text = buf_cstr(&lines);
    assert_non_null(strstr(text, " warn  run: queue full node=spark-a rank=1 request=r-7 depth=5 "
                                 "name=a\\nb\\x1b[31m\n"));
    assert_non_null(strstr(text, " info  run: no pairs node=spark-a rank=1\n"));
    assert_null(strstr(text, "detailed"));
    assert_null(strstr(text, "nothing"));
    assert_int_equal(text[4], '-');
    assert_int_equal(text[23], 'Z');
    buf_release(&lines);
}

static void secrets_are_hidden(void **state) {
    (void)state;
    buf lines = BUF_INIT;
    open_log(&lines, LOG_INFO);
    log_hide("correct horse");
    LOG(LOG_INFO, "api", "login", "key=%s again=%s", "correct horse", "correct horse");
    LOG(LOG_INFO, "api", "header", "authorization=Bearer abcdef0123456789 tok=hf_AbCdEfGhIjKl");
    log_close();
    const char *text = buf_cstr(&lines);
    assert_null(strstr(text, "correct horse"));
    assert_null(strstr(text, "abcdef0123456789"));
    assert_null(strstr(text, "AbCdEfGhIjKl"));
    assert_non_null(strstr(text, "key=************* again=*************"));
    buf_release(&lines);
}

/* The secret may be wiped by its holder: what is kept finds it and is not it. */
static void hidden_at_every_place_of_a_line(void **state) {
    (void)state;
    static const char *const lines_in[] = {"open sesame", "xopen sesame", "open sesamex",
        "open sesameopen sesame", "oopen sesame!", "open sesam", "open Sesame", "ppen sesame"};
    static const char *const lines_out[] = {"***********", "x***********", "***********x",
        "**********************", "o***********!", "open sesam", "open Sesame", "ppen sesame"};
    char secret[] = "open sesame";
    log_hide(secret);
    explicit_bzero(secret, sizeof secret);
    for (size_t i = 0; i < sizeof lines_in / sizeof lines_in[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", lines_in[i]);
        log_redact(text, strlen(text));
        assert_string_equal(text, lines_out[i]);
    }
}

static void one_place_is_limited(void **state) {
    (void)state;
    buf lines = BUF_INIT;
    open_log(&lines, LOG_INFO);
    uint64_t start = clock_mono_ms();
    for (int i = 0; i < 10 * LOG_BURST; i++)
        LOG(LOG_INFO, "run", "again", "i=%d", i);
    int n_changes = 1 + (int)((clock_mono_ms() - start) / 1000); /* of the second, meanwhile */
    LOG(LOG_INFO, "run", "another place");
    log_close();
    int n = 0;
    for (const char *at = lines.data; (at = strstr(at, "again")) != NULL; at++)
        n++;
    assert_in_range(n, LOG_BURST, (1 + n_changes) * LOG_BURST);
    assert_non_null(strstr(lines.data, "another place"));
    buf_release(&lines);
}

static void long_lines_are_cut(void **state) {
    (void)state;
    buf lines = BUF_INIT;
    open_log(&lines, LOG_INFO);
    char big[5000];
    memset(big, '\x01', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    LOG(LOG_INFO, "run", "big", "v=%s", big);
    log_close();
    assert_in_range(lines.len, 500, LOG_LINE_MAX);
    assert_int_equal(lines.data[lines.len - 1], '\n');
    buf_release(&lines);
}

static void goes_to_a_descriptor(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    log_open(&(log_options){.fd = ends[1], .level = LOG_INFO, .rank = -1});
    LOG(LOG_INFO, "run", "hello");
    log_close();
    char got[200] = {0};
    assert_true(read(ends[0], got, sizeof got - 1) > 0);
    assert_non_null(strstr(got, " info  run: hello\n"));
    (void)close(ends[0]);
    (void)close(ends[1]);
    log_level level = LOG_ERROR;
    assert_int_equal(log_level_parse("DEBUG", &level), OK);
    assert_int_equal(level, LOG_DEBUG);
    assert_int_equal(log_level_parse("loud", &level), ERR_ARG);
}

static void metrics_print_as_prometheus(void **state) {
    (void)state;
    metrics *m = metrics_new("tandem_");
    buf labels = BUF_INIT;
    assert_int_equal(metric_label(&labels, "path", "a\"b\\c\nd"), OK);
    assert_int_equal(metric_label(&labels, "status", "200"), OK);
    metric *c = metric_counter(m, "requests_total", "Requests.", buf_cstr(&labels));
    assert_ptr_equal(c, metric_counter(m, "requests_total", "Requests.", buf_cstr(&labels)));
    metric_add(c, 2);
    metric_add(c, 0.5);
    metric *g = metric_gauge(m, "kv_pages", "Pages.", NULL);
    metric *unknown = metric_gauge(m, "gpu_load", "Load.", NULL);
    metric_set(g, 7);
    metric_set(unknown, 3);
    metric_unset(unknown);
    const double bounds[] = {0.1, 1};
    metric *h = metric_histogram(m, "wait_seconds", "Waits.", NULL, (metric_bounds){bounds, 2});
    metric_observe(h, 0.1);
    metric_observe(h, 0.5);
    metric_observe(h, 100);
    metric_observe(h, (double)NAN);
    buf out = BUF_INIT;
    assert_int_equal(metrics_print(m, &out), OK);
    assert_string_equal(buf_cstr(&out),
        "# HELP tandem_requests_total Requests.\n# TYPE tandem_requests_total counter\n"
        "tandem_requests_total{path=\"a\\\"b\\\\c\\nd\",status=\"200\"} 2.5\n"
        "# HELP tandem_kv_pages Pages.\n# TYPE tandem_kv_pages gauge\ntandem_kv_pages 7\n"
        "# HELP tandem_gpu_load Load.\n# TYPE tandem_gpu_load gauge\n"
        "# HELP tandem_wait_seconds Waits.\n# TYPE tandem_wait_seconds histogram\n"
        "tandem_wait_seconds_bucket{le=\"0.1\"} 1\ntandem_wait_seconds_bucket{le=\"1.0\"} 2\n"
        "tandem_wait_seconds_bucket{le=\"+Inf\"} 3\ntandem_wait_seconds_sum 100.6\n"
        "tandem_wait_seconds_count 3\n");
    assert_false(metric_read(unknown).is_valid);
    assert_true(metric_read(g).is_valid && metric_read(g).value == 7 && metric_read(g).time_ms > 0);
    metric_shift(unknown, 2);
    assert_true(metric_read(unknown).value == 2);
    assert_int_equal(metric_read(h).n, 3);
    buf_release(&out);
    buf_release(&labels);
    metrics_free(m);
}

static void quantiles(void **state) {
    (void)state;
    metrics *m = metrics_new("");
    metric *h = metric_histogram(m, "x", "X.", NULL, METRIC_SECONDS);
    double v = -1;
    assert_false(metric_quantile(h, 0.5, &v));
    for (int i = 1; i <= 100; i++)
        metric_observe(h, i / 100.0);
    assert_true(metric_quantile(h, 0.5, &v));
    assert_true(fabs(v - 0.5) < 1e-9);
    assert_true(metric_quantile(h, 0.95, &v));
    assert_true(fabs(v - 0.95) < 1e-9);
    metric_observe(h, 1e6);
    assert_true(metric_quantile(h, 1.0, &v));
    assert_true(v == 600);
    metrics_free(m);
}

static void too_many_series_share_one(void **state) {
    (void)state;
    metrics *m = metrics_new("");
    metric *last = NULL;
    for (int i = 0; i < METRIC_MAX_SERIES + 10; i++) {
        char labels[32];
        (void)snprintf(labels, sizeof labels, "i=\"%d\"", i);
        last = metric_counter(m, "c", "C.", labels);
        metric_add(last, 1);
    }
    assert_true(metric_read(last).value == 10);
    metrics_free(m);
}

static void *add_thousand(void *arg) {
    for (int i = 0; i < 10000; i++)
        metric_add(arg, 1);
    return NULL;
}

static void adding_from_threads_loses_nothing(void **state) {
    (void)state;
    metrics *m = metrics_new("");
    metric *c = metric_counter(m, "c", "C.", NULL);
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, add_thousand, c), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    assert_true(metric_read(c).value == 40000);
    metrics_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_stands_alone),
        cmocka_unit_test(secrets_are_hidden),
        cmocka_unit_test(hidden_at_every_place_of_a_line),
        cmocka_unit_test(one_place_is_limited),
        cmocka_unit_test(long_lines_are_cut),
        cmocka_unit_test(goes_to_a_descriptor),
        cmocka_unit_test(metrics_print_as_prometheus),
        cmocka_unit_test(quantiles),
        cmocka_unit_test(too_many_series_share_one),
        cmocka_unit_test(adding_from_threads_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
