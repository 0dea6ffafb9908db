#include "engine/run/reply_guide.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/novelty.h"
#include "engine/run/run_internal.h"

/* Tokens kept for the answer when thinking would take the whole limit. */
#define ROOM_MAX 1024
#define OPENING_MAX 8

typedef enum guide_phase {
    PHASE_THINKING,
    PHASE_OPEN,    /* the answer, free or not begun */
    PHASE_OPENING, /* the fixed tokens in front of a call */
    PHASE_VALUE,   /* inside the constrained value */
    PHASE_CALLS    /* inside the grammar of calls */
} guide_phase;

typedef struct reply_guide {
    reply_guide_options o;
    control_ids ids;
    guide_phase phase;
    grammar_state *value, *calls;
    uint64_t *mask;
    size_t n_words; /* of mask; the grammars fill at most as many */
    int32_t opening[OPENING_MAX];
    int n_opening, i_opening;
    int64_t n_taken, n_thought;
    bool ends_in_less; /* the last token's text ends in "<" */
    bool has_answer;   /* something was said outside of thinking */
    bool is_looping;
    novelty *novelty;
} reply_guide;

static void release(void *ctx) {
    reply_guide *g = ctx;
    grammar_state_free(g->value);
    grammar_state_free(g->calls);
    grammar_put(g->o.value);
    grammar_put(g->o.calls);
    novelty_free(g->novelty);
    mem_free(g->mask);
    mem_free(g);
}

static void ban(run_guide_view *view, int32_t id) {
    if (id >= 0) view->banned[view->n_banned++] = id;
}

static bool must_close(const reply_guide *g) {
    if (g->ids.think_close < 0) return false;
    if (g->o.thinking_budget >= 0 && g->n_thought >= g->o.thinking_budget) return true;
    if (g->is_looping) return true;
    if (!g->o.keeps_room) return false;
    int64_t room = g->o.max_tokens / 4 < ROOM_MAX ? g->o.max_tokens / 4 : ROOM_MAX;
    return g->o.max_tokens - g->n_taken <= room;
}

static bool is_empty(const uint64_t *mask, size_t n_words) {
    for (size_t i = 0; i < n_words; i++) {
        if (mask[i] != 0) return false;
    }
    return true;
}

/* Nothing follows the end of a grammar, so it ends the reply also when it is no stop id. */
static void use_mask(reply_guide *g, grammar_state *s, run_guide_view *view) {
    int32_t eos = g->ids.eos;
    grammar_mask(s, g->mask);
    view->mask = g->mask;
    view->end = eos;
    if (!g->o.ignores_eos || eos < 0) return;
    uint64_t *word = &g->mask[eos / 64], bit = (uint64_t)1 << (eos % 64);
    if ((*word & bit) == 0) return;
    *word &= ~bit;
    if (is_empty(g->mask, g->n_words)) *word |= bit;
}

static int before(void *ctx, run_guide_view *view) {
    reply_guide *g = ctx;
    switch (g->phase) {
    case PHASE_THINKING:
        if (must_close(g)) {
            view->forced = g->ids.think_close;
        } else if (g->value != NULL || g->o.is_forced) {
            ban(view, g->ids.eos);
            ban(view, g->ids.eot);
            ban(view, g->ids.dsml);
        }
        return OK;
    case PHASE_OPEN:
        if (g->value == NULL) return OK;
        use_mask(g, g->value, view);
        if (g->calls != NULL && g->n_opening > 0) {
            /* Not the value but a call: both may begin here. */
            g->mask[g->opening[0] / 64] |= (uint64_t)1 << (g->opening[0] % 64);
        }
        return OK;
    case PHASE_OPENING:
        view->forced = g->opening[g->i_opening];
        return OK;
    case PHASE_VALUE:
        use_mask(g, g->value, view);
        return OK;
    case PHASE_CALLS:
        use_mask(g, g->calls, view);
        return OK;
    }
    return ERR_INTERNAL;
}

/* The answer begins: what is forced comes first. */
static void begin_answer(reply_guide *g) {
    g->phase = PHASE_OPEN;
    if (!g->o.is_forced) return;
    g->i_opening = 0;
    g->phase = g->n_opening > 0 ? PHASE_OPENING : PHASE_CALLS;
}

static void take_opening(reply_guide *g, int32_t token) {
    if (g->o.is_forced) grammar_accept(g->calls, token);
    if (++g->i_opening == g->n_opening) g->phase = PHASE_CALLS;
}

static void take_value(reply_guide *g, int32_t token) {
    if (grammar_accept(g->value, token) == OK) {
        g->phase = PHASE_VALUE;
        return;
    }
    if (g->phase != PHASE_OPEN) return;
    g->i_opening = 1;
    g->phase = g->n_opening > 1 ? PHASE_OPENING : PHASE_CALLS;
}

static void take_thought(reply_guide *g, int32_t token) {
    g->n_thought++;
    if (token == g->ids.think_close) {
        begin_answer(g);
        return;
    }
    if (g->novelty != NULL) g->is_looping |= novelty_take(g->novelty, token);
}

static void after(void *ctx, int32_t token) {
    reply_guide *g = ctx;
    size_t len = 0;
    bool opens_call =
        g->ends_in_less && token == g->ids.dsml && g->calls != NULL && !g->o.is_forced;
    const char *bytes = tokenizer_bytes(g->o.tokenizer, token, &len);
    g->ends_in_less = len > 0 && bytes[len - 1] == '<';
    g->n_taken++;
    switch (g->phase) {
    case PHASE_THINKING:
        take_thought(g, token);
        if (opens_call && g->value == NULL) g->phase = PHASE_CALLS;
        break;
    case PHASE_OPEN:
        if (g->value != NULL) {
            take_value(g, token);
        } else if (opens_call) {
            g->phase = PHASE_CALLS;
        } else if (token == g->ids.think_open && !g->has_answer) {
            g->phase = PHASE_THINKING;
            return;
        }
        g->has_answer = true;
        break;
    case PHASE_OPENING:
        take_opening(g, token);
        break;
    case PHASE_VALUE:
        take_value(g, token);
        break;
    case PHASE_CALLS:
        grammar_accept(g->calls, token);
        break;
    }
}

/* Tokens in front of a call: those the grammar begins with when the call is forced; else "\n\n<"
 * and the marker, behind which the grammar begins. */
static int find_opening(reply_guide *g, err *e) {
    static const char text[] = "\n\n<";
    token_list list = {0};
    size_t n = 0;
    if (g->o.is_forced) {
        const int32_t *ids = grammar_opening(g->o.calls, &n);
        for (size_t i = 0; i < n && i < OPENING_MAX; i++) {
            g->opening[g->n_opening++] = ids[i];
        }
        return OK;
    }
    if (g->value == NULL || g->calls == NULL || g->ids.dsml < 0) return OK;
    int rc = tokenizer_encode(
        g->o.tokenizer, (text_span){.text = text, .len = sizeof text - 1}, &list, e);
    for (size_t i = 0; i < list.len && i < OPENING_MAX - 1; i++) {
        g->opening[g->n_opening++] = list.ids[i];
    }
    g->opening[g->n_opening++] = g->ids.dsml;
    token_list_release(&list);
    return rc;
}

static int make_states(reply_guide *g, err *e) {
    if (g->o.value != NULL) {
        g->value = grammar_state_new(g->o.value);
        if (g->value == NULL) return err_set(e, ERR_MEMORY, "no memory for a constrained reply");
    }
    if (g->o.calls != NULL) {
        g->calls = grammar_state_new(g->o.calls);
        if (g->calls == NULL) return err_set(e, ERR_MEMORY, "no memory for the grammar of calls");
    }
    return OK;
}

int reply_guide_new(const reply_guide_options *o, run_guide *out, err *e) {
    reply_guide *g = mem_alloc(sizeof *g);
    g->o = *o;
    g->ids = tokenizer_controls(o->tokenizer);
    g->n_words = ((size_t)o->run->info.n_vocab + 63) / 64;
    g->mask = mem_array(g->n_words + 1, sizeof *g->mask);
    if (o->guards_loops) g->novelty = novelty_new();
    if (o->value != NULL) grammar_get(o->value);
    if (o->calls != NULL) grammar_get(o->calls);
    int rc = make_states(g, e);
    if (rc == OK) rc = find_opening(g, e);
    if (rc != OK) {
        release(g);
        return rc;
    }
    if (o->starts_in_reasoning) {
        g->phase = PHASE_THINKING;
    } else {
        begin_answer(g);
    }
    *out = (run_guide){.ctx = g, .before = before, .after = after, .release = release};
    return OK;
}
