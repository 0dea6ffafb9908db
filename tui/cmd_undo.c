/* tandem undo: what set-up changed, and taking it back. */
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "setup/step.h"
#include "setup/undo.h"
#include "tui/cmd_nodes.h"
#include "tui/cmd_setup_talk.h"

typedef struct undoing {
    const cmd_args *a;
    cmd_nodes n;
    undo_list list;
    buf path, program;
    int n_done, n_failed;
} undoing;

static int open_list(const cmd_args *a, undoing *u, err *e) {
    *u = (undoing){.a = a};
    int rc = undo_journal_path(&u->path, e);
    return rc == OK ? undo_load(&u->list, buf_cstr(&u->path), e) : rc;
}

static void close_list(undoing *u) {
    undo_list_release(&u->list);
    buf_release(&u->path);
    buf_release(&u->program);
}

static void put_entry(const undo_entry *x, json_w *w, bool is_json) {
    char date[32];
    if (!is_json) {
        cmd_printf("%4lld  %-8s %-7s %-10s %s  ", (long long)x->id, x->is_undone ? "undone" : "",
            x->is_worker ? "worker" : "head", undo_kind_name(x->kind),
            cmd_date_text((int64_t)x->time_ms, date));
        cmd_put_text(x->what, strlen(x->what));
        if (x->path[0] != '\0') {
            cmd_puts(", ");
            cmd_put_text(x->path, strlen(x->path));
        }
        cmd_puts("\n");
        return;
    }
    json_w_object(w);
    json_w_ki64(w, "id", x->id);
    json_w_kstr(w, "step", x->step);
    json_w_kstr(w, "node", x->is_worker ? "worker" : "head");
    json_w_kstr(w, "kind", undo_kind_name(x->kind));
    json_w_kstr(w, "what", x->what);
    json_w_kstr(w, "path", x->path);
    json_w_ku64(w, "time_ms", x->time_ms);
    json_w_kbool(w, "undone", x->is_undone);
    json_w_close(w);
}

int cmd_undo_list(const cmd_args *a) {
    undoing u;
    err e = ERR_INIT;
    buf out = BUF_INIT;
    json_w w;
    bool is_json = cmd_has(a, "json");
    if (open_list(a, &u, &e) != OK) {
        close_list(&u);
        return cmd_fail(&e);
    }
    cmd_begin_json(&w, &out);
    json_w_key(&w, "changes");
    json_w_array(&w);
    for (size_t i = 0; i < u.list.n; i++)
        put_entry(&u.list.entries[i], &w, is_json);
    json_w_close(&w);
    if (is_json) cmd_put_json(&w);
    if (!is_json && u.list.n == 0) cmd_note("set-up has changed nothing");
    buf_release(&out);
    close_list(&u);
    return cmd_finish(EXIT_OK);
}

/* One of our own commands, for changes that a command takes back. */
static int run_own(void *ctx, const char *words, err *e) {
    undoing *u = ctx;
    char text[200];
    const char *argv[12] = {buf_cstr(&u->program)};
    char *save = NULL;
    int n = 1;
    str_copy(text, sizeof text, words);
    for (char *w = strtok_r(text, " ", &save); w != NULL && n < 11; w = strtok_r(NULL, " ", &save))
        argv[n++] = w;
    node_command c = {.argv = argv, .timeout_ms = 10 * 60 * 1000};
    remote_result r;
    node_access *here = node_access_local("head", NULL);
    remote_result_init(&r);
    int rc = node_run(here, &c, &r, e);
    if (rc == OK && r.exit_code != 0)
        rc = err_set(e, ERR_IO, "tandem %s: %.*s", words, (int)strcspn(buf_cstr(&r.err), "\n"),
            buf_cstr(&r.err));
    remote_result_release(&r);
    node_access_close(here);
    return rc;
}

static bool is_wanted(const cmd_args *a, const undo_entry *x) {
    char id[24];
    if (x->is_undone) return false;
    if (x->kind == UNDO_DATA && !cmd_has(a, "data")) return false;
    if (a->n_args == 0) return true;
    snprintf(id, sizeof id, "%lld", (long long)x->id);
    for (int i = 0; i < a->n_args; i++) {
        if (str_eq(a->args[i], id)) return true;
    }
    return false;
}

static void undo_entry_of(undoing *u, const undo_entry *x, const undo_with *w) {
    buf said = BUF_INIT;
    err e = ERR_INIT;
    if (undo_apply(x, w, &said, &e) == OK) {
        u->n_done++;
        setup_put_line("  ", buf_cstr(&said));
    } else {
        u->n_failed++;
        cmd_note("change %lld, %s: %s", (long long)x->id, x->what, e.msg);
    }
    cmd_flush();
    buf_release(&said);
}

/* The newest first: what came later stands on what came before. */
static int apply_wanted(undoing *u, err *e) {
    int rc = cmd_nodes_open(u->a, true, &u->n, e);
    if (rc == OK) rc = setup_program(&u->program, e);
    if (rc != OK) return rc;
    const undo_with w = {.journal = buf_cstr(&u->path),
        .node = {u->n.node[0], u->n.node[1]},
        .missing = u->n.missing[1],
        .sudo = cmd_sudo_terminal(true),
        .command = run_own,
        .ctx = u,
        .is_forced = cmd_has(u->a, "force")};
    for (size_t i = u->list.n; i-- > 0 && !atomic_load(cmd_stop_flag());) {
        if (is_wanted(u->a, &u->list.entries[i])) undo_entry_of(u, &u->list.entries[i], &w);
    }
    cmd_nodes_close(&u->n);
    return OK;
}

/* The first of the named changes that set-up never made, or NULL. */
static const char *unknown_id(const undoing *u) {
    for (int i = 0; i < u->a->n_args; i++) {
        bool is_known = false;
        char id[24];
        for (size_t k = 0; k < u->list.n && !is_known; k++) {
            snprintf(id, sizeof id, "%lld", (long long)u->list.entries[k].id);
            is_known = str_eq(u->a->args[i], id);
        }
        if (!is_known) return u->a->args[i];
    }
    return NULL;
}

static int count_wanted(const undoing *u) {
    int n = 0;
    for (size_t i = 0; i < u->list.n; i++)
        n += is_wanted(u->a, &u->list.entries[i]);
    return n;
}

int cmd_undo_apply(const cmd_args *a) {
    undoing u;
    err e = ERR_INIT;
    int code = EXIT_OK;
    cmd_stop_fd();
    if (open_list(a, &u, &e) != OK) {
        close_list(&u);
        return cmd_fail(&e);
    }
    if (unknown_id(&u) != NULL) {
        err_set(&e, ERR_NOT_FOUND, "there is no change %.40s; tandem undo list shows all",
            unknown_id(&u));
        close_list(&u);
        return cmd_fail(&e);
    }
    int n = count_wanted(&u);
    if (n == 0) cmd_note("there is nothing to take back");
    for (size_t i = u.list.n; i-- > 0 && n > 0 && !cmd_has(a, "yes");) {
        if (is_wanted(a, &u.list.entries[i])) put_entry(&u.list.entries[i], NULL, false);
    }
    bool is_dry = cmd_has(a, "dry-run");
    if (n > 0 && !is_dry && !cmd_has(a, "yes") && !setup_confirm("Take these back? [yes/no] ")) {
        code = EXIT_ENDED_BY_USER;
    } else if (n > 0 && !is_dry) {
        if (apply_wanted(&u, &e) != OK) code = cmd_fail(&e);
        if (code == EXIT_OK && u.n_failed > 0) code = EXIT_REFUSED;
        if (code == EXIT_OK || u.n_failed > 0)
            cmd_printf("%d taken back, %d left\n", u.n_done, u.n_failed);
    }
    close_list(&u);
    return cmd_finish(code);
}
