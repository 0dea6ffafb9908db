/* What a model folder holds, as one digest that is quick to make. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/weights/pack.h"

#define WHOLE_BYTES ((uint64_t)64 << 20)
#define PART_BYTES ((size_t)1 << 20)

typedef struct digest_walk {
    const char *dir;
    sha256 *sum;
} digest_walk;

/* Small files whole; of large ones both ends, where headers and last tensors are. */
static int add_file(digest_walk *w, const char *path, uint64_t size, err *e) {
    size_t part = size <= WHOLE_BYTES ? (size_t)size : PART_BYTES;
    uint8_t *data = mem_try_alloc(part + 1);
    if (data == NULL) return err_set(e, ERR_MEMORY, "no memory to read %s", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd >= 0 ? OK : err_errno(e, "opening %s", path);
    for (int end = 0; end < (size > part ? 2 : 1) && rc == OK; end++) {
        rc = fd_read_at(fd, data, part, end == 0 ? 0 : size - part, e);
        if (rc == OK) sha256_update(w->sum, data, part);
    }
    if (fd >= 0) close(fd);
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

int weights_digest(const char *dir, uint8_t out[32], err *e) {
    digest_walk w = {.dir = dir, .sum = sha256_new()};
    int rc = dir_each(dir, add_entry, &w, e);
    sha256_finish(w.sum, out);
    sha256_free(w.sum);
    return rc;
}

static int count_shard(void *ctx, const char *name, err *e) {
    (void)e;
    *(int *)ctx += str_ends(name, ".safetensors");
    return OK;
}

bool weights_has_shards(const char *dir) {
    int n = 0;
    return dir_each(dir, count_shard, &n, NULL) == OK && n > 0;
}
