/* Records that somebody wants gone. Segments are only appended to, so the bytes of a record are
 * punched out of its segment, and a line behind its own in the manifest takes it away; both are on
 * disk before the next job. A process that is killed between them leaves a record that fails its
 * checksum, which is a miss. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/run/disk_internal.h"

#define ZERO_BYTES 65536
/* A record that was given is in the index after so long, or never. */
#define DOOM_MS 60000

static bool same_hash(const prefix_hash *a, const prefix_hash *b) {
    return a->a == b->a && a->b == b->b;
}

static disk_name name_of(const disk_line *line, uint32_t type) {
    return (disk_name){(int32_t)type, (int32_t)line->n_tokens, line->self, line->parent};
}

static bool same_name(const disk_name *a, const disk_name *b) {
    return a->type == b->type && a->n_tokens == b->n_tokens && same_hash(&a->self, &b->self) &&
           same_hash(&a->parent, &b->parent);
}

/* ---- the step thread ---- */

static void forget_entry(disk_cache *d, int32_t i) {
    disk_job job = {.i_slot = DISK_JOB_FORGET, .line = d->entries[i].line};
    if (d->n_forgets >= DISK_FORGETS - DISK_WIPES) return;
    disk_index_remove(d, i);
    if (d->has_ended) {
        (void)disk_forget_now(d, &job.line, NULL); /* nobody is there who could be told */
        return;
    }
    bool is_given = spsc_push(d->jobs, &job);
    CHECK(is_given); /* the ring has a place for each */
    d->n_forgets++;
}

void disk_forget(disk_cache *d, const disk_name *name) {
    int32_t i = disk_index_find(d, name);
    if (i >= 0) {
        forget_entry(d, i);
        return;
    }
    d->doomed[d->i_doomed] = (disk_doom){*name, clock_mono_ms() + DOOM_MS};
    d->i_doomed = (d->i_doomed + 1) % DISK_PENDING;
}

void disk_forget_doomed(disk_cache *d, const disk_line *line) {
    disk_name name = name_of(line, line->type);
    for (int i = 0; i < DISK_PENDING; i++) {
        disk_doom *doom = &d->doomed[i];
        if (doom->until_ms == 0 || !same_name(&doom->name, &name)) continue;
        if (clock_mono_ms() < doom->until_ms) disk_forget(d, &name);
        doom->until_ms = 0;
        return;
    }
}

typedef struct chain_place {
    prefix_hash hash;
    int32_t i;
} chain_place;

static int compare_places(const void *a, const void *b) {
    const chain_place *x = a;
    const chain_place *y = b;
    return x->hash.a < y->hash.a ? -1 : x->hash.a > y->hash.a;
}

/* Where in the chain the parent of a record stands, -1: elsewhere. */
static int32_t parent_place(const chain_place *places, int32_t n, const disk_line *line) {
    chain_place want = {line->type == DISK_MARK ? line->self : line->parent, 0};
    const chain_place *at = bsearch(&want, places, (size_t)n, sizeof *places, compare_places);
    return at != NULL && same_hash(&at->hash, &want.hash) ? at->i : -1;
}

/* How many pages of the chain only the chain itself needs. */
static int32_t count_spare(
    const disk_cache *d, const chain_place *places, const disk_link *chain, int32_t n) {
    int32_t n_spare = n;
    for (int32_t i = 0; i < d->entries_cap; i++) {
        const disk_line *line = &d->entries[i].line;
        if (line->type == 0) continue;
        int32_t at = parent_place(places, n, line);
        bool is_own =
            line->type == DISK_PAGE && at > 0 && same_hash(&line->self, &chain[at - 1].hash);
        if (at >= 0 && at < n_spare && !is_own) n_spare = at;
    }
    return n_spare;
}

void disk_forget_pages(disk_cache *d, const disk_link *chain, int32_t n) {
    if (n <= 0) return;
    chain_place *places = mem_array((size_t)n, sizeof *places);
    for (int32_t i = 0; i < n; i++) {
        places[i] = (chain_place){chain[i].hash, i};
    }
    qsort(places, (size_t)n, sizeof *places, compare_places);
    int32_t n_spare = count_spare(d, places, chain, n);
    for (int32_t i = 0; i < n_spare; i++) {
        disk_name name = {DISK_PAGE, d->o.page_tokens, chain[i].hash, chain[i + 1].hash};
        if (chain[i].is_given || disk_has(d, &name)) disk_forget(d, &name);
    }
    mem_free(places);
}

uint64_t disk_wipe(disk_cache *d) {
    const disk_job job = {.i_slot = DISK_JOB_WIPE};
    /* So many wipes wait that this one has to be asked for again: its number does not come. */
    if (d->n_forgets == DISK_FORGETS) return d->n_wipes_asked + 1;
    for (int32_t i = 0; i < d->entries_cap; i++) {
        if (d->entries[i].line.type != 0) disk_index_remove(d, i);
    }
    memset(d->doomed, 0, sizeof d->doomed);
    d->epoch++;
    bool is_given = spsc_push(d->jobs, &job);
    CHECK(is_given); /* as for records */
    d->n_forgets++;
    return ++d->n_wipes_asked;
}

uint64_t disk_wiped(disk_cache *d) {
    return atomic_load(&d->n_wiped);
}

bool disk_forget_line(disk_cache *d, const disk_line *line) {
    disk_name name = name_of(line, line->reserved);
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

/* ---- the writer ---- */

static int overwrite(int fd, uint64_t at, uint64_t len, err *e) {
    static const char zeros[ZERO_BYTES];
    int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    int rc = OK;
    if (fallocate(fd, how, (off_t)at, (off_t)len) != 0) {
        for (uint64_t done = 0; done < len && rc == OK; done += ZERO_BYTES) {
            uint64_t n = len - done < ZERO_BYTES ? len - done : ZERO_BYTES;
            rc = fd_write_at(fd, zeros, (size_t)n, at + done, e);
        }
    }
    if (rc == OK && fdatasync(fd) != 0) rc = err_errno(e, "overwriting a cache record");
    return rc;
}

static int take_away(disk_cache *d, disk_segment *s, const disk_line *line, err *e) {
    buf path = BUF_INIT;
    disk_line gone = *line;
    gone.type = DISK_FORGOTTEN;
    gone.reserved = line->type;
    disk_line_seal(&gone);
    disk_manifest_path(d, line->segment, &path);
    int fd = open(buf_cstr(&path), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    int rc = fd >= 0 ? OK : err_errno(e, "opening %s", buf_cstr(&path));
    uint64_t at = atomic_load(&s->manifest_bytes);
    if (rc == OK) rc = fd_write_at(fd, &gone, sizeof gone, at, e);
    if (rc == OK && fdatasync(fd) != 0) rc = err_errno(e, "writing %s", buf_cstr(&path));
    if (rc == OK) atomic_store(&s->manifest_bytes, at + sizeof gone);
    if (fd >= 0) close(fd);
    buf_release(&path);
    return rc;
}

int disk_forget_now(disk_cache *d, const disk_line *line, err *e) {
    for (int i = 0; i < DISK_SEGMENTS; i++) {
        disk_segment *s = &d->segments[i];
        if (atomic_load(&s->number) != line->segment || atomic_load(&s->bytes) == 0) continue;
        uint64_t head = line->offset - sizeof *line;
        int rc = overwrite(atomic_load(&s->fd), head, sizeof *line + line->len, e);
        if (rc == OK) rc = disk_flush_group(d, e);
        return rc == OK ? take_away(d, s, line, e) : rc;
    }
    return OK; /* its segment went by itself */
}
