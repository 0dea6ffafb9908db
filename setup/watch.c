/* One look of the watchdog, and what follows from it. */
#include "setup/watch.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "setup/pair_internal.h"
#include "setup/paths.h"
#include "setup/verify_http.h"

enum { ANSWER_MS = 5000, PROBE_MS = 120000, NOTIFY_MS = 20000, YEAR_OK = 2025 };
enum { CODE_USAGE = 2, CODE_REFUSED = 20 };

/* ---- remembering ---- */

static void read_times(const json *v, uint64_t *out, int *n) {
    JSON_EACH(item, v) {
        if (*n < WATCH_HEALS_MAX && json_u64(item, &out[*n]) == OK) (*n)++;
    }
}

static void recall(watch_memory *m) {
    buf path = BUF_INIT;
    json *v = NULL;
    int64_t n_bad = 0;
    *m = (watch_memory){0};
    if (pair_file("watch.json", &path, NULL) == OK && file_exists(buf_cstr(&path)) &&
        json_parse_file(buf_cstr(&path), NULL, &v, NULL) == OK) {
        (void)json_i64(json_get(v, "bad"), &n_bad);
        (void)json_u64(json_get(v, "progress"), &m->progress);
        (void)json_u64(json_get(v, "progress_ms"), &m->progress_ms);
        (void)json_u64(json_get(v, "probe_ms"), &m->probe_ms);
        m->has_given_up = json_is_true(json_get(v, "given_up"));
        read_times(json_get(v, "heals_ms"), m->heals_ms, &m->n_heals);
        m->n_bad = (int)n_bad;
    }
    json_free(v);
    buf_release(&path);
}

static int remember(const watch_memory *m, err *e) {
    buf path = BUF_INIT, dir = BUF_INIT, text = BUF_INIT;
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    json_w_ki64(&w, "bad", m->n_bad);
    json_w_ku64(&w, "progress", m->progress);
    json_w_ku64(&w, "progress_ms", m->progress_ms);
    json_w_ku64(&w, "probe_ms", m->probe_ms);
    json_w_kbool(&w, "given_up", m->has_given_up);
    json_w_key(&w, "heals_ms");
    json_w_array(&w);
    for (int i = 0; i < m->n_heals; i++)
        json_w_u64(&w, m->heals_ms[i]);
    json_w_close(&w);
    json_w_close(&w);
    int rc = json_w_end(&w);
    if (rc == OK) rc = pair_file("watch.json", &path, e);
    if (rc == OK) rc = path_dir(&dir, buf_cstr(&path));
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    if (rc == OK) rc = file_write_atomic(buf_cstr(&path), text.data, text.len, 0600, e);
    buf_release(&path);
    buf_release(&dir);
    buf_release(&text);
    return rc;
}

int watch_pause(uint64_t until_ms, err *e) {
    buf path = BUF_INIT, dir = BUF_INIT, text = BUF_INIT;
    int rc = pair_file("maintenance", &path, e);
    if (rc == OK) rc = path_dir(&dir, buf_cstr(&path));
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    buf_printf(&text, "%llu\n", (unsigned long long)until_ms);
    if (rc == OK && until_ms == 0) rc = file_remove(buf_cstr(&path), e);
    if (rc == OK && until_ms != 0)
        rc = file_write_atomic(buf_cstr(&path), text.data, text.len, 0600, e);
    buf_release(&path);
    buf_release(&dir);
    buf_release(&text);
    return rc;
}

uint64_t watch_paused_until(void) {
    buf path = BUF_INIT, text = BUF_INIT;
    uint64_t until = 0;
    if (pair_file("maintenance", &path, NULL) == OK && file_exists(buf_cstr(&path)) &&
        file_read(buf_cstr(&path), &text, 64, NULL) == OK) {
        buf_truncate(&text, strcspn(buf_cstr(&text), "\n"));
        (void)parse_u64(buf_cstr(&text), &until);
    }
    buf_release(&path);
    buf_release(&text);
    return until;
}

/* ---- looking ---- */

static verify_options own_socket(buf *path, int timeout_ms) {
    (void)paths_socket(path, NULL);
    return (verify_options){.socket_path = buf_cstr(path), .timeout_ms = timeout_ms};
}

static bool answers(void) {
    buf path = BUF_INIT;
    verify_answer a;
    verify_options o = own_socket(&path, ANSWER_MS);
    bool is = verify_http(&o, "/ready", NULL, NULL, &a, NULL) == OK && a.status == 200;
    verify_answer_release(&a);
    buf_release(&path);
    return is;
}

/* Tokens done and read of all requests: any change is progress. */
static void look_requests(watch_facts *f) {
    static const char *const keys[] = {"prompt_tokens", "done_tokens", "cached_tokens"};
    buf path = BUF_INIT;
    verify_answer a;
    json *v = NULL;
    verify_options o = own_socket(&path, ANSWER_MS);
    if (verify_http(&o, "/tandem/v1/state", NULL, NULL, &a, NULL) == OK && a.status == 200)
        (void)json_parse(a.body.data, a.body.len, NULL, &v, NULL);
    JSON_EACH(r, json_get(v, "requests")) {
        f->is_busy = true;
        f->progress = f->progress * 31 + 1;
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            int64_t n = 0;
            (void)json_i64(json_get(r, keys[i]), &n);
            f->progress = f->progress * 1000003u + (uint64_t)n;
        }
    }
    json_free(v);
    verify_answer_release(&a);
    buf_release(&path);
}

/* A completion of four tokens: an engine can answer HTTP while the pair stands still. */
static bool probe(void) {
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":4,"
        "\"temperature\":0,\"reasoning_effort\":\"none\"}";
    buf path = BUF_INIT;
    verify_answer a;
    verify_options o = own_socket(&path, PROBE_MS);
    bool is =
        verify_http(&o, "/v1/chat/completions", body, NULL, &a, NULL) == OK && a.status == 200;
    verify_answer_release(&a);
    buf_release(&path);
    return is;
}

static void look_node(const pair_node_view *n, watch_facts *f) {
    int64_t first = 0, last = 0;
    uint64_t ready_ms = 0;
    (void)json_i64(json_get(json_get(n->keeper, "first_error"), "code"), &first);
    (void)json_i64(json_get(json_get(n->keeper, "last_error"), "code"), &last);
    (void)json_u64(json_get(n->keeper, "ready_ms"), &ready_ms);
    bool is_failed = str_eq(n->state, "failed");
    f->is_refusal |= is_failed && (first == CODE_USAGE || first == CODE_REFUSED ||
                                      last == CODE_USAGE || last == CODE_REFUSED);
    f->is_fail_fast |= n->was_killed || (is_failed && last != 0);
    f->ready_ms = ready_ms > f->ready_ms ? ready_ms : f->ready_ms;
}

static int look(const pair_options *o, watch_facts *f, err *e) {
    pair_view v;
    *f = (watch_facts){.now_ms = clock_wall_ms(), .lease_until_ms = watch_paused_until()};
    int rc = pair_look(o, &v, e);
    if (rc != OK) return rc;
    f->state = v.state;
    f->is_held = v.holder[0] != '\0';
    f->is_marked_stopped = v.is_marked_stopped;
    str_copy(f->reason, sizeof f->reason, v.reason);
    for (int i = 0; i < PAIR_NODES; i++)
        look_node(&v.node[i], f);
    read_times(json_get(v.node[0].keeper, "restarts_ms"), f->heals_ms, &f->n_heals);
    bool is_up = v.state == PAIR_READY || v.state == PAIR_SERVING;
    if (is_up) {
        f->does_answer = answers();
        look_requests(f);
    }
    pair_view_release(&v);
    return OK;
}

/* ---- acting ---- */

void watch_notify(const settings *s, const char *code, const char *text) {
    const char *program = settings_get(s, "NOTIFY");
    if (program[0] == '\0') return;
    node_access *here = node_access_local("head", NULL);
    const char *argv[] = {program, code, text, NULL};
    remote_result r;
    err e = ERR_INIT;
    remote_result_init(&r);
    node_command c = {.argv = argv, .timeout_ms = NOTIFY_MS};
    int rc = node_run(here, &c, &r, &e);
    if (rc != OK || r.exit_code != 0)
        LOG(LOG_WARN, "watch", "NOTIFY failed", "code=%d message=\"%s\"", r.exit_code, e.msg);
    remote_result_release(&r);
    node_access_close(here);
}

static void heal(const pair_options *o, watch_result *out) {
    pair_report report;
    err e = ERR_INIT;
    char why[400];
    str_copy(why, sizeof why, out->why);
    watch_notify(o->settings, "heal", why);
    out->heal_code = pair_start(o, NULL, NULL, &report, &e);
    if (out->heal_code == OK) {
        snprintf(out->why, sizeof out->why, "started again (%s): %.400s", report.start_id, why);
    } else {
        snprintf(out->why, sizeof out->why, "the new start failed: %.400s (it was needed: %.300s)",
            e.msg, why);
        watch_notify(o->settings, "failed", out->why);
    }
}

int watch_tick(const pair_options *o, bool is_dry, watch_result *out, err *e) {
    watch_rules rules;
    watch_facts facts;
    watch_memory memory;
    char why[400];
    *out = (watch_result){0};
    watch_rules_of(o->settings, &rules);
    recall(&memory);
    int rc = look(o, &facts, e);
    if (rc != OK) return rc;
    out->action = watch_decide(&rules, &facts, &memory, why);
    if (out->action == WATCH_PROBES && !is_dry) {
        facts.has_probe = true;
        facts.has_probe_passed = probe();
        out->action = watch_decide(&rules, &facts, &memory, why);
    }
    str_copy(out->why, sizeof out->why, why);
    if (is_dry) return OK;
    bool is_news = out->action == WATCH_GIVES_UP && !memory.has_given_up;
    memory.has_given_up |= out->action == WATCH_GIVES_UP;
    /* Remembered before anything is done: a watchdog that is killed must not begin anew. */
    rc = remember(&memory, e);
    if (rc != OK) return rc;
    if (is_news) watch_notify(o->settings, "gave-up", out->why);
    if (out->action == WATCH_HEALS) heal(o, out);
    return OK;
}

/* ---- after a boot ---- */

int watch_boot_wanted(const pair_options *o, err *e) {
    pair_view v;
    buf path = BUF_INIT;
    int rc = pair_look(o, &v, e);
    if (rc != OK) return rc;
    bool is_up = v.state == PAIR_READY || v.state == PAIR_SERVING || v.state == PAIR_STARTING;
    bool is_stopped = v.is_marked_stopped;
    pair_view_release(&v);
    if (is_up) return err_set(e, ERR_CANCELLED, "the pair runs already");
    if (is_stopped) return err_set(e, ERR_CANCELLED, "the pair was stopped on purpose");
    rc = pair_file("versions.json", &path, e);
    if (rc == OK && !file_exists(buf_cstr(&path)))
        rc = err_set(e, ERR_CANCELLED, "the pair has never been ready; start it once yourself");
    if (rc == OK) rc = pair_versions_same(o, e);
    buf_release(&path);
    return rc;
}

static bool has_address(node_access *n, const char *address) {
    buf out = BUF_INIT, want = BUF_INIT;
    buf_printf(&want, " %s/", address);
    bool is = node_tool(n, &out, NULL, "ip", "-o", "addr", "show", "up", NULL) == OK &&
              strstr(buf_cstr(&out), buf_cstr(&want)) != NULL;
    buf_release(&out);
    buf_release(&want);
    return is;
}

static int need_addresses(const pair_options *o, int node, err *e) {
    static const char *const keys[PAIR_NODES][2] = {
        {"HEAD_IP_A", "HEAD_IP_B"}, {"WORKER_IP_A", "WORKER_IP_B"}};
    for (int k = 0; k < 2; k++) {
        const char *address = settings_get(o->settings, keys[node][k]);
        if (address[0] == '\0' || has_address(o->node[node], address)) continue;
        return err_set(e, ERR_BUSY, "the address %s (%s) is not there yet", address, keys[node][k]);
    }
    return OK;
}

int watch_boot_ready(const pair_options *o, err *e) {
    time_t now = (time_t)(clock_wall_ms() / 1000);
    struct tm utc;
    const char *data = settings_get(o->settings, "HEAD_DATA");
    if (gmtime_r(&now, &utc) == NULL || utc.tm_year + 1900 < YEAR_OK)
        return err_set(e, ERR_BUSY, "the time is not set yet");
    if (data[0] != '\0' && !dir_exists(data))
        return err_set(e, ERR_BUSY, "the data folder %s is not there yet", data);
    int rc = need_addresses(o, PAIR_HEAD, e);
    if (rc == OK && o->node[PAIR_WORKER] == NULL)
        rc = err_set(e, ERR_BUSY, "the worker cannot be reached yet: %s",
            o->missing != NULL ? o->missing : "");
    return rc == OK ? need_addresses(o, PAIR_WORKER, e) : rc;
}
