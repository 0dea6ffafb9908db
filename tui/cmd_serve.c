/* tandem serve: the engine with its HTTP endpoint switched on, in the foreground or detached. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "setup/endpoint.h"
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
    bool has_launched; /* what fails from here on is a refusal, not a wrong option */
    char **args;       /* for tandemd; n_args of them, then a NULL */
    int n_args;
} serve;

static void add(void *ctx, const char *option, const char *value) {
    serve *s = ctx;
    s->args = mem_realloc(s->args, (size_t)(s->n_args + 3) * sizeof *s->args);
    s->args[s->n_args++] = mem_strdup(option);
    if (value != NULL) s->args[s->n_args++] = mem_strdup(value);
    s->args[s->n_args] = NULL;
}

/* Other machines shall reach it: the owner's word is needed, now or from before. */
static int confirm(serve *s, err *e) {
    const char *address = buf_cstr(&s->address);
    const confirm_wish w = {address, s->has_keys, settings_get(s->settings, "API_CONFIRMED")};
    int rc = cmd_confirm_remote(s->a, &w, e);
    if (rc == OK && !endpoint_is_loopback(address)) add(s, "--confirm-remote", address);
    return rc;
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
    if (cmd_has(s->a, "keys")) add(s, "--keys", buf_cstr(&s->keys));
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

/* This process becomes the engine, so that a supervisor sees its state and its log; the engine says
 * where it serves, because only it knows the port. */
static int run_here(serve *s, err *e) {
    buf path = BUF_INIT;
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
        add(s, "--announce", NULL);
        cmd_flush();
        execv(buf_cstr(&path), s->args);
        rc = err_errno(e, "starting %s", buf_cstr(&path));
    }
    buf_release(&path);
    return rc;
}

/* Where the engine in the background serves. */
static int say_where(const serve *s, err *e) {
    client *c = NULL;
    json *state = NULL;
    bool is_tls = cmd_has(s->a, "tls-certificate") || settings_is_set(s->settings, "API_TLS_CERT");
    int rc = cmd_engine(s->a, false, &c, e);
    if (rc == OK) rc = cmd_get_json(c, "/tandem/v1/state", &state, e);
    const char *place = json_str(json_get(json_get(state, "endpoint"), "address"));
    if (rc == OK && place == NULL) rc = err_set(e, ERR_INTERNAL, "the endpoint is not on");
    if (rc == OK) {
        cmd_printf("serving http%s://%s/v1 in the background\n", is_tls ? "s" : "", place);
    }
    json_free(state);
    client_close(c);
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
    s->has_launched = true;
    rc = launch_open(&o, &l, e);
    if (rc == OK) rc = launch_run(l, cmd_stop_fd(), NULL, NULL, e);
    if (rc == OK) {
        launch_get_report(l, &r);
        if (r.was_running) {
            rc = err_set(e, ERR_BUSY,
                "an engine runs already; tandem api on opens its endpoint; for one with the options "
                "of serve stop it first: tandem stop");
        } else {
            rc = say_where(s, e);
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
    return rc == ERR_ARG && !s.has_launched ? cmd_fail_usage(&e) : cmd_fail(&e);
}
