/* Heartbeats between rank 0 and the other ranks, on a connection of their own: who is alive, in
 * which phase, with which figures. A thread sends a beat every PULSE_MS and listens; a peer that
 * closes, is silent for lost_ms or says that it failed is lost, and on_lost is called once, from the
 * pulse's thread. A peer that said goodbye is not lost.
 *
 * Threads: pulse_report, pulse_fail, pulse_bye and pulse_peer from any; open and close from one. */
#ifndef TANDEM_ENGINE_DIST_PULSE_H
#define TANDEM_ENGINE_DIST_PULSE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/dist/figures.h"
#include "engine/dist/meet.h"

enum { PULSE_MS = 200, PULSE_LOST_MS = 1400, PULSE_TEXT_MAX = 256 };

typedef struct pulse pulse;

typedef struct pulse_options {
    int rank, world;
    const int *fds; /* rank 0: [world], others: [0]; taken */
    int lost_ms;    /* 0: PULSE_LOST_MS */
    /* Fills the figures of this rank before a beat; NULL: none. */
    void (*fill)(void *ctx, rank_figures *out);
    /* A peer is lost: the sentence names the rank and why. */
    void (*on_lost)(void *ctx, int rank, const err *why);
    /* A peer said goodbye (a clean stop). */
    void (*on_bye)(void *ctx, int rank);
    void *ctx;
} pulse_options;

int pulse_open(const pulse_options *options, pulse **out, err *e);
/* Stops the thread. NULL allowed. Not from a callback. */
void pulse_close(pulse *p);
/* The last report of a peer and how old it is; false if none came yet. */
bool pulse_peer(pulse *p, int rank, rank_figures *out, double *age_s);
/* Tells all peers at once why this rank ends. */
void pulse_fail(pulse *p, const err *why);
/* Tells all peers that this rank stops on purpose. */
void pulse_bye(pulse *p);

#endif
