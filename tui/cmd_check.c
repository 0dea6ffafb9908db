/* tandem check and tandem config import. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/check.h"
#include "setup/link_prove.h"
#include "setup/manifest.h"
#include "setup/need.h"
#include "setup/paths.h"
#include "setup/settings_import.h"
#include "tui/cmd_nodes.h"

static int list_rows(bool is_json) {
    size_t n = 0;
    const check_row *rows = check_rows(&n);
    static const char *const scopes[] = {"each", "head", "pair"};
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_key(&w, "checks");
    json_w_array(&w);
    for (size_t i = 0; i < n; i++) {
        if (!is_json) {
            cmd_printf("%-13s %-5s %s%s\n", rows[i].id, scopes[rows[i].scope], rows[i].title,
                rows[i].is_heavy ? " (runs alone: makes load or traffic)" : "");
            continue;
        }
        json_w_object(&w);
        json_w_kstr(&w, "id", rows[i].id);
        json_w_kstr(&w, "scope", scopes[rows[i].scope]);
        json_w_kstr(&w, "title", rows[i].title);
        json_w_kstr(&w, "why", rows[i].why);
        json_w_kstr(&w, "source", rows[i].source);
        json_w_kbool(&w, "heavy", rows[i].is_heavy);
        json_w_close(&w);
    }
    json_w_close(&w);
    if (is_json) cmd_put_json(&w);
    buf_release(&out);
    return cmd_finish(EXIT_OK);
}

typedef struct showing {
    bool is_json;
    json_w *w;
    const char *baseline; /* file to save values in, NULL: do not */
    int n_saved;
    err e;
} showing;

static int save(showing *s, const check_result *r) {
    if (s->baseline == NULL || !r->has_value || r->status == CHECK_STATUS_FAIL) return OK;
    check_baseline b = {.value = r->value, .wall_ms = clock_wall_ms()};
    s->n_saved++;
    return check_baseline_put(s->baseline, r->id, r->node, &b, &s->e);
}

static void put_line(const char *label, const char *text) {
    if (text[0] == '\0') return;
    cmd_printf("        %s", label);
    cmd_put_text(text, strlen(text));
    cmd_puts("\n");
}

static int show(void *ctx, const check_row *row, const check_result *r) {
    showing *s = ctx;
    if (s->is_json) {
        check_write_json(s->w, row, r);
        return save(s, r);
    }
    cmd_printf("%-7s %-11s %-6s ", check_status_name(r->status), r->id, r->node);
    cmd_put_text(r->fact, strlen(r->fact));
    cmd_puts("\n");
    if (r->status != CHECK_STATUS_PASS && r->status != CHECK_STATUS_SKIP)
        put_line("why: ", r->reason);
    put_line("do:  ", r->remedy);
    cmd_flush();
    return save(s, r);
}

static int exit_code(check_status worst, const cmd_nodes *n) {
    if (worst == CHECK_STATUS_FAIL) return EXIT_REFUSED;
    if (n->missing[1][0] != '\0') return EXIT_NODE_UNREACHABLE;
    return worst == CHECK_STATUS_WARN || worst == CHECK_STATUS_UNKNOWN ? EXIT_WARNINGS : EXIT_OK;
}

/* Beside this program, NULL when it is not there. */
static const char *beside(const char *name, buf *path) {
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return NULL;
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash == NULL) return NULL;
    *slash = '\0';
    buf_reset(path);
    if (buf_printf(path, "%s/%s", self, name) != OK || !file_exists(buf_cstr(path))) return NULL;
    return buf_cstr(path);
}

/* How much of the profile's files is missing on each machine; nothing when no profile is set, or its
 * manifest is not there yet. */
static void fill_need(const cmd_nodes *n, check_options *o) {
    buf config = BUF_INIT, own = BUF_INIT;
    manifest m;
    const char *profile = settings_get(n->settings, "PROFILE");
    manifest_init(&m);
    int rc = profile[0] != '\0' ? paths_config(&config, NULL) : ERR_NOT_FOUND;
    if (rc == OK) rc = path_join(&own, buf_cstr(&config), "manifests");
    if (rc == OK) rc = manifest_find(&m, profile, buf_cstr(&own), NULL);
    for (int i = 0; i < 2 && rc == OK; i++) {
        need x;
        if (n->node[i] == NULL || node_access_is_fixture(n->node[i])) continue;
        rc = need_find(n->node[i], n->settings, &m, i, &x, NULL);
        if (rc != OK) continue;
        o->need_bytes[i] = x.files_bytes + x.prepared_bytes;
        o->files[i] = (check_files){.n_files = x.n_files, .n_verified = x.n_verified};
        str_copy(o->files[i].wrong, sizeof o->files[i].wrong, x.wrong);
        o->has_need = true;
        o->need_text = "model files and prepared files";
    }
    manifest_release(&m);
    buf_release(&config);
    buf_release(&own);
}

static int run_checks(const cmd_args *a, cmd_nodes *n, int i_node, err *e, int *code) {
    buf state = BUF_INIT, engine = BUF_INIT, helper = BUF_INIT, out = BUF_INIT;
    json_w w;
    showing s = {.is_json = cmd_has(a, "json"), .w = &w};
    check_status worst = CHECK_STATUS_PASS;
    int rc = paths_state(&state, e);
    if (rc == OK && cmd_has(a, "save")) rc = paths_make_private(buf_cstr(&state), e);
    if (rc == OK) rc = buf_puts(&state, "/baselines.json");
    if (cmd_has(a, "save")) s.baseline = buf_cstr(&state);
    check_options o = {.node = {n->node[0], n->node[1]},
        .settings = n->settings,
        .baseline = buf_cstr(&state),
        .engine = beside("tandemd", &engine),
        .is_heavy = cmd_has(a, "all")};
    if (n->missing[1][0] != '\0') o.missing[1] = n->missing[1];
    fill_need(n, &o);
    link_prove_helper(beside("tandem-node", &helper));
    cmd_begin_json(&w, &out);
    json_w_key(&w, "checks");
    json_w_array(&w);
    if (rc == OK) {
        check_context *c = check_context_new(&o);
        rc = check_run(c, a->n_args > 0 ? a->args[0] : NULL, i_node, show, &s, &worst, e);
        check_context_free(c);
        if (s.e.code != OK && rc != OK) *e = s.e;
    }
    json_w_close(&w);
    json_w_kstr(&w, "worst", check_status_name(worst));
    if (rc == OK && s.is_json) cmd_put_json(&w);
    if (rc == OK && s.baseline != NULL) cmd_note("%d values are kept in %s", s.n_saved, s.baseline);
    *code = exit_code(worst, n);
    buf_release(&state);
    buf_release(&engine);
    buf_release(&helper);
    buf_release(&out);
    return rc;
}

int cmd_check(const cmd_args *a) {
    cmd_nodes n;
    err e = ERR_INIT;
    const char *which = cmd_value(a, "node");
    int i_node = which == NULL || str_eq(which, "both") ? -1 : str_eq(which, "worker") ? 1 : 0;
    if (cmd_has(a, "list")) return list_rows(cmd_has(a, "json"));
    if (which != NULL && i_node == 0 && !str_eq(which, "head")) {
        err_set(&e, ERR_ARG, "\"%.40s\" is no machine; name head, worker or both", which);
        return cmd_fail_usage(&e);
    }
    if (a->n_args > 0 && check_find(a->args[0]) == NULL) {
        err_set(&e, ERR_ARG, "there is no check %.40s; tandem check --list shows all", a->args[0]);
        return cmd_fail_usage(&e);
    }
    int code = EXIT_OK;
    if (cmd_nodes_open(a, i_node != 0, &n, &e) != OK) return cmd_fail(&e);
    int rc = run_checks(a, &n, i_node, &e, &code);
    cmd_nodes_close(&n);
    return rc == OK ? cmd_finish(code) : cmd_fail(&e);
}

/* The steps of the proof in their order; a new boot makes it stale, so the boots are kept. */
static const char *const PROOF[] = {"N-inventory", "N-half", "N-mtu", "N-gid", "N-peer", "N-route",
    "N-latency", "N-tcp", "N-rdma", "N-collective", "N-errors", "N-env"};

static int keep_boots(cmd_nodes *n, const char *baseline, err *e) {
    int rc = OK;
    for (int i = 0; i < 2 && rc == OK; i++) {
        buf boot = BUF_INIT;
        check_baseline b = {.wall_ms = clock_wall_ms()};
        if (n->node[i] != NULL &&
            node_read_line(n->node[i], "/proc/sys/kernel/random/boot_id", &boot, NULL) == OK) {
            str_copy(b.text, sizeof b.text, buf_cstr(&boot));
            rc = check_baseline_put(baseline, "V8", i == 0 ? "head" : "worker", &b, e);
        }
        buf_release(&boot);
    }
    return rc;
}

static int prove(const cmd_args *a, cmd_nodes *n, check_status *worst, err *e) {
    buf state = BUF_INIT, helper = BUF_INIT, engine = BUF_INIT, out = BUF_INIT;
    json_w w;
    showing s = {.is_json = cmd_has(a, "json"), .w = &w};
    int rc = paths_state(&state, e);
    if (rc == OK) rc = paths_make_private(buf_cstr(&state), e);
    if (rc == OK) rc = buf_puts(&state, "/baselines.json");
    s.baseline = buf_cstr(&state);
    check_options o = {.node = {n->node[0], n->node[1]},
        .settings = n->settings,
        .missing = {NULL, n->missing[1][0] != '\0' ? n->missing[1] : NULL},
        .engine = beside("tandemd", &engine),
        .is_heavy = true};
    link_prove_helper(beside("tandem-node", &helper));
    cmd_begin_json(&w, &out);
    json_w_key(&w, "checks");
    json_w_array(&w);
    check_context *c = check_context_new(&o);
    for (size_t k = 0; k < sizeof PROOF / sizeof PROOF[0] && rc == OK; k++) {
        check_status one;
        rc = check_run(c, PROOF[k], -1, show, &s, &one, e);
        *worst = check_worse(*worst, one);
    }
    check_context_free(c);
    json_w_close(&w);
    json_w_kstr(&w, "worst", check_status_name(*worst));
    if (rc == OK && s.is_json) cmd_put_json(&w);
    if (rc == OK && *worst != CHECK_STATUS_FAIL) rc = keep_boots(n, s.baseline, e);
    buf_release(&state);
    buf_release(&helper);
    buf_release(&engine);
    buf_release(&out);
    return rc;
}

int cmd_link_prove(const cmd_args *a) {
    cmd_nodes n;
    err e = ERR_INIT;
    check_status worst = CHECK_STATUS_PASS;
    if (cmd_nodes_open(a, true, &n, &e) != OK) return cmd_fail(&e);
    /* Without a second machine there is no cable, and nothing that could be proved. */
    bool is_alone = n.node[1] == NULL && n.missing[1][0] == '\0';
    int rc = is_alone ? err_set(&e, ERR_NOT_FOUND, CMD_NO_WORKER) : prove(a, &n, &worst, &e);
    int code = rc == OK ? exit_code(worst, &n) : cmd_fail(&e);
    cmd_nodes_close(&n);
    return cmd_finish(code);
}

/* config import */

static const char *const STATES[] = {"understood", "ignored", "not mapped"};

static void put_report(const import_report *r, bool is_json) {
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_key(&w, "lines");
    json_w_array(&w);
    for (size_t i = 0; i < r->n; i++) {
        const import_line *l = &r->lines[i];
        if (is_json) {
            json_w_object(&w);
            json_w_ki64(&w, "line", l->line);
            json_w_kstr(&w, "state", STATES[l->state]);
            json_w_kstr(&w, "name", l->name);
            json_w_kstr(&w, "key", l->key);
            json_w_kstr(&w, "value", l->key != NULL ? l->value : NULL);
            json_w_kstr(&w, "note", l->note[0] != '\0' ? l->note : NULL);
            json_w_close(&w);
            continue;
        }
        cmd_printf("%4d %-10s ", l->line, STATES[l->state]);
        cmd_put_text(l->name, strlen(l->name));
        if (l->key != NULL) {
            cmd_printf(" -> %s=", l->key);
            cmd_put_text(l->value, strlen(l->value));
        }
        if (l->note[0] != '\0') {
            cmd_puts("; ");
            cmd_put_text(l->note, strlen(l->note));
        }
        cmd_puts("\n");
    }
    json_w_close(&w);
    if (is_json) cmd_put_json(&w);
    buf_release(&out);
}

static int take_report(const import_report *r, err *e) {
    buf path = BUF_INIT;
    int rc = paths_settings_file(&path, e);
    for (size_t i = 0; i < r->n && rc == OK; i++) {
        const import_line *l = &r->lines[i];
        if (l->state == IMPORT_UNDERSTOOD)
            rc = settings_file_set(buf_cstr(&path), l->key, l->value, e);
    }
    if (rc == OK) cmd_note("written to %s", buf_cstr(&path));
    buf_release(&path);
    return rc;
}

int cmd_config_import(const cmd_args *a) {
    import_report r;
    err e = ERR_INIT;
    if (settings_import_file(a->args[0], &r, &e) != OK) return cmd_fail(&e);
    put_report(&r, cmd_has(a, "json"));
    int code = EXIT_OK;
    bool is_taken =
        cmd_has(a, "yes") || (!cmd_has(a, "json") && cmd_confirm("Set what was understood?"));
    if (is_taken && take_report(&r, &e) != OK) code = cmd_fail(&e);
    if (!is_taken) cmd_note("nothing was changed; --yes sets what was understood");
    import_report_release(&r);
    return cmd_finish(code);
}
