/* The real tandemd with a real model: start, answers, one daemon per socket, bad starts, kill
 * -9, and a clean end. Needs the program (OUT, default build) and a model (templates/demo-model,
 * or DEMO_WEIGHTS). */
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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "tests/harness/wire.h"

/* Long enough for a program under a sanitizer on a machine that does other things too. */
#define ANSWER_MS 300000

static char program[512], model_dir[512], dir[64], socket_path[128], log_path[128];

static pid_t start(const char *const *extra) {
    const char *argv[16] = {
        program, "--model", model_dir, "--socket", socket_path, "--reserve", "0"};
    int n = 7;
    while (*extra != NULL) {
        argv[n++] = *extra++;
    }
    argv[n] = NULL;
    pid_t pid = fork();
    if (pid != 0) return pid;
    int fd = open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    dup2(fd, STDERR_FILENO);
    dup2(fd, STDOUT_FILENO);
    execv(program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

static int wait_exit(pid_t pid, int timeout_ms) {
    uint64_t deadline = clock_mono_ms() + (uint64_t)timeout_ms;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_mono_ms() > deadline) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            fail_msg("the program did not end in %d ms", timeout_ms);
        }
        sleep_ms(5);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int get(const char *path) {
    wire w;
    wire_answer a;
    wire_open_unix(&w, socket_path);
    if (w.fd < 0) return 0;
    wire_request(&w, "GET", path, "", NULL);
    wire_read(&w, &a, ANSWER_MS);
    int status = a.status;
    wire_answer_release(&a);
    wire_close(&w);
    return status;
}

static void wait_ready(void) {
    uint64_t deadline = clock_mono_ms() + ANSWER_MS;
    while (get("/ready") != 200) {
        if (clock_mono_ms() > deadline) fail_msg("not ready after %d ms", ANSWER_MS);
        sleep_ms(10);
    }
}

static const char *log_text(void) {
    static char text[8192];
    buf b = BUF_INIT;
    text[0] = '\0';
    if (file_read(log_path, &b, sizeof text - 1, NULL) == OK)
        str_copy(text, sizeof text, buf_cstr(&b));
    buf_release(&b);
    return text;
}

static void reply_to(const char *body, buf *out) {
    wire w;
    wire_answer a;
    json *v = NULL;
    wire_open_unix(&w, socket_path);
    wire_request(&w, "POST", "/v1/chat/completions", "", body);
    wire_read(&w, &a, ANSWER_MS);
    if (a.status != 200 || json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL) != OK) {
        fail_msg("%d %s", a.status, buf_cstr(&a.body));
    }
    const json *message = json_get(json_at(json_get(v, "choices"), 0), "message");
    buf_puts(out, json_str(json_get(message, "content")));
    json_free(v);
    wire_answer_release(&a);
    wire_close(&w);
}

static const char *const none[] = {NULL};
static const char *const drafts_off[] = {"--no-drafts", NULL};

#define ASK                                                                                        \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"temperature\":%s,\"seed\":7,"        \
    "\"max_tokens\":40}"

static const struct {
    const char *question, *temperature;
} questions[] = {{"What is the capital of France?", "0"}, {"Tell me a story about a dog.", "0.9"},
    {"Who are you?", "0.7"}, {"Count from one to twenty.", "0"}};
enum { N_QUESTIONS = sizeof questions / sizeof questions[0] };

static void answers_all(buf *out) {
    char body[400];
    for (int i = 0; i < N_QUESTIONS; i++) {
        snprintf(body, sizeof body, ASK, questions[i].question, questions[i].temperature);
        reply_to(body, &out[i]);
    }
}

/* The same questions from processes at the same time, and without drafts: the same words. */
static void answers_do_not_depend_on_company_or_drafts(void **state) {
    (void)state;
    struct stat st;
    buf alone[N_QUESTIONS] = {0};
    buf serial[N_QUESTIONS] = {0};
    pid_t pid = start(none);
    wait_ready();
    assert_int_equal(stat(socket_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    answers_all(alone);
    pid_t children[N_QUESTIONS];
    for (int i = 0; i < N_QUESTIONS; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        buf got = BUF_INIT;
        char body[400];
        snprintf(body, sizeof body, ASK, questions[i].question, questions[i].temperature);
        reply_to(body, &got);
        _exit(strcmp(buf_cstr(&got), buf_cstr(&alone[i])) != 0);
    }
    for (int i = 0; i < N_QUESTIONS; i++) {
        assert_int_equal(wait_exit(children[i], ANSWER_MS), 0);
    }
    kill(pid, SIGTERM);
    assert_int_equal(wait_exit(pid, ANSWER_MS), 0);
    assert_int_equal(stat(socket_path, &st), -1);
    pid = start(drafts_off);
    wait_ready();
    answers_all(serial);
    for (int i = 0; i < N_QUESTIONS; i++) {
        assert_string_equal(buf_cstr(&alone[i]), buf_cstr(&serial[i]));
        buf_release(&alone[i]);
        buf_release(&serial[i]);
    }
    kill(pid, SIGTERM);
    assert_int_equal(wait_exit(pid, ANSWER_MS), 0);
}

static void one_daemon_per_socket_and_after_kill_9(void **state) {
    (void)state;
    pid_t first = start(none);
    wait_ready();
    pid_t second = start(none);
    assert_int_equal(wait_exit(second, ANSWER_MS), 20);
    assert_non_null(strstr(log_text(), "tandemd: another tandemd (process "));
    int ready = get("/ready");
    if (ready != 200) fail_msg("the first is disturbed: %d; log: %s", ready, log_text());
    kill(first, SIGKILL);
    assert_int_equal(wait_exit(first, ANSWER_MS), -SIGKILL);
    pid_t third = start(none); /* takes the stale socket over */
    wait_ready();
    wire w;
    wire_answer a;
    wire_open_unix(&w, socket_path);
    wire_request(&w, "POST", "/tandem/v1/shutdown", "", "{}");
    wire_read(&w, &a, ANSWER_MS);
    assert_int_equal(a.status, 200);
    wire_answer_release(&a);
    wire_close(&w);
    assert_int_equal(wait_exit(third, ANSWER_MS), 0);
}

/* After SIGTERM a running reply still ends well; past the limit it gets an error event. That one is
 * so long that it is still being written when this process gets to send the signal. */
static void running_replies_are_drained(void **state) {
    (void)state;
    static const char *const limits[][3] = {{"--drain", "280", NULL}, {"--drain", "0", NULL}};
    static const int lengths[] = {400, 3000};
    for (int i = 0; i < 2; i++) {
        wire w;
        wire_answer a;
        char body[200];
        pid_t pid = start(limits[i]);
        wait_ready();
        wire_open_unix(&w, socket_path);
        snprintf(body, sizeof body,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}],\"stream\":true,"
            "\"max_tokens\":%d,\"ignore_eos\":true}",
            lengths[i]);
        wire_request(&w, "POST", "/v1/chat/completions", "", body);
        while (strstr(buf_cstr(&w.in), "data: ") == NULL && !w.is_closed) {
            wire_receive(&w, 100);
        }
        kill(pid, SIGTERM);
        wire_read(&w, &a, ANSWER_MS);
        assert_true(a.is_complete);
        bool is_done = strstr(buf_cstr(&a.body), "[DONE]") != NULL;
        bool has_error = strstr(buf_cstr(&a.body), "shutting_down") != NULL;
        assert_int_equal(is_done, i == 0);
        assert_int_equal(has_error, i == 1);
        wire_answer_release(&a);
        wire_close(&w);
        assert_int_equal(wait_exit(pid, ANSWER_MS), 0);
    }
}

/* With fewer pages than the context wants, the window is what the pages hold, wherever it is told,
 * and a reply can fill it. */
static void few_pages_are_the_window(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *words;
    } cases[] = {{"/v1/models", NULL, "\"max_model_len\":256,\"context_length\":256"},
        {"/props", NULL, "\"max_context\":256"},
        {"/tokenize", "{\"prompt\":\"a\"}", "\"max_model_len\":256"},
        {"/v1/chat/completions",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":256}",
            "exceed the window of 256 tokens"},
        {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":254,\"ignore_eos\":true}",
            "\"total_tokens\":256"}};
    pid_t pid = start((const char *const[]){"--pages", "2", NULL});
    wait_ready();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        wire w;
        wire_answer a;
        wire_open_unix(&w, socket_path);
        wire_request(&w, cases[i].body != NULL ? "POST" : "GET", cases[i].path, "", cases[i].body);
        wire_read(&w, &a, ANSWER_MS);
        if (strstr(buf_cstr(&a.body), cases[i].words) == NULL)
            fail_msg("%s: %s", cases[i].path, buf_cstr(&a.body));
        wire_answer_release(&a);
        wire_close(&w);
    }
    kill(pid, SIGTERM);
    assert_int_equal(wait_exit(pid, ANSWER_MS), 0);
}

static void expect_refusal(const char *const *extra, int code, const char *words) {
    pid_t pid = start(extra);
    int got = wait_exit(pid, ANSWER_MS);
    const char *text = log_text();
    const char *line = strstr(text, "tandemd: ");
    if (got != code || line == NULL || strstr(line, words) == NULL) {
        fail_msg("exit %d, wanted %d and '%s'; it said: %s", got, code, words, text);
    }
    assert_ptr_equal(strchr(line, '\n') + 1, line + strlen(line)); /* one line, the last */
}

static void bad_starts_say_what_to_do(void **state) {
    (void)state;
    char path[200];
    char long_path[300];
    expect_refusal((const char *const[]){"--slots", "99", NULL}, 2, "from 1 to 32");
    expect_refusal((const char *const[]){"--wrong", NULL}, 2, "--help");
    expect_refusal((const char *const[]){"--model", NULL}, 2, "needs a value");
    expect_refusal((const char *const[]){"word", NULL}, 2, "no option");
    expect_refusal((const char *const[]){"--thinking", "maybe", NULL}, 2, "on or off");
    expect_refusal((const char *const[]){"--model", "/nowhere", NULL}, 20, "/nowhere");
    expect_refusal((const char *const[]){"--listen", "0.0.0.0:1", NULL}, 20, "loopback");
    expect_refusal((const char *const[]){"--reserve", "1048576", NULL}, 20, "reserve");
    memset(long_path, 'a', sizeof long_path - 1);
    long_path[0] = '/';
    long_path[sizeof long_path - 1] = '\0';
    expect_refusal((const char *const[]){"--socket", long_path, NULL}, 20, "shorter");
    snprintf(path, sizeof path, "%s/file", dir);
    assert_int_equal(file_write_atomic(path, "x", 1, 0600, NULL), OK);
    expect_refusal((const char *const[]){"--socket", path, NULL}, 20, "no socket");
    char below[240];
    snprintf(below, sizeof below, "%s/below/s", path);
    expect_refusal((const char *const[]){"--socket", below, NULL}, 20, "socket");
    /* A folder that is no model, and one whose weights are cut off. */
    char broken[200];
    snprintf(broken, sizeof broken, "%s/broken", dir);
    assert_int_equal(mkdir(broken, 0700), 0);
    expect_refusal((const char *const[]){"--model", broken, NULL}, 20, "config.json");
    buf text = BUF_INIT;
    snprintf(path, sizeof path, "%s/config.json", model_dir);
    assert_int_equal(file_read(path, &text, 1 << 20, NULL), OK);
    snprintf(path, sizeof path, "%s/config.json", broken);
    assert_int_equal(file_write_atomic(path, text.data, text.len, 0600, NULL), OK);
    expect_refusal((const char *const[]){"--model", broken, NULL}, 20, "tokenizer.json");
    snprintf(path, sizeof path, "%s/tokenizer.json", model_dir);
    assert_int_equal(file_read(path, &text, 64 << 20, NULL), OK);
    snprintf(path, sizeof path, "%s/tokenizer.json", broken);
    assert_int_equal(file_write_atomic(path, text.data, text.len, 0600, NULL), OK);
    snprintf(path, sizeof path, "%s/model.safetensors", broken);
    assert_int_equal(file_write_atomic(path, "\x08\0\0\0\0\0\0\0{}", 10, 0600, NULL), OK);
    expect_refusal((const char *const[]){"--model", broken, NULL}, 20, "model.safetensors");
    buf_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_do_not_depend_on_company_or_drafts),
        cmocka_unit_test(one_daemon_per_socket_and_after_kill_9),
        cmocka_unit_test(running_replies_are_drained),
        cmocka_unit_test(few_pages_are_the_window),
        cmocka_unit_test(bad_starts_say_what_to_do),
    };
    const char *out = getenv("OUT");
    const char *weights = getenv("DEMO_WEIGHTS");
    snprintf(program, sizeof program, "%s/tandemd", out != NULL ? out : "build");
    str_copy(model_dir, sizeof model_dir, "templates/demo-model");
    if (!file_exists("templates/demo-model/config.json")) {
        str_copy(model_dir, sizeof model_dir, weights != NULL ? weights : "");
    }
    if (model_dir[0] == '\0' || !file_exists(program)) {
        print_message(
            "skipped: no model here (templates/demo-model or DEMO_WEIGHTS), or no %s\n", program);
        return 77;
    }
    snprintf(dir, sizeof dir, "/tmp/tandem-daemon-XXXXXX");
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(socket_path, sizeof socket_path, "%s/run/s", dir);
    snprintf(log_path, sizeof log_path, "%s/log", dir);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    dir_remove_all(dir, NULL);
    return rc;
}
