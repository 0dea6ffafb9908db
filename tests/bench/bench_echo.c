/* The screen under load, measured from outside through a pseudo terminal: how long a typed
 * character takes to appear while 200 tokens a second stream in, and how many bytes a second the
 * screen sends at 60 tokens a second in three sizes. One line per case. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/rand.h"
#include "tests/harness/screen_test.h"

#define N_KEYS 400
#define BYTES_MS 6000

static const char *const PIECES[] = {"The ", "second ", "rank ", "waits ", "for ", "the ", "sum ",
    "that ", "closes ", "each ", "layer", ". ", "A ", "**bold** ", "word ", "and `code`, "};

static void begin(screen_test *t, int n_rows, int n_columns, int delay_ms) {
    const screen_setup s = {.n_rows = n_rows, .n_columns = n_columns, .answers = true};
    const fake_reply r = {.pieces = PIECES, .n_pieces = 16, .n_times = 4000, .delay_ms = delay_ms};
    screen_open(t, &s);
    fake_daemon_script(t->daemon, &r);
    screen_run(t, &s);
    if (!pty_wait(&t->term, "engine READY", true, 10000)) exit(1);
    pty_keys(&t->term, "go\r");
    if (!pty_wait(&t->term, "gen ", true, 10000)) exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sends one character and waits until the caret has moved behind it. */
static double one_key(screen_test *t, char c) {
    uint64_t start = clock_mono_ns();
    int row = t->term.screen.row, column = t->term.screen.column;
    pty_send(&t->term, &c, 1);
    while (clock_mono_ns() - start < 1000000000u) {
        pty_read(&t->term, 1);
        const vt *v = &t->term.screen;
        bool has_moved = v->row != row || v->column != column;
        if (has_moved && !v->in_sync && v->has_cursor && v->row >= v->n_rows - 12) {
            const vt_cell *k = v->column > 0 ? vt_at(v, v->row, v->column - 1) : NULL;
            if (k != NULL && k->len == 1 && k->text[0] == c) break;
        }
    }
    return (double)(clock_mono_ns() - start) / 1e6;
}

static void echo(int n_rows, int n_columns) {
    screen_test t;
    static double times[N_KEYS];
    begin(&t, n_rows, n_columns, 5);
    for (int i = 0; i < N_KEYS; i++) {
        /* A letter that is not the one before, in lines short enough for the box. */
        if (i % 50 == 49) pty_keys(&t.term, "\025");
        pty_settle(&t.term, 10 + (int)(rand_keyed(1, (uint64_t)i, 0) % 20), 30);
        times[i] = one_key(&t, (char)('a' + i % 26));
    }
    qsort(times, N_KEYS, sizeof times[0], by_value);
    printf(
        "echo while 200 tokens/s stream, %dx%d: p50 %.2f ms  p95 %.2f ms  max %.2f ms  (%d keys)\n",
        n_columns, n_rows, times[N_KEYS / 2], times[N_KEYS * 95 / 100], times[N_KEYS - 1], N_KEYS);
    screen_close(&t);
}

static void bytes(int n_rows, int n_columns) {
    screen_test t;
    begin(&t, n_rows, n_columns, 16);
    pty_settle(&t.term, 200, 3000);
    uint64_t from = t.term.n_bytes, start = clock_mono_ms();
    while (clock_mono_ms() - start < BYTES_MS)
        pty_read(&t.term, 50);
    double seconds = (double)(clock_mono_ms() - start) / 1e3;
    printf("bytes sent at 60 tokens/s, %dx%d: %.0f bytes/s\n", n_columns, n_rows,
        (double)(t.term.n_bytes - from) / seconds);
    screen_close(&t);
}

int main(void) {
    echo(24, 80);
    echo(40, 120);
    bytes(24, 80);
    bytes(40, 120);
    bytes(60, 200);
    return 0;
}
