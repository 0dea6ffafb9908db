#ifndef TANDEM_BASE_CLOCK_H
#define TANDEM_BASE_CLOCK_H
/* Time. Monotonic for intervals and deadlines, wall for what people and files see. Any thread. */
#include <stdint.h>

uint64_t clock_mono_ns(void);
uint64_t clock_mono_ms(void);
/* Processor time of the calling thread: what work has taken, whatever else the machine does. */
uint64_t clock_thread_ms(void);
/* Milliseconds since 1970-01-01 UTC. */
uint64_t clock_wall_ms(void);
/* Sleeps the full time also across signals. */
void sleep_ms(uint64_t ms);
/* "2026-01-31T23:59:59.123Z" of a wall time, 24 characters and a NUL. */
void clock_format_utc(uint64_t wall_ms, char out[32]);

#endif
