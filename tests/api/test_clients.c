/* Real clients from npm over TCP: three SDKs against the scripted engine and against tandemd with
 * the demo model, and agent programs against the scripted engine (tool call, result, final answer).
 * They are installed into the build folder at the first run; without npm the test is skipped. With
 * TANDEM_LONG also the agents that are large: Claude Code, Codex and opencode. */
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
#include "engine/base/str.h"
#include "tests/harness/live_daemon.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/vectors.h"

#define INSTALL_TIMEOUT_MS 110000
#define LARGE_INSTALL_TIMEOUT_MS 600000
#define CLIENT_TIMEOUT_MS 120000
/* What this program has in all when the runner does not say it. */
#define ALL_TIMEOUT_S 300
#define MARK "<\uFF5CDSML\uFF5C "
#define MARK_END "</\uFF5CDSML\uFF5C "
#define CALLS(name, parameter, value)                                                              \
    "\n\n" MARK "calls>\n" MARK "invoke name=\"" name "\">\n" MARK "parameter name=\"" parameter   \
    "\" string=\"true\">" value MARK_END "parameter>\n" MARK_END "invoke>\n" MARK_END "calls>"

static const char packages[] =
    "openai@6 @anthropic-ai/sdk@1 ai@6 @ai-sdk/openai-compatible@2 zod@4 "
    "@qwen-code/qwen-code";
static const char large_packages[] = "@anthropic-ai/claude-code @openai/codex opencode-ai";

/* What the engine would like to say, by what stands in the prompt; the first that fits. */
typedef struct scripted {
    const char *in_prompt, *text;
    token_list tokens, thinking; /* the same behind a thought */
} scripted;
static scripted lines[] = {
    {"RESULT-4711", "The answer is 4711.", {0}, {0}},
    {"call the tool", CALLS("get_weather", "city", "Paris"), {0}, {0}},
    {"list the folder with codex", CALLS("exec_command", "cmd", "ls"), {0}, {0}},
    {"list the folder with opencode", CALLS("bash", "command", "ls"), {0}, {0}},
    {"list the folder with claude", CALLS("Bash", "command", "ls"), {0}, {0}},
    {"list the folder", CALLS("list_directory", "path", "FOLDER"), {0}, {0}},
    {"give json", "{\"a\": 12}", {0}, {0}},
    {"", "Hello there, friend.", {0}, {0}},
};
enum { N_LINES = sizeof lines / sizeof lines[0], LINE_FOLDER = 5 };

typedef struct script {
    tokenizer *tokenizer;
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
    int32_t open = tokenizer_controls(s->tokenizer).think_open;
    bool thinks = n_prompt > 0 && prompt[n_prompt - 1] == open;
    const token_list *list = thinks ? &lines[i].thinking : &lines[i].tokens;
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

static bool install(const char *dir, const char *wanted, int timeout_ms) {
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
            dir, wanted);
        is_there = run_line(buf_cstr(&line), timeout_ms) == 0;
    }
    buf_release(&line);
    return is_there;
}

static uint64_t begin_ms;

/* A client that begins may take all of its time before the runner ends the program. */
static bool has_time(void) {
    const char *text = getenv("TEST_TIMEOUT");
    int64_t all_s = 0;
    if (text == NULL || parse_i64(text, &all_s) != OK) all_s = ALL_TIMEOUT_S;
    return clock_mono_ms() - begin_ms + CLIENT_TIMEOUT_MS + 5000 < (uint64_t)all_s * 1000;
}

static void run_client(vectors *v, const char *dir, const char *name, const char *command) {
    buf line = BUF_INIT;
    char output[4096] = "";
    if (!has_time()) {
        vectors_skip(v, name, "this machine is too slow today: no time is left for it");
        return;
    }
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

/* The same clients and the daemon: its model says what it likes within what is asked of it. */
static void run_daemon_sdks(vectors *v, const char *dir, const char *source) {
    static const char *const names[] = {"openai", "anthropic", "ai"};
    static const char *const none[] = {NULL};
    live_daemon d;
    err e = ERR_INIT;
    int rc = live_daemon_start(&d, none, &e);
    if (rc == ERR_NOT_FOUND) {
        vectors_skip(v, "clients of tandemd", e.msg);
        return;
    }
    if (rc != OK) {
        vectors_fail(v, "clients of tandemd", "tandemd starts", e.msg);
        return;
    }
    for (int i = 0; i < 3; i++) {
        buf command = BUF_INIT;
        char name[40];
        (void)snprintf(name, sizeof name, "daemon-%s", names[i]);
        buf_printf(&command,
            "cp '%s/tests/api/clients/daemon.mjs' . && BASE=http://127.0.0.1:%d node daemon.mjs %s",
            source, d.port, names[i]);
        run_client(v, dir, name, buf_cstr(&command));
        buf_release(&command);
    }
    live_daemon_stop(&d);
}

/* An agent lists a folder with a tool of its own and says what it found. PORT stands for the
 * port. */
typedef struct agent {
    const char *name, *setup, *command;
} agent;

static const agent qwen = {"qwen-code", "true",
    "OPENAI_API_KEY=none OPENAI_BASE_URL=http://127.0.0.1:PORT/v1 OPENAI_MODEL=tandem"
    " QWEN_TELEMETRY_ENABLED=false node ../../node_modules/@qwen-code/qwen-code/cli.js"
    " --auth-type openai --yolo -p 'list the folder'"};
static const agent large_agents[] = {
    {"claude-code", "true",
        "ANTHROPIC_BASE_URL=http://127.0.0.1:PORT ANTHROPIC_AUTH_TOKEN=none ANTHROPIC_MODEL=tandem"
        " ANTHROPIC_SMALL_FAST_MODEL=tandem CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"
        " DISABLE_AUTOUPDATER=1 ../../node_modules/.bin/claude -p 'list the folder with claude'"
        " --allowedTools Bash"},
    {"codex",
        "mkdir -p ../home/.codex && printf 'model = \"tandem\"\\nmodel_provider = \"tandem\"\\n"
        "[model_providers.tandem]\\nname = \"Tandem\"\\nbase_url = \"http://127.0.0.1:PORT/v1\"\\n"
        "wire_api = \"responses\"\\n' > ../home/.codex/config.toml",
        "../../node_modules/.bin/codex exec -s danger-full-access --skip-git-repo-check"
        " 'list the folder with codex'"},
    {"opencode",
        "printf '{\"provider\":{\"tandem\":{\"npm\":\"@ai-sdk/openai-compatible\",\"name\":\"Tandem\","
        "\"options\":{\"baseURL\":\"http://127.0.0.1:PORT/v1\",\"apiKey\":\"none\"},\"models\":{"
        "\"tandem\":{\"name\":\"Tandem\",\"reasoning\":true,\"tool_call\":true}}}},\"model\":"
        "\"tandem/tandem\",\"small_model\":\"tandem/tandem\"}' > opencode.json",
        "OPENCODE_DISABLE_AUTOUPDATE=1 ../../node_modules/.bin/opencode run"
        " 'list the folder with opencode'"},
};
enum { N_LARGE_AGENTS = sizeof large_agents / sizeof large_agents[0] };

static void put_with_port(buf *out, const char *text, int port) {
    for (const char *at; (at = strstr(text, "PORT")) != NULL; text = at + 4) {
        buf_append(out, text, (size_t)(at - text));
        buf_printf(out, "%d", port);
    }
    buf_puts(out, text);
}

static void run_agent(vectors *v, const char *dir, const agent *a, int port) {
    buf command = BUF_INIT;
    buf_puts(&command,
        "rm -rf agent && mkdir -p agent/home agent/work && touch agent/work/RESULT-4711.txt &&"
        " cd agent/work && export HOME=\"$PWD/../home\" NO_COLOR=1 && ");
    put_with_port(&command, a->setup, port);
    buf_puts(&command, " && { ");
    put_with_port(&command, a->command, port);
    buf_puts(&command, " </dev/null > ../answer.txt || true; } && cat ../answer.txt &&"
                       " grep -q 'The answer is 4711' ../answer.txt");
    run_client(v, dir, a->name, buf_cstr(&command));
    buf_release(&command);
}

static void run_large_agents(vectors *v, const char *dir, int port) {
    buf large = BUF_INIT;
    if (getenv("TANDEM_LONG") == NULL) {
        vectors_skip(v, "Claude Code, Codex, opencode", "large; make test-long installs them");
        return;
    }
    buf_printf(&large, "%s-large", dir);
    if (!install(buf_cstr(&large), large_packages, LARGE_INSTALL_TIMEOUT_MS)) {
        vectors_skip(v, "Claude Code, Codex, opencode", "npm could not install them");
    } else {
        for (int i = 0; i < N_LARGE_AGENTS; i++)
            run_agent(v, buf_cstr(&large), &large_agents[i], port);
    }
    buf_release(&large);
}

static void make_line(const script *s, scripted *line, const char *text) {
    buf deep = BUF_INIT;
    encode(s, text, &line->tokens);
    buf_printf(&deep, "Let me see.</think>%s", text);
    encode(s, buf_cstr(&deep), &line->thinking);
    buf_release(&deep);
}

static void make_lines(const script *s, const char *dir) {
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
        make_line(s, &lines[i], buf_cstr(&text));
    }
    buf_release(&text);
}

static void run_scripted(vectors *v, script *s, const char *dir, const char *source) {
    stub_server server;
    make_lines(s, dir);
    stub_server_options o = {.tokenizer = s->tokenizer,
        .script = {.choose = choose, .choose_ctx = s, .max_context = 131072, .max_rows = 2048}};
    stub_server_start(&server, &o);
    run_sdks(v, dir, source, server.port);
    run_agent(v, dir, &qwen, server.port);
    run_large_agents(v, dir, server.port);
    stub_server_stop(&server);
}

int main(void) {
    const char *source = getenv("TANDEM_SOURCE_DIR") != NULL ? getenv("TANDEM_SOURCE_DIR") : ".";
    const char *out = getenv("OUT") != NULL ? getenv("OUT") : "build";
    char top[1024];
    char dir[1200];
    vectors v = {0};
    begin_ms = clock_mono_ms();
    script s = {.tokenizer = stub_tokenizer_open()};
    if (s.tokenizer == NULL) {
        vectors_skip(&v, "clients", "no demo tokenizer here");
        return vectors_end(&v);
    }
    if (realpath(source, top) == NULL) return 1;
    snprintf(dir, sizeof dir, out[0] == '/' ? "%.0s%s/clients" : "%s/%s/clients", top, out);
    signal(SIGPIPE, SIG_IGN);
    if (run_line("command -v node npm >/dev/null 2>&1", 5000) != 0 ||
        !install(dir, packages, INSTALL_TIMEOUT_MS)) {
        vectors_skip(&v, "clients", "node or npm's registry is not reachable; nothing was tried");
    } else {
        run_scripted(&v, &s, dir, top);
        run_daemon_sdks(&v, dir, top);
    }
    for (int i = 0; i < N_LINES; i++) {
        token_list_release(&lines[i].tokens);
        token_list_release(&lines[i].thinking);
    }
    tokenizer_close(s.tokenizer);
    return vectors_end(&v);
}
