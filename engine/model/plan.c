/* Checking a batch plan and turning it into per-row lists. */
#include "engine/model/model_internal.h"

static int check_span(const model *m, const plan_span *s, int i, err *e) {
    const model_options *o = &m->options;
    if (s->slot < 0 || s->slot >= o->n_slots || s->n_rows < 1 || s->tokens == NULL ||
        s->kind > PLAN_VERIFY || s->logits > PLAN_LOGITS_ALL) {
        return err_set(e, ERR_ARG, "span %d of the plan is malformed: slot %d of %d, %d rows", i,
            s->slot, o->n_slots, s->n_rows);
    }
    const slot_state *slot = &m->slots[s->slot];
    if (s->pos != slot->len) {
        return err_set(e, ERR_ARG, "span %d starts at position %lld, slot %d stands at %lld", i,
            (long long)s->pos, s->slot, (long long)slot->len);
    }
    if (slot->final_len != slot->len) {
        return err_set(e, ERR_ARG,
            "slot %d has %lld rows of a verify span that were never committed", s->slot,
            (long long)(slot->len - slot->final_len));
    }
    if (s->kind == PLAN_VERIFY && s->n_rows > o->max_rollback + 1) {
        return err_set(e, ERR_ARG, "span %d verifies %d rows, at most %d can be rolled back", i,
            s->n_rows, o->max_rollback + 1);
    }
    int64_t end = s->pos + s->n_rows;
    int64_t room = (int64_t)slot->n_pages * o->page_tokens;
    if (end > o->max_context || end > room) {
        return err_set(e, ERR_FULL,
            "span %d ends at position %lld; the context limit is %lld, slot %d has pages "
            "for %lld",
            i, (long long)end, (long long)o->max_context, s->slot, (long long)room);
    }
    for (int r = 0; r < s->n_rows; r++) {
        if (s->tokens[r] < 0 || s->tokens[r] >= m->config.n_vocab) {
            return err_set(e, ERR_ARG, "token %d of span %d is %d; the vocabulary has %d entries",
                r, i, s->tokens[r], m->config.n_vocab);
        }
    }
    return OK;
}

static int logit_rows_of(const plan_span *s) {
    return s->logits == PLAN_LOGITS_NONE ? 0 : s->logits == PLAN_LOGITS_LAST ? 1 : s->n_rows;
}

int plan_check(const model *m, const batch_plan *plan, err *e) {
    int64_t n_rows = 0, n_logits = 0;
    if (plan->form > PLAN_FORM_LISTED) {
        return err_set(e, ERR_ARG, "a plan wants its logits in form %d", plan->form);
    }
    if (plan->n_spans < 1 || plan->n_spans > m->options.n_slots || plan->spans == NULL) {
        return err_set(e, ERR_ARG, "a plan of %d spans; 1 to %d are possible", plan->n_spans,
            m->options.n_slots);
    }
    for (int i = 0; i < plan->n_spans; i++) {
        int rc = check_span(m, &plan->spans[i], i, e);
        if (rc != OK) {
            return rc;
        }
        for (int j = 0; j < i; j++) {
            if (plan->spans[j].slot == plan->spans[i].slot) {
                return err_set(e, ERR_ARG, "slot %d occurs twice in a plan", plan->spans[i].slot);
            }
        }
        n_rows += plan->spans[i].n_rows;
        n_logits += logit_rows_of(&plan->spans[i]);
    }
    if (n_rows > m->options.max_rows || n_logits > m->options.max_logit_rows) {
        return err_set(e, ERR_ARG, "a plan of %lld rows and %lld logit rows; at most %d and %d fit",
            (long long)n_rows, (long long)n_logits, m->options.max_rows, m->options.max_logit_rows);
    }
    return OK;
}

void row_lists_close(row_lists *l) {
    l->n_closed = 0;
    for (int i = 0; i < l->rows.n; i++) {
        if (l->pos[i] % 2 == 0) {
            continue;
        }
        l->closed_row[l->n_closed] = i;
        l->closed_slot[l->n_closed] = l->slot[i];
        l->closed_group[l->n_closed] = l->pos[i] / 2;
        l->closed_pos[l->n_closed++] = l->pos[i] - 1;
    }
}

/* Few bounds, so that recorded passes fit many steps. */
static int64_t bound_of(const model *m, int64_t pos) {
    int64_t bound = 2048;
    while (bound <= pos) {
        bound *= 4;
    }
    return bound > m->options.max_context ? m->options.max_context : bound;
}

void row_lists_send(model *m, row_lists *l) {
    int64_t most = 0;
    for (int i = 0; i < l->rows.n; i++) {
        most = l->pos[i] > most ? l->pos[i] : most;
    }
    l->rows.pos_bound = bound_of(m, most);
    if (l->host != l->back) {
        m->ops->copy(&m->k, l->back, l->host, l->bytes);
    }
}

/* Tokens at positions pos, pos - 1, .. of a span's row; -1 before the start. */
static void history_of(const model *m, const plan_span *s, int row, int32_t *history) {
    const slot_state *slot = &m->slots[s->slot];
    for (int back = 0; back < m->config.max_ngram; back++) {
        int64_t p = s->pos + row - back;
        if (p < 0) {
            history[back] = -1;
        } else if (p >= s->pos) {
            history[back] = s->tokens[p - s->pos];
        } else {
            history[back] = slot->recent[p % m->recent_cap];
        }
    }
}

static void fill_row(model *m, const plan_span *s, int first, int r) {
    row_lists *l = &m->step_rows;
    int i = first + r;
    l->token[i] = s->tokens[r];
    l->slot[i] = s->slot;
    l->pos[i] = s->pos + r;
    l->span_row[i] = first;
    l->span_pos[i] = s->pos;
    l->span_len[i] = s->n_rows;
    if (m->config.n_engram == 0) {
        return;
    }
    int32_t history[MODEL_MAX_NGRAM];
    history_of(m, s, r, history);
    for (int t = 0; t < m->config.n_engram; t++) {
        engram_hash(m, t, history, m->b.host.row_ids[t] + (size_t)i * (size_t)m->config.n_hashes);
    }
}

int plan_fill(model *m, const batch_plan *plan) {
    row_lists *l = &m->step_rows;
    int n_logits = 0;
    l->rows.n = 0;
    for (int i = 0; i < plan->n_spans; i++) {
        const plan_span *s = &plan->spans[i];
        int first = l->rows.n, n = logit_rows_of(s);
        for (int r = 0; r < s->n_rows; r++) {
            fill_row(m, s, first, r);
        }
        l->rows.n += s->n_rows;
        m->b.host.first_logit[i] = n == 0 ? -1 : n_logits;
        for (int r = 0; r < n; r++) {
            l->logit_row[n_logits++] = first + s->n_rows - n + r;
        }
    }
    row_lists_close(l);
    return n_logits;
}
