/* Samples of the engine: unknown stays unknown, gaps stay gaps, windows and scales of plots. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "tui/gauges.h"
#include "tui/plot.h"

static const char STATS[] =
    "{\"uptime_s\":5,\"state\":\"ready\",\"ranks\":[{\"rank\":0,\"step_ms\":2.5,\"step_ms_p95\":null,"
    "\"mem_process_bytes\":100,\"cpu_percent\":50,\"gpu\":null}],\"tokens_per_s_now\":12.5,"
    "\"kv\":{\"pages_used\":null,\"pages_total\":8},\"draft\":{\"proposed\":10,\"accepted\":7},"
    "\"future_field\":[1,2]}";

static int take(gauges *g, const char *text, uint64_t now) {
    return gauges_take_stats(g, text, strlen(text), now, NULL);
}

static void test_unknown_is_not_zero(void **state) {
    (void)state;
    gauges *g = mem_alloc(sizeof *g);
    gauges_init(g);
    assert_true(isnan(g->tokens_now) && g->kv_used == -1 && gauges_age(g, 10) < 0);
    assert_int_equal(take(g, STATS, 1000), OK);
    assert_int_equal(g->state, ENGINE_READY);
    assert_true(g->tokens_now == 12.5 && isnan(g->tokens_minute) && isnan(g->ranks[0].step_ms_p95));
    assert_int_equal(g->kv_used, -1);
    assert_int_equal(g->kv_total, 8);
    assert_false(g->ranks[0].has_gpu);
    assert_true(gauges_draft_share(g) == 0.7 && isnan(gauges_hit_share(g)));
    assert_true(gauges_age(g, 3000) == 2.0);
    assert_int_equal(take(g, "{\"ranks\":", 2000), ERR_FORMAT);
    assert_true(g->tokens_now == 12.5);
    mem_free(g);
}

static void test_rings(void **state) {
    (void)state;
    float out[4000];
    gauges *g = mem_alloc(sizeof *g);
    gauges_init(g);
    gauges_tick(g, 1000);
    for (uint64_t now = 2000; now <= 6000; now += 1000) {
        if (now != 4000)
            assert_int_equal(take(g, STATS, now), OK);
        else
            g->has_sample = false; /* one sample is missing */
        assert_true(gauges_tick(g, now));
    }
    assert_false(gauges_tick(g, 6500));
    assert_int_equal(gauges_window(&g->decode, 60, out, 4000), 60);
    assert_true(isnan(out[54]) && out[55] == 12.5f && isnan(out[57]) && out[59] == 12.5f);
    assert_int_equal(gauges_window(&g->decode, 60, out, 10), 10);
    /* Hours of suspension: gaps, and no endless loop. */
    assert_true(gauges_tick(g, 6000 + 100ull * 3600 * 1000));
    assert_int_equal(gauges_window(&g->decode, 1800, out, 4000), 1800);
    assert_true(isnan(out[1799]) && isnan(out[0]));
    mem_free(g);
}

static void test_state(void **state) {
    (void)state;
    gauges *g = mem_alloc(sizeof *g);
    static const char TEXT[] =
        "{\"state\":\"failed\",\"reason\":\"no memory\",\"model\":{\"id\":\"m\","
        "\"context\":4096,\"demo\":true},\"streams\":{\"limit\":4}}";
    gauges_init(g);
    assert_int_equal(gauges_take_state(g, TEXT, strlen(TEXT), 5, NULL), OK);
    assert_int_equal(g->state, ENGINE_FAILED);
    assert_string_equal(g->reason, "no memory");
    assert_string_equal(g->model_id, "m");
    assert_int_equal(g->context, 4096);
    assert_int_equal(g->streams, 4);
    assert_true(g->is_demo);
    mem_free(g);
}

static void test_scale(void **state) {
    (void)state;
    assert_true(plot_nice_maximum(0, 0) == 1);
    assert_true(plot_nice_maximum(38.4, 0) == 50);
    assert_true(plot_nice_maximum(51, 50) == 100);
    assert_true(plot_nice_maximum(48, 100) == 100); /* just under: it stays */
    assert_true(plot_nice_maximum(40, 100) == 50);
    float samples[] = {1, NAN, 3, 2};
    plot_series s = {samples, 4};
    assert_true(plot_largest(&s) == 3);
}

static void row_text(const canvas *c, int row, char *out) {
    for (int i = 0; i < c->n_columns; i++) {
        const cell *k = canvas_at(c, row, i);
        *out++ = k->len == 0 ? ' ' : k->text[0];
    }
    *out = '\0';
}

static void test_drawing(void **state) {
    (void)state;
    theme look = theme_choose("none", 0, false, true);
    canvas c;
    char text[64];
    float samples[] = {0, 5, NAN, 10};
    plot_series s = {samples, 4};
    canvas_init(&c);
    canvas_resize(&c, 2, 20);
    pen p = pen_on(&c, canvas_area(&c));
    plot_meter(&p, &look, 0.5, 10);
    row_text(&c, 0, text);
    assert_string_equal(text, "[#####.....]        ");
    pen_move(&p, 1, 0);
    plot_meter(&p, &look, (double)NAN, 4);
    plot_sparkline(&p, &look, &s, 10, 4);
    row_text(&c, 1, text);
    assert_string_equal(text, "[....] : *          "); /* nothing, half, a gap, full */
    canvas_release(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_is_not_zero),
        cmocka_unit_test(test_rings),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_drawing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
