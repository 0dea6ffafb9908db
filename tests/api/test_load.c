/* Many clients against few streams: every reply whole and well formed, every refusal a 429 that says
 * when to come again, everybody served, first come first served. Two seconds over a scripted source;
 * with TANDEM_LONG also five minutes over the demo model of the real program. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/api/api.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tests/harness/sse_message.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

enum {
    PATIENCE_MS = 120000,
    N_CLIENTS = 64,
    N_STREAMS = 4,
    N_QUEUE = 24,
    N_TIMES = 20,
    N_BODIES = 6,
    LONG_MS = 300000
};

static tokenizer *tok;
static const char *const pieces[] = {"Hel", "lo", " wor", "ld "};

/* What a client asks, and what a server without company answered. */
typedef struct question {
    char body[300];
    buf content;
    int64_t n_tokens;
} question;

/* An accepted request: when its head came, when its first words did. */
typedef struct served {
    uint64_t head_ns, first_ns;
} served;

typedef struct load_client {
    pthread_t thread;
    int port, i_client;
    uint64_t deadline_ms;
    const question *questions;
    int n_questions;
    int n_done, n_served;
    _Atomic int n_refused;
    int64_t n_tokens;
    served *served;  /* grows */
    char fault[200]; /* "": none */
} load_client;

static int64_t usage_tokens(const sse_message *m) {
    int64_t n = -1;
    for (int i = 0; i < m->n_chunks; i++) {
        json_i64(json_get(json_get(m->chunks[i], "usage"), "completion_tokens"), &n);
    }
    return n;
}

static void check_stream(load_client *c, const wire_answer *a, const question *want) {
    sse_message m = {0};
    const char *why = "";
    sse_read_stream(&a->body, &m);
    int64_t n_tokens = usage_tokens(&m);
    if (m.n_bad_lines > 0 || m.has_error || !sse_check_rule(&m, "ends_with_done", &why)) {
        snprintf(c->fault, sizeof c->fault, "a malformed stream: %s", why);
    } else if (strcmp(buf_cstr(&m.content), buf_cstr(&want->content)) != 0) {
        snprintf(c->fault, sizeof c->fault, "lost or other text: %.150s", buf_cstr(&m.content));
    } else if (n_tokens != want->n_tokens) {
        snprintf(c->fault, sizeof c->fault, "%lld tokens, not %lld", (long long)n_tokens,
            (long long)want->n_tokens);
    }
    c->n_tokens += n_tokens;
    sse_message_release(&m);
    c->n_done++;
}

static void check_refusal(load_client *c, const wire_answer *a) {
    char text[32];
    int64_t seconds = 0;
    wire_header(a, "Retry-After", text, sizeof text);
    if (a->status != 429 || parse_i64(text, &seconds) != OK || seconds < 1) {
        size_t n = a->body.len < 80 ? a->body.len : 80;
        snprintf(c->fault, sizeof c->fault, "status %d, Retry-After '%s', %s after %.*s", a->status,
            text, a->is_complete ? "whole" : "cut", (int)n, buf_cstr(&a->body) + a->body.len - n);
    }
    c->n_refused++;
    sleep_ms(20);
}

/* Reads the answer and takes the times of its head and of its first event. */
static void read_timed(load_client *c, wire *w, wire_answer *a) {
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    served one = {0};
    while (one.first_ns == 0 && !w->is_closed && clock_mono_ms() < deadline) {
        wire_receive(w, 1000);
        const char *text = buf_cstr(&w->in);
        if (one.head_ns == 0 && strstr(text, "HTTP/1.1 200") != NULL) one.head_ns = clock_mono_ns();
        if (strstr(text, "data: ") != NULL) one.first_ns = clock_mono_ns();
        if (one.head_ns == 0 && strstr(text, "\r\n\r\n") != NULL) break; /* a refusal */
    }
    wire_read(w, a, PATIENCE_MS);
    if (one.first_ns == 0) return;
    c->served = mem_realloc(c->served, (size_t)(c->n_served + 1) * sizeof *c->served);
    c->served[c->n_served++] = one;
}

static void *run_client(void *ctx) {
    load_client *c = ctx;
    int i = c->i_client;
    /* On a slow machine a client may wait for its turn past the end, but not for ever. */
    while (c->fault[0] == '\0' &&
           (clock_mono_ms() < c->deadline_ms ||
               (c->n_done == 0 && clock_mono_ms() < c->deadline_ms + PATIENCE_MS))) {
        const question *q = &c->questions[i++ % c->n_questions];
        wire w;
        wire_answer a;
        wire_open_tcp(&w, c->port);
        wire_request(&w, "POST", "/v1/chat/completions", "", q->body);
        read_timed(c, &w, &a);
        if (a.status == 200 && a.is_complete) {
            check_stream(c, &a, q);
        } else {
            check_refusal(c, &a);
        }
        wire_answer_release(&a);
        wire_close(&w);
    }
    return NULL;
}

/* ---- order ---- */

static int by_head(const void *a, const void *b) {
    uint64_t x = ((const served *)a)->head_ns;
    uint64_t y = ((const served *)b)->head_ns;
    return (x > y) - (x < y);
}

/* The most requests that came after one and were begun before it. Several run at once and clients
 * take their times late, so a few are no sign of another order; all who wait would be. */
static int most_overtaken(const load_client *clients) {
    int n = 0, most = 0;
    for (int i = 0; i < N_CLIENTS; i++) {
        n += clients[i].n_served;
    }
    served *all = mem_array((size_t)n, sizeof *all);
    n = 0;
    for (int i = 0; i < N_CLIENTS; i++) {
        for (int k = 0; k < clients[i].n_served; k++) {
            all[n++] = clients[i].served[k];
        }
    }
    qsort(all, (size_t)n, sizeof *all, by_head);
    for (int i = 0; i < n; i++) {
        int n_before = 0;
        for (int k = i + 1; k < n && all[k].head_ns < all[i].first_ns; k++) {
            n_before += all[k].first_ns < all[i].first_ns;
        }
        if (n_before > most) most = n_before;
    }
    mem_free(all);
    return most;
}

/* ---- the load ---- */

static void fill_body(question *q, const char *text, int max_tokens) {
    snprintf(q->body, sizeof q->body,
        "{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":%d,"
        "\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
        max_tokens, text);
}

static void ask_alone(question *q, int port) {
    wire w;
    wire_answer a;
    sse_message m = {0};
    wire_open_tcp(&w, port);
    wire_request(&w, "POST", "/v1/chat/completions", "", q->body);
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 200);
    assert_true(a.is_complete);
    sse_read_stream(&a.body, &m);
    q->content = (buf)BUF_INIT;
    buf_append(&q->content, m.content.data, m.content.len);
    q->n_tokens = usage_tokens(&m);
    assert_true(q->n_tokens > 0 && q->content.len > 0);
    sse_message_release(&m);
    wire_answer_release(&a);
    wire_close(&w);
}

static bool is_somebody_refused(const load_client *clients) {
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    while (clock_mono_ms() < deadline) {
        for (int i = 0; i < N_CLIENTS; i++) {
            if (clients[i].n_refused > 0) return true;
        }
        sleep_ms(1);
    }
    return false;
}

/* is_held: stops the engine at first, so that it is full once; NULL: it runs. */
static void run_load(
    int port, question *questions, int n_questions, uint64_t ms, _Atomic int *is_held) {
    static load_client clients[N_CLIENTS];
    int n_done = 0, n_refused = 0, fewest = 1 << 30, most = 0;
    int64_t n_tokens = 0;
    for (int i = 0; i < n_questions; i++) {
        ask_alone(&questions[i], port);
    }
    if (is_held != NULL) *is_held = 1;
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i] = (load_client){.port = port,
            .i_client = i,
            .questions = questions,
            .n_questions = n_questions,
            .deadline_ms = clock_mono_ms() + ms};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, run_client, &clients[i]), 0);
    }
    bool is_full = is_held == NULL || is_somebody_refused(clients);
    if (is_held != NULL) *is_held = 0;
    for (int i = 0; i < N_CLIENTS; i++) {
        const load_client *c = &clients[i];
        pthread_join(c->thread, NULL);
        if (c->fault[0] != '\0') fail_msg("client %d: %s", i, c->fault);
        assert_true(c->n_done > 0);
        n_done += c->n_done;
        n_refused += c->n_refused;
        n_tokens += c->n_tokens;
        fewest = c->n_done < fewest ? c->n_done : fewest;
        most = c->n_done > most ? c->n_done : most;
    }
    int n_overtaken = most_overtaken(clients);
    print_message("%d replies of %lld tokens, %d refusals; %d to %d replies a client; one was"
                  " overtaken by %d at most\n",
        n_done, (long long)n_tokens, n_refused, fewest, most, n_overtaken);
    assert_true(is_full && n_refused > 0); /* 64 do not fit into 4 streams and 24 places */
    /* Where replies are faster than a client thread is woken, its times say nothing. */
    if (ms == LONG_MS) assert_true(n_overtaken < N_STREAMS + N_QUEUE);
    for (int i = 0; i < N_CLIENTS; i++) {
        mem_free(clients[i].served);
    }
    for (int i = 0; i < n_questions; i++) {
        buf_release(&questions[i].content);
    }
}

static void many_clients_are_served(void **state) {
    (void)state;
    question q = {.content = BUF_INIT};
    run_stats stats;
    stub_server s;
    stub_server_options o = {.tokenizer = tok, .queue_cap = N_QUEUE};
    static _Atomic int is_held;
    o.script = (stub_script){.pieces = pieces,
        .n_pieces = 4,
        .n_times = N_TIMES,
        .n_slots = N_STREAMS,
        .is_held = &is_held};
    stub_server_start(&s, &o);
    fill_body(&q, "hi", 500);
    run_load(s.port, &q, 1, 2000, &is_held);
    run_stats_get(s.run, &stats);
    assert_int_equal(stats.n_running + stats.n_waiting, 0);
    assert_int_equal(stats.n_failed, 0);
    stub_server_stop(&s);
}

/* Lengths of the prompts in the order in which they were begun. */
typedef struct begun {
    _Atomic int n;
    _Atomic int32_t lengths[32];
} begun;

static stub_list note_begin(void *ctx, const int32_t *prompt, int32_t n_prompt) {
    static const int32_t words[] = {100, 101, 102};
    begun *b = ctx;
    (void)prompt;
    if (b->n < 32) b->lengths[b->n++] = n_prompt;
    return (stub_list){words, 3};
}

/* Requests that wait are begun in the order in which they came, whatever connection they came by. */
static void first_come_first_served(void **state) {
    (void)state;
    enum { N = 12 };
    static _Atomic int is_held;
    static begun order;
    static wire w[N];
    char body[200] = "";
    stub_server s;
    stub_server_options o = {.tokenizer = tok, .queue_cap = N_QUEUE};
    o.script = (stub_script){.pieces = pieces,
        .n_pieces = 4,
        .n_slots = 2,
        .is_held = &is_held,
        .choose = note_begin,
        .choose_ctx = &order};
    stub_server_start(&s, &o);
    is_held = 1;
    for (int i = 0; i < N; i++) {
        wire_open_tcp(&w[i], s.port);
        snprintf(body, sizeof body,
            "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"%.*s\"}]}", 4 * i + 4,
            "one two one two one two one two one two one two one two one two one two one two");
        wire_request(&w[i], "POST", "/v1/chat/completions", "", body);
        assert_true(stub_server_wait(&s, i + 1));
    }
    is_held = 0;
    for (int i = 0; i < N; i++) {
        wire_answer a;
        wire_read(&w[i], &a, PATIENCE_MS);
        assert_true(a.is_complete && strstr(buf_cstr(&a.body), "data: [DONE]") != NULL);
        wire_answer_release(&a);
        wire_close(&w[i]);
    }
    assert_int_equal(order.n, N);
    for (int i = 1; i < N; i++) {
        assert_true(order.lengths[i] > order.lengths[i - 1]);
    }
    stub_server_stop(&s);
}

/* ---- the real program ---- */

static pid_t start_daemon(const char *dir, char *log_path, size_t cap) {
    const char *out = getenv("OUT");
    const char *weights = getenv("DEMO_WEIGHTS");
    char program[512], socket_path[128];
    snprintf(program, sizeof program, "%s/tandemd", out != NULL ? out : "build");
    snprintf(socket_path, sizeof socket_path, "%s/s", dir);
    snprintf(log_path, cap, "%s/log", dir);
    const char *model_dir = "templates/demo-model";
    if (!file_exists("templates/demo-model/config.json") && weights != NULL) model_dir = weights;
    if (!file_exists(program)) return 0;
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nothing running */
    int fd = open(log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDERR_FILENO);
    execl(program, program, "--model", model_dir, "--socket", socket_path, "--reserve", "0",
        "--slots", "4", "--queue", "24", "--listen", "127.0.0.1:0", (char *)NULL);
    _exit(127);
}

/* The log says the port once the endpoint is on. */
static int wait_for_port(const char *log_path) {
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    int64_t port = 0;
    err e = ERR_INIT;
    while (port == 0 && clock_mono_ms() < deadline) {
        buf text = BUF_INIT;
        const char *p = NULL;
        if (file_read(log_path, &text, 1 << 20, &e) == OK) {
            p = strstr(buf_cstr(&text), "endpoint on");
        }
        if (p != NULL) p = strstr(p, " port=");
        if (p != NULL) port = strtol(p + 6, NULL, 10);
        buf_release(&text);
        sleep_ms(20);
    }
    return (int)port;
}

static bool is_ready(int port) {
    wire w;
    wire_answer a;
    wire_open_tcp(&w, port);
    wire_request(&w, "GET", "/ready", "", NULL);
    wire_read(&w, &a, 5000);
    int status = a.status;
    wire_answer_release(&a);
    wire_close(&w);
    return status == 200;
}

static void five_minutes_of_the_demo_model(void **state) {
    (void)state;
    static const char *const texts[N_BODIES] = {"What is gravity?", "Who are you?",
        "Count to twenty.", "What is 12 plus 30?", "Write a sentence about water.", "Hello"};
    static question questions[N_BODIES];
    char dir[] = "/tmp/tandem-load-XXXXXX";
    char log_path[128];
    int status = 0;
    if (getenv("TANDEM_LONG") == NULL) skip();
    assert_non_null(mkdtemp(dir));
    pid_t pid = start_daemon(dir, log_path, sizeof log_path);
    assert_true(pid > 0);
    int port = wait_for_port(log_path);
    assert_true(port > 0);
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    while (!is_ready(port) && clock_mono_ms() < deadline) {
        sleep_ms(20);
    }
    for (int i = 0; i < N_BODIES; i++) {
        fill_body(&questions[i], texts[i], 60);
    }
    run_load(port, questions, N_BODIES, LONG_MS, NULL);
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    unlink(log_path);
    rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_clients_are_served),
        cmocka_unit_test(first_come_first_served),
        cmocka_unit_test(five_minutes_of_the_demo_model)};
    tok = stub_tokenizer_need();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    return rc;
}
