/* One rank's process and machine, sampled for all who ask: heartbeats, the metrics page and every
 * stats stream read the same sample, at most NODE_SAMPLE_MS old, so that differences (processor
 * load) are taken over one interval and not over the moments at which somebody asks. Any thread. */
#ifndef TANDEM_API_NODE_SAMPLE_H
#define TANDEM_API_NODE_SAMPLE_H

#include "engine/dist/figures.h"

enum { NODE_SAMPLE_MS = 200 };

typedef struct node_sampler node_sampler;

/* sys: "/sys", or a tree that stands for it in tests. Never NULL. */
node_sampler *node_sampler_new(const char *sys);
void node_sampler_free(node_sampler *s);
/* Fills the fields of process, machine, GPU and RDMA rails, and time_ms; leaves the others. */
void node_sampler_take(node_sampler *s, rank_figures *out);

#endif
