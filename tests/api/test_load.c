/* Many clients against few streams: every reply whole and well formed, every refusal a 429 that says
 * when to come again, everybody served. Two seconds, five minutes with TANDEM_LONG. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/api/api.h"
#include "engine/base/clock.h"
#include "tests/harness/sse_message.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

enum { PATIENCE_MS = 120000, N_CLIENTS = 64, N_STREAMS = 4, N_QUEUE = 24, N_TIMES = 20 };

static tokenizer *tok;
static const char *const pieces[] = {"Hel", "lo", " wor", "ld "};

typedef struct load_client {
    pthread_t thread;
    int port;
    uint64_t deadline_ms;
    int n_done, n_refused;
    char fault[160]; /* "": none */
} load_client;

static void check_stream(load_client *c, const wire_answer *a, const char *want) {
    sse_message m = {0};
    const char *why = "";
    sse_read_stream(&a->body, &m);
    if (m.n_bad_lines > 0 || !sse_check_rule(&m, "ends_with_done", &why)) {
        snprintf(c->fault, sizeof c->fault, "a malformed stream: %s", why);
    } else if (strcmp(buf_cstr(&m.content), want) != 0) {
        snprintf(c->fault, sizeof c->fault, "lost text: %.100s", buf_cstr(&m.content));
    }
    sse_message_release(&m);
    c->n_done++;
}

static void check_refusal(load_client *c, const wire_answer *a) {
    char text[32];
    wire_header(a, "Retry-After", text, sizeof text);
    if (a->status != 429 || text[0] == '\0') {
        snprintf(c->fault, sizeof c->fault, "status %d, Retry-After '%s'", a->status, text);
    }
    c->n_refused++;
    sleep_ms(20);
}

static void *run_client(void *ctx) {
    load_client *c = ctx;
    char want[N_TIMES * 16 + 1] = "";
    size_t n = 0;
    for (int i = 0; i < N_TIMES * 4; i++) {
        n += (size_t)snprintf(want + n, sizeof want - n, "%s", pieces[i % 4]);
    }
    /* On a slow machine a client may wait for its turn past the end, but not for ever. */
    while (c->fault[0] == '\0' &&
           (clock_mono_ms() < c->deadline_ms ||
               (c->n_done == 0 && clock_mono_ms() < c->deadline_ms + PATIENCE_MS))) {
        wire w;
        wire_answer a;
        wire_open_tcp(&w, c->port);
        wire_request(&w, "POST", "/v1/chat/completions", "",
            "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
        wire_read(&w, &a, 30000);
        if (a.status == 200 && a.is_complete) {
            check_stream(c, &a, want);
        } else {
            check_refusal(c, &a);
        }
        wire_answer_release(&a);
        wire_close(&w);
    }
    return NULL;
}

static void many_clients_are_served(void **state) {
    (void)state;
    static load_client clients[N_CLIENTS];
    uint64_t ms = getenv("TANDEM_LONG") != NULL ? 300000 : 2000;
    int n_done = 0, n_refused = 0;
    stub_server s;
    stub_server_options o = {.tokenizer = tok, .queue_cap = N_QUEUE};
    o.script =
        (stub_script){.pieces = pieces, .n_pieces = 4, .n_times = N_TIMES, .n_slots = N_STREAMS};
    stub_server_start(&s, &o);
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i] = (load_client){.port = s.port, .deadline_ms = clock_mono_ms() + ms};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, run_client, &clients[i]), 0);
    }
    for (int i = 0; i < N_CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        if (clients[i].fault[0] != '\0') fail_msg("client %d: %s", i, clients[i].fault);
        assert_true(clients[i].n_done > 0);
        n_done += clients[i].n_done;
        n_refused += clients[i].n_refused;
    }
    assert_true(n_refused > 0); /* 64 clients do not fit into 4 streams and 24 places */
    print_message("%d replies, %d refusals\n", n_done, n_refused);
    run_stats stats;
    run_stats_get(s.run, &stats);
    assert_int_equal(stats.n_running + stats.n_waiting, 0);
    assert_int_equal(stats.n_failed, 0);
    stub_server_stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_clients_are_served)};
    tok = stub_tokenizer_open();
    if (tok == NULL) {
        print_message("skipped: no demo tokenizer here (templates/demo-model or DEMO_WEIGHTS)\n");
        return 77;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    return rc;
}
