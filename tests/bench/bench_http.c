/* What the HTTP layer costs: a request whose reply is one token, and one event of a stream, over a
 * scripted source that takes no time; and what company does to 20 streams. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "engine/api/api.h"
#include "engine/base/clock.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

enum {
    N_REQUESTS = 2000,
    N_EVENTS = 20000,
    N_PACED = 2000,
    N_IDLE = 200,
    N_SLOW = 25, /* senders, and as many readers */
    N_STREAMS = 20,
    N_CROWD_TOKENS = 2000
};

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

static void requests(const stub_server *s, bool is_tcp) {
    static double ms[N_REQUESTS];
    char body[300];
    wire w;
    if (is_tcp) {
        wire_open_tcp(&w, s->port);
    } else {
        wire_open_unix(&w, s->socket_path);
    }
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
    printf("http request over %s p50 %.3f ms, p95 %.3f ms (client and a one-token step included)\n",
        is_tcp ? "TCP" : "the Unix socket", ms[N_REQUESTS / 2], ms[N_REQUESTS * 95 / 100]);
}

typedef struct cost {
    double wall_us, cpu_us;
} cost;

static cost per_event(uint64_t start_ns, double start_cpu, int n_events) {
    return (cost){(double)(clock_mono_ns() - start_ns) / 1e3 / n_events,
        (cpu_s() - start_cpu) * 1e6 / n_events};
}

/* The same tokens taken straight from the scheduler: what is left is not the HTTP layer's. */
static cost without_http(const stub_server *s, int n_events) {
    static const int32_t prompt[] = {5, 6, 7};
    run_request q = {.id = "bench", .prompt = prompt, .n_prompt = 3, .max_tokens = n_events};
    ticket *t = NULL;
    run_event ev = {0};
    sample_params_init(&q.sampling);
    double cpu = cpu_s();
    uint64_t start = clock_mono_ns();
    if (run_submit(s->run, &q, &t, NULL) != OK) return (cost){0};
    while (ev.kind != RUN_EVENT_END && ticket_next(t, &ev, 60000) == OK) {
    }
    ticket_free(t);
    return per_event(start, cpu, n_events);
}

static cost with_http(const stub_server *s, int n_events, double *bytes) {
    char body[300];
    wire w;
    wire_answer a;
    wire_open_unix(&w, s->socket_path);
    char more[100];
    snprintf(more, sizeof more, ",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":%d", n_events);
    snprintf(body, sizeof body, BODY, more);
    double cpu = cpu_s();
    uint64_t start = clock_mono_ns();
    wire_request(&w, "POST", "/v1/chat/completions", "", body);
    wire_read(&w, &a, 60000);
    cost c = per_event(start, cpu, n_events);
    *bytes = (double)a.body.len / n_events;
    wire_answer_release(&a);
    wire_close(&w);
    return c;
}

/* As fast as it goes several events share a wake-up and a write; one at a time, as a model makes
 * them, each has its own. */
static void events(const stub_server *s, int n_events, const char *how) {
    double bytes = 0.0;
    cost bare = without_http(s, n_events);
    cost http = with_http(s, n_events, &bytes);
    printf(
        "http event, %s: %.2f us wall, %.2f of them without HTTP (source, scheduler); %.2f us CPU,"
        " %.2f without HTTP; server and client %.2f us CPU for %.0f bytes\n",
        how, http.wall_us, bare.wall_us, http.cpu_us, bare.cpu_us, http.cpu_us - bare.cpu_us,
        bytes);
}

/* ---- company ---- */

typedef struct crowd {
    wire idle[N_IDLE], senders[N_SLOW], readers[N_SLOW];
} crowd;

static void crowd_enter(crowd *c, const stub_server *s) {
    static const char head[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-slow: ";
    char body[300];
    snprintf(body, sizeof body, BODY, ",\"stream\":true");
    for (int i = 0; i < N_IDLE; i++) {
        wire_open_tcp(&c->idle[i], s->port);
    }
    for (int i = 0; i < N_SLOW; i++) {
        wire_open_tcp(&c->senders[i], s->port);
        wire_send(&c->senders[i], head, sizeof head - 1);
        wire_open_unix(&c->readers[i], s->socket_path);
        wire_request(&c->readers[i], "POST", "/v1/chat/completions", "", body);
    }
    /* Their replies are made, what they do not take waits with them. */
    run_stats stats;
    do {
        sleep_ms(1);
        run_stats_get(s->run, &stats);
    } while (stats.n_done < N_STREAMS + N_SLOW);
}

static void crowd_leave(crowd *c) {
    for (int i = 0; i < N_IDLE; i++) {
        wire_close(&c->idle[i]);
    }
    for (int i = 0; i < N_SLOW; i++) {
        wire_close(&c->senders[i]);
        wire_close(&c->readers[i]);
    }
}

static void *read_one(void *ctx) {
    wire *w = ctx;
    wire_answer a;
    wire_read(w, &a, 120000);
    wire_answer_release(&a);
    return NULL;
}

/* Microseconds of wall time for each event of 20 streams at once. */
static double streams_us(const stub_server *s) {
    pthread_t threads[N_STREAMS];
    wire w[N_STREAMS];
    char body[300];
    snprintf(body, sizeof body, BODY, ",\"stream\":true");
    uint64_t start = clock_mono_ns();
    for (int i = 0; i < N_STREAMS; i++) {
        wire_open_tcp(&w[i], s->port);
        wire_request(&w[i], "POST", "/v1/chat/completions", "", body);
        pthread_create(&threads[i], NULL, read_one, &w[i]);
    }
    for (int i = 0; i < N_STREAMS; i++) {
        pthread_join(threads[i], NULL);
        wire_close(&w[i]);
    }
    return (double)(clock_mono_ns() - start) / 1e3 / (N_STREAMS * N_CROWD_TOKENS);
}

static void company(const tokenizer *t) {
    static const char *const one[] = {"x "};
    static crowd c;
    stub_server s;
    stub_server_options o = {.tokenizer = t, .queue_cap = 64};
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    o.script = (stub_script){.pieces = one,
        .n_pieces = 1,
        .n_times = N_CROWD_TOKENS,
        .n_slots = N_STREAMS,
        .max_rows = 32};
    stub_server_start(&s, &o);
    double alone = streams_us(&s);
    crowd_enter(&c, &s);
    double beside = streams_us(&s);
    printf("http 20 streams: %.2f us wall an event alone, %.2f us beside %d idle and %d slow\n",
        alone, beside, N_IDLE, 2 * N_SLOW);
    crowd_leave(&c);
    stub_server_stop(&s);
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
    requests(&s, false);
    requests(&s, true);
    stub_server_stop(&s);
    o.script.n_times = N_EVENTS;
    o.script.max_context = N_EVENTS + 100;
    stub_server_start(&s, &o);
    events(&s, N_EVENTS, "as fast as it goes");
    stub_server_stop(&s);
    o.script.delay_ms = 1;
    stub_server_start(&s, &o);
    events(&s, N_PACED, "one at a time");
    stub_server_stop(&s);
    company(t);
    tokenizer_close(t);
    return 0;
}
