/* tandem node list, exec, trust, logs: the machines themselves. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/privilege.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "setup/ssh.h"
#include "tui/cmd_nodes.h"

enum { ANSWER_MAX = 256 };

static bool is_person_there(void) {
    return isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0;
}

/* One line from the terminal; echo off for secrets. The caller wipes it. */
static bool read_answer(const char *prompt, bool is_hidden, char *out, size_t cap) {
    struct termios before, quiet;
    bool is_set = is_hidden && tcgetattr(STDIN_FILENO, &before) == 0;
    if (is_set) { /* before the prompt: who answers at once is not shown, and loses nothing */
        quiet = before;
        quiet.c_lflag &= ~(tcflag_t)ECHO;
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet);
    }
    cmd_flush();
    fprintf(stderr, "%s", prompt);
    fflush(stderr);
    /* Byte by byte, so that nothing of a secret stays in a buffer of the library. */
    size_t n = 0;
    bool is_ended = false;
    while (!is_ended && n + 1 < cap) {
        char c;
        ssize_t got = read(STDIN_FILENO, &c, 1);
        if (got <= 0) break;
        is_ended = c == '\n';
        if (!is_ended) out[n++] = c;
    }
    out[n] = '\0';
    if (is_set) {
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
        fputc('\n', stderr);
    }
    return is_ended;
}

static bool ask_host_key(void *ctx, const remote_host_key *key) {
    char answer[ANSWER_MAX];
    (void)ctx;
    fprintf(stderr,
        "%s port %d is not known yet.\n%s key %s\n%sRead it on that machine's own screen and compare:\n"
        "  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n",
        key->host, key->port, key->type, key->fingerprint, key->picture);
    if (!read_answer("Type the last 6 characters of the fingerprint, or accept: ", false, answer,
            sizeof answer)) {
        return false;
    }
    return remote_key_confirmed(key->fingerprint, answer);
}

static bool ask_secret(void *ctx, const char *prompt, ssh_secret *out) {
    char answer[SSH_SECRET_MAX], text[400];
    (void)ctx;
    size_t n = str_copy(text, sizeof text - 3, prompt);
    if (n < sizeof text - 3) str_copy(text + n, sizeof text - n, ": ");
    bool is_given = read_answer(text, true, answer, sizeof answer) &&
                    ssh_secret_set(out, answer, strlen(answer)) == OK;
    explicit_bzero(answer, sizeof answer);
    return is_given;
}

static const remote_ask TERMINAL = {NULL, ask_host_key, ask_secret};

const remote_ask *cmd_ask_terminal(void) {
    return is_person_there() ? &TERMINAL : NULL;
}

bool cmd_confirm(const char *question) {
    char answer[ANSWER_MAX], text[600];
    if (!is_person_there()) return false;
    size_t n = str_copy(text, sizeof text - 16, question);
    if (n < sizeof text - 16) str_copy(text + n, sizeof text - n, " [yes/no] ");
    return read_answer(text, false, answer, sizeof answer) && str_eq_nocase(answer, "yes");
}

static bool sudo_password(void *ctx, const char *node, ssh_secret *out) {
    char prompt[160] = "Password of sudo on ";
    size_t n = strlen(prompt);
    str_copy(prompt + n, sizeof prompt - n, node);
    return ask_secret(ctx, prompt, out);
}

static bool sudo_confirm(void *ctx, const char *node, const char *command, const char *why) {
    char question[500] = "";
    if (*(const bool *)ctx) return true;
    fprintf(stderr, "%s: %s\n", node, why);
    /* Scripts are long; what they do is said in why. */
    str_copy(question, sizeof question, strlen(command) < 200 ? command : "Run this step as root?");
    return cmd_confirm(question);
}

const node_sudo *cmd_sudo_terminal(bool yes) {
    static bool is_yes;
    static node_sudo sudo;
    is_yes = yes;
    sudo = (node_sudo){&is_yes, is_person_there() ? sudo_password : NULL, sudo_confirm};
    return &sudo;
}

remote_options cmd_worker_options(const settings *s, const remote_ask *ask) {
    const char *jump = settings_get(s, "WORKER_JUMP"), *key = settings_get(s, "WORKER_KEY");
    return (remote_options){.target = settings_get(s, "WORKER_SSH"),
        .jump = jump[0] != '\0' ? jump : NULL,
        .key_file = key[0] != '\0' ? key : NULL,
        .node = "worker",
        .ask = ask};
}

static void open_worker(const cmd_args *a, cmd_nodes *out) {
    const char *root = cmd_value(a, "worker-root");
    remote *session = NULL;
    err e = ERR_INIT;
    if (root != NULL) {
        out->node[1] = node_access_local("worker", root);
        return;
    }
    if (!settings_is_set(out->settings, "WORKER_SSH")) return;
    remote_options o = cmd_worker_options(out->settings, cmd_ask_terminal());
    if (remote_open(&o, &session, &out->fault, &e) == OK) {
        out->node[1] = node_access_ssh("worker", session, NULL);
    } else {
        str_copy(out->missing[1], sizeof out->missing[1], e.msg);
    }
}

int cmd_nodes_open(const cmd_args *a, bool with_worker, cmd_nodes *out, err *e) {
    *out = (cmd_nodes){.settings = settings_new()};
    int rc = settings_load(out->settings, e);
    if (rc != OK) {
        cmd_nodes_close(out);
        return rc;
    }
    out->node[0] = node_access_local("head", cmd_value(a, "head-root"));
    if (with_worker) open_worker(a, out);
    return OK;
}

void cmd_nodes_close(cmd_nodes *n) {
    settings_free(n->settings);
    node_access_close(n->node[0]);
    node_access_close(n->node[1]);
    *n = (cmd_nodes){0};
}

static const char *state_of(const cmd_nodes *n, int i) {
    if (n->node[i] != NULL) return "reachable";
    return n->missing[i][0] != '\0' ? "unreachable" : "not set up";
}

int cmd_node_list(const cmd_args *a) {
    cmd_nodes n;
    err e = ERR_INIT;
    if (cmd_nodes_open(a, true, &n, &e) != OK) return cmd_fail(&e);
    buf out = BUF_INIT;
    json_w w;
    bool is_json = cmd_has(a, "json");
    cmd_begin_json(&w, &out);
    json_w_key(&w, "nodes");
    json_w_array(&w);
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "head" : "worker";
        const char *where = i == 0 ? "this machine" : settings_get(n.settings, "WORKER_SSH");
        json_w_object(&w);
        json_w_kstr(&w, "node", name);
        json_w_kstr(&w, "where", where);
        json_w_kstr(&w, "state", state_of(&n, i));
        json_w_kstr(&w, "fault", n.missing[i][0] != '\0' ? remote_fault_name(n.fault) : NULL);
        json_w_kstr(&w, "reason", n.missing[i][0] != '\0' ? n.missing[i] : NULL);
        json_w_close(&w);
        if (is_json) continue;
        cmd_printf(
            "%-7s %-12s %s\n", name, state_of(&n, i), where[0] != '\0' ? where : "(WORKER_SSH)");
        if (n.missing[i][0] != '\0') {
            cmd_puts("        ");
            cmd_put_text(n.missing[i], strlen(n.missing[i]));
            cmd_puts("\n");
        }
    }
    json_w_close(&w);
    if (is_json) cmd_put_json(&w);
    int code = n.missing[1][0] != '\0' ? EXIT_NODE_UNREACHABLE : EXIT_OK;
    buf_release(&out);
    cmd_nodes_close(&n);
    return cmd_finish(code);
}

static int put_stream(void *ctx, bool is_error, const void *data, size_t n) {
    (void)ctx;
    if (is_error) return fwrite(data, 1, n, stderr) == n ? OK : ERR_IO;
    cmd_put(data, n);
    cmd_flush();
    return cmd_output_failed() ? ERR_IO : OK;
}

/* Opens the machine named by the first word. */
static int open_named(const cmd_args *a, cmd_nodes *n, node_access **out, err *e) {
    bool is_worker = str_eq(a->args[0], "worker");
    if (!is_worker && !str_eq(a->args[0], "head")) {
        return err_set(e, ERR_ARG, "\"%.40s\" is no machine; name head or worker", a->args[0]);
    }
    int rc = cmd_nodes_open(a, is_worker, n, e);
    if (rc != OK) return rc;
    *out = n->node[is_worker ? 1 : 0];
    if (*out != NULL) return OK;
    rc = err_set(e, ERR_NET, "%s", n->missing[1][0] != '\0' ? n->missing[1] : CMD_NO_WORKER);
    cmd_nodes_close(n);
    return rc;
}

static int run_there(const cmd_args *a, const char *const *argv) {
    cmd_nodes n;
    node_access *node = NULL;
    err e = ERR_INIT;
    int rc = open_named(a, &n, &node, &e);
    if (rc == ERR_ARG) return cmd_fail_usage(&e);
    if (rc != OK) {
        int code = cmd_fail(&e);
        return rc == ERR_NET ? EXIT_NODE_UNREACHABLE : code;
    }
    remote_result r;
    remote_result_init(&r);
    node_command c = {
        .argv = argv, .timeout_ms = 24 * 3600 * 1000, .sink = put_stream, .stop = cmd_stop_flag()};
    rc = node_run(node, &c, &r, &e);
    int code = rc != OK ? cmd_fail(&e) : r.exit_code == 0 ? EXIT_OK : EXIT_REFUSED;
    if (rc == OK && r.exit_code != 0) {
        cmd_note("the command ended with %s%d%s", r.signal[0] != '\0' ? "signal " : "code ",
            r.exit_code, r.signal);
    }
    remote_result_release(&r);
    cmd_nodes_close(&n);
    return cmd_finish(code);
}

int cmd_node_exec(const cmd_args *a) {
    const char **argv = mem_array((size_t)a->n_args, sizeof *argv);
    for (int i = 1; i < a->n_args; i++)
        argv[i - 1] = a->args[i];
    int code = run_there(a, argv);
    mem_free(argv);
    return code;
}

int cmd_node_logs(const cmd_args *a) {
    static const char *const argv[] = {"sh", "-c",
        "cd \"${XDG_STATE_HOME:-$HOME/.local/state}/tandem/logs\" && exec tail -n 100 -- *.log",
        NULL};
    return run_there(a, argv);
}

/* A word for the key's comment: where it was made and when. */
static void key_comment(char out[120]) {
    char host[64] = "head";
    struct tm now;
    time_t t = time(NULL);
    (void)gethostname(host, sizeof host - 1);
    buf text = BUF_INIT;
    if (localtime_r(&t, &now) != NULL &&
        buf_printf(&text, "tandem@%s-%04d-%02d-%02d", host, now.tm_year + 1900, now.tm_mon + 1,
            now.tm_mday) == OK) {
        str_copy(out, 120, buf_cstr(&text));
    }
    buf_release(&text);
}

/* First contact: host key confirmed, password once, our own key installed, login proved without. */
static int trust(const cmd_args *a, settings *s, err *e) {
    buf path = BUF_INIT, settings_path = BUF_INIT;
    remote *session = NULL;
    char comment[120] = "tandem";
    bool was_there = false;
    const char *key = settings_get(s, "WORKER_KEY");
    int rc = key[0] != '\0' ? buf_puts(&path, key) : paths_config(&path, e);
    if (rc == OK && key[0] == '\0') rc = buf_puts(&path, "/secrets/id_ed25519");
    key_comment(comment);
    if (rc == OK) rc = remote_key_make(buf_cstr(&path), comment, e);
    remote_options o = cmd_worker_options(s, cmd_ask_terminal());
    o.key_file = buf_cstr(&path);
    o.may_use_password = true;
    if (rc == OK) rc = remote_open(&o, &session, NULL, e);
    if (rc == OK)
        rc = remote_key_install(session, buf_cstr(&path), cmd_value(a, "from"), &was_there, e);
    remote_close(session);
    session = NULL;
    o.only_key_file = true;
    o.may_use_password = false;
    if (rc == OK) rc = remote_open(&o, &session, NULL, e);
    if (rc == OK) rc = remote_alive(session, e);
    if (rc == OK && key[0] == '\0') {
        rc = paths_settings_file(&settings_path, e);
        if (rc == OK)
            rc = settings_file_set(buf_cstr(&settings_path), "WORKER_KEY", buf_cstr(&path), e);
    }
    if (rc == OK) {
        cmd_printf("%s: login with the key %s works%s\n", remote_host(session), buf_cstr(&path),
            was_there ? " (it was there)" : "");
    }
    remote_close(session);
    buf_release(&path);
    buf_release(&settings_path);
    return rc;
}

int cmd_node_trust(const cmd_args *a) {
    settings *s = settings_new();
    err e = ERR_INIT;
    int rc = privilege_refuse_root("first contact", &e);
    if (rc == OK) rc = settings_load(s, &e);
    if (rc == OK && a->n_args == 1)
        rc = settings_set(s, "WORKER_SSH", a->args[0], SETTING_COMMAND_LINE, &e);
    if (rc == OK && !settings_is_set(s, "WORKER_SSH")) {
        rc =
            err_set(&e, ERR_ARG, "name the worker: tandem node trust user@host, or set WORKER_SSH");
    }
    if (rc == OK) rc = trust(a, s, &e);
    settings_free(s);
    if (rc == OK) return cmd_finish(EXIT_OK);
    int code = cmd_fail(&e);
    return rc == ERR_NET || rc == ERR_TIMEOUT ? EXIT_NODE_UNREACHABLE : code;
}
