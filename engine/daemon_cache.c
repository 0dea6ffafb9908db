/* The options of the prefix cache, and what makes its entries on disk ours: the model's files, the
 * back end with its arithmetic, and the number of ranks. */
#include <string.h>

#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/daemon_internal.h"

int daemon_cache_options(const daemon_options *o, const model *m, run_options *out, err *e) {
    struct {
        uint64_t model;
        int64_t world;
        char arithmetic[64];
    } self = {0};
    model_info info;
    out->no_cache = o->no_cache;
    out->cache_ram_bytes = (uint64_t)o->cache_ram_mib << 20;
    if (o->no_cache || o->cache_dir.len == 0 || o->cache_disk_mib == 0) return OK;
    int rc = daemon_model_digest(o, &self.model, e);
    if (rc != OK) return err_add(e, rc, "naming the entries of the disk cache");
    model_get_info(m, &info);
    self.world = info.world;
    str_copy(self.arithmetic, sizeof self.arithmetic, info.arithmetic);
    sha256_of(&self, sizeof self, out->cache_identity);
    out->cache_dir = buf_cstr(&o->cache_dir);
    out->cache_disk_bytes = (uint64_t)o->cache_disk_mib << 20;
    out->cache_age_hours = (uint32_t)o->cache_age_hours;
    return OK;
}
