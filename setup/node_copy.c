/* tandem-node receive, send, hash, wipe. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/secret.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/cache_wipe.h"
#include "setup/node.h"
#include "setup/stream.h"
#include "setup/stream_spawn.h"

enum { EXIT_FINE = 0, EXIT_WRONG_USE = 2, EXIT_REFUSED = 20, N_TRIES = 5 };

static int failed(const char *what, const err *e) {
    fprintf(stderr, "tandem-node: %s: %s\n", what, e->msg);
    return EXIT_REFUSED;
}

int node_receive(int argc, char **argv) {
    err e = ERR_INIT;
    (void)argv;
    if (argc != 0) {
        fprintf(stderr, "tandem-node: receive takes no words; all comes on standard input\n");
        return EXIT_WRONG_USE;
    }
    signal(SIGPIPE, SIG_IGN);
    secret_hold(); /* until the process ends */
    log_open(&(log_options){.fd = 2, .level = LOG_WARN, .node = "worker", .rank = -1});
    return stream_receive(0, 1, &e) == OK ? EXIT_FINE : failed("receive", &e);
}

int node_hash(int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        uint8_t raw[SHA256_BYTES];
        char hex[SHA256_HEX];
        err e = ERR_INIT;
        if (sha256_file(argv[i], raw, &e) != OK) return failed("hash", &e);
        sha256_hex(raw, hex);
        printf("%s  %s\n", hex, argv[i]);
    }
    return EXIT_FINE;
}

int node_wipe(int argc, char **argv) {
    cache_wiped w;
    err e = ERR_INIT;
    if (argc != 1 || argv[0][0] != '/') {
        fprintf(stderr, "tandem-node: wipe needs the full path of the cache folder\n");
        return EXIT_WRONG_USE;
    }
    if (cache_wipe(argv[0], &w, &e) != OK) return failed("wipe", &e);
    printf("{\"files\":%llu,\"bytes\":%llu,\"busy\":%d}\n", (unsigned long long)w.n_files,
        (unsigned long long)w.bytes, w.n_busy);
    return EXIT_FINE;
}

/* send */

typedef struct send_words {
    const char *manifest, *root;
    stream_setup setup;
    uint64_t streams, tries;
    char *const *command;
} send_words;

/* FROM,TO: addresses of one rail, ours and the worker's. */
static int add_rail(stream_setup *s, const char *text, err *e) {
    const char *comma = strchr(text, ',');
    if (comma == NULL || (size_t)(comma - text) >= STREAM_ADDRESS_MAX ||
        strlen(comma + 1) >= STREAM_ADDRESS_MAX || s->n_peer == STREAM_MAX_RAILS)
        return err_set(e, ERR_ARG, "a rail is FROM,TO");
    snprintf(s->peer[s->n_peer++], STREAM_ADDRESS_MAX, "%.*s", (int)(comma - text), text);
    str_copy(s->listen[s->n_listen++], STREAM_ADDRESS_MAX, comma + 1);
    return OK;
}

static int take_option(send_words *w, const char *name, const char *value, err *e) {
    uint64_t n = 0;
    if (str_eq(name, "--manifest")) {
        w->manifest = value;
    } else if (str_eq(name, "--root")) {
        w->root = value;
    } else if (str_eq(name, "--to") && strlen(value) < sizeof w->setup.root) {
        str_copy(w->setup.root, sizeof w->setup.root, value);
    } else if (str_eq(name, "--rail")) {
        return add_rail(&w->setup, value, e);
    } else if (parse_u64(value, &n) != OK) {
        return err_set(e, ERR_ARG, "%.30s: unknown, or its value is no number", name);
    } else if (str_eq(name, "--streams")) {
        w->streams = n;
    } else if (str_eq(name, "--tries") && n > 0 && n < 1000) {
        w->tries = n;
    } else if (str_eq(name, "--frame") && n >= 4096 && n <= STREAM_FRAME_MAX && n % 4096 == 0) {
        w->setup.frame_bytes = (uint32_t)n;
    } else if (str_eq(name, "--reserve")) {
        w->setup.reserve_bytes = n;
    } else if (str_eq(name, "--idle") && n >= 100 && n <= 3600000) {
        w->setup.idle_ms = (int64_t)n;
    } else {
        return err_set(e, ERR_ARG, "%.30s: unknown, or out of range", name);
    }
    return OK;
}

static int parse_send(send_words *w, int argc, char **argv, err *e) {
    int i = 0, rc = OK;
    stream_setup_init(&w->setup);
    w->streams = 8;
    w->tries = N_TRIES;
    for (; rc == OK && i + 1 < argc && !str_eq(argv[i], "--"); i += 2)
        rc = take_option(w, argv[i], argv[i + 1], e);
    if (rc != OK) return rc;
    if (i + 1 >= argc || !str_eq(argv[i], "--") || w->manifest == NULL || w->root == NULL ||
        w->setup.n_peer == 0)
        return err_set(e, ERR_ARG, "manifest, root, rail and a command are needed");
    w->command = argv + i + 1;
    return OK;
}

static int show(void *ctx, const stream_progress *p) {
    uint64_t *last = ctx;
    uint64_t there = p->had_bytes + p->sent_bytes;
    if (there != *last)
        printf(
            "%llu of %llu bytes (%llu were there), %zu of %zu files, %d of %d streams, %d reconnects\n",
            (unsigned long long)there, (unsigned long long)p->total_bytes,
            (unsigned long long)p->had_bytes, p->n_ok, p->n_files, p->n_connected, p->n_streams,
            p->n_reconnects);
    *last = there;
    fflush(stdout);
    return OK;
}

int node_send(int argc, char **argv) {
    send_words w = {0};
    manifest m;
    err e = ERR_INIT;
    uint64_t last = UINT64_MAX;
    if (parse_send(&w, argc, argv, &e) != OK) {
        failed("send", &e);
        return EXIT_WRONG_USE;
    }
    signal(SIGPIPE, SIG_IGN);
    secret_hold(); /* until the process ends */
    log_open(&(log_options){.fd = 2, .level = LOG_WARN, .node = "head", .rank = -1});
    int rc = manifest_load(&m, w.manifest, &e);
    if (rc != OK) return failed("send", &e);
    stream_copy c = {.setup = &w.setup,
        .m = &m,
        .send = {.root = w.root, .n_streams = (int)w.streams, .tick = show, .tick_ctx = &last},
        .command = w.command,
        .n_tries = (int)w.tries};
    rc = w.streams <= STREAM_MAX_STREAMS ? stream_copy_run(&c, &e)
                                         : err_set(&e, ERR_ARG, "too many streams");
    manifest_release(&m);
    return rc == OK ? EXIT_FINE : failed("send", &e);
}
