/* How the ranks of one start find each other: every other rank connects to rank 0, both sides prove
 * that they hold the start's secret (it is never sent), then compare what must be equal. One
 * connection per channel, so that step plans, heartbeats and the exchange never wait for each other.
 *
 * A stranger on the port, a rank with another secret or of another start is turned away and the
 * meeting goes on; a rank of this start with another build, model or settings ends it on both sides.
 * Threads: one call by one thread. The descriptors belong to the caller afterwards. */
#ifndef TANDEM_ENGINE_DIST_MEET_H
#define TANDEM_ENGINE_DIST_MEET_H

#include <stdint.h>

#include "engine/base/err.h"

enum { MEET_MAX_WORLD = 16, MEET_SECRET_BYTES = 32, MEET_BUILD_MAX = 64 };
enum { MEET_EXCHANGE, MEET_PLANS, MEET_PULSE, MEET_MAX_CHANNELS };

/* What must be equal on all ranks. */
typedef struct meet_identity {
    uint64_t start_id;          /* of this start, random */
    uint64_t settings;          /* hash; 0 where the other side tells them later */
    uint64_t model;             /* digest of the model's files */
    char build[MEET_BUILD_MAX]; /* build id */
} meet_identity;

typedef struct meet_options {
    int rank, world;
    const char *host; /* of rank 0; NULL or "": 127.0.0.1 */
    int port;         /* rank 0: ignored with listen_fd */
    int listen_fd;    /* rank 0: an already listening socket (taken), or -1 */
    uint8_t secret[MEET_SECRET_BYTES];
    meet_identity identity;
    int n_channels; /* 0: 1 */
    int timeout_ms; /* 0: 30000 */
    int stop_fd;    /* readable: give up with ERR_CANCELLED; below 0: none */
} meet_options;

typedef struct meet_fds {
    int fd[MEET_MAX_CHANNELS][MEET_MAX_WORLD]; /* -1: none; rank 0: to every rank, others: [0] */
} meet_fds;

void meet_fds_init(meet_fds *f);
void meet_fds_close(meet_fds *f);
/* A socket that listens on host:port, close-on-exec. Port 0 picks one; *port is the port then. */
int meet_listen(const char *host, int *port, int *fd, err *e);
/* Blocks until every channel to every rank stands. ERR_TIMEOUT, ERR_AUTH (others than rank 0),
 * ERR_MISMATCH, ERR_NET, ERR_CANCELLED; out holds nothing then. */
int meet_all(const meet_options *options, meet_fds *out, err *e);

#endif
