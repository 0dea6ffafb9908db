/* A digest of the model's files: ranks compare theirs, and the disk cache is named by it. A pack
 * says of which files it was made, so that a node with a pack needs no others. */
#include <string.h>

#include "engine/daemon_internal.h"
#include "engine/model/rank_pack.h"

int daemon_model_digest(const daemon_options *o, uint64_t *out, err *e) {
    const int rank_world[2] = {o->role == DAEMON_RANK ? (int)o->rank : 0, daemon_world(o)};
    uint8_t sum[32];
    if (o->pack_path.len > 0) {
        const char *backend = o->backend.len > 0 ? buf_cstr(&o->backend) : NULL;
        return rank_pack_source(buf_cstr(&o->pack_path), backend, rank_world, out, e);
    }
    int rc = weights_digest(buf_cstr(&o->model_dir), sum, e);
    memcpy(out, sum, sizeof *out);
    return err_add(e, rc, "reading the model's files");
}
