/* Machines, Cable, Network: what is there, the addresses, and the proof with traffic. */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/link.h"
#include "setup/link_prove.h"
#include "setup/paths.h"
#include "setup/step_internal.h"

/* --- Machines --- */

int step_machines_inspect(flow *f, step_view *v, err *e) {
    int rc = flow_connect(f, e);
    const check_options none = {.settings = f->s};
    if (rc == OK)
        rc = flow_checks(f, v,
            "V1 V2 V3 V4 V5 V7 V8 K1 M1 M2 M3 M4 M5 M6 M7 M8 M9 P2 P3 P4 P6 T1 T2 U2 U3 U4 U6 S1",
            &none, e);
    if (rc != OK) return rc;
    int n_warn = 0, n_fail = 0;
    for (int i = 0; i < v->n_rows; i++) {
        n_warn +=
            v->rows[i].status == CHECK_STATUS_WARN || v->rows[i].status == CHECK_STATUS_UNKNOWN;
        n_fail += v->rows[i].status == CHECK_STATUS_FAIL;
    }
    view_done(v, "%d checks, %d warnings, %d failures", v->n_rows, n_warn, n_fail);
    return OK;
}

/* --- Cable --- */

typedef struct cable {
    link_node *facts[2];
    link_plan plan;
} cable;

static void cable_release(cable *c) {
    mem_free(c->facts[0]);
    mem_free(c->facts[1]);
}

static int cable_read(flow *f, cable *c, err *e) {
    *c = (cable){0};
    int rc = flow_connect(f, e);
    for (int i = 0; i < 2 && rc == OK; i++) {
        c->facts[i] = mem_alloc(sizeof *c->facts[i]);
        node_forget(flow_checked(f, i));
        rc = link_read(flow_checked(f, i), c->facts[i], e);
    }
    if (rc != OK) return rc;
    const link_node *both[2] = {c->facts[0], c->facts[1]};
    const settings *s = f->s;
    const link_names names = {{{settings_get(s, "HEAD_IF_A"), settings_get(s, "HEAD_IF_B")},
        {settings_get(s, "WORKER_IF_A"), settings_get(s, "WORKER_IF_B")}}};
    link_make_plan(both, &names, &c->plan);
    return OK;
}

static int render(flow *f, const cable *c, int i, buf *text, buf *diff, err *e) {
    link_netplan now;
    node_access *n = flow_checked(f, i);
    int rc = link_netplan_read(n, &c->plan, i, &now, e);
    if (rc == OK) rc = link_netplan_render(&c->plan, i, &now, text, e);
    if (rc == OK && diff != NULL)
        rc = link_diff(LINK_NETPLAN_FILE, buf_cstr(&now.ours), buf_cstr(text), diff);
    link_netplan_release(&now);
    return rc;
}

static void add_rails(step_view *v, const cable *c) {
    for (int r = 0; r < LINK_RAILS; r++) {
        const link_rail *a = &c->plan.rail[0][r], *b = &c->plan.rail[1][r];
        char label[32];
        snprintf(label, sizeof label, "rail %c", 'A' + r);
        step_row *row = view_row(v, label, CHECK_STATUS_PASS);
        snprintf(row->head, sizeof row->head, "%.20s %.22s mtu %d", a->netdev,
            a->now[0] != '\0' ? a->now : "-", (int)a->mtu_now);
        snprintf(row->worker, sizeof row->worker, "%.20s %.22s mtu %d", b->netdev,
            b->now[0] != '\0' ? b->now : "-", (int)b->mtu_now);
        snprintf(row->fact, sizeof row->fact, "rail %c: head %s -> %s, worker %s -> %s", 'A' + r,
            a->now[0] != '\0' ? a->now : "no address", a->address,
            b->now[0] != '\0' ? b->now : "no address", b->address);
    }
}

/* What is wrong in the words of the remedies, so that the plan explains itself. */
static void name_fault(const cable *c, step_view *v) {
    const link_plan *p = &c->plan;
    bool is_mtu = false;
    int64_t mtu[2][2];
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < LINK_RAILS; r++) {
            mtu[i][r] = p->rail[i][r].mtu_now;
            is_mtu = is_mtu || mtu[i][r] != mtu[0][0];
        }
    }
    if (is_mtu) {
        snprintf(v->message.what, sizeof v->message.what,
            "Large frames are not on everywhere: head %d and %d, worker %d and %d; 9000 is needed on "
            "all.",
            (int)mtu[0][0], (int)mtu[0][1], (int)mtu[1][0], (int)mtu[1][1]);
        str_copy(
            v->message.why, sizeof v->message.why, "Small pings work then and big transfers fail.");
        str_copy(v->message.next, sizeof v->message.next,
            "Apply sets 9000 on both machines; it is shown below and can be undone.");
    } else if (p->is_half) {
        view_message(v, "Only one of the two halves of the port has an address.",
            "Each half carries half of the speed.",
            "Apply adds the second address on both Sparks.");
    }
}

int step_cable_inspect(flow *f, step_view *v, err *e) {
    cable c;
    int rc = cable_read(f, &c, e);
    if (rc == OK && c.plan.physical_ports_used == 0) {
        step_row *r = view_row(v, "cable", CHECK_STATUS_FAIL);
        view_fact(r, "%s", c.plan.reason);
        str_copy(r->reason, sizeof r->reason, "All bytes between the two engines go over it.");
        str_copy(r->remedy, sizeof r->remedy,
            "Plug the cable into the same port of both Sparks, wait ten seconds and press Again; "
            "then try the other port, then another cable.");
    } else if (rc == OK) {
        add_rails(v, &c);
        if (!c.plan.needs_change) {
            view_done(v, "both halves of the port have an address and large frames");
        } else {
            name_fault(&c, v);
            str_copy(v->summary, sizeof v->summary, c.plan.reason);
        }
    }
    /* The worker first: while it is being changed the head still works as it did. */
    for (int i = 1; i >= 0 && rc == OK && c.plan.needs_change && v->worst != CHECK_STATUS_FAIL;
         i--) {
        buf text = BUF_INIT, diff = BUF_INIT;
        rc = render(f, &c, i, &text, &diff, e);
        const plan_action a = {.step = (char *)"cable",
            .node = i == 0 ? (char *)"head" : (char *)"worker",
            .what =
                c.plan.needs_consent
                    ? (char *)"replace the addresses that are set; netplan apply, with a way back "
                              "after 120 s"
                    : (char *)"write the netplan file; netplan apply, with a way back after 120 s",
            .command = (char *)buf_cstr(&diff),
            .undo = (char *)"the file before comes back and netplan apply runs",
            .is_root = true};
        if (rc == OK) plan_add(&v->plan, &a);
        buf_release(&text);
        buf_release(&diff);
    }
    cable_release(&c);
    return rc;
}

static void say_line(void *ctx, const char *line) {
    flow_say(ctx, "%s", line);
}

/* What the settings must know afterwards. */
static int keep_rails(flow *f, const cable *c, err *e) {
    static const char *const who[] = {"HEAD", "WORKER"}, *const kinds[3] = {"IP", "IF", "HCA"};
    int rc = OK;
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < LINK_RAILS; r++) {
            const link_rail *x = &c->plan.rail[i][r];
            char address[24], name[24];
            str_copy(address, sizeof address, x->address);
            address[strcspn(address, "/")] = '\0';
            const char *const values[3] = {address, x->netdev, x->rdma};
            for (int k = 0; k < 3 && rc == OK; k++) {
                if (values[k][0] == '\0') continue;
                snprintf(name, sizeof name, "%s_%s_%c", who[i], kinds[k], 'A' + r);
                rc = flow_setting_write(f, "cable", name, values[k], e);
            }
        }
    }
    return rc;
}

static int apply_one(flow *f, const cable *c, int i, err *e) {
    const link_apply how = {.sudo = flow_sudo(f), .say = say_line, .ctx = f};
    buf text = BUF_INIT, script = BUF_INIT;
    int rc = render(f, c, i, &text, NULL, e);
    if (rc == OK)
        rc = link_netplan_apply(flow_checked(f, i), &c->plan, i, buf_cstr(&text), &how, &script, e);
    undo_entry x = {.kind = UNDO_NETPLAN,
        .is_worker = i == 1,
        .step = (char *)"cable",
        .what = (char *)"network settings in " LINK_NETPLAN_FILE,
        .path = script.data,
        .text = (char *)""};
    if (rc == OK) rc = flow_undo_add(f, &x, e);
    buf_release(&text);
    buf_release(&script);
    return rc;
}

int step_cable_apply(flow *f, const step_view *v, err *e) {
    cable c;
    (void)v;
    int rc = cable_read(f, &c, e);
    if (rc == OK && c.plan.physical_ports_used == 0)
        rc = err_set(e, ERR_NOT_FOUND, "%s", c.plan.reason);
    for (int i = 1; i >= 0 && rc == OK && c.plan.needs_change; i--)
        rc = apply_one(f, &c, i, e);
    cable_release(&c);
    return rc;
}

int step_cable_prove(flow *f, step_view *v, err *e) {
    cable c;
    int rc = step_cable_inspect(f, v, e);
    if (rc != OK || v->plan.n > 0 || v->worst == CHECK_STATUS_FAIL) return rc;
    rc = cable_read(f, &c, e);
    if (rc == OK) rc = keep_rails(f, &c, e);
    const check_options none = {.settings = f->s};
    if (rc == OK)
        rc = flow_checks(f, v, "N-inventory N-half N-mtu N-gid N-peer N-route N-env", &none, e);
    cable_release(&c);
    return rc;
}

/* --- Network --- */

int step_network_inspect(flow *f, step_view *v, err *e) {
    static const char *const keys[] = {"HEAD_IP_A", "HEAD_IP_B", "WORKER_IP_A", "WORKER_IP_B"};
    int rc = flow_connect(f, e);
    for (int i = 0; i < 4 && rc == OK; i++) {
        step_row *r = view_row(v, keys[i], CHECK_STATUS_PASS);
        view_fact(r, "%s", settings_get(f->s, keys[i]));
    }
    const plan_action a = {.step = (char *)"network",
        .node = (char *)"head",
        .what = (char *)"make traffic on both rails for about half a minute; nothing is changed",
        .command = (char *)"tandem link prove",
        .undo = (char *)""};
    if (rc == OK) plan_add(&v->plan, &a);
    str_copy(v->summary, sizeof v->summary, "the cable is measured with real traffic");
    return rc;
}

/* The measuring is the proof itself. */
int step_network_apply(flow *f, const step_view *v, err *e) {
    (void)f;
    (void)v;
    (void)e;
    return OK;
}

/* A new boot makes the proof stale, so the boots are kept with it. */
static int keep_boots(flow *f, err *e) {
    buf path = BUF_INIT;
    int rc = paths_state(&path, e);
    if (rc == OK) rc = buf_puts(&path, "/baselines.json");
    for (int i = 0; i < 2 && rc == OK; i++) {
        buf boot = BUF_INIT;
        check_baseline b = {.wall_ms = clock_wall_ms()};
        if (node_read_line(flow_checked(f, i), "/proc/sys/kernel/random/boot_id", &boot, NULL) ==
            OK) {
            str_copy(b.text, sizeof b.text, buf_cstr(&boot));
            rc = check_baseline_put(buf_cstr(&path), "V8", i == 0 ? "head" : "worker", &b, e);
        }
        buf_release(&boot);
    }
    buf_release(&path);
    return rc;
}

/* A stored tree carries no traffic, but the machines it stands for may have a cable: then bytes must
 * flow on both rails, at whatever rate. */
static int traffic_of_trees(flow *f, step_view *v, err *e) {
    cable c;
    link_proof p;
    int rc = cable_read(f, &c, e);
    if (rc == OK) rc = link_prove_tcp(f->plain[0], f->plain[1], &c.plan, 500, &p, e);
    for (int r = 0; r < LINK_RAILS && rc == OK; r++) {
        step_row *row = view_row(v, r == 0 ? "traffic on rail A" : "traffic on rail B",
            p.rail[r].gbps > 0 ? CHECK_STATUS_PASS : CHECK_STATUS_FAIL);
        view_fact(row, "%.2f Gb/s arrive (a stored tree stands for the port: not judged)",
            p.rail[r].gbps);
        view_tell(f, row);
    }
    cable_release(&c);
    return rc;
}

int step_network_prove(flow *f, step_view *v, err *e) {
    char helper[700];
    int rc = flow_connect(f, e);
    if (rc != OK) return rc;
    snprintf(helper, sizeof helper, "%.680s", f->o.program);
    char *slash = strrchr(helper, '/');
    if (slash != NULL)
        str_copy(slash + 1, sizeof helper - (size_t)(slash + 1 - helper), "tandem-node");
    link_prove_helper(file_exists(helper) ? helper : NULL);
    const check_options heavy = {.settings = f->s, .is_heavy = true};
    rc = flow_checks(
        f, v, "N-peer N-route N-latency N-tcp N-rdma N-collective N-errors N-socket", &heavy, e);
    if (rc == OK && f->rooted[0] != NULL && f->rooted[1] != NULL) rc = traffic_of_trees(f, v, e);
    link_prove_helper(NULL);
    if (rc == OK && v->worst != CHECK_STATUS_FAIL) rc = keep_boots(f, e);
    if (rc == OK) view_done(v, "the cable carries what it should");
    return rc;
}
