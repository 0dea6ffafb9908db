#include "engine/run/prefix.h"

#include <string.h>

#include "engine/base/mem.h"

#define NONE (-1)
/* What few pages a chain of its own has is a small request: a title, a tag, a helper's question.
 * All of them together keep this part of the pool when it is short. */
#define SMALL_PAGES 8
#define SMALL_SHARE 8
#define SMALL_MARKS_SHARE 2
#define HASH_PRIME 0x9e3779b97f4a7c15u
#define HASH_PRIME_B 0xff51afd7ed558ccdu

typedef struct node {
    prefix_hash hash;
    uint64_t last_used, creator, serial;
    uint8_t salt[PREFIX_SALT_BYTES];
    int32_t parent, next_in_bucket; /* next_in_bucket: next free one while unused */
    int32_t first_tail, next_tail;
    int32_t n_tokens, depth, branch_depth, page, mark;
    int32_t n_children, n_pages_below; /* with and without tails */
    uint32_t stored, mark_stored;      /* epoch in which it went to disk */
    bool is_used, is_poisoned;
} node;

typedef struct mark {
    uint64_t last_used;
    int32_t node; /* NONE: free */
    int32_t n_hits;
} mark;

struct prefix_cache {
    prefix_options o;
    node *nodes; /* [n_nodes_cap]; 0 is the root */
    int32_t n_nodes_cap, n_used, first_free, n_marks_used;
    int32_t *tokens;  /* [n_nodes_cap][page_tokens] */
    int32_t *buckets; /* [n_buckets] */
    uint32_t n_buckets;
    mark *marks;
    char *blobs; /* [n_marks][snapshot_bytes] */
    uint64_t clock, n_evicted, n_serials;
    int32_t n_small; /* nodes of small chains */
};

prefix_cache *prefix_new(const prefix_options *options) {
    CHECK(options->n_marks > 0 && options->page_tokens > 0);
    prefix_cache *c = mem_alloc(sizeof *c);
    c->o = *options;
    c->n_nodes_cap = 1 + options->n_pages + options->n_marks;
    c->n_buckets = 64;
    while (c->n_buckets < (uint32_t)c->n_nodes_cap) {
        c->n_buckets *= 2;
    }
    c->nodes = mem_array((size_t)c->n_nodes_cap, sizeof *c->nodes);
    c->tokens = mem_array((size_t)c->n_nodes_cap * (size_t)options->page_tokens, sizeof *c->tokens);
    c->buckets = mem_array(c->n_buckets, sizeof *c->buckets);
    c->marks = mem_array((size_t)options->n_marks, sizeof *c->marks);
    c->blobs = mem_try_alloc((size_t)options->n_marks * options->snapshot_bytes + 1);
    if (c->blobs == NULL) {
        prefix_free(c);
        return NULL;
    }
    /* Touched now, so that memory does not grow while requests come. */
    memset(c->blobs, 1, (size_t)options->n_marks * options->snapshot_bytes);
    memset(c->tokens, 1, (size_t)c->n_nodes_cap * (size_t)options->page_tokens * 4);
    for (uint32_t i = 0; i < c->n_buckets; i++) {
        c->buckets[i] = NONE;
    }
    for (int32_t i = 0; i < options->n_marks; i++) {
        c->marks[i].node = NONE;
    }
    for (int32_t i = 1; i < c->n_nodes_cap; i++) {
        c->nodes[i].next_in_bucket = i + 1 < c->n_nodes_cap ? i + 1 : NONE;
    }
    c->first_free = c->n_nodes_cap > 1 ? 1 : NONE;
    c->nodes[PREFIX_ROOT] =
        (node){.parent = NONE, .first_tail = NONE, .next_tail = NONE, .page = NONE, .mark = NONE};
    return c;
}

void prefix_free(prefix_cache *c) {
    if (c == NULL) return;
    mem_free(c->nodes);
    mem_free(c->tokens);
    mem_free(c->buckets);
    mem_free(c->marks);
    mem_free(c->blobs);
    mem_free(c);
}

static int32_t *node_tokens(const prefix_cache *c, int32_t i) {
    return c->tokens + (size_t)i * (size_t)c->o.page_tokens;
}

static uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= HASH_PRIME;
    return h ^ h >> 29;
}

prefix_hash prefix_hash_of(
    const prefix_hash *parent, const uint8_t *salt, const int32_t *tokens, int32_t n) {
    prefix_hash h = *parent;
    uint64_t part;
    for (size_t i = 0; i < PREFIX_SALT_BYTES && h.a == 0 && h.b == 0; i += 2 * sizeof part) {
        memcpy(&part, salt + i, sizeof part);
        h.a = mix(h.a + part + HASH_PRIME);
        memcpy(&part, salt + i + sizeof part, sizeof part);
        h.b = mix(h.b ^ part) + h.a;
    }
    for (int32_t i = 0; i < n; i++) {
        h.a = (h.a ^ (uint32_t)tokens[i]) * HASH_PRIME;
        h.b = (h.b + (uint32_t)tokens[i] + 1) * HASH_PRIME_B;
        h.a ^= h.a >> 32;
        h.b ^= h.b >> 29;
    }
    h.a = mix(h.a + (uint32_t)n) | 1; /* never the root's 0 */
    return h;
}

static prefix_hash hash_page(const prefix_cache *c, const prefix_hash *parent,
    const prefix_key *key, const int32_t *tokens) {
    if (c->o.has_constant_hash) return (prefix_hash){0};
    return prefix_hash_of(parent, key->salt, tokens, c->o.page_tokens);
}

static bool same_salt(const node *n, const prefix_key *key) {
    return memcmp(n->salt, key->salt, PREFIX_SALT_BYTES) == 0;
}

/* The child of parent that holds exactly these tokens of a whole page. */
static int32_t find_child(const prefix_cache *c, int32_t parent, prefix_hash hash,
    const prefix_key *key, const int32_t *tokens) {
    for (int32_t i = c->buckets[hash.a & (c->n_buckets - 1)]; i != NONE;
         i = c->nodes[i].next_in_bucket) {
        const node *n = &c->nodes[i];
        if (n->hash.a != hash.a || n->hash.b != hash.b || n->parent != parent || n->is_poisoned ||
            !same_salt(n, key))
            continue;
        if (memcmp(node_tokens(c, i), tokens, (size_t)c->o.page_tokens * sizeof *tokens) == 0) {
            return i;
        }
    }
    return NONE;
}

static bool tail_matches(
    const prefix_cache *c, int32_t i, const prefix_key *key, const int32_t *tokens, int32_t n) {
    const node *t = &c->nodes[i];
    return !t->is_poisoned && t->n_tokens <= n && same_salt(t, key) &&
           memcmp(node_tokens(c, i), tokens, (size_t)t->n_tokens * sizeof *tokens) == 0;
}

static void use(prefix_cache *c, int32_t i) {
    c->nodes[i].last_used = c->clock;
    if (c->nodes[i].mark != NONE) c->marks[c->nodes[i].mark].last_used = c->clock;
}

static void take_hit(prefix_cache *c, prefix_hit *out, int32_t i, int32_t n_tokens) {
    const node *n = &c->nodes[i];
    bool is_tail = n->n_tokens < c->o.page_tokens;
    out->n_tokens = n_tokens;
    out->node = is_tail ? n->parent : i;
    out->tail_page = is_tail ? n->page : NONE;
    out->snapshot = c->blobs + (size_t)n->mark * c->o.snapshot_bytes;
}

static void find(prefix_cache *c, const prefix_key *key, bool has_tails, prefix_hit *out) {
    int32_t at = PREFIX_ROOT;
    int32_t done = 0;
    int32_t best = NONE;
    *out = (prefix_hit){.node = PREFIX_ROOT, .tail_page = NONE};
    c->clock++;
    for (;;) {
        int32_t left = key->n_tokens - done;
        const int32_t *tokens = key->tokens + done;
        int32_t t = has_tails ? c->nodes[at].first_tail : NONE;
        for (; t != NONE; t = c->nodes[t].next_tail) {
            int32_t end = done + c->nodes[t].n_tokens;
            if (end <= out->n_tokens || !tail_matches(c, t, key, tokens, left)) continue;
            take_hit(c, out, t, end);
            best = t;
        }
        if (left < c->o.page_tokens) break;
        prefix_hash hash = hash_page(c, &c->nodes[at].hash, key, tokens);
        int32_t next = find_child(c, at, hash, key, tokens);
        if (next == NONE) break;
        at = next;
        done += c->o.page_tokens;
        use(c, at);
        if (c->nodes[at].mark == NONE) continue;
        take_hit(c, out, at, done);
        best = at;
    }
    out->n_match = done;
    out->match_node = at;
    if (best == NONE) return;
    use(c, best);
    c->marks[c->nodes[best].mark].n_hits++;
}

void prefix_find(prefix_cache *c, const prefix_key *key, prefix_hit *out) {
    find(c, key, true, out);
}

void prefix_find_border(prefix_cache *c, const prefix_key *key, prefix_hit *out) {
    find(c, key, false, out);
}

int32_t prefix_node_at(const prefix_cache *c, int32_t i, int32_t n_pages) {
    while (i != PREFIX_ROOT && c->nodes[i].depth >= n_pages) {
        i = c->nodes[i].parent;
    }
    return i;
}

void prefix_pages(const prefix_cache *c, int32_t i, int32_t *pages) {
    for (; i != PREFIX_ROOT; i = c->nodes[i].parent) {
        pages[c->nodes[i].depth] = c->nodes[i].page;
    }
}

static bool is_small(const node *n) {
    return n->depth - n->branch_depth < SMALL_PAGES;
}

/* A new node below parent, in its list; tokens are copied, the page is held. */
static int32_t add(prefix_cache *c, int32_t parent, prefix_hash hash, const prefix_key *key,
    const int32_t *tokens, int32_t n_tokens) {
    int32_t i = c->first_free;
    CHECK(i != NONE);
    node *n = &c->nodes[i];
    node *p = &c->nodes[parent];
    c->first_free = n->next_in_bucket;
    int32_t depth = parent == PREFIX_ROOT ? 0 : p->depth + 1;
    bool goes_on = parent != PREFIX_ROOT && p->n_pages_below == 0;
    *n = (node){.hash = hash,
        .last_used = c->clock,
        .serial = ++c->n_serials,
        .parent = parent,
        .next_in_bucket = NONE,
        .first_tail = NONE,
        .next_tail = NONE,
        .n_tokens = n_tokens,
        .depth = depth,
        .branch_depth = goes_on ? p->branch_depth : depth,
        .page = NONE,
        .mark = NONE,
        .is_used = true};
    memcpy(n->salt, key->salt, PREFIX_SALT_BYTES);
    memcpy(node_tokens(c, i), tokens, (size_t)n_tokens * sizeof *tokens);
    p->n_children++;
    p->n_pages_below += n_tokens == c->o.page_tokens;
    if (n_tokens < c->o.page_tokens) {
        n->next_tail = p->first_tail;
        p->first_tail = i;
    } else {
        int32_t *bucket = &c->buckets[hash.a & (c->n_buckets - 1)];
        n->next_in_bucket = *bucket;
        *bucket = i;
    }
    c->n_used++;
    c->n_small += is_small(n);
    return i;
}

int32_t prefix_grow(prefix_cache *c, int32_t at, prefix_growth *g) {
    int32_t i_page = at == PREFIX_ROOT ? 0 : c->nodes[at].depth + 1;
    g->has_swapped = false;
    c->clock++;
    for (; i_page > g->n_full; i_page--) {
        at = c->nodes[at].parent;
    }
    for (; i_page < g->n_full; i_page++) {
        const int32_t *tokens = g->key->tokens + (size_t)i_page * (size_t)c->o.page_tokens;
        prefix_hash hash = hash_page(c, &c->nodes[at].hash, g->key, tokens);
        int32_t next = find_child(c, at, hash, g->key, tokens);
        if (next == NONE) {
            next = add(c, at, hash, g->key, tokens, c->o.page_tokens);
            c->nodes[next].page = g->pages[i_page];
            c->nodes[next].creator = g->creator;
            page_pool_cache(c->o.pool, g->pages[i_page]);
        } else if (c->nodes[next].page != g->pages[i_page]) {
            page_pool_get(c->o.pool, c->nodes[next].page);
            page_pool_put(c->o.pool, g->pages[i_page]);
            g->pages[i_page] = c->nodes[next].page;
            g->has_swapped = true;
        }
        at = next;
        use(c, at);
    }
    return at;
}

/* ---- marks ---- */

static void drop_node(prefix_cache *c, int32_t i);

static void drop_mark(prefix_cache *c, int32_t i_mark) {
    int32_t i = c->marks[i_mark].node;
    c->marks[i_mark].node = NONE;
    c->n_marks_used--;
    c->nodes[i].mark = NONE;
    c->nodes[i].mark_stored = 0;
    if (c->nodes[i].n_tokens < c->o.page_tokens) drop_node(c, i); /* a tail is its mark */
}

/* Lower goes first: inside a chain and never used, then those of small requests while they have
 * more than their share. */
static int mark_rank(const prefix_cache *c, const mark *m, bool is_small_over) {
    const node *n = &c->nodes[m->node];
    if (n->is_poisoned || (n->n_children > 0 && m->n_hits == 0)) return 0;
    return is_small_over && is_small(n) ? 1 : 2;
}

/* A free mark, or the one that is missed least. */
static int32_t worst_mark(const prefix_cache *c) {
    int32_t worst = NONE;
    int worst_rank = 0;
    int32_t n_small = 0;
    for (int32_t i = 0; i < c->o.n_marks; i++) {
        if (c->marks[i].node == NONE) return i;
        n_small += is_small(&c->nodes[c->marks[i].node]);
    }
    bool is_small_over = n_small > c->o.n_marks / SMALL_MARKS_SHARE;
    for (int32_t i = 0; i < c->o.n_marks; i++) {
        const mark *m = &c->marks[i];
        int rank = mark_rank(c, m, is_small_over);
        bool is_worse = worst == NONE || rank < worst_rank ||
                        (rank == worst_rank && m->last_used < c->marks[worst].last_used);
        if (!is_worse) continue;
        worst = i;
        worst_rank = rank;
    }
    return worst;
}

static int32_t find_tail(const prefix_cache *c, int32_t parent, const prefix_key *key,
    const int32_t *tokens, int32_t n) {
    for (int32_t t = c->nodes[parent].first_tail; t != NONE; t = c->nodes[t].next_tail) {
        if (c->nodes[t].n_tokens == n && tail_matches(c, t, key, tokens, n)) return t;
    }
    return NONE;
}

void *prefix_mark(prefix_cache *c, int32_t i, const prefix_key *key, int32_t page, int32_t *at) {
    int32_t n_tail = key->n_tokens % c->o.page_tokens;
    const int32_t *tokens = key->tokens + key->n_tokens - n_tail;
    int32_t target = n_tail == 0 ? i : find_tail(c, i, key, tokens, n_tail);
    c->clock++;
    *at = target;
    if (n_tail == 0 && i == PREFIX_ROOT) return NULL;
    if (target != NONE && c->nodes[target].mark != NONE) {
        use(c, target);
        return NULL;
    }
    int32_t i_mark = worst_mark(c);
    if (c->marks[i_mark].node != NONE) drop_mark(c, i_mark);
    if (target == NONE) {
        target = add(c, i, (prefix_hash){0}, key, tokens, n_tail);
        c->nodes[target].page = page;
        page_pool_cache(c->o.pool, page);
    }
    c->marks[i_mark] = (mark){.node = target, .last_used = c->clock};
    c->nodes[target].mark = i_mark;
    c->n_marks_used++;
    *at = target;
    return c->blobs + (size_t)i_mark * c->o.snapshot_bytes;
}

void prefix_unmark(prefix_cache *c, int32_t i) {
    if (c->nodes[i].mark != NONE) drop_mark(c, c->nodes[i].mark);
}

/* ---- giving up ---- */

static void unlink_from(prefix_cache *c, int32_t *link, int32_t i, bool is_tail) {
    while (*link != i) {
        CHECK(*link != NONE);
        node *n = &c->nodes[*link];
        link = is_tail ? &n->next_tail : &n->next_in_bucket;
    }
    *link = is_tail ? c->nodes[i].next_tail : c->nodes[i].next_in_bucket;
}

static void drop_node(prefix_cache *c, int32_t i) {
    node *n = &c->nodes[i];
    bool is_tail = n->n_tokens < c->o.page_tokens;
    CHECK(n->is_used && n->n_children == 0);
    if (n->mark != NONE) {
        c->marks[n->mark].node = NONE;
        c->n_marks_used--;
    }
    unlink_from(c,
        is_tail ? &c->nodes[n->parent].first_tail : &c->buckets[n->hash.a & (c->n_buckets - 1)], i,
        is_tail);
    c->nodes[n->parent].n_children--;
    c->nodes[n->parent].n_pages_below -= !is_tail;
    page_pool_uncache(c->o.pool, n->page);
    c->n_small -= is_small(n);
    c->n_used--;
    n->is_used = false;
    n->next_in_bucket = c->first_free;
    c->first_free = i;
}

/* Nothing hangs on the node and nobody uses it. */
static bool is_loose(const prefix_cache *c, int32_t i) {
    const node *n = &c->nodes[i];
    return i != PREFIX_ROOT && n->is_used && n->n_children == 0 &&
           page_pool_is_idle(c->o.pool, n->page);
}

static bool is_spare(const prefix_cache *c, int32_t i) {
    return is_loose(c, i) && c->nodes[i].mark == NONE;
}

int32_t prefix_drop_spare(prefix_cache *c, int32_t i) {
    int32_t parent = c->nodes[i].parent;
    if (!is_spare(c, i)) return NONE;
    drop_node(c, i);
    return parent;
}

int32_t prefix_next_spare(const prefix_cache *c, int32_t i, int32_t base) {
    for (i++; i < c->n_nodes_cap; i++) {
        if (!is_spare(c, i)) continue;
        int32_t up = i;
        while (up != PREFIX_ROOT && up != base) {
            up = c->nodes[up].parent;
        }
        if (up == base) return i;
    }
    return 0;
}

void prefix_poison(prefix_cache *c, int32_t i, uint64_t creator) {
    for (; i != PREFIX_ROOT && c->nodes[i].creator == creator; i = c->nodes[i].parent) {
        c->nodes[i].is_poisoned = true;
        for (int32_t t = c->nodes[i].first_tail; t != NONE; t = c->nodes[t].next_tail) {
            c->nodes[t].is_poisoned = true;
        }
    }
}

/* Lower goes first. */
static int rank_of(const node *n, bool is_small_over) {
    if (n->is_poisoned) return 0;
    return is_small_over && is_small(n) ? 1 : 2;
}

bool prefix_evict(prefix_cache *c) {
    bool is_small_over = c->n_small > c->o.n_pages / SMALL_SHARE;
    int32_t worst = NONE;
    int worst_rank = 0;
    for (int32_t i = 1; i < c->n_nodes_cap; i++) {
        const node *n = &c->nodes[i];
        if (!is_loose(c, i)) continue;
        int rank = rank_of(n, is_small_over);
        if (worst != NONE && (rank > worst_rank ||
                                 (rank == worst_rank && n->last_used >= c->nodes[worst].last_used)))
            continue;
        worst = i;
        worst_rank = rank;
    }
    if (worst == NONE) return false;
    c->n_evicted++;
    drop_node(c, worst);
    return true;
}

static void clear_upwards(prefix_cache *c, int32_t i, int32_t *n_marks) {
    while (is_loose(c, i)) {
        int32_t parent = c->nodes[i].parent;
        *n_marks += c->nodes[i].mark != NONE;
        drop_node(c, i);
        i = parent;
    }
}

int32_t prefix_clear(prefix_cache *c) {
    int32_t n_marks = 0;
    for (int32_t i = 1; i < c->n_nodes_cap; i++) {
        clear_upwards(c, i, &n_marks);
    }
    for (int32_t i = 1; i < c->n_nodes_cap; i++) {
        size_t bytes = (size_t)c->o.page_tokens * sizeof *c->tokens;
        if (!c->nodes[i].is_used) memset(node_tokens(c, i), 1, bytes);
    }
    for (int32_t i = 0; i < c->o.n_marks; i++) {
        if (c->marks[i].node == NONE)
            memset(c->blobs + (size_t)i * c->o.snapshot_bytes, 1, c->o.snapshot_bytes);
    }
    return n_marks;
}

/* ---- looking ---- */

int32_t prefix_node_of(const prefix_cache *c, const prefix_hash *hash) {
    for (int32_t i = c->buckets[hash->a & (c->n_buckets - 1)]; i != NONE;
         i = c->nodes[i].next_in_bucket) {
        const node *n = &c->nodes[i];
        if (n->hash.a == hash->a && n->hash.b == hash->b && !n->is_poisoned) return i;
    }
    return 0;
}

int32_t prefix_next_mark(const prefix_cache *c, int32_t i) {
    for (i++; i < c->n_nodes_cap; i++) {
        const node *n = &c->nodes[i];
        if (n->is_used && !n->is_poisoned && n->mark != NONE) return i;
    }
    return 0;
}

void prefix_look(const prefix_cache *c, int32_t i, prefix_view *out) {
    const node *n = &c->nodes[i];
    *out = (prefix_view){.parent = n->parent,
        .n_tokens = n->n_tokens,
        .page = n->page,
        .depth = n->depth,
        .tokens = node_tokens(c, i),
        .salt = n->salt,
        .snapshot = n->mark != NONE ? c->blobs + (size_t)n->mark * c->o.snapshot_bytes : NULL,
        .hash = n->hash,
        .serial = n->serial,
        .stored = n->stored,
        .mark_stored = n->mark_stored,
        .is_gone = !n->is_used || n->is_poisoned};
}

void prefix_set_stored(prefix_cache *c, int32_t i, uint32_t epoch) {
    c->nodes[i].stored = epoch;
}

void prefix_set_mark_stored(prefix_cache *c, int32_t i, uint32_t epoch) {
    c->nodes[i].mark_stored = epoch;
}

void prefix_count(const prefix_cache *c, prefix_counts *out) {
    *out = (prefix_counts){.n_nodes = c->n_used,
        .n_marks = c->n_marks_used,
        .marks_cap = c->o.n_marks,
        .n_evicted = c->n_evicted};
}
