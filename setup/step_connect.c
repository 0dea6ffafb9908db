/* Connect: the endpoint for other programs, its address, its first key. Only this machine reaches it
 * unless the owner says otherwise: then there is a key, and the address was typed a second time. */
#include <stdio.h>
#include <string.h>

#include "engine/api/keys.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/endpoint.h"
#include "setup/engine_args.h"
#include "setup/paths.h"
#include "setup/step_internal.h"
#include "setup/verify_http.h"

/* What the answers ask for. */
typedef struct wish {
    bool is_on, is_remote, must_confirm;
    char bind[64], place[ENDPOINT_PLACE_MAX];
    char label[KEYS_LABEL_MAX]; /* of a key to make; "" none */
    int n_keys;
    buf keys, socket; /* paths */
} wish;

static void wish_release(wish *w) {
    buf_release(&w->keys);
    buf_release(&w->socket);
}

/* Another machine gets in only with a key, so one is made when there is none. */
static void choose_label(flow *f, wish *w) {
    const char *given = flow_answer(f, "API_KEY_LABEL");
    const char *label = given[0] != '\0' ? given : w->is_remote && w->n_keys == 0 ? "first" : "";
    if (w->is_on && !endpoint_has_key(buf_cstr(&w->keys), label))
        str_copy(w->label, sizeof w->label, label);
}

static int read_wish(flow *f, wish *w, err *e) {
    *w = (wish){.keys = BUF_INIT, .socket = BUF_INIT};
    int rc = paths_socket(&w->socket, e);
    if (rc == OK) rc = engine_args_key_file(f->s, &w->keys, e);
    str_copy(w->bind, sizeof w->bind, flow_answer(f, "API_BIND"));
    snprintf(w->place, sizeof w->place, "%s:%s", w->bind, flow_answer(f, "API_PORT"));
    w->is_on = str_eq(flow_answer(f, "API"), "on");
    w->is_remote = w->is_on && !endpoint_is_loopback(w->bind);
    w->must_confirm = w->is_remote && !str_eq(settings_get(f->on_disk, "API_CONFIRMED"), w->bind);
    w->n_keys = endpoint_count_keys(buf_cstr(&w->keys));
    if (rc == OK) choose_label(f, w);
    return rc;
}

/* --- the plan --- */

static void plan_one(setup_plan *p, const char *what, const char *command, const char *undo) {
    const plan_action a = {.step = (char *)"connect",
        .node = (char *)"head",
        .what = (char *)what,
        .command = (char *)command,
        .undo = (char *)undo};
    plan_add(p, &a);
}

static void plan_wish(const wish *w, const endpoint_now *now, setup_plan *p) {
    char what[200], command[200], undo[200];
    if (w->must_confirm) {
        snprintf(what, sizeof what, "let other machines reach %s; you are asked to type it again",
            w->bind);
        snprintf(command, sizeof command, "tandem config set API_CONFIRMED %s", w->bind);
        plan_one(p, what, command, "tandem config unset API_CONFIRMED");
    }
    if (w->label[0] != '\0') {
        snprintf(what, sizeof what, "make the API key \"%s\"; it is shown once", w->label);
        snprintf(command, sizeof command, "tandem api key new %s", w->label);
        snprintf(undo, sizeof undo, "tandem api key revoke %s", w->label);
        plan_one(p, what, command, undo);
    }
    if (str_eq(now->place, w->is_on ? w->place : "")) return;
    snprintf(command, sizeof command, "POST /tandem/v1/endpoint %s%s", w->is_on ? "on, " : "off",
        w->is_on ? w->place : "");
    plan_one(p,
        w->is_on ? "switch the endpoint of the running engine on"
                 : "switch the endpoint of the running engine off",
        command, "switched back by tandem restart with the settings before");
}

/* --- the table --- */

static void row_wide(flow *f, step_view *v) {
    buf own = BUF_INIT;
    endpoint_own_addresses(f->s, &own);
    step_row *r = view_row(v, "address", CHECK_STATUS_WARN);
    view_fact(r, "0.0.0.0 is every network of this machine at once");
    str_copy(r->reason, sizeof r->reason,
        "Who can reach the engine then changes with every cable, VPN and wireless network.");
    snprintf(r->remedy, sizeof r->remedy, "Better give one address: %.560s.",
        own.len > 0 ? buf_cstr(&own) : "this machine has none but 127.0.0.1");
    buf_release(&own);
}

static void row_address(flow *f, const wish *w, step_view *v) {
    err why = ERR_INIT;
    if (!w->is_on) return;
    if (endpoint_check_address(w->bind, &why) != OK) {
        step_row *r = view_row(v, "address", CHECK_STATUS_FAIL);
        view_fact(r, "%s", why.msg);
        str_copy(r->reason, sizeof r->reason, "The endpoint cannot listen there.");
        str_copy(r->remedy, sizeof r->remedy, "Give one of these addresses, then press Again.");
    } else if (endpoint_is_wide(w->bind)) {
        row_wide(f, v);
    } else if (!w->is_remote) {
        buf own = BUF_INIT;
        endpoint_own_addresses(f->s, &own);
        view_fact(view_row(v, "address", CHECK_STATUS_PASS), "this machine only%s%s",
            own.len > 0 ? "; for others: " : "", buf_cstr(&own));
        buf_release(&own);
    }
}

static void row_keys(const wish *w, step_view *v) {
    step_row *r = view_row(v, "keys", CHECK_STATUS_PASS);
    if (w->n_keys > 0) {
        view_fact(r, "%d in %s; more with tandem api key new LABEL", w->n_keys, buf_cstr(&w->keys));
    } else if (w->is_remote) {
        view_fact(r, "none yet: one is made, because other machines need it");
    } else {
        view_fact(r, "none; 127.0.0.1 needs none until there is one");
    }
    if (!w->is_remote) return;
    r = view_row(v, "firewall", CHECK_STATUS_PASS);
    view_fact(r,
        "admit only who needs it, for example: sudo ufw allow from NETWORK to any port %s "
        "proto tcp",
        strrchr(w->place, ':') + 1);
}

int step_connect_inspect(flow *f, step_view *v, err *e) {
    endpoint_now now;
    wish w;
    int rc = read_wish(f, &w, e);
    if (rc == OK) rc = endpoint_look(buf_cstr(&w.socket), &now, e);
    if (rc == OK) {
        flow_plan_settings(f, STEP_CONNECT, &v->plan);
        plan_wish(&w, &now, &v->plan);
        step_row *r = view_row(v, "base URL", CHECK_STATUS_PASS);
        if (now.place[0] != '\0') {
            view_fact(r, "http://%s/v1", now.place);
        } else {
            view_fact(r, "off; programs of this user use the socket (tandem ask, tandem chat)");
        }
        view_fact(view_row(v, "model", CHECK_STATUS_PASS), "%s", now.model);
        row_address(f, &w, v);
        row_keys(&w, v);
        if (now.place[0] != '\0')
            view_fact(view_row(v, "try", CHECK_STATUS_PASS), "curl %shttp://%s/v1/models",
                now.needs_key ? "-H 'Authorization: Bearer KEY' " : "", now.place);
        view_done(v,
            now.place[0] != '\0' ? "programs connect to http://%s/v1" : "the endpoint is off%s",
            now.place);
    }
    wish_release(&w);
    return rc;
}

/* --- applying --- */

static int confirm_address(flow *f, const wish *w, err *e) {
    const flow_talk *t = f->o.talk;
    char prompt[400], typed[100] = "";
    if (!w->must_confirm) return OK;
    if (str_eq(flow_answer(f, "CONFIRM_ADDRESS"), w->bind)) return OK;
    snprintf(prompt, sizeof prompt,
        "Other machines will reach %s. Whoever has a key can use this engine, and without TLS the "
        "network can read along. Type the address again:",
        w->bind);
    bool is_there = t != NULL && t->typed != NULL;
    if (is_there && t->typed(t->ctx, prompt, typed, sizeof typed) && str_eq(typed, w->bind))
        return OK;
    return err_set(e, ERR_AUTH,
        is_there
            ? "the address %s was not typed again, so nothing was changed"
            : "nobody is here to type the address %s again; the answer CONFIRM_ADDRESS does it",
        w->bind);
}

/* The file as it will be taken back: the line, or the file when it is new. */
static int note_key(flow *f, const wish *w, err *e) {
    char what[160], text[KEYS_LABEL_MAX + 16];
    snprintf(what, sizeof what, "the API key \"%s\"", w->label);
    snprintf(text, sizeof text, "%s sha256:", w->label);
    undo_entry x = {.kind = UNDO_LINE,
        .step = (char *)"connect",
        .what = what,
        .path = w->keys.data,
        .text = text,
        .before = file_exists(buf_cstr(&w->keys)) ? (char *)"there" : NULL};
    return flow_undo_add(f, &x, e);
}

static int show_key(flow *f, const wish *w, const char *key, err *e) {
    const flow_talk *t = f->o.talk;
    char what[200];
    snprintf(what, sizeof what, "The API key \"%s\" is shown only now; %.100s keeps its digest.",
        w->label, path_base(buf_cstr(&w->keys)));
    if (t->show_once(t->ctx, what, key)) return OK;
    return err_set(e, ERR_CANCELLED, "the key was not taken");
}

static int make_key(flow *f, const wish *w, err *e) {
    const key_limits none = {0};
    char key[64];
    buf dir = BUF_INIT;
    if (w->label[0] == '\0') return OK;
    if (f->o.talk == NULL || f->o.talk->show_once == NULL)
        return err_set(e, ERR_UNSUPPORTED,
            "nobody is here to see a new key; make it with: tandem api key new %s", w->label);
    ssh_secret_free(f->new_key);
    f->new_key = ssh_secret_new();
    key_make(key, sizeof key);
    (void)ssh_secret_set(f->new_key, key, strlen(key));
    flow_say(f, "head: tandem api key new %s", w->label);
    int rc = path_dir(&dir, buf_cstr(&w->keys));
    if (rc == OK && !dir_exists(buf_cstr(&dir))) rc = paths_make_private(buf_cstr(&dir), e);
    if (rc == OK) rc = note_key(f, w, e);
    if (rc == OK) rc = keys_add(buf_cstr(&w->keys), w->label, key, &none, e);
    if (rc == OK) rc = show_key(f, w, key, e);
    /* A key that nobody saw is of no use to its owner. */
    if (rc == ERR_CANCELLED) (void)keys_remove(buf_cstr(&w->keys), w->label, NULL);
    explicit_bzero(key, sizeof key);
    buf_release(&dir);
    return rc;
}

int step_connect_apply(flow *f, const step_view *v, err *e) {
    wish w;
    (void)v;
    int rc = read_wish(f, &w, e);
    if (rc == OK && w.is_on) rc = endpoint_check_address(w.bind, e);
    if (rc == OK) rc = confirm_address(f, &w, e);
    if (rc == OK) rc = make_key(f, &w, e);
    if (rc == OK) {
        flow_say(f, "head: POST /tandem/v1/endpoint %s", w.is_on ? w.place : "off");
        rc = endpoint_switch(buf_cstr(&w.socket), w.is_on ? w.place : NULL, e);
    }
    /* Only what works is kept in the file. */
    if (rc == OK && w.must_confirm)
        rc = flow_setting_write(f, "connect", "API_CONFIRMED", w.bind, e);
    if (rc == OK) rc = flow_apply_settings(f, STEP_CONNECT, e);
    wish_release(&w);
    return rc;
}

/* --- the proof --- */

/* One request over TCP as another program makes it. */
static int status_of(const char *place, const char *path, const char *key) {
    char url[ENDPOINT_PLACE_MAX + 16];
    verify_answer a = {0};
    snprintf(url, sizeof url, "http://%s", place);
    const verify_options o = {.base_url = url, .key = key, .timeout_ms = 20000};
    int rc = verify_http(&o, path, NULL, NULL, &a, NULL);
    verify_answer_release(&a);
    return rc == OK ? a.status : -1;
}

static void row_request(step_view *v, const char *label, int status, int wanted) {
    step_row *r = view_row(v, label, status == wanted ? CHECK_STATUS_PASS : CHECK_STATUS_FAIL);
    if (status < 0) {
        view_fact(r, "no answer");
    } else {
        view_fact(r, "status %d%s", status, status == wanted ? ", as it should be" : "");
    }
}

int step_connect_prove(flow *f, step_view *v, err *e) {
    endpoint_now now;
    buf socket = BUF_INIT;
    int rc = step_connect_inspect(f, v, e);
    if (rc == OK) rc = paths_socket(&socket, e);
    if (rc == OK) rc = endpoint_look(buf_cstr(&socket), &now, e);
    buf_release(&socket);
    if (rc != OK || v->plan.n > 0 || now.place[0] == '\0') return rc;
    if (settings_is_set(f->s, "API_TLS_CERT")) {
        view_fact(view_row(v, "answers there", CHECK_STATUS_SKIP),
            "over TLS; try it with a client that knows the certificate");
        return OK;
    }
    row_request(v, "answers there", status_of(now.place, "/health", NULL), 200);
    if (now.needs_key)
        row_request(v, "without a key", status_of(now.place, "/v1/models", NULL), 401);
    if (f->new_key != NULL)
        row_request(v, "with the new key",
            status_of(now.place, "/v1/models", ssh_secret_text(f->new_key)), 200);
    ssh_secret_free(f->new_key);
    f->new_key = NULL;
    return OK;
}
