/* Golden screens: the real program on a pseudo terminal with scripted keys beside a fake daemon,
 * compared as text with tests/data/screens. Every screen at 80x24 and 120x40, ASCII and block
 * glyphs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "tests/harness/screen_test.h"

static const char *const REPLY[] = {
    "The second ",
    "rank waits for ",
    "the all-reduce that closes ",
    "each layer. ",
    "Three causes are common:\n\n",
    "1. The chunk is **too",
    " small**, so launch cost dominates.\n",
    "2. One rank owns the embedding lookup.\n\n",
    "```c\nfor (int c = 0; ",
    "c < n_chunks; c++)\n    prefill_chunk(s, c, ",
    "chunk_len);\n```\n\n",
    "| chunk | t/s |\n|---|---:|\n| 512 | 1180 |\n",
    "| 2048 | 1720 |\n\n",
    "3. The link is ",
    "`slow`",
    ".",
};
#define N_REPLY ((int)(sizeof REPLY / sizeof REPLY[0]))

static const char *const THOUGHT[] = {
    "The user asks about ",
    "the second node. ",
    "Prefill is split by tensor parallel,\n",
    "so both ranks do half.",
    "Both ",
    "ranks ",
    "work.",
};

typedef struct look {
    const char *name;
    int n_rows, n_columns;
    const char *const *arguments;
} look;

static const char *const ASCII[] = {"--ascii", NULL};
static const look LOOKS[] = {
    {"80x24", 24, 80, NULL},
    {"120x40", 40, 120, NULL},
    {"80x24-ascii", 24, 80, ASCII},
    {"40x12", 12, 40, NULL},
};
#define N_LOOKS (sizeof LOOKS / sizeof LOOKS[0])

/* A sample without a rate: the plot of the side panel stays empty however long the test takes. */
static const char NO_RATE[] =
    "{\"time_ms\":1,\"uptime_s\":11520,\"state\":\"ready\",\"ranks\":[{\"rank\":0,\"step_ms\":26.1,"
    "\"step_ms_p95\":31.2,\"mem_process_bytes\":106837213184,"
    "\"mem_machine_used_bytes\":123587762585,"
    "\"mem_machine_total_bytes\":130673967104,\"cpu_percent\":94,\"gpu\":null}],"
    "\"tokens_per_s_now\":null,"
    "\"tokens_per_s_minute\":null,\"prefill_tokens_per_s_now\":null,\"kv\":{\"pages_used\":31,"
    "\"pages_total\":100},\"cache\":{\"pages\":null,\"hit_tokens\":9600,\"miss_tokens\":400},"
    "\"draft\":{\"proposed\":1000,\"accepted\":710},\"requests\":{\"queued\":0,\"running\":1,"
    "\"done\":418,\"failed\":2,\"cancelled\":0}}";

/* The program beside a daemon that plays a reply, up to the ready prompt. */
static void begin(screen_test *t, const screen_setup *s, const fake_reply *r) {
    screen_open(t, s);
    fake_daemon_stats(t->daemon, NO_RATE);
    if (r != NULL) fake_daemon_script(t->daemon, r);
    screen_run(t, s);
    screen_expect(t, "engine READY");
    if (s->n_columns >= 80) screen_expect(t, "262k");
}

static screen_setup setup_of(const look *l, const char *screen) {
    return (screen_setup){.n_rows = l->n_rows,
        .n_columns = l->n_columns,
        .screen = screen,
        .arguments = l->arguments};
}

static void golden(screen_test *t, const char *name, const look *l) {
    char full[96];
    snprintf(full, sizeof full, "%s-%s", name, l->name);
    screen_golden(t, full);
}

static void test_empty_chat(void **state) {
    (void)state;
    for (size_t i = 0; i < N_LOOKS; i++) {
        screen_test t;
        screen_setup s = setup_of(&LOOKS[i], NULL);
        begin(&t, &s, NULL);
        golden(&t, "chat-empty", &LOOKS[i]);
        screen_close(&t);
    }
}

static void test_reply(void **state) {
    (void)state;
    for (size_t i = 0; i < N_LOOKS; i++) {
        screen_test t;
        screen_setup s = setup_of(&LOOKS[i], NULL);
        fake_reply r = {.pieces = REPLY, .n_pieces = N_REPLY, .hold_after = 6};
        begin(&t, &s, &r);
        screen_keys(&t, "Why does the second node idle during prefill?\r");
        screen_expect(&t, "1. The chunk is");
        screen_expect(&t, "gen 6 tok");
        screen_keys(&t, "and what about B?\r");
        screen_keys(&t, "the next line\033\rof two rows");
        screen_expect(&t, "of two rows");
        golden(&t, "chat-writing", &LOOKS[i]);
        screen_keys(&t, "\003"); /* the reply is stopped first ... */
        screen_expect(&t, "stopped by you");
        golden(&t, "chat-stopped", &LOOKS[i]);
        screen_close(&t);
    }
}

static void test_finished(void **state) {
    (void)state;
    for (size_t i = 0; i < N_LOOKS; i++) {
        screen_test t;
        screen_setup s = setup_of(&LOOKS[i], NULL);
        fake_reply r = {.pieces = REPLY, .n_pieces = N_REPLY, .completion_tokens = 212};
        begin(&t, &s, &r);
        screen_keys(&t, "Why?\r");
        screen_expect(&t, "done 212 tok");
        golden(&t, "chat-done", &LOOKS[i]);
        screen_keys(&t, "\033"); /* to the transcript, to its top */
        /* Alone: with the next key it would be another one. */
        if (i < 3) screen_expect(&t, "i input");
        /* There is no room to say it at 40x12, but the cursor goes. */
        for (uint64_t end = clock_mono_ms() + 120000;
             t.term.screen.has_cursor && clock_mono_ms() < end;)
            pty_settle(&t.term, 20, 20);
        screen_keys(&t, "g");
        screen_expect(&t, "* You");
        if (i < 3) golden(&t, "chat-transcript", &LOOKS[i]);
        screen_close(&t);
    }
}

static void test_thinking(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        screen_test t;
        screen_setup s = setup_of(&LOOKS[i], NULL);
        fake_reply r = {.pieces = THOUGHT, .n_pieces = 7, .n_think = 4, .hold_after = 4};
        begin(&t, &s, &r);
        screen_keys(&t, "Think.\r");
        screen_expect(&t, "so both ranks do half.");
        screen_expect(&t, "thinking");
        fake_daemon_release(t.daemon);
        screen_expect(&t, "done 7 tok");
        golden(&t, "chat-thought", &LOOKS[i]);
        screen_keys(&t, "\033t"); /* Alt-t opens all thinking */
        screen_expect(&t, "The user asks about");
        golden(&t, "chat-thought-open", &LOOKS[i]);
        screen_close(&t);
    }
}

static void test_home(void **state) {
    (void)state;
    for (size_t i = 0; i < N_LOOKS; i++) {
        screen_test t;
        screen_setup s = setup_of(&LOOKS[i], NULL);
        fake_reply r = {.pieces = REPLY, .n_pieces = 4};
        begin(&t, &s, &r);
        screen_keys(&t, "A question about rope scaling\r");
        screen_expect(&t, "done 4 tok");
        screen_keys(&t, "/new\r");
        screen_expect_gone(&t, "Assistant");
        screen_keys(&t, "\033OQ");
        screen_expect(&t, "<1 Home>");
        screen_expect(&t, "READY for 3 h 12 m");
        golden(&t, "home", &LOOKS[i]);
        screen_close(&t);
    }
}

static void test_dash(void **state) {
    (void)state;
    for (size_t i = 0; i < N_LOOKS - 1; i++) {
        screen_test t;
        screen_setup s = setup_of(&LOOKS[i], "dash");
        screen_open(&t, &s);
        screen_run(&t, &s);
        screen_expect(&t, "now 38.4");
        screen_expect(
            &t, i == 2 ? "*" : "\xe2\x96\x88"); /* the first sample is plotted after a second */
        screen_keys(&t, "p");
        screen_expect(&t, "PAUSED");
        screen_close(&t);
    }
}

static void test_help(void **state) {
    (void)state;
    for (size_t i = 0; i < N_LOOKS; i++) {
        screen_test t;
        screen_setup s = setup_of(&LOOKS[i], NULL);
        begin(&t, &s, NULL);
        screen_keys(&t, "\033OP");
        screen_expect(&t, "Help: Chat");
        golden(&t, "help-chat", &LOOKS[i]);
        screen_keys(&t, "copy");
        screen_expect(&t, "filter: copy");
        screen_keys(&t, "\033");
        screen_expect_gone(&t, "Help: Chat");
        screen_close(&t);
    }
}

static void test_failure(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        screen_test t;
        screen_setup s = setup_of(&LOOKS[i], NULL);
        fake_reply r = {.pieces = REPLY, .n_pieces = 5, .finish = "error"};
        begin(&t, &s, &r);
        screen_keys(&t, "Why?\r");
        screen_expect(&t, "stopped here: rank 1 was killed (signal 9)");
        golden(&t, "chat-failed", &LOOKS[i]);
        screen_close(&t);
    }
}

static void test_leave_dialog(void **state) {
    (void)state;
    screen_test t;
    screen_setup s = setup_of(&LOOKS[0], NULL);
    screen_open(&t, &s);
    screen_run(&t, &s);
    screen_expect(&t, "engine READY");
    screen_expect(&t, "262k");
    screen_keys(&t, "unsent");
    screen_expect(&t, "> unsent");
    screen_keys(&t, "\033[21~");
    screen_expect(&t, "Leave Tandem");
    golden(&t, "leave", &LOOKS[0]);
    screen_keys(&t, "\r");
    screen_expect_end(&t);
    assert_int_equal(t.term.status, 0);
    screen_close(&t);
}

static void test_colors(void **state) {
    (void)state;
    static const struct {
        const char *env[3];
        int most;
    } LEVELS[] = {{{"NO_COLOR=1", NULL}, -1}, {{"TERM=xterm", NULL}, 7},
        {{"TERM=xterm-256color", NULL}, 255}};
    for (size_t i = 0; i < 3; i++) {
        screen_test t;
        screen_setup s = setup_of(&LOOKS[0], NULL);
        fake_reply r = {.pieces = REPLY, .n_pieces = N_REPLY};
        s.env = LEVELS[i].env;
        begin(&t, &s, &r);
        screen_keys(&t, "Why?\r");
        screen_expect(&t, "done 16 tok");
        int most = -1;
        for (int row = 0; row < 24; row++) {
            for (int column = 0; column < 80; column++) {
                int color = vt_at(&t.term.screen, row, column)->color;
                if (color > most) most = color;
            }
        }
        assert_true(most <= LEVELS[i].most);
        if (i == 1) assert_true(most > 0);
        if (i == 2) assert_true(most > 15);
        screen_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_chat),
        cmocka_unit_test(test_reply),
        cmocka_unit_test(test_finished),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_home),
        cmocka_unit_test(test_dash),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_failure),
        cmocka_unit_test(test_leave_dialog),
        cmocka_unit_test(test_colors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
