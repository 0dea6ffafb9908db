/* Which store the Engram rows come from: small tables lie in the checkpoint and in memory, large
 * ones are read from packed files. */
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/daemon_internal.h"
#include "engine/model/engram_file.h"
#include "engine/model/engram_store_disk.h"
#include "engine/weights/checkpoint.h"

/* Tables up to this size are kept in memory unless --engram says otherwise. */
#define ENGRAM_MEMORY_MAX ((uint64_t)1 << 30)

static uint64_t table_bytes(const model_config *c) {
    uint64_t n = 0;
    for (int i = 0; i < c->n_engram; i++) {
        n += (uint64_t)c->engram[i].n_rows * engram_record_bytes(c->d_engram);
    }
    return n;
}

static bool has_packed(const char *dir, const model_config *c, const int part[2]) {
    const int whole[2] = {0, 1};
    buf path = BUF_INIT;
    engram_file_path(&path, dir, c->engram[0].layer, part);
    bool has = file_exists(buf_cstr(&path));
    engram_file_path(&path, dir, c->engram[0].layer, whole);
    has |= file_exists(buf_cstr(&path));
    buf_release(&path);
    return has;
}

int daemon_engram(const daemon_options *o, int rank, int world, engram_store **out, err *e) {
    model_config *c = mem_alloc(sizeof *c);
    const int part[2] = {rank, world > 1 ? world : 1};
    const char *dir = o->engram_dir.len > 0 ? buf_cstr(&o->engram_dir) : buf_cstr(&o->model_dir);
    buf beside = BUF_INIT;
    *out = NULL;
    int rc = model_config_load(buf_cstr(&o->model_dir), c, e);
    checkpoint_engram_dir(buf_cstr(&o->model_dir), &beside);
    if (rc == OK && c->n_engram > 0 && o->engram_dir.len == 0 && beside.len > 0 &&
        !has_packed(dir, c, part))
        dir = buf_cstr(&beside);
    bool is_wanted =
        rc == OK && c->n_engram > 0 &&
        (o->engram_dir.len > 0 || (table_bytes(c) > ENGRAM_MEMORY_MAX && has_packed(dir, c, part)));
    if (is_wanted) {
        engram_disk_options options = {.cache_bytes = (size_t)o->engram_cache_mib << 20,
            .max_records = DAEMON_MAX_ROWS * c->n_hashes / part[1]};
        rc = engram_store_dir_open(dir, c, part, &options, out, e);
        if (rc == OK) {
            LOG(LOG_INFO, "engram", "tables on disk", "dir=%s cache_mib=%lld", dir,
                (long long)o->engram_cache_mib);
        }
    } else if (rc == OK && table_bytes(c) > ENGRAM_MEMORY_MAX) {
        LOG(LOG_WARN, "engram", "large tables are mapped, not read directly",
            "remedy=\"pack them with: tandem model engram\"");
    }
    buf_release(&beside);
    mem_free(c);
    return rc;
}
