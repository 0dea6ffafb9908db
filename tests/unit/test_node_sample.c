/* What a rank says of its machine: GPU readings through the library's functions, RDMA counters from
 * a tree that stands for /sys, one sample for all who ask. Also the figures of steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/api/gpu_sample.h"
#include "engine/api/node_sample.h"
#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/base/histogram.h"
#include "engine/base/mem.h"
#include "engine/run/run.h"
#include "engine/run/step_times.h"

static int n_open, power_code;
static unsigned long long throttle_reasons;

static int ok_init(void) {
    n_open++;
    return 0;
}
static int ok_end(void) {
    n_open--;
    return 0;
}
static int one_device(unsigned index, void **device) {
    static int here;
    *device = &here;
    return index == 0 ? 0 : 2;
}
static int use(void *device, unsigned percent[2]) {
    (void)device;
    percent[0] = 94;
    percent[1] = 70;
    return 0;
}
static int sm_clock(void *device, int kind, unsigned *mhz) {
    (void)device;
    *mhz = kind == 1 ? 2405 : 0;
    return 0;
}
static int power(void *device, unsigned *milliwatt) {
    (void)device;
    *milliwatt = 58500;
    return power_code;
}
static int temperature(void *device, int kind, unsigned *celsius) {
    (void)device;
    *celsius = 61;
    return kind;
}
static int throttle(void *device, unsigned long long *reasons) {
    (void)device;
    *reasons = throttle_reasons;
    return 0;
}
static const gpu_functions fake = {
    ok_init, ok_end, one_device, use, sm_clock, power, temperature, throttle};

static void gpu_readings(void **state) {
    (void)state;
    rank_figures f;
    rank_figures_init(&f);
    gpu_sampler *s = gpu_sampler_open(&fake, 0);
    assert_non_null(s);
    gpu_sampler_take(s, &f);
    assert_true(f.gpu_percent == 94.0 && f.gpu_mhz == 2405.0 && f.gpu_watt == 58.5);
    assert_true(f.gpu_celsius == 61.0 && f.gpu_throttles == 0.0);
    power_code = 3; /* not supported: unknown, not 0 */
    throttle_reasons = 0x40;
    gpu_sampler_take(s, &f);
    assert_true(f.gpu_watt == -1.0 && f.gpu_throttles == 1.0 && f.gpu_percent == 94.0);
    throttle_reasons = 0x4; /* the power limit of a full load */
    gpu_sampler_take(s, &f);
    assert_true(f.gpu_throttles == 0.0);
    gpu_sampler_close(s);
    assert_int_equal(n_open, 0);
    assert_null(gpu_sampler_open(&fake, 1));
    assert_int_equal(n_open, 0);
    gpu_sampler_take(NULL, &f);
    assert_true(f.gpu_percent == -1.0);
}

static void put(const char *dir, const char *port, const char *name, const char *text) {
    char path[512];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/class/infiniband/%s/ports/1/counters", dir, port);
    assert_int_equal(dir_make_all(path, 0700, &e), OK);
    snprintf(path, sizeof path, "%s/class/infiniband/%s/ports/1/%s", dir, port, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, &e), OK);
}

static void put_port(const char *dir, const char *port, const char *state, const char *sent) {
    put(dir, port, "state", state);
    put(dir, port, "counters/port_xmit_data", sent);
    put(dir, port, "counters/port_rcv_data", "50\n");
}

/* Two rails in the order of their names; a port that is down is none; words are four bytes. */
static void rdma_counters(void **state) {
    (void)state;
    char dir[] = "/tmp/tandem-sys.XXXXXX";
    rank_figures f;
    rank_figures_init(&f);
    assert_non_null(mkdtemp(dir));
    put_port(dir, "rocep1s0f1", "4: ACTIVE\n", "200\n");
    put_port(dir, "roceP2p1s0f0", "1: DOWN\n", "999\n");
    put_port(dir, "rocep1s0f0", "4: ACTIVE\n", "100\n");
    put_port(dir, "zzz", "4: ACTIVE\n", "7\n");
    node_sampler *s = node_sampler_new(dir);
    node_sampler_take(s, &f);
    assert_int_equal(f.n_rails, 2);
    assert_string_equal(f.rails[0].name, "rocep1s0f0");
    assert_string_equal(f.rails[1].name, "rocep1s0f1");
    assert_true(f.rails[0].bytes == 600.0 && f.rails[1].bytes == 1000.0 && f.rails[0].is_rdma);
    assert_true(f.process_bytes > 0.0 && f.machine_total_bytes > f.machine_available_bytes);
    assert_true(f.time_ms > 0 && f.pid > 0 && f.step_ms < 0.0);
    uint64_t first = f.time_ms;
    node_sampler_take(s, &f); /* at once: the same sample */
    assert_true(f.time_ms == first || f.time_ms - first >= NODE_SAMPLE_MS - 1);
    node_sampler_free(s);
    s = node_sampler_new("/tmp/there-is-no-such-folder");
    node_sampler_take(s, &f);
    assert_int_equal(f.n_rails, 0);
    node_sampler_free(s);
    (void)dir_remove_all(dir, NULL);
}

static void step_times_are_kept(void **state) {
    (void)state;
    static step_times t;
    double mean, p95;
    step_times_read(&t, &mean, &p95);
    assert_true(mean == -1.0 && p95 == -1.0);
    for (int i = 0; i < 1000; i++) {
        step_times_add(&t, i < 900 ? 1000000u : 3000000u);
    }
    step_times_read(&t, &mean, &p95);
    assert_true(mean == 3.0 && p95 == 3.0);
    step_times_add(&t, UINT64_MAX);
    step_times_read(&t, &mean, NULL);
    assert_true(mean > 1000.0);
}

static void histograms_add_up(void **state) {
    (void)state;
    static histogram h;
    static const double limits[] = {1.0, 2.0, 4.0};
    const metric_bounds bounds = {limits, 3};
    histogram_counts c;
    buf out = BUF_INIT;
    const double values[] = {0.5, 1.0, 1.5, 4.0, 9.0};
    for (int i = 0; i < 5; i++) {
        histogram_add(&h, &bounds, values[i]);
    }
    histogram_read(&h, &bounds, &c);
    assert_int_equal(c.n, 5);
    assert_true(c.sum == 16.0 && c.counts[0] == 2 && c.counts[1] == 1 && c.counts[2] == 1);
    histogram_print(&c, &bounds, "x", NULL, &out);
    assert_string_equal(buf_cstr(&out),
        "x_bucket{le=\"1\"} 2\nx_bucket{le=\"2\"} 3\nx_bucket{le=\"4\"} 4\n"
        "x_bucket{le=\"+Inf\"} 5\nx_sum 16\nx_count 5\n");
    buf_reset(&out);
    histogram_print(&c, &bounds, "x", "rank=\"1\"", &out);
    assert_non_null(strstr(buf_cstr(&out), "x_bucket{rank=\"1\",le=\"2\"} 3\n"));
    assert_non_null(strstr(buf_cstr(&out), "x_count{rank=\"1\"} 5\n"));
    buf_release(&out);
}

/* What the step thread counts with takes no memory: every allocation would fail here. */
static void counting_does_not_allocate(void **state) {
    (void)state;
    static histogram h;
    static step_times t;
    mem_fail_after(0);
    for (int i = 0; i < 1000; i++) {
        histogram_add(&h, &RUN_STEP_SECONDS, i / 1e3);
        histogram_add(&h, &RUN_STEP_ROWS, i);
        step_times_add(&t, (uint64_t)i * 1000);
    }
    assert_null(mem_try_alloc(1)); /* the first one */
    mem_fail_after(-1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpu_readings),
        cmocka_unit_test(rdma_counters), cmocka_unit_test(step_times_are_kept),
        cmocka_unit_test(histograms_add_up), cmocka_unit_test(counting_does_not_allocate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
