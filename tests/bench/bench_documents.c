/* The real daemon over HTTP: time to the first token of a question about a long document, of a second
 * question, of one after the daemon was stopped and started again, and of one after it was killed; the
 * last three as shares of the first. And how long running replies stand still while a document is read.
 * bench_documents TOKENS (default 16000). Model: the built-in one with a longer window. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "tests/harness/long_demo.h"
#include "tests/harness/wire.h"

enum { WINDOW = 81920, ANSWER_MS = 3600000, N_GAPS = 100000, N_STREAMS = 3 };

static char folder[256], dir[64], socket_path[128], cache_dir[128], program[600];
static pid_t daemon_pid;

static void start_daemon(void) {
    daemon_pid = fork();
    if (daemon_pid == 0) {
        char context[16];
        snprintf(context, sizeof context, "%d", WINDOW);
        execl(program, program, "--model", folder, "--socket", socket_path, "--reserve", "0",
            "--context", context, "--slots", "4", "--pages", "1400", "--cache-dir", cache_dir,
            "--cache-disk", "4096", "--log-level", "error", (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 6000; i++) {
        wire w;
        wire_answer a = {0};
        wire_open_unix(&w, socket_path);
        if (w.fd >= 0) {
            wire_request(&w, "GET", "/ready", "Connection: close\r\n", NULL);
            wire_read(&w, &a, 5000);
        }
        int status = a.status;
        wire_answer_release(&a);
        wire_close(&w);
        if (status == 200) return;
        sleep_ms(10);
    }
    fprintf(stderr, "bench_documents: %s does not get ready\n", program);
    exit(1);
}

static void stop_daemon(int signal_number) {
    kill(daemon_pid, signal_number);
    waitpid(daemon_pid, NULL, 0);
}

/* A document of n tokens (another one from question 20 on), then a question of sixteen tokens of its
 * own. */
static void put_body(buf *out, int32_t n, int32_t which, int32_t max_tokens) {
    buf_printf(out,
        "{\"stream\":true,\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":%d,"
        "\"stream_options\":{\"include_usage\":true},\"prompt\":[1",
        max_tokens);
    for (int32_t i = 0; i < n; i++) {
        uint64_t word = rand_keyed(which < 20 ? 3 : 4, (uint64_t)i, 1) % 900;
        buf_printf(out, ",%d", (int)(100 + rand_keyed(9, word, 2) % 3500));
    }
    for (int32_t i = 0; i < 16; i++) {
        buf_printf(out, ",%d", 300 + which * 40 + i);
    }
    buf_puts(out, "]}");
}

static void begin(wire *w, int32_t n, int32_t which, int32_t max_tokens) {
    buf body = BUF_INIT;
    put_body(&body, n, which, max_tokens);
    wire_open_unix(w, socket_path);
    wire_request(w, "POST", "/v1/completions", "Connection: close\r\n", buf_cstr(&body));
    buf_release(&body);
}

static int64_t number_behind(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at != NULL ? strtoll(at + strlen(name), NULL, 10) : -1;
}

/* Milliseconds to the first token; *n_cached: prompt tokens that were known. */
static double ask(int32_t n, int32_t which, int64_t *n_cached) {
    wire w;
    uint64_t start = clock_mono_ns();
    double first_ms = -1.0;
    begin(&w, n, which, 4);
    while (!w.is_closed && clock_mono_ns() - start < (uint64_t)ANSWER_MS * 1000000u) {
        wire_receive(&w, 10000);
        if (first_ms < 0.0 && strstr(buf_cstr(&w.in), "data: {") != NULL) {
            first_ms = (double)(clock_mono_ns() - start) / 1e6;
        }
        if (strstr(buf_cstr(&w.in), "[DONE]") != NULL) break;
    }
    *n_cached = number_behind(buf_cstr(&w.in), "\"cached_tokens\":");
    wire_close(&w);
    return first_ms;
}

/* ---- the pauses of running replies ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct running {
    wire w;
    size_t n_seen; /* bytes looked at */
    uint64_t last_ns;
} running;

/* Takes what came; notes the time since the last token. */
static void look(running *r, double *gaps, int *n_gaps) {
    (void)wire_receive(&r->w, 2);
    const char *text = buf_cstr(&r->w.in);
    const char *at = strstr(text + r->n_seen, "data: {");
    if (at == NULL) return;
    uint64_t now = clock_mono_ns();
    if (r->last_ns != 0 && *n_gaps < N_GAPS) gaps[(*n_gaps)++] = (double)(now - r->last_ns) / 1e6;
    r->last_ns = now;
    r->n_seen = r->w.in.len;
}

/* Replies run while a document is read; the time between their tokens meanwhile. */
static void bench_gaps(int32_t n) {
    static running all[N_STREAMS];
    static wire document;
    double *gaps = mem_array(N_GAPS, sizeof *gaps);
    int n_gaps = 0;
    for (int i = 0; i < N_STREAMS; i++) {
        all[i] = (running){0};
        begin(&all[i].w, 30, 10 + i, 20000);
    }
    for (uint64_t end = clock_mono_ms() + 2000; clock_mono_ms() < end;) {
        for (int i = 0; i < N_STREAMS; i++) {
            look(&all[i], gaps, &n_gaps);
        }
    }
    n_gaps = 0;
    uint64_t start = clock_mono_ns();
    begin(&document, n, 20, 1);
    while (!document.is_closed && strstr(buf_cstr(&document.in), "data: {") == NULL) {
        for (int i = 0; i < N_STREAMS; i++) {
            look(&all[i], gaps, &n_gaps);
        }
        (void)wire_receive(&document, 0);
    }
    double seconds = (double)(clock_mono_ns() - start) / 1e9;
    qsort(gaps, (size_t)n_gaps, sizeof *gaps, by_value);
    if (n_gaps > 0) {
        printf(
            "token_gap document_tokens=%d streams=%d read_s=%.1f gaps=%d p50_ms=%.0f p95_ms=%.0f "
            "p99_ms=%.0f max_ms=%.0f aim_ms=150\n",
            n, N_STREAMS, seconds, n_gaps, gaps[n_gaps / 2], gaps[n_gaps * 95 / 100],
            gaps[n_gaps * 99 / 100], gaps[n_gaps - 1]);
    }
    for (int i = 0; i < N_STREAMS; i++) {
        wire_close(&all[i].w);
    }
    wire_close(&document);
    mem_free(gaps);
}

static void bench_questions(int32_t n) {
    int64_t cached[4];
    double ms[4];
    static const char *const names[] = {"cold", "second_question", "after_restart", "after_kill"};
    start_daemon();
    for (int i = 0; i < 4; i++) {
        ms[i] = ask(n, i, &cached[i]);
        printf(
            "first_token case=%s document_tokens=%d ms=%.1f cached_tokens=%lld percent_of_cold=%.2f\n",
            names[i], n, ms[i], (long long)cached[i], 100.0 * ms[i] / ms[0]);
        fflush(stdout);
        if (i == 1) stop_daemon(SIGTERM);
        if (i == 2) stop_daemon(SIGKILL);
        if (i == 1 || i == 2) start_daemon();
    }
}

int main(int argc, char **argv) {
    const char *out = getenv("OUT");
    int32_t n = argc > 1 ? (int32_t)strtol(argv[1], NULL, 10) : 16000;
    if (n < 100 || n > WINDOW - 100) n = 16000;
    if (!long_demo_make(WINDOW, folder)) {
        puts("first_token skipped: there is no built-in model here");
        return 0;
    }
    snprintf(program, sizeof program, "%s/tandemd", out != NULL ? out : "build");
    snprintf(dir, sizeof dir, "/tmp/tandem-bench.XXXXXX");
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(socket_path, sizeof socket_path, "%s/s", dir);
    snprintf(cache_dir, sizeof cache_dir, "%s/cache", dir);
    bench_questions(n);
    bench_gaps(n / 2);
    stop_daemon(SIGTERM);
    (void)dir_remove_all(dir, NULL);
    long_demo_remove(folder);
    return 0;
}
