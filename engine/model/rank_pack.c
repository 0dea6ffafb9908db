/* Using a rank pack: finding it, checking that it is this model's, bringing it to memory. */
#include "engine/model/rank_pack.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engine/base/str.h"
#include "engine/model/model_internal.h"

enum { NAME_CAP = 256 };

int rank_pack_place(
    buf *out, const char *place, exl3_layout layout, const int rank_world[2], err *e) {
    struct stat st;
    if (stat(place, &st) != 0) {
        return err_set(e, ERR_NOT_FOUND,
            "there are no prepared files at %s; `tandem prepare` makes them", place);
    }
    if (S_ISDIR(st.st_mode)) {
        return pack_path(out, place, layout, rank_world);
    }
    buf_reset(out);
    return buf_puts(out, place);
}

static int open_place(
    const char *place, const kernels *ops, const int rank_world[2], pack **out, err *e) {
    buf path = BUF_INIT;
    *out = NULL;
    if (ops->packed_view == NULL) {
        return err_set(e, ERR_UNSUPPORTED,
            "the %s engine of this build does not read prepared files; start without --pack",
            ops->name);
    }
    int rc = rank_pack_place(&path, place, ops->layout, rank_world, e);
    if (rc == OK) {
        rc = pack_open(buf_cstr(&path), out, e);
    }
    buf_release(&path);
    return rc;
}

int rank_pack_source(
    const char *place, const char *backend, const int rank_world[2], uint64_t *out, err *e) {
    const kernels *ops = kernels_find(backend);
    pack *p = NULL;
    if (ops == NULL) {
        return err_set(e, ERR_UNSUPPORTED, "this program has no back end named %s", backend);
    }
    int rc = open_place(place, ops, rank_world, &p, e);
    if (rc == OK) {
        memcpy(out, pack_get_info(p)->id.source, sizeof(*out));
    }
    pack_close(p);
    return rc;
}

/* ---- the tensors are those of the model ---- */

static int check_linear(const model *m, const char *name, const int in_out[2], err *e) {
    tp_part part;
    const int rank_world[2] = {m->rank, m->world};
    int rc = tp_part_of(&m->config, name, rank_world, in_out, &part, e);
    if (rc != OK || part.is_absent) {
        return rc;
    }
    const pack_entry *t = pack_find(m->pack, name);
    if (t != NULL && t->kind != PACK_FLOATS && t->n_in == part.in1 - part.in0 &&
        t->n_out == part.out1 - part.out0) {
        return OK;
    }
    return err_set(e, ERR_FORMAT, "%s: %s %s; run `tandem prepare` to make it again",
        pack_file(m->pack), name, t == NULL ? "is missing" : "has not the size this rank needs");
}

static int check_spec(void *ctx, const weight_spec *w, err *e) {
    const model *m = ctx;
    if (w->role != WEIGHT_LINEAR || (w->is_stage && !model_has_drafts(m))) {
        return OK;
    }
    int in_out[2] = {(int)w->dims[1], (int)w->dims[0]};
    if (!str_ends(w->name, "attn.wo_a")) {
        return check_linear(m, w->name, in_out, e);
    }
    int rc = OK, groups = m->config.o_groups;
    in_out[1] /= groups;
    for (int g = 0; g < groups && rc == OK; g++) {
        char name[NAME_CAP];
        snprintf(name, sizeof(name), "%s.slice.%d", w->name, g);
        rc = check_linear(m, name, in_out, e);
    }
    return rc;
}

/* ---- memory ---- */

static int on_tick(void *ctx, const pack_progress *p) {
    const model *m = ctx;
    return m->options.load_tick(m->options.load_ctx, p->done_bytes, p->total_bytes);
}

static int take(void *ctx, uint64_t offset, const void *data, size_t n, err *e) {
    model *m = ctx;
    m->ops->copy(&m->k, m->pack_area + offset, data, n);
    if (m->k.rc != OK) {
        *e = m->k.error;
    }
    return m->k.rc;
}

/* Anonymous memory that is not touched before the file is read into it. */
static int map_area(model *m, size_t bytes, err *e) {
    int rc = pack_check_memory(bytes, 0, false, e);
    if (rc != OK) {
        return rc;
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return err_errno(e, "taking %zu MiB of memory for the weights", bytes >> 20);
    }
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    m->pack_map = p;
    m->pack_map_bytes = bytes;
    m->pack_area = p;
    return OK;
}

static int load_area(model *m, err *e) {
    size_t bytes = (size_t)pack_get_info(m->pack)->data_bytes;
    pack_load_options o = {.tick = m->options.load_tick != NULL ? on_tick : NULL, .tick_ctx = m};
    if (m->ops->is_host) {
        int rc = map_area(m, bytes, e);
        m->weight_bytes += bytes;
        o.area = m->pack_area;
        return rc == OK ? pack_load(m->pack, &o, e) : rc;
    }
    void *area = NULL;
    int rc = model_new_memory(m, bytes, &area, e);
    m->pack_area = area;
    o.take = take;
    o.ctx = m;
    return rc == OK ? pack_load(m->pack, &o, e) : rc;
}

int model_open_pack(model *m, err *e) {
    const int rank_world[2] = {m->rank, m->world};
    rank_pack_options want = {.model_dir = m->options.dir,
        .rank = m->rank,
        .world = m->world,
        .layout = m->ops->layout,
        .without_drafts = !model_has_drafts(m)};
    pack_identity id;
    if (m->options.has_float_exl3) {
        return err_set(e, ERR_ARG, "a pack holds no float form of EXL3 matrices");
    }
    int rc = open_place(m->options.pack, m->ops, rank_world, &m->pack, e);
    if (rc == OK) {
        rc = rank_pack_identity(&want, &id, e);
    }
    if (rc == OK) {
        rc = pack_check_identity(m->pack, &id, e);
    }
    if (rc == OK) {
        rc = weight_specs_each(&m->config, check_spec, m, e);
    }
    if (rc == OK && m->is_dry) {
        m->weight_bytes += (size_t)pack_get_info(m->pack)->data_bytes;
    }
    return rc == OK && !m->is_dry ? load_area(m, e) : rc;
}

void model_close_pack(model *m) {
    if (m->pack_map != NULL) {
        (void)munmap(m->pack_map, m->pack_map_bytes);
    }
    pack_close(m->pack);
}
