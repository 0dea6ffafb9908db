/* Records that somebody wants gone: the part of the step thread, which takes them out of the index and
 * tells the writer (disk_tidy.c). Pages go when no state needs them any more. */
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/run/disk_internal.h"

/* So many pages behind a forgotten one are looked at at once. */
#define BELOW_MAX 65536

static bool same_hash(const prefix_hash *a, const prefix_hash *b) {
    return a->a == b->a && a->b == b->b;
}

static disk_name name_of(const disk_line *line, uint32_t type) {
    return (disk_name){(int32_t)type, (int32_t)line->n_tokens, line->self, line->parent, 0};
}

static bool same_name(const disk_name *a, const disk_name *b) {
    return a->type == b->type && a->n_tokens == b->n_tokens && same_hash(&a->self, &b->self) &&
           same_hash(&a->parent, &b->parent);
}

/* ---- records ---- */

bool disk_can_forget(const disk_cache *d, int32_t n) {
    return atomic_load(&d->n_forgets) + n <= DISK_FORGETS - DISK_WIPES;
}

static void order(disk_cache *d, const disk_job *job) {
    atomic_fetch_add(&d->n_forgets, 1);
    bool is_given = spsc_push(d->jobs, job);
    CHECK(is_given); /* the ring has a place for each */
}

/* False: so many wait for the writer that this one stays. */
static bool forget_entry(disk_cache *d, int32_t i) {
    disk_job job = {.i_slot = DISK_JOB_FORGET, .line = d->entries[i].line};
    err why = ERR_INIT;
    if (!d->is_alone && !disk_can_forget(d, 1)) return false;
    disk_index_remove(d, i);
    d->has_forgotten = true;
    if (!d->is_alone) {
        order(d, &job);
    } else if (disk_forget_now(d, &job.line, &why) != OK) {
        LOG(LOG_ERROR, "cache", "a record may still be on disk", "message=\"%s\"", why.msg);
    }
    return true;
}

/* With all that have the same name: one may have been given again while another was on its way. */
static bool forget_all(disk_cache *d, const disk_name *name) {
    bool has_any = false;
    for (int32_t i = disk_index_find(d, name); i >= 0; i = disk_index_find(d, name)) {
        if (!forget_entry(d, i)) break;
        has_any = true;
    }
    return has_any;
}

/* Places are for the newest first: older ones are in the index or lost already. */
static bool doom(disk_cache *d, const disk_name *name) {
    if (!disk_is_writing(d)) return false;
    for (int i = 0; i < DISK_PENDING; i++) {
        if (d->doomed[i].number != 0) continue;
        d->doomed[i] = (disk_doom){*name, d->n_given};
        atomic_fetch_add(&d->n_doomed, 1);
        return true;
    }
    return false;
}

bool disk_forget(disk_cache *d, const disk_name *name, bool is_given) {
    bool was_there = forget_all(d, name);
    return (is_given && !was_there && doom(d, name)) || was_there;
}

void disk_forget_doomed(disk_cache *d, const disk_line *line) {
    disk_name name = name_of(line, line->type);
    for (int i = 0; i < DISK_PENDING && atomic_load(&d->n_doomed) > 0; i++) {
        if (d->doomed[i].number != 0 && same_name(&d->doomed[i].name, &name)) forget_all(d, &name);
    }
}

void disk_forget_settle(disk_cache *d, uint64_t n_settled) {
    int32_t n = 0;
    d->n_arrived = n_settled;
    if (atomic_load(&d->n_doomed) == 0) return;
    for (int i = 0; i < DISK_PENDING; i++) {
        disk_doom *x = &d->doomed[i];
        if (x->number <= n_settled) x->number = 0;
        n += x->number != 0;
    }
    if (n == 0) disk_forget_end(d); /* before the count, which others wait for */
    atomic_store(&d->n_doomed, n);
}

void disk_forget_end(disk_cache *d) {
    const disk_job job = {.i_slot = DISK_JOB_TIDY};
    if ((!d->has_forgotten && disk_left(d) == 0) || d->is_alone) return;
    if (atomic_load(&d->n_forgets) >= DISK_FORGETS)
        return; /* with one of those that wait, or later */
    d->has_forgotten = false;
    order(d, &job);
}

bool disk_is_writing(const disk_cache *d) {
    return d->n_given > d->n_arrived;
}

bool disk_is_quiet(disk_cache *d) {
    return atomic_load(&d->n_doomed) == 0 && atomic_load(&d->n_forgets) == 0;
}

int32_t disk_left(const disk_cache *d) {
    return atomic_load(&d->n_left);
}

bool disk_wipe(disk_cache *d) {
    const disk_job job = {.i_slot = DISK_JOB_WIPE};
    if (atomic_load(&d->n_forgets) >= DISK_FORGETS) return false;
    disk_index_clear(d);
    memset(d->doomed, 0, sizeof d->doomed);
    d->has_forgotten = false;
    d->epoch++;
    order(d, &job);
    atomic_store(&d->n_doomed, 0);
    return true;
}

/* ---- pages ---- */

static int32_t deepest(const disk_cache *d, int32_t i, int32_t *n_looks) {
    for (; *n_looks < BELOW_MAX; ++*n_looks) {
        int32_t child = disk_index_child(d, &d->entries[i].line.self);
        if (child < 0) break;
        i = child;
    }
    return i;
}

/* Pages behind base that lead to no state: each after those behind it. */
static bool forget_below(disk_cache *d, const prefix_hash *base) {
    int32_t n_looks = 0;
    bool has_any = false;
    int32_t i = disk_index_child(d, base);
    if (i >= 0) i = deepest(d, i, &n_looks);
    for (; i >= 0 && n_looks < BELOW_MAX; n_looks++) {
        const prefix_hash self = d->entries[i].line.self, parent = d->entries[i].line.parent;
        int32_t next = disk_index_sibling(d, i);
        if (!disk_index_needs(d, &self)) has_any |= forget_entry(d, i);
        if (next >= 0) {
            i = deepest(d, next, &n_looks);
        } else if (same_hash(&parent, base)) {
            break;
        } else {
            i = disk_index_page(d, &parent);
        }
    }
    return has_any;
}

bool disk_forget_pages(disk_cache *d, const disk_link *chain, int32_t n) {
    bool has_any = n > 0 && forget_below(d, &chain[0].hash);
    for (int32_t i = 0; i < n; i++) {
        disk_name name = {DISK_PAGE, d->o.page_tokens, chain[i].hash, chain[i + 1].hash, 0};
        if (disk_index_needs(d, &chain[i].hash)) break;
        has_any |= disk_forget(d, &name, chain[i].is_given);
    }
    return has_any;
}

bool disk_forget_page(disk_cache *d, const prefix_hash *self, prefix_hash *parent) {
    (void)forget_below(d, self);
    int32_t i = disk_index_page(d, self);
    if (i < 0 || disk_index_needs(d, self)) return false;
    *parent = d->entries[i].line.parent;
    const disk_name name = name_of(&d->entries[i].line, DISK_PAGE);
    return forget_all(d, &name);
}

/* ---- opening ---- */

bool disk_forget_line(disk_cache *d, const disk_line *line) {
    disk_name name = name_of(line, line->extra);
    int32_t i = disk_index_find(d, &name);
    while (i >= 0) {
        const disk_line *found = &d->entries[i].line;
        disk_name other = name_of(found, found->type);
        bool is_it = same_name(&other, &name) && found->segment == line->segment &&
                     found->offset == line->offset;
        if (is_it) {
            disk_index_remove(d, i);
            return true;
        }
        i = d->entries[i].next;
    }
    return false;
}

/* The pages that a state goes on from are marked as looked at. */
static void mark_needed(disk_cache *d, const disk_line *state) {
    prefix_hash at = state->type == DISK_MARK ? state->self : state->parent;
    for (;;) {
        int32_t i = disk_index_page(d, &at);
        if (i < 0 || d->entries[i].look == d->n_looks) return;
        d->entries[i].look = d->n_looks;
        at = d->entries[i].line.parent;
    }
}

void disk_forget_orphans(disk_cache *d) {
    if (d->first_free < 0) return; /* states may be missing in the index */
    disk_look(d);
    for (int32_t i = 0; i < d->entries_cap; i++) {
        const disk_line *line = &d->entries[i].line;
        if (line->type == DISK_MARK || line->type == DISK_TAIL) mark_needed(d, line);
    }
    for (int32_t i = 0; i < d->entries_cap; i++) {
        const disk_entry *x = &d->entries[i];
        if (x->line.type == DISK_PAGE && x->look != d->n_looks) forget_entry(d, i);
    }
}
