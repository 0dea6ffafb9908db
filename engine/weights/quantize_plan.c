#include "engine/weights/quantize_plan.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"

static const uint64_t DEFAULT_SHARD_BYTES = (uint64_t)8 << 30;

typedef struct plan_run {
    quantize_plan *plan;
    const checkpoint *k;
    const quantize_options *o;
    int o_groups;
} plan_run;

int plan_padded(int n) {
    return (n + EXL3_BLOCK - 1) / EXL3_BLOCK * EXL3_BLOCK;
}

uint64_t plan_item_bytes(const plan_item *it) {
    if (!it->is_matrix) return st_elements(it->tensor) * st_dtype_bytes(it->dtype);
    int in = plan_padded(it->source.in);
    int out = plan_padded(it->source.out);
    return exl3_trellis_bytes(in, out, it->k2) + 2 * (uint64_t)(in + out) + sizeof(int32_t);
}

const char *quantize_marker(exl3_codebook c, uint32_t *value) {
    *value = c == EXL3_MUL1 ? EXL3_MUL1_MULTIPLIER : EXL3_MCG_MULTIPLIER;
    return c == EXL3_MUL1 ? "mul1" : c == EXL3_MCG ? "mcg" : NULL;
}

static plan_item *add_item(quantize_plan *p, const char *name) {
    if (p->n_items == p->cap_items) {
        p->cap_items = p->cap_items == 0 ? 256 : p->cap_items * 2;
        p->items = mem_realloc(p->items, (size_t)p->cap_items * sizeof *p->items);
    }
    plan_item *it = &p->items[p->n_items++];
    memset(it, 0, sizeof *it);
    it->name = mem_strdup(name);
    return it;
}

static int add_matrix(plan_run *r, const char *name, int k2, err *e) {
    linear_source s;
    int rc = checkpoint_linear(r->k, name, &s, e);
    if (rc != OK) return rc;
    if (s.kind == LINEAR_EXL3) {
        return err_set(e, ERR_UNSUPPORTED,
            "%s is EXL3 already; give the folder of the original weights", name);
    }
    if (!exl3_rate_ok(r->plan->codebook, k2)) {
        return err_set(e, ERR_ARG, "%s: %g bits do not exist for this codebook", name, k2 / 2.0);
    }
    if (s.in > EXL3_MAX_IN) {
        return err_set(e, ERR_UNSUPPORTED, "%s has %d inputs; at most %d can be quantized", name,
            s.in, EXL3_MAX_IN);
    }
    plan_item *it = add_item(r->plan, name);
    it->is_matrix = true;
    it->k2 = k2;
    it->source = s;
    r->plan->n_matrices++;
    r->plan->weights += (uint64_t)s.in * (uint64_t)s.out;
    return OK;
}

static void add_copy(plan_run *r, const st_tensor *t, const quantize_rule *rule) {
    bool is_float = t->dtype == ST_F32 || t->dtype == ST_F16 || t->dtype == ST_BF16;
    plan_item *it = add_item(r->plan, t->name);
    it->tensor = t;
    it->dtype = rule->action == ACTION_FLOAT && is_float ? rule->dtype : t->dtype;
}

/* Copies P.weight and P.scale (or the tensor itself when it has no parts). */
static void add_copies(plan_run *r, const char *name, const quantize_rule *rule) {
    static const char *const parts[] = {"", ".weight", ".scale"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char full[256];
        snprintf(full, sizeof full, "%s%s", name, parts[i]);
        const st_tensor *t = st_find(checkpoint_set(r->k), full);
        if (t != NULL) {
            add_copy(r, t, rule);
        }
    }
}

static int plan_spec(void *ctx, const weight_spec *w, err *e) {
    plan_run *r = ctx;
    quantize_rule rule = quantize_map_find(r->o->map, w->name);
    int rc = OK;
    if (w->role != WEIGHT_LINEAR || rule.action != ACTION_BITS) {
        add_copies(r, w->name, &rule);
        return OK;
    }
    if (!str_ends(w->name, "attn.wo_a")) return add_matrix(r, w->name, rule.k2, e);
    for (int g = 0; g < r->o_groups && rc == OK; g++) {
        char name[256];
        snprintf(name, sizeof name, "%s.slice.%d", w->name, g);
        rc = add_matrix(r, name, rule.k2, e);
    }
    return rc;
}

static void assign_shards(quantize_plan *p, uint64_t limit) {
    uint64_t bytes = 0;
    p->n_shards = 1;
    for (int i = 0; i < p->n_items; i++) {
        uint64_t n = plan_item_bytes(&p->items[i]);
        if (bytes > 0 && bytes + n > limit) {
            p->n_shards++;
            bytes = 0;
        }
        bytes += n;
        p->items[i].i_shard = p->n_shards - 1;
    }
}

int quantize_plan_make(quantize_plan *p, const checkpoint *k, const model_config *c,
    const quantize_options *o, err *e) {
    plan_run r = {p, k, o, c->o_groups};
    memset(p, 0, sizeof *p);
    p->codebook = EXL3_MUL1;
    int rc = weight_specs_each(c, plan_spec, &r, e);
    if (rc != OK) {
        quantize_plan_release(p);
        return rc;
    }
    assign_shards(p, o->shard_bytes != 0 ? o->shard_bytes : DEFAULT_SHARD_BYTES);
    return OK;
}

void quantize_plan_release(quantize_plan *p) {
    for (int i = 0; i < p->n_items; i++) {
        mem_free(p->items[i].name);
    }
    mem_free(p->items);
    memset(p, 0, sizeof *p);
}

void quantize_shard_name(const quantize_plan *p, int i_shard, char out[64]) {
    if (p->n_shards == 1) {
        snprintf(out, 64, "model.safetensors");
    } else {
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", i_shard + 1, p->n_shards);
    }
}
