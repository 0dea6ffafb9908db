/* A digest of the model's files: ranks compare theirs, and the disk cache is named by it. */
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/daemon_internal.h"

#define DIGEST_WHOLE_BYTES ((uint64_t)64 << 20)
#define DIGEST_PART_BYTES ((size_t)1 << 20)

typedef struct digest_walk {
    const char *dir;
    sha256 *sum;
} digest_walk;

/* Small files whole; of large ones the size and both ends, where headers and last tensors are. */
static int add_file(digest_walk *w, const char *path, uint64_t size, err *e) {
    size_t part = size <= DIGEST_WHOLE_BYTES ? (size_t)size : DIGEST_PART_BYTES;
    uint8_t *data = mem_try_alloc(part + 1);
    if (data == NULL) return err_set(e, ERR_MEMORY, "no memory to read %s", path);
    FILE *f = fopen(path, "rbe");
    int rc = f != NULL ? OK : err_errno(e, "opening %s", path);
    for (int end = 0; end < (size > part ? 2 : 1) && rc == OK; end++) {
        rc = fd_read_at(fileno(f), data, part, end == 0 ? 0 : size - part, e);
        if (rc == OK) sha256_update(w->sum, data, part);
    }
    if (f != NULL) fclose(f);
    mem_free(data);
    return rc;
}

static int add_entry(void *ctx, const char *name, err *e) {
    digest_walk *w = ctx;
    buf path = BUF_INIT;
    uint64_t size = 0;
    if (!str_ends(name, ".json") && !str_ends(name, ".safetensors")) return OK;
    path_join(&path, w->dir, name);
    int rc = file_size(buf_cstr(&path), &size, e);
    sha256_update(w->sum, name, strlen(name) + 1);
    sha256_update(w->sum, &size, sizeof size);
    if (rc == OK) rc = add_file(w, buf_cstr(&path), size, e);
    buf_release(&path);
    return rc;
}

int ranks_model_digest(const char *dir, uint64_t *out, err *e) {
    digest_walk w = {dir, sha256_new()};
    uint8_t sum[SHA256_BYTES];
    int rc = dir_each(dir, add_entry, &w, e);
    sha256_finish(w.sum, sum);
    sha256_free(w.sum);
    memcpy(out, sum, sizeof *out);
    return err_add(e, rc, "reading the model's files");
}
