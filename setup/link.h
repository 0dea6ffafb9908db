/* The cable between the two machines: what the ports are (from sysfs), which addresses they should
 * have, the netplan file that gives them, and judging what was measured. Facts are plain data read
 * once; everything that decides works on facts, so it can be tried without the hardware. One thread.
 *
 * A physical port appears as two network devices ("twins"), one for each PCIe half; both must have an
 * address in a subnet of their own, or half of the speed is lost. Rail A is half A of the used port,
 * rail B half B. */
#ifndef SETUP_LINK_H
#define SETUP_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "setup/node_access.h"

enum {
    LINK_MAX_IFS = 48,
    LINK_MAX_RDMA = 8,
    LINK_MAX_ADDRESSES = 6,
    LINK_MAX_GIDS = 32,
    LINK_MTU = 9000,
    LINK_NODES = 2,
    LINK_RAILS = 2
};
#define LINK_NETPLAN_FILE "/etc/netplan/40-cx7.yaml"

typedef struct link_if {
    char name[32], mac[20], pci[16]; /* pci "" for what is no PCI device of ours */
    bool is_up;                      /* has carrier */
    int64_t speed_mbps, mtu;         /* -1 unknown */
    char pcie_speed[32];
    int pcie_width; /* 0 unknown */
    int n_addresses;
    char addresses[LINK_MAX_ADDRESSES][24]; /* IPv4 "a.b.c.d/n" */
} link_if;

typedef struct link_gid {
    int index;
    bool is_v2;
    char gid[48];    /* as sysfs prints it, or "::ffff:a.b.c.d" */
    char netdev[32]; /* "" unknown */
} link_gid;

typedef struct link_rdma {
    char dev[32], netdev[32], firmware[32];
    bool is_active;
    int active_mtu; /* 0 unknown */
    int n_gids;
    link_gid gids[LINK_MAX_GIDS];
    bool has_counters;
    uint64_t sent_bytes, received_bytes, errors;
} link_rdma;

typedef struct link_node {
    char name[32];
    int n_ifs, n_rdma;
    link_if ifs[LINK_MAX_IFS];
    link_rdma rdma[LINK_MAX_RDMA];
} link_node;

/* Reads a machine. Missing parts are unknown, not errors; err only when the machine itself fails. */
int link_read(node_access *n, link_node *out, err *e);
const link_if *link_find_if(const link_node *n, const char *name);
const link_rdma *link_find_rdma(const link_node *n, const char *netdev);
/* The index of the RoCE v2 entry whose value is this IPv4 address on this netdev, or -1. Never from
 * a stored number: the table moves. netdev "" matches any. */
int link_gid_index(const link_gid *gids, int n_gids, const char *netdev, const char *address);

typedef enum link_verdict {
    LINK_READY,
    LINK_CONFIGURABLE,
    LINK_SAME_SUBNET, /* both halves in one subnet, or addresses that change by themselves */
    LINK_MTU_MISMATCH,
    LINK_NO_CABLE,
    LINK_NO_CARD
} link_verdict;
const char *link_verdict_name(link_verdict v);

typedef struct link_rail {
    char netdev[32], rdma[32], mac[20];
    char address[24]; /* planned, with prefix */
    char now[24];     /* "" none */
    int64_t mtu_now;
} link_rail;

typedef struct link_plan {
    link_verdict verdict;
    bool needs_change, needs_consent; /* consent: an address that is there would be replaced */
    bool is_half;                     /* only one half of the port has an address */
    bool is_crossed_port;             /* port 0 here, port 1 there: works, with names per machine */
    int physical_ports_used, distinct_subnets;
    link_rail rail[LINK_NODES][LINK_RAILS]; /* [0] head, [1] worker */
    char reason[400];
} link_plan;
/* Devices named by the owner, in place of what would be found; "" none. */
typedef struct link_names {
    const char *netdev[LINK_NODES][LINK_RAILS];
} link_names;
/* node[0] is the head; names may be NULL. Never fails: what cannot be planned is a verdict. */
void link_make_plan(
    const link_node *const node[LINK_NODES], const link_names *names, link_plan *out);

/* One machine's netplan files as far as they matter here. */
typedef struct link_netplan {
    char renderer[32];   /* as the installed files say, "" when they do not */
    bool has_ours;       /* our file is there */
    buf ours;            /* its text */
    char foreign[2][96]; /* another file that names the twin of rail A, B; "" none */
    bool is_readable;
} link_netplan;
void link_netplan_release(link_netplan *p);
int link_netplan_read(node_access *n, const link_plan *plan, int i_node, link_netplan *out, err *e);
/* Text of the file for one machine. */
int link_netplan_render(
    const link_plan *plan, int i_node, const link_netplan *now, buf *out, err *e);
/* Line differences in the form of diff -u. */
int link_diff(const char *path, const char *before, const char *after, buf *out);

typedef struct link_apply {
    const node_sudo *sudo;
    int restore_s;                            /* dead man's time, 0: 120 */
    void (*say)(void *ctx, const char *line); /* one line a step, may be NULL */
    void *ctx;
    bool is_dry; /* say what would run, run nothing */
} link_apply;
/* Writes the file on one machine, keeps the old one, applies, and goes back by itself when the
 * machine cannot be reached afterwards. undo gets the path of the script that goes back. */
int link_netplan_apply(node_access *n, const link_plan *plan, int i_node, const char *text,
    const link_apply *a, buf *undo, err *e);
/* Runs that script. */
int link_netplan_undo(node_access *n, const char *script, const link_apply *a, err *e);

/* Judging. */
typedef enum link_grade { LINK_PASS, LINK_WARN, LINK_FAIL, LINK_UNKNOWN } link_grade;
link_grade link_judge_tcp(double gbps, int64_t mtu);
/* Both twins at the same time; is_degraded: the chip started in a weak state. */
link_grade link_judge_rdma(double gbps_a, double gbps_b, bool *is_degraded);
link_grade link_judge_collective(double gbytes_per_s);
link_grade link_judge_latency(double median_ms, int lost);
link_grade link_judge_errors(uint64_t errors, uint64_t packets);
/* Largest buffers of a test of traffic: 1 GiB, never more than a twentieth of what is free. */
uint64_t link_test_bytes(uint64_t available_bytes);
/* Mean rate in Gb/s of an ib_write_bw --report_gbits output; ERR_FORMAT. */
int link_parse_write_bw(const char *text, double *gbps);
/* Halves are crossed when rail A of the head sees the MAC of rail B of the worker. seen: the two
 * MACs, "" unknown. */
typedef enum link_peer {
    LINK_PEER_RIGHT,
    LINK_PEER_CROSSED,
    LINK_PEER_OTHER,
    LINK_PEER_UNKNOWN
} link_peer;
link_peer link_judge_peer(const link_plan *plan, const char *const seen[LINK_RAILS]);
/* The neighbour's MAC on a device for an address, from /proc/net/arp; "" when it is not there. */
void link_neighbour(const char *arp, const char *netdev, const char *address, char mac[20]);
/* What a log of NCCL says about its way: +1 RDMA, -1 sockets (reason filled), 0 nothing. */
int link_judge_nccl_log(const char *text, char reason[160]);

/* Two libraries that must be one build. */
bool link_same_library(
    const char *version_a, const char *build_a, const char *version_b, const char *build_b);

/* IPv4 text with prefix: OK or ERR_FORMAT. */
int link_parse_address(const char *text, uint32_t *address, int *prefix);
bool link_is_private(uint32_t address);

#endif
