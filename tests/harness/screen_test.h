/* The program on a pseudo terminal beside a fake daemon, in folders of its own: the frame of every
 * test in tests/screen. One thread. */
#ifndef TESTS_HARNESS_SCREEN_TEST_H
#define TESTS_HARNESS_SCREEN_TEST_H

#include <stdbool.h>

#include "tests/harness/fake_daemon.h"
#include "tests/harness/pty.h"

typedef struct screen_test {
    char dir[64]; /* everything of this test lives here */
    char socket[96];
    fake_daemon *daemon; /* NULL: none runs */
    pty term;
    bool is_running;
} screen_test;

typedef struct screen_setup {
    int n_rows, n_columns;
    const char *screen;           /* --screen, or NULL */
    const char *const *arguments; /* further ones, NULL-ended; or NULL */
    const char *const *env;       /* further changes, NULL-ended; or NULL */
    bool without_daemon;
    bool without_socket; /* no --socket: the usual place below the folders of the test */
    bool answers;        /* the terminal answers questions (synchronized output) */
} screen_setup;

/* A model folder is named in the settings, so the program attaches and starts nothing by itself.
 * Makes the folders and the daemon; screen_run starts the program (again). */
void screen_open(screen_test *t, const screen_setup *s);
void screen_run(screen_test *t, const screen_setup *s);
/* Ends the program (killing it if need be) and keeps the folders for another screen_run. */
void screen_end(screen_test *t);
void screen_close(screen_test *t);

/* Fails the cmocka test with the screen's text unless the text appears (wanted) or goes away. */
void screen_expect(screen_test *t, const char *text);
void screen_expect_gone(screen_test *t, const char *text);
/* Fails unless the program ends. */
void screen_expect_end(screen_test *t);
/* Fails unless the text comes to stand in a file of the sessions whose name ends so. */
void screen_expect_kept(screen_test *t, const char *ending, const char *text);
void screen_keys(screen_test *t, const char *keys);
/* Waits until the screen is that of tests/data/screens/NAME.txt, times masked. SCREEN_UPDATE=1 writes it. */
void screen_golden(screen_test *t, const char *name);
/* The whole screen as text; the caller releases it. */
void screen_text(const screen_test *t, buf *out);

#endif
