/* Streams and the prefix cache: a fresh stream begins behind the longest known prefix of its prompt,
 * and states are saved where a later one may want to begin: one token before the end of a prompt
 * (so that the same prompt hits, and one whose last token differs), where others branched off
 * before, every mark_tokens of a long sequence, and at the end of a reply. */
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/run/run_internal.h"

#define MARK_TOKENS_DEFAULT 1024
#define MARKS_BYTES_DEFAULT ((uint64_t)256 << 20)
#define MARKS_MIN 8
/* A state is not kept for less than this: computing it again is as quick. */
#define MARK_AT_LEAST 16
/* A prompt that reads so many pages anew is a long one. */
#define LONG_PAGES 8

prefix_cache *reuse_open(run *r) {
    if (r->options.no_cache || r->source->slot_save == NULL || r->info.n_pages == 0) return NULL;
    uint64_t bytes = r->options.cache_ram_bytes;
    if (bytes == 0) bytes = MARKS_BYTES_DEFAULT;
    uint64_t n_marks = bytes / (r->info.snapshot_bytes + 1);
    uint64_t most = (uint64_t)r->info.n_pages + 16 * (uint64_t)r->info.n_slots;
    if (n_marks > most) n_marks = most;
    if (n_marks < MARKS_MIN) n_marks = MARKS_MIN;
    int32_t step = r->options.mark_tokens > 0 ? r->options.mark_tokens : MARK_TOKENS_DEFAULT;
    int32_t page = r->info.page_tokens;
    r->options.mark_tokens = (step + page - 1) / page * page;
    prefix_options o = {.pool = r->pool,
        .n_pages = r->info.n_pages,
        .page_tokens = page,
        .n_marks = (int32_t)n_marks,
        .snapshot_bytes = r->info.snapshot_bytes,
        .has_constant_hash = r->options.has_constant_hash};
    prefix_cache *c = prefix_new(&o);
    if (c == NULL) {
        LOG(LOG_WARN, "cache", "no memory for saved states; prefixes are not kept", "marks=%llu",
            (unsigned long long)n_marks);
    }
    return c;
}

static prefix_key key_of(const ticket *t, int32_t n_tokens) {
    prefix_key key = {.tokens = t->tokens, .n_tokens = n_tokens};
    memcpy(key.salt, t->salt, sizeof key.salt);
    return key;
}

static int slot_of(const run *r, const stream *s) {
    return (int)(s - r->streams);
}

bool reuse_forget(run *r, stream *s, const err *why) {
    static const err busy = {.code = ERR_BUSY,
        .msg =
            "what was kept of the prompt cannot be read, and other requests have the pages to read "
            "it anew; try again"};
    int32_t n = s->n_pages;
    LOG(LOG_WARN, "cache", "known prefix not used", "message=\"%s\"", why->msg);
    for (int32_t i = 0; i < n; i++) {
        page_pool_put(r->pool, s->pages[i]);
    }
    s->n_pages = 0;
    s->node = PREFIX_ROOT;
    s->n_in_cache = 0;
    r->source->slot_reset(r->source->self, slot_of(r, s));
    if (!page_pool_reserve(r->pool, n)) {
        stream_end(r, s, RUN_END_ERROR, -1, &busy);
        return false;
    }
    s->n_reserved_pages += n;
    return true;
}

void reuse_share(run *r, stream *s, int32_t node, int32_t n_pages) {
    prefix_pages(r->prefixes, node, s->pages);
    for (int32_t i = 0; i < n_pages; i++) {
        page_pool_get(r->pool, s->pages[i]);
    }
    page_pool_unreserve(r->pool, n_pages);
    s->n_reserved_pages -= n_pages;
    s->n_pages = n_pages;
}

/* The pages of the hit become the stream's: whole ones shared, the last part copied. */
static int take_pages(run *r, stream *s, const prefix_hit *hit, err *e) {
    int32_t n_full = hit->n_tokens / r->info.page_tokens;
    reuse_share(r, s, hit->node, n_full);
    if (hit->tail_page >= 0) {
        page_pool_get(r->pool, hit->tail_page); /* taking a page must not give this one up */
        s->pages[s->n_pages++] = stream_take_page(r, s);
        page_pool_put(r->pool, hit->tail_page);
    }
    int rc = r->source->slot_pages(r->source->self, slot_of(r, s), s->pages, s->n_pages, e);
    if (rc != OK || hit->tail_page < 0) return rc;
    return r->source->page_copy(r->source->self, s->pages[n_full], hit->tail_page, e);
}

void reuse_begin_at(run *r, stream *s, int32_t n_tokens) {
    s->n_done = n_tokens;
    if (s->branch_at <= n_tokens) s->branch_at = 0;
    atomic_store_explicit(&s->t->n_cached, n_tokens, memory_order_relaxed);
    atomic_store_explicit(&s->t->n_prefilled, n_tokens, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->n_cached_tokens, (uint64_t)n_tokens, memory_order_relaxed);
}

static void take_hit(run *r, stream *s, const prefix_hit *hit) {
    err why = ERR_INIT;
    if (hit->n_tokens == 0) return;
    int rc = take_pages(r, s, hit, &why);
    if (rc == OK) rc = r->source->slot_load(r->source->self, slot_of(r, s), hit->snapshot, &why);
    if (rc != OK) {
        bool is_fresh = reuse_forget(r, s, &why);
        CHECK(is_fresh);
        return;
    }
    s->node = hit->node;
    s->n_in_cache = hit->n_tokens / r->info.page_tokens;
    reuse_begin_at(r, s, hit->n_tokens);
}

/* While the last part of a hit is copied, its own page is held beside all that streams have set aside:
 * without a page more than that only whole pages are taken. */
static void find_hit(run *r, const prefix_key *key, prefix_hit *out) {
    prefix_find(r->prefixes, key, out);
    if (out->tail_page < 0 || !page_pool_is_idle(r->pool, out->tail_page)) return;
    if (page_pool_reserve(r->pool, 1))
        page_pool_unreserve(r->pool, 1);
    else
        prefix_find_border(r->prefixes, key, out);
}

void reuse_from_memory(run *r, stream *s) {
    prefix_hit hit;
    prefix_key key = key_of(s->t, s->t->n_prompt - 1);
    find_hit(r, &key, &hit);
    take_hit(r, s, &hit);
}

void reuse_start(run *r, stream *s) {
    prefix_hit hit;
    s->node = PREFIX_ROOT;
    s->n_in_cache = 0;
    s->branch_at = 0;
    s->load.is_on = false;
    if (r->prefixes == NULL) return;
    prefix_key key = key_of(s->t, s->t->n_prompt - 1);
    find_hit(r, &key, &hit);
    if (hit.n_match > hit.n_tokens) s->branch_at = hit.n_match;
    if (!store_plan(r, s, &key, &hit)) take_hit(r, s, &hit);
}

static void show_counts(run *r) {
    prefix_counts n;
    prefix_count(r->prefixes, &n);
    atomic_store_explicit(&r->n_marks, n.n_marks, memory_order_relaxed);
    atomic_store_explicit(&r->n_evicted, n.n_evicted, memory_order_relaxed);
}

/* Saves the state at len, which the slot still holds. */
static void mark_at(run *r, stream *s, int32_t len) {
    err why = ERR_INIT;
    int32_t at = -1;
    int32_t n_full = len / r->info.page_tokens;
    int slot = slot_of(r, s);
    prefix_key key = key_of(s->t, len);
    prefix_growth growth = {
        .key = &key, .pages = s->pages, .n_full = n_full, .creator = s->t->order};
    int rc = OK;
    int32_t node = prefix_grow(r->prefixes, s->node, &growth);
    if (n_full >= s->n_in_cache) {
        s->node = node;
        s->n_in_cache = n_full;
    }
    if (growth.has_swapped) {
        rc = r->source->slot_pages(r->source->self, slot, s->pages, s->n_pages, &why);
    }
    int32_t page = len % r->info.page_tokens > 0 ? s->pages[n_full] : -1;
    void *blob = rc == OK ? prefix_mark(r->prefixes, node, &key, page, &at) : NULL;
    if (blob != NULL) {
        rc = r->source->slot_save(r->source->self, slot, len, blob, &why);
        if (rc == OK) store_note(r, at);
    }
    if (rc != OK) {
        LOG(LOG_WARN, "cache", "state not kept", "message=\"%s\"", why.msg);
        if (at >= 0) prefix_unmark(r->prefixes, at);
    }
    show_counts(r);
}

/* The first place behind `after` where a state is worth keeping: every mark_tokens, where others
 * branched off, and the last page borders of a long prompt, as the next question about the same
 * document differs only behind them. */
static int32_t next_place(const run *r, const stream *s, int32_t after) {
    static const int32_t backs[] = {3, 1, 0};
    int32_t step = r->options.mark_tokens;
    int32_t page = r->info.page_tokens;
    int32_t next = (after / step + 1) * step;
    int32_t last = s->t->n_prompt - 1;
    int32_t n_new = s->t->n_prompt - atomic_load_explicit(&s->t->n_cached, memory_order_relaxed);
    if (s->branch_at > after && s->branch_at < next) next = s->branch_at;
    for (size_t i = 0; n_new >= LONG_PAGES * page && i < sizeof backs / sizeof backs[0]; i++) {
        int32_t place = (last / page - backs[i]) * page;
        if (place > after && place < next) next = place;
    }
    return next;
}

void reuse_after(run *r, stream *s, int32_t before) {
    if (r->prefixes == NULL) return;
    int32_t last = s->t->n_prompt - 1;
    for (int32_t place = next_place(r, s, before); place <= s->n_done;
         place = next_place(r, s, place)) {
        if (s->n_done - place <= r->info.max_rollback) mark_at(r, s, place);
    }
    bool is_read = before <= last && s->n_done > last && s->n_done - last <= r->info.max_rollback;
    if (is_read && last >= MARK_AT_LEAST) mark_at(r, s, last);
}

int32_t reuse_rows_to_mark(const run *r, const stream *s) {
    return r->prefixes != NULL ? next_place(r, s, s->n_done) - s->n_done : 0;
}

void reuse_end(run *r, stream *s, int end, const err *why) {
    store_stop(r, s);
    if (r->prefixes == NULL || atomic_load(&r->has_failed)) return;
    if (end == RUN_END_ERROR && (why == NULL || why->code != ERR_CANCELLED)) {
        prefix_poison(r->prefixes, s->node, s->t->order);
        return;
    }
    err failure = ERR_INIT;
    if (s->is_open &&
        r->source->commit(r->source->self, slot_of(r, s), s->n_done, &failure) != OK) {
        return;
    }
    s->is_open = false;
    if (s->n_done >= MARK_AT_LEAST) mark_at(r, s, s->n_done);
}

bool reuse_should_wait(const run *r, const ticket *t) {
    if (r->prefixes == NULL || t->n_prompt <= MARK_AT_LEAST) return false;
    for (int32_t i = 0; i < r->info.n_slots; i++) {
        const stream *s = &r->streams[i];
        if (s->t == NULL || s->n_done >= s->t->n_prompt || s->t->n_prompt != t->n_prompt) continue;
        if (s->t->prompt_hash != t->prompt_hash ||
            memcmp(s->t->salt, t->salt, sizeof t->salt) != 0 ||
            memcmp(s->t->tokens, t->tokens, (size_t)t->n_prompt * sizeof *t->tokens) != 0)
            continue;
        return true;
    }
    return false;
}
