/* tandem serve: the engine with its HTTP endpoint switched on, in the foreground or detached. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/api.h"
#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/settings.h"
#include "tui/cmd_internal.h"
#include "tui/launch_process.h"

#define ARGS_MAX 40

typedef struct serve {
    const cmd_args *a;
    const char *address;
    int64_t port;
    buf keys, place, socket;
    bool has_keys;
    const char *args[ARGS_MAX]; /* NULL-ended; for tandemd */
    int n_args;
} serve;

static void add(serve *s, const char *option, const char *value) {
    if (s->n_args + 3 > ARGS_MAX) return;
    s->args[s->n_args++] = option;
    if (value != NULL) s->args[s->n_args++] = value;
    s->args[s->n_args] = NULL;
}

/* Other machines shall reach it: the address has to be typed again, here or as an option. */
static int confirm(serve *s, err *e) {
    struct in_addr in;
    char line[128] = "";
    const char *given = cmd_value(s->a, "confirm-remote");
    if (inet_pton(AF_INET, s->address, &in) != 1) {
        return err_set(e, ERR_ARG, "--bind is '%.40s'; it must be an IPv4 address", s->address);
    }
    if (ntohl(in.s_addr) >> 24 == 127) return OK;
    if (!s->has_keys) {
        return err_set(e, ERR_AUTH,
            "%s can be reached from other machines, so a key is needed; make one with: tandem api"
            " key new LABEL",
            s->address);
    }
    if (given == NULL && isatty(0) && isatty(2)) {
        cmd_note("other machines will reach %s. Whoever has a key can use this engine, and without"
                 " TLS the network can read along. Type the address again to go on:",
            s->address);
        if (fgets(line, sizeof line, stdin) == NULL) line[0] = '\0';
        line[strcspn(line, "\r\n")] = '\0';
        given = line;
    }
    if (given == NULL || strcmp(given, s->address) != 0) {
        return err_set(e, ERR_AUTH,
            "not confirmed: type the address %s again, or give --confirm-remote %s", s->address,
            s->address);
    }
    add(s, "--confirm-remote", s->address);
    return OK;
}

static int read_options(serve *s, err *e) {
    static const char *const passed[][2] = {{"tls-certificate", "--tls-certificate"},
        {"tls-key", "--tls-key"}, {"cors", "--cors"}, {"request-log", "--request-log"},
        {"model", "--model"}};
    s->address = cmd_value(s->a, "bind") != NULL ? cmd_value(s->a, "bind") : "127.0.0.1";
    int rc = cmd_int_option(s->a, "port", (cmd_range){0, 65535, API_PORT_DEFAULT}, &s->port, e);
    if (rc == OK) rc = cmd_key_file(s->a, &s->keys, e);
    if (rc == OK) rc = cmd_socket(s->a, &s->socket, e);
    if (rc != OK) return rc;
    s->has_keys = file_exists(buf_cstr(&s->keys));
    if (!s->has_keys && cmd_has(s->a, "keys")) {
        return err_set(e, ERR_NOT_FOUND,
            "there is no key file %s; make one with: tandem api key new"
            " LABEL --keys %s",
            buf_cstr(&s->keys), buf_cstr(&s->keys));
    }
    rc = confirm(s, e);
    buf_printf(&s->place, "%s:%lld", s->address, (long long)s->port);
    add(s, "--listen", buf_cstr(&s->place));
    if (s->has_keys) add(s, "--keys", buf_cstr(&s->keys));
    for (size_t i = 0; i < sizeof passed / sizeof passed[0]; i++) {
        const char *value = cmd_value(s->a, passed[i][0]);
        bool is_launched = strcmp(passed[i][0], "model") == 0 && cmd_has(s->a, "detach");
        if (value != NULL && !is_launched) add(s, passed[i][1], value);
    }
    if (cmd_has(s->a, "log-prompts")) add(s, "--log-prompts", NULL);
    return rc;
}

/* The model of the settings, when the command line names none. */
static int take_settings(serve *s, settings *values, err *e) {
    int rc = settings_load(values, e);
    if (rc != OK || cmd_has(s->a, "model")) return rc;
    if (settings_is_set(values, "MODEL_DIR")) add(s, "--model", settings_get(values, "MODEL_DIR"));
    if (settings_is_set(values, "TEMPERATURE"))
        add(s, "--temperature", settings_get(values, "TEMPERATURE"));
    if (settings_is_set(values, "TOP_P")) add(s, "--top-p", settings_get(values, "TOP_P"));
    return OK;
}

/* This process becomes the engine, so that a supervisor sees its state and its log. */
static int run_here(serve *s, err *e) {
    const char *argv[ARGS_MAX + 4] = {"tandemd", "--socket", buf_cstr(&s->socket)};
    buf path = BUF_INIT;
    settings *values = settings_new();
    int rc = take_settings(s, values, e);
    if (rc == OK) rc = launch_find_daemon(&path, e);
    if (rc != OK) {
        settings_free(values);
        return rc;
    }
    for (int i = 0; i <= s->n_args; i++) {
        argv[3 + i] = i < s->n_args ? s->args[i] : NULL;
    }
    cmd_note("serving http%s://%s/v1 until Ctrl-C", cmd_has(s->a, "tls-certificate") ? "s" : "",
        buf_cstr(&s->place));
    cmd_flush();
    execv(buf_cstr(&path), (char *const *)(uintptr_t)argv);
    rc = err_errno(e, "starting %s", buf_cstr(&path));
    settings_free(values);
    buf_release(&path);
    return rc;
}

static int run_detached(serve *s, err *e) {
    launch *l = NULL;
    launch_report r = {0};
    launch_options o = {.socket_path = buf_cstr(&s->socket),
        .model_dir = cmd_value(s->a, "model"),
        .extra_args = s->args,
        .may_start = true};
    int rc = launch_open(&o, &l, e);
    if (rc == OK) rc = launch_run(l, cmd_stop_fd(), NULL, NULL, e);
    if (rc == OK) {
        launch_get_report(l, &r);
        if (r.was_running) {
            rc = err_set(e, ERR_BUSY,
                "an engine runs already without these options; stop it first: tandem stop");
        } else {
            cmd_printf("serving http%s://%s/v1 in the background\n",
                cmd_has(s->a, "tls-certificate") ? "s" : "", buf_cstr(&s->place));
        }
    }
    launch_close(l);
    return rc;
}

int cmd_serve(const cmd_args *a) {
    serve s = {.a = a, .keys = BUF_INIT, .place = BUF_INIT, .socket = BUF_INIT};
    err e = ERR_INIT;
    int rc = read_options(&s, &e);
    if (rc == OK) rc = cmd_has(a, "detach") ? run_detached(&s, &e) : run_here(&s, &e);
    buf_release(&s.keys);
    buf_release(&s.place);
    buf_release(&s.socket);
    if (rc == OK) return cmd_finish(EXIT_OK);
    return rc == ERR_ARG ? cmd_fail_usage(&e) : cmd_fail(&e);
}
