#include "engine/run/grammar_dfa.h"

#include <string.h>

#include "engine/base/mem.h"

void dfa_free(dfa *d) {
    if (d == NULL) return;
    mem_free(d->next);
    mem_free(d->accepts);
    mem_free(d->words);
    mem_free(d->min_chars);
    mem_free(d->max_chars);
    mem_free(d);
}

uint32_t dfa_run(const dfa *d, uint32_t state, const char *text, size_t len) {
    for (size_t i = 0; i < len && state != 0; i++) {
        state = dfa_step(d, state, (uint8_t)text[i]);
    }
    return state;
}

/* A byte of each class, and whether it begins a character. */
static void class_samples(const dfa *d, uint8_t *n_bytes, bool *is_first) {
    memset(n_bytes, 0, d->n_classes);
    for (int b = 0; b < 256; b++) {
        n_bytes[d->class_of[b]]++;
        is_first[d->class_of[b]] = (b & 0xC0) != 0x80;
    }
}

/* Edges backwards: for each state the states that lead to it. */
typedef struct back_edges {
    uint32_t *first; /* [n_states + 1] */
    uint32_t *from;
} back_edges;

static back_edges edges_backwards(const dfa *d) {
    size_t n = (size_t)d->n_states * d->n_classes;
    back_edges b = {mem_array(d->n_states + 2, sizeof(uint32_t)), mem_array(n + 1, 4)};
    for (size_t i = 0; i < n; i++)
        b.first[d->next[i] + 1]++;
    for (uint32_t i = 0; i < d->n_states; i++)
        b.first[i + 1] += b.first[i];
    uint32_t *at = mem_dup(b.first, (d->n_states + 1) * sizeof *at);
    for (size_t i = 0; i < n; i++)
        b.from[at[d->next[i]]++] = (uint32_t)(i / d->n_classes);
    mem_free(at);
    return b;
}

/* live[q] = q can reach acceptance. */
static uint8_t *find_live(const dfa *d, const back_edges *b) {
    uint8_t *live = mem_alloc(d->n_states);
    uint32_t *stack = mem_array(d->n_states, sizeof *stack);
    uint32_t top = 0;
    for (uint32_t q = 1; q < d->n_states; q++) {
        if (!d->accepts[q]) continue;
        live[q] = 1;
        stack[top++] = q;
    }
    while (top > 0) {
        uint32_t q = stack[--top];
        for (uint32_t i = b->first[q]; i < b->first[q + 1]; i++) {
            uint32_t p = b->from[i];
            if (p == 0 || live[p]) continue;
            live[p] = 1;
            stack[top++] = p;
        }
    }
    mem_free(stack);
    return live;
}

/* Removes the states that are not live; raw is given back. */
static dfa *keep_live(dfa *raw, const uint8_t *live) {
    dfa *d = mem_alloc(sizeof *d);
    uint32_t *number = mem_array(raw->n_states, sizeof *number);
    uint32_t n = 1;
    for (uint32_t q = 1; q < raw->n_states; q++) {
        if (live[q]) number[q] = n++;
    }
    *d = (dfa){.n_states = n, .n_classes = raw->n_classes, .start = number[raw->start]};
    memcpy(d->class_of, raw->class_of, sizeof d->class_of);
    d->next = mem_array((size_t)n * d->n_classes, sizeof *d->next);
    d->accepts = mem_alloc(n);
    for (uint32_t q = 1; q < raw->n_states; q++) {
        if (number[q] == 0) continue;
        d->accepts[number[q]] = raw->accepts[q];
        for (uint32_t c = 0; c < d->n_classes; c++) {
            d->next[(size_t)number[q] * d->n_classes + c] =
                number[raw->next[(size_t)q * d->n_classes + c]];
        }
    }
    mem_free(number);
    dfa_free(raw);
    return d;
}

static uint32_t add_capped(uint32_t a, uint64_t b) {
    return a == DFA_MANY || (uint64_t)a + b >= DFA_MANY ? DFA_MANY : (uint32_t)(a + b);
}

static void count_state(dfa *d, uint32_t q, const uint8_t *n_bytes, const bool *is_first) {
    uint32_t words = d->accepts[q] ? 1 : 0, most = 0;
    for (uint32_t c = 0; c < d->n_classes; c++) {
        uint32_t r = d->next[(size_t)q * d->n_classes + c];
        if (r == 0) continue;
        words = d->words[r] == DFA_MANY ? DFA_MANY
                                        : add_capped(words, (uint64_t)n_bytes[c] * d->words[r]);
        uint32_t longest = add_capped(d->max_chars[r], is_first[c]);
        if (longest > most) most = longest;
    }
    d->words[q] = words;
    d->max_chars[q] = most;
}

/* Words and longest word left: states are counted once all their followers are; what stays
 * uncounted can reach a cycle and has no limit. */
static void count_words(dfa *d, const back_edges *b, const uint8_t *n_bytes, const bool *is_first) {
    uint32_t *open = mem_array(d->n_states, sizeof *open);
    uint32_t *stack = mem_array(d->n_states, sizeof *stack);
    uint32_t top = 0;
    for (uint32_t q = 1; q < d->n_states; q++) {
        d->words[q] = d->max_chars[q] = DFA_MANY;
        for (uint32_t c = 0; c < d->n_classes; c++) {
            open[q] += d->next[(size_t)q * d->n_classes + c] != 0;
        }
        if (open[q] == 0) stack[top++] = q;
    }
    while (top > 0) {
        uint32_t q = stack[--top];
        count_state(d, q, n_bytes, is_first);
        for (uint32_t i = b->first[q]; i < b->first[q + 1]; i++) {
            uint32_t p = b->from[i];
            if (p != 0 && --open[p] == 0) stack[top++] = p;
        }
    }
    mem_free(open);
    mem_free(stack);
}

/* Fewest characters to acceptance, by rounds of relaxing backwards from the accepting states. */
static void count_shortest(dfa *d, const back_edges *b, const bool *is_first) {
    uint32_t *queue = mem_array(d->n_states + 1, sizeof *queue);
    uint8_t *waits = mem_alloc(d->n_states);
    uint32_t head = 0, n = 0;
    for (uint32_t q = 1; q < d->n_states; q++) {
        d->min_chars[q] = d->accepts[q] ? 0 : DFA_MANY;
        if (!d->accepts[q]) continue;
        queue[n++] = q;
        waits[q] = 1;
    }
    while (n > 0) {
        uint32_t q = queue[head];
        head = (head + 1) % d->n_states;
        n--;
        waits[q] = 0;
        for (uint32_t i = b->first[q]; i < b->first[q + 1]; i++) {
            uint32_t p = b->from[i], best = d->min_chars[p];
            if (p == 0) continue;
            for (uint32_t c = 0; c < d->n_classes; c++) {
                if (d->next[(size_t)p * d->n_classes + c] != q) continue;
                uint32_t len = d->min_chars[q] + (is_first[c] ? 1 : 0);
                if (len < best) best = len;
            }
            if (best >= d->min_chars[p]) continue;
            d->min_chars[p] = best;
            if (waits[p]) continue;
            waits[p] = 1;
            queue[(head + n++) % d->n_states] = p;
        }
    }
    mem_free(queue);
    mem_free(waits);
}

int dfa_finish(dfa *raw, dfa **out, err *e) {
    back_edges b = edges_backwards(raw);
    uint8_t *live = find_live(raw, &b);
    uint8_t n_bytes[256];
    bool is_first[256] = {false};
    mem_free(b.first);
    mem_free(b.from);
    dfa *d = keep_live(raw, live);
    mem_free(live);
    (void)e;
    d->words = mem_array(d->n_states, sizeof *d->words);
    d->min_chars = mem_array(d->n_states, sizeof *d->min_chars);
    d->max_chars = mem_array(d->n_states, sizeof *d->max_chars);
    class_samples(d, n_bytes, is_first);
    b = edges_backwards(d);
    count_words(d, &b, n_bytes, is_first);
    count_shortest(d, &b, is_first);
    mem_free(b.first);
    mem_free(b.from);
    *out = d;
    return OK;
}

/* A loop over all characters in front of start: returns its state. */
static uint32_t add_any_loop(nfa *n, uint32_t then) {
    static const uint32_t all[1][2] = {{0, 0x10FFFF}};
    uint32_t ends[2];
    nfa_add_ranges(n, all, 1, ends);
    uint32_t split = nfa_add(n, (nfa_state){.kind = NFA_SPLIT, .a = ends[0], .b = then});
    n->states[ends[1]].a = split;
    return split;
}

int dfa_from_regex(const char *pattern, size_t len, int mode, dfa **out, err *e) {
    nfa n = {0};
    uint32_t ends[2];
    int rc = regex_parse(pattern, len, &n, ends, e);
    if (rc == OK) {
        uint32_t match = nfa_add(&n, (nfa_state){.kind = NFA_MATCH, .a = NFA_NONE, .b = NFA_NONE});
        uint32_t start = ends[0];
        n.states[ends[1]].a = match;
        if (mode == REGEX_SEARCH) {
            uint32_t behind = add_any_loop(&n, match); /* may move the states */
            n.states[ends[1]].a = behind;
            start = add_any_loop(&n, ends[0]);
        }
        rc = n.is_full ? err_set(e, ERR_LIMIT, "pattern: too large")
                       : dfa_from_nfa(&n, start, out, e);
    }
    mem_free(n.states);
    return rc;
}

int dfa_any(dfa **out, err *e) {
    nfa n = {0};
    uint32_t match = nfa_add(&n, (nfa_state){.kind = NFA_MATCH, .a = NFA_NONE, .b = NFA_NONE});
    int rc = dfa_from_nfa(&n, add_any_loop(&n, match), out, e);
    mem_free(n.states);
    return rc;
}

int dfa_from_words(const dfa_word *words, size_t n_words, dfa **out, err *e) {
    nfa n = {0};
    uint32_t match = nfa_add(&n, (nfa_state){.kind = NFA_MATCH, .a = NFA_NONE, .b = NFA_NONE});
    uint32_t head = NFA_NONE;
    for (size_t i = 0; i < n_words && !n.is_full; i++) {
        uint32_t next = match;
        for (size_t k = words[i].len; k-- > 0;) {
            uint8_t b = (uint8_t)words[i].text[k];
            next = nfa_add(
                &n, (nfa_state){.kind = NFA_RANGE, .lo = b, .hi = b, .a = next, .b = NFA_NONE});
        }
        head = nfa_add(&n, (nfa_state){.kind = NFA_SPLIT, .a = next, .b = head});
    }
    if (head == NFA_NONE) {
        head = nfa_add(&n, (nfa_state){.kind = NFA_SPLIT, .a = NFA_NONE, .b = NFA_NONE});
    }
    int rc = n.is_full ? err_set(e, ERR_LIMIT, "the texts of a set are too long together")
                       : dfa_from_nfa(&n, head, out, e);
    mem_free(n.states);
    return rc;
}

/* The product of two automata. */
typedef struct product {
    const dfa *a, *b;
    uint32_t (*pairs)[2];
    uint32_t len, cap;
    uint32_t *table;
    uint32_t table_size;
} product;

static uint32_t pair_slot(const product *p, uint32_t x, uint32_t y) {
    uint64_t h = ((uint64_t)x << 32 | y) * 0x9E3779B97F4A7C15u;
    for (uint32_t i = (uint32_t)(h >> 32) & (p->table_size - 1);;
         i = (i + 1) & (p->table_size - 1)) {
        uint32_t at = p->table[i];
        if (at == 0 || (p->pairs[at - 1][0] == x && p->pairs[at - 1][1] == y)) return i;
    }
}

/* The number of a pair, 1 and up; 0 for one that a cannot continue. */
static uint32_t pair_number(product *p, uint32_t x, uint32_t y) {
    if (x == 0) return 0;
    if ((p->len + 1) * 2 > p->table_size) {
        mem_free(p->table);
        p->table_size = p->table_size == 0 ? 256 : p->table_size * 4;
        p->table = mem_array(p->table_size, sizeof *p->table);
        for (uint32_t i = 0; i < p->len; i++) {
            p->table[pair_slot(p, p->pairs[i][0], p->pairs[i][1])] = i + 1;
        }
    }
    uint32_t slot = pair_slot(p, x, y);
    if (p->table[slot] == 0) {
        if (p->len == p->cap) {
            p->cap = p->cap == 0 ? 64 : p->cap * 2;
            p->pairs = mem_realloc(p->pairs, p->cap * sizeof *p->pairs);
        }
        p->pairs[p->len][0] = x;
        p->pairs[p->len][1] = y;
        p->table[slot] = ++p->len;
    }
    return p->table[slot];
}

/* Classes of the product: bytes that neither automaton tells apart. */
static void product_classes(const dfa *a, const dfa *b, dfa *out, uint8_t sample[256]) {
    int16_t seen[256];
    out->n_classes = 0;
    for (int i = 0; i < 256; i++) {
        int found = -1;
        for (uint32_t c = 0; c < out->n_classes && found < 0; c++) {
            uint8_t s = sample[c];
            if (a->class_of[s] == a->class_of[i] && b->class_of[s] == b->class_of[i] &&
                ((s & 0xC0) == 0x80) == ((i & 0xC0) == 0x80)) {
                found = (int)c;
            }
        }
        if (found < 0) {
            sample[out->n_classes] = (uint8_t)i;
            found = (int)out->n_classes++;
        }
        seen[i] = (int16_t)found;
        out->class_of[i] = (uint8_t)seen[i];
    }
}

int dfa_intersect(const dfa *a, const dfa *b, bool is_negated, dfa **out, err *e) {
    product p = {.a = a, .b = b};
    uint8_t sample[256];
    dfa *raw = mem_alloc(sizeof *raw);
    uint32_t cap = 0;
    int rc = OK;
    product_classes(a, b, raw, sample);
    if (a->start != 0 && (b->start != 0 || is_negated))
        raw->start = pair_number(&p, a->start, b->start);
    for (uint32_t i = 0; i < p.len || i == 0; i++) {
        if (p.len > DFA_MAX_STATES) {
            rc = err_set(e, ERR_LIMIT, "pattern: patterns that hold together are too large");
            break;
        }
        if (i + 2 > cap) {
            cap = cap == 0 ? 64 : cap * 2;
            raw->next = mem_realloc(raw->next, (size_t)cap * raw->n_classes * sizeof *raw->next);
            raw->accepts = mem_realloc(raw->accepts, cap);
        }
        if (i >= p.len) break;
        uint32_t x = p.pairs[i][0], y = p.pairs[i][1];
        for (uint32_t c = 0; c < raw->n_classes; c++) {
            uint32_t nx = dfa_step(a, x, sample[c]), ny = dfa_step(b, y, sample[c]);
            raw->next[(size_t)(i + 1) * raw->n_classes + c] =
                ny == 0 && !is_negated ? 0 : pair_number(&p, nx, ny);
        }
        raw->accepts[i + 1] = a->accepts[x] && (b->accepts[y] != 0) != is_negated;
    }
    memset(raw->next, 0, raw->n_classes * sizeof *raw->next);
    raw->accepts[0] = 0;
    raw->n_states = p.len + 1;
    mem_free(p.pairs);
    mem_free(p.table);
    if (rc == OK) return dfa_finish(raw, out, e);
    dfa_free(raw);
    return rc;
}
