/* The real tandemd under random mixed load over HTTP, for SOAK_SECONDS (default 120): conversations
 * that go on, branch and repeat, streamed and whole, all forms of the API; clients that cancel, leave
 * or send nonsense; failing steps, drafts, states and pages and rows that are not finite (the test
 * build tandemd-faults); the daemon stopped and killed now and then, its cache on disk kept. Every
 * reply is compared with the same request made alone to a daemon without cache and drafts. At the end:
 * nothing runs, no page is held, memory and descriptors are where they were. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/text/tokenizer.h"
#include "tests/harness/soak_ask.h"
#include "tests/harness/sse_message.h"
#include "tests/harness/wire.h"

/* At least so many replies are compared, however slow the machine is. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SOAK_DEFAULT_S = 20, IS_SANITIZED = 1, ANSWER_MS = 900000, COMPARED_LEAST = 20 };
#else
enum { SOAK_DEFAULT_S = 120, IS_SANITIZED = 0, ANSWER_MS = 240000, COMPARED_LEAST = 60 };
#endif
enum { CLIENTS = 10, ASKS = 3000, REST_MS = 120000, GROWN_KIB = 6144 };
/* Rows of this word's only token go wrong; no document holds it. */
#define FAULT_WORD " Europe"

typedef struct ask_entry {
    soak_ask ask;
    pthread_mutex_t lock; /* guards what follows */
    bool is_answered, is_fault;
    buf answer; /* made alone: whole JSON */
    buf reply;  /* its text */
} ask_entry;

typedef struct daemon_process {
    const char *program;
    char socket_path[200], log_path[200];
    pid_t pid;
} daemon_process;

typedef struct soak {
    char dir[64], model_dir[512];
    daemon_process tested, lone;
    ask_entry asks[ASKS];
    _Atomic int n_asks;
    pthread_rwlock_t gate; /* clients read; stops and readings write */
    pthread_mutex_t lone_lock;
    _Atomic bool is_over;
    _Atomic uint32_t generation; /* of the tested daemon; odd: it is being stopped */
    _Atomic int64_t n_done, n_compared, n_cancelled, n_left, n_refused, n_bad, n_failed, n_lost;
    pthread_mutex_t fault_lock;
    char fault[1200]; /* "": none; the first counts */
} soak;

typedef struct client {
    soak *s;
    pthread_t thread;
    rand_state rand;
} client;

static uint32_t below(client *c, uint32_t n) {
    return rand_u32(&c->rand) % n;
}

static void report(soak *s, const char *what, const ask_entry *a, const char *detail) {
    pthread_mutex_lock(&s->fault_lock);
    if (s->fault[0] == '\0') {
        snprintf(s->fault, sizeof s->fault, "%s: %.600s\n%s %.400s", what, detail,
            a != NULL ? a->ask.path : "", a != NULL ? buf_cstr(&a->ask.body) : "");
    }
    pthread_mutex_unlock(&s->fault_lock);
    atomic_store(&s->is_over, true);
}

/* ---- daemons ---- */

static void launch(soak *s, daemon_process *d, const char *const *extra) {
    const char *argv[32] = {d->program, "--model", s->model_dir, "--socket", d->socket_path,
        "--reserve", "0", "--context", "1024", "--log", d->log_path, "--log-level", "warn"};
    int n = 13;
    while (*extra != NULL) {
        argv[n++] = *extra++;
    }
    argv[n] = NULL;
    d->pid = fork();
    if (d->pid != 0) return;
    int fd = open(d->log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, STDERR_FILENO);
    dup2(fd, STDOUT_FILENO);
    execv(d->program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

static int get(const daemon_process *d, const char *path, buf *body) {
    wire w;
    wire_answer a;
    wire_open_unix(&w, d->socket_path);
    if (w.fd < 0) return 0;
    wire_request(&w, "GET", path, "Connection: close\r\n", NULL);
    wire_read(&w, &a, ANSWER_MS);
    int status = a.status;
    if (body != NULL) buf_append(body, a.body.data, a.body.len);
    wire_answer_release(&a);
    wire_close(&w);
    return status;
}

static void wait_ready(const daemon_process *d) {
    uint64_t deadline = clock_mono_ms() + 120000;
    while (get(d, "/ready", NULL) != 200) {
        if (clock_mono_ms() > deadline) fail_msg("%s is not ready after two minutes", d->program);
        sleep_ms(20);
    }
}

static void start_tested(soak *s) {
    char cache[128];
    snprintf(cache, sizeof cache, "%s/cache", s->dir);
    const char *const extra[] = {"--slots", "4", "--queue", "5", "--cache-dir", cache,
        "--cache-disk", "64", "--cache-ram", "16", "--pages", "26", NULL};
    launch(s, &s->tested, extra);
    wait_ready(&s->tested);
}

static int stop(daemon_process *d, int signal_number) {
    int status = 0;
    uint64_t deadline = clock_mono_ms() + 120000;
    kill(d->pid, signal_number);
    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        if (clock_mono_ms() > deadline) {
            kill(d->pid, SIGKILL);
            waitpid(d->pid, &status, 0);
            fail_msg("%s did not end", d->program);
        }
        sleep_ms(5);
    }
    return status;
}

/* ---- asking ---- */

/* The reply made alone; false when the lone daemon gave none. */
static bool answer_alone(soak *s, ask_entry *a) {
    wire w;
    wire_answer got;
    pthread_mutex_lock(&a->lock);
    if (!a->is_answered) {
        pthread_mutex_lock(&s->lone_lock);
        wire_open_unix(&w, s->lone.socket_path);
        wire_request(&w, "POST", a->ask.path, "", buf_cstr(&a->ask.body));
        wire_read(&w, &got, ANSWER_MS);
        pthread_mutex_unlock(&s->lone_lock);
        a->is_answered = got.status == 200 && got.is_complete;
        if (a->is_answered) {
            json *v = NULL;
            buf_append(&a->answer, got.body.data, got.body.len);
            if (a->ask.is_chat && json_parse(got.body.data, got.body.len, NULL, &v, NULL) == OK) {
                const json *message = json_get(json_at(json_get(v, "choices"), 0), "message");
                const char *text = json_str(json_get(message, "content"));
                buf_puts(&a->reply, text != NULL ? text : "");
            }
            json_free(v);
        } else {
            char detail[400];
            snprintf(detail, sizeof detail, "status %d %.300s", got.status, buf_cstr(&got.body));
            report(s, "the lone daemon gave no answer", a, detail);
        }
        wire_answer_release(&got);
        wire_close(&w);
    }
    bool is_answered = a->is_answered;
    pthread_mutex_unlock(&a->lock);
    return is_answered;
}

/* An earlier request again, one that goes on with an earlier one, or a new one. */
static ask_entry *choose(client *c) {
    soak *s = c->s;
    int n = atomic_load(&s->n_asks);
    bool is_full = n > ASKS - CLIENTS;
    if (n > 8 && (is_full || below(c, 4) > 0)) return &s->asks[below(c, (uint32_t)n)];
    ask_entry *before = n > 8 && below(c, 2) == 0 ? &s->asks[below(c, (uint32_t)n)] : NULL;
    soak_past past = {0};
    if (before != NULL && before->ask.is_chat && before->ask.messages.len < 2500 &&
        !before->is_fault && answer_alone(s, before)) {
        past = (soak_past){&before->ask, buf_cstr(&before->reply)};
    }
    ask_entry *made = mem_alloc(sizeof *made);
    bool is_fault = past.ask == NULL && below(c, 12) == 0;
    soak_ask_make(&made->ask, rand_u64(&c->rand), past.ask != NULL ? &past : NULL,
        is_fault ? "Where is" FAULT_WORD "?" : NULL);
    pthread_mutex_lock(&s->fault_lock); /* one at a time: readers see whole entries only */
    int i = atomic_load(&s->n_asks);
    s->asks[i].ask = made->ask;
    s->asks[i].is_fault = is_fault;
    atomic_store(&s->n_asks, i + 1);
    pthread_mutex_unlock(&s->fault_lock);
    mem_free(made);
    return &s->asks[i];
}

/* How the API names what the test build injects; the reason is in the log. */
static bool is_fault_text(const char *text) {
    return strstr(text, "the server made an error") != NULL;
}

/* A whole answer that is no 200: refused because the queue is full, or a fault that was injected. */
static void take_refusal(client *c, const ask_entry *a, const wire_answer *got) {
    char text[32];
    char detail[500];
    soak *s = c->s;
    wire_header(got, "Retry-After", text, sizeof text);
    if (got->status == 429 && text[0] != '\0') {
        atomic_fetch_add(&s->n_refused, 1);
        sleep_ms(20 + below(c, 100));
        return;
    }
    if (got->status >= 500 && is_fault_text(buf_cstr(&got->body))) {
        atomic_fetch_add(&s->n_failed, 1);
        return;
    }
    snprintf(detail, sizeof detail, "status %d %.400s", got->status, buf_cstr(&got->body));
    report(s, "a request was not answered", a, detail);
}

static bool is_prefix(const buf *part, const buf *whole) {
    return part->len <= whole->len && memcmp(buf_cstr(part), buf_cstr(whole), part->len) == 0;
}

/* A stream: the same message as alone, or the beginning of it when it was cancelled or failed. */
static void check_stream(client *c, ask_entry *a, const wire_answer *got, bool is_cancelled) {
    sse_message m = {0};
    sse_message want = {0};
    json *v = NULL;
    const char *why = "";
    char detail[500] = "";
    soak *s = c->s;
    json_parse(a->answer.data, a->answer.len, NULL, &v, NULL);
    sse_read_whole(v, &want);
    sse_read_stream(&got->body, &m);
    bool is_cut = m.has_error || is_cancelled || m.finish[0] == '\0';
    if (!is_cut && !sse_message_equal(&m, &want, &why)) {
        snprintf(detail, sizeof detail, "%s: '%.150s', alone '%.150s'", why, buf_cstr(&m.content),
            buf_cstr(&want.content));
        report(s, "another stream than alone", a, detail);
    } else if (is_cut && (!is_prefix(&m.content, &want.content) ||
                             !is_prefix(&m.reasoning, &want.reasoning))) {
        snprintf(detail, sizeof detail, "'%.200s', alone '%.200s'", buf_cstr(&m.content),
            buf_cstr(&want.content));
        report(s, "a cut stream is no beginning of the reply", a, detail);
    } else if (is_cut && !is_cancelled && !is_fault_text(buf_cstr(&got->body))) {
        report(s, "a stream ended before its end", a, buf_cstr(&got->body));
    }
    atomic_fetch_add(is_cancelled ? &s->n_cancelled : is_cut ? &s->n_failed : &s->n_compared, 1);
    sse_message_release(&m);
    sse_message_release(&want);
    json_free(v);
}

static void check_whole(client *c, ask_entry *a, const wire_answer *got) {
    char why[700];
    if (!soak_same(&got->body, &a->answer, why, sizeof why)) {
        report(c->s, "another reply than alone", a, why);
    }
    atomic_fetch_add(&c->s->n_compared, 1);
}

static void send_ask(client *c, wire *w, const ask_entry *a, bool streams, const char *id) {
    char headers[120] = "";
    buf body = BUF_INIT;
    (void)c;
    if (id != NULL) snprintf(headers, sizeof headers, "x-request-id: %s\r\n", id);
    buf_printf(&body, "{%s%s", streams ? "\"stream\":true," : "", buf_cstr(&a->ask.body) + 1);
    wire_request(w, "POST", a->ask.path, headers, buf_cstr(&body));
    buf_release(&body);
}

/* The daemon of this generation was or is being stopped: nothing can be said about its answers. */
static bool is_lost(soak *s, uint32_t generation) {
    return generation % 2 == 1 || generation != atomic_load(&s->generation);
}

/* False: the daemon is being stopped, nobody listens. */
static bool open_tested(soak *s, wire *w) {
    wire_open_unix(w, s->tested.socket_path);
    if (w->fd >= 0) return true;
    if (atomic_load(&s->generation) % 2 == 0) report(s, "no connection", NULL, strerror(errno));
    wire_close(w);
    return false;
}

static void cancel(soak *s, const char *id) {
    wire w;
    wire_answer got;
    char body[100];
    snprintf(body, sizeof body, "{\"id\":\"%s\"}", id);
    if (!open_tested(s, &w)) return;
    wire_request(&w, "POST", "/tandem/v1/cancel", "Connection: close\r\n", body);
    wire_read(&w, &got, ANSWER_MS);
    wire_answer_release(&got);
    wire_close(&w);
}

enum { MANNER_READ, MANNER_CANCEL, MANNER_LEAVE, MANNER_HALF_CLOSE };

/* One request, read to its end, cancelled, left, or with the writing side closed at once. */
static void ask(client *c, ask_entry *a) {
    soak *s = c->s;
    wire w;
    wire_answer got;
    char id[64];
    uint32_t chance = below(c, 100);
    bool streams = a->ask.is_chat && below(c, 2) == 0;
    int manner = chance < 12 && streams ? MANNER_CANCEL
                 : chance < 18          ? MANNER_LEAVE
                 : chance < 22          ? MANNER_HALF_CLOSE
                                        : MANNER_READ;
    if (!answer_alone(s, a)) return;
    uint32_t generation = atomic_load(&s->generation);
    if (!open_tested(s, &w)) return;
    snprintf(id, sizeof id, "soak-%llx", (unsigned long long)rand_u64(&c->rand));
    send_ask(c, &w, a, streams, id);
    if (manner == MANNER_HALF_CLOSE) shutdown(w.fd, SHUT_WR);
    if (manner == MANNER_CANCEL || manner == MANNER_LEAVE) wire_receive(&w, (int)below(c, 300));
    if (manner == MANNER_CANCEL) cancel(s, id);
    if (manner == MANNER_LEAVE) {
        atomic_fetch_add(&s->n_left, 1);
        wire_close(&w);
        return;
    }
    wire_read(&w, &got, ANSWER_MS);
    atomic_fetch_add(&s->n_done, 1);
    if (is_lost(s, generation)) {
        atomic_fetch_add(&s->n_lost, 1);
    } else if (got.status != 200) {
        take_refusal(c, a, &got);
    } else if (!got.is_complete) {
        report(s, "an answer ended in the middle", a, buf_cstr(&got.body));
    } else if (streams) {
        check_stream(c, a, &got, manner == MANNER_CANCEL);
    } else {
        check_whole(c, a, &got);
    }
    wire_answer_release(&got);
    wire_close(&w);
}

static void ask_badly(client *c) {
    wire w;
    char why[300] = "";
    uint32_t generation = atomic_load(&c->s->generation);
    if (!open_tested(c->s, &w)) return;
    bool is_refused = soak_send_bad(&w, (int)below(c, SOAK_BAD_REQUESTS), why, sizeof why);
    if (!is_refused && !is_lost(c->s, generation)) {
        report(c->s, "a bad request was not refused", NULL, why);
    }
    atomic_fetch_add(&c->s->n_bad, 1);
    wire_close(&w);
}

static void *run_client(void *ctx) {
    client *c = ctx;
    while (!atomic_load(&c->s->is_over)) {
        pthread_rwlock_rdlock(&c->s->gate);
        if (below(c, 25) == 0) {
            ask_badly(c);
        } else {
            ask(c, choose(c));
        }
        pthread_rwlock_unlock(&c->s->gate);
        sleep_ms(below(c, 30));
    }
    return NULL;
}

/* ---- what the daemon holds ---- */

typedef struct reading {
    int64_t rss_kib, n_fds, n_threads;
} reading;

static int64_t number_behind(const buf *text, const char *name) {
    const char *at = strstr(buf_cstr(text), name);
    return at != NULL ? strtoll(at + strlen(name), NULL, 10) : -1;
}

/* Open descriptors but those of cache segments, which come and go. */
static int64_t count_fds(const soak *s) {
    char path[400];
    char target[400];
    char cache[128];
    int64_t n = 0;
    snprintf(cache, sizeof cache, "%s/cache", s->dir);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)s->tested.pid);
    DIR *d = opendir(path);
    for (struct dirent *f; d != NULL && (f = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/fd/%.200s", (int)s->tested.pid, f->d_name);
        ssize_t len = readlink(path, target, sizeof target - 1);
        target[len > 0 ? len : 0] = '\0';
        n += f->d_name[0] != '.' && strncmp(target, cache, strlen(cache)) != 0;
    }
    if (d != NULL) closedir(d);
    return n;
}

static bool has_more(const reading *now, const reading *before) {
    return before != NULL && (now->n_fds > before->n_fds || now->n_threads > before->n_threads);
}

/* Waits until nothing runs and no page is held by a stream; then reads memory and descriptors when
 * they have come to rest: for a second, and until there are no more than before, where that is known.
 * The gate is closed. */
static reading rest(soak *s, const reading *before) {
    char path[64];
    reading now = {0};
    uint64_t deadline = clock_mono_ms() + REST_MS;
    for (;;) {
        buf text = BUF_INIT;
        assert_int_equal(get(&s->tested, "/metrics", &text), 200);
        int64_t n_used = number_behind(&text, "\ntandem_kv_pages_used ");
        int64_t n_running = number_behind(&text, "\ntandem_requests_running ");
        int64_t n_waiting = number_behind(&text, "\ntandem_requests_waiting ");
        buf_release(&text);
        if (n_used == 0 && n_running == 0 && n_waiting == 0) break;
        if (clock_mono_ms() > deadline) {
            fail_msg("pages %lld, running %lld, waiting %lld after two minutes of rest",
                (long long)n_used, (long long)n_running, (long long)n_waiting);
        }
        sleep_ms(20);
    }
    now.n_fds = INT64_MAX;
    snprintf(path, sizeof path, "/proc/%d/status", (int)s->tested.pid);
    /* Connections that were left close by and by. */
    for (int i = 0; i < 40 || (has_more(&now, before) && clock_mono_ms() < deadline); i++) {
        buf text = BUF_INIT;
        int64_t n_fds = count_fds(s);
        assert_int_equal(file_read(path, &text, 65536, NULL), OK);
        now.rss_kib = number_behind(&text, "VmRSS:");
        now.n_threads = number_behind(&text, "Threads:");
        if (n_fds < now.n_fds) now.n_fds = n_fds;
        buf_release(&text);
        sleep_ms(25);
    }
    return now;
}

static void print_state(const soak *s, const char *when, const reading *r) {
    printf(
        "%s: %lld requests, %lld compared, %lld cancelled, %lld left, %lld refused, %lld bad, "
        "%lld failed as told, %lld lost in %u stops; RSS %lld KiB, %lld descriptors, %lld threads\n",
        when, (long long)s->n_done, (long long)s->n_compared, (long long)s->n_cancelled,
        (long long)s->n_left, (long long)s->n_refused, (long long)s->n_bad, (long long)s->n_failed,
        (long long)s->n_lost, (unsigned)s->generation, (long long)r->rss_kib, (long long)r->n_fds,
        (long long)r->n_threads);
    fflush(stdout);
}

/* Stopped, or killed while clients read; the next one finds the cache on disk. */
static void stop_and_start(soak *s, bool is_kill) {
    atomic_fetch_add(&s->generation, 1);
    if (is_kill) {
        stop(&s->tested, SIGKILL);
        pthread_rwlock_wrlock(&s->gate); /* nobody asks a daemon that is not there */
    } else {
        pthread_rwlock_wrlock(&s->gate);
        assert_int_equal(stop(&s->tested, SIGTERM), 0);
    }
    start_tested(s);
    atomic_fetch_add(&s->generation, 1);
    pthread_rwlock_unlock(&s->gate);
}

static void judge(soak *s, const reading *first, const reading *last) {
    if (!IS_SANITIZED && last->rss_kib - first->rss_kib > GROWN_KIB) {
        report(s, "memory has grown", NULL, "see the lines above");
    }
    if (last->n_fds > first->n_fds) report(s, "descriptors were lost", NULL, "see above");
    if (last->n_threads > first->n_threads) report(s, "threads were lost", NULL, "see above");
}

/* The first third with stops; memory is watched over the rest, of which the first part warms up. */
static void watch(soak *s, uint64_t start_ms, uint64_t limit_ms) {
    reading first = {0};
    reading last;
    for (int n_stops = 0, has_first = 0; !atomic_load(&s->is_over);) {
        uint64_t spent = clock_mono_ms() - start_ms;
        bool has_enough = s->n_compared >= COMPARED_LEAST && s->n_bad > 0;
        if (spent >= limit_ms && has_enough) break;
        if (n_stops < 4 && spent > limit_ms * (uint64_t)(n_stops + 1) / 15) {
            stop_and_start(s, n_stops++ % 2 == 0);
        }
        if (!has_first && spent > limit_ms / 2) {
            pthread_rwlock_wrlock(&s->gate);
            first = rest(s, NULL);
            print_state(s, "half way", &first);
            has_first = 1;
            pthread_rwlock_unlock(&s->gate);
        }
        sleep_ms(50);
    }
    pthread_rwlock_wrlock(&s->gate);
    if (s->fault[0] == '\0') {
        last = rest(s, first.n_threads > 0 ? &first : NULL);
        print_state(s, "end", &last);
        if (first.n_threads > 0)
            judge(s, &first, &last);
        else
            puts("one round took more than half of the time: nothing to compare memory with");
    }
    atomic_store(&s->is_over, true);
    pthread_rwlock_unlock(&s->gate);
}

static void check_log(const soak *s) {
    buf text = BUF_MAX(256u << 20);
    assert_int_equal(file_read(s->tested.log_path, &text, 256u << 20, NULL), OK);
    /* Failed requests were those that the test build made fail. */
    const char *at = strstr(buf_cstr(&text), "CHECK");
    if (at == NULL) at = strstr(buf_cstr(&text), "Sanitizer");
    if (at == NULL) at = strstr(buf_cstr(&text), "runtime error");
    if (at != NULL) fail_msg("%.2000s", at);
    buf_release(&text);
}

/* The switches of the test build. */
static void set_faults(const soak *s) {
    char path[600];
    tokenizer *t = NULL;
    token_list ids = {0};
    err e = ERR_INIT;
    text_span text = {.text = FAULT_WORD, .len = strlen(FAULT_WORD)};
    snprintf(path, sizeof path, "%s/tokenizer.json", s->model_dir);
    if (tokenizer_open(path, &t, &e) != OK || tokenizer_encode(t, text, &ids, &e) != OK) {
        fail_msg("%s", e.msg);
    }
    assert_int_equal(ids.len, 1);
    char token[16];
    snprintf(token, sizeof token, "%d", (int)ids.ids[0]);
    setenv("TANDEM_FAULTS", "1", 1);
    setenv("TANDEM_FAULT_TOKEN", token, 1);
    token_list_release(&ids);
    tokenizer_close(t);
}

static soak *the_soak;

static void random_load_over_http(void **state) {
    (void)state;
    static client clients[CLIENTS];
    static const char *const lone[] = {
        "--slots", "1", "--no-cache", "--no-drafts", "--queue", "64", NULL};
    const char *seconds = getenv("SOAK_SECONDS");
    uint64_t limit_ms = (seconds != NULL ? strtoull(seconds, NULL, 10) : SOAK_DEFAULT_S) * 1000;
    soak *s = the_soak;
    set_faults(s);
    launch(s, &s->lone, lone);
    wait_ready(&s->lone);
    start_tested(s);
    uint64_t start_ms = clock_mono_ms();
    for (int i = 0; i < CLIENTS; i++) {
        clients[i].s = s;
        rand_init(&clients[i].rand, 11, (uint64_t)i);
        assert_int_equal(pthread_create(&clients[i].thread, NULL, run_client, &clients[i]), 0);
    }
    watch(s, start_ms, limit_ms);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
    }
    if (s->fault[0] != '\0') fail_msg("%s", s->fault);
    /* How many are refused, and lost in stops, depends on what else the machine does. */
    int64_t n_whole = s->n_done - s->n_refused - s->n_lost;
    assert_true(s->n_compared > n_whole / 2 && s->n_bad > 0);
    assert_int_equal(stop(&s->tested, SIGTERM), 0);
    assert_int_equal(stop(&s->lone, SIGTERM), 0);
    check_log(s);
}

static void set_up(soak *s) {
    const char *out = getenv("OUT");
    const char *weights = getenv("DEMO_WEIGHTS");
    static char tested[600], lone[600];
    str_copy(s->model_dir, sizeof s->model_dir, "templates/demo-model");
    if (!dir_exists(s->model_dir) && weights != NULL) {
        str_copy(s->model_dir, sizeof s->model_dir, weights);
    }
    snprintf(tested, sizeof tested, "%s/tests/soak/tandemd-faults", out != NULL ? out : "build");
    snprintf(lone, sizeof lone, "%s/tandemd", out != NULL ? out : "build");
    s->tested.program = tested;
    s->lone.program = lone;
    snprintf(s->tested.socket_path, sizeof s->tested.socket_path, "%s/a.sock", s->dir);
    snprintf(s->lone.socket_path, sizeof s->lone.socket_path, "%s/b.sock", s->dir);
    snprintf(s->tested.log_path, sizeof s->tested.log_path, "%s/a.log", s->dir);
    snprintf(s->lone.log_path, sizeof s->lone.log_path, "%s/b.log", s->dir);
    pthread_rwlockattr_t attr; /* whoever wants to close the gate comes before new requests */
    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&s->gate, &attr);
    pthread_rwlockattr_destroy(&attr);
    pthread_mutex_init(&s->lone_lock, NULL);
    pthread_mutex_init(&s->fault_lock, NULL);
    for (int i = 0; i < ASKS; i++) {
        pthread_mutex_init(&s->asks[i].lock, NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_load_over_http)};
    the_soak = mem_alloc(sizeof *the_soak);
    str_copy(the_soak->dir, sizeof the_soak->dir, "/tmp/tandem-soak.XXXXXX");
    if (mkdtemp(the_soak->dir) == NULL) return 1;
    set_up(the_soak);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (the_soak->tested.pid > 0 && rc != 0) kill(the_soak->tested.pid, SIGKILL);
    if (the_soak->lone.pid > 0 && rc != 0) kill(the_soak->lone.pid, SIGKILL);
    for (int i = 0; i < the_soak->n_asks; i++) {
        soak_ask_release(&the_soak->asks[i].ask);
        buf_release(&the_soak->asks[i].answer);
        buf_release(&the_soak->asks[i].reply);
    }
    if (rc == 0) (void)dir_remove_all(the_soak->dir, NULL);
    mem_free(the_soak);
    return rc;
}
