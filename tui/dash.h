/*
 * Parts of the Dashboard, drawn from the samples of both nodes. Pure drawing; one thread.
 */
#ifndef TUI_DASH_H
#define TUI_DASH_H

#include "tui/app_internal.h"

/* One node: memory, load, heat, steps, link; or the parts of its memory. */
void dash_node_draw(app *a, const gauges *g, area box, int i_rank);
/* The newest reply: first token, rates, drafts, cache. */
void dash_reply_draw(app *a, const gauges *g, area box);
/* KV pages of each node; prefix cache, drafts by position and requests where there is room. */
int dash_kv_rows(const gauges *g, int n_free);
void dash_kv_draw(app *a, const gauges *g, area box);
/* The worst alert and how many there are, in one row. */
void dash_alert_draw(app *a, area row);

#endif
