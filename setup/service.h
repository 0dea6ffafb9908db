/* The user's systemd units on both machines: the keeper on each, on the head also the start after a
 * boot and the watchdog's timer. Installing writes files and asks systemctl --user; nothing needs
 * root except, on some systems, loginctl enable-linger, which is explained and not forced. One thread. */
#ifndef SETUP_SERVICE_H
#define SETUP_SERVICE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "setup/pair.h"

/* Told what is done, one sentence each; is_warning: the person should read it. */
typedef void (*service_sink)(void *ctx, int node, bool is_warning, const char *text);

/* One line for each file and command, "NODE: ...", for install or remove. Changes nothing. */
int service_plan(const pair_options *o, bool is_removal, buf *out, err *e);
/* Writes the units, reloads and enables them. The timer of the watchdog is only enabled when WATCH is
 * on. ERR_UNSUPPORTED where no systemd answers; the units of the other machine stay. */
int service_install(const pair_options *o, service_sink sink, void *ctx, err *e);
/* Disables and removes them. What runs goes on. */
int service_remove(const pair_options *o, service_sink sink, void *ctx, err *e);
/* Members of an object: nodes with their units, whether each is there, enabled and active, and
 * whether the user's units run without a login (linger). */
void service_write(const pair_options *o, json_w *w);

/* The text of a unit for a machine: the template with the programs' places filled in. */
int service_unit_text(const pair_options *o, int node, const char *name, buf *out, err *e);
/* Names of the units of a machine, ends with NULL. */
const char *const *service_units(int node);

#endif
