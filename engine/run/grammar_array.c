/* JSON arrays: bounds, contains, elements that differ. */
#include "engine/run/grammar_internal.h"

static uint32_t row_of(const array_node *a, uint32_t n) {
    return n < a->n_prefix ? n : a->n_prefix;
}

static uint32_t item_value(const array_node *a, uint32_t n, uint32_t set) {
    return a->items[(size_t)row_of(a, n) * (1u << a->n_contains) + set];
}

static bool has_all_contains(const array_node *a, const frame *f) {
    for (uint32_t k = 0; k < a->n_contains; k++) {
        if (f->u.array.contains[k] < a->contains_min[k]) return false;
    }
    return true;
}

/* Places from n on at which contains k can be fulfilled, up to need. */
static bool has_places(const array_node *a, uint32_t n, uint32_t k, uint32_t need) {
    uint32_t n_sets = 1u << a->n_contains;
    for (uint32_t i = n; i < a->max && need > 0; i++) {
        bool is_last_row = i >= a->n_prefix, found = false;
        for (uint32_t set = 0; set < n_sets && !found; set++) {
            found = (set >> k & 1) != 0 && item_value(a, i, set) != 0;
        }
        if (is_last_row) return found && need <= a->max - i;
        need -= found;
    }
    return need == 0;
}

static bool contains_possible(const array_node *a, const frame *f) {
    for (uint32_t k = 0; k < a->n_contains; k++) {
        uint32_t have = f->u.array.contains[k];
        if (have < a->contains_min[k] &&
            !has_places(a, f->u.array.n, k, a->contains_min[k] - have)) {
            return false;
        }
    }
    return true;
}

static bool set_is_allowed(const array_node *a, const frame *f, uint32_t set) {
    for (uint32_t k = 0; k < a->n_contains; k++) {
        if ((set >> k & 1) != 0 && f->u.array.contains[k] >= a->contains_max[k]) return false;
    }
    return true;
}

static bool may_close(const array_node *a, const frame *f) {
    return f->u.array.n >= a->min && has_all_contains(a, f);
}

static bool may_add(const grammar_state *s, const array_node *a, const frame *f) {
    if (f->u.array.n >= a->max || !contains_possible(a, f)) return false;
    if (a->is_unique && f->u.array.n_records >= GRAMMAR_RECORDS_MAX) return false;
    for (uint32_t set = 0; set < 1u << a->n_contains; set++) {
        uint32_t value = item_value(a, f->u.array.n, set);
        if (value == 0 || !set_is_allowed(a, f, set)) continue;
        if (!a->is_unique || value_has_fresh(s, value, f->u.array.records)) return true;
    }
    return false;
}

/* Takes an element that fulfils set into the counts. Counts of a contains without upper limit stop
 * at what is needed, so that threads that differ only in surplus are the same. */
static void count_set(const array_node *a, frame *f, uint32_t set) {
    for (uint32_t k = 0; k < a->n_contains; k++) {
        if ((set >> k & 1) == 0) continue;
        if (a->contains_max[k] != GRAMMAR_NO_LIMIT || f->u.array.contains[k] < a->contains_min[k]) {
            f->u.array.contains[k]++;
        }
    }
    f->u.array.n++;
}

static void begin_element(grammar_state *s, uint32_t index, uint8_t byte) {
    frame f = *state_frame(s, index);
    const array_node *a = &s->g->arrays[f.node];
    for (uint32_t set = 0; set < 1u << a->n_contains; set++) {
        uint32_t value = item_value(a, f.u.array.n, set);
        if (value == 0 || !set_is_allowed(a, &f, set)) continue;
        frame after = f;
        count_set(a, &after, set);
        if (!may_close(a, &after) && (after.u.array.n >= a->max || !contains_possible(a, &after))) {
            continue;
        }
        f.space = 0;
        f.u.array.taken = (uint16_t)set;
        uint32_t next = state_push(s, &f);
        if (next != 0) value_begin(s, value, next, byte, 0);
    }
}

void array_begin(grammar_state *s, uint32_t node, uint32_t parent) {
    const array_node *a = &s->g->arrays[node];
    const frame *above = state_frame(s, parent);
    frame f = {.kind = FRAME_ARRAY, .node = node, .parent = parent, .phase = PHASE_FIRST};
    f.nest = (uint16_t)(above->nest + 1);
    f.flags = above->flags & FLAG_TRACK;
    if (unique_parent(s, &f) != NULL) f.flags |= FLAG_TRACK;
    if (a->height > (uint32_t)(GRAMMAR_NEST_MAX - above->nest)) return;
    f.hash = HASH_ARRAY;
    list_push(s, &s->out, &f);
}

static void close_array(grammar_state *s, uint32_t index) {
    frame f = *state_frame(s, index);
    f.space = 0;
    uint32_t next = state_push(s, &f);
    if (next != 0) frame_done(s, next, &s->out);
}

void array_byte(grammar_state *s, uint32_t index, uint8_t byte) {
    frame f = *state_frame(s, index);
    const array_node *a = &s->g->arrays[f.node];
    if (space_byte(s, &f, byte)) return;
    if (byte == ']') {
        if (f.phase != PHASE_COMMA && may_close(a, &f)) close_array(s, index);
        return;
    }
    if (f.phase != PHASE_NEXT) {
        if (f.phase == PHASE_COMMA || may_add(s, a, &f)) begin_element(s, index, byte);
        return;
    }
    if (byte != ',' || !may_add(s, a, &f)) return;
    f.phase = PHASE_COMMA;
    f.space = 0;
    list_push(s, &s->out, &f);
}

void array_item_done(grammar_state *s, const frame *child, thread_list *l) {
    frame f = *state_frame(s, child->parent);
    const array_node *a = &s->g->arrays[f.node];
    uint64_t hash = 0;
    if (a->is_unique || (f.flags & FLAG_TRACK) != 0) hash = value_hash(child);
    if (a->is_unique) {
        if (records_have(s, f.u.array.records, hash)) return;
        f.u.array.records = records_add(s, f.u.array.records, hash);
        f.u.array.n_records++;
        if (f.u.array.records == 0) return;
    }
    if ((f.flags & FLAG_TRACK) != 0) f.hash = hash_mix(f.hash, hash);
    count_set(a, &f, f.u.array.taken);
    f.u.array.taken = 0;
    f.phase = PHASE_NEXT;
    f.space = 0;
    if (may_close(a, &f) || may_add(s, a, &f)) list_push(s, l, &f);
}
