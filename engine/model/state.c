/* Slots and pages: lengths, rollback, snapshots. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/model/model_internal.h"

/* Head of a snapshot. The body: for each layer and stage its last `window` ring rows, oldest first,
 * and the tail row of the last position where there is a tail ring; then the look-back tokens. */
typedef struct snapshot_head {
    uint32_t magic, version;
    uint64_t layout;
    int64_t len;
} snapshot_head;

enum { SNAPSHOT_VERSION = 1 };

static int check_slot(const model *m, int slot, err *e) {
    if (slot >= 0 && slot < m->options.n_slots) {
        return OK;
    }
    return err_set(e, ERR_ARG, "slot %d; there are %d", slot, m->options.n_slots);
}

/* The back end's error, if it has one. */
static int give_error(const model *m, err *e) {
    if (m->k.rc != OK && e != NULL) {
        *e = m->k.error;
    }
    return m->k.rc;
}

void model_slot_reset(model *m, int slot) {
    CHECK(slot >= 0 && slot < m->options.n_slots);
    slot_state *s = &m->slots[slot];
    int32_t *recent = s->recent;
    *s = (slot_state){.recent = recent};
}

int64_t model_slot_len(const model *m, int slot) {
    CHECK(slot >= 0 && slot < m->options.n_slots);
    return m->slots[slot].len;
}

int model_slot_pages(model *m, int slot, const int32_t *pages, int n, err *e) {
    int rc = check_slot(m, slot, e);
    if (rc != OK) {
        return rc;
    }
    if (n < 0 || n > m->max_pages) {
        return err_set(
            e, ERR_ARG, "%d pages for slot %d; the context limit needs %d", n, slot, m->max_pages);
    }
    for (int i = 0; i < n; i++) {
        if (pages[i] < 0 || pages[i] >= m->options.n_pages) {
            return err_set(e, ERR_ARG, "page %d of slot %d is number %d; there are %d", i, slot,
                pages[i], m->options.n_pages);
        }
    }
    size_t at = (size_t)slot * (size_t)m->max_pages;
    m->slots[slot].n_pages = n;
    if (n == 0) {
        return OK;
    }
    memcpy(m->host_page_table + at, pages, (size_t)n * 4);
    if (m->page_table == m->host_page_table) {
        return OK;
    }
    m->k.rc = OK;
    m->ops->copy(&m->k, m->page_table + at, pages, (size_t)n * 4);
    return give_error(m, e);
}

static void set_len(slot_state *s, int64_t len) {
    s->len = len;
    s->final_len = len;
    if (s->fed_len > len) {
        s->fed_len = len;
    }
}

int model_commit(model *m, int slot, int64_t new_len, err *e) {
    int rc = check_slot(m, slot, e);
    if (rc != OK) {
        return rc;
    }
    slot_state *s = &m->slots[slot];
    if (new_len < s->final_len || new_len > s->len) {
        return err_set(e, ERR_ARG, "slot %d: commit to %lld; final are %lld, computed %lld", slot,
            (long long)new_len, (long long)s->final_len, (long long)s->len);
    }
    set_len(s, new_len);
    return OK;
}

int model_slot_truncate(model *m, int slot, int64_t new_len, err *e) {
    int rc = check_slot(m, slot, e);
    if (rc != OK) {
        return rc;
    }
    slot_state *s = &m->slots[slot];
    if (new_len == s->len) {
        set_len(s, new_len);
        return OK;
    }
    bool is_reachable = new_len >= s->floor && new_len >= s->high - m->options.max_rollback;
    if (new_len < 0 || new_len > s->len || (new_len > 0 && !is_reachable)) {
        return err_set(e, ERR_ARG,
            "slot %d cannot go back from %lld to %lld; at most %d positions and not below "
            "%lld",
            slot, (long long)s->high, (long long)new_len, m->options.max_rollback,
            (long long)s->floor);
    }
    if (new_len == 0) {
        s->high = 0;
        s->floor = 0;
    }
    set_len(s, new_len);
    return OK;
}

int model_slot_copy(model *m, int dst, int src, err *e) {
    int rc = check_slot(m, dst, e);
    if (rc == OK) {
        rc = check_slot(m, src, e);
    }
    if (rc != OK || dst == src) {
        return rc;
    }
    const slot_state *from = &m->slots[src];
    slot_state *to = &m->slots[dst];
    int32_t *recent = to->recent;
    int n_pages = to->n_pages;
    m->k.rc = OK;
    m->ops->copy(&m->k, m->slot_slab + (size_t)dst * m->slot_at.bytes,
        m->slot_slab + (size_t)src * m->slot_at.bytes, m->slot_at.bytes);
    memcpy(recent, from->recent, (size_t)m->recent_cap * sizeof(*recent));
    *to = *from;
    to->recent = recent;
    to->n_pages = n_pages;
    return give_error(m, e);
}

/* ---- snapshots ---- */

static int n_rings(const model *m) {
    return m->config.n_layers + (model_has_drafts(m) ? m->config.n_stages : 0);
}

static bool has_tail(const model *m, int i) {
    return m->config.layers[i].i_kv_source >= 0 && m->config.layers[i].ratio > 1;
}

size_t model_snapshot_bytes(const model *m) {
    const model_config *c = &m->config;
    size_t bytes = sizeof(snapshot_head) + MODEL_MAX_NGRAM * sizeof(int32_t);
    for (int i = 0; i < n_rings(m); i++) {
        bytes += (size_t)c->window * kv_row_bytes(m->window_format, c->d_head);
        if (has_tail(m, i)) {
            bytes += 2 * (size_t)c->d_head * sizeof(float);
        }
    }
    return bytes;
}

uint64_t model_layout_hash(const model *m) {
    const model_config *c = &m->config;
    const int64_t values[] = {SNAPSHOT_VERSION, c->n_layers, n_rings(m), c->window, c->d_head,
        c->d_index, m->options.page_tokens, m->window_format, m->compressed_format, m->key_format,
        c->n_kv_sources, m->world};
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        hash = (hash ^ (uint64_t)values[i]) * 1099511628211u;
    }
    for (int i = 0; i < c->n_layers; i++) {
        hash =
            (hash ^ (uint64_t)(c->layers[i].ratio * 8 + (int)c->layers[i].mode)) * 1099511628211u;
    }
    return hash;
}

static void move(model *m, uint8_t *row, uint8_t *at, size_t bytes, bool is_load) {
    m->ops->copy(&m->k, is_load ? row : at, is_load ? at : row, bytes);
}

/* Positions [first, end) of a ring; rows that lie side by side go together. */
static void move_ring(
    model *m, const kv_ring *ring, int slot, const int64_t range[2], uint8_t *at, bool is_load) {
    for (int64_t p = range[0]; p < range[1];) {
        int64_t n = ring->cap - p % ring->cap;
        n = n > range[1] - p ? range[1] - p : n;
        move(m, kv_ring_row(ring, slot, p), at, (size_t)n * ring->row_bytes, is_load);
        at += (size_t)n * ring->row_bytes;
        p += n;
    }
}

/* Moves the private rows between a slot and a blob; is_load says which way. */
static void move_rows(model *m, int slot, uint8_t *at, bool is_load) {
    const model_config *c = &m->config;
    int64_t len = m->slots[slot].len, missing = len < c->window ? c->window - len : 0;
    m->k.rc = OK;
    for (int i = 0; i < n_rings(m); i++) {
        kv_ring ring = model_window_ring(m, i);
        int64_t range[2] = {len - c->window + missing, len};
        move_ring(m, &ring, slot, range, at + (size_t)missing * ring.row_bytes, is_load);
        at += (size_t)c->window * ring.row_bytes;
        if (!has_tail(m, i)) {
            continue;
        }
        kv_ring tail = model_tail_ring(m, i);
        if (len > 0) {
            move(m, kv_ring_row(&tail, slot, len - 1), at, tail.row_bytes, is_load);
        }
        at += tail.row_bytes;
    }
    m->ops->wait(&m->k);
    for (int back = 1; back <= MODEL_MAX_NGRAM; back++, at += sizeof(int32_t)) {
        if (len < back) {
            continue;
        }
        int32_t *token = &m->slots[slot].recent[(len - back) % m->recent_cap];
        memcpy(is_load ? (void *)token : (void *)at, is_load ? (void *)at : (void *)token,
            sizeof(int32_t));
    }
}

int model_slot_save(model *m, int slot, void *blob, size_t size, err *e) {
    int rc = check_slot(m, slot, e);
    if (rc != OK) {
        return rc;
    }
    return model_slot_save_at(m, slot, m->slots[slot].len, (snapshot_blob){blob, size}, e);
}

int model_slot_save_at(model *m, int slot, int64_t len, snapshot_blob blob, err *e) {
    int rc = check_slot(m, slot, e);
    if (rc != OK) {
        return rc;
    }
    slot_state *s = &m->slots[slot];
    if (blob.size < model_snapshot_bytes(m) || s->final_len != s->len) {
        return err_set(e, ERR_ARG,
            "snapshot of slot %d: %zu bytes given, %zu needed, %lld rows uncommitted", slot,
            blob.size, model_snapshot_bytes(m), (long long)(s->len - s->final_len));
    }
    bool is_kept = len >= s->floor && len >= s->high - m->options.max_rollback;
    if (len > s->len || len < 0 || !is_kept) {
        return err_set(e, ERR_ARG, "snapshot of slot %d at %lld; it holds %lld, at most %d back",
            slot, (long long)len, (long long)s->len, m->options.max_rollback);
    }
    if (model_has_drafts(m)) {
        m->k.rc = OK;
        m->feed_rows.rows.n = 0;
        draft_feed_pending(m, slot);
        draft_feed_run(m);
    }
    snapshot_head head = {MODEL_SNAPSHOT_MAGIC, SNAPSHOT_VERSION, model_layout_hash(m), len};
    int64_t now = s->len;
    memset(blob.data, 0, model_snapshot_bytes(m));
    memcpy(blob.data, &head, sizeof(head));
    s->len = len; /* the rings still hold what was newest there */
    move_rows(m, slot, (uint8_t *)blob.data + sizeof(head), false);
    s->len = now;
    return give_error(m, e);
}

int model_slot_load(model *m, int slot, const void *blob, size_t size, err *e) {
    snapshot_head head;
    int rc = check_slot(m, slot, e);
    if (rc != OK) {
        return rc;
    }
    if (size < model_snapshot_bytes(m)) {
        return err_set(e, ERR_MISMATCH, "a snapshot of %zu bytes; this model's have %zu", size,
            model_snapshot_bytes(m));
    }
    memcpy(&head, blob, sizeof(head));
    if (head.magic != MODEL_SNAPSHOT_MAGIC || head.version != SNAPSHOT_VERSION ||
        head.layout != model_layout_hash(m) || head.len < 0 || head.len > m->options.max_context) {
        return err_set(e, ERR_MISMATCH,
            "the snapshot was made by another layout (%016llx, this is %016llx)",
            (unsigned long long)head.layout, (unsigned long long)model_layout_hash(m));
    }
    slot_state *s = &m->slots[slot];
    s->len = s->high = s->floor = s->final_len = s->fed_len = head.len;
    /* The blob is only read in this direction. */
    move_rows(m, slot, (uint8_t *)(uintptr_t)blob + sizeof(head), true);
    return give_error(m, e);
}

/* ---- pages ---- */

static int check_page(const model *m, int page, err *e) {
    if (page >= 0 && page < m->options.n_pages) {
        return OK;
    }
    return err_set(e, ERR_ARG, "page %d; there are %d", page, m->options.n_pages);
}

int model_page_read(model *m, int page, void *out, err *e) {
    int rc = check_page(m, page, e);
    if (rc != OK) {
        return rc;
    }
    m->k.rc = OK;
    m->ops->fetch(&m->k, out, m->pages + (size_t)page * m->page_at.bytes, m->page_at.bytes);
    return give_error(m, e);
}

int model_page_write(model *m, int page, const void *data, err *e) {
    int rc = check_page(m, page, e);
    if (rc != OK) {
        return rc;
    }
    m->k.rc = OK;
    m->ops->copy(&m->k, m->pages + (size_t)page * m->page_at.bytes, data, m->page_at.bytes);
    return give_error(m, e);
}

int model_page_copy(model *m, int dst, int src, err *e) {
    int rc = check_page(m, dst, e);
    if (rc == OK) {
        rc = check_page(m, src, e);
    }
    if (rc != OK || dst == src) {
        return rc;
    }
    m->k.rc = OK;
    m->ops->copy(&m->k, m->pages + (size_t)dst * m->page_at.bytes,
        m->pages + (size_t)src * m->page_at.bytes, m->page_at.bytes);
    return give_error(m, e);
}

/* ---- comparing ranks ---- */

enum { HASH_PIECE = 1 << 16 };

static uint64_t hash_bytes(uint64_t hash, const uint8_t *at, size_t n) {
    uint64_t word = 0;
    for (; n >= sizeof(word); n -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        hash = rand_mix(hash ^ word);
    }
    word = 0;
    memcpy(&word, at, n);
    return rand_mix(hash ^ word ^ ((uint64_t)n << 56));
}

static uint64_t hash_memory(model *m, uint64_t hash, const uint8_t *at, size_t n) {
    uint8_t *piece = mem_alloc(HASH_PIECE);
    for (size_t done = 0; done < n && m->k.rc == OK;) {
        size_t part = n - done < HASH_PIECE ? n - done : HASH_PIECE;
        m->ops->fetch(&m->k, piece, at + done, part);
        hash = hash_bytes(hash, piece, part);
        done += part;
    }
    mem_free(piece);
    return hash;
}

int model_state_hash(model *m, uint64_t *hash, err *e) {
    uint64_t h = model_layout_hash(m);
    m->k.rc = OK;
    for (int i = 0; i < m->options.n_slots; i++) {
        const slot_state *s = &m->slots[i];
        const int64_t lens[] = {s->len, s->final_len, s->fed_len, s->high, s->floor, s->n_pages};
        h = hash_bytes(h, (const uint8_t *)lens, sizeof(lens));
        const int32_t *pages = m->host_page_table + (size_t)i * (size_t)m->max_pages;
        h = hash_bytes(h, (const uint8_t *)pages, (size_t)s->n_pages * sizeof(*pages));
    }
    h = hash_memory(m, h, m->slot_slab, (size_t)m->options.n_slots * m->slot_at.bytes);
    h = hash_memory(m, h, m->pages, (size_t)m->options.n_pages * m->page_at.bytes);
    *hash = h;
    return give_error(m, e);
}
