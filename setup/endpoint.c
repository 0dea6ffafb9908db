#include "setup/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "engine/api/keys.h"
#include "engine/base/file.h"
#include "engine/base/privilege.h"
#include "engine/base/str.h"
#include "setup/engine_args.h"
#include "setup/verify_http.h"

enum { ANSWER_MS = 20000 };

/* --- addresses --- */

bool endpoint_is_loopback(const char *address) {
    struct in_addr in;
    return inet_pton(AF_INET, address, &in) == 1 && ntohl(in.s_addr) >> 24 == 127;
}

bool endpoint_is_wide(const char *address) {
    struct in_addr in;
    return inet_pton(AF_INET, address, &in) == 1 && in.s_addr == htonl(INADDR_ANY);
}

static bool is_rail(const settings *s, const char *address) {
    static const char *const rails[] = {"HEAD_IP_A", "HEAD_IP_B"};
    for (size_t i = 0; s != NULL && i < sizeof rails / sizeof rails[0]; i++) {
        if (str_eq(settings_get(s, rails[i]), address)) return true;
    }
    return false;
}

/* Calls fn with each IPv4 address of an interface that is up, until it returns false. */
static void each_address(
    bool (*fn)(void *ctx, const char *address, const char *device), void *ctx) {
    struct ifaddrs *list = NULL;
    char text[INET_ADDRSTRLEN];
    if (getifaddrs(&list) != 0) return;
    for (const struct ifaddrs *a = list; a != NULL; a = a->ifa_next) {
        struct sockaddr_in in;
        if (a->ifa_addr == NULL || a->ifa_addr->sa_family != AF_INET) continue;
        if ((a->ifa_flags & IFF_UP) == 0) continue;
        memcpy(&in, a->ifa_addr, sizeof in);
        if (inet_ntop(AF_INET, &in.sin_addr, text, sizeof text) == NULL) continue;
        if (!fn(ctx, text, a->ifa_name)) break;
    }
    freeifaddrs(list);
}

typedef struct address_list {
    const settings *s;
    buf *out;
} address_list;

static bool add_address(void *ctx, const char *address, const char *device) {
    const address_list *l = ctx;
    if (endpoint_is_loopback(address) || is_rail(l->s, address)) return true;
    return buf_printf(l->out, "%s%s (%s)", l->out->len > 0 ? ", " : "", address, device) == OK;
}

void endpoint_own_addresses(const settings *s, buf *out) {
    address_list l = {s, out};
    each_address(add_address, &l);
}

typedef struct address_search {
    const char *wanted;
    bool is_found;
} address_search;

static bool compare_address(void *ctx, const char *address, const char *device) {
    address_search *x = ctx;
    (void)device;
    x->is_found = str_eq(x->wanted, address);
    return !x->is_found;
}

int endpoint_check_address(const char *address, err *e) {
    struct in_addr in;
    address_search x = {.wanted = address};
    if (inet_pton(AF_INET, address, &in) != 1)
        return err_set(e, ERR_ARG, "\"%.60s\" is no IPv4 address", address);
    if (endpoint_is_loopback(address) || endpoint_is_wide(address)) return OK;
    each_address(compare_address, &x);
    if (x.is_found) return OK;
    buf own = BUF_INIT;
    endpoint_own_addresses(NULL, &own);
    int rc = err_set(e, ERR_ARG, "no interface of this machine has the address %s; it has %s",
        address, own.len > 0 ? buf_cstr(&own) : "only 127.0.0.1");
    buf_release(&own);
    return rc;
}

/* --- keys --- */

typedef struct key_search {
    const char *label;
    int n;
    bool is_found;
} key_search;

static void count_key(void *ctx, const char *label, const key_limits *limits) {
    key_search *x = ctx;
    (void)limits;
    x->n++;
    if (x->label != NULL && str_eq(x->label, label)) x->is_found = true;
}

static key_search search_keys(const char *path, const char *label) {
    key_search x = {.label = label};
    if (file_exists(path) && keys_each(path, count_key, &x, NULL) != OK) x = (key_search){0};
    return x;
}

int endpoint_count_keys(const char *path) {
    return search_keys(path, NULL).n;
}

bool endpoint_has_key(const char *path, const char *label) {
    return search_keys(path, label).is_found;
}

/* --- settings --- */

int endpoint_check_settings(const settings *s, err *e) {
    const char *address = settings_get(s, "API_BIND");
    struct in_addr in;
    buf file = BUF_INIT;
    if (!settings_is_on(s, "API") || endpoint_is_loopback(address)) return OK;
    if (inet_pton(AF_INET, address, &in) != 1)
        return err_set(e, ERR_ARG, "API_BIND is %s; the endpoint needs an IPv4 address", address);
    int rc = privilege_refuse_root("an endpoint for other machines", e);
    if (rc == OK) rc = engine_args_key_file(s, &file, e);
    if (rc == OK && endpoint_count_keys(buf_cstr(&file)) == 0)
        rc = err_set(e, ERR_AUTH,
            "other machines reach the endpoint at %s (API_BIND), and %s holds no API key; make one "
            "with: tandem api key new LABEL",
            address, buf_cstr(&file));
    if (rc == OK && !str_eq(settings_get(s, "API_CONFIRMED"), address))
        rc = err_set(e, ERR_AUTH,
            "other machines reach the endpoint at %s (API_BIND), and that was not confirmed yet; "
            "confirm it once with: tandem api on --bind %s",
            address, address);
    buf_release(&file);
    return rc;
}

/* --- the running engine --- */

/* GET or POST at the engine's socket; the parsed answer, NULL when nobody wants it. */
static int ask(const char *socket_path, const char *path, const char *body, json **out, err *e) {
    verify_answer a = {0};
    char text[280];
    const verify_options o = {.socket_path = socket_path, .timeout_ms = ANSWER_MS};
    int rc = verify_http(&o, path, body, NULL, &a, e);
    if (rc == OK && a.status != 200) {
        verify_error_text(&a, text, sizeof text);
        rc = err_set(e, a.status == 409 ? ERR_BUSY : ERR_IO, "%s", text);
    }
    if (rc == OK && out != NULL) rc = json_parse(a.body.data, a.body.len, NULL, out, e);
    verify_answer_release(&a);
    return rc;
}

int endpoint_look(const char *socket_path, endpoint_now *out, err *e) {
    json *v = NULL;
    *out = (endpoint_now){0};
    int rc = ask(socket_path, "/tandem/v1/state", NULL, &v, e);
    const json *p = json_get(v, "endpoint");
    const char *place = json_str(json_get(p, "address"));
    const char *id = json_str(json_get(json_get(v, "model"), "id"));
    if (json_is_true(json_get(p, "on")) && place != NULL)
        str_copy(out->place, sizeof out->place, place);
    if (id != NULL) str_copy(out->model, sizeof out->model, id);
    out->needs_key = json_is_true(json_get(p, "keys"));
    json_free(v);
    return rc;
}

int endpoint_switch(const char *socket_path, const char *place, err *e) {
    static const char off[] = "{\"on\":false}";
    endpoint_now now;
    char body[300];
    int rc = endpoint_look(socket_path, &now, e);
    if (rc != OK || str_eq(now.place, place != NULL ? place : "")) return rc;
    if (now.place[0] != '\0') rc = ask(socket_path, "/tandem/v1/endpoint", off, NULL, e);
    if (rc != OK || place == NULL) return rc;
    const char *colon = strrchr(place, ':');
    int n = colon != NULL ? (int)(colon - place) : 0;
    if (n == 0 || strlen(place) >= ENDPOINT_PLACE_MAX)
        return err_set(e, ERR_ARG, "\"%.60s\" is no address with a port", place);
    snprintf(body, sizeof body, "{\"on\":true,\"bind\":\"%.*s\",\"port\":%s,\"confirm\":\"%.*s\"}",
        n, place, colon + 1, n, place);
    rc = ask(socket_path, "/tandem/v1/endpoint", body, NULL, e);
    if (rc == OK || now.place[0] == '\0') return rc;
    /* Back to where it was: what did not work changes nothing. */
    (void)endpoint_switch(socket_path, now.place, NULL);
    return rc;
}
