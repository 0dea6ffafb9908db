/* A measurement of the cable by plain TCP: rate over several streams and the time of round trips.
 * One side serves one session and ends; both sides prove that they know a secret that was handed
 * over by ssh. Uses sockets and threads only, so the small helper program can carry it. */
#ifndef SETUP_LINK_PROBE_H
#define SETUP_LINK_PROBE_H

#include <stdint.h>

#include "engine/base/err.h"

enum { LINK_PROBE_SECRET = 32, LINK_PROBE_STREAMS_MAX = 32 };

typedef struct link_probe_options {
    const char *address; /* to listen on, or of the server */
    const char *source;  /* client: own address of the rail, NULL: any */
    int port;            /* server: 0 takes a free one */
    int streams;         /* 0: 8 */
    int duration_ms;     /* 0: 5000 */
    int pings;           /* 0: 200 */
    int wait_ms;         /* server: how long it waits for its client, 0: 30 s */
    uint8_t secret[LINK_PROBE_SECRET];
} link_probe_options;

typedef struct link_probe_result {
    double gbps; /* arrived bytes per time, measured by the receiver */
    uint64_t bytes;
    double median_ms, worst_ms; /* of a round trip of one byte, while nothing else runs */
    int pings, lost;
} link_probe_result;

/* Serves one session. ready, if not NULL, is called with the port once it listens. ERR_TIMEOUT when
 * nobody came, ERR_AUTH when nobody with the secret came. */
int link_probe_serve(
    const link_probe_options *o, void (*ready)(void *ctx, int port), void *ctx, err *e);
/* Connects, measures, and fills out. */
int link_probe_run(const link_probe_options *o, link_probe_result *out, err *e);

#endif
