#include "engine/api/process.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"

static double cpu_seconds(void) {
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0) return -1.0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

void process_sampler_init(process_sampler *s) {
    s->last_ns = clock_mono_ns();
    s->last_cpu_s = cpu_seconds();
}

/* The number in kB behind a name of /proc/meminfo, in bytes. */
static double meminfo_bytes(const char *text, const char *name) {
    const char *p = strstr(text, name);
    if (p == NULL) return -1.0;
    return (double)strtoull(p + strlen(name), NULL, 10) * 1024.0;
}

static double resident_bytes(void) {
    buf text = BUF_MAX(4096);
    double bytes = -1.0;
    if (file_read("/proc/self/statm", &text, 4096, NULL) == OK) {
        const char *p = strchr(buf_cstr(&text), ' ');
        if (p != NULL) bytes = (double)strtoull(p, NULL, 10) * (double)sysconf(_SC_PAGESIZE);
    }
    buf_release(&text);
    return bytes;
}

void process_sampler_take(process_sampler *s, process_sample *out) {
    buf text = BUF_MAX(65536);
    *out = (process_sample){-1.0, -1.0, -1.0, -1.0};
    out->process_bytes = resident_bytes();
    if (file_read("/proc/meminfo", &text, 65536, NULL) == OK) {
        double available = meminfo_bytes(buf_cstr(&text), "MemAvailable:");
        out->machine_total_bytes = meminfo_bytes(buf_cstr(&text), "MemTotal:");
        if (available >= 0.0 && out->machine_total_bytes >= 0.0) {
            out->machine_used_bytes = out->machine_total_bytes - available;
        }
    }
    buf_release(&text);
    uint64_t now = clock_mono_ns();
    double cpu = cpu_seconds();
    if (cpu >= 0.0 && s->last_cpu_s >= 0.0 && now > s->last_ns) {
        out->cpu_percent = (cpu - s->last_cpu_s) * 100.0 * 1e9 / (double)(now - s->last_ns);
    }
    s->last_ns = now;
    s->last_cpu_s = cpu;
}

int64_t process_id(void) {
    return getpid();
}

void process_return_memory(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
