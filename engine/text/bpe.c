/* Merging of one piece. Short pieces scan for the lowest rank; longer ones are in bpe_long.c. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/tokenizer_internal.h"

#define BPE_SHORT 48

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

/* Merges len <= BPE_SHORT bytes into ids; returns how many. */
static size_t merge_short(const tokenizer *t, const char *p, size_t len, int32_t *ids) {
    uint32_t ranks[BPE_SHORT];
    size_t n = len;
    for (size_t i = 0; i < n; i++)
        ids[i] = t->byte_ids[(uint8_t)p[i]];
    for (size_t i = 0; i + 1 < n; i++)
        ranks[i] = tokenizer_rank(t, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (ranks[i] < ranks[best]) best = i;
        }
        if (ranks[best] == TOKENIZER_NO_RANK) break;
        ids[best] = tokenizer_merge(t, ids[best], ids[best + 1])->id;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof ids[0]);
        if (best + 2 < n) {
            memmove(ranks + best + 1, ranks + best + 2, (n - best - 2) * sizeof ranks[0]);
        }
        n--;
        if (best + 1 < n) ranks[best] = tokenizer_rank(t, ids[best], ids[best + 1]);
        if (best > 0) ranks[best - 1] = tokenizer_rank(t, ids[best - 1], ids[best]);
    }
    return n;
}

static int push_all(token_list *out, const int32_t *ids, size_t n) {
    int rc = OK;
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = token_list_push(out, ids[i]);
    return rc;
}

static void merge_piece(encoder *enc, const char *p, size_t len) {
    const tokenizer *t = enc->t;
    int32_t id = tokenizer_find(t, p, len);
    uint8_t whole = id < 0              ? 2
                    : t->ignores_merges ? 1
                                        : atomic_load_explicit(&t->whole[id], memory_order_relaxed);
    if (whole == 1) {
        enc->rc = token_list_push(enc->out, id);
        return;
    }
    if (len > BPE_SHORT) {
        encoder_long_piece(enc, p, len);
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

static piece_slot *find_slot(const encoder *enc, const char *p, size_t len, piece_slot *key) {
    *key = (piece_slot){.len = (uint16_t)len};
    memcpy(&key->low, p, len < 8 ? len : 8);
    if (len > 8) memcpy(&key->high, p + 8, len - 8);
    uint64_t h = (key->low ^ (key->high * 0xC4CEB9FE1A85EC53u) ^ len) * 0x9E3779B97F4A7C15u;
    return &enc->pieces[h >> 54];
}

void encoder_piece(encoder *enc, const char *p, size_t len) {
    if (enc->rc != OK || len == 0) return;
    if (len == 1) {
        enc->rc = token_list_push(enc->out, enc->t->byte_ids[(uint8_t)p[0]]);
        return;
    }
    if (enc->pieces == NULL || len > PIECE_MAX_BYTES) {
        merge_piece(enc, p, len);
        return;
    }
    piece_slot key, *slot = find_slot(enc, p, len, &key);
    if (slot->low == key.low && slot->high == key.high && slot->len == key.len) {
        enc->rc = push_all(enc->out, slot->ids, slot->n);
        return;
    }
    size_t before = enc->out->len;
    merge_piece(enc, p, len);
    size_t n = enc->out->len - before;
    if (enc->rc != OK || n > PIECE_MAX_IDS) return;
    key.n = (uint16_t)n;
    memcpy(key.ids, enc->out->ids + before, n * sizeof key.ids[0]);
    *slot = key;
}

_Static_assert(PIECE_SLOTS == 1 << (64 - 54), "the slot is the top bits of the hash");
