/* Reading a machine's network devices from sysfs; addresses from ip, which is on every machine. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/link.h"

enum { TEXT_MAX = 64 << 10 };

static const char PATTERNS[] =
    "/sys/class/net/*/address /sys/class/net/*/carrier /sys/class/net/*/speed "
    "/sys/class/net/*/mtu /sys/class/net/*/operstate /sys/class/net/*/device "
    "/sys/class/net/*/device/current_link_speed /sys/class/net/*/device/current_link_width "
    "/sys/class/infiniband/*/fw_ver /sys/class/infiniband/*/ports/1/state "
    "/sys/class/infiniband/*/ports/1/gids/* /sys/class/infiniband/*/ports/1/gid_attrs/types/* "
    "/sys/class/infiniband/*/ports/1/gid_attrs/ndevs/* "
    "/sys/class/infiniband/*/ports/1/counters/port_* "
    "/sys/class/infiniband/*/ports/1/counters/symbol_error "
    "/sys/class/infiniband/*/ports/1/hw_counters/out_of_sequence "
    "/sys/class/infiniband/*/ports/1/hw_counters/packet_seq_err "
    "/sys/class/infiniband/*/ports/1/hw_counters/local_ack_timeout_err";

/* One line of a file, false when it cannot be read. In path_form @ stands for a and # for b. */
static bool line_of(node_access *n, buf *out, const char *path_form, const char *a, const char *b) {
    buf path = BUF_INIT;
    bool is_read = true;
    for (const char *c = path_form; *c != '\0' && is_read; c++) {
        if (*c == '@')
            is_read = buf_puts(&path, a) == OK;
        else if (*c == '#')
            is_read = buf_puts(&path, b) == OK;
        else
            is_read = buf_putc(&path, *c) == OK;
    }
    is_read = is_read && node_read_line(n, buf_cstr(&path), out, NULL) == OK;
    buf_release(&path);
    return is_read;
}

static int64_t number_of(node_access *n, const char *fmt, const char *a, const char *b) {
    buf text = BUF_INIT;
    int64_t v = -1;
    if (line_of(n, &text, fmt, a, b) && parse_i64(buf_cstr(&text), &v) != OK) v = -1;
    buf_release(&text);
    return v;
}

static void text_of(node_access *n, char *out, size_t cap, const char *fmt, const char *a) {
    buf text = BUF_INIT;
    out[0] = '\0';
    if (line_of(n, &text, fmt, a, "")) str_copy(out, cap, buf_cstr(&text));
    buf_release(&text);
}

/* "0002:01:00.1" at the end of a link target. */
static bool is_pci(const char *s) {
    unsigned d, b, v, f;
    char extra;
    return sscanf(s, "%4x:%2x:%2x.%1x%c", &d, &b, &v, &f, &extra) == 4;
}

static void read_if(node_access *n, const char *name, link_if *out) {
    *out = (link_if){.speed_mbps = -1, .mtu = -1};
    str_copy(out->name, sizeof out->name, name);
    text_of(n, out->mac, sizeof out->mac, "/sys/class/net/@/address", name);
    out->is_up = number_of(n, "/sys/class/net/@/carrier", name, "") == 1;
    out->speed_mbps = number_of(n, "/sys/class/net/@/speed", name, "");
    out->mtu = number_of(n, "/sys/class/net/@/mtu", name, "");
    buf path = BUF_INIT, target = BUF_INIT;
    if (buf_printf(&path, "/sys/class/net/%s/device", name) == OK &&
        node_link(n, buf_cstr(&path), &target, NULL) == OK) {
        const char *slash = strrchr(buf_cstr(&target), '/');
        const char *base = slash != NULL ? slash + 1 : buf_cstr(&target);
        if (is_pci(base)) str_copy(out->pci, sizeof out->pci, base);
    }
    text_of(n, out->pcie_speed, sizeof out->pcie_speed,
        "/sys/class/net/@/device/current_link_speed", name);
    int64_t width = number_of(n, "/sys/class/net/@/device/current_link_width", name, "");
    out->pcie_width = width > 0 ? (int)width : 0;
    buf_release(&path);
    buf_release(&target);
}

static int each_name(buf *names, int (*fn)(void *ctx, const char *name), void *ctx) {
    char *save = NULL;
    for (char *p = names->len > 0 ? strtok_r(names->data, "\n", &save) : NULL; p != NULL;
         p = strtok_r(NULL, "\n", &save)) {
        int rc = fn(ctx, p);
        if (rc != OK) return rc;
    }
    return OK;
}

typedef struct reading {
    node_access *n;
    link_node *out;
    link_rdma *rdma;
} reading;

static int one_if(void *ctx, const char *name) {
    reading *r = ctx;
    if (r->out->n_ifs == LINK_MAX_IFS || str_eq(name, "lo") || strlen(name) >= 32) return OK;
    read_if(r->n, name, &r->out->ifs[r->out->n_ifs++]);
    return OK;
}

static int one_gid(void *ctx, const char *index) {
    reading *r = ctx;
    link_rdma *d = r->rdma;
    int64_t i = 0;
    buf path = BUF_INIT, gid = BUF_INIT, type = BUF_INIT, netdev = BUF_INIT;
    bool is_read =
        parse_i64(index, &i) == OK && d->n_gids < LINK_MAX_GIDS &&
        line_of(r->n, &gid, "/sys/class/infiniband/@/ports/1/gids/#", d->dev, index) &&
        line_of(r->n, &type, "/sys/class/infiniband/@/ports/1/gid_attrs/types/#", d->dev, index);
    /* Unused entries read as zeros, or not at all. */
    if (is_read && strspn(buf_cstr(&gid), "0:") != gid.len) {
        link_gid *g = &d->gids[d->n_gids++];
        *g = (link_gid){.index = (int)i, .is_v2 = strstr(buf_cstr(&type), "v2") != NULL};
        str_copy(g->gid, sizeof g->gid, buf_cstr(&gid));
        if (line_of(r->n, &netdev, "/sys/class/infiniband/@/ports/1/gid_attrs/ndevs/#", d->dev,
                index)) {
            str_copy(g->netdev, sizeof g->netdev, buf_cstr(&netdev));
        }
    }
    buf_release(&path);
    buf_release(&gid);
    buf_release(&type);
    buf_release(&netdev);
    return OK;
}

static void read_counters(node_access *n, link_rdma *d) {
    static const char *const errors[] = {"counters/symbol_error", "hw_counters/out_of_sequence",
        "hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err"};
    int64_t sent =
        number_of(n, "/sys/class/infiniband/@/ports/1/counters/port_xmit_data", d->dev, "");
    int64_t received =
        number_of(n, "/sys/class/infiniband/@/ports/1/counters/port_rcv_data", d->dev, "");
    d->has_counters = sent >= 0 && received >= 0;
    /* These count words of four bytes. */
    if (d->has_counters) d->sent_bytes = (uint64_t)sent * 4;
    if (d->has_counters) d->received_bytes = (uint64_t)received * 4;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        int64_t v = number_of(n, "/sys/class/infiniband/@/ports/1/#", d->dev, errors[i]);
        if (v > 0) d->errors += (uint64_t)v;
    }
}

/* The largest InfiniBand size that fits into the Ethernet frame with RoCE's headers. */
static int rdma_mtu(int64_t mtu) {
    int fits = 0;
    for (int size = 256; size <= 4096; size *= 2) {
        if (size + 58 <= mtu) fits = size;
    }
    return fits;
}

static int one_rdma(void *ctx, const char *dev) {
    reading *r = ctx;
    if (r->out->n_rdma == LINK_MAX_RDMA || strlen(dev) >= 32) return OK;
    link_rdma *d = &r->out->rdma[r->out->n_rdma++];
    *d = (link_rdma){0};
    r->rdma = d;
    str_copy(d->dev, sizeof d->dev, dev);
    text_of(r->n, d->firmware, sizeof d->firmware, "/sys/class/infiniband/@/fw_ver", dev);
    char state[32];
    text_of(r->n, state, sizeof state, "/sys/class/infiniband/@/ports/1/state", dev);
    d->is_active = strstr(state, "ACTIVE") != NULL;
    buf path = BUF_INIT, names = BUF_INIT;
    if (buf_printf(&path, "/sys/class/infiniband/%s/device/net", dev) == OK &&
        node_list(r->n, buf_cstr(&path), &names, NULL) == OK) {
        size_t n = strcspn(buf_cstr(&names), "\n");
        if (n < sizeof d->netdev) memcpy(d->netdev, buf_cstr(&names), n);
    }
    buf_reset(&path);
    if (buf_printf(&path, "/sys/class/infiniband/%s/ports/1/gids", dev) == OK &&
        node_list(r->n, buf_cstr(&path), &names, NULL) == OK) {
        (void)each_name(&names, one_gid, r);
    }
    /* Names of RDMA devices may be changed; the entries of the table name their device too. */
    for (int i = 0; i < d->n_gids && d->netdev[0] == '\0'; i++)
        str_copy(d->netdev, sizeof d->netdev, d->gids[i].netdev);
    const link_if *x = link_find_if(r->out, d->netdev);
    d->active_mtu = x != NULL ? rdma_mtu(x->mtu) : 0;
    read_counters(r->n, d);
    buf_release(&path);
    buf_release(&names);
    return OK;
}

static void take_addresses(const json *list, link_node *out) {
    JSON_EACH(x, list) {
        const char *name = json_str(json_get(x, "ifname"));
        link_if *f = name != NULL ? (link_if *)(uintptr_t)link_find_if(out, name) : NULL;
        if (f == NULL) continue;
        JSON_EACH(a, json_get(x, "addr_info")) {
            const char *local = json_str(json_get(a, "local"));
            int64_t prefix = 0;
            if (local == NULL || !str_eq(json_str(json_get(a, "family")), "inet") ||
                json_i64(json_get(a, "prefixlen"), &prefix) != OK ||
                f->n_addresses == LINK_MAX_ADDRESSES) {
                continue;
            }
            buf text = BUF_INIT;
            if (buf_printf(&text, "%s/%d", local, (int)prefix) == OK) {
                str_copy(f->addresses[f->n_addresses++], 24, buf_cstr(&text));
            }
            buf_release(&text);
        }
    }
}

int link_read(node_access *n, link_node *out, err *e) {
    memset(out, 0, sizeof *out);
    str_copy(out->name, sizeof out->name, node_access_name(n));
    node_forget(n);
    buf names = BUF_INIT, text = BUF_INIT;
    reading r = {n, out, NULL};
    int rc = node_fetch(n, PATTERNS, e);
    if (rc == OK) rc = node_list(n, "/sys/class/net", &names, e);
    if (rc == OK) rc = each_name(&names, one_if, &r);
    if (rc == OK && node_list(n, "/sys/class/infiniband", &names, NULL) == OK) {
        (void)each_name(&names, one_rdma, &r);
    }
    json *list = NULL;
    if (rc == OK && node_tool(n, &text, NULL, "ip", "-j", "addr", "show", NULL) == OK &&
        json_parse(buf_cstr(&text), text.len, NULL, &list, NULL) == OK) {
        take_addresses(list, out);
    }
    json_free(list);
    buf_release(&names);
    buf_release(&text);
    return err_add(e, rc, "reading the network devices of %s", node_access_name(n));
}

const link_if *link_find_if(const link_node *n, const char *name) {
    for (int i = 0; i < n->n_ifs; i++) {
        if (str_eq(n->ifs[i].name, name)) return &n->ifs[i];
    }
    return NULL;
}

const link_rdma *link_find_rdma(const link_node *n, const char *netdev) {
    for (int i = 0; i < n->n_rdma && netdev[0] != '\0'; i++) {
        if (str_eq(n->rdma[i].netdev, netdev)) return &n->rdma[i];
    }
    return NULL;
}

/* Both spellings, ::ffff:1.2.3.4 and 0000:...:ffff:0102:0304, are what inet_pton reads. */
static bool gid_is(const char *gid, const struct in_addr *want) {
    struct in6_addr a;
    if (inet_pton(AF_INET6, gid, &a) != 1 || !IN6_IS_ADDR_V4MAPPED(&a)) return false;
    return memcmp(a.s6_addr + 12, want, 4) == 0;
}

int link_gid_index(const link_gid *gids, int n_gids, const char *netdev, const char *address) {
    char plain[24];
    struct in_addr want;
    str_copy(plain, sizeof plain, address);
    plain[strcspn(plain, "/")] = '\0';
    if (inet_pton(AF_INET, plain, &want) != 1) return -1;
    for (int i = 0; i < n_gids; i++) {
        bool is_dev =
            netdev[0] == '\0' || gids[i].netdev[0] == '\0' || str_eq(gids[i].netdev, netdev);
        if (gids[i].is_v2 && is_dev && gid_is(gids[i].gid, &want)) return gids[i].index;
    }
    return -1;
}
