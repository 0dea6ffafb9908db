/* Where our files live (XDG, one user). Every function appends to a buffer and touches nothing on
 * disk unless it says so. Any thread; reads the environment only. */
#ifndef SETUP_PATHS_H
#define SETUP_PATHS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

/* $XDG_CONFIG_HOME/tandem, else ~/.config/tandem. Fails only without XDG variable, HOME and passwd
 * entry, or when a path is not absolute. */
int paths_config(buf *out, err *e);
/* $XDG_STATE_HOME/tandem, else ~/.local/state/tandem. */
int paths_state(buf *out, err *e);
/* $XDG_RUNTIME_DIR/tandem, else /run/user/UID/tandem if that folder of the system exists and is
 * ours, else STATE/run. */
int paths_runtime(buf *out, err *e);

/* CONFIG/tandem.conf */
int paths_settings_file(buf *out, err *e);
/* $TANDEM_SOCKET, else RUNTIME/engine.sock */
int paths_socket(buf *out, err *e);
/* STATE/logs */
int paths_logs(buf *out, err *e);
/* STATE/logs/engine.log: what a daemon started here writes */
int paths_engine_log(buf *out, err *e);

/* Makes a private folder (0700) with its parents and checks that it is ours. */
int paths_make_private(const char *dir, err *e);

#endif
