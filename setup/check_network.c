/* The rows of the cable: facts first, then what was measured. Traffic goes only when it is asked
 * for. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/check_internal.h"
#include "setup/link_prove.h"

enum { PING_HEADERS = 28 }; /* of IPv4 and ICMP */

bool check_link(check_context *c, check_result *r) {
    if (c->link_state == 0) {
        c->link_state = 1;
        for (int k = 0; k < 2 && c->link_state == 1; k++) {
            c->link[k] = mem_alloc(sizeof *c->link[k]);
            if (c->node[k] == NULL) continue;
            if (link_read(c->node[k], c->link[k], &c->link_err) != OK) c->link_state = 2;
            /* link_read forgets what was fetched. */
            c->is_prepared[k] = false;
        }
        const link_node *both[2] = {c->link[0], c->link[1]};
        const link_names names = {{{settings_get(c->settings, "HEAD_IF_A"),
                                       settings_get(c->settings, "HEAD_IF_B")},
            {settings_get(c->settings, "WORKER_IF_A"), settings_get(c->settings, "WORKER_IF_B")}}};
        if (c->link_state == 1) link_make_plan(both, &names, &c->plan);
    }
    if (c->link_state == 2) check_unknown(r, "The network devices", &c->link_err);
    return c->link_state == 1;
}

static bool has_port(check_context *c, check_result *r) {
    if (!check_link(c, r)) return false;
    if (c->plan.physical_ports_used > 0) return true;
    check_say(r, CHECK_STATUS_SKIP, "No port is in use: see N-inventory.");
    return false;
}

/* Speed, PCIe width and generation that the port should have. */
static void weak_spots(check_context *c, buf *out) {
    for (int k = 0; k < 2; k++) {
        for (int x = 0; x < LINK_RAILS; x++) {
            const link_if *f = link_find_if(c->link[k], c->plan.rail[k][x].netdev);
            const char *who = k == 0 ? "head" : "worker";
            if (f == NULL) continue;
            const char *sep = out->len > 0 ? "; " : "";
            if (f->speed_mbps > 0 && f->speed_mbps < 200000) {
                (void)buf_printf(out, "%s%s %s runs at %d Gb/s instead of 200", sep, who, f->name,
                    (int)(f->speed_mbps / 1000));
            } else if (f->pcie_width > 0 &&
                       (f->pcie_width < 4 || !str_starts(f->pcie_speed, "32"))) {
                (void)buf_printf(out, "%s%s %s has PCIe %s x%d instead of 32 GT/s x4", sep, who,
                    f->name, f->pcie_speed, f->pcie_width);
            }
        }
    }
}

CHECK_RUN(check_n_inventory) {
    buf weak = BUF_INIT;
    (void)i;
    if (!check_link(c, r)) return;
    if (c->plan.physical_ports_used == 0) {
        check_say(r, CHECK_STATUS_FAIL, "%s", c->plan.reason);
        check_remedy(
            r, "Plug a 200G cable into the same port of both machines and wait 10 seconds.");
        return;
    }
    weak_spots(c, &weak);
    if (weak.len > 0) {
        check_say(r, CHECK_STATUS_WARN, "%s.", buf_cstr(&weak));
        check_remedy(r,
            "Plug the cable again or try another; then shut down both machines, unplug the "
            "power, and start again.");
    } else {
        check_say(r, c->plan.is_crossed_port ? CHECK_STATUS_WARN : CHECK_STATUS_PASS,
            "Head %s and %s, worker %s and %s%s.", c->plan.rail[0][0].netdev,
            c->plan.rail[0][1].netdev, c->plan.rail[1][0].netdev, c->plan.rail[1][1].netdev,
            c->plan.is_crossed_port ? " (different ports: works, the same port is recommended)"
                                    : "");
    }
    buf_release(&weak);
}

CHECK_RUN(check_n_half) {
    (void)i;
    if (!has_port(c, r)) return;
    const link_plan *p = &c->plan;
    bool is_set = true;
    for (int k = 0; k < 2; k++) {
        for (int x = 0; x < LINK_RAILS; x++)
            is_set = is_set && str_eq(p->rail[k][x].now, p->rail[k][x].address);
    }
    check_remedy(r, "See the plan: tandem link plan; set it up: tandem link apply");
    if (p->is_half || p->verdict == LINK_SAME_SUBNET || !is_set) {
        check_say(r, CHECK_STATUS_FAIL, "%s",
            p->verdict == LINK_MTU_MISMATCH && !p->is_half ? "Addresses are missing." : p->reason);
    } else {
        r->remedy[0] = '\0';
        check_say(r, CHECK_STATUS_PASS, "Rail A %s - %s, rail B %s - %s.", p->rail[0][0].now,
            p->rail[1][0].now, p->rail[0][1].now, p->rail[1][1].now);
    }
}

/* One ping from machine k along rail x; size 0: the usual. OK when it was answered. */
static int ping_rail(check_context *c, int k, int x, int size, err *e) {
    char from[24], to[24], bytes[16];
    buf out = BUF_INIT;
    int code = 0;
    str_copy(from, sizeof from, c->plan.rail[k][x].now);
    str_copy(to, sizeof to, c->plan.rail[1 - k][x].now);
    from[strcspn(from, "/")] = to[strcspn(to, "/")] = '\0';
    if (from[0] == '\0' || to[0] == '\0') return err_set(e, ERR_NOT_FOUND, "no addresses yet");
    snprintf(bytes, sizeof bytes, "%d", size > 0 ? size : 56);
    const char *argv[] = {
        "ping", "-M", "do", "-s", bytes, "-c", "1", "-W", "2", "-I", from, to, NULL};
    int rc = check_tool(c, k, argv, &out, &code, e);
    buf_release(&out);
    if (rc == OK && code != 0)
        rc = err_set(e, ERR_NET, "no answer from %s on the %s", to, k == 0 ? "worker" : "head");
    return rc;
}

/* Frames of this size pass whole, both ways on both rails (setup.md 2.3). */
static void prove_frames(check_context *c, check_result *r) {
    if (node_access_is_fixture(c->node[0]) || node_access_is_fixture(c->node[1])) {
        check_say(r, CHECK_STATUS_PASS,
            "Both rails use frames of %d bytes on both machines (a stored tree carries no ping).",
            LINK_MTU);
        return;
    }
    for (int n = 0; n < LINK_NODES * LINK_RAILS; n++) {
        int k = n / LINK_RAILS, x = n % LINK_RAILS;
        err e = ERR_INIT;
        int rc = ping_rail(c, k, x, LINK_MTU - PING_HEADERS, &e);
        if (rc == OK) continue;
        if (rc != ERR_NET) {
            check_unknown(r, "Whether large frames pass", &e);
            return;
        }
        bool is_small_fine = ping_rail(c, k, x, 0, &e) == OK;
        check_say(r, CHECK_STATUS_FAIL, "From the %s on rail %c, %s.", k == 0 ? "head" : "worker",
            'A' + x,
            is_small_fine ? "a frame of 9000 bytes does not arrive though small ones do"
                          : "nothing arrives");
        check_remedy(r,
            is_small_fine ? "Something between the machines has smaller frames: a switch, or the "
                            "other side was changed since. Set 9000 there, or use the direct cable."
                          : "Look at the cable and the addresses: tandem link show");
        return;
    }
    check_say(r, CHECK_STATUS_PASS,
        "Both rails use frames of %d bytes on both machines, and such frames pass both ways.",
        LINK_MTU);
}

CHECK_RUN(check_n_mtu) {
    (void)i;
    if (!has_port(c, r)) return;
    for (int x = 0; x < LINK_RAILS; x++) {
        int64_t a = c->plan.rail[0][x].mtu_now, b = c->plan.rail[1][x].mtu_now;
        if (a == LINK_MTU && b == LINK_MTU) continue;
        check_say(r, a != b ? CHECK_STATUS_FAIL : CHECK_STATUS_WARN,
            a != b ? "Large frames are on at one end of rail %c only (%d / %d)."
                   : "Rail %c uses small frames on both ends (%d / %d).",
            'A' + x, (int)a, (int)b);
        check_remedy(r,
            "Small pings work, big transfers will fail or be slow. Set %d on both: tandem link "
            "apply",
            LINK_MTU);
        return;
    }
    prove_frames(c, r);
}

CHECK_RUN(check_n_gid) {
    if (!has_port(c, r)) return;
    int index[LINK_RAILS];
    for (int x = 0; x < LINK_RAILS; x++) {
        const link_rail *rail = &c->plan.rail[i][x];
        const link_rdma *d = link_find_rdma(c->link[i], rail->netdev);
        if (d == NULL) {
            check_say(r, CHECK_STATUS_FAIL, "%s has no RDMA device.", rail->netdev);
            check_remedy(
                r, "Load the driver: sudo modprobe mlx5_ib; in a container pass /dev/infiniband.");
            return;
        }
        index[x] =
            rail->now[0] == '\0' ? -1 : link_gid_index(d->gids, d->n_gids, rail->netdev, rail->now);
        if (index[x] < 0 || !d->is_active) {
            check_say(r, CHECK_STATUS_FAIL, "%s %s for %s.", d->dev,
                d->is_active ? "has no RoCE v2 entry" : "is not active",
                rail->now[0] != '\0' ? rail->now : "an address (none is set)");
            check_remedy(
                r, "Give %s its address (tandem link apply), then check again.", rail->netdev);
            return;
        }
    }
    check_say(r, CHECK_STATUS_PASS, "Rail A uses entry %d, rail B entry %d.", index[0], index[1]);
}

static link_peer look_at_peer(check_context *c, char mac[LINK_RAILS][20]) {
    buf arp = BUF_INIT;
    if (!check_file(c, 0, "/proc/net/arp", &arp)) buf_reset(&arp);
    for (int x = 0; x < LINK_RAILS; x++) {
        link_neighbour(buf_cstr(&arp), c->plan.rail[0][x].netdev, c->plan.rail[1][x].now, mac[x]);
    }
    buf_release(&arp);
    const char *const seen[LINK_RAILS] = {mac[0], mac[1]};
    return link_judge_peer(&c->plan, seen);
}

CHECK_RUN(check_n_peer) {
    char mac[LINK_RAILS][20];
    (void)i;
    if (!has_port(c, r)) return;
    link_peer peer = look_at_peer(c, mac);
    if (peer == LINK_PEER_UNKNOWN && !node_access_is_fixture(c->node[0])) {
        /* Nothing was sent yet: one packet makes the neighbour known. */
        for (int x = 0; x < LINK_RAILS; x++) {
            (void)ping_rail(c, 0, x, 0, NULL);
        }
        node_forget(c->node[0]);
        peer = look_at_peer(c, mac);
    }
    switch (peer) {
    case LINK_PEER_RIGHT:
        check_say(r, CHECK_STATUS_PASS, "Each half of the head sees the same half of the worker.");
        break;
    case LINK_PEER_CROSSED:
        check_say(r, CHECK_STATUS_FAIL,
            "The halves are crossed: rail A of the head reaches rail B of the "
            "worker.");
        check_remedy(r, "Swap the addresses of one machine, not the cable: tandem link plan");
        break;
    case LINK_PEER_OTHER:
        check_say(r, CHECK_STATUS_FAIL, "Another machine answers at the worker's address (%s, %s).",
            mac[0], mac[1]);
        check_remedy(
            r, "Find out which machine has this address; the cable may lead to another one.");
        break;
    case LINK_PEER_UNKNOWN:
        check_say(r, CHECK_STATUS_UNKNOWN, "The worker has not been seen on both rails yet.");
        check_remedy(r, "Look at the cable and at the addresses: tandem link show");
        break;
    }
}

CHECK_RUN(check_n_route) {
    (void)i;
    if (!has_port(c, r)) return;
    for (int k = 0; k < 2; k++) {
        for (int x = 0; x < LINK_RAILS; x++) {
            char peer[24], line[200], want[48];
            str_copy(peer, sizeof peer, c->plan.rail[1 - k][x].now);
            peer[strcspn(peer, "/")] = '\0';
            const char *argv[] = {"ip", "route", "get", peer, NULL};
            err e = ERR_INIT;
            if (peer[0] == '\0' || check_tool_line(c, k, argv, line, sizeof line, &e) != OK) {
                check_unknown(r, "The route", &e);
                return;
            }
            buf text = BUF_INIT;
            (void)buf_printf(&text, " dev %s ", c->plan.rail[k][x].netdev);
            str_copy(want, sizeof want, buf_cstr(&text));
            buf_release(&text);
            if (strstr(line, want) == NULL) {
                check_say(r, CHECK_STATUS_FAIL, "On the %s the way to %s is: %s.",
                    k == 0 ? "head" : "worker", peer, line);
                check_remedy(r, "It must leave through %s: each half needs a subnet of its own.",
                    c->plan.rail[k][x].netdev);
                return;
            }
        }
    }
    check_say(r, CHECK_STATUS_PASS, "All four ways leave through their rail.");
}

/* Measured rows. */

static check_status of_grade(link_grade g) {
    static const check_status of[] = {
        CHECK_STATUS_PASS, CHECK_STATUS_WARN, CHECK_STATUS_FAIL, CHECK_STATUS_UNKNOWN};
    return of[g];
}

static bool measured(check_context *c, check_result *r, int ms, link_proof *proof) {
    err e = ERR_INIT;
    if (!has_port(c, r)) return false;
    if (node_access_is_fixture(c->node[0]) || node_access_is_fixture(c->node[1])) {
        check_say(r, CHECK_STATUS_UNKNOWN, "A stored tree carries no traffic.");
        return false;
    }
    if (link_prove_tcp(c->node[0], c->node[1], &c->plan, ms, proof, &e) != OK) {
        check_unknown(r, "The rails", &e);
        return false;
    }
    return true;
}

CHECK_RUN(check_n_latency) {
    link_proof p;
    (void)i;
    if (!measured(c, r, 200, &p)) return;
    double worst =
        p.rail[0].median_ms > p.rail[1].median_ms ? p.rail[0].median_ms : p.rail[1].median_ms;
    check_value(r, worst);
    check_say(r, of_grade(link_judge_latency(worst, p.rail[0].lost + p.rail[1].lost)),
        "Median round trip %.3f ms on rail A, %.3f ms on rail B.", p.rail[0].median_ms,
        p.rail[1].median_ms);
    if (r->status != CHECK_STATUS_PASS) check_remedy(r, "Look for other traffic and power saving.");
}

CHECK_RUN(check_n_tcp) {
    link_proof p;
    (void)i;
    if (!measured(c, r, 5000, &p)) return;
    check_status worst = CHECK_STATUS_PASS;
    for (int x = 0; x < LINK_RAILS; x++) {
        int64_t a = c->plan.rail[0][x].mtu_now, b = c->plan.rail[1][x].mtu_now;
        worst = check_worse(worst, of_grade(link_judge_tcp(p.rail[x].gbps, a < b ? a : b)));
    }
    double low = p.rail[0].gbps < p.rail[1].gbps ? p.rail[0].gbps : p.rail[1].gbps;
    check_value(r, low);
    check_say(r, worst, "%.1f Gb/s on rail A, %.1f Gb/s on rail B, both at the same time.",
        p.rail[0].gbps, p.rail[1].gbps);
    if (worst == CHECK_STATUS_FAIL) {
        check_remedy(r,
            "The cable says 200 Gb/s but only about %.0f Gb/s arrive. The network chip may have "
            "started in a weak state: shut down both machines, unplug power from both, wait, "
            "plug in, start, repeat this test.",
            low);
    }
}

CHECK_RUN(check_n_rdma) {
    double gbps[LINK_RAILS];
    bool is_degraded = false;
    err e = ERR_INIT;
    (void)i;
    if (!has_port(c, r)) return;
    int rc = link_prove_rdma(c->node[0], c->node[1], &c->plan, gbps, &e);
    if (rc != OK) {
        check_unknown(r, "RDMA", &e);
        if (rc == ERR_NOT_FOUND) {
            check_remedy(r,
                "Install perftest on both: sudo apt-get install perftest; or rely on the "
                "collective test (N-collective).");
        }
        return;
    }
    check_status s = of_grade(link_judge_rdma(gbps[0], gbps[1], &is_degraded));
    check_value(r, gbps[0] + gbps[1]);
    check_say(
        r, s, "%.1f Gb/s on rail A and %.1f Gb/s on rail B at the same time.", gbps[0], gbps[1]);
    if (is_degraded) {
        check_remedy(r,
            "The cable says 200 Gb/s but only about %.0f Gb/s arrive. The network chip started in "
            "a weak state. Shut down both machines, unplug power from both, wait, plug in, start, "
            "repeat this test.",
            gbps[0] < gbps[1] ? gbps[0] : gbps[1]);
    }
}

/* Where the engine is on both machines: here beside this program, there where a start puts it. */
static bool find_engines(check_context *c, char there[600]) {
    const char *data = settings_get(c->settings, "WORKER_DATA");
    if (c->engine == NULL || data[0] == '\0') return false;
    if (node_access_is_fixture(c->node[0]) || node_access_is_fixture(c->node[1])) return false;
    snprintf(there, 600, "%.500s/.tandem/bin/tandemd", data);
    return node_exists(c->node[1], there);
}

CHECK_RUN(check_n_collective) {
    (void)i;
    char there[600];
    link_collective_result got;
    err e = ERR_INIT;
    if (!has_port(c, r)) return;
    if (!find_engines(c, there)) {
        check_say(r, CHECK_STATUS_UNKNOWN, "The engine is not on both machines yet.");
        check_remedy(r,
            "The step Engine of tandem setup, or tandem start, copies it; then: tandem check "
            "N-collective");
        return;
    }
    const link_collective_options o = {.node = {c->node[0], c->node[1]},
        .engine = {c->engine, there},
        .plan = &c->plan,
        .port = (int)settings_int(c->settings, "MASTER_PORT")};
    if (link_prove_collective(&o, &got, &e) != OK) {
        check_unknown(r, "The engine's own exchange", &e);
        check_remedy(r, "A pair that runs holds the port: tandem stop, then again.");
        return;
    }
    check_value(r, got.gbytes_per_s);
    if (str_eq(got.kind, "TCP")) {
        check_say(r, CHECK_STATUS_SKIP,
            "The exchange of the CPU engine moves %.2f GB/s over TCP; NCCL needs a GPU on both.",
            got.gbytes_per_s);
        return;
    }
    check_say(r,
        got.way < 0 ? CHECK_STATUS_FAIL : of_grade(link_judge_collective(got.gbytes_per_s)),
        "The engine's exchange (%s) moves %.2f GB/s%s%s%s.", got.kind, got.gbytes_per_s,
        got.way > 0   ? " over RDMA"
        : got.way < 0 ? " over ordinary TCP: "
                      : "",
        got.way < 0 ? got.reason : "", "");
    if (r->status != CHECK_STATUS_PASS)
        check_remedy(r,
            "About 22 GB/s are normal with both halves of the port. See U2, N-gid, N-mtu and "
            "N-rdma, in this order.");
}

CHECK_RUN(check_n_errors) {
    uint64_t errors = 0, packets = 0;
    bool has = false;
    if (!has_port(c, r)) return;
    for (int x = 0; x < LINK_RAILS; x++) {
        const link_rdma *d = link_find_rdma(c->link[i], c->plan.rail[i][x].netdev);
        if (d == NULL || !d->has_counters) continue;
        has = true;
        errors += d->errors;
        packets += (d->sent_bytes + d->received_bytes) / 4096;
    }
    if (!has) {
        check_unknown(r, "The error counters", NULL);
        return;
    }
    check_value(r, (double)errors);
    check_say(r, of_grade(link_judge_errors(errors, packets)),
        "%llu errors since the driver was loaded.", (unsigned long long)errors);
    if (errors > 0)
        check_remedy(r, "Plug the cable again or try another; compare after some traffic.");
}

CHECK_RUN(check_n_socket) {
    char reason[160];
    buf log = BUF_INIT;
    static const char *const argv[] = {"sh", "-c",
        "cd \"${XDG_STATE_HOME:-$HOME/.local/state}/tandem/logs\" && "
        "tail -c 262144 -- \"$(ls -t rank*.log engine.log 2>/dev/null | head -n 1)\"",
        NULL};
    int code = 0;
    bool has = check_tool(c, i, argv, &log, &code, NULL) == OK && code == 0;
    int way = has ? link_judge_nccl_log(buf_cstr(&log), reason) : 0;
    if (way < 0) {
        check_say(
            r, CHECK_STATUS_FAIL, "The ranks talk over ordinary TCP instead of RDMA: %s.", reason);
        check_remedy(r,
            "It works but is two to three times slower. See U2 and N-gid, then restart the pair.");
    } else if (way > 0) {
        check_say(r, CHECK_STATUS_PASS, "The engine's log shows RDMA.");
    } else {
        check_say(r, CHECK_STATUS_SKIP, "%s",
            has ? "The engine's log says nothing about its way; N-collective measures it."
                : "No start of the pair has been logged here yet.");
    }
    buf_release(&log);
}

CHECK_RUN(check_n_env) {
    static const char *const argv[] = {
        "sh", "-c", "env | grep ^NCCL_ ; test ! -f \"$HOME/.nccl.conf\"", NULL};
    buf text = BUF_INIT;
    err e = ERR_INIT;
    int code = 0;
    bool has_file = node_exists(c->node[i], "/etc/nccl.conf");
    int rc = check_tool(c, i, argv, &text, &code, &e);
    for (size_t k = 0; k < text.len; k++) {
        if (text.data[k] == '\n') text.data[k] = ' ';
    }
    if (rc != OK) {
        check_unknown(r, "The NCCL settings", &e);
    } else if (!has_file && code == 0 && text.len == 0) {
        check_say(r, CHECK_STATUS_PASS, "No NCCL settings are left over.");
    } else {
        check_say(r, CHECK_STATUS_WARN, "Left over: %s%s%.200s.", has_file ? "/etc/nccl.conf " : "",
            code != 0 ? "~/.nccl.conf " : "", buf_cstr(&text));
        check_remedy(r, "The engine clears NCCL_ variables by itself; move the files away.");
    }
    buf_release(&text);
}
