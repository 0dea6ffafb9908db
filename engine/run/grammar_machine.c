/* The machine: threads of frames, one byte or one control token at a time. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar_internal.h"
#include "engine/run/grammar_trie.h"

#define RUN_STACK 1024

static const char *const literals[] = {"null", "true", "false"};

/* Items that begin, and ends of rules that begin the next item, in a worklist: rules refer to each
 * other as the outside wrote them, so this does not recurse. */
typedef struct run_stack {
    struct {
        uint32_t item; /* index into items */
        uint32_t parent;
    } at[RUN_STACK];
    uint32_t n;
} run_stack;

static void run_push(grammar_state *s, run_stack *r, uint32_t item, uint32_t parent) {
    if (r->n == RUN_STACK) {
        s->is_overrun = true;
        return;
    }
    r->at[r->n].item = item;
    r->at[r->n].parent = parent;
    r->n++;
}

static void push_simple(
    grammar_state *s, uint8_t kind, uint32_t node, uint32_t parent, thread_list *l) {
    frame f = {.kind = kind, .node = node, .parent = parent};
    const frame *above = state_frame(s, parent);
    f.nest = above->nest;
    list_push(s, l, &f);
}

static void begin_item(
    grammar_state *s, run_stack *r, rule_item item, uint32_t parent, thread_list *l) {
    const grammar *g = s->g;
    switch (item.kind) {
    case ITEM_TERM: {
        frame f = {.kind = FRAME_TERM, .node = item.index, .parent = parent};
        f.u.text.q = g->dfas[item.index]->start;
        if (f.u.text.q != 0) list_push(s, l, &f);
        break;
    }
    case ITEM_RULE:
        for (uint32_t i = 0; i < g->rules[item.index].n; i++) {
            run_push(s, r, g->alternatives[g->rules[item.index].first + i], parent);
        }
        break;
    case ITEM_VALUE:
        push_simple(s, FRAME_VALUE, item.index, parent, l);
        break;
    case ITEM_TOKEN:
        push_simple(s, FRAME_TOKEN, item.index, parent, l);
        break;
    case ITEM_TEXT:
        text_begin(s, item.index, parent, l);
        break;
    case ITEM_PARAMETERS:
        tags_begin(s, item.index, parent, l);
        break;
    default:
        break;
    }
}

static void run_items(grammar_state *s, run_stack *r, thread_list *l) {
    const rule_item *items = s->g->items;
    while (r->n > 0) {
        r->n--;
        uint32_t at = r->at[r->n].item, parent = r->at[r->n].parent;
        if (items[at].kind == ITEM_END) {
            const frame *above = state_frame(s, parent);
            if (parent == 0) {
                list_add(s, l, 0);
            } else {
                run_push(s, r, above->u.rule.item, above->parent);
            }
            continue;
        }
        if (items[at + 1].kind != ITEM_END) { /* the last item needs no frame to come back to */
            frame f = {.kind = FRAME_RULE, .parent = parent};
            f.u.rule.item = at + 1;
            parent = state_push(s, &f);
            if (parent == 0) continue;
        }
        begin_item(s, r, items[at], parent, l);
    }
}

void frame_done(grammar_state *s, uint32_t index, thread_list *l) {
    const frame *f = state_frame(s, index), *above = state_frame(s, f->parent);
    run_stack r;
    switch (above->kind) {
    case FRAME_END:
        list_add(s, l, 0);
        break;
    case FRAME_RULE:
        r.n = 0;
        run_push(s, &r, above->u.rule.item, above->parent);
        run_items(s, &r, l);
        break;
    case FRAME_ARRAY:
        array_item_done(s, f, l);
        break;
    case FRAME_OBJECT:
    case FRAME_TAGS:
        object_value_done(s, f, l);
        break;
    default:
        break;
    }
}

uint64_t value_hash(const frame *f) {
    switch (f->kind) {
    case FRAME_LITERAL:
        return HASH_LITERAL + f->node;
    case FRAME_STRING:
    case FRAME_TEXT:
        return hash_mix(HASH_STRING, f->hash);
    case FRAME_NUMBER:
        return number_hash(f);
    default:
        return f->hash;
    }
}

const frame *unique_parent(const grammar_state *s, const frame *f) {
    const frame *above = state_frame(s, f->parent);
    return above->kind == FRAME_ARRAY && s->g->arrays[above->node].is_unique ? above : NULL;
}

static void literal_begin(grammar_state *s, uint32_t kind, uint32_t parent) {
    frame f = {.kind = FRAME_LITERAL, .node = kind, .parent = parent, .phase = 1};
    const frame *array = unique_parent(s, &f);
    if (array != NULL && records_have(s, array->u.array.records, HASH_LITERAL + kind)) return;
    list_push(s, &s->out, &f);
}

static void literal_byte(grammar_state *s, uint32_t index, uint8_t byte) {
    frame f = *state_frame(s, index);
    const char *text = literals[f.node];
    if ((uint8_t)text[f.phase] != byte) return;
    f.phase++;
    uint32_t next = state_push(s, &f);
    if (next == 0) return;
    if (text[f.phase] == 0) {
        frame_done(s, next, &s->out);
    } else {
        list_add(s, &s->out, next);
    }
}

void value_begin(grammar_state *s, uint32_t node, uint32_t parent, uint8_t byte, uint8_t flags) {
    const value_node *v = &s->g->values[node];
    const frame *above = state_frame(s, parent);
    uint8_t track = above->flags & FLAG_TRACK;
    if (above->kind == FRAME_ARRAY && s->g->arrays[above->node].is_unique) track = FLAG_TRACK;
    for (uint32_t i = 0; i < v->n_choices; i++) {
        uint32_t kind = v->choices[i].kind, index = v->choices[i].index;
        switch (kind) {
        case VALUE_NULL:
        case VALUE_TRUE:
        case VALUE_FALSE:
            if ((uint8_t)literals[kind][0] == byte) literal_begin(s, kind, parent);
            break;
        case VALUE_NUMBER:
            if (byte == '-' || (byte >= '0' && byte <= '9')) number_begin(s, index, parent, byte);
            break;
        case VALUE_STRING:
            if (byte == '"' && (flags & FLAG_NO_STRINGS) == 0)
                string_begin(s, index, parent, track);
            break;
        case VALUE_ARRAY:
            if (byte == '[') array_begin(s, index, parent);
            break;
        default:
            if (byte == '{') object_begin(s, index, parent);
            break;
        }
    }
}

bool value_has_fresh(const grammar_state *s, uint32_t node, uint32_t records) {
    const value_node *v = &s->g->values[node];
    for (uint32_t i = 0; i < v->n_choices; i++) {
        uint32_t kind = v->choices[i].kind, index = v->choices[i].index;
        if (kind <= VALUE_FALSE) {
            if (!records_have(s, records, HASH_LITERAL + kind)) return true;
        } else if (kind == VALUE_NUMBER) {
            if (number_has_fresh(s, &s->g->numbers[index], records)) return true;
        } else if (kind == VALUE_STRING) {
            const string_node *n = &s->g->strings[index];
            frame f = {.hash = HASH_START};
            if (n->content == NULL) return true;
            f.u.text.q = n->content->start;
            if (words_left(s, n->content, &f, records, true)) return true;
        } else {
            return true;
        }
    }
    return false;
}

bool space_byte(grammar_state *s, const frame *f, uint8_t byte) {
    frame next = *f;
    int most = f->nest * 8 - 1; /* an indentation, not a place to run on */
    if (most > GRAMMAR_SPACES_MAX) most = GRAMMAR_SPACES_MAX;
    if (byte == '\n') {
        if (f->space != 0) return true;
        next.space = 2;
    } else if (byte == ' ') {
        if (f->space == 1 || f->space >= 2 + most) return true;
        next.space = f->space == 0 ? 1 : (uint8_t)(f->space + 1);
    } else {
        return false;
    }
    list_push(s, &s->out, &next);
    return true;
}

static void term_byte(grammar_state *s, uint32_t index, uint8_t byte) {
    frame f = *state_frame(s, index);
    const dfa *d = s->g->dfas[f.node];
    uint32_t q = dfa_step(d, f.u.text.q, byte);
    if (d->accepts[f.u.text.q]) frame_done(s, index, &s->pending);
    if (q == 0) return;
    f.u.text.q = q;
    list_push(s, &s->out, &f);
}

bool frame_can_end(const grammar_state *s, const frame *f) {
    switch (f->kind) {
    case FRAME_TERM:
        return s->g->dfas[f->node]->accepts[f->u.text.q] != 0;
    case FRAME_TEXT:
        return string_may_end(&s->g->strings[f->node], f);
    case FRAME_NUMBER:
        return number_can_end(s, f);
    default:
        return false;
    }
}

static void step_byte(grammar_state *s, uint32_t index, uint8_t byte) {
    const frame *f = state_frame(s, index);
    switch (f->kind) {
    case FRAME_VALUE:
        value_begin(s, f->node, f->parent, byte, f->flags);
        break;
    case FRAME_LITERAL:
        literal_byte(s, index, byte);
        break;
    case FRAME_STRING:
        string_byte(s, index, byte);
        break;
    case FRAME_NUMBER:
        number_byte(s, index, byte);
        break;
    case FRAME_ARRAY:
        array_byte(s, index, byte);
        break;
    case FRAME_OBJECT:
        object_byte(s, index, byte);
        break;
    case FRAME_KEY_NAME:
    case FRAME_KEY_CLASS:
        key_byte(s, index, byte);
        break;
    case FRAME_TERM:
        term_byte(s, index, byte);
        break;
    case FRAME_TEXT:
        text_byte(s, index, byte);
        break;
    case FRAME_TAGS:
        tags_byte(s, index, byte);
        break;
    default:
        break;
    }
}

static void set_pending(grammar_state *s, const uint32_t *threads, uint32_t n) {
    s->out.len = 0;
    s->pending.len = n;
    memcpy(s->pending.at, threads, n * sizeof *threads);
}

void machine_byte(grammar_state *s, const uint32_t *threads, uint32_t n, uint8_t byte) {
    set_pending(s, threads, n);
    for (uint32_t i = 0; i < s->pending.len; i++)
        step_byte(s, s->pending.at[i], byte);
}

void machine_settle(grammar_state *s, const uint32_t *threads, uint32_t n) {
    set_pending(s, threads, n);
    for (uint32_t i = 0; i < s->pending.len; i++) {
        uint32_t index = s->pending.at[i];
        if (frame_can_end(s, state_frame(s, index))) frame_done(s, index, &s->pending);
    }
}

void machine_token(grammar_state *s, const uint32_t *threads, uint32_t n, int32_t token) {
    machine_settle(s, threads, n);
    for (uint32_t i = 0; i < s->pending.len; i++) {
        uint32_t index = s->pending.at[i];
        const frame *f = state_frame(s, index);
        if (f->kind == FRAME_TAGS) tags_token(s, index, token);
        if (f->kind == FRAME_TOKEN && f->node == (uint32_t)token) frame_done(s, index, &s->out);
    }
}

bool machine_is_final(grammar_state *s, const uint32_t *threads, uint32_t n) {
    uint32_t n_cells = s->n_cells;
    bool found = false;
    machine_settle(s, threads, n);
    for (uint32_t i = 0; i < s->pending.len && !found; i++)
        found = s->pending.at[i] == 0;
    s->n_cells = n_cells;
    return found;
}

void machine_start(grammar_state *s) {
    run_stack r = {.n = 0};
    s->cells[0].f = (frame){.kind = FRAME_END};
    s->n_cells = 1;
    s->out.len = 0;
    begin_item(s, &r, s->g->root, 0, &s->out);
    run_items(s, &r, &s->out);
    s->threads.len = s->out.len;
    memcpy(s->threads.at, s->out.at, s->out.len * sizeof *s->out.at);
}
