/* Traffic over the rails: our own TCP test between the two machines, and ib_write_bw where it is
 * installed. One thread; needs a session to each machine that is not this one. */
#ifndef SETUP_LINK_PROVE_H
#define SETUP_LINK_PROVE_H

#include "setup/link.h"
#include "setup/link_probe.h"

typedef struct link_proof {
    link_probe_result rail[LINK_RAILS];
} link_proof;

/* Both rails at the same time, from this machine (head, local) to the worker. The small helper
 * program is used there: from PATH, from a bundle of ours, or copied for this test. */
int link_prove_tcp(node_access *head, node_access *worker, const link_plan *plan, int duration_ms,
    link_proof *out, err *e);
/* The helper program to copy when the worker has none; NULL: the one beside this program. */
void link_prove_helper(const char *path);
/* Mean Gb/s of both rails at once by ib_write_bw, to the worker and then back; the slower of the two. ERR_NOT_FOUND when it is not installed. */
int link_prove_rdma(
    node_access *head, node_access *worker, const link_plan *plan, double gbps[LINK_RAILS], err *e);

/* The engine's own exchange between both machines, as a start would open it (NCCL where both have a
 * GPU, else TCP), for two seconds, with at most 64 MiB a rank. Nothing else may use the port. */
typedef struct link_collective_options {
    node_access *node[LINK_NODES];
    const char *engine[LINK_NODES]; /* tandemd there */
    const link_plan *plan;
    int port; /* on the head's rail A */
} link_collective_options;

typedef struct link_collective_result {
    char kind[16];       /* "NCCL", "peer", "TCP" */
    double gbytes_per_s; /* what each rank gets from the other */
    int way;             /* what NCCL said: +1 RDMA, -1 sockets, 0 nothing */
    char reason[160];
} link_collective_result;

int link_prove_collective(const link_collective_options *o, link_collective_result *out, err *e);

#endif
