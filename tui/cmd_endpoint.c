/* tandem api on, off: the TCP endpoint for good, in the settings and on the running engine. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/privilege.h"
#include "engine/base/str.h"
#include "setup/endpoint.h"
#include "setup/paths.h"
#include "tui/cmd_internal.h"

/* ---- the owner's word ---- */

static void advise(const char *address) {
    buf own = BUF_INIT;
    if (!endpoint_is_wide(address)) return;
    endpoint_own_addresses(NULL, &own);
    cmd_note("%s is every network of this machine at once, the cable to the worker, VPNs and "
             "wireless too; better give one address: %s",
        address, own.len > 0 ? buf_cstr(&own) : "this machine has none but 127.0.0.1");
    buf_release(&own);
}

static bool ask_again(const char *address, char *line, size_t cap) {
    if (!isatty(0) || !isatty(2)) return false;
    cmd_note(
        "other machines will reach %s. Whoever has a key can use this engine, and without TLS "
        "the network can read along. Let a firewall admit only the machines that need it. Type "
        "the address again to go on:",
        address);
    if (fgets(line, (int)cap, stdin) == NULL) return false;
    line[strcspn(line, "\r\n")] = '\0';
    return true;
}

int cmd_confirm_remote(const cmd_args *a, const confirm_wish *w, err *e) {
    char line[128] = "";
    const char *given = cmd_value(a, "confirm-remote");
    struct in_addr in;
    if (inet_pton(AF_INET, w->address, &in) != 1)
        return err_set(e, ERR_ARG, "--bind is '%.40s'; it must be an IPv4 address", w->address);
    if (endpoint_is_loopback(w->address)) return OK;
    int rc = privilege_refuse_root("an endpoint for other machines", e);
    if (rc != OK) return rc;
    if (!w->has_keys)
        return err_set(e, ERR_AUTH,
            "%s can be reached from other machines, so a key is needed; make one with: tandem api "
            "key new LABEL",
            w->address);
    advise(w->address);
    if (given == NULL && str_eq(w->confirmed, w->address)) return OK;
    if (given == NULL && ask_again(w->address, line, sizeof line)) given = line;
    if (given != NULL && str_eq(given, w->address)) return OK;
    return err_set(e, ERR_AUTH,
        "not confirmed: type the address %s again, or give --confirm-remote %s", w->address,
        w->address);
}

/* ---- on and off ---- */

typedef struct api_change {
    const cmd_args *a;
    settings *s;
    buf file, socket, keys;
    char place[ENDPOINT_PLACE_MAX], port[16];
    bool is_running;
} api_change;

static int change_open(api_change *c, const cmd_args *a, err *e) {
    *c = (api_change){
        .a = a, .s = settings_new(), .file = BUF_INIT, .socket = BUF_INIT, .keys = BUF_INIT};
    int rc = settings_load(c->s, e);
    if (rc == OK) rc = paths_settings_file(&c->file, e);
    if (rc == OK) rc = cmd_socket(a, &c->socket, e);
    return rc == OK ? cmd_key_file(a, &c->keys, e) : rc;
}

static void change_release(api_change *c) {
    settings_free(c->s);
    buf_release(&c->file);
    buf_release(&c->socket);
    buf_release(&c->keys);
}

static int keep(api_change *c, const char *key, const char *value, err *e) {
    if (str_eq(settings_get(c->s, key), value)) return OK;
    int rc = settings_file_set(buf_cstr(&c->file), key, value, e);
    /* What the environment or the command line says goes over the file. */
    return rc == OK ? settings_set(c->s, key, value, SETTING_FILE, e) : rc;
}

/* The engine that runs; without one the settings are enough. */
static int switch_now(api_change *c, const char *place, err *e) {
    endpoint_now now;
    err why = ERR_INIT;
    c->is_running = endpoint_look(buf_cstr(&c->socket), &now, &why) == OK;
    return c->is_running ? endpoint_switch(buf_cstr(&c->socket), place, e) : OK;
}

static int report(const api_change *c, bool is_on) {
    bool is_tls = settings_is_set(c->s, "API_TLS_CERT");
    if (cmd_has(c->a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kbool(&w, "on", is_on);
        json_w_kstr(&w, "address", is_on ? c->place : NULL);
        json_w_kbool(&w, "running", c->is_running);
        cmd_put_json(&w);
        buf_release(&out);
    } else if (is_on) {
        cmd_printf("the endpoint is on: http%s://%s/v1%s\n", is_tls ? "s" : "", c->place,
            c->is_running ? "" : ", from the next start (tandem start)");
    } else {
        cmd_printf("the endpoint is off\n");
    }
    return cmd_finish(EXIT_OK);
}

/* Only what works is kept in the file. */
static int switch_on(api_change *c, err *e) {
    const char *bind = cmd_value(c->a, "bind");
    int64_t port = 0;
    char address[64];
    int rc = cmd_int_option(
        c->a, "port", (cmd_range){1, 65535, settings_int(c->s, "API_PORT")}, &port, e);
    if (rc != OK) return rc;
    str_copy(address, sizeof address, bind != NULL ? bind : settings_get(c->s, "API_BIND"));
    snprintf(c->port, sizeof c->port, "%lld", (long long)port);
    snprintf(c->place, sizeof c->place, "%s:%s", address, c->port);
    const confirm_wish w = {
        address, endpoint_count_keys(buf_cstr(&c->keys)) > 0, settings_get(c->s, "API_CONFIRMED")};
    rc = cmd_confirm_remote(c->a, &w, e);
    if (rc == OK) rc = endpoint_check_address(address, e);
    if (rc == OK) rc = switch_now(c, c->place, e);
    if (rc == OK && !endpoint_is_loopback(address)) rc = keep(c, "API_CONFIRMED", address, e);
    if (rc == OK) rc = keep(c, "API_BIND", address, e);
    if (rc == OK) rc = keep(c, "API_PORT", c->port, e);
    return rc == OK ? keep(c, "API", "on", e) : rc;
}

int cmd_api_on(const cmd_args *a) {
    api_change c;
    err e = ERR_INIT;
    int rc = change_open(&c, a, &e);
    if (rc == OK) rc = switch_on(&c, &e);
    int code = rc == OK ? report(&c, true) : rc == ERR_ARG ? cmd_fail_usage(&e) : cmd_fail(&e);
    change_release(&c);
    return code;
}

int cmd_api_off(const cmd_args *a) {
    api_change c;
    err e = ERR_INIT;
    int rc = change_open(&c, a, &e);
    if (rc == OK) rc = switch_now(&c, NULL, &e);
    if (rc == OK) rc = keep(&c, "API", "off", &e);
    int code = rc == OK ? report(&c, false) : cmd_fail(&e);
    change_release(&c);
    return code;
}
