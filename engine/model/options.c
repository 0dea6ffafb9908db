/* Options made definite, the sizes of a rank's part, and memory: what opening a model and listing its
 * weights for a pack share. Needs the config only. */
#include "engine/model/model_internal.h"

static void pick(int *value, int fallback) {
    if (*value <= 0) {
        *value = fallback;
    }
}

static int resolve_options(model *m, const model_options *o, err *e) {
    const model_config *c = &m->config;
    model_options *r = &m->options;
    *r = *o;
    pick(&r->world, 1);
    pick(&r->n_slots, 1);
    pick(&r->page_tokens, 128);
    pick(&r->max_rows, 256);
    pick(&r->max_rollback, 16);
    pick(&r->max_logit_rows, r->n_slots * ((model_has_drafts(m) ? c->block : 0) + 1));
    pick(&r->engram_timeout_ms, 5000);
    if (r->max_context <= 0 || r->max_context > c->max_context) {
        r->max_context = c->max_context;
    }
    int threads = r->n_threads > 0 ? r->n_threads : thread_cpu_count();
    m->n_threads = threads > KERNEL_MAX_THREADS ? KERNEL_MAX_THREADS : threads;
    if (r->n_threads <= 0 && m->n_threads > 16) {
        m->n_threads = 16;
    }
    if (r->page_tokens % 2 != 0) {
        return err_set(e, ERR_ARG, "page_tokens is %d; pages hold whole groups of two positions",
            r->page_tokens);
    }
    pick(&r->n_pages, r->n_slots * (int)((r->max_context + r->page_tokens - 1) / r->page_tokens));
    if (r->rank < 0 || r->rank >= r->world || (r->world > 1 && r->exchange == NULL && !m->is_dry)) {
        return err_set(e, ERR_ARG, "rank %d of %d without an exchange", r->rank, r->world);
    }
    return OK;
}

static void find_part(model *m) {
    const model_config *c = &m->config;
    int w = m->world, r = m->rank;
    m->part = (model_part){.n_heads = c->n_heads / w,
        .head0 = r * (c->n_heads / w),
        .n_groups = c->o_groups / w,
        .group0 = r * (c->o_groups / w),
        .n_ff = c->n_ff / w,
        .n_vocab = c->n_vocab / w,
        .vocab0 = r * (c->n_vocab / w),
        .n_columns = c->n_hashes / w,
        .column0 = r * (c->n_hashes / w)};
}

int model_prepare(model *m, const model_options *o, err *e) {
    if (o->dir == NULL) {
        return err_set(e, ERR_ARG, "no model folder was given");
    }
    if (kernels_find(o->backend) == NULL) {
        return err_set(e, ERR_UNSUPPORTED, "this program has no back end named %s", o->backend);
    }
    m->ops = kernels_find(o->backend);
    int rc = model_config_load(o->dir, &m->config, e);
    if (rc == OK) {
        m->options.without_drafts = o->without_drafts;
        rc = resolve_options(m, o, e);
    }
    if (rc == OK) {
        rc = model_config_check_world(&m->config, m->options.world, e);
    }
    if (rc != OK) {
        return rc;
    }
    m->rank = m->options.rank;
    m->world = m->options.world;
    m->x = m->options.exchange;
    m->k.is_bf16 = m->options.rounding == MODEL_ROUND_BF16;
    bool is_exact = m->options.has_exact_kv;
    m->window_format = is_exact ? KV_FLOAT : KV_WINDOW;
    m->compressed_format = is_exact ? KV_FLOAT : KV_COMPRESSED;
    m->key_format = is_exact ? KV_FLOAT : KV_KEY;
    find_part(m);
    int block = model_has_drafts(m) ? m->config.block : 0;
    int pending = block > 0 ? m->options.max_rollback + 1 : 1;
    int per_slot = block > pending ? block : pending;
    int slots = m->options.n_slots * per_slot;
    m->rows_cap = m->options.max_rows > slots ? m->options.max_rows : slots;
    model_lay_out_state(m);
    return OK;
}

int model_new_memory(model *m, size_t bytes, void **out, err *e) {
    *out = NULL;
    m->weight_bytes += bytes;
    if (m->is_dry) {
        return OK;
    }
    void *p = m->ops->mem_new(bytes);
    if (p == NULL) {
        return err_set(e, ERR_MEMORY,
            "no memory for %zu MiB; use a smaller context, fewer streams or pages", bytes >> 20);
    }
    if (m->n_owned == m->cap_owned) {
        m->cap_owned = m->cap_owned == 0 ? 256 : m->cap_owned * 2;
        m->owned = mem_realloc(m->owned, m->cap_owned * sizeof(*m->owned));
    }
    m->owned[m->n_owned++] = p;
    *out = p;
    return OK;
}
