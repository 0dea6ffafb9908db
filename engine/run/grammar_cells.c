/* The pool of frames of one state. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar_internal.h"
#include "engine/run/grammar_trie.h"

frame *state_frame(const grammar_state *s, uint32_t i) {
    return &s->cells[i].f;
}

uint32_t state_push(grammar_state *s, const frame *from) {
    if (s->n_cells >= GRAMMAR_CELLS) {
        s->is_overrun = true;
        return 0;
    }
    s->cells[s->n_cells].f = *from;
    return s->n_cells++;
}

uint32_t state_push_words(grammar_state *s, const uint64_t *words, uint32_t n) {
    uint32_t n_cells = (n + 7) / 8, at = s->n_cells;
    if (n_cells > GRAMMAR_CELLS - s->n_cells) {
        s->is_overrun = true;
        return 0;
    }
    memcpy(s->cells[at].words, words, n * sizeof *words);
    s->n_cells += n_cells;
    return at;
}

void list_add(grammar_state *s, thread_list *l, uint32_t index) {
    for (uint32_t i = 0; i < l->len; i++) {
        if (l->at[i] == index) return;
        if (memcmp(&s->cells[l->at[i]], &s->cells[index], sizeof(cell)) == 0) return;
    }
    if (l->len == l->cap) {
        s->is_overrun = true;
        return;
    }
    l->at[l->len++] = index;
}

void list_push(grammar_state *s, thread_list *l, const frame *from) {
    uint32_t index = state_push(s, from);
    if (index != 0) list_add(s, l, index);
}

bool records_have(const grammar_state *s, uint32_t records, uint64_t hash) {
    for (uint32_t i = records; i != 0; i = s->cells[i].f.u.record.previous) {
        if (s->cells[i].f.u.record.hash == hash) return true;
    }
    return false;
}

uint32_t records_add(grammar_state *s, uint32_t records, uint64_t hash) {
    frame f = {0};
    f.u.record.hash = hash;
    f.u.record.previous = records;
    return state_push(s, &f);
}

#define WORD_DEPTH 256

bool words_left(
    const grammar_state *s, const dfa *d, const frame *f, uint32_t records, bool is_value) {
    struct {
        uint64_t hash;
        uint32_t q;
        int next; /* byte to try */
    } stack[WORD_DEPTH];
    int top = 0;
    if (d->words[f->u.text.q] > GRAMMAR_RECORDS_MAX) return true;
    stack[0].hash = f->hash;
    stack[0].q = f->u.text.q;
    stack[0].next = -1;
    while (top >= 0) {
        uint32_t q = stack[top].q;
        if (stack[top].next < 0) {
            uint64_t h = is_value ? hash_mix(HASH_STRING, stack[top].hash) : stack[top].hash;
            if (d->accepts[q] && !records_have(s, records, h)) return true;
            stack[top].next = 0;
        }
        int b = stack[top].next;
        while (b < 256 && dfa_step(d, q, (uint8_t)b) == 0)
            b++;
        if (b == 256) {
            top--;
            continue;
        }
        stack[top].next = b + 1;
        if (top + 1 == WORD_DEPTH) return true;
        stack[top + 1].hash = hash_byte(stack[top].hash, (uint8_t)b);
        stack[top + 1].q = dfa_step(d, q, (uint8_t)b);
        stack[top + 1].next = -1;
        top++;
    }
    return false;
}

enum { MARK_NONE, MARK_FRAME, MARK_RECORD, MARK_WORDS };

static uint32_t bit_cells(const grammar_state *s, const frame *f) {
    return (s->g->objects[f->node].n_words * 2 + 7) / 8;
}

static bool is_object(const frame *f) {
    return f->kind == FRAME_OBJECT || f->kind == FRAME_TAGS;
}

static void mark_frame(grammar_state *s, uint32_t i) {
    while (i != 0 && s->remap[i] == MARK_NONE) {
        const frame *f = &s->cells[i].f;
        uint32_t records = f->kind == FRAME_ARRAY ? f->u.array.records
                           : is_object(f)         ? f->u.object.records
                                                  : 0;
        s->remap[i] = MARK_FRAME;
        while (records != 0 && s->remap[records] == MARK_NONE) {
            s->remap[records] = MARK_RECORD;
            records = s->cells[records].f.u.record.previous;
        }
        if (is_object(f) && f->u.object.bits != 0) {
            for (uint32_t k = 0; k < bit_cells(s, f); k++) {
                s->remap[f->u.object.bits + k] = MARK_WORDS;
            }
        }
        i = f->parent;
    }
}

/* References point to cells that were moved before, so remap already holds their new places. */
static void move_cell(grammar_state *s, uint32_t from, uint32_t to) {
    uint32_t mark = s->remap[from];
    s->cells[to] = s->cells[from];
    s->remap[from] = to;
    frame *f = &s->cells[to].f;
    if (mark == MARK_RECORD) f->u.record.previous = s->remap[f->u.record.previous];
    if (mark != MARK_FRAME) return;
    f->parent = s->remap[f->parent];
    if (f->kind == FRAME_ARRAY) f->u.array.records = s->remap[f->u.array.records];
    if (is_object(f)) {
        f->u.object.records = s->remap[f->u.object.records];
        f->u.object.bits = s->remap[f->u.object.bits];
    }
}

void state_compact(grammar_state *s) {
    uint32_t n = 1;
    memset(s->remap, 0, s->n_cells * sizeof *s->remap);
    for (uint32_t i = 0; i < s->threads.len; i++)
        mark_frame(s, s->threads.at[i]);
    for (uint32_t i = 1; i < s->n_cells; i++) {
        if (s->remap[i] != MARK_NONE) move_cell(s, i, n++);
    }
    for (uint32_t i = 0; i < s->threads.len; i++)
        s->threads.at[i] = s->remap[s->threads.at[i]];
    s->n_cells = n;
}

static uint32_t *list_memory(thread_list *l, uint32_t *at, uint32_t cap) {
    *l = (thread_list){.at = at, .cap = cap};
    return at + cap;
}

grammar_state *grammar_state_new(grammar *g) {
    size_t n_level = GRAMMAR_LEVELS, max_depth = TOKEN_MAX_BYTES + 2;
    size_t n_words = 3 * GRAMMAR_THREADS + n_level + 2 * max_depth + GRAMMAR_CELLS;
    grammar_state *s = mem_try_alloc(sizeof *s);
    if (s == NULL) return NULL;
    s->cells = mem_try_alloc(GRAMMAR_CELLS * sizeof *s->cells);
    s->scratch = mem_try_alloc(g->trie->n_words * sizeof *s->scratch);
    uint32_t *at = mem_try_alloc(n_words * sizeof *at);
    if (s->cells == NULL || at == NULL || s->scratch == NULL) {
        mem_free(s->cells);
        mem_free(s->scratch);
        mem_free(at);
        mem_free(s);
        return NULL;
    }
    s->memory = at;
    at = list_memory(&s->threads, at, GRAMMAR_THREADS);
    at = list_memory(&s->out, at, GRAMMAR_THREADS);
    at = list_memory(&s->pending, at, GRAMMAR_THREADS);
    s->levels = at;
    s->level_first = at + n_level;
    s->level_cells = s->level_first + max_depth;
    s->remap = s->level_cells + max_depth;
    s->g = grammar_get(g);
    grammar_state_reset(s);
    return s;
}

void grammar_state_free(grammar_state *s) {
    if (s == NULL) return;
    grammar_put(s->g);
    mem_free(s->cells);
    mem_free(s->scratch);
    mem_free(s->memory);
    mem_free(s);
}

void grammar_state_copy(grammar_state *to, const grammar_state *from) {
    CHECK(to->g == from->g);
    to->n_cells = from->n_cells;
    to->is_done = from->is_done;
    to->is_overrun = from->is_overrun;
    to->threads.len = from->threads.len;
    memcpy(to->cells, from->cells, from->n_cells * sizeof *to->cells);
    memcpy(to->threads.at, from->threads.at, from->threads.len * sizeof *to->threads.at);
}
