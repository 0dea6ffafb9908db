/* tandem-node prepare: makes this node's rank pack and says on standard output how far it is. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "setup/node.h"
#include "setup/prepare.h"

enum { EXIT_FINE = 0, EXIT_WRONG_USE = 2, EXIT_REFUSED = 20, LINE_MS = 500, LOOK_MS = 20 };

static int take_option(prepare_rank *r, const char *name, const char *value, err *e) {
    uint64_t n = 0;
    if (str_eq(name, "--model")) {
        r->model_dir = value;
    } else if (str_eq(name, "--out")) {
        r->out_dir = value;
    } else if (str_eq(name, "--layout")) {
        if (exl3_layout_find(value, &r->layout) != OK)
            return err_set(e, ERR_ARG, "%.30s is no layout this program knows", value);
    } else if (parse_u64(value, &n) != OK) {
        return err_set(e, ERR_ARG, "%.30s: unknown, or its value is no number", name);
    } else if (str_eq(name, "--rank") && n < PREPARE_MAX_RANKS) {
        r->rank = (int)n;
    } else if (str_eq(name, "--ranks") && n > 0 && n <= PREPARE_MAX_RANKS) {
        r->world = (int)n;
    } else if (str_eq(name, "--threads") && n <= 256) {
        r->n_threads = (int)n;
    } else if (str_eq(name, "--block") && n % 4096 == 0 && n <= (uint64_t)1 << 32) {
        r->block_bytes = n;
    } else {
        return err_set(e, ERR_ARG, "%.30s: unknown, or out of range", name);
    }
    return OK;
}

static int parse_words(prepare_rank *r, int argc, char **argv, err *e) {
    int rc = OK;
    for (int i = 0; i < argc && rc == OK; i++) {
        if (str_eq(argv[i], "--check")) {
            r->checks = true;
        } else if (str_eq(argv[i], "--no-drafts")) {
            r->without_drafts = true;
        } else if (i + 1 < argc) {
            rc = take_option(r, argv[i], argv[i + 1], e);
            i++;
        } else {
            rc = err_set(e, ERR_ARG, "%.30s needs a value", argv[i]);
        }
    }
    if (rc == OK && (r->model_dir == NULL || r->out_dir == NULL || r->rank >= r->world))
        rc = err_set(e, ERR_ARG, "--model, --out and a --rank below --ranks are needed");
    return rc;
}

static bool say(const prepare_progress *p) {
    bool is_reading = p->state == PREPARE_VERIFYING;
    printf("progress %s %llu %llu %llu\n", prepare_state_name(p->state),
        (unsigned long long)(is_reading ? p->read_bytes : p->done_bytes),
        (unsigned long long)p->total_bytes, (unsigned long long)p->had_bytes);
    return fflush(stdout) == 0;
}

/* Until the task has ended; stops it when nobody listens any more. */
static void attend(prepare_task *t, prepare_progress *p) {
    uint64_t next_ms = 0;
    while (true) {
        prepare_task_get(t, p);
        if (p->state == PREPARE_DONE || p->state == PREPARE_FAILED) return;
        uint64_t now = clock_mono_ms();
        if (now >= next_ms) {
            next_ms = now + LINE_MS;
            if (!say(p)) prepare_task_stop(t);
        }
        sleep_ms(LOOK_MS);
    }
}

int node_prepare(int argc, char **argv) {
    prepare_rank r = {.node = "worker", .world = 1};
    prepare_progress p;
    err e = ERR_INIT;
    if (parse_words(&r, argc, argv, &e) != OK) {
        fprintf(stderr, "tandem-node: prepare: %s\n", e.msg);
        return EXIT_WRONG_USE;
    }
    signal(SIGPIPE, SIG_IGN);
    log_open(&(log_options){.fd = 2, .level = LOG_WARN, .node = "worker", .rank = r.rank});
    printf("tandem-prepare 1\n");
    prepare_task *t = prepare_task_start(&r, &e);
    if (t == NULL) {
        printf("fail %s\n", e.msg);
        return EXIT_REFUSED;
    }
    attend(t, &p);
    prepare_task_free(t);
    if (p.state == PREPARE_FAILED) {
        printf("fail %s\n", p.error.msg);
        fprintf(stderr, "tandem-node: prepare: %s\n", p.error.msg);
        return EXIT_REFUSED;
    }
    printf("done %llu %llu %d %s %s %s\n", (unsigned long long)p.done_bytes,
        (unsigned long long)p.n_mended, p.is_kept, p.source, p.root, p.path);
    return EXIT_FINE;
}
