/* Real clients from npm against the scripted engine over TCP: three SDKs and an agent program. They
 * are installed into the build folder at the first run; without npm the test is skipped. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/vectors.h"

#define INSTALL_TIMEOUT_MS 150000
#define CLIENT_TIMEOUT_MS 60000
#define MARK "<\uFF5CDSML\uFF5C "
#define MARK_END "</\uFF5CDSML\uFF5C "
#define CALLS(name, parameter, value)                                                              \
    "\n\n" MARK "calls>\n" MARK "invoke name=\"" name "\">\n" MARK "parameter name=\"" parameter   \
    "\" string=\"true\">" value MARK_END "parameter>\n" MARK_END "invoke>\n" MARK_END "calls>"

static const char packages[] =
    "openai@6 @anthropic-ai/sdk@1 ai@6 @ai-sdk/openai-compatible@2 zod@4 "
    "@qwen-code/qwen-code";

/* What the engine would like to say, by what stands in the prompt; the first that fits. */
typedef struct scripted {
    const char *in_prompt, *text;
    token_list tokens;
} scripted;
static scripted lines[] = {
    {"RESULT-4711", "The answer is 4711.", {0}},
    {"call the tool", CALLS("get_weather", "city", "Paris"), {0}},
    {"list the folder", CALLS("list_directory", "path", "FOLDER"), {0}},
    {"give json", "{\"a\": 12}", {0}},
    {"", "Hello there, friend.", {0}},
};
enum { N_LINES = sizeof lines / sizeof lines[0], LINE_FOLDER = 2 };

typedef struct script {
    tokenizer *tokenizer;
    token_list thinking_hello;
} script;

static void encode(const script *s, const char *text, token_list *out) {
    text_span span = {.text = text, .len = strlen(text), .is_template = true};
    err e = ERR_INIT;
    if (tokenizer_encode(s->tokenizer, span, out, &e) != OK) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
}

static stub_list choose(void *ctx, const int32_t *prompt, int32_t n_prompt) {
    const script *s = ctx;
    buf text = BUF_INIT;
    int i = 0;
    tokenizer_decode(s->tokenizer, prompt, (size_t)n_prompt, &text);
    while (i < N_LINES - 1 && strstr(buf_cstr(&text), lines[i].in_prompt) == NULL) {
        i++;
    }
    buf_release(&text);
    const token_list *list = &lines[i].tokens;
    int32_t open = tokenizer_controls(s->tokenizer).think_open;
    if (i == N_LINES - 1 && n_prompt > 0 && prompt[n_prompt - 1] == open) list = &s->thinking_hello;
    return (stub_list){list->ids, (int32_t)list->len};
}

/* Runs a shell line with a time limit; its exit status, 124 past the limit. */
static int run_line(const char *command, int timeout_ms) {
    uint64_t deadline = clock_mono_ms() + (uint64_t)timeout_ms;
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (clock_mono_ms() > deadline) {
            kill(-child, SIGKILL);
            waitpid(child, &status, 0);
            return 124;
        }
        sleep_ms(20);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static bool install(const char *dir) {
    buf line = BUF_INIT;
    err e = ERR_INIT;
    buf_printf(&line, "%s/.complete", dir);
    bool is_there = file_exists(buf_cstr(&line));
    if (!is_there && dir_make_all(dir, 0755, &e) == OK) {
        buf_reset(&line);
        buf_printf(&line,
            "cd '%s' && printf '{\"name\":\"clients\",\"private\":true,\"type\":\"module\"}' >"
            " package.json && npm install --no-audit --no-fund --no-update-notifier"
            " --fetch-retries 1 --fetch-timeout 20000 --loglevel=error %s > install.log 2>&1 &&"
            " touch .complete",
            dir, packages);
        is_there = run_line(buf_cstr(&line), INSTALL_TIMEOUT_MS) == 0;
    }
    buf_release(&line);
    return is_there;
}

static void run_client(vectors *v, const char *dir, const char *name, const char *command) {
    buf line = BUF_INIT;
    char output[4096] = "";
    buf_printf(&line, "cd '%s' && { %s; } > '%s.log' 2>&1", dir, command, name);
    int rc = run_line(buf_cstr(&line), CLIENT_TIMEOUT_MS);
    if (rc == 0) {
        vectors_pass(v);
    } else {
        buf text = BUF_INIT;
        char status[40];
        snprintf(status, sizeof status, "exit status %d: ", rc);
        buf_reset(&line);
        buf_printf(&line, "%s/%s.log", dir, name);
        file_read(buf_cstr(&line), &text, (size_t)4 << 20, NULL);
        size_t skip = text.len > 3000 ? text.len - 3000 : 0;
        snprintf(output, sizeof output, "%s%s", status, buf_cstr(&text) + skip);
        vectors_fail(v, name, "exit status 0", output);
        buf_release(&text);
    }
    buf_release(&line);
}

static void run_sdks(vectors *v, const char *dir, const char *source, int port) {
    static const char *const names[] = {"openai", "anthropic", "ai"};
    for (int i = 0; i < 3; i++) {
        buf command = BUF_INIT;
        buf_printf(&command,
            "cp '%s/tests/api/clients/%s.mjs' . && BASE=http://127.0.0.1:%d node %s.mjs", source,
            names[i], port, names[i]);
        run_client(v, dir, names[i], buf_cstr(&command));
        buf_release(&command);
    }
}

/* An agent lists a folder with a tool of its own and says what it found. */
static void run_agent(vectors *v, const char *dir, int port) {
    buf command = BUF_INIT;
    buf_printf(&command,
        "mkdir -p agent/home agent/work && touch agent/work/RESULT-4711.txt && cd agent/work &&"
        " HOME=\"$PWD/../home\" OPENAI_API_KEY=none OPENAI_BASE_URL=http://127.0.0.1:%d/v1"
        " OPENAI_MODEL=tandem NO_COLOR=1 QWEN_TELEMETRY_ENABLED=false"
        " node ../../node_modules/@qwen-code/qwen-code/cli.js --auth-type openai --yolo"
        " -p 'list the folder' </dev/null > ../answer.txt && cat ../answer.txt &&"
        " grep -q 'The answer is 4711' ../answer.txt",
        port);
    run_client(v, dir, "agent", buf_cstr(&command));
    buf_release(&command);
}

static void make_lines(script *s, const char *dir) {
    buf text = BUF_INIT;
    for (int i = 0; i < N_LINES; i++) {
        buf_reset(&text);
        const char *place = strstr(lines[i].text, "FOLDER");
        if (i == LINE_FOLDER) {
            buf_append(&text, lines[i].text, (size_t)(place - lines[i].text));
            buf_printf(&text, "%s/agent/work%s", dir, place + strlen("FOLDER"));
        } else {
            buf_puts(&text, lines[i].text);
        }
        encode(s, buf_cstr(&text), &lines[i].tokens);
    }
    buf_release(&text);
    encode(s, "Let me see.</think>Hello there, friend.", &s->thinking_hello);
}

int main(void) {
    const char *source = getenv("TANDEM_SOURCE_DIR") != NULL ? getenv("TANDEM_SOURCE_DIR") : ".";
    const char *out = getenv("OUT") != NULL ? getenv("OUT") : "build";
    char top[1024];
    char dir[1200];
    vectors v = {0};
    script s = {.tokenizer = stub_tokenizer_open()};
    if (s.tokenizer == NULL) {
        vectors_skip(&v, "clients", "no demo tokenizer here");
        return vectors_end(&v);
    }
    if (realpath(source, top) == NULL) return 1;
    snprintf(dir, sizeof dir, out[0] == '/' ? "%.0s%s/clients" : "%s/%s/clients", top, out);
    signal(SIGPIPE, SIG_IGN);
    if (run_line("command -v node npm >/dev/null 2>&1", 5000) != 0 || !install(dir)) {
        vectors_skip(&v, "clients", "node or npm's registry is not reachable; nothing was tried");
    } else {
        stub_server server;
        make_lines(&s, dir);
        stub_server_options o = {.tokenizer = s.tokenizer,
            .script = {
                .choose = choose, .choose_ctx = &s, .max_context = 131072, .max_rows = 2048}};
        stub_server_start(&server, &o);
        run_sdks(&v, dir, top, server.port);
        run_agent(&v, dir, server.port);
        stub_server_stop(&server);
    }
    for (int i = 0; i < N_LINES; i++) {
        token_list_release(&lines[i].tokens);
    }
    token_list_release(&s.thinking_hello);
    tokenizer_close(s.tokenizer);
    return vectors_end(&v);
}
