/* tandem model engram: large Engram tables into the files that the engine reads directly. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/model/engram_file.h"
#include "tui/cmd_internal.h"

typedef struct engram_show {
    bool is_tty, is_resumed;
    int said_tenth;
    uint64_t start_ms;
    const atomic_bool *cancel;
} engram_show;

static int on_progress(void *ctx, const engram_pack_progress *p) {
    engram_show *s = ctx;
    double share = p->bytes_total > 0 ? (double)p->bytes_done / (double)p->bytes_total : 0;
    int tenth = (int)(share * 10);
    double seconds = (double)(clock_mono_ms() - s->start_ms) / 1e3;
    s->is_resumed |= p->is_resumed;
    if (s->is_tty || tenth > s->said_tenth) {
        fprintf(stderr, "%s%3.0f %%  table %d of %d  %lld of %lld MiB  %.0f s%s",
            s->is_tty ? "\r" : "", 100 * share, p->i_table + 1, p->n_tables,
            (long long)(p->bytes_done >> 20), (long long)(p->bytes_total >> 20), seconds,
            s->is_tty ? "  " : "\n");
        fflush(stderr);
        s->said_tenth = tenth;
    }
    return atomic_load(s->cancel) ? ERR_CANCELLED : OK;
}

int cmd_model_engram(const cmd_args *a) {
    int64_t rank = 0, world = 1;
    err e = ERR_INIT;
    engram_show s = {.is_tty = isatty(2) != 0,
        .said_tenth = -1,
        .start_ms = clock_mono_ms(),
        .cancel = cmd_stop_flag()};
    int rc = cmd_int_option(a, "rank", (cmd_range){0, 15, 0}, &rank, &e);
    if (rc == OK) rc = cmd_int_option(a, "world", (cmd_range){1, 16, 1}, &world, &e);
    if (rc == OK && rank >= world) {
        rc = err_set(&e, ERR_ARG, "rank %lld of %lld ranks", (long long)rank, (long long)world);
    }
    if (rc != OK) return cmd_fail_usage(&e);
    engram_pack_options o = {.in_dir = a->args[0],
        .config_dir = cmd_value(a, "config"),
        .out_dir = a->args[1],
        .rank = (int)rank,
        .world = (int)world,
        .progress = on_progress,
        .ctx = &s};
    cmd_stop_fd();
    rc = engram_pack(&o, &e);
    if (s.is_tty) fputc('\n', stderr);
    if (rc == OK) {
        cmd_printf("%s: Engram tables packed%s\n", a->args[1],
            s.is_resumed ? ", going on from what was there" : "");
    }
    int code = rc == OK ? EXIT_OK : cmd_fail(&e);
    if (rc == ERR_CANCELLED) cmd_note("what is written is kept; the same command goes on with it");
    return cmd_finish(code);
}
