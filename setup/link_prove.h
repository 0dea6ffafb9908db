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
/* Mean Gb/s of both rails at once by ib_write_bw. ERR_NOT_FOUND when it is not installed. */
int link_prove_rdma(
    node_access *head, node_access *worker, const link_plan *plan, double gbps[LINK_RAILS], err *e);

#endif
