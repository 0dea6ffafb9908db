/* Welcome, Find, Trust: the first words with the other machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/known_hosts.h"
#include "setup/paths.h"
#include "setup/step_internal.h"

enum { MAX_FOUND = 12, KNOWN_MAX = 4 << 20 };

/* --- Welcome --- */

int step_welcome_inspect(flow *f, step_view *v, err *e) {
    buf arch = BUF_INIT;
    char host[64] = "";
    (void)e;
    (void)gethostname(host, sizeof host - 1);
    step_row *r = view_row(v, "this program", CHECK_STATUS_PASS);
    view_fact(r, "tandem %s", TANDEM_VERSION);
    r = view_row(v, "this machine", CHECK_STATUS_PASS);
    if (node_tool(f->plain[0], &arch, NULL, "uname", "-m", NULL) == OK && arch.len > 0)
        buf_truncate(&arch, arch.len - 1);
    view_fact(r, "%s, %s, becomes the head", host, buf_cstr(&arch));
    int n_proven = 0;
    for (int i = 1; i < STEP_COUNT; i++)
        n_proven += f->state[i] == STEP_IS_OK || f->state[i] == STEP_IS_WARNED;
    r = view_row(v, "so far", CHECK_STATUS_PASS);
    view_fact(r, n_proven > 0 ? "%d of %d steps are proven" : "nothing is set up yet", n_proven,
        STEP_LAST);
    r = view_row(v, "the model needs", CHECK_STATUS_PASS);
    view_fact(r, "about 532 GB (495 GiB) on each machine");
    r = view_row(v, "time", CHECK_STATUS_PASS);
    view_fact(r, "413.8 GB: 9.2 h at 100 Mb/s, 3.1 h at 300, 55 min at 1 Gb/s");
    view_done(v, "ready to begin");
    buf_release(&arch);
    return OK;
}

/* --- Find --- */

/* Why a machine does not even show its key: reading the key alone does not say. */
static void find_fault(flow *f, const char *target) {
    remote *session = NULL;
    remote_options o = flow_worker_options(f, NULL);
    o.target = target;
    (void)remote_open(&o, &session, &f->fault, NULL);
    remote_close(session);
}

/* Neighbours of this machine, for a person who does not know the address. */
static int add_neighbours(flow *f, step_view *v) {
    buf text = BUF_INIT;
    int n_found = 0;
    if (node_tool(f->plain[0], &text, NULL, "ip", "-4", "neigh", "show", NULL) != OK) {
        buf_release(&text);
        return 0;
    }
    for (const char *s = buf_cstr(&text); *s != '\0' && n_found < MAX_FOUND;) {
        char address[64] = "", device[32] = "", mac[24] = "";
        size_t n = strcspn(s, "\n");
        char line[200];
        snprintf(line, sizeof line, "%.*s", (int)n, s);
        if (sscanf(line, "%63s dev %31s lladdr %23s", address, device, mac) == 3) {
            step_row *r = view_row(v, "neighbour", CHECK_STATUS_SKIP);
            view_fact(r, "%s on %s, %s", address, device, mac);
            n_found++;
        }
        s += n + (s[n] == '\n');
    }
    buf_release(&text);
    return n_found;
}

int step_find_inspect(flow *f, step_view *v, err *e) {
    char type[40];
    buf key = BUF_INIT;
    const char *target = flow_answer(f, "WORKER_SSH");
    if (target[0] == '\0') {
        add_neighbours(f, v);
        v->worst = CHECK_STATUS_PASS;
        str_copy(v->summary, sizeof v->summary,
            "name the other Spark: user@host; below are the machines this one has heard of");
        return OK;
    }
    remote_options o = flow_worker_options(f, NULL);
    o.target = target;
    int rc = remote_host_key_of(&o, type, &key, e);
    if (rc == OK) {
        char print[64];
        remote_fingerprint_of(buf_cstr(&key), print);
        step_row *r = view_row(v, "ssh answers", CHECK_STATUS_PASS);
        view_fact(r, "%s shows %s %s", target, type, print);
        view_tell(f, r);
        flow_plan_settings(f, STEP_FIND, &v->plan);
        view_done(v, "%s answers", target);
    } else {
        find_fault(f, target);
    }
    buf_release(&key);
    return rc;
}

int step_find_apply(flow *f, const step_view *v, err *e) {
    (void)v;
    return flow_apply_settings(f, STEP_FIND, e);
}

/* --- Trust --- */

static int known_path(buf *out, err *e) {
    const char *home = getenv("HOME");
    if (home == NULL || home[0] != '/') return err_set(e, ERR_ARG, "HOME is not set");
    return buf_printf(out, "%s/.ssh/known_hosts", home);
}

static int key_path(flow *f, buf *out, err *e) {
    const char *set = settings_get(f->s, "WORKER_KEY");
    if (set[0] != '\0') return buf_puts(out, set);
    int rc = paths_config(out, e);
    return rc == OK ? buf_puts(out, "/secrets/id_ed25519") : rc;
}

/* host and port of [user@]host[:port] */
static void split_target(const char *target, char host[256], int *port) {
    const char *at = strrchr(target, '@');
    const char *h = at != NULL ? at + 1 : target, *colon = strrchr(h, ':');
    int64_t n = 22;
    size_t len = strlen(h);
    if (h[0] == '[') {
        const char *end = strchr(h, ']');
        h++;
        len = end != NULL ? (size_t)(end - h) : strlen(h);
        if (end != NULL && end[1] == ':') (void)parse_i64(end + 2, &n);
    } else if (colon != NULL && strchr(h, ':') == colon) {
        len = (size_t)(colon - h);
        (void)parse_i64(colon + 1, &n);
    }
    snprintf(host, 256, "%.*s", (int)len, h);
    *port = (int)n;
}

typedef struct host_state {
    known_state state;
    known_answer answer;
    char host[256], type[40], print[64];
    int port;
    buf key;
} host_state;

/* What the worker shows, compared with what is known. */
static int look_at_host(flow *f, const char *target, host_state *h, err *e) {
    buf own = BUF_INIT;
    remote_options o = flow_worker_options(f, NULL);
    o.target = target;
    split_target(target, h->host, &h->port);
    int rc = remote_host_key_of(&o, h->type, &h->key, e);
    if (rc == OK) rc = known_path(&own, e);
    if (rc == OK) {
        const char *const files[2] = {buf_cstr(&own), "/etc/ssh/ssh_known_hosts"};
        const known_query q = {h->host, h->port, h->type, buf_cstr(&h->key)};
        err why = ERR_INIT;
        remote_fingerprint_of(buf_cstr(&h->key), h->print);
        h->state = known_hosts_look(files, 2, &q, &h->answer, &why);
        if (h->state != KNOWN_OK && h->state != KNOWN_UNKNOWN && e != NULL) *e = why;
    }
    buf_release(&own);
    return rc;
}

static int refuse_host(flow *f, const host_state *h, step_view *v, const err *why) {
    char next[800], what[640];
    buf removal = BUF_INIT;
    step_row *r = view_row(v, "identity of the worker", CHECK_STATUS_FAIL);
    view_fact(r, "%s now shows %s %s; stored is %s", h->host, h->type, h->print,
        h->answer.old_fingerprint[0] != '\0' ? h->answer.old_fingerprint : "another one");
    known_hosts_removal(h->answer.path[0] != '\0' ? h->answer.path : "~/.ssh/known_hosts", h->host,
        h->port, &removal);
    snprintf(what, sizeof what,
        "The worker's identity is not the one that is stored: %s shows %s, stored is %s (%s:%d).",
        h->host, h->print,
        h->answer.old_fingerprint[0] != '\0' ? h->answer.old_fingerprint : "another key",
        h->answer.path, h->answer.line);
    snprintf(next, sizeof next,
        "If you installed it again, remove the old entry, then press Again: %s   If you did not, "
        "stop here: find out which machine answers.",
        buf_cstr(&removal));
    bool is_changed = h->state == KNOWN_CHANGED || h->state == KNOWN_OTHER_TYPE;
    view_message(v, is_changed ? what : why->msg,
        "The worker was installed again, another machine has its address, or somebody listens in "
        "between. Nothing is sent to it before that is clear.",
        is_changed ? next : "Repair or remove the entry named here, then press Again.");
    f->fault = REMOTE_HOST_CHANGED;
    buf_release(&removal);
    return OK;
}

static void plan_trust(flow *f, const host_state *h, const char *key, setup_plan *p) {
    char what[300], command[600];
    const char *target = flow_answer(f, "WORKER_SSH");
    plan_action a = {
        .step = (char *)"trust", .node = (char *)"head", .what = what, .command = command};
    if (h->state == KNOWN_UNKNOWN) {
        snprintf(what, sizeof what,
            "remember the worker's host key, after you compared its fingerprint");
        snprintf(command, sizeof command, "~/.ssh/known_hosts: + (hashed) %s port %d %s %s",
            h->host, h->port, h->type, h->print);
        a.undo = (char *)"the line is taken out again";
        plan_add(p, &a);
    }
    if (!file_exists(key)) {
        snprintf(what, sizeof what, "make an ssh key that is used for nothing else");
        snprintf(command, sizeof command, "ssh-keygen -t ed25519 -N '' -f %s", key);
        a.undo = (char *)"the key is removed";
        plan_add(p, &a);
    }
    snprintf(what, sizeof what,
        "log in once (with the password when no key works yet) and let the key in");
    snprintf(command, sizeof command, "ssh %s: ~/.ssh/authorized_keys: + the line of %s.pub",
        target, key);
    a.node = (char *)"worker";
    a.undo = (char *)"the line is taken out again";
    plan_add(p, &a);
    if (!str_eq(settings_get(f->on_disk, "WORKER_KEY"), key)) {
        a.node = (char *)"head";
        snprintf(what, sizeof what, "keep the place of the key in the settings file");
        snprintf(command, sizeof command, "tandem config set WORKER_KEY %s", key);
        a.undo = (char *)"tandem config unset WORKER_KEY";
        plan_add(p, &a);
    }
}

/* The same machine must show the same key on each of its addresses. */
static int compare_addresses(flow *f, const host_state *h, step_view *v) {
    static const char *const keys[] = {"WORKER_IP_A", "WORKER_IP_B"};
    for (int i = 0; i < 2; i++) {
        const char *address = settings_get(f->s, keys[i]);
        char target[300], type[40];
        buf key = BUF_INIT;
        if (address[0] == '\0') continue;
        snprintf(target, sizeof target, "%s:%d", address, h->port);
        remote_options o = flow_worker_options(f, NULL);
        o.target = target;
        err why = ERR_INIT;
        int rc = remote_host_key_of(&o, type, &key, &why);
        bool is_same = rc == OK && str_eq(buf_cstr(&key), buf_cstr(&h->key));
        step_row *r = view_row(v, keys[i],
            is_same    ? CHECK_STATUS_PASS
            : rc == OK ? CHECK_STATUS_FAIL
                       : CHECK_STATUS_UNKNOWN);
        view_fact(
            r, is_same ? "%s shows the same key" : "%s does not show the worker's key", address);
        if (rc == OK && !is_same) {
            str_copy(r->reason, sizeof r->reason, "Another machine answers at this address.");
            str_copy(r->remedy, sizeof r->remedy,
                "Check the cable and the address of that rail, then press Again.");
        }
        buf_release(&key);
    }
    return OK;
}

int step_trust_inspect(flow *f, step_view *v, err *e) {
    host_state h = {.key = BUF_INIT};
    buf key = BUF_INIT;
    err why = ERR_INIT;
    int rc = look_at_host(f, flow_answer(f, "WORKER_SSH"), &h, &why);
    if (rc == OK) rc = key_path(f, &key, &why);
    if (rc != OK) {
        *e = why;
        find_fault(f, flow_answer(f, "WORKER_SSH"));
    } else if (h.state != KNOWN_OK && h.state != KNOWN_UNKNOWN) {
        rc = refuse_host(f, &h, v, &why);
    } else {
        step_row *r = view_row(v, "identity of the worker", CHECK_STATUS_PASS);
        view_fact(
            r, h.state == KNOWN_OK ? "known: %s %s" : "not known yet: %s %s", h.type, h.print);
        view_tell(f, r);
        bool is_in = false;
        if (h.state == KNOWN_OK && file_exists(buf_cstr(&key)) &&
            settings_get(f->s, "WORKER_KEY")[0] != '\0') {
            remote *session = NULL;
            remote_options o = flow_worker_options(f, NULL);
            o.only_key_file = true;
            is_in = remote_open(&o, &session, NULL, NULL) == OK;
            remote_close(session);
        }
        r = view_row(v, "login with the key", CHECK_STATUS_PASS);
        view_fact(r, is_in ? "works" : "not yet");
        if (!is_in) {
            plan_trust(f, &h, buf_cstr(&key), &v->plan);
        } else {
            compare_addresses(f, &h, v);
            view_done(v, "the head logs in to %s with its key", h.host);
        }
    }
    buf_release(&h.key);
    buf_release(&key);
    return rc;
}

/* --- applying --- */

typedef struct asking {
    flow *f;
    char known[600];
    bool was_there;
    err e;
} asking;

/* Written down before it is kept: what was confirmed is known exactly here. */
static bool confirm_key(void *ctx, const remote_host_key *key) {
    asking *a = ctx;
    flow *f = a->f;
    char what[200], text[2000];
    const char *given = flow_answer(f, "ACCEPT_HOST_KEY");
    bool is_given = given[0] != '\0' && str_eq(given, key->fingerprint);
    if (!is_given) {
        if (f->o.talk == NULL || f->o.talk->host_key == NULL) return false;
        if (!f->o.talk->host_key(f->o.talk->ctx, key)) return false;
    }
    snprintf(what, sizeof what, "host key of %s port %d in known_hosts", key->host, key->port);
    snprintf(text, sizeof text, "%s %d %s %s", key->host, key->port, key->type, key->key);
    undo_entry x = {.kind = UNDO_KNOWN_HOST,
        .step = (char *)"trust",
        .what = what,
        .path = a->known,
        .text = text,
        .before = a->was_there ? (char *)"there" : NULL};
    flow_say(f, "head: ~/.ssh/known_hosts: + %s port %d", key->host, key->port);
    return flow_undo_add(f, &x, &a->e) == OK;
}

static bool ask_secret(void *ctx, const char *prompt, ssh_secret *out) {
    const asking *a = ctx;
    const flow_talk *t = a->f->o.talk;
    return t != NULL && t->secret != NULL && t->secret(t->ctx, prompt, out);
}

static int make_key(flow *f, const char *path, err *e) {
    char host[64] = "head", comment[140], what[600];
    struct tm now;
    time_t t = time(NULL);
    if (file_exists(path)) return OK;
    (void)gethostname(host, sizeof host - 1);
    snprintf(comment, sizeof comment, "tandem@%s", host);
    if (localtime_r(&t, &now) != NULL)
        snprintf(comment, sizeof comment, "tandem@%s-%04d-%02d-%02d", host, now.tm_year + 1900,
            now.tm_mon + 1, now.tm_mday);
    buf pub = BUF_INIT, dir = BUF_INIT;
    int rc = buf_printf(&pub, "%s.pub", path);
    if (rc == OK) rc = path_dir(&dir, path);
    undo_entry folder = {.kind = UNDO_FOLDER,
        .step = (char *)"trust",
        .what = (char *)"folder of our key",
        .path = dir.data,
        .text = (char *)""};
    if (rc == OK && !dir_exists(buf_cstr(&dir))) rc = flow_undo_add(f, &folder, e);
    snprintf(what, sizeof what, "ssh key %s", path);
    undo_entry x = {.kind = UNDO_FILE, .step = (char *)"trust", .what = what, .path = (char *)path};
    if (rc == OK) rc = flow_undo_add(f, &x, e);
    x.path = pub.data;
    if (rc == OK) rc = flow_undo_add(f, &x, e);
    flow_say(f, "head: ssh-keygen -t ed25519 -N '' -f %s", path);
    if (rc == OK) rc = remote_key_make(path, comment, e);
    buf_release(&dir);
    buf_release(&pub);
    return rc;
}

static int note_line(flow *f, node_access *there, const char *key, err *e) {
    buf home = BUF_INIT, path = BUF_INIT, pub = BUF_INIT, text = BUF_INIT;
    char blob[400] = "";
    int rc = node_tool(there, &home, e, "printenv", "HOME", NULL);
    if (rc == OK)
        rc = buf_printf(&path, "%.*s/.ssh/authorized_keys", (int)strcspn(buf_cstr(&home), "\r\n"),
            buf_cstr(&home));
    if (rc == OK) rc = buf_printf(&pub, "%s.pub", key);
    if (rc == OK) rc = file_read(buf_cstr(&pub), &text, 8192, e);
    /* The middle word is what only our line holds. */
    if (rc == OK && sscanf(buf_cstr(&text), "%*s %399s", blob) != 1)
        rc = err_set(e, ERR_FORMAT, "%s is no public key", buf_cstr(&pub));
    buf lines = BUF_INIT;
    bool was_there = rc == OK && node_read(there, buf_cstr(&path), KNOWN_MAX, &lines, NULL) == OK;
    /* A line that stood there before set-up came is not ours to take away. */
    bool is_ours = !was_there || memmem(buf_cstr(&lines), lines.len, blob, strlen(blob)) == NULL;
    buf_release(&lines);
    undo_entry x = {.kind = UNDO_LINE,
        .is_worker = true,
        .step = (char *)"trust",
        .what = (char *)"our key in authorized_keys",
        .path = path.data,
        .text = blob,
        .before = was_there ? (char *)"there" : NULL};
    if (rc == OK && is_ours) rc = flow_undo_add(f, &x, e);
    if (rc == OK) flow_say(f, "worker: %s: + the line of %s", buf_cstr(&path), buf_cstr(&pub));
    buf_release(&home);
    buf_release(&path);
    buf_release(&pub);
    buf_release(&text);
    return rc;
}

int step_trust_apply(flow *f, const step_view *v, err *e) {
    asking a = {.f = f, .e = ERR_INIT};
    const remote_ask ask = {&a, confirm_key, ask_secret};
    buf known = BUF_INIT, key = BUF_INIT;
    remote *session = NULL;
    (void)v;
    flow_disconnect(f);
    int rc = known_path(&known, e);
    if (rc == OK) rc = key_path(f, &key, e);
    str_copy(a.known, sizeof a.known, buf_cstr(&known));
    a.was_there = file_exists(a.known);
    if (rc == OK) rc = make_key(f, buf_cstr(&key), e);
    remote_options o = flow_worker_options(f, &ask);
    o.target = flow_answer(f, "WORKER_SSH");
    o.key_file = buf_cstr(&key);
    o.may_use_password = true;
    flow_say(f, "head: ssh %s", o.target);
    if (rc == OK) rc = remote_open(&o, &session, &f->fault, e);
    if (rc == OK) {
        node_access *there = node_access_ssh("worker", session, NULL);
        rc = note_line(f, there, buf_cstr(&key), e);
        if (rc == OK) rc = remote_key_install(session, buf_cstr(&key), NULL, NULL, e);
        node_access_close(there);
    }
    if (rc == OK) rc = flow_setting_write(f, "trust", "WORKER_KEY", buf_cstr(&key), e);
    buf_release(&known);
    buf_release(&key);
    return rc;
}

int step_trust_prove(flow *f, step_view *v, err *e) {
    flow_disconnect(f);
    int rc = step_trust_inspect(f, v, e);
    if (rc != OK || v->worst == CHECK_STATUS_FAIL || v->plan.n > 0) return rc;
    rc = flow_connect(f, e);
    if (rc == OK) rc = flow_worker_home(f, e);
    return rc;
}
