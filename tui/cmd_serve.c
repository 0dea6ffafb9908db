/* tandem serve: the engine with its HTTP endpoint switched on, in the foreground or detached. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "setup/engine_args.h"
#include "tui/cmd_internal.h"
#include "tui/launch_process.h"

typedef struct serve {
    const cmd_args *a;
    settings *settings;
    buf address; /* to serve on */
    int64_t port;
    buf keys, place, socket;
    bool has_keys;
    char **args; /* for tandemd; n_args of them, then a NULL */
    int n_args;
} serve;

static void add(void *ctx, const char *option, const char *value) {
    serve *s = ctx;
    s->args = mem_realloc(s->args, (size_t)(s->n_args + 3) * sizeof *s->args);
    s->args[s->n_args++] = mem_strdup(option);
    if (value != NULL) s->args[s->n_args++] = mem_strdup(value);
    s->args[s->n_args] = NULL;
}

/* Other machines shall reach it: the address has to be typed again, here or as an option. */
static int confirm(serve *s, err *e) {
    struct in_addr in;
    char line[128] = "";
    const char *given = cmd_value(s->a, "confirm-remote");
    const char *address = buf_cstr(&s->address);
    if (inet_pton(AF_INET, address, &in) != 1) {
        return err_set(e, ERR_ARG, "--bind is '%.40s'; it must be an IPv4 address", address);
    }
    if (ntohl(in.s_addr) >> 24 == 127) return OK;
    if (!s->has_keys) {
        return err_set(e, ERR_AUTH,
            "%s can be reached from other machines, so a key is needed; make one with: tandem api"
            " key new LABEL",
            address);
    }
    if (given == NULL && isatty(0) && isatty(2)) {
        cmd_note(
            "other machines will reach %s. Whoever has a key can use this engine, and without"
            " TLS the network can read along. Let a firewall admit only the machines that need it."
            " Type the address again to go on:",
            address);
        if (fgets(line, sizeof line, stdin) == NULL) line[0] = '\0';
        line[strcspn(line, "\r\n")] = '\0';
        given = line;
    }
    if (given == NULL || strcmp(given, address) != 0) {
        return err_set(e, ERR_AUTH,
            "not confirmed: type the address %s again, or give --confirm-remote %s", address,
            address);
    }
    add(s, "--confirm-remote", address);
    return OK;
}

/* The command line, else the settings. */
static int read_place(serve *s, err *e) {
    const char *bind = cmd_value(s->a, "bind");
    int64_t port = settings_int(s->settings, "API_PORT");
    buf_puts(&s->address, bind != NULL ? bind : settings_get(s->settings, "API_BIND"));
    int rc = cmd_int_option(s->a, "port", (cmd_range){0, 65535, port}, &s->port, e);
    if (rc == OK) rc = cmd_key_file(s->a, &s->keys, e);
    if (rc == OK) rc = cmd_socket(s->a, &s->socket, e);
    if (rc != OK) return rc;
    s->has_keys = file_exists(buf_cstr(&s->keys));
    if (!s->has_keys && (cmd_has(s->a, "keys") || settings_is_set(s->settings, "API_KEY_FILE"))) {
        return err_set(e, ERR_NOT_FOUND,
            "there is no key file %s; make one with: tandem api key new LABEL --keys %s",
            buf_cstr(&s->keys), buf_cstr(&s->keys));
    }
    buf_printf(&s->place, "%s:%lld", buf_cstr(&s->address), (long long)s->port);
    return OK;
}

static int add_options(serve *s, err *e) {
    static const char *const texts[] = {
        "tls-certificate", "tls-key", "cors", "request-log", "request-timeout", "keep-alive"};
    static const char *const flags[] = {"log-prompts", "strict-model", "open-metrics",
        "json-keepalive", "loop-guard", "answer-room"};
    char option[40];
    int64_t seconds;
    int rc = cmd_int_option(s->a, "request-timeout", (cmd_range){0, 86400, 0}, &seconds, e);
    if (rc == OK) rc = cmd_int_option(s->a, "keep-alive", (cmd_range){1, 60, 5}, &seconds, e);
    if (rc != OK) return rc;
    add(s, "--listen", buf_cstr(&s->place));
    if (s->has_keys) add(s, "--keys", buf_cstr(&s->keys));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        snprintf(option, sizeof option, "--%s", texts[i]);
        if (cmd_has(s->a, texts[i])) add(s, option, cmd_value(s->a, texts[i]));
    }
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        snprintf(option, sizeof option, "--%s", flags[i]);
        if (cmd_has(s->a, flags[i])) add(s, option, NULL);
    }
    return OK;
}

static void put_serving(const serve *s, const char *how, buf *out) {
    bool is_tls = cmd_has(s->a, "tls-certificate") || settings_is_set(s->settings, "API_TLS_CERT");
    buf_printf(out, "serving http%s://%s/v1 %s", is_tls ? "s" : "", buf_cstr(&s->place), how);
}

/* This process becomes the engine, so that a supervisor sees its state and its log. */
static int run_here(serve *s, err *e) {
    buf path = BUF_INIT;
    buf line = BUF_INIT;
    const engine_args_sink sink = {.add = add, .ctx = s};
    int rc = launch_find_daemon(&path, e);
    if (rc != OK) return rc;
    add(s, buf_cstr(&path), NULL);
    add(s, "--socket", buf_cstr(&s->socket));
    engine_args_put_model(s->settings, cmd_value(s->a, "model"), &sink);
    engine_args_put(s->settings, &sink);
    rc = confirm(s, e);
    if (rc == OK) rc = add_options(s, e);
    if (rc == OK) {
        put_serving(s, "until Ctrl-C", &line);
        cmd_note("%s", buf_cstr(&line));
        cmd_flush();
        execv(buf_cstr(&path), s->args);
        rc = err_errno(e, "starting %s", buf_cstr(&path));
    }
    buf_release(&line);
    buf_release(&path);
    return rc;
}

static int run_detached(serve *s, err *e) {
    launch *l = NULL;
    launch_report r = {0};
    int rc = confirm(s, e);
    if (rc == OK) rc = add_options(s, e);
    if (rc != OK) return rc;
    launch_options o = {.socket_path = buf_cstr(&s->socket),
        .model_dir = cmd_value(s->a, "model"),
        .extra_args = (const char *const *)s->args,
        .may_start = true,
        .is_alone = true};
    rc = launch_open(&o, &l, e);
    if (rc == OK) rc = launch_run(l, cmd_stop_fd(), NULL, NULL, e);
    if (rc == OK) {
        launch_get_report(l, &r);
        if (r.was_running) {
            rc = err_set(e, ERR_BUSY,
                "an engine runs already without these options; stop it first: tandem stop");
        } else {
            buf line = BUF_INIT;
            put_serving(s, "in the background\n", &line);
            cmd_puts(buf_cstr(&line));
            buf_release(&line);
        }
    }
    launch_close(l);
    return rc;
}

/* The pair is started by its keepers; its endpoint is a setting. */
static int refuse_pair(const serve *s, err *e) {
    bool is_pair = settings_is_set(s->settings, "WORKER_SSH") &&
                   settings_is_set(s->settings, "HEAD_IP_A") &&
                   settings_is_set(s->settings, "WORKER_IP_A");
    if (!is_pair || cmd_has(s->a, "local")) return OK;
    return err_set(e, ERR_UNSUPPORTED,
        "two machines are set up here; switch their endpoint on with: tandem config set API on,"
        " then tandem start; or serve from this one alone with --local");
}

static void serve_release(serve *s) {
    for (int i = 0; i < s->n_args; i++) {
        mem_free(s->args[i]);
    }
    mem_free(s->args);
    buf_release(&s->address);
    buf_release(&s->keys);
    buf_release(&s->place);
    buf_release(&s->socket);
    settings_free(s->settings);
}

int cmd_serve(const cmd_args *a) {
    serve s = {.a = a,
        .settings = settings_new(),
        .address = BUF_INIT,
        .keys = BUF_INIT,
        .place = BUF_INIT,
        .socket = BUF_INIT};
    err e = ERR_INIT;
    int rc = settings_load(s.settings, &e);
    if (rc == OK) rc = refuse_pair(&s, &e);
    if (rc == OK) rc = read_place(&s, &e);
    if (rc == OK) rc = cmd_has(a, "detach") ? run_detached(&s, &e) : run_here(&s, &e);
    serve_release(&s);
    if (rc == OK) return cmd_finish(EXIT_OK);
    return rc == ERR_ARG ? cmd_fail_usage(&e) : cmd_fail(&e);
}
