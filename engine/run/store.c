/* Between the prefix cache in memory and the one on disk: what got a mark is written through, page by
 * page after steps; a prompt that the disk knows better than memory is loaded, some pages per turn of
 * the step thread, so that running streams go on. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/run/run_internal.h"

/* Pages moved per turn of the step thread. */
#define STORE_PAGES 4
#define LOAD_PAGES 16
/* A clean end waits at most so long for the disk. */
#define FINISH_MS 5000

void store_attach(run *r) {
    const run_options *o = &r->options;
    err why = ERR_INIT;
    if (r->prefixes == NULL || o->cache_dir == NULL || o->cache_disk_bytes == 0) return;
    if (r->source->page_read == NULL) return;
    disk_options d = {.dir = o->cache_dir,
        .budget_bytes = o->cache_disk_bytes,
        .age_hours = o->cache_age_hours,
        .layout_hash = r->info.layout_hash,
        .page_tokens = r->info.page_tokens,
        .page_bytes = r->info.page_bytes,
        .snapshot_bytes = r->info.snapshot_bytes,
        .wake = run_wake_void,
        .wake_ctx = r};
    memcpy(d.identity, o->cache_identity, sizeof d.identity);
    if (disk_open(&d, &r->disk, &why) != OK) {
        LOG(LOG_WARN, "cache", "no disk cache", "message=\"%s\"", why.msg);
    }
}

/* ---- writing through ---- */

void store_note(run *r, int32_t node) {
    prefix_view v;
    if (r->disk == NULL) return;
    prefix_look(r->prefixes, node, &v);
    if (r->n_store == STORE_QUEUE) { /* the oldest is missed least: the newest is going on */
        memmove(&r->store[0], &r->store[1], (STORE_QUEUE - 1) * sizeof r->store[0]);
        r->n_store--;
    }
    r->store[r->n_store++] = (store_item){.node = node, .serial = v.serial};
}

static disk_name name_of(const run *r, const prefix_view *v, int32_t type) {
    prefix_view parent;
    prefix_look(r->prefixes, v->parent, &parent);
    disk_name name = {
        type, v->n_tokens, v->hash, parent.hash, v->depth * r->info.page_tokens + v->n_tokens};
    if (type == DISK_TAIL) {
        name.self = prefix_hash_of(&parent.hash, v->salt, v->tokens, v->n_tokens);
    } else if (type == DISK_MARK) {
        name.n_tokens = 0;
        name.parent = v->hash;
    }
    return name;
}

disk_name store_mark_name(const run *r, int32_t node) {
    prefix_view v;
    prefix_look(r->prefixes, node, &v);
    return name_of(r, &v, v.n_tokens < r->info.page_tokens ? DISK_TAIL : DISK_MARK);
}

bool store_has_mark(run *r, int32_t node) {
    prefix_view v;
    if (r->disk == NULL) return false;
    disk_name name = store_mark_name(r, node);
    prefix_look(r->prefixes, node, &v);
    return disk_pass(r->disk, &name) || (v.mark_stored != 0 && disk_is_writing(r->disk));
}

bool store_forget_mark(run *r, int32_t node) {
    prefix_view v;
    if (r->disk == NULL) return false;
    disk_name name = store_mark_name(r, node);
    prefix_look(r->prefixes, node, &v);
    return disk_forget(r->disk, &name, v.mark_stored != 0);
}

/* Gives one record to the writer. False: it has no room now. */
static bool give(run *r, const prefix_view *v, int32_t type) {
    disk_place place;
    err why = ERR_INIT;
    disk_name name = name_of(r, v, type);
    if (disk_has(r->disk, &name)) return true;
    if (!disk_take_place(r->disk, type, &place)) return false;
    if (type != DISK_MARK) memcpy(place.tokens, v->tokens, (size_t)v->n_tokens * sizeof(int32_t));
    if (type != DISK_PAGE) memcpy(place.snapshot, v->snapshot, r->info.snapshot_bytes);
    if (type != DISK_MARK &&
        r->source->page_read(r->source->self, v->page, place.page, &why) != OK) {
        LOG(LOG_WARN, "cache", "page not stored", "message=\"%s\"", why.msg);
        disk_return(r->disk, &place);
        return true;
    }
    disk_give(r->disk, &place, &name, type != DISK_PAGE);
    return true;
}

/* The first page on the way to node that is not on disk; -1: all are. */
static int32_t first_missing(const run *r, int32_t node, uint32_t epoch, prefix_view *out) {
    prefix_view v;
    int32_t top = -1;
    while (node != PREFIX_ROOT) {
        prefix_look(r->prefixes, node, &v);
        if (v.stored == epoch) break;
        top = node;
        *out = v;
        node = v.parent;
    }
    return top;
}

/* One item further. False: nothing more can be done now. */
static bool store_one(run *r) {
    store_item *item = &r->store[0];
    prefix_view v;
    prefix_view page;
    uint32_t epoch = disk_epoch(r->disk);
    prefix_look(r->prefixes, item->node, &v);
    bool is_void =
        v.is_gone || v.serial != item->serial || v.snapshot == NULL || v.mark_stored == epoch;
    if (!is_void) {
        bool is_tail = v.n_tokens < r->info.page_tokens;
        int32_t node = first_missing(r, is_tail ? v.parent : item->node, epoch, &page);
        if (node >= 0) {
            if (!give(r, &page, DISK_PAGE)) return false;
            prefix_set_stored(r->prefixes, node, epoch);
            return true;
        }
        if (!give(r, &v, is_tail ? DISK_TAIL : DISK_MARK)) return false;
        prefix_set_mark_stored(r->prefixes, item->node, epoch);
    }
    r->n_store--;
    memmove(&r->store[0], &r->store[1], (size_t)r->n_store * sizeof r->store[0]);
    return true;
}

void store_pump(run *r) {
    if (r->disk == NULL) return;
    disk_poll(r->disk);
    for (int i = 0; i < STORE_PAGES && r->n_store > 0 && store_one(r); i++) {
    }
}

bool store_has_work(run *r) {
    if (r->disk == NULL || r->n_store == 0) return false;
    return disk_has_room(r->disk);
}

void store_finish(run *r) {
    uint64_t deadline = clock_mono_ms() + FINISH_MS;
    while (r->disk != NULL && r->n_store > 0 && clock_mono_ms() < deadline) {
        store_pump(r);
        if (!store_has_work(r)) sleep_ms(1);
    }
}

/* ---- loading ---- */

typedef struct tail_search {
    const run *r;
    const prefix_key *key;
    int32_t at; /* tokens before the tail */
    stream_load *best;
} tail_search;

static bool take_tail(void *ctx, const disk_name *name) {
    const tail_search *s = ctx;
    int32_t end = s->at + name->n_tokens;
    if (end > s->key->n_tokens || end <= s->best->n_tokens) return true;
    prefix_hash h =
        prefix_hash_of(&name->parent, s->key->salt, s->key->tokens + s->at, name->n_tokens);
    if (h.a != name->self.a || h.b != name->self.b) return true;
    s->best->n_tokens = end;
    s->best->name = *name;
    return true;
}

/* The longest prefix of key that can be put together from memory (whole pages below n_match) and
 * disk. */
static void search(run *r, const prefix_key *key, int32_t n_match, stream_load *best) {
    int32_t page = r->info.page_tokens;
    prefix_hash h = {0};
    *best = (stream_load){0};
    for (int32_t at = 0;; at += page) {
        tail_search tails = {r, key, at, best};
        disk_each_tail(r->disk, &h, take_tail, &tails);
        if (at + page > key->n_tokens) return;
        disk_name name = {.type = DISK_PAGE, .n_tokens = page, .parent = h};
        name.self = h = prefix_hash_of(&h, key->salt, key->tokens + at, page);
        if (at + page > n_match && !disk_has(r->disk, &name)) return;
        disk_name mark = {.type = DISK_MARK, .self = h, .parent = h};
        if (!disk_has(r->disk, &mark)) continue;
        best->n_tokens = at + page;
        best->name = mark;
    }
}

bool store_plan(run *r, stream *s, const prefix_key *key, const prefix_hit *hit) {
    stream_load best;
    s->load = (stream_load){0};
    if (r->disk == NULL) return false;
    search(r, key, hit->n_match, &best);
    if (best.n_tokens <= hit->n_tokens) return false;
    best.is_on = true;
    best.n_full = best.n_tokens / r->info.page_tokens;
    best.i_page = hit->n_match / r->info.page_tokens;
    if (best.i_page > best.n_full) best.i_page = best.n_full;
    best.node = prefix_node_at(r->prefixes, hit->match_node, best.i_page);
    prefix_view v;
    prefix_look(r->prefixes, best.node, &v);
    best.hash = v.hash;
    s->load = best;
    reuse_share(r, s, best.node, best.i_page);
    disk_load_begin(r->disk);
    return true;
}

static int load_page(run *r, stream *s, err *e) {
    stream_load *l = &s->load;
    int32_t page = r->info.page_tokens;
    const int32_t *tokens = s->t->tokens + (size_t)l->i_page * (size_t)page;
    disk_name name = {.type = DISK_PAGE, .n_tokens = page, .parent = l->hash};
    disk_record record;
    name.self = prefix_hash_of(&l->hash, s->t->salt, tokens, page);
    int rc = disk_read(r->disk, &name, &record, e);
    if (rc != OK) return rc;
    if (memcmp(record.tokens, tokens, (size_t)page * sizeof *tokens) != 0)
        return err_set(e, ERR_MISMATCH, "a page of other tokens has the same name");
    s->pages[s->n_pages++] = stream_take_page(r, s);
    l->hash = name.self;
    l->i_page++;
    return r->source->page_write(r->source->self, s->pages[s->n_pages - 1], record.page, e);
}

/* The state behind the pages; then memory knows the prefix as well. */
static int load_mark(run *r, stream *s, err *e) {
    stream_load *l = &s->load;
    int slot = (int)(s - r->streams);
    int32_t n_tail = l->n_tokens - l->n_full * r->info.page_tokens;
    const int32_t *tail = s->t->tokens + l->n_tokens - n_tail;
    disk_record record;
    int32_t at = -1;
    int rc = disk_read(r->disk, &l->name, &record, e);
    if (rc != OK) return rc;
    if (memcmp(record.tokens, tail, (size_t)n_tail * sizeof *tail) != 0)
        return err_set(e, ERR_MISMATCH, "a state of other tokens has the same name");
    if (n_tail > 0) {
        s->pages[s->n_pages++] = stream_take_page(r, s);
        rc = r->source->page_write(r->source->self, s->pages[l->n_full], record.page, e);
    }
    prefix_key key = {.tokens = s->t->tokens, .n_tokens = l->n_tokens};
    memcpy(key.salt, s->t->salt, sizeof key.salt);
    prefix_growth growth = {
        .key = &key, .pages = s->pages, .n_full = l->n_full, .creator = s->t->order};
    if (rc == OK) {
        s->node = prefix_grow(r->prefixes, l->node, &growth);
        s->n_in_cache = l->n_full;
        rc = r->source->slot_pages(r->source->self, slot, s->pages, s->n_pages, e);
    }
    if (rc == OK) rc = r->source->slot_load(r->source->self, slot, record.snapshot, e);
    if (rc != OK) return rc;
    void *blob =
        prefix_mark(r->prefixes, s->node, &key, n_tail > 0 ? s->pages[l->n_full] : -1, &at);
    if (blob != NULL) {
        memcpy(blob, record.snapshot, r->info.snapshot_bytes);
        prefix_set_mark_stored(r->prefixes, at, disk_epoch(r->disk));
    }
    return OK;
}

static void load_some(run *r, stream *s) {
    stream_load *l = &s->load;
    err why = ERR_INIT;
    int rc = OK;
    for (int i = 0; i < LOAD_PAGES && l->i_page < l->n_full && rc == OK; i++) {
        rc = load_page(r, s, &why);
    }
    if (rc == OK && l->i_page < l->n_full) return;
    if (rc == OK) rc = load_mark(r, s, &why);
    int32_t n_tokens = l->n_tokens;
    store_stop(r, s);
    if (rc == OK) {
        reuse_begin_at(r, s, n_tokens);
        atomic_fetch_add_explicit(&r->n_disk_tokens, (uint64_t)n_tokens, memory_order_relaxed);
        return;
    }
    if (reuse_forget(r, s, &why)) reuse_from_memory(r, s);
}

void store_stop(run *r, stream *s) {
    if (!s->load.is_on) return;
    s->load.is_on = false;
    disk_load_end(r->disk);
}

bool store_load(run *r) {
    bool has_any = false;
    for (int32_t i = 0; i < r->info.n_slots && r->disk != NULL; i++) {
        stream *s = &r->streams[i];
        if (s->t == NULL || !s->load.is_on) continue;
        load_some(r, s);
        has_any |= s->load.is_on;
    }
    return has_any;
}
