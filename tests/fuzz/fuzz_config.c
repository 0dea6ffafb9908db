/* Any bytes as config.json: refused with a sentence, or a plan in which every index is in range. */
#include "engine/base/mem.h"
#include "engine/model/config.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void check_layer(const model_config *c, int i) {
    const layer_plan *p = &c->layers[i];
    CHECK(p->ratio >= 0 && p->ratio <= MODEL_MAX_RATIO);
    CHECK((p->mode == LAYER_WINDOW) == (p->ratio == 0));
    CHECK(p->kv_source <= i && p->index_source <= i);
    CHECK(p->ratio == 0 || (p->kv_source >= 0 && p->index_source >= p->kv_source));
    CHECK(p->i_kv_source < c->n_kv_sources && p->i_index_source < c->n_index_sources);
    CHECK(p->i_engram < c->n_engram && p->i_tap < c->n_taps);
    CHECK(p->n_experts_used >= 1 && p->n_experts_used <= p->n_experts);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    static model_config c;
    err e = ERR_INIT;
    int rc = model_config_parse((const char *)data, n, &c, &e);
    if (rc != OK) {
        CHECK(e.code == rc && e.msg[0] != '\0');
        return 0;
    }
    CHECK(c.n_layers >= 1 && c.n_layers + c.n_stages <= MODEL_MAX_LAYERS);
    CHECK(c.n_hashes >= 0 && c.n_hashes <= MODEL_MAX_HASHES);
    for (int i = 0; i < c.n_layers + c.n_stages; i++) {
        check_layer(&c, i);
    }
    for (int i = 0; i < c.n_engram; i++) {
        CHECK(c.engram[i].n_rows > 0);
    }
    return 0;
}
