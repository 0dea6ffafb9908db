/* Merging of long pieces in near-linear time. Up to some thousand bytes a heap of places is
 * fastest; beyond, places are kept in one list per rank, and a small heap holds the ranks that are
 * due. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/mem.h"
#include "engine/text/tokenizer_internal.h"

#define HEAP_MAX_BYTES 4096
#define NO_RANK TOKENIZER_NO_RANK
#define LARGE_PAGE ((uintptr_t)2 << 20)

typedef struct link {
    int32_t id; /* -1: merged away */
    int32_t prev, next;
    uint32_t rank; /* of the pair (this, next) */
} link;

typedef struct heap {
    uint64_t *keys; /* lowest first */
    size_t n;
} heap;

static void heap_sift_down(heap *h, size_t i) {
    uint64_t key = h->keys[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n) break;
        if (child + 1 < h->n && h->keys[child + 1] < h->keys[child]) child++;
        if (h->keys[child] >= key) break;
        h->keys[i] = h->keys[child];
        i = child;
    }
    h->keys[i] = key;
}

static void heap_push(heap *h, uint64_t key) {
    size_t i = h->n++;
    while (i > 0 && h->keys[(i - 1) / 2] > key) {
        h->keys[i] = h->keys[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->keys[i] = key;
}

static uint64_t heap_pop(heap *h) {
    uint64_t top = h->keys[0];
    h->keys[0] = h->keys[--h->n];
    if (h->n > 1) heap_sift_down(h, 0);
    return top;
}

static void fill_links(const tokenizer *t, link *links, const char *p, size_t len) {
    for (size_t i = 0; i < len; i++) {
        links[i] = (link){.id = t->byte_ids[(uint8_t)p[i]],
            .prev = (int32_t)i - 1,
            .next = i + 1 < len ? (int32_t)i + 1 : -1,
            .rank = NO_RANK};
    }
    for (size_t i = 0; i + 1 < len; i++) {
        links[i].rank = tokenizer_rank(t, links[i].id, links[i + 1].id);
    }
}

/* Joins link i with the one after it. */
static void join(const tokenizer *t, link *links, int32_t i) {
    int32_t gone = links[i].next;
    links[i].id = tokenizer_merge(t, links[i].id, links[gone].id)->id;
    links[i].next = links[gone].next;
    links[gone].id = -1;
    if (links[i].next >= 0) links[links[i].next].prev = i;
}

static void rerank(const tokenizer *t, link *links, int32_t i) {
    int32_t next = links[i].next;
    links[i].rank = next < 0 ? NO_RANK : tokenizer_rank(t, links[i].id, links[next].id);
}

/* --- a heap of places: key = rank << 32 | place, leftmost first on ties --- */

static void push_place(heap *h, const link *links, int32_t i) {
    if (links[i].rank != NO_RANK) heap_push(h, (uint64_t)links[i].rank << 32 | (uint32_t)i);
}

static void merge_by_place(const tokenizer *t, link *links, size_t len, heap *h) {
    for (size_t i = 0; i + 1 < len; i++) {
        if (links[i].rank != NO_RANK) {
            h->keys[h->n++] = (uint64_t)links[i].rank << 32 | (uint32_t)i;
        }
    }
    for (size_t i = h->n / 2; i-- > 0;)
        heap_sift_down(h, i);
    while (h->n > 0) {
        uint64_t key = heap_pop(h);
        int32_t i = (int32_t)(uint32_t)key;
        if (links[i].id < 0 || links[i].rank != (uint32_t)(key >> 32)) continue;
        join(t, links, i);
        rerank(t, links, i);
        push_place(h, links, i);
        if (links[i].prev < 0) continue;
        rerank(t, links, links[i].prev);
        push_place(h, links, links[i].prev);
    }
}

/* --- one list of places per rank --- */

typedef struct place {
    int32_t at, next; /* next in the list, -1 at its end */
} place;

typedef struct lists {
    const tokenizer *t;
    link *links;
    place *places;
    size_t n_places;
    int32_t *heads, *tails; /* [n_merges], place + 1, 0: empty */
    int32_t *order;         /* room to sort one list */
    heap due;               /* ranks with a list */
} lists;

static void list_add(lists *l, int32_t at) {
    uint32_t rank = l->links[at].rank;
    if (rank == NO_RANK) return;
    int32_t new_place = (int32_t)l->n_places++;
    l->places[new_place] = (place){at, -1};
    if (l->heads[rank] == 0) {
        l->heads[rank] = new_place + 1;
        heap_push(&l->due, rank);
    } else {
        l->places[l->tails[rank] - 1].next = new_place;
    }
    l->tails[rank] = new_place + 1;
}

static int by_value(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void join_at(lists *l, int32_t at, uint32_t rank) {
    if (l->links[at].id < 0 || l->links[at].rank != rank) return;
    join(l->t, l->links, at);
    int32_t prev = l->links[at].prev;
    if (prev >= 0) {
        rerank(l->t, l->links, prev);
        list_add(l, prev);
    }
    rerank(l->t, l->links, at);
    list_add(l, at);
}

/* All places of one rank, leftmost first: that matters where a token meets itself. */
static void merge_rank(lists *l, uint32_t rank) {
    size_t n = 0;
    bool is_sorted = true;
    for (int32_t p = l->heads[rank] - 1; p >= 0; p = l->places[p].next) {
        if (n > 0 && l->places[p].at < l->order[n - 1]) is_sorted = false;
        l->order[n++] = l->places[p].at;
    }
    l->heads[rank] = 0;
    if (!is_sorted) qsort(l->order, n, sizeof l->order[0], by_value);
    for (size_t i = 0; i < n; i++)
        join_at(l, l->order[i], rank);
}

static void merge_by_rank(lists *l, size_t len) {
    for (size_t i = 0; i + 1 < len; i++)
        list_add(l, (int32_t)i);
    while (l->due.n > 0)
        merge_rank(l, (uint32_t)heap_pop(&l->due));
}

/* --- work space --- */

static size_t round_up(size_t n) {
    return (n + 15) & ~(size_t)15;
}

/* The next n bytes of the work space. */
static void *cut(char **at, size_t n) {
    void *p = *at;
    *at += round_up(n);
    return p;
}

/* Whole large pages inside the new work space: page by page, touching it takes longer than merging. */
static void use_large_pages(char *work, size_t n) {
    uintptr_t from = ((uintptr_t)work + LARGE_PAGE - 1) & ~(LARGE_PAGE - 1);
    uintptr_t to = ((uintptr_t)work + n) & ~(LARGE_PAGE - 1);
    if (from < to) (void)madvise(work + (from - (uintptr_t)work), to - from, MADV_HUGEPAGE);
}

static bool reserve(encoder *enc, size_t need) {
    if (need <= enc->work_bytes) return true;
    mem_free(enc->work);
    enc->work = mem_try_alloc(need);
    enc->work_bytes = enc->work != NULL ? need : 0;
    if (enc->work == NULL) {
        enc->rc = ERR_MEMORY;
    } else if (need >= 4 * LARGE_PAGE) {
        use_large_pages(enc->work, need);
    }
    return enc->work != NULL;
}

/* Each merge removes one link and adds at most two places, so 3 * len places are enough. A rank is
 * due at most once at a time. */
static link *merge_many(encoder *enc, const char *p, size_t len) {
    size_t n_merges = enc->t->n_merges;
    size_t need = round_up(len * sizeof(link)) + round_up(3 * len * sizeof(place)) +
                  round_up(3 * len * sizeof(int32_t)) + 2 * round_up(n_merges * sizeof(int32_t)) +
                  round_up(n_merges * sizeof(uint64_t));
    if (!reserve(enc, need)) return NULL;
    char *at = enc->work;
    link *links = cut(&at, len * sizeof *links);
    lists l = {.t = enc->t, .links = links};
    l.places = cut(&at, 3 * len * sizeof(place));
    l.order = cut(&at, 3 * len * sizeof(int32_t));
    l.heads = cut(&at, n_merges * sizeof(int32_t));
    l.tails = cut(&at, n_merges * sizeof(int32_t));
    l.due.keys = cut(&at, n_merges * sizeof(uint64_t));
    memset(l.heads, 0, n_merges * sizeof(int32_t));
    fill_links(enc->t, links, p, len);
    merge_by_rank(&l, len);
    return links;
}

static link *merge_some(encoder *enc, const char *p, size_t len) {
    size_t need = round_up(len * sizeof(link)) + 3 * len * sizeof(uint64_t);
    if (!reserve(enc, need)) return NULL;
    char *at = enc->work;
    link *links = cut(&at, len * sizeof *links);
    heap h = {.keys = cut(&at, 3 * len * sizeof(uint64_t))};
    fill_links(enc->t, links, p, len);
    merge_by_place(enc->t, links, len, &h);
    return links;
}

void encoder_long_piece(encoder *enc, const char *p, size_t len) {
    bool is_many = len > HEAP_MAX_BYTES && enc->t->is_ordered;
    /* Places are 32-bit. */
    if (len > (size_t)INT32_MAX / 3) {
        enc->rc = ERR_LIMIT;
        return;
    }
    const link *links = is_many ? merge_many(enc, p, len) : merge_some(enc, p, len);
    if (links == NULL) return;
    for (int32_t i = 0; i >= 0 && enc->rc == OK; i = links[i].next) {
        enc->rc = token_list_push(enc->out, links[i].id);
    }
}
