/* Whether a pack fits into memory before anything is read. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "engine/weights/pack.h"

enum { MEMINFO_MAX = 64 << 10 };
#define GIB ((double)((uint64_t)1 << 30))

/* The value of "NAME:   123 kB" in bytes; UINT64_MAX when it is not there. */
static uint64_t meminfo_bytes(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, name, n) == 0 && line[n] == ':') {
            char *end = NULL;
            unsigned long long kib = strtoull(line + n + 1, &end, 10);
            return end != line + n + 1 && kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return UINT64_MAX;
}

int pack_check_meminfo(
    const char *meminfo, const uint64_t bytes_reserve[2], bool is_device, err *e) {
    uint64_t need = bytes_reserve[0] + bytes_reserve[1];
    uint64_t available = meminfo_bytes(meminfo, "MemAvailable");
    uint64_t unused = meminfo_bytes(meminfo, "MemFree");
    if (available < need)
        return err_set(e, ERR_MEMORY,
            "the weights need %.1f GiB with %.1f GiB left over, and only %.1f GiB of memory are "
            "available (%.1f GiB free); close other programs, or restart this machine",
            (double)bytes_reserve[0] / GIB, (double)bytes_reserve[1] / GIB, (double)available / GIB,
            (double)unused / GIB);
    if (is_device && unused < need)
        return err_set(e, ERR_MEMORY,
            "the weights need %.1f GiB with %.1f GiB left over; %.1f GiB are available but only "
            "%.1f GiB are free, and the GPU driver does not take what files are cached in: empty "
            "the page cache first (sync; echo 1 > /proc/sys/vm/drop_caches, as root)",
            (double)bytes_reserve[0] / GIB, (double)bytes_reserve[1] / GIB, (double)available / GIB,
            (double)unused / GIB);
    return OK;
}

int pack_check_memory(uint64_t bytes, uint64_t reserve, bool is_device, err *e) {
    buf text = BUF_INIT;
    int rc = file_read("/proc/meminfo", &text, MEMINFO_MAX, NULL);
    if (rc == OK)
        rc = pack_check_meminfo(buf_cstr(&text), (const uint64_t[2]){bytes, reserve}, is_device, e);
    else
        rc = OK; /* not known is no reason to refuse: the allocation will tell */
    buf_release(&text);
    return rc;
}
