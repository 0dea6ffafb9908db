/* What the HTTP layer costs: a request whose reply is one token, and one event of a stream, over a
 * scripted source that takes no time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/api/api.h"
#include "engine/base/clock.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

enum { N_REQUESTS = 2000, N_EVENTS = 20000 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

#define BODY                                                                                       \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Say hello to the reader of this line.\"}]%s}"

static void requests(const stub_server *s) {
    static double ms[N_REQUESTS];
    char body[300];
    wire w;
    wire_open_unix(&w, s->socket_path);
    snprintf(body, sizeof body, BODY, "");
    for (int i = 0; i < N_REQUESTS; i++) {
        wire_answer a;
        uint64_t start = clock_mono_ns();
        wire_request(&w, "POST", "/v1/chat/completions", "", body);
        wire_read(&w, &a, 5000);
        ms[i] = (double)(clock_mono_ns() - start) / 1e6;
        wire_answer_release(&a);
    }
    wire_close(&w);
    qsort(ms, N_REQUESTS, sizeof ms[0], by_value);
    printf("http request p50 %.3f ms, p95 %.3f ms (client and a one-token step included)\n",
        ms[N_REQUESTS / 2], ms[N_REQUESTS * 95 / 100]);
}

typedef struct cost {
    double wall_us, cpu_us;
} cost;

static cost per_event(uint64_t start_ns, double start_cpu) {
    return (cost){(double)(clock_mono_ns() - start_ns) / 1e3 / N_EVENTS,
        (cpu_s() - start_cpu) * 1e6 / N_EVENTS};
}

/* The same tokens taken straight from the scheduler: what is left is not the HTTP layer's. */
static cost without_http(const stub_server *s) {
    static const int32_t prompt[] = {5, 6, 7};
    run_request q = {.id = "bench", .prompt = prompt, .n_prompt = 3, .max_tokens = N_EVENTS};
    ticket *t = NULL;
    run_event ev = {0};
    sample_params_init(&q.sampling);
    double cpu = cpu_s();
    uint64_t start = clock_mono_ns();
    if (run_submit(s->run, &q, &t, NULL) != OK) return (cost){0};
    while (ev.kind != RUN_EVENT_END && ticket_next(t, &ev, 60000) == OK) {
    }
    ticket_free(t);
    return per_event(start, cpu);
}

static cost with_http(const stub_server *s, double *bytes) {
    char body[300];
    wire w;
    wire_answer a;
    wire_open_unix(&w, s->socket_path);
    snprintf(body, sizeof body, BODY, ",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":20000");
    double cpu = cpu_s();
    uint64_t start = clock_mono_ns();
    wire_request(&w, "POST", "/v1/chat/completions", "", body);
    wire_read(&w, &a, 60000);
    cost c = per_event(start, cpu);
    *bytes = (double)a.body.len / N_EVENTS;
    wire_answer_release(&a);
    wire_close(&w);
    return c;
}

static void events(const stub_server *s) {
    double bytes = 0.0;
    cost bare = without_http(s);
    cost http = with_http(s, &bytes);
    printf("http event %.2f us wall, %.2f us CPU of which %.2f without HTTP (source, scheduler);"
           " server and client %.2f us CPU for %.0f bytes\n",
        http.wall_us, http.cpu_us, bare.cpu_us, http.cpu_us - bare.cpu_us, bytes);
}

int main(void) {
    static const char *const one[] = {"x "};
    tokenizer *t = stub_tokenizer_open();
    stub_server s;
    if (t == NULL) {
        printf("skipped: no demo tokenizer here (templates/demo-model or DEMO_WEIGHTS)\n");
        return 0;
    }
    stub_server_options o = {.tokenizer = t, .script = {.pieces = one, .n_pieces = 1}};
    stub_server_start(&s, &o);
    requests(&s);
    stub_server_stop(&s);
    o.script.n_times = N_EVENTS;
    o.script.max_context = N_EVENTS + 100;
    stub_server_start(&s, &o);
    events(&s);
    stub_server_stop(&s);
    tokenizer_close(t);
    return 0;
}
