#include "engine/run/memory.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define GUARD_READ_MS 500

static double mib(uint64_t bytes) {
    return (double)bytes / (double)MIB;
}

int memory_plan_check(const memory_plan *p, uint64_t available_bytes, err *e) {
    uint64_t plan = p->weight_bytes + p->cache_bytes + p->work_bytes;
    uint64_t need = plan + p->reserve_bytes;
    if (need <= available_bytes) return OK;
    return err_set(e, ERR_MEMORY,
        "the model needs %.1f MiB and %.1f MiB are kept in reserve, but only %.1f MiB are"
        " available: %.1f MiB short; use a smaller --context or fewer --slots, or end other programs",
        mib(plan), mib(p->reserve_bytes), mib(available_bytes), mib(need - available_bytes));
}

int memory_plan_print(const memory_plan *p, buf *out) {
    return buf_printf(out, "weights %.1f MiB, cache %.1f MiB, work %.1f MiB, reserve %.1f MiB",
        mib(p->weight_bytes), mib(p->cache_bytes), mib(p->work_bytes), mib(p->reserve_bytes));
}

uint64_t memory_reserve_default(uint64_t total_bytes) {
    return total_bytes >= 64 * GIB ? 2 * GIB : total_bytes / 64;
}

static bool find_kib(const char *text, const char *name, uint64_t *bytes) {
    const char *p = strstr(text, name);
    if (p == NULL) return false;
    *bytes = strtoull(p + strlen(name), NULL, 10) * 1024u;
    return true;
}

int memory_machine(uint64_t *available_bytes, uint64_t *total_bytes, err *e) {
    buf text = BUF_MAX(65536);
    int rc = file_read("/proc/meminfo", &text, 65536, e);
    if (rc == OK && (!find_kib(buf_cstr(&text), "MemAvailable:", available_bytes) ||
                        !find_kib(buf_cstr(&text), "MemTotal:", total_bytes))) {
        rc = err_set(e, ERR_IO, "/proc/meminfo does not tell the available memory");
    }
    buf_release(&text);
    return rc;
}

bool memory_guard_allows(const memory_guard *g, uint64_t available_bytes) {
    return g->reserve_bytes == 0 || available_bytes >= g->reserve_bytes;
}

bool memory_guard_allows_now(memory_guard *g, uint64_t *available_bytes) {
    uint64_t now = clock_mono_ms();
    uint64_t total = 0;
    uint64_t available = atomic_load(&g->available_bytes);
    uint64_t read_ms = atomic_load(&g->read_ms);
    if (g->reserve_bytes == 0) return true;
    if (read_ms == 0 || now - read_ms > GUARD_READ_MS) {
        if (memory_machine(&available, &total, NULL) != OK) return true;
        atomic_store(&g->available_bytes, available);
        atomic_store(&g->read_ms, now);
    }
    *available_bytes = available;
    return memory_guard_allows(g, available);
}
