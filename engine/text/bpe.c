/* Merging of one piece. Short pieces scan for the lowest rank; long ones use a heap, so that the
 * cost stays near linear whatever the text is. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/tokenizer_internal.h"

#define BPE_SHORT 48
#define NO_RANK 0xFFFFFFFFu

uint32_t vocab_hash(const char *bytes, size_t len) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ len;
    while (len >= 8) {
        uint64_t w;
        memcpy(&w, bytes, 8);
        h = (h ^ w) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
        bytes += 8;
        len -= 8;
    }
    uint64_t w = 0;
    memcpy(&w, bytes, len);
    h = (h ^ w) * 0xC4CEB9FE1A85EC53u;
    h ^= h >> 29;
    h *= 0xFF51AFD7ED558CCDu;
    return (uint32_t)(h >> 32);
}

const merge_slot *tokenizer_merge(const tokenizer *t, int32_t left, int32_t right) {
    uint64_t h = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    h *= 0x9E3779B97F4A7C15u;
    size_t i = (size_t)(h >> 32) & t->merge_mask;
    while (t->merges[i].left >= 0) {
        if (t->merges[i].left == left && t->merges[i].right == right) return &t->merges[i];
        i = (i + 1) & t->merge_mask;
    }
    return NULL;
}

static uint32_t pair_rank(const tokenizer *t, int32_t left, int32_t right) {
    const merge_slot *m = tokenizer_merge(t, left, right);
    return m != NULL ? m->rank : NO_RANK;
}

/* Merges len <= BPE_SHORT bytes into ids; returns how many. */
static size_t merge_short(const tokenizer *t, const char *p, size_t len, int32_t *ids) {
    uint32_t ranks[BPE_SHORT];
    size_t n = len;
    for (size_t i = 0; i < n; i++) ids[i] = t->byte_ids[(uint8_t)p[i]];
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = pair_rank(t, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (ranks[i] < ranks[best]) best = i;
        }
        if (ranks[best] == NO_RANK) break;
        ids[best] = tokenizer_merge(t, ids[best], ids[best + 1])->id;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof ids[0]);
        if (best + 2 < n) {
            memmove(ranks + best + 1, ranks + best + 2, (n - best - 2) * sizeof ranks[0]);
        }
        n--;
        if (best + 1 < n) ranks[best] = pair_rank(t, ids[best], ids[best + 1]);
        if (best > 0) ranks[best - 1] = pair_rank(t, ids[best - 1], ids[best]);
    }
    return n;
}

typedef struct link {
    int32_t id; /* -1: merged away */
    int32_t prev, next;
    uint32_t rank; /* of the pair (this, next) */
} link;

typedef struct heap {
    uint64_t *keys; /* rank << 32 | position: lowest rank first, leftmost on ties */
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

static void rerank(const tokenizer *t, link *links, heap *h, int32_t i) {
    int32_t next = links[i].next;
    links[i].rank = next < 0 ? NO_RANK : pair_rank(t, links[i].id, links[next].id);
    if (links[i].rank != NO_RANK) heap_push(h, (uint64_t)links[i].rank << 32 | (uint32_t)i);
}

static void merge_links(const tokenizer *t, link *links, heap *h) {
    while (h->n > 0) {
        uint64_t key = heap_pop(h);
        int32_t i = (int32_t)(uint32_t)key;
        if (links[i].id < 0 || links[i].rank != (uint32_t)(key >> 32)) continue;
        int32_t gone = links[i].next;
        links[i].id = tokenizer_merge(t, links[i].id, links[gone].id)->id;
        links[i].next = links[gone].next;
        links[gone].id = -1;
        if (links[i].next >= 0) links[links[i].next].prev = i;
        rerank(t, links, h, i);
        if (links[i].prev >= 0) rerank(t, links, h, links[i].prev);
    }
}

/* Each merge removes one link and pushes at most two keys, so 3 * len keys are enough. */
static void merge_long(encoder *enc, const char *p, size_t len) {
    const tokenizer *t = enc->t;
    size_t need = len * (sizeof(link) + 3 * sizeof(uint64_t));
    if (need > enc->work_bytes) {
        mem_free(enc->work);
        enc->work = mem_try_alloc(need);
        enc->work_bytes = enc->work != NULL ? need : 0;
        if (enc->work == NULL) {
            enc->rc = ERR_MEMORY;
            return;
        }
    }
    heap h = {.keys = enc->work, .n = 0};
    link *links = (link *)(void *)(h.keys + 3 * len);
    for (size_t i = 0; i < len; i++) {
        links[i] = (link){.id = t->byte_ids[(uint8_t)p[i]],
            .prev = (int32_t)i - 1,
            .next = i + 1 < len ? (int32_t)i + 1 : -1,
            .rank = NO_RANK};
    }
    for (size_t i = 0; i + 1 < len; i++) {
        uint32_t rank = pair_rank(t, links[i].id, links[i + 1].id);
        links[i].rank = rank;
        if (rank != NO_RANK) h.keys[h.n++] = (uint64_t)rank << 32 | (uint32_t)i;
    }
    for (size_t i = h.n / 2; i-- > 0;) heap_sift_down(&h, i);
    merge_links(t, links, &h);
    for (int32_t i = 0; i >= 0 && enc->rc == OK; i = links[i].next) {
        enc->rc = token_list_push(enc->out, links[i].id);
    }
}

static int push_all(token_list *out, const int32_t *ids, size_t n) {
    int rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++) rc = token_list_push(out, ids[i]);
    return rc;
}

void encoder_piece(encoder *enc, const char *p, size_t len) {
    const tokenizer *t = enc->t;
    if (enc->rc != OK || len == 0) return;
    if (len == 1) {
        enc->rc = token_list_push(enc->out, t->byte_ids[(uint8_t)p[0]]);
        return;
    }
    int32_t id = tokenizer_find(t, p, len);
    uint8_t whole = id < 0                 ? 2
                    : t->ignores_merges    ? 1
                                           : atomic_load_explicit(&t->whole[id], memory_order_relaxed);
    if (whole == 1) {
        enc->rc = token_list_push(enc->out, id);
        return;
    }
    if (len > BPE_SHORT) {
        merge_long(enc, p, len);
        return;
    }
    int32_t ids[BPE_SHORT];
    size_t n = merge_short(t, p, len, ids);
    if (whole == 0) {
        uint8_t is_whole = n == 1 && ids[0] == id ? 1 : 2;
        atomic_store_explicit(&t->whole[id], is_whole, memory_order_relaxed);
    }
    enc->rc = push_all(enc->out, ids, n);
}
