/* Where finished copies of a file may already lie: folders of other tools, read only. The size must
 * fit; the digest is looked at by the hasher. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "setup/hub_internal.h"

enum { N_FORMS = 5 };

/* Name of form i of file f under a folder, or false when the form does not fit. */
static bool form(const manifest_file *f, const char *profile, int i, buf *out) {
    const char *slash = strchr(f->repo, '/');
    buf_reset(out);
    switch (i) {
    case 0: /* a hub cache names large files by their SHA-256 */
        if (f->kind == MANIFEST_SIZE_ONLY) return false;
        return buf_printf(out, "models--%.*s--%s/blobs/%s", (int)(slash - f->repo), f->repo,
                   slash + 1, f->digest) == OK;
    case 1:
        return buf_printf(out, "models--%.*s--%s/snapshots/%s/%s", (int)(slash - f->repo), f->repo,
                   slash + 1, f->commit, f->path) == OK;
    case 2:
        return buf_puts(out, f->path) == OK;
    case 3:
        return buf_printf(out, "%s/%s", slash + 1, f->path) == OK;
    default:
        return buf_printf(out, "%s/%s/%s", f->role == MANIFEST_ENGRAM ? "engram" : "models",
                   profile, f->path) == OK;
    }
}

char *hub_candidate(const hub *h, hub_file *f) {
    if (h->o.search == NULL) return NULL;
    size_t n_dirs = 0;
    while (h->o.search[n_dirs] != NULL)
        n_dirs++;
    buf name = BUF_INIT, path = BUF_INIT;
    char *found = NULL;
    while (found == NULL && f->i_candidate < n_dirs * N_FORMS) {
        size_t i = f->i_candidate++;
        struct stat st;
        if (!form(f->f, h->m->profile, (int)(i % N_FORMS), &name)) continue;
        path_join(&path, h->o.search[i / N_FORMS], buf_cstr(&name));
        char *real = realpath(buf_cstr(&path), NULL); /* caches are full of links */
        if (real != NULL && stat(real, &st) == 0 && S_ISREG(st.st_mode) &&
            (uint64_t)st.st_size == f->f->size)
            found = mem_strdup(real);
        free(real);
    }
    buf_release(&name);
    buf_release(&path);
    return found;
}
