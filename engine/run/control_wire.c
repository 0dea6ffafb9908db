#include "engine/run/control_wire.h"

#include <string.h>

#include "engine/base/rand.h"

uint64_t call_hash(uint64_t hash, const void *data, size_t n) {
    const uint8_t *at = data;
    uint64_t word;
    for (; n >= sizeof word; n -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        hash = rand_mix(hash ^ word) + 0x9E3779B97F4A7C15u;
    }
    word = n;
    if (n > 0) memcpy(&word, at, n);
    return rand_mix(hash ^ word ^ ((uint64_t)n << 56));
}

void call_read(call_reader *r, void *out, size_t n) {
    if (!r->is_good || (size_t)(r->end - r->at) < n) {
        r->is_good = false;
        memset(out, 0, n);
        return;
    }
    memcpy(out, r->at, n);
    r->at += n;
}

int32_t call_read_i32(call_reader *r) {
    int32_t v;
    call_read(r, &v, sizeof v);
    return v;
}

int64_t call_read_i64(call_reader *r) {
    int64_t v;
    call_read(r, &v, sizeof v);
    return v;
}

static void put(uint8_t **at, const void *data, size_t n) {
    memcpy(*at, data, n);
    *at += n;
}

static void put_i32(uint8_t **at, int32_t v) {
    put(at, &v, sizeof v);
}

size_t call_plan_bytes(const batch_plan *plan) {
    size_t n = sizeof(uint64_t) + 2 * sizeof(int32_t);
    for (int32_t i = 0; i < plan->n_spans; i++) {
        n += 4 * sizeof(int32_t) + sizeof(int64_t);
        n += (size_t)plan->spans[i].n_rows * sizeof(int32_t);
    }
    return n;
}

size_t call_plan_write(const batch_plan *plan, uint8_t *out) {
    uint8_t *at = out;
    put(&at, &plan->id, sizeof plan->id);
    put_i32(&at, plan->form);
    put_i32(&at, plan->n_spans);
    for (int32_t i = 0; i < plan->n_spans; i++) {
        const plan_span *s = &plan->spans[i];
        put_i32(&at, s->slot);
        put_i32(&at, s->n_rows);
        put_i32(&at, s->logits);
        put_i32(&at, s->kind);
        put(&at, &s->pos, sizeof s->pos);
        put(&at, s->tokens, (size_t)s->n_rows * sizeof *s->tokens);
    }
    return (size_t)(at - out);
}

bool call_plan_read(
    call_reader *r, batch_plan *plan, plan_span *spans, int32_t *tokens, int32_t max_rows) {
    int32_t n_rows = 0;
    call_read(r, &plan->id, sizeof plan->id);
    plan->form = (uint8_t)call_read_i32(r);
    plan->asks = NULL;
    plan->n_spans = call_read_i32(r);
    plan->spans = spans;
    if (!r->is_good || plan->n_spans < 1 || plan->n_spans > RUN_MAX_SLOTS) return false;
    for (int32_t i = 0; i < plan->n_spans; i++) {
        plan_span *s = &spans[i];
        s->slot = call_read_i32(r);
        s->n_rows = call_read_i32(r);
        s->logits = (uint8_t)call_read_i32(r);
        s->kind = (uint8_t)call_read_i32(r);
        s->pos = call_read_i64(r);
        s->tokens = tokens + n_rows;
        if (!r->is_good || s->n_rows < 1 || s->n_rows > max_rows - n_rows) return false;
        call_read(r, tokens + n_rows, (size_t)s->n_rows * sizeof *tokens);
        n_rows += s->n_rows;
    }
    return r->is_good && r->at == r->end;
}
