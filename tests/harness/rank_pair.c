#include "tests/harness/rank_pair.h"

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

enum { MAX_ARGS = 64, GET_MS = 30000 };

static char program[512], model_dir[512], dir[64], socket_path[128], log_path[128];

/* ---- processes ---- */

/* Process groups started by the running test; what it left is killed after it. */
static pid_t started[32];
static int n_started;

int pair_kill_rest(void **state) {
    (void)state;
    while (n_started > 0) {
        (void)kill(-started[--n_started], SIGKILL);
    }
    return 0;
}

/* Starts the program (or a wrapper that args names first) with a line on its standard input. */
pid_t pair_start_words(const char *const *words, const char *line) {
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

/* The back end under test, and what its ranks talk over. */
static int add_backend(const char **words, int n) {
    const char *backend = getenv("TANDEM_TEST_BACKEND"), *over = getenv("TANDEM_TEST_EXCHANGE");
    if (backend == NULL) return n;
    words[n++] = "--backend";
    words[n++] = backend;
    if (over == NULL) return n;
    words[n++] = "--exchange";
    words[n++] = over;
    return n;
}

pid_t pair_start_role(const char *role, const char *line, const char *const *extra) {
    const char *words[MAX_ARGS] = {program};
    int n = 1;
    if (role != NULL) words[n++] = role;
    const char *common[] = {"--model", model_dir, "--socket", socket_path, "--reserve", "0",
        "--threads", "1", "--meet-timeout", "60"};
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        words[n++] = common[i];
    }
    n = add_backend(words, n);
    while (*extra != NULL) {
        words[n++] = *extra++;
    }
    words[n] = NULL;
    /* A rank that is started by itself takes a GPU of its own, as on its own machine. */
    bool is_apart = role != NULL && strcmp(role, "rank") == 0;
    if (is_apart) (void)setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    pid_t pid = pair_start_words(words, line);
    if (is_apart) (void)unsetenv("CUDA_VISIBLE_DEVICES");
    return pid;
}

const char *pair_log(void) {
    static char text[1 << 18];
    buf b = BUF_INIT;
    text[0] = '\0';
    if (file_read(log_path, &b, sizeof text - 1, NULL) == OK) {
        str_copy(text, sizeof text, buf_cstr(&b));
    }
    buf_release(&b);
    return text;
}

int pair_wait_exit(pid_t pid, int timeout_ms) {
    uint64_t deadline = clock_mono_ms() + (uint64_t)timeout_ms;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_mono_ms() > deadline) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            fail_msg("the program did not end in %d ms:\n%s", timeout_ms, pair_log());
        }
        sleep_ms(5);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* The process ids of a pair's ranks, from the line that it logs at each start. */
void pair_find_ranks(int i_start, int pid[2]) {
    uint64_t deadline = clock_mono_ms() + PAIR_READY_MS;
    for (;;) {
        const char *at = pair_log();
        for (int i = 0; i <= i_start && at != NULL; i++) {
            at = strstr(i == 0 ? at : at + 1, "ranks started rank0=");
        }
        if (at != NULL && sscanf(at, "ranks started rank0=%d rank1=%d", &pid[0], &pid[1]) == 2) {
            return;
        }
        if (clock_mono_ms() > deadline) fail_msg("no start:\n%s", pair_log());
        sleep_ms(5);
    }
}

int pair_newest_ranks(int pid[2]) {
    int n = 0;
    pair_find_ranks(0, pid);
    for (const char *at = pair_log(); (at = strstr(at, "ranks started rank0=")) != NULL; at++)
        n++;
    pair_find_ranks(n - 1, pid);
    return n - 1;
}

/* ---- requests ---- */

int pair_get(const char *path, buf *body) {
    wire w;
    wire_answer a;
    wire_open_unix(&w, socket_path);
    if (w.fd < 0) return 0;
    wire_request(&w, "GET", path, "", NULL);
    wire_read(&w, &a, GET_MS);
    int status = a.status;
    if (body != NULL) {
        buf_reset(body);
        buf_append(body, a.body.data, a.body.len);
    }
    wire_answer_release(&a);
    wire_close(&w);
    return status;
}

void pair_wait_ready(void) {
    uint64_t deadline = clock_mono_ms() + PAIR_READY_MS;
    while (pair_get("/ready", NULL) != 200) {
        if (clock_mono_ms() > deadline) fail_msg("not ready after a minute:\n%s", pair_log());
        sleep_ms(10);
    }
}

/* Waits until the engine does not call itself ready, and says how long that took. */
int pair_wait_not_ready(int limit_ms) {
    uint64_t start_ms = clock_mono_ms();
    while (pair_get("/ready", NULL) == 200) {
        if (clock_mono_ms() - start_ms > (uint64_t)limit_ms) {
            fail_msg("still ready after %d ms:\n%s", limit_ms, pair_log());
        }
        sleep_ms(10);
    }
    return (int)(clock_mono_ms() - start_ms);
}

void pair_reply(const char *question, buf *out) {
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
    wire_read(&w, &a, PAIR_END_MS);
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

pid_t pair_start(const char *const *extra) {
    const char *words[MAX_ARGS] = {"--meet", "127.0.0.1:0", "--drain", "2"};
    int n = 4;
    while (*extra != NULL) {
        words[n++] = *extra++;
    }
    words[n] = NULL;
    pair_clear_log();
    return pair_start_role("pair", NULL, words);
}

void pair_stop(pid_t pid) {
    kill(pid, SIGTERM);
    int code = pair_wait_exit(pid, PAIR_END_MS);
    if (code != 0) fail_msg("ended with %d:\n%s", code, pair_log());
}

void pair_clear_log(void) {
    (void)unlink(log_path);
}

void pair_await_log(const char *text) {
    uint64_t deadline = clock_mono_ms() + PAIR_READY_MS;
    while (strstr(pair_log(), text) == NULL) {
        if (clock_mono_ms() > deadline) fail_msg("never said: %s\n%s", text, pair_log());
        sleep_ms(5);
    }
}

void pair_ask_long(wire *w, int max_tokens) {
    char body[300];
    snprintf(body, sizeof body,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Count from one to twenty.\"}],"
        "\"temperature\":0,\"max_tokens\":%d,\"ignore_eos\":true,\"stream\":true}",
        max_tokens);
    wire_open_unix(w, socket_path);
    assert_true(w->fd >= 0);
    wire_request(w, "POST", "/v1/chat/completions", "", body);
}

void pair_ask_prompt(wire *w, int n_words, int max_tokens) {
    buf body = BUF_INIT;
#ifdef __SANITIZE_THREAD__
    n_words /= 4; /* as long in time as elsewhere: the model is many times slower here */
#endif
    buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < n_words; i++) {
        buf_printf(&body, "word%d and ", i);
    }
    buf_printf(&body, "\"}],\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":%d}", max_tokens);
    wire_open_unix(w, socket_path);
    assert_true(w->fd >= 0);
    wire_request(w, "POST", "/v1/chat/completions", "", buf_cstr(&body));
    buf_release(&body);
}

void pair_read_to_end(wire *w, buf *out) {
    char piece[4096];
    uint64_t deadline = clock_mono_ms() + PAIR_END_MS;
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

void pair_read_one(wire *w, buf *out) {
    wire_answer a;
    wire_read(w, &a, PAIR_END_MS);
    buf_printf(out, "%d ", a.status);
    buf_append(out, a.body.data, a.body.len);
    wire_answer_release(&a);
}

double pair_metric(const char *name) {
    buf body = BUF_INIT;
    double value = -1.0;
    if (pair_get("/metrics", &body) == 200) {
        const char *at = strstr(buf_cstr(&body), name);
        while (at != NULL && at != body.data && at[-1] != '\n') {
            at = strstr(at + 1, name);
        }
        const char *space = at != NULL ? strchr(at + strlen(name), ' ') : NULL;
        if (space != NULL) value = strtod(space + 1, NULL);
    }
    buf_release(&body);
    return value;
}

pid_t pair_start_in(const two_nets *nets, int side, const char *const *extra) {
    char meet[64];
    const char *words[MAX_ARGS] = {"ip", "netns", "exec", nets->name[side], program};
    int n = 5;
    snprintf(meet, sizeof meet, "%s:8899", nets->address[0]);
    if (side == 1) words[n++] = "rank";
    const char *common[] = {"--model", model_dir, "--socket", socket_path, "--reserve", "0",
        "--threads", "1", "--meet", meet, "--meet-timeout", "60", "--ranks", "2"};
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        words[n++] = common[i];
    }
    n = add_backend(words, n);
    while (*extra != NULL) {
        words[n++] = *extra++;
    }
    words[n] = NULL;
    if (side == 1) (void)setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    pid_t pid = pair_start_words(words, PAIR_SECRET);
    (void)unsetenv("CUDA_VISIBLE_DEVICES");
    return pid;
}

bool pair_init(void) {
    /* Ranks that meet over a network do not run as root otherwise. */
    setenv("TANDEM_ALLOW_ROOT", "1", 1);
    const char *out = getenv("OUT");
    const char *model = getenv("DEMO_WEIGHTS");
    const char *top = getenv("TANDEM_SOURCE_DIR");
    snprintf(program, sizeof program, "%s/tandemd", out != NULL ? out : "build");
    snprintf(model_dir, sizeof model_dir, "%s/templates/demo-model", top != NULL ? top : ".");
    if (!dir_exists(model_dir) && model != NULL) str_copy(model_dir, sizeof model_dir, model);
    if (access(program, X_OK) != 0 || !dir_exists(model_dir)) {
        printf("skipped: %s or %s is not there\n", program, model_dir);
        return false;
    }
    signal(SIGPIPE, SIG_IGN);
    str_copy(dir, sizeof dir, "/tmp/tandem-ranks.XXXXXX");
    if (mkdtemp(dir) == NULL) return false;
    snprintf(socket_path, sizeof socket_path, "%s/s.sock", dir);
    snprintf(log_path, sizeof log_path, "%s/log", dir);
    return true;
}

void pair_end(void) {
    (void)pair_kill_rest(NULL);
    (void)dir_remove_all(dir, NULL);
}

const char *pair_dir(void) {
    return dir;
}

const char *pair_socket(void) {
    return socket_path;
}

const char *pair_model(void) {
    return model_dir;
}

void pair_use_model(const char *path) {
    str_copy(model_dir, sizeof model_dir, path);
}
