/* What an ended keeper may have left, and who holds a port. Reads /proc; any thread. */
#ifndef SETUP_KEEPER_SWEEP_H
#define SETUP_KEEPER_SWEEP_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

/* Ends a rank whose keeper is gone: the process named in the keeper's state file, only if it still is
 * that one (same number, same start time). Does nothing while a keeper runs. Appends one JSON
 * object: {"ended": true or false, "pid": ..., "what": ...}. */
int keeper_sweep(buf *out, err *e);

/* Who listens on a TCP port of this machine. Appends {"port": N, "listening": true or false, "pid":
 * ..., "name": ..., "user": ..., "address": ...}; pid, name and user are null when the process cannot be
 * seen. */
int port_owner(int port, buf *out, err *e);

#endif
