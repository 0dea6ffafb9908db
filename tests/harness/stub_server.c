#include "tests/harness/stub_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/str.h"

#define WAIT_MS 120000

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

tokenizer *stub_tokenizer_open(void) {
    const char *weights = getenv("DEMO_WEIGHTS");
    char path[512];
    tokenizer *t = NULL;
    err e = ERR_INIT;
    snprintf(path, sizeof path, "templates/demo-model/tokenizer.json");
    if (!file_exists(path) && weights != NULL) {
        snprintf(path, sizeof path, "%s/tokenizer.json", weights);
    }
    if (!file_exists(path)) return NULL;
    if (tokenizer_open(path, &t, &e) != OK) die(path, e.msg);
    return t;
}

tokenizer *stub_tokenizer_need(void) {
    tokenizer *t = stub_tokenizer_open();
    if (t != NULL) return t;
    puts("skipped: no demo tokenizer here (templates/demo-model or DEMO_WEIGHTS)");
    exit(77);
}

void stub_server_start(stub_server *s, const stub_server_options *o) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    stub_script script = o->script;
    err e = ERR_INIT;
    memset(s, 0, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "/tmp/tandem-stub-XXXXXX");
    if (mkdtemp(s->dir) == NULL) die("mkdtemp", s->dir);
    snprintf(s->socket_path, sizeof s->socket_path, "%s/s", s->dir);
    str_copy(sa.sun_path, sizeof sa.sun_path, s->socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa) != 0 || listen(fd, 64) != 0) {
        die("listen", s->socket_path);
    }
    script.n_base = tokenizer_size(o->tokenizer);
    script.eos_id = tokenizer_controls(o->tokenizer).eos;
    s->source = stub_new(&script);
    s->pieces = (api_pieces){.pieces = script.pieces, .n_pieces = script.n_pieces};
    run_options ro = {.source = stub_source(s->source), .queue_cap = o->queue_cap};
    if (run_open(&ro, &s->run, &e) != OK) die("run_open", e.msg);
    api_options ao = {.run = s->run,
        .tokenizer = o->tokenizer,
        .pieces = &s->pieces,
        .model_id = "tandem-stub",
        .model_dir = "none",
        .build = "test",
        .is_demo = true,
        .thinks_by_default = o->thinks_by_default,
        .default_temperature = -1.0f,
        .default_top_p = -1.0f,
        .max_context = stub_source(s->source)->info.max_context,
        .n_slots = stub_source(s->source)->info.n_slots,
        .keep_alive_ms = o->keep_alive_ms,
        .max_body_bytes = o->max_body_bytes};
    if (o->starts_loading) ao.run = NULL;
    if (o->adjust != NULL) o->adjust(&ao);
    if (api_open(&ao, fd, &s->api, &e) != OK) die("api_open", e.msg);
    if (api_endpoint(s->api, true, "127.0.0.1", 0, &e) != OK) die("api_endpoint", e.msg);
    s->port = api_endpoint_port(s->api);
}

void stub_server_attach(stub_server *s, const stub_server_options *o) {
    const source_info *info = &stub_source(s->source)->info;
    api_engine engine = {.run = s->run,
        .tokenizer = o->tokenizer,
        .max_context = info->max_context,
        .n_slots = info->n_slots};
    api_attach(s->api, &engine);
}

bool stub_server_wait(const stub_server *s, int n_requests) {
    uint64_t deadline = clock_mono_ms() + WAIT_MS;
    run_stats stats;
    for (;;) {
        run_stats_get(s->run, &stats);
        if (stats.n_running + stats.n_waiting == n_requests) return true;
        if (clock_mono_ms() > deadline) return false;
        sleep_ms(1);
    }
}

bool stub_server_wait_running(const stub_server *s, int n_requests) {
    uint64_t deadline = clock_mono_ms() + WAIT_MS;
    run_stats stats;
    for (;;) {
        run_stats_get(s->run, &stats);
        if (stats.n_running == n_requests) return true;
        if (clock_mono_ms() > deadline) return false;
        sleep_ms(1);
    }
}

void stub_server_stop(stub_server *s) {
    run_abort_all(s->run);
    api_close(s->api);
    run_close(s->run);
    stub_free(s->source);
    unlink(s->socket_path);
    rmdir(s->dir);
}
