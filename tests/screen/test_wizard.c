/* The welcome screen and the Setup screen on a pseudo terminal: golden screens at several sizes and
 * glyph levels, the keyboard alone, no colour. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "engine/base/file.h"
#include "tests/harness/screen_test.h"

typedef struct look {
    const char *name;
    int n_rows, n_columns;
    const char *const *arguments;
} look;

static const char *const ASCII[] = {"--ascii", "--color", "none", NULL};
static const look LOOKS[] = {
    {"80x24", 24, 80, NULL},
    {"120x40", 40, 120, NULL},
    {"80x24-ascii", 24, 80, ASCII},
    {"50x16", 16, 50, NULL},
};
#define N_LOOKS (sizeof LOOKS / sizeof LOOKS[0])

static void put(const screen_test *t, const char *folder, const char *name, const char *text) {
    char path[300];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/%s", t->dir, folder);
    assert_int_equal(dir_make_all(path, 0700, &e), OK);
    snprintf(path, sizeof path, "%s/%s/%s", t->dir, folder, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, &e), OK);
}

/* The wizard at Find; nothing listens on port 1 of this machine. */
static void open_find(screen_test *t, screen_setup *s, const char *target) {
    char settings[200];
    s->screen = "setup";
    s->without_daemon = true;
    screen_open(t, s);
    snprintf(settings, sizeof settings, "%s%s\n", target[0] != '\0' ? "WORKER_SSH=" : "#", target);
    put(t, "config/tandem", "tandem.conf", settings);
    put(t, "state/tandem/setup", "journal.jsonl",
        "{\"v\":1,\"step\":\"welcome\",\"result\":\"proven\",\"inputs\":{}}\n");
    screen_run(t, s);
}

static void welcome_offers_the_demo_or_two_sparks(void **state) {
    static const char *const env[] = {"TANDEM_MODEL_DIR", NULL};
    (void)state;
    for (size_t i = 0; i < N_LOOKS; i++) {
        screen_test t;
        char name[64];
        const look *l = &LOOKS[i];
        const screen_setup s = {.n_rows = l->n_rows,
            .n_columns = l->n_columns,
            .arguments = l->arguments,
            .env = env,
            .without_daemon = true};
        screen_open(&t, &s);
        screen_run(&t, &s);
        screen_expect(&t, "Set up two Sparks");
        snprintf(name, sizeof name, "welcome-%s", l->name);
        screen_golden(&t, name);
        /* The help does not cost the choice. */
        screen_keys(&t, "\033OP");
        screen_expect(&t, "[ Help: Home ]");
        screen_keys(&t, "\033");
        screen_expect(&t, "[ Welcome to Tandem ]");
        /* By arrows and Enter too. */
        screen_keys(&t, "\033[B");
        screen_expect(&t, "> s  Set up two Sparks");
        screen_keys(&t, "\r");
        screen_expect(&t, "<6 Setup>");
        screen_close(&t);
    }
}

/* Set-up refuses root: it is not offered then, and the choice says why, at every size. */
static void welcome_says_that_root_has_no_setup(void **state) {
    static const char *const env[] = {"TANDEM_MODEL_DIR", "TANDEM_ALLOW_ROOT", NULL};
    (void)state;
    if (geteuid() != 0) skip();
    for (size_t i = 0; i < N_LOOKS; i++) {
        screen_test t;
        const look *l = &LOOKS[i];
        const screen_setup s = {.n_rows = l->n_rows,
            .n_columns = l->n_columns,
            .arguments = l->arguments,
            .env = env,
            .without_daemon = true};
        screen_open(&t, &s);
        screen_run(&t, &s);
        screen_expect(&t, "-  Two Sparks: set-up does not run as root");
        screen_expect_gone(&t, "Set up two Sparks");
        if (l->n_rows >= 24) {
            screen_expect(&t, "start tandem as your own user: sudo is asked for what needs root");
        }
        screen_keys(&t, "s");
        screen_expect(&t, "> -  Two Sparks: set-up does not run as root");
        screen_keys(&t, "\r"); /* nor by Enter; the others still can be chosen */
        screen_keys(&t, "\033[B");
        screen_expect(&t, "> a  Attach to an engine that runs already");
        screen_keys(&t, "\r");
        screen_expect(&t, "<2 Chat>");
        screen_close(&t);
    }
}

static void a_refused_connection_is_explained(void **state) {
    (void)state;
    for (size_t i = 0; i < N_LOOKS; i++) {
        screen_test t;
        char name[64];
        const look *l = &LOOKS[i];
        screen_setup s = {
            .n_rows = l->n_rows, .n_columns = l->n_columns, .arguments = l->arguments};
        open_find(&t, &s, "me@127.0.0.1:1");
        screen_expect(&t, "What happened:");
        snprintf(name, sizeof name, "setup-refused-%s", l->name);
        screen_golden(&t, name);
        screen_close(&t);
    }
}

static void fields_are_checked_and_explained(void **state) {
    (void)state;
    screen_test t;
    screen_setup s = {.n_rows = 24, .n_columns = 80};
    open_find(&t, &s, "");
    screen_expect(&t, "* worker, as user@host");
    screen_keys(&t, "?");
    screen_expect(&t, "The other Spark is reached by ssh.");
    screen_expect(&t, "port; its name works as well."); /* wrapped, not cut */
    screen_keys(&t, "\033");
    screen_expect_gone(&t, "The other Spark is reached by ssh.");
    screen_keys(&t, "\r");
    screen_expect(&t, "an answer is needed");
    screen_keys(&t, "a b\r");
    screen_expect(&t, "WORKER_SSH");
    screen_keys(&t, "\025me@127.0.0.1:1\r");
    screen_expect(&t, "refuses port 1");
    /* Keyboard alone: round all fields and buttons and back to the first. */
    screen_expect(&t, "[>Again<]");
    screen_keys(&t, "\t");
    screen_expect(&t, "* worker, as user@host");
    screen_keys(&t, "\t");
    screen_expect(&t, "[>Back<]");
    screen_keys(&t, "\033[Z");
    screen_expect(&t, "* worker, as user@host");
    screen_keys(&t, "\033OP");
    screen_expect(&t, "Help: Setup");
    screen_keys(&t, "\033");
    screen_expect_gone(&t, "Help: Setup");
    /* A step that waits says for what, and Esc goes back to where one was. */
    screen_keys(&t, "\t]");
    screen_expect(&t, "waits for step 1, Find");
    screen_keys(&t, "\033");
    screen_expect(&t, "<2 Chat>");
    screen_keys(&t, "\033[18~");
    screen_expect(&t, "<6 Setup>");
    screen_close(&t);
}

static void without_colour_no_colour_is_sent(void **state) {
    (void)state;
    screen_test t;
    screen_setup s = {.n_rows = 24, .n_columns = 80, .arguments = ASCII};
    open_find(&t, &s, "me@127.0.0.1:1");
    t.term.keeps_raw = true;
    screen_expect(&t, "What happened:");
    screen_keys(&t, "\f");
    screen_expect(&t, "What happened:");
    assert_null(memmem(t.term.raw.data, t.term.raw.len, "\033[38;5;", 7));
    for (int c = 31; c < 38; c++) {
        char code[8];
        int n = snprintf(code, sizeof code, "\033[%dm", c);
        assert_null(memmem(t.term.raw.data, t.term.raw.len, code, (size_t)n));
    }
    /* What failed is marked by words as well. */
    screen_expect(&t, ">>  1 Find !!");
    screen_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(welcome_offers_the_demo_or_two_sparks),
        cmocka_unit_test(welcome_says_that_root_has_no_setup),
        cmocka_unit_test(a_refused_connection_is_explained),
        cmocka_unit_test(fields_are_checked_and_explained),
        cmocka_unit_test(without_colour_no_colour_is_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
