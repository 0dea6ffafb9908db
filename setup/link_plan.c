/* Which port, which twins, which addresses. Works on facts only. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "setup/link.h"

const char *link_verdict_name(link_verdict v) {
    static const char *const names[] = {
        "ready", "configurable", "same_subnet", "mtu_mismatch", "no_cable", "no_card"};
    return names[v];
}

int link_parse_address(const char *text, uint32_t *address, int *prefix) {
    char plain[24];
    struct in_addr a;
    int64_t n = 32;
    const char *slash = strchr(text, '/');
    if (str_copy(plain, sizeof plain, text) >= sizeof plain) return ERR_FORMAT;
    plain[strcspn(plain, "/")] = '\0';
    if (inet_pton(AF_INET, plain, &a) != 1) return ERR_FORMAT;
    if (slash != NULL && (parse_i64(slash + 1, &n) != OK || n < 0 || n > 32)) return ERR_FORMAT;
    *address = ntohl(a.s_addr);
    *prefix = (int)n;
    return OK;
}

bool link_is_private(uint32_t a) {
    return a >> 24 == 10 || a >> 20 == 0xac1 || a >> 16 == 0xc0a8;
}

static uint32_t mask_of(int prefix) {
    return prefix == 0 ? 0 : 0xffffffffu << (32 - prefix);
}

/* What a rail of one machine has now. */
typedef struct rail_state {
    const link_if *dev;
    bool has, is_usable; /* usable: private, static kind, not link-local */
    uint32_t address;
    int prefix;
} rail_state;

static rail_state state_of(const link_if *f) {
    rail_state s = {.dev = f};
    for (int i = 0; i < f->n_addresses && !s.is_usable; i++) {
        if (link_parse_address(f->addresses[i], &s.address, &s.prefix) != OK) continue;
        s.has = true;
        s.is_usable = link_is_private(s.address) && s.prefix >= 8 && s.prefix <= 30;
    }
    return s;
}

/* The twins of one port, half A first. */
typedef struct port {
    const link_if *half[LINK_RAILS];
    char function; /* of the PCI address: which physical port */
    bool is_up;
} port;

static int domain_of(const link_if *f) {
    unsigned d = 0;
    return sscanf(f->pci, "%4x:", &d) == 1 ? (int)d : -1;
}

/* A device of the card: it has an RDMA device, or runs at the card's speed from a PCI place whose
 * twin exists. Machines without RDMA (a test) are recognised by the twin alone. */
static bool is_candidate(const link_node *n, const link_if *f) {
    if (f->pci[0] == '\0') return false;
    return n->n_rdma == 0 || link_find_rdma(n, f->name) != NULL;
}

/* The devices the owner names, also where the machine has no such card. */
static int named_port(const link_node *n, const char *const name[LINK_RAILS], port out[4]) {
    const link_if *a = link_find_if(n, name[0]), *b = link_find_if(n, name[1]);
    if (a == NULL || b == NULL || a == b) return 0;
    out[0] =
        (port){{a, b}, a->pci[0] != '\0' ? a->pci[strlen(a->pci) - 1] : 0, a->is_up && b->is_up};
    return 1;
}

static int find_ports(const link_node *n, port out[4]) {
    int count = 0;
    for (int i = 0; i < n->n_ifs; i++) {
        const link_if *a = &n->ifs[i];
        if (!is_candidate(n, a)) continue;
        for (int j = 0; j < n->n_ifs && count < 4; j++) {
            const link_if *b = &n->ifs[j];
            if (!is_candidate(n, b) || domain_of(a) >= domain_of(b)) continue;
            /* The same place in the other domain: "0000:01:00.0" and "0002:01:00.0". */
            if (!str_eq(a->pci + 4, b->pci + 4)) continue;
            out[count++] = (port){{a, b}, a->pci[strlen(a->pci) - 1], a->is_up && b->is_up};
        }
    }
    return count;
}

static const port *pick_port(const port *all, int n, char same_as) {
    const port *best = NULL;
    for (int i = 0; i < n; i++) {
        if (!all[i].is_up) continue;
        bool is_better = best == NULL ||
                         (same_as != 0 && all[i].function == same_as && best->function != same_as);
        if (is_better) best = &all[i];
    }
    return best;
}

/* True when a network is used by a device of the machine that is not one of its twins. */
static bool is_taken(const link_node *n, const port *p, uint32_t net) {
    for (int i = 0; i < n->n_ifs; i++) {
        if (&n->ifs[i] == p->half[0] || &n->ifs[i] == p->half[1]) continue;
        for (int k = 0; k < n->ifs[i].n_addresses; k++) {
            uint32_t a = 0;
            int prefix = 0;
            if (link_parse_address(n->ifs[i].addresses[k], &a, &prefix) != OK) continue;
            uint32_t mask = mask_of(prefix < 24 ? prefix : 24);
            if ((a & mask) == (net & mask)) return true;
        }
    }
    return false;
}

typedef struct planning {
    const link_node *const *node;
    const port *p[LINK_NODES];
    rail_state s[LINK_NODES][LINK_RAILS];
    link_plan *out;
} planning;

/* The network of a rail; prefix 0: none yet. */
typedef struct subnet {
    uint32_t net;
    int prefix;
} subnet;

static bool is_free(const planning *w, uint32_t net, subnet other) {
    uint32_t mask = mask_of(other.prefix < 24 ? other.prefix : 24);
    bool is_others = other.prefix > 0 && ((net ^ other.net) & mask) == 0;
    return !is_others && !is_taken(w->node[0], w->p[0], net) && !is_taken(w->node[1], w->p[1], net);
}

/* 192.168.100 and .101, or the first free pair of 10.77. */
static uint32_t free_net(const planning *w, int rail, subnet other) {
    uint32_t usual = 0xc0a86400u + ((uint32_t)rail << 8);
    if (is_free(w, usual, other)) return usual;
    for (uint32_t third = (uint32_t)rail; third < 256; third++) {
        uint32_t net = 0x0a4d0000u + (third << 8);
        if (is_free(w, net, other)) return net;
    }
    return usual;
}

/* A rail whose two ends are in one subnet with different addresses is left alone. */
static bool rail_is_fine(const planning *w, int rail) {
    const rail_state *a = &w->s[0][rail], *b = &w->s[1][rail];
    return a->is_usable && b->is_usable && a->prefix == b->prefix && a->address != b->address &&
           ((a->address ^ b->address) & mask_of(a->prefix)) == 0;
}

static void put_address(char out[24], uint32_t address, int prefix) {
    struct in_addr a = {htonl(address)};
    char text[16] = "";
    buf b = BUF_INIT;
    inet_ntop(AF_INET, &a, text, sizeof text);
    if (buf_printf(&b, "%s/%d", text, prefix) == OK) str_copy(out, 24, buf_cstr(&b));
    buf_release(&b);
}

static void fill_now(planning *w) {
    for (int n = 0; n < LINK_NODES; n++) {
        for (int r = 0; r < LINK_RAILS; r++) {
            const link_if *f = w->p[n]->half[r];
            link_rail *x = &w->out->rail[n][r];
            w->s[n][r] = state_of(f);
            str_copy(x->netdev, sizeof x->netdev, f->name);
            str_copy(x->mac, sizeof x->mac, f->mac);
            const link_rdma *d = link_find_rdma(w->node[n], f->name);
            if (d != NULL) str_copy(x->rdma, sizeof x->rdma, d->dev);
            x->mtu_now = f->mtu;
            if (w->s[n][r].has) put_address(x->now, w->s[n][r].address, w->s[n][r].prefix);
        }
    }
}

/* New addresses for one rail; the other rail's net and host parts are followed where they are good. */
static void plan_rail(planning *w, int rail, subnet other) {
    uint32_t net = free_net(w, rail, other);
    for (int n = 0; n < LINK_NODES; n++) {
        const rail_state *twin = &w->s[n][1 - rail];
        uint32_t host = 10 + (uint32_t)n;
        if (rail_is_fine(w, 1 - rail)) {
            uint32_t part = twin->address & 0xff;
            bool is_distinct =
                ((w->s[0][1 - rail].address ^ w->s[1][1 - rail].address) & 0xff) != 0;
            if (is_distinct && part > 0 && part < 255) host = part;
        }
        put_address(w->out->rail[n][rail].address, net + host, 24);
        if (w->s[n][rail].has) w->out->needs_consent = true;
    }
    w->out->needs_change = true;
}

static bool halves_share_net(const planning *w) {
    for (int n = 0; n < LINK_NODES; n++) {
        const rail_state *a = &w->s[n][0], *b = &w->s[n][1];
        int prefix = a->prefix < b->prefix ? a->prefix : b->prefix;
        if (a->has && b->has && ((a->address ^ b->address) & mask_of(prefix)) == 0) return true;
    }
    return false;
}

static void plan_addresses(planning *w) {
    bool is_shared = halves_share_net(w);
    bool keep[LINK_RAILS] = {rail_is_fine(w, 0), rail_is_fine(w, 1) && !is_shared};
    if (is_shared) w->out->verdict = LINK_SAME_SUBNET;
    w->out->is_half = keep[0] != keep[1] && !is_shared;
    subnet nets[LINK_RAILS] = {{0, 0}, {0, 0}};
    for (int r = 0; r < LINK_RAILS; r++) {
        const rail_state *s = &w->s[0][r];
        if (keep[r]) nets[r] = (subnet){s->address & mask_of(s->prefix), s->prefix};
    }
    for (int r = 0; r < LINK_RAILS; r++) {
        if (keep[r]) {
            for (int n = 0; n < LINK_NODES; n++)
                put_address(w->out->rail[n][r].address, w->s[n][r].address, w->s[n][r].prefix);
        } else {
            plan_rail(w, r, nets[1 - r]);
            uint32_t a = 0;
            int prefix = 24;
            (void)link_parse_address(w->out->rail[0][r].address, &a, &prefix);
            nets[r] = (subnet){a & mask_of(prefix), prefix};
        }
    }
    w->out->distinct_subnets = nets[0].net != nets[1].net ? 2 : 1;
}

static void judge_mtu(planning *w) {
    bool is_differing = false;
    for (int r = 0; r < LINK_RAILS; r++) {
        int64_t a = w->out->rail[0][r].mtu_now, b = w->out->rail[1][r].mtu_now;
        if (a != b) is_differing = true;
        if (a != LINK_MTU || b != LINK_MTU) w->out->needs_change = true;
    }
    if (is_differing && w->out->verdict != LINK_SAME_SUBNET) w->out->verdict = LINK_MTU_MISMATCH;
}

static void give_reason(link_plan *p) {
    static const char *const texts[] = {
        "Both halves of the port have addresses in subnets of their own and large frames: nothing "
        "needs to change.",
        "The cable is in; addresses or large frames are missing and can be set up.",
        "The two halves of the port share one subnet, or have addresses that change by themselves: "
        "traffic may take the wrong half. Each half needs a subnet of its own.",
        "Large frames are on at one end only. Small pings work, big transfers will fail.",
        "No port has a cable that is up on both halves. Plug the cable, wait 10 seconds, look again; "
        "a port without cable may be powered down.",
        "No two-part network port was found. The card has two halves per port; wait 10 seconds after "
        "plugging the cable and look again."};
    str_copy(p->reason, sizeof p->reason,
        p->is_half ? "Only one of the two halves of the port has an address, so you get half the "
                     "speed. The second address can be added on both machines."
                   : texts[p->verdict]);
}

void link_make_plan(
    const link_node *const node[LINK_NODES], const link_names *names, link_plan *out) {
    port ports[LINK_NODES][4];
    int count[LINK_NODES];
    planning w = {.node = node, .out = out};
    memset(out, 0, sizeof *out);
    out->verdict = LINK_NO_CARD;
    for (int n = 0; n < LINK_NODES; n++) {
        bool is_named =
            names != NULL && names->netdev[n][0][0] != '\0' && names->netdev[n][1][0] != '\0';
        count[n] = is_named ? named_port(node[n], names->netdev[n], ports[n])
                            : find_ports(node[n], ports[n]);
    }
    if (count[0] > 0 && count[1] > 0) {
        out->verdict = LINK_NO_CABLE;
        w.p[0] = pick_port(ports[0], count[0], 0);
        w.p[1] = pick_port(ports[1], count[1], w.p[0] != NULL ? w.p[0]->function : 0);
    }
    if (w.p[0] != NULL && w.p[1] != NULL) {
        out->physical_ports_used = 1;
        out->is_crossed_port = w.p[0]->function != w.p[1]->function;
        out->verdict = LINK_CONFIGURABLE;
        fill_now(&w);
        plan_addresses(&w);
        judge_mtu(&w);
        if (!out->needs_change) out->verdict = LINK_READY;
    }
    give_reason(out);
}
