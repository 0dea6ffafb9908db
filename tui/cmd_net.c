/* tandem link show, plan, apply, prove, undo: the cable between the machines. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/privilege.h"
#include "engine/base/str.h"
#include "setup/check.h"
#include "setup/link.h"
#include "setup/paths.h"
#include "tui/cmd_nodes.h"

int cmd_link_facts(cmd_nodes *n, link_node *facts[2], link_plan *plan, err *e) {
    for (int i = 0; i < 2; i++) {
        facts[i] = mem_alloc(sizeof *facts[i]);
        if (n->node[i] == NULL) {
            return err_set(e, i == 1 && n->missing[1][0] != '\0' ? ERR_NET : ERR_NOT_FOUND, "%s",
                n->missing[i][0] != '\0' ? n->missing[i] : CMD_NO_WORKER);
        }
        int rc = link_read(n->node[i], facts[i], e);
        if (rc != OK) return rc;
    }
    const link_node *both[2] = {facts[0], facts[1]};
    const settings *s = n->settings;
    const link_names names = {{{settings_get(s, "HEAD_IF_A"), settings_get(s, "HEAD_IF_B")},
        {settings_get(s, "WORKER_IF_A"), settings_get(s, "WORKER_IF_B")}}};
    link_make_plan(both, &names, plan);
    return OK;
}

typedef struct linked {
    cmd_nodes n;
    link_node *facts[2];
    link_plan plan;
} linked;

static void linked_close(linked *l) {
    mem_free(l->facts[0]);
    mem_free(l->facts[1]);
    cmd_nodes_close(&l->n);
}

/* Negative: not opened, and the exit code is in code. */
static int linked_open(const cmd_args *a, linked *l, int *code) {
    err e = ERR_INIT;
    memset(l, 0, sizeof *l);
    int rc = cmd_nodes_open(a, true, &l->n, &e);
    if (rc == OK) rc = cmd_link_facts(&l->n, l->facts, &l->plan, &e);
    if (rc == OK) return OK;
    *code = cmd_fail(&e);
    if (l->n.missing[1][0] != '\0') *code = EXIT_NODE_UNREACHABLE;
    linked_close(l);
    return rc;
}

static void show_node(json_w *w, const link_node *f, bool is_json) {
    json_w_object(w);
    json_w_kstr(w, "node", f->name);
    json_w_key(w, "interfaces");
    json_w_array(w);
    for (int i = 0; i < f->n_ifs; i++) {
        const link_if *x = &f->ifs[i];
        const link_rdma *d = link_find_rdma(f, x->name);
        json_w_object(w);
        json_w_kstr(w, "name", x->name);
        json_w_kstr(w, "mac", x->mac);
        json_w_kstr(w, "pci", x->pci[0] != '\0' ? x->pci : NULL);
        json_w_kbool(w, "up", x->is_up);
        json_w_ki64(w, "speed_mbps", x->speed_mbps);
        json_w_ki64(w, "mtu", x->mtu);
        json_w_kstr(w, "rdma", d != NULL ? d->dev : NULL);
        json_w_key(w, "addresses");
        json_w_array(w);
        for (int k = 0; k < x->n_addresses; k++)
            json_w_str(w, x->addresses[k]);
        json_w_close(w);
        json_w_close(w);
        if (is_json) continue;
        cmd_printf("%-7s %-16s %-4s %6d Mb/s  mtu %-5d %-14s %s%s\n", f->name, x->name,
            x->is_up ? "up" : "down", (int)x->speed_mbps, (int)x->mtu, d != NULL ? d->dev : "-",
            x->n_addresses > 0 ? x->addresses[0] : "no address", x->n_addresses > 1 ? " ..." : "");
    }
    json_w_close(w);
    json_w_close(w);
}

int cmd_link_show(const cmd_args *a) {
    linked l;
    int code = EXIT_OK;
    if (linked_open(a, &l, &code) != OK) return code;
    buf out = BUF_INIT;
    json_w w;
    bool is_json = cmd_has(a, "json");
    cmd_begin_json(&w, &out);
    json_w_key(&w, "nodes");
    json_w_array(&w);
    for (int i = 0; i < 2; i++)
        show_node(&w, l.facts[i], is_json);
    json_w_close(&w);
    json_w_kstr(&w, "verdict", link_verdict_name(l.plan.verdict));
    json_w_kstr(&w, "reason", l.plan.reason);
    if (is_json)
        cmd_put_json(&w);
    else
        cmd_printf("%s: %s\n", link_verdict_name(l.plan.verdict), l.plan.reason);
    buf_release(&out);
    linked_close(&l);
    return cmd_finish(EXIT_OK);
}

/* The file of one machine and what it changes. */
static int render(linked *l, int i, buf *text, buf *diff, err *e) {
    link_netplan now;
    int rc = link_netplan_read(l->n.node[i], &l->plan, i, &now, e);
    if (rc == OK) rc = link_netplan_render(&l->plan, i, &now, text, e);
    if (rc == OK) rc = link_diff(LINK_NETPLAN_FILE, buf_cstr(&now.ours), buf_cstr(text), diff);
    link_netplan_release(&now);
    return rc;
}

static void plan_json(json_w *w, const linked *l, const buf diff[2]) {
    json_w_kstr(w, "verdict", link_verdict_name(l->plan.verdict));
    json_w_kstr(w, "reason", l->plan.reason);
    json_w_kbool(w, "needs_change", l->plan.needs_change);
    json_w_kbool(w, "needs_consent", l->plan.needs_consent);
    json_w_key(w, "rails");
    json_w_array(w);
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < LINK_RAILS; r++) {
            const link_rail *x = &l->plan.rail[i][r];
            json_w_object(w);
            json_w_kstr(w, "node", i == 0 ? "head" : "worker");
            json_w_kstr(w, "rail", r == 0 ? "A" : "B");
            json_w_kstr(w, "netdev", x->netdev);
            json_w_kstr(w, "rdma", x->rdma[0] != '\0' ? x->rdma : NULL);
            json_w_kstr(w, "now", x->now[0] != '\0' ? x->now : NULL);
            json_w_kstr(w, "planned", x->address);
            json_w_ki64(w, "mtu_now", x->mtu_now);
            json_w_close(w);
        }
    }
    json_w_close(w);
    json_w_key(w, "diffs");
    json_w_array(w);
    json_w_str(w, buf_cstr(&diff[0]));
    json_w_str(w, buf_cstr(&diff[1]));
    json_w_close(w);
}

static int show_plan(const cmd_args *a, linked *l, buf text[2], buf diff[2], err *e) {
    int rc = OK;
    for (int i = 0; i < 2 && rc == OK && l->plan.needs_change && l->plan.physical_ports_used > 0;
         i++)
        rc = render(l, i, &text[i], &diff[i], e);
    if (rc != OK) return rc;
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        plan_json(&w, l, diff);
        cmd_put_json(&w);
        buf_release(&out);
        return OK;
    }
    cmd_printf("%s: %s\n", link_verdict_name(l->plan.verdict), l->plan.reason);
    for (int i = 0; i < 2 && diff[i].len > 0; i++) {
        cmd_printf("\n%s:\n", i == 0 ? "head" : "worker");
        cmd_put_text(buf_cstr(&diff[i]), diff[i].len);
    }
    return OK;
}

int cmd_link_plan(const cmd_args *a) {
    linked l;
    buf text[2] = {BUF_INIT, BUF_INIT}, diff[2] = {BUF_INIT, BUF_INIT};
    err e = ERR_INIT;
    int code = EXIT_OK;
    if (linked_open(a, &l, &code) != OK) return code;
    int rc = show_plan(a, &l, text, diff, &e);
    code = rc != OK                          ? cmd_fail(&e)
           : l.plan.physical_ports_used == 0 ? EXIT_REFUSED
           : l.plan.needs_change             ? EXIT_WARNINGS
                                             : EXIT_OK;
    for (int i = 0; i < 2; i++) {
        buf_release(&text[i]);
        buf_release(&diff[i]);
    }
    linked_close(&l);
    return cmd_finish(code);
}

static void say_step(void *ctx, const char *line) {
    (void)ctx;
    cmd_put_text(line, strlen(line));
    cmd_puts("\n");
    cmd_flush();
}

/* What the settings must know afterwards. */
static int keep_rails(const linked *l, err *e) {
    static const char *const who[] = {"HEAD", "WORKER"};
    buf path = BUF_INIT, name = BUF_INIT;
    int rc = paths_settings_file(&path, e);
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < LINK_RAILS; r++) {
            const link_rail *x = &l->plan.rail[i][r];
            char address[24];
            str_copy(address, sizeof address, x->address);
            address[strcspn(address, "/")] = '\0';
            const char *const values[3] = {address, x->netdev, x->rdma};
            static const char *const kinds[3] = {"IP", "IF", "HCA"};
            for (int k = 0; k < 3 && rc == OK; k++) {
                if (values[k][0] == '\0') continue;
                buf_reset(&name);
                rc = buf_printf(&name, "%s_%s_%c", who[i], kinds[k], 'A' + r);
                if (rc == OK)
                    rc = settings_file_set(buf_cstr(&path), buf_cstr(&name), values[k], e);
            }
        }
    }
    buf_release(&path);
    buf_release(&name);
    return rc;
}

static int apply_both(linked *l, const buf text[2], const link_apply *how, err *e) {
    /* The worker first: while it is being changed the head still works as it did. */
    for (int i = 1; i >= 0; i--) {
        buf undo = BUF_INIT;
        int rc = link_netplan_apply(l->n.node[i], &l->plan, i, buf_cstr(&text[i]), how, &undo, e);
        if (rc == OK && undo.len > 0 && !how->is_dry) {
            cmd_printf("%s: to go back: sudo sh %s\n", i == 0 ? "head" : "worker", buf_cstr(&undo));
        }
        buf_release(&undo);
        if (rc != OK) return rc;
    }
    return OK;
}

static int apply(const cmd_args *a, linked *l, buf text[2], err *e) {
    link_apply how = {.sudo = cmd_sudo_terminal(cmd_has(a, "yes")),
        .say = say_step,
        .is_dry = cmd_has(a, "dry-run")};
    if (!l->plan.needs_change) return how.is_dry ? OK : keep_rails(l, e);
    if (l->plan.physical_ports_used == 0) return err_set(e, ERR_NOT_FOUND, "%s", l->plan.reason);
    if (l->plan.needs_consent && !how.is_dry && !cmd_has(a, "replace")) {
        return err_set(e, ERR_EXISTS,
            "addresses that are set would be replaced; --replace says that this is wanted");
    }
    if (!how.is_dry && !cmd_has(a, "yes") && !cmd_confirm("Change both machines as shown?")) {
        return err_set(e, ERR_CANCELLED, "nothing was changed");
    }
    int rc = apply_both(l, text, &how, e);
    return rc == OK && !how.is_dry ? keep_rails(l, e) : rc;
}

int cmd_link_apply(const cmd_args *a) {
    linked l;
    buf text[2] = {BUF_INIT, BUF_INIT}, diff[2] = {BUF_INIT, BUF_INIT};
    err e = ERR_INIT;
    int code = EXIT_OK;
    if (!cmd_has(a, "dry-run") && privilege_refuse_root("the set-up of the cable", &e) != OK)
        return cmd_fail(&e);
    if (linked_open(a, &l, &code) != OK) return code;
    int rc = show_plan(a, &l, text, diff, &e);
    if (rc == OK) rc = apply(a, &l, text, &e);
    code = rc == OK ? EXIT_OK : cmd_fail(&e);
    if (rc == ERR_CANCELLED) code = EXIT_ENDED_BY_USER;
    for (int i = 0; i < 2; i++) {
        buf_release(&text[i]);
        buf_release(&diff[i]);
    }
    linked_close(&l);
    return cmd_finish(code);
}
