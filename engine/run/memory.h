/* Whether the machine has the memory: before the model is loaded (the plan, refused with the
 * shortfall) and while it runs (new requests are refused before memory runs out; running ones go
 * on). On machines where the GPU shares the memory, this is its memory too.
 * Threads: memory_plan_* from any; a memory_guard from any. */
#ifndef TANDEM_RUN_MEMORY_H
#define TANDEM_RUN_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

typedef struct memory_plan {
    uint64_t weight_bytes;  /* resident weights and tables */
    uint64_t cache_bytes;   /* KV pages and slots */
    uint64_t work_bytes;    /* scratch of a step */
    uint64_t reserve_bytes; /* must stay free for the rest of the machine */
} memory_plan;

/* OK if available_bytes hold the plan and its reserve; else ERR_MEMORY with both and the
 * shortfall. */
int memory_plan_check(const memory_plan *p, uint64_t available_bytes, err *e);
/* One line of text: the parts in MiB. */
int memory_plan_print(const memory_plan *p, buf *out);
/* What is kept free on a machine of this size when nobody says: 2 GiB from 64 GiB on, else one part
 * in 64. */
uint64_t memory_reserve_default(uint64_t total_bytes);

/* MemAvailable and MemTotal of this machine. ERR_IO when /proc does not say. */
int memory_machine(uint64_t *available_bytes, uint64_t *total_bytes, err *e);

/* Refuses new work while less than the reserve is available. */
typedef struct memory_guard {
    uint64_t reserve_bytes; /* 0: never refuses */
    _Atomic uint64_t available_bytes, read_ms;
} memory_guard;
/* False if a reading of available_bytes forbids new work. */
bool memory_guard_allows(const memory_guard *g, uint64_t available_bytes);
/* The same with the machine's own reading, at most half a second old. */
bool memory_guard_allows_now(memory_guard *g, uint64_t *available_bytes);

#endif
