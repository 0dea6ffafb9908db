/* Nondeterministic automata: storage, code point ranges as UTF-8 bytes, and the subset
 * construction. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar_dfa.h"

uint32_t nfa_add(nfa *n, nfa_state s) {
    if (n->len >= NFA_MAX_STATES) {
        n->is_full = true;
        return 0; /* any state that exists: the automaton is thrown away */
    }
    if (n->len == n->cap) {
        n->cap = n->cap == 0 ? 64 : n->cap * 2;
        n->states = mem_realloc(n->states, n->cap * sizeof *n->states);
    }
    n->states[n->len] = s;
    return (uint32_t)n->len++;
}

static int utf8_bytes(uint32_t cp, uint8_t out[4]) {
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    int n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    out[0] = (uint8_t)(0xF0 | cp);
    if (n == 2) out[0] = (uint8_t)(0xC0 | cp);
    if (n == 3) out[0] = (uint8_t)(0xE0 | cp);
    return n;
}

/* One alternative more: the bytes from lo to hi, each in its own range. */
static void add_bytes(nfa *n, uint32_t lo, uint32_t hi, uint32_t *head, uint32_t end) {
    uint8_t a[4], b[4];
    int len = utf8_bytes(lo, a);
    uint32_t next = end;
    utf8_bytes(hi, b);
    for (int i = len - 1; i >= 0; i--) {
        next = nfa_add(
            n, (nfa_state){.kind = NFA_RANGE, .lo = a[i], .hi = b[i], .a = next, .b = NFA_NONE});
    }
    *head = *head == NFA_NONE ? next
                              : nfa_add(n, (nfa_state){.kind = NFA_SPLIT, .a = next, .b = *head});
}

/* If the range must be cut for its byte ranges to be independent, cuts it: *hi becomes the end of
 * the first part, and the rest begins behind it. */
static bool cut_range(uint32_t lo, uint32_t *hi) {
    static const uint32_t borders[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF};
    for (size_t i = 0; i < 5; i++) {
        if (lo <= borders[i] && *hi > borders[i]) {
            *hi = borders[i];
            return true;
        }
    }
    uint32_t n_tail = lo < 0x80 ? 0 : lo < 0x800 ? 1 : lo < 0x10000 ? 2 : 3;
    for (uint32_t i = 1; i <= n_tail; i++) {
        uint32_t mask = (1u << (6 * i)) - 1;
        if ((lo & ~mask) == (*hi & ~mask)) continue;
        if ((lo & mask) != 0) {
            *hi = lo | mask;
            return true;
        }
        if ((*hi & mask) != mask) {
            *hi = (*hi & ~mask) - 1;
            return true;
        }
    }
    return false;
}

void nfa_add_ranges(nfa *n, const uint32_t (*ranges)[2], size_t n_ranges, uint32_t ends[2]) {
    uint32_t end = nfa_add(n, (nfa_state){.kind = NFA_SPLIT, .a = NFA_NONE, .b = NFA_NONE});
    uint32_t head = NFA_NONE;
    for (size_t i = 0; i < n_ranges; i++) {
        uint32_t lo = ranges[i][0];
        while (lo <= ranges[i][1] && !n->is_full) {
            uint32_t hi = ranges[i][1];
            while (cut_range(lo, &hi))
                continue;
            if (lo < 0xD800 || lo > 0xDFFF) add_bytes(n, lo, hi, &head, end);
            lo = hi + 1;
        }
    }
    if (head == NFA_NONE) { /* the empty set: a range that no byte is in */
        head =
            nfa_add(n, (nfa_state){.kind = NFA_RANGE, .lo = 1, .hi = 0, .a = end, .b = NFA_NONE});
    }
    ends[0] = head;
    ends[1] = end;
}

/* States looked at while one automaton is made: about a tenth of a second. */
#define WORK_MAX 8000000u

/* The subset construction. A set is the sorted list of its range, end and match states. */
typedef struct subsets {
    const nfa *n;
    uint32_t *items; /* all sets, one behind the other */
    size_t items_len, items_cap;
    size_t *first; /* [n_sets + 1] */
    uint32_t n_sets, sets_cap;
    uint32_t *table; /* hash to set + 1 */
    uint32_t table_size;
    uint32_t *mark; /* [n->len] */
    uint32_t mark_now;
    uint32_t *stack; /* [2 * n->len + 2] */
    uint32_t *list;  /* [n->len] a set in the making */
    uint32_t list_len;
    uint64_t n_work; /* states looked at */
} subsets;

enum { AT_START = 1, AT_END = 2 };

/* Adds state and what it reaches without a byte to the list in the making. */
static void closure(subsets *s, uint32_t state, int where) {
    uint32_t top = 0;
    s->stack[top++] = state;
    while (top > 0) {
        uint32_t i = s->stack[--top];
        s->n_work++;
        if (i == NFA_NONE || s->mark[i] == s->mark_now) continue;
        s->mark[i] = s->mark_now;
        const nfa_state *q = &s->n->states[i];
        if (q->kind == NFA_SPLIT) {
            s->stack[top++] = q->a;
            s->stack[top++] = q->b;
        } else if (q->kind == NFA_BEGIN) {
            if ((where & AT_START) != 0) s->stack[top++] = q->a;
        } else if (q->kind == NFA_END && (where & AT_END) != 0) {
            s->stack[top++] = q->a;
        } else {
            s->list[s->list_len++] = i;
        }
    }
}

static void sort_list(uint32_t *v, uint32_t n) {
    for (uint32_t gap = n / 2; gap > 0; gap /= 2) {
        for (uint32_t i = gap; i < n; i++) {
            uint32_t x = v[i], j = i;
            for (; j >= gap && v[j - gap] > x; j -= gap)
                v[j] = v[j - gap];
            v[j] = x;
        }
    }
}

static uint64_t hash_list(const uint32_t *v, size_t n) {
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ v[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static void table_grow(subsets *s) {
    mem_free(s->table);
    s->table_size = s->table_size == 0 ? 256 : s->table_size * 4;
    s->table = mem_array(s->table_size, sizeof *s->table);
    for (uint32_t i = 0; i < s->n_sets; i++) {
        uint64_t h = hash_list(s->items + s->first[i], s->first[i + 1] - s->first[i]);
        while (s->table[h & (s->table_size - 1)] != 0)
            h++;
        s->table[h & (s->table_size - 1)] = i + 1;
    }
}

/* The number of the set in the making, which is added if it is new. */
static uint32_t set_of_list(subsets *s) {
    sort_list(s->list, s->list_len);
    if (s->n_sets * 2 >= s->table_size) table_grow(s);
    uint64_t h = hash_list(s->list, s->list_len);
    for (uint32_t at; (at = s->table[h & (s->table_size - 1)]) != 0; h++) {
        size_t len = s->first[at] - s->first[at - 1];
        if (len == s->list_len &&
            memcmp(s->items + s->first[at - 1], s->list, len * sizeof *s->list) == 0) {
            return at - 1;
        }
    }
    s->table[h & (s->table_size - 1)] = s->n_sets + 1;
    if (s->n_sets + 2 > s->sets_cap) {
        s->sets_cap = s->sets_cap == 0 ? 64 : s->sets_cap * 2;
        s->first = mem_realloc(s->first, s->sets_cap * sizeof *s->first);
    }
    while (s->items_len + s->list_len > s->items_cap) {
        s->items_cap = s->items_cap == 0 ? 256 : s->items_cap * 2;
        s->items = mem_realloc(s->items, s->items_cap * sizeof *s->items);
    }
    memcpy(s->items + s->items_len, s->list, s->list_len * sizeof *s->list);
    if (s->n_sets == 0) s->first[0] = 0;
    s->items_len += s->list_len;
    s->first[++s->n_sets] = s->items_len;
    return s->n_sets - 1;
}

static bool set_accepts(subsets *s, uint32_t set) {
    s->mark_now++;
    s->list_len = 0;
    for (size_t i = s->first[set]; i < s->first[set + 1]; i++) {
        closure(s, s->items[i], AT_END);
    }
    for (uint32_t i = 0; i < s->list_len; i++) {
        if (s->n->states[s->list[i]].kind == NFA_MATCH) return true;
    }
    return false;
}

static uint32_t set_step(subsets *s, uint32_t set, uint8_t byte) {
    s->mark_now++;
    s->list_len = 0;
    s->n_work += s->first[set + 1] - s->first[set];
    for (size_t i = s->first[set]; i < s->first[set + 1]; i++) {
        const nfa_state *q = &s->n->states[s->items[i]];
        if (q->kind == NFA_RANGE && byte >= q->lo && byte <= q->hi) closure(s, q->a, 0);
    }
    return set_of_list(s);
}

/* Bytes that no range tells apart share a class. Returns the number of classes. */
static uint32_t byte_classes(const nfa *n, uint8_t class_of[256], uint8_t sample[256]) {
    bool begins[257] = {false};
    uint32_t n_classes = 0;
    begins[0] = true;
    for (size_t i = 0; i < n->len; i++) {
        if (n->states[i].kind != NFA_RANGE || n->states[i].lo > n->states[i].hi) continue;
        begins[n->states[i].lo] = true;
        begins[n->states[i].hi + 1] = true;
    }
    begins[0x80] = begins[0xC0] = true; /* characters are counted by their first byte */
    for (int b = 0; b < 256; b++) {
        if (begins[b]) sample[n_classes++] = (uint8_t)b;
        class_of[b] = (uint8_t)(n_classes - 1);
    }
    return n_classes;
}

static int build(subsets *s, dfa *raw, const uint8_t sample[256], err *e) {
    size_t cap = 0;
    for (uint32_t set = 0; set < s->n_sets; set++) {
        if (s->n_sets > DFA_MAX_STATES || s->n_work > WORK_MAX) {
            return err_set(e, ERR_LIMIT, "pattern: its automaton is too large");
        }
        if (set + 2 > cap) {
            cap = cap == 0 ? 64 : cap * 2;
            raw->next = mem_realloc(raw->next, cap * raw->n_classes * sizeof *raw->next);
            raw->accepts = mem_realloc(raw->accepts, cap);
        }
        for (uint32_t c = 0; c < raw->n_classes; c++) {
            raw->next[(size_t)(set + 1) * raw->n_classes + c] = set_step(s, set, sample[c]) + 1;
        }
        raw->accepts[set + 1] = set_accepts(s, set);
    }
    memset(raw->next, 0, raw->n_classes * sizeof *raw->next);
    raw->accepts[0] = 0;
    raw->n_states = s->n_sets + 1;
    raw->start = 1;
    return OK;
}

int dfa_from_nfa(const nfa *n, uint32_t start, dfa **out, err *e) {
    subsets s = {.n = n};
    uint8_t sample[256];
    dfa *raw = mem_alloc(sizeof *raw);
    s.mark = mem_array(n->len + 1, sizeof *s.mark);
    s.stack = mem_array(2 * n->len + 2, sizeof *s.stack);
    s.list = mem_array(n->len + 1, sizeof *s.list);
    raw->n_classes = byte_classes(n, raw->class_of, sample);
    s.mark_now++;
    closure(&s, start, AT_START);
    set_of_list(&s);
    int rc = build(&s, raw, sample, e);
    if (rc == OK) {
        rc = dfa_finish(raw, out, e);
    } else {
        dfa_free(raw);
    }
    mem_free(s.items);
    mem_free(s.first);
    mem_free(s.table);
    mem_free(s.mark);
    mem_free(s.stack);
    mem_free(s.list);
    return rc;
}
