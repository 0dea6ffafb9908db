/* What the full screen does: stopping, queueing, drafts, branches, deaths of either side, resizes.
 * The real program on a pseudo terminal beside a fake daemon. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/rand.h"
#include "tests/harness/screen_test.h"

static const char *const WORDS[] = {"one ", "two ", "three ", "four ", "five ", "six "};
enum { WAIT_MS = 120000 };
static const screen_setup PLAIN = {.n_rows = 24, .n_columns = 80};

static void begin(screen_test *t, const screen_setup *s, const fake_reply *r) {
    screen_open(t, s);
    if (r != NULL) fake_daemon_script(t->daemon, r);
    screen_run(t, s);
    screen_expect(t, "engine READY");
}

/* The newest request holds the text; it may be on its way still. */
static void expect_body(screen_test *t, const char *text) {
    char *body = NULL;
    bool found = false;
    for (uint64_t end = clock_mono_ms() + WAIT_MS; !found && clock_mono_ms() < end;) {
        free(body);
        body = fake_daemon_last_body(t->daemon);
        found = strstr(body, text) != NULL;
        if (!found) pty_settle(&t->term, 20, 20);
    }
    if (!found) fail_msg("the request does not hold %s: %s", text, body);
    free(body);
}

static void test_stop(void **state) {
    (void)state;
    screen_test t;
    const fake_reply r = {.pieces = WORDS, .n_pieces = 6, .hold_after = 3};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "count\r");
    screen_expect(&t, "one two three");
    screen_keys(&t, "\003");
    screen_expect(&t, "stopped by you");
    screen_expect(&t, "one two three");
    for (uint64_t end = clock_mono_ms() + WAIT_MS;
         fake_daemon_n_gone(t.daemon) == 0 && clock_mono_ms() < end;)
        pty_settle(&t.term, 20, 20);
    assert_int_equal(fake_daemon_n_gone(t.daemon), 1);
    screen_keys(&t, "\003");
    screen_expect(&t, "nothing to stop; Ctrl-D or F10 leaves");
    screen_keys(&t, "\003");
    screen_expect(&t, "Leave Tandem");
    screen_close(&t);
}

static void test_queue(void **state) {
    (void)state;
    screen_test t;
    const fake_reply r = {.pieces = WORDS, .n_pieces = 2, .hold_after = 2};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "first\r");
    screen_expect(&t, "one two");
    screen_keys(&t, "second\rthird\r");
    screen_expect(&t, "queued 1: second");
    screen_expect(&t, "queued 2: third");
    screen_keys(&t, "\030\021"); /* Ctrl-X Ctrl-Q */
    screen_expect(&t, "> second");
    screen_keys(&t, "\003"); /* stops the reply, the text stays */
    screen_expect(&t, "stopped by you");
    screen_expect(&t, "queued 1: third");
    fake_daemon_script(t.daemon, &(fake_reply){.pieces = WORDS, .n_pieces = 6});
    screen_keys(&t, "\003\r"); /* clears the line; an empty Enter sends what waits */
    screen_expect(&t, "six");
    expect_body(&t, "third");
    screen_close(&t);
}

static void test_escape_twice(void **state) {
    (void)state;
    screen_test t;
    const fake_reply r = {.pieces = WORDS, .n_pieces = 2, .hold_after = 2};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "first\r");
    screen_expect(&t, "one two");
    screen_keys(&t, "second\r");
    screen_expect(&t, "queued 1: second");
    fake_daemon_script(t.daemon, &(fake_reply){.pieces = WORDS, .n_pieces = 6});
    screen_keys(&t, "\033\033");
    screen_expect(&t, "six");
    expect_body(&t, "second");
    screen_close(&t);
}

static void test_draft_survives_kill(void **state) {
    (void)state;
    screen_test t;
    begin(&t, &PLAIN, NULL);
    screen_keys(&t, "half a \xe4\xb8\xad\xe6\x96\x87 thought");
    screen_expect(&t, "thought");
    screen_expect_kept(&t, ".draft", "half a \xe4\xb8\xad\xe6\x96\x87 thought");
    kill(t.term.pid, SIGKILL);
    screen_expect_end(&t);
    screen_end(&t);
    screen_run(&t, &PLAIN);
    screen_expect(&t, "> half a \xe4\xb8\xad\xe6\x96\x87 thought");
    screen_expect(&t, "your unsent text is back");
    screen_close(&t);
}

static void test_reply_survives_kill(void **state) {
    (void)state;
    screen_test t;
    const fake_reply r = {.pieces = WORDS, .n_pieces = 6, .hold_after = 3};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "count\r");
    screen_expect(&t, "one two three");
    screen_expect_kept(&t, ".journal", "one two three");
    kill(t.term.pid, SIGKILL);
    screen_expect_end(&t);
    screen_end(&t);
    screen_run(&t, &PLAIN);
    screen_expect(&t, "engine READY");
    screen_keys(&t, "\033OQ\r"); /* Home, the newest session */
    screen_expect(&t, "one two three");
    screen_expect(&t, "interrupted");
    screen_close(&t);
}

static void test_daemon_dies(void **state) {
    (void)state;
    screen_test t;
    const fake_reply r = {.pieces = WORDS, .n_pieces = 6, .hold_after = 3};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "count\r");
    screen_expect(&t, "one two three");
    fake_daemon_stop(t.daemon);
    t.daemon = NULL;
    screen_expect(&t, "stopped here:");
    screen_expect(&t, "engine DOWN");
    screen_expect(&t, "one two three");
    t.daemon = fake_daemon_start(t.dir);
    fake_daemon_script(t.daemon, &(fake_reply){.pieces = WORDS + 3, .n_pieces = 3});
    screen_expect(&t, "engine READY");
    screen_keys(&t, "/continue\r");
    screen_expect(&t, "one two three four five six");
    expect_body(&t, "\"one two three \"");
    screen_close(&t);
}

static void test_no_daemon(void **state) {
    (void)state;
    screen_test t;
    const screen_setup s = {.n_rows = 24, .n_columns = 80, .without_daemon = true};
    screen_open(&t, &s);
    screen_run(&t, &s);
    screen_expect(&t, "engine not running");
    screen_keys(&t, "a question\r");
    screen_expect(&t, "your message waits");
    screen_expect(&t, "queued 1: a question");
    t.daemon = fake_daemon_start(t.dir);
    fake_daemon_script(t.daemon, &(fake_reply){.pieces = WORDS, .n_pieces = 6});
    screen_expect(&t, "one two three four five six");
    screen_close(&t);
}

static void test_multi_line(void **state) {
    (void)state;
    screen_test t;
    const fake_reply r = {.pieces = WORDS, .n_pieces = 1};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "a\033\rb\nc");
    screen_expect(&t, "  c");
    screen_keys(&t, "\r");
    screen_expect(&t, "done 1 tok");
    expect_body(&t, "a\\nb\\nc");
    screen_keys(&t, "\"\"\"\rx\ry\r\"\"\"\r"); /* block mode */
    screen_expect(&t, "turn 2");
    screen_expect(&t, "done 1 tok");
    expect_body(&t, "\"x\\ny\"");
    screen_close(&t);
}

static void test_paste(void **state) {
    (void)state;
    screen_test t;
    const fake_reply r = {.pieces = WORDS, .n_pieces = 1};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "\033[200~two\r\nrows\033[201~");
    screen_expect(&t, "  rows");
    assert_int_equal(fake_daemon_n_chats(t.daemon), 0);
    screen_keys(&t, "\037"); /* one undo takes the paste away */
    screen_expect_gone(&t, "  rows");
    buf big = BUF_INIT;
    buf_puts(&big, "\033[200~");
    for (int i = 0; i < 65536; i++)
        buf_puts(&big, "sixteen bytes..\n");
    buf_puts(&big, "\033[201~");
    pty_send(&t.term, big.data, big.len);
    screen_expect(&t, "[pasted 65536 lines, 1024.0k #1]");
    assert_int_equal(fake_daemon_n_chats(t.daemon), 0);
    screen_keys(&t, "\037");
    screen_expect_gone(&t, "[pasted");
    buf_release(&big);
    screen_close(&t);
}

static void test_history(void **state) {
    (void)state;
    screen_test t;
    const fake_reply r = {.pieces = WORDS, .n_pieces = 1};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "remember me\r");
    screen_expect(&t, "done 1 tok");
    screen_end(&t);
    screen_run(&t, &PLAIN);
    screen_expect(&t, "engine READY");
    screen_keys(&t, "\033[A");
    screen_expect(&t, "> remember me");
    screen_keys(&t, "\033[B");
    screen_expect_gone(&t, "> remember me");
    screen_keys(&t, "\022remem"); /* Ctrl-R, readline's search */
    screen_expect(&t, "remember me");
    screen_close(&t);
}

static void test_branches(void **state) {
    (void)state;
    screen_test t;
    fake_reply r = {.pieces = WORDS, .n_pieces = 1};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "first question\r");
    screen_expect(&t, "done 1 tok");
    r.pieces = WORDS + 1;
    fake_daemon_script(t.daemon, &r);
    screen_keys(&t, "/again\r");
    screen_expect(&t, "two");
    screen_expect(&t, "2/2");
    screen_keys(&t, "\033");
    screen_expect(&t, "* Assistant");
    screen_keys(&t, "[");
    screen_expect(&t, "1/2");
    screen_expect(&t, "one");
    screen_keys(&t, "e"); /* edit the question: its text is in the input */
    screen_expect(&t, "> first question");
    screen_expect(&t, "editing: sending makes a branch");
    screen_keys(&t, " again\r");
    screen_expect(&t, "2/2");
    screen_expect(&t, "two");
    screen_expect(&t, "done 1 tok");
    screen_keys(&t, "/undo\r");
    screen_expect_gone(&t, "first question again");
    screen_expect(&t, "one turn back; /redo takes it back");
    screen_keys(&t, "/redo\r");
    screen_expect(&t, "first question again");
    screen_expect(&t, "one turn forward again");
    screen_close(&t);
}

static void test_commands(void **state) {
    (void)state;
    screen_test t;
    const fake_reply r = {.pieces = WORDS, .n_pieces = 1};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "/sett\r");
    screen_expect(&t, "there is no command /sett");
    screen_keys(&t, "/exp\t");
    screen_expect(&t, "> /export");
    screen_keys(&t, "\025/set temp 0.5\r");
    screen_expect(&t, "temp 0.50");
    screen_keys(&t, "//slash\r");
    screen_expect(&t, "done 1 tok");
    expect_body(&t, "\"/slash\"");
    expect_body(&t, "0.5");
    screen_keys(&t, "\033x"); /* the command line */
    screen_expect(&t, ":");
    screen_keys(&t, "dash\r");
    screen_expect(&t, "<3 Dash>");
    screen_keys(&t, ":q\r");
    screen_expect_end(&t);
    assert_int_equal(t.term.status, 0);
    screen_close(&t);
}

static void test_copy(void **state) {
    (void)state;
    static const char *const CODE[] = {"```c\nint x;\n```\n"};
    screen_test t;
    const fake_reply r = {.pieces = CODE, .n_pieces = 1};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "code\r");
    screen_expect(&t, "done 1 tok");
    screen_keys(&t, "\033");
    screen_expect(&t, "* Assistant");
    screen_keys(&t, "y1");
    screen_expect(&t, "was sent to the terminal's clipboard");
    for (uint64_t end = clock_mono_ms() + WAIT_MS;
         t.term.screen.clipboard.len == 0 && clock_mono_ms() < end;)
        pty_settle(&t.term, 20, 20);
    assert_string_equal(buf_cstr(&t.term.screen.clipboard), "aW50IHg7Cg==");
    screen_close(&t);
}

static void test_scrollback(void **state) {
    (void)state;
    static const char *const LINES[] = {"- a line of the list\n"};
    screen_test t;
    const fake_reply r = {.pieces = LINES, .n_pieces = 1, .n_times = 100};
    begin(&t, &PLAIN, &r);
    screen_keys(&t, "QUESTION\r");
    screen_expect(&t, "done 100 tok");
    screen_keys(&t, "\033[5~\033[5~\033[5~\033[5~\033[5~\033[5~\033[5~\033[5~\033[5~\033[5~");
    screen_expect(&t, "You ");
    pty_resize(&t.term, 30, 100); /* the top stays at the top */
    pty_settle(&t.term, 100, 1000);
    screen_expect(&t, "You ");
    screen_keys(&t, "\033");
    screen_expect(&t, "i input");
    screen_keys(&t, "G");
    screen_expect_gone(&t, "You ");
    screen_close(&t);
}

/* Random keys, pastes and sizes while replies stream: alive at the end, terminal restored. */
static void test_storm(void **state) {
    (void)state;
    static const char *const KEYS[] = {"a", "\xe4\xb8\xad", "\r", "\033", "\033[A", "\033[B", "\t",
        "\003", "\033OP", "\033OQ", "\033OR", "\033OS", "\022", "\007", "\033[5~", "\033[6~",
        "\0333", "\033[200~p\nq\033[201~", "/set\r", "\030\021", "\033t", "y", "j", "k", "g", "G",
        "[", "]", "m", "t", "/", ":", "\177", "\031", "\033x", "r", "e", "v", "n", "\033p"};
    screen_test t;
    const fake_reply r = {.pieces = WORDS, .n_pieces = 6, .n_times = 40, .delay_ms = 1};
    bool is_long = getenv("TANDEM_LONG") != NULL;
    begin(&t, &PLAIN, &r);

    for (int i = 0; i < (is_long ? 10000 : 400) && !t.term.has_ended; i++) {
        uint64_t x = rand_keyed(7, (uint64_t)i, 0);
        if (x % 10 == 0)
            pty_resize(&t.term, 1 + (int)((x >> 8) % 50), 1 + (int)((x >> 20) % 130));
        else
            screen_keys(&t, KEYS[(x >> 32) % (sizeof KEYS / sizeof KEYS[0])]);
        pty_settle(&t.term, 1, 5);
    }
    assert_false(t.term.has_ended);
    pty_resize(&t.term, 24, 80);
    kill(t.term.pid, SIGTERM);
    screen_expect_end(&t);
    assert_int_equal(t.term.status, 0);
    assert_false(t.term.screen.is_alternate);
    assert_false(t.term.screen.has_paste);
    assert_true(t.term.screen.has_cursor);
    screen_close(&t);
}

static void test_sync(void **state) {
    (void)state;
    screen_test t;
    screen_setup s = PLAIN;
    s.answers = true;
    begin(&t, &s, NULL);
    screen_keys(&t, "x");
    screen_expect(&t, "> x");
    assert_true(t.term.screen.n_sync > 0);
    assert_int_equal(t.term.screen.n_unknown, 0);
    screen_close(&t);
}

static void run_in(const char *term, const char *want) {
    screen_test t;
    const char *const env[] = {term, NULL};
    screen_setup s = {.n_rows = 24, .n_columns = 80, .env = env};
    screen_open(&t, &s);
    screen_run(&t, &s);
    screen_expect(&t, want);
    assert_false(t.term.screen.is_alternate);
    screen_close(&t);
}

static void test_bad_terminals(void **state) {
    (void)state;
    run_in("TERM", "TERM");
    run_in("TERM=no-such-terminal", "no-such-terminal");
}

static void test_tiny_terminal(void **state) {
    (void)state;
    screen_test t;
    screen_setup s = {.n_rows = 5, .n_columns = 20};
    screen_open(&t, &s);
    screen_run(&t, &s);
    screen_expect(&t, "20x5: needs 40x8");
    screen_keys(&t, "still here");
    pty_resize(&t.term, 24, 80);
    screen_expect(&t, "> still here");
    screen_close(&t);
}

static void test_ascii_locale(void **state) {
    (void)state;
    static const char *const ENV[] = {"LANG=C", "LC_ALL=C", NULL};
    static const char *const PIECES[] = {"caf\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 ok"};
    screen_test t;
    screen_setup s = {.n_rows = 24, .n_columns = 80, .env = ENV};
    const fake_reply r = {.pieces = PIECES, .n_pieces = 1};
    begin(&t, &s, &r);
    t.term.keeps_raw = true;
    screen_keys(&t, "\xc3\xa9\177x\r"); /* one backspace takes a whole character */
    screen_expect(&t, "caf? ???? ok");
    expect_body(&t, "\"x\"");
    for (size_t i = 0; i < t.term.raw.len; i++)
        assert_true((unsigned char)t.term.raw.data[i] < 0x80);
    screen_close(&t);
}

/* Two machines are set up and the worker has no ssh server: /engine start tries both and says so. */
static void test_start_of_a_pair(void **state) {
    (void)state;
    static const char *const ENV[] = {"TANDEM_WORKER_SSH=me@127.0.0.1:1",
        "TANDEM_HEAD_IP_A=127.0.0.1", "TANDEM_WORKER_IP_A=127.0.0.1", "TANDEM_WORKER_DATA=/data",
        "TANDEM_ALLOW_ROOT=1", NULL};
    screen_test t;
    screen_setup s = {
        .n_rows = 24, .n_columns = 120, .env = ENV, .without_daemon = true, .without_socket = true};
    screen_open(&t, &s);
    screen_run(&t, &s);
    screen_expect(&t, "No engine runs. /engine start starts it");
    screen_keys(&t, "/engine start\r");
    screen_expect(&t, "the worker cannot be reached, and a pair needs both");
    screen_expect(&t, "engine FAILED");
    screen_expect(&t, "/engine start tries again");
    screen_keys(&t, "/engine stop\r");
    screen_expect(&t, "Stop the engine?");
    screen_keys(&t, "y");
    screen_expect(&t, "nothing was running");
    screen_close(&t);
}

static void run_bench(const fake_reply *r, const char *want) {
    static const char *const WORDS_OF_BENCH[] = {"bench", "decode", "--reps", "1", NULL};
    screen_test t;
    screen_setup s = {.n_rows = 40, .n_columns = 160, .arguments = WORDS_OF_BENCH};
    screen_open(&t, &s);
    fake_daemon_script(t.daemon, r);
    screen_run(&t, &s);
    screen_expect(&t, want);
    screen_close(&t);
}

/* Text that was held back has no rate: sixty tokens in two pieces at once gave millions a second. */
static void test_bench_of_text_in_one_piece(void **state) {
    (void)state;
    run_bench(&(fake_reply){.pieces = WORDS, .n_pieces = 2, .completion_tokens = 60},
        "rep 1 does not count: the text came in one piece");
    /* Three of its pieces have to come apart, also where this program is kept waiting. */
    run_bench(
        &(fake_reply){
            .pieces = WORDS, .n_pieces = 6, .n_times = 4, .delay_ms = 60, .completion_tokens = 6},
        "prompt-1     median");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_escape_twice),
        cmocka_unit_test(test_draft_survives_kill),
        cmocka_unit_test(test_reply_survives_kill),
        cmocka_unit_test(test_daemon_dies),
        cmocka_unit_test(test_no_daemon),
        cmocka_unit_test(test_multi_line),
        cmocka_unit_test(test_paste),
        cmocka_unit_test(test_history),
        cmocka_unit_test(test_branches),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_scrollback),
        cmocka_unit_test(test_storm),
        cmocka_unit_test(test_sync),
        cmocka_unit_test(test_bad_terminals),
        cmocka_unit_test(test_tiny_terminal),
        cmocka_unit_test(test_ascii_locale),
        cmocka_unit_test(test_start_of_a_pair),
        cmocka_unit_test(test_bench_of_text_in_one_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
