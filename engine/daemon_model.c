/* Pricing and loading the model of one rank: the same on rank 0, which makes up the settings, and on
 * the others, which are told. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/daemon_internal.h"
#include "engine/model/record.h"

#define PAGE_TOKENS 128
#define CONTEXT_DEFAULT_MAX (1 << 20)

void daemon_settings(const daemon_options *o, const model_config *c, control_settings *out) {
    int64_t context = o->context;
    if (context == 0 || context > c->max_context) context = c->max_context;
    if (context > CONTEXT_DEFAULT_MAX) context = CONTEXT_DEFAULT_MAX;
    int64_t pages = o->n_pages;
    bool is_gpu = o->backend.len > 0 && strcmp(buf_cstr(&o->backend), "cuda") == 0;
    if (pages == 0) pages = o->n_slots * ((context + PAGE_TOKENS - 1) / PAGE_TOKENS);
    /* One stream can have all pages, and no more: that is the window, also as it is announced. */
    if (context > pages * PAGE_TOKENS) context = pages * PAGE_TOKENS;
    *out = (control_settings){.n_slots = (int32_t)o->n_slots,
        .n_pages = (int32_t)pages,
        .page_tokens = PAGE_TOKENS,
        .max_rows = is_gpu ? DAEMON_GPU_ROWS : DAEMON_MAX_ROWS,
        .max_context = context,
        .without_drafts = o->no_drafts};
}

static void fill_options(const daemon_part *p, const control_settings *s, model_options *out) {
    const daemon_options *o = p->options;
    *out = (model_options){.dir = buf_cstr(&o->model_dir),
        .backend = o->backend.len > 0 ? buf_cstr(&o->backend) : NULL,
        .rank = p->rank,
        .world = daemon_world(o),
        .n_threads = (int)o->n_threads,
        .n_slots = s->n_slots,
        .n_pages = s->n_pages,
        .page_tokens = s->page_tokens,
        .max_rows = s->max_rows,
        .max_logit_rows = s->max_logit_rows,
        .max_rollback = s->max_rollback,
        .max_context = s->max_context,
        .without_drafts = s->without_drafts != 0,
        .pack = o->pack_path.len > 0 ? buf_cstr(&o->pack_path) : NULL,
        .load_tick = daemon_self_loaded,
        .load_ctx = p->self};
}

int daemon_check_memory(daemon_part *p, const control_settings *s, err *e) {
    const daemon_options *o = p->options;
    model_options mo;
    model_memory_plan m;
    uint64_t available = 0, total = 0;
    buf text = BUF_INIT;
    fill_options(p, s, &mo);
    int rc = model_memory(&mo, &m, e);
    if (rc != OK) return rc;
    if (memory_machine(&available, &total, NULL) != OK) return OK;
    p->reserve_bytes =
        o->reserve_mib >= 0 ? (uint64_t)o->reserve_mib << 20 : memory_reserve_default(total);
    memory_plan plan = {.weight_bytes = m.weight_bytes + m.engram_bytes,
        .cache_bytes = m.pages_bytes + m.slots_bytes,
        .work_bytes = m.scratch_bytes,
        .reserve_bytes = p->reserve_bytes};
    daemon_self_plan(p->self, &plan, m.engram_bytes, available);
    memory_plan_print(&plan, &text);
    LOG(LOG_INFO, "daemon", "memory plan", "plan=\"%s\" available_mib=%llu", buf_cstr(&text),
        (unsigned long long)(available >> 20));
    buf_release(&text);
    return memory_plan_check(&plan, available, e);
}

int daemon_plan_text(daemon_part *p, buf *out, err *e) {
    model_config *c = mem_alloc(sizeof *c);
    control_settings settings;
    api_start start;
    int rc = model_config_load(buf_cstr(&p->options->model_dir), c, e);
    if (rc == OK) {
        daemon_settings(p->options, c, &settings);
        rc = daemon_check_memory(p, &settings, e);
    }
    mem_free(c);
    if (rc != OK) return rc;
    daemon_self_start(p->self, &start);
    rc = memory_plan_print(&start.plan, out);
    if (rc == OK)
        rc = buf_printf(out, "; %.1f MiB are available; window %lld tokens, %d streams\n",
            (double)start.available_bytes / (double)(1 << 20), (long long)settings.max_context,
            (int)settings.n_slots);
    return rc;
}

/* GPUs talk to each other when steps are recorded, and wait no longer there than a step may take: files
 * may be read at another speed on another machine. */
static int record_steps(daemon_part *p, const exchange *x, err *e) {
    bool has_peers = x != NULL && exchange_is_device(x) && p->await_models != NULL;
    int rc = OK;
    /* Rank 0 comes to the phase last, so whoever sees it there has seen all of them. */
    if (has_peers && p->rank > 0) daemon_self_phase(p->self, RANK_CANARY);
    if (has_peers) rc = p->await_models(p->await_ctx, e);
    if (has_peers && rc == OK) daemon_self_phase(p->self, RANK_CANARY);
    return rc == OK ? model_record_steps(p->model, e) : rc;
}

int daemon_open_model(daemon_part *p, const control_settings *s, exchange *x, err *e) {
    const daemon_options *o = p->options;
    model_options mo;
    uint64_t start = clock_mono_ms();
    daemon_self_phase(p->self, RANK_LOADING);
    fill_options(p, s, &mo);
    int rc = daemon_engram(o, p->rank, mo.world, &p->store, e);
    if (rc != OK) return rc;
    mo.exchange = x;
    mo.store = p->store;
    rc = model_open(&mo, &p->model, e);
    if (rc == OK) rc = record_steps(p, x, e);
    if (rc != OK) return rc;
    (void)daemon_self_loaded(p->self, 1, 1);
    daemon_self_model(p->self, p->model);
    LOG(LOG_INFO, "daemon", "model loaded", "dir=%s ms=%llu", buf_cstr(&o->model_dir),
        (unsigned long long)(clock_mono_ms() - start));
    return OK;
}

void daemon_close_model(daemon_part *p) {
    daemon_self_model(p->self, NULL);
    model_close(p->model);
    engram_store_close(p->store);
    p->model = NULL;
    p->store = NULL;
}
