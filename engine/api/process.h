/* What this process and this machine use, from /proc. Each stream keeps its own sampler, because
 * processor load is a difference of two readings. */
#ifndef TANDEM_API_PROCESS_H
#define TANDEM_API_PROCESS_H

#include <stdint.h>

/* Values below 0 are unknown. */
typedef struct process_sample {
    double process_bytes;
    double machine_used_bytes, machine_total_bytes;
    double cpu_percent; /* of one core: 200 is two busy cores; since the last reading */
} process_sample;

typedef struct process_sampler {
    uint64_t last_ns;
    double last_cpu_s;
} process_sampler;

void process_sampler_init(process_sampler *s);
void process_sampler_take(process_sampler *s, process_sample *out);
int64_t process_id(void);
/* Free pages in the middle of the heap go back to the system. Takes milliseconds. */
void process_return_memory(void);

#endif
