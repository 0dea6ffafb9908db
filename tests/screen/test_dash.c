/* The Dashboard over scripted samples of two nodes: golden screens, alerts, memory by parts, one node
 * alone, a node that is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "tests/harness/screen_test.h"

/* Of one rank; no rate in it, so that plots stay empty however long the test takes. */
static void put_rank(buf *out, int rank, const char *state, const char *gpu) {
    buf_printf(out,
        "%s{\"rank\":%d,\"state\":\"%s\",\"phase\":\"ready\",\"time_ms\":1,\"age_s\":0.0,"
        "\"steps\":%d,\"step_ms\":26.1,\"step_ms_p95\":31.2,\"exchange_ms\":2.5,"
        "\"exchange_share\":0.08,\"link_bytes_per_s\":41200000,\"mem_process_bytes\":106837213184,"
        "\"mem_machine_used_bytes\":%s,\"mem_machine_total_bytes\":130673967104,"
        "\"mem_machine_available_bytes\":7086204519,\"mem_weights_bytes\":94489280512,"
        "\"mem_cache_bytes\":2684354560,\"mem_work_bytes\":2147483648,\"mem_engram_bytes\":0,"
        "\"mem_pressure\":0.0,\"cpu_percent\":null,\"gpu\":%s}",
        rank > 0 ? "," : "", rank, state, 1000, rank == 0 ? "123587762585" : "122299273216", gpu);
}

static void fill(buf *out, const char *state_b, const char *gpu_b) {
    buf_reset(out);
    buf_puts(out, "{\"time_ms\":1,\"uptime_s\":11520,\"state\":\"ready\",\"ranks\":[");
    put_rank(out, 0, "up",
        "{\"percent\":94,\"mhz\":2405,\"watt\":58.0,\"celsius\":61,\"throttled\":false}");
    put_rank(out, 1, state_b, gpu_b);
    buf_puts(out,
        "],\"tokens_per_s_now\":null,\"tokens_per_s_minute\":null,"
        "\"prefill_tokens_per_s_now\":null,\"steps_per_s_now\":null,"
        "\"kv\":{\"pages_used\":31,\"pages_kept\":12,\"pages_total\":100},"
        "\"cache\":{\"pages\":12,\"marks\":3,\"evictions\":0,\"hit_tokens\":9600,"
        "\"disk_hit_tokens\":1200,\"miss_tokens\":400,\"disk_bytes\":734003200,\"disk_errors\":0},"
        "\"draft\":{\"proposed\":1000,\"accepted\":710,\"proposed_at\":[250,220,200,180,150],"
        "\"accepted_at\":[225,170,140,105,70]},"
        "\"requests\":{\"queued\":0,\"running\":0,\"done\":418,\"failed\":2,\"cancelled\":0,"
        "\"refused\":0},\"steps\":{\"n\":1000,\"rows\":5000},"
        "\"engram\":{\"rows\":1,\"errors\":0,\"read_ms_mean\":null},"
        "\"last_reply\":{\"time_ms\":1,\"first_token_ms\":410,\"queue_ms\":0,"
        "\"prefill_per_s\":1720,\"tokens_per_s\":38.4,\"prompt_tokens\":1000,\"cached_tokens\":960,"
        "\"tokens\":212,\"drafted\":300,\"accepted\":213}}");
}

static const char GPU_B[] =
    "{\"percent\":93,\"mhz\":2390,\"watt\":55.0,\"celsius\":59,\"throttled\":false}";
static const char SLOW_B[] =
    "{\"percent\":100,\"mhz\":513,\"watt\":15.0,\"celsius\":48,\"throttled\":false}";

static void begin(screen_test *t, const screen_setup *s, const buf *stats) {
    screen_open(t, s);
    fake_daemon_stats(t->daemon, buf_cstr((buf *)(uintptr_t)stats));
    screen_run(t, s);
    screen_expect(t, "KV cache");
    screen_expect(t, "no alerts");
}

static void golden_screens(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int n_rows, n_columns;
    } sizes[] = {{"80x24", 24, 80}, {"120x40", 40, 120}, {"60x16", 16, 60}};
    buf stats = BUF_INIT;
    fill(&stats, "up", GPU_B);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        screen_test t;
        char name[64];
        screen_setup s = {
            .n_rows = sizes[i].n_rows, .n_columns = sizes[i].n_columns, .screen = "dash"};
        begin(&t, &s, &stats);
        if (sizes[i].n_columns >= 80) screen_expect(&t, "sampled A 0.");
        snprintf(name, sizeof name, "dash-%s", sizes[i].name);
        screen_golden(&t, name);
        if (i == 0) {
            screen_keys(&t, "m");
            screen_expect(&t, "shared");
            screen_golden(&t, "dash-memory-80x24");
            screen_keys(&t, "mb");
            screen_expect_gone(&t, "Node B");
            screen_keys(&t, "b");
            screen_expect(&t, "Node B");
            screen_expect_gone(&t, "Node A");
            screen_keys(&t, "b");
            screen_expect(&t, "Node A");
        }
        screen_close(&t);
    }
    buf_release(&stats);
}

/* Pages that only the prefix cache keeps stand in the bar beside those in use, in another glyph and in
 * words: without colour too, and when nothing runs. */
static void kept_pages_are_seen_without_colour(void **state) {
    static const char *const plain[] = {"--ascii", "--color", "none", NULL};
    (void)state;
    screen_test t;
    buf stats = BUF_INIT, idle = BUF_INIT;
    screen_setup s = {.n_rows = 24, .n_columns = 80, .screen = "dash", .arguments = plain};
    fill(&stats, "up", GPU_B);
    begin(&t, &s, &stats);
    screen_expect(
        &t, "| A [#########====.................]  794 MiB used, 307 MiB kept of 2.5 GiB");
    const char *used = strstr(buf_cstr(&stats), "\"pages_used\":31");
    assert_non_null(used);
    buf_append(&idle, stats.data, (size_t)(used - stats.data));
    buf_puts(&idle, "\"pages_used\":0");
    buf_puts(&idle, used + strlen("\"pages_used\":31"));
    fake_daemon_stats(t.daemon, buf_cstr(&idle));
    screen_expect(&t, "| A [====..........................]  0 B used, 307 MiB kept of 2.5 GiB");
    screen_close(&t);
    buf_release(&stats);
    buf_release(&idle);
}

/* The alert names node, value and what to do; it goes when the clock is up again. */
static void a_slow_clock_is_an_alert(void **state) {
    (void)state;
    screen_test t;
    buf stats = BUF_INIT;
    screen_setup s = {.n_rows = 24, .n_columns = 80, .screen = "dash"};
    fill(&stats, "up", GPU_B);
    begin(&t, &s, &stats);
    fill(&stats, "up", SLOW_B);
    fake_daemon_stats(t.daemon, buf_cstr(&stats));
    screen_expect(&t, "! B: low clock: 513 MHz at 100 % use");
    fill(&stats, "up", GPU_B);
    fake_daemon_stats(t.daemon, buf_cstr(&stats));
    screen_expect(&t, "no alerts");
    screen_close(&t);
    buf_release(&stats);
}

static void a_lost_node_is_an_alert(void **state) {
    (void)state;
    screen_test t;
    buf stats = BUF_INIT;
    screen_setup s = {.n_rows = 24, .n_columns = 80, .screen = "dash"};
    fill(&stats, "up", GPU_B);
    begin(&t, &s, &stats);
    fill(&stats, "lost", "null");
    fake_daemon_stats(t.daemon, buf_cstr(&stats));
    screen_expect(&t, "! B: is lost");
    screen_close(&t);
    buf_release(&stats);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_screens),
        cmocka_unit_test(kept_pages_are_seen_without_colour),
        cmocka_unit_test(a_slow_clock_is_an_alert), cmocka_unit_test(a_lost_node_is_an_alert)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
