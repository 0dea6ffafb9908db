/* Whether an exchange carries what it is given, before anything depends on it, and how long a round
 * trip takes. Every rank calls it at the same place. Device kinds are probed on their host side;
 * their device side is exercised by the first reply. */
#ifndef TANDEM_ENGINE_DIST_PROBE_H
#define TANDEM_ENGINE_DIST_PROBE_H

#include "engine/dist/exchange.h"

/* *best_us: the shortest round trip of a small message. ERR_DEVICE when a sum came out wrong, else
 * what the exchange says. */
int exchange_probe(exchange *x, double *best_us, err *e);

#endif
