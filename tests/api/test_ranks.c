/* Two ranks as two processes with a real model: the same answers as one, a rank lost in each phase,
 * bad secrets, another model, a taken port, a clean end, and a broken link between two network
 * namespaces (where this machine allows them). */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
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
#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "engine/dist/meet.h"
#include "tests/harness/wire.h"

#define SECRET_A                                                                                   \
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff 0123456789abcdef\n"
#define SECRET_B                                                                                   \
    "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff 0123456789abcdef\n"

enum { READY_MS = 60000, LOST_MS = 2000, MAX_ARGS = 48 };

static char program[512], model_dir[512], dir[64], socket_path[128], log_path[128];

/* ---- processes ---- */

/* Process groups started by the running test; what it left is killed after it. */
static pid_t started[32];
static int n_started;

static int kill_rest(void **state) {
    (void)state;
    while (n_started > 0) {
        (void)kill(-started[--n_started], SIGKILL);
    }
    return 0;
}

/* Starts the program (or a wrapper that args names first) with a line on its standard input. */
static pid_t start_words(const char *const *words, const char *line) {
    int in[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)setpgid(0, 0);
        int fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(fd, STDERR_FILENO);
        dup2(fd, STDOUT_FILENO);
        dup2(in[0], STDIN_FILENO);
        execvp(words[0], (char *const *)(uintptr_t)words);
        _exit(127);
    }
    if (line != NULL) assert_int_equal(write(in[1], line, strlen(line)), (ssize_t)strlen(line));
    close(in[0]);
    close(in[1]);
    assert_true(n_started < 32);
    started[n_started++] = pid;
    return pid;
}

static pid_t start(const char *role, const char *line, const char *const *extra) {
    const char *words[MAX_ARGS] = {program};
    int n = 1;
    if (role != NULL) words[n++] = role;
    const char *common[] = {"--model", model_dir, "--socket", socket_path, "--reserve", "0",
        "--threads", "1", "--meet-timeout", "20"};
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        words[n++] = common[i];
    }
    while (*extra != NULL) {
        words[n++] = *extra++;
    }
    words[n] = NULL;
    return start_words(words, line);
}

static const char *log_text(void) {
    static char text[32768];
    buf b = BUF_INIT;
    text[0] = '\0';
    if (file_read(log_path, &b, sizeof text - 1, NULL) == OK) {
        str_copy(text, sizeof text, buf_cstr(&b));
    }
    buf_release(&b);
    return text;
}

static int wait_exit(pid_t pid, int timeout_ms) {
    uint64_t deadline = clock_mono_ms() + (uint64_t)timeout_ms;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_mono_ms() > deadline) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            fail_msg("the program did not end in %d ms:\n%s", timeout_ms, log_text());
        }
        sleep_ms(5);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* The process ids of a pair's ranks, from the line that it logs at each start. */
static void find_ranks(int i_start, int pid[2]) {
    uint64_t deadline = clock_mono_ms() + READY_MS;
    for (;;) {
        const char *at = log_text();
        for (int i = 0; i <= i_start && at != NULL; i++) {
            at = strstr(i == 0 ? at : at + 1, "ranks started rank0=");
        }
        if (at != NULL && sscanf(at, "ranks started rank0=%d rank1=%d", &pid[0], &pid[1]) == 2) {
            return;
        }
        if (clock_mono_ms() > deadline) fail_msg("no start:\n%s", log_text());
        sleep_ms(5);
    }
}

/* ---- requests ---- */

static int get(const char *path, buf *body) {
    wire w;
    wire_answer a;
    wire_open_unix(&w, socket_path);
    if (w.fd < 0) return 0;
    wire_request(&w, "GET", path, "", NULL);
    wire_read(&w, &a, 1000);
    int status = a.status;
    if (body != NULL) {
        buf_reset(body);
        buf_append(body, a.body.data, a.body.len);
    }
    wire_answer_release(&a);
    wire_close(&w);
    return status;
}

static void wait_ready(void) {
    uint64_t deadline = clock_mono_ms() + READY_MS;
    while (get("/ready", NULL) != 200) {
        if (clock_mono_ms() > deadline) fail_msg("not ready after a minute:\n%s", log_text());
        sleep_ms(10);
    }
}

/* Waits until the engine does not call itself ready, and says how long that took. */
static int wait_not_ready(int limit_ms) {
    uint64_t start_ms = clock_mono_ms();
    while (get("/ready", NULL) == 200) {
        if (clock_mono_ms() - start_ms > (uint64_t)limit_ms) {
            fail_msg("still ready after %d ms:\n%s", limit_ms, log_text());
        }
        sleep_ms(10);
    }
    return (int)(clock_mono_ms() - start_ms);
}

static void reply_to(const char *question, buf *out) {
    wire w;
    wire_answer a;
    json *v = NULL;
    char body[400];
    snprintf(body, sizeof body,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"temperature\":0,"
        "\"max_tokens\":40}",
        question);
    wire_open_unix(&w, socket_path);
    wire_request(&w, "POST", "/v1/chat/completions", "", body);
    wire_read(&w, &a, 60000);
    if (a.status != 200 || json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL) != OK) {
        fail_msg("%d %s", a.status, buf_cstr(&a.body));
    }
    const json *message = json_get(json_at(json_get(v, "choices"), 0), "message");
    buf_reset(out);
    buf_puts(out, json_str(json_get(message, "content")));
    json_free(v);
    wire_answer_release(&a);
    wire_close(&w);
}

static const char *const questions[] = {"What is the capital of France?", "Who are you?",
    "What is 12 plus 7?", "What is water?", "What is a dog?", "Count from one to ten.",
    "What is the capital of Italy?", "What is 5 times 6?"};
enum { N_QUESTIONS = sizeof questions / sizeof questions[0] };

static const char *const none[] = {NULL};

static pid_t start_pair(const char *const *extra) {
    const char *words[16] = {"--meet", "127.0.0.1:0", "--drain", "2"};
    int n = 4;
    while (*extra != NULL) {
        words[n++] = *extra++;
    }
    words[n] = NULL;
    (void)unlink(log_path);
    return start("pair", NULL, words);
}

static void stop(pid_t pid) {
    kill(pid, SIGTERM);
    int code = wait_exit(pid, 20000);
    if (code != 0) fail_msg("ended with %d:\n%s", code, log_text());
}

/* ---- tests ---- */

/* Greedy answers of two ranks are those of one. EXL3 halves scale their rows by their own maxima, so
 * a near tie may fall the other way: one answer of eight may differ (engine/model/NOTES.md). */
static void two_ranks_answer_like_one(void **state) {
    (void)state;
    buf one[N_QUESTIONS] = {0};
    buf two = BUF_INIT;
    int n_equal = 0;
    (void)unlink(log_path);
    pid_t pid = start(NULL, NULL, none);
    wait_ready();
    for (int i = 0; i < N_QUESTIONS; i++) {
        reply_to(questions[i], &one[i]);
    }
    stop(pid);
    pid = start_pair(none);
    wait_ready();
    for (int i = 0; i < N_QUESTIONS; i++) {
        reply_to(questions[i], &two);
        bool is_equal = strcmp(buf_cstr(&two), buf_cstr(&one[i])) == 0;
        n_equal += is_equal;
        if (!is_equal) print_message("%s | %s\n", buf_cstr(&one[i]), buf_cstr(&two));
        buf_release(&one[i]);
    }
    assert_true(n_equal >= N_QUESTIONS - 1);
    assert_int_equal(get("/tandem/v1/state", &two), 200);
    assert_non_null(strstr(buf_cstr(&two), "{\"rank\":1,\"state\":\"up\""));
    buf_release(&two);
    stop(pid);
}

/* A stream that is on its way when the rank is lost gets an error, not a cut. */
static void read_to_end(wire *w, buf *out) {
    char piece[4096];
    uint64_t deadline = clock_mono_ms() + 10000;
    while (clock_mono_ms() < deadline) {
        ssize_t n = recv(w->fd, piece, sizeof piece, MSG_DONTWAIT);
        if (n == 0) return;
        if (n > 0) {
            buf_append(out, piece, (size_t)n);
        } else if (errno == EAGAIN) {
            sleep_ms(2);
        } else {
            return;
        }
    }
}

static void ask_long(wire *w) {
    wire_open_unix(w, socket_path);
    assert_true(w->fd >= 0);
    wire_request(w, "POST", "/v1/chat/completions", "",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Count from one to twenty.\"}],"
        "\"temperature\":0,\"max_tokens\":3000,\"ignore_eos\":true,\"stream\":true}");
}

static void lose_while_decoding(int who, int how, bool is_idle) {
    int pid[2];
    wire w = {.fd = -1};
    buf got = BUF_INIT;
    pid_t pair = start_pair(none);
    wait_ready();
    find_ranks(0, pid);
    if (!is_idle) {
        ask_long(&w);
        sleep_ms(300);
    }
    kill(pid[who], how);
    int took = wait_not_ready(LOST_MS);
    print_message("rank %d, signal %d, %s: noticed after %d ms\n", who, how,
        is_idle ? "idle" : "decoding", took);
    if (!is_idle && who == 1) {
        read_to_end(&w, &got);
        if (strstr(buf_cstr(&got), "engine_failed") == NULL) {
            fail_msg("no error in the stream: %s", buf_cstr(&got));
        }
    }
    if (w.fd >= 0) wire_close(&w);
    wait_ready();
    find_ranks(1, pid);
    reply_to(questions[0], &got);
    assert_non_null(strstr(buf_cstr(&got), "Paris"));
    buf_release(&got);
    stop(pair);
}

static void worker_killed_while_decoding(void **state) {
    (void)state;
    lose_while_decoding(1, SIGKILL, false);
}

static void worker_killed_while_idle(void **state) {
    (void)state;
    lose_while_decoding(1, SIGKILL, true);
}

static void worker_stopped(void **state) {
    (void)state;
    lose_while_decoding(1, SIGSTOP, false);
}

static void head_killed(void **state) {
    (void)state;
    lose_while_decoding(0, SIGKILL, false);
}

/* A long prompt is being read. */
static void worker_killed_in_prefill(void **state) {
    (void)state;
    int pid[2];
    wire w;
    buf body = BUF_INIT, got = BUF_INIT;
    pid_t pair = start_pair(none);
    wait_ready();
    find_ranks(0, pid);
    buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 700; i++) {
        buf_printf(&body, "word%d and ", i);
    }
    buf_puts(&body, "\"}],\"max_tokens\":5}");
    wire_open_unix(&w, socket_path);
    wire_request(&w, "POST", "/v1/chat/completions", "", buf_cstr(&body));
    sleep_ms(150);
    kill(pid[1], SIGKILL);
    (void)wait_not_ready(LOST_MS);
    read_to_end(&w, &got);
    bool is_told = strstr(buf_cstr(&got), "engine_failed") != NULL;
    if (!is_told) fail_msg("no error: %.300s\n%s", buf_cstr(&got), log_text());
    wire_close(&w);
    wait_ready();
    buf_release(&body);
    buf_release(&got);
    stop(pair);
}

/* A rank dies while the model is being loaded: the pair starts again and serves. */
static void killed_while_loading(void **state) {
    (void)state;
    for (int who = 0; who < 2; who++) {
        int pid[2];
        pid_t pair = start_pair(none);
        find_ranks(0, pid);
        sleep_ms(250);
        kill(pid[who], SIGKILL);
        find_ranks(1, pid);
        wait_ready();
        stop(pair);
    }
}

static void tries_are_bounded(void **state) {
    (void)state;
    static const char *const no_more[] = {"--restarts", "1", NULL};
    int pid[2];
    pid_t pair = start_pair(no_more);
    for (int i = 0; i < 2; i++) {
        find_ranks(i, pid);
        kill(pid[1], SIGKILL);
    }
    assert_int_equal(wait_exit(pair, 30000), 40);
    assert_non_null(strstr(log_text(), "1 new starts"));
    assert_int_equal(get("/ready", NULL), 0);
}

/* Asking the other rank to stop drains the whole engine. */
static void worker_asked_to_stop(void **state) {
    (void)state;
    int pid[2];
    pid_t pair = start_pair(none);
    wait_ready();
    find_ranks(0, pid);
    kill(pid[1], SIGTERM);
    assert_int_equal(wait_exit(pair, 20000), 0);
}

typedef struct free_port {
    char meet[32];
    int fd;
} free_port;

/* A port that is free now; held until fd is closed. */
static void take_port(free_port *p) {
    int port = 0;
    err e = ERR_INIT;
    if (meet_listen("127.0.0.1", &port, &p->fd, &e) != OK) fail_msg("%s", e.msg);
    snprintf(p->meet, sizeof p->meet, "127.0.0.1:%d", port);
}

static void strangers_are_turned_away(void **state) {
    (void)state;
    free_port p;
    take_port(&p);
    close(p.fd);
    const char *head[] = {"--ranks", "2", "--meet", p.meet, NULL};
    const char *worker[] = {"--meet", p.meet, NULL};
    (void)unlink(log_path);
    pid_t first = start(NULL, SECRET_A, head);
    pid_t stranger = start("rank", SECRET_B, worker);
    assert_int_equal(wait_exit(stranger, 20000), 20);
    assert_non_null(strstr(log_text(), "does not hold this start's secret"));
    pid_t second = start("rank", SECRET_A, worker);
    wait_ready();
    kill(first, SIGTERM);
    assert_int_equal(wait_exit(first, 20000), 0);
    assert_int_equal(wait_exit(second, 20000), 0);
}

static void nonsense_for_a_secret(void **state) {
    (void)state;
    static const char *const lines[] = {"", "x\n", "00 11\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        (void)unlink(log_path);
        pid_t pid = start("rank", lines[i], none);
        assert_int_equal(wait_exit(pid, 20000), 20);
        assert_non_null(strstr(log_text(), "secret"));
    }
}

static int copy_file(void *ctx, const char *name, err *e) {
    const char *to = ctx;
    buf from = BUF_INIT, out = BUF_INIT, data = BUF_INIT;
    path_join(&from, model_dir, name);
    path_join(&out, to, name);
    int rc = file_read(buf_cstr(&from), &data, 1 << 26, e);
    if (rc == OK && strcmp(name, "tokenizer.json") == 0) buf_putc(&data, '\n');
    if (rc == OK) rc = file_write_atomic(buf_cstr(&out), data.data, data.len, 0600, e);
    buf_release(&from);
    buf_release(&out);
    buf_release(&data);
    return rc;
}

static void another_model_is_named(void **state) {
    (void)state;
    free_port p;
    char other[128], kept[512];
    err e = ERR_INIT;
    snprintf(other, sizeof other, "%s/other", dir);
    assert_int_equal(dir_make_all(other, 0700, &e), OK);
    if (dir_each(model_dir, copy_file, other, &e) != OK) fail_msg("%s", e.msg);
    take_port(&p);
    close(p.fd);
    const char *head[] = {"--ranks", "2", "--meet", p.meet, NULL};
    const char *worker[] = {"--meet", p.meet, NULL};
    (void)unlink(log_path);
    pid_t first = start(NULL, SECRET_A, head);
    str_copy(kept, sizeof kept, model_dir);
    str_copy(model_dir, sizeof model_dir, other);
    pid_t second = start("rank", SECRET_A, worker);
    str_copy(model_dir, sizeof model_dir, kept);
    assert_int_equal(wait_exit(second, 20000), 20);
    assert_int_equal(wait_exit(first, 20000), 20);
    assert_non_null(strstr(log_text(), "rank 1 has another model"));
    assert_non_null(strstr(log_text(), "rank 0 has another model"));
}

static void a_taken_port_is_named(void **state) {
    (void)state;
    free_port p;
    take_port(&p);
    const char *head[] = {"--ranks", "2", "--meet", p.meet, NULL};
    (void)unlink(log_path);
    pid_t first = start(NULL, SECRET_A, head);
    assert_int_not_equal(wait_exit(first, 20000), 0);
    assert_non_null(strstr(log_text(), "cannot listen"));
    close(p.fd);
}

/* ---- two network namespaces ---- */

static int shell(const char *command) {
    const char *const words[] = {"/bin/sh", "-c", command, NULL};
    return wait_exit(start_words(words, NULL), 10000);
}

static pid_t start_in(const char *space, const char *role, const char *const *extra) {
    const char *words[MAX_ARGS] = {"ip", "netns", "exec", space, program};
    int n = 5;
    if (role != NULL) words[n++] = role;
    const char *common[] = {"--model", model_dir, "--socket", socket_path, "--reserve", "0",
        "--threads", "1", "--meet", "10.177.0.1:8899", "--meet-timeout", "20"};
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        words[n++] = common[i];
    }
    while (*extra != NULL) {
        words[n++] = *extra++;
    }
    words[n] = NULL;
    return start_words(words, SECRET_A);
}

#define SPACES                                                                                     \
    "set -e; ip netns add tdm0; ip netns add tdm1; "                                               \
    "ip link add tdm0v type veth peer name tdm1v; ip link set tdm0v netns tdm0; "                  \
    "ip link set tdm1v netns tdm1; ip -n tdm0 addr add 10.177.0.1/24 dev tdm0v; "                  \
    "ip -n tdm1 addr add 10.177.0.2/24 dev tdm1v; ip -n tdm0 link set tdm0v up; "                  \
    "ip -n tdm1 link set tdm1v up"
#define NO_SPACES "ip netns del tdm0; ip netns del tdm1; true"

static void link_down_between_namespaces(void **state) {
    (void)state;
    static const char *const two[] = {"--ranks", "2", NULL};
    buf got = BUF_INIT;
    (void)unlink(log_path);
    (void)shell(NO_SPACES);
    if (shell(SPACES) != 0) {
        (void)shell(NO_SPACES);
        print_message("no network namespaces here\n");
        skip();
    }
    pid_t first = start_in("tdm0", NULL, two);
    pid_t second = start_in("tdm1", "rank", none);
    wait_ready();
    reply_to(questions[0], &got);
    assert_non_null(strstr(buf_cstr(&got), "Paris"));
    assert_int_equal(shell("ip -n tdm1 link set tdm1v down"), 0);
    print_message("link down: noticed after %d ms\n", wait_not_ready(LOST_MS));
    (void)get("/ready", &got);
    print_message("%s\n", buf_cstr(&got));
    assert_int_equal(wait_exit(first, 20000), 40);
    assert_int_equal(wait_exit(second, 20000), 40);
    assert_non_null(strstr(log_text(), "link or interface"));
    (void)shell(NO_SPACES);
    buf_release(&got);
}

#define RANKS_TEST(f) cmocka_unit_test_teardown(f, kill_rest)

int main(void) {
    const struct CMUnitTest tests[] = {RANKS_TEST(two_ranks_answer_like_one),
        RANKS_TEST(worker_killed_while_decoding), RANKS_TEST(worker_killed_while_idle),
        RANKS_TEST(worker_stopped), RANKS_TEST(head_killed), RANKS_TEST(worker_killed_in_prefill),
        RANKS_TEST(killed_while_loading), RANKS_TEST(tries_are_bounded),
        RANKS_TEST(worker_asked_to_stop), RANKS_TEST(strangers_are_turned_away),
        RANKS_TEST(nonsense_for_a_secret), RANKS_TEST(another_model_is_named),
        RANKS_TEST(a_taken_port_is_named), RANKS_TEST(link_down_between_namespaces)};
    const char *out = getenv("OUT");
    const char *model = getenv("DEMO_WEIGHTS");
    snprintf(program, sizeof program, "%s/tandemd", out != NULL ? out : "build");
    str_copy(model_dir, sizeof model_dir, "templates/demo-model");
    if (!dir_exists(model_dir) && model != NULL) str_copy(model_dir, sizeof model_dir, model);
    if (access(program, X_OK) != 0 || !dir_exists(model_dir)) return 77;
    signal(SIGPIPE, SIG_IGN);
    str_copy(dir, sizeof dir, "/tmp/tandem-ranks.XXXXXX");
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(socket_path, sizeof socket_path, "%s/s.sock", dir);
    snprintf(log_path, sizeof log_path, "%s/log", dir);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)dir_remove_all(dir, NULL);
    return rc;
}
