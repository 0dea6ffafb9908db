#include "engine/run/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/run/disk_internal.h"

#define DISK_VERSION 1
#define LINE_MAGIC 0x4c4e4454u
#define ENTRIES_MIN 1024
#define ENTRIES_MAX (1 << 20)
#define SEGMENT_MIN ((uint64_t)64 << 10)
#define SEGMENT_MOST ((uint64_t)256 << 20)
#define PAUSE_MS 30000

/* ---- heads and lines ---- */

size_t disk_content_bytes(const disk_cache *d, const disk_line *line) {
    size_t n = d->tokens_bytes;
    if (line->type != DISK_MARK) n += d->o.page_bytes;
    if (line->type != DISK_PAGE) n += d->o.snapshot_bytes;
    return n;
}

static size_t slot_stride(const disk_cache *d) {
    return sizeof(disk_line) + d->slot_bytes;
}

char *disk_slot(const disk_cache *d, int32_t i) {
    return d->slots + (size_t)i * slot_stride(d);
}

static uint32_t head_crc(const disk_head *h) {
    uint32_t crc = crc32c(0, h, offsetof(disk_head, crc));
    return crc32c(crc, &h->number, sizeof *h - offsetof(disk_head, number));
}

void disk_head_fill(const disk_cache *d, disk_head *h, const char *magic, uint64_t number) {
    memset(h, 0, sizeof *h);
    memcpy(h->magic, magic, sizeof h->magic);
    h->version = DISK_VERSION;
    h->number = number;
    memcpy(h->identity, d->identity, sizeof h->identity);
    h->crc = head_crc(h);
}

bool disk_head_fits(const disk_cache *d, const disk_head *h, const char *magic, uint64_t number) {
    return memcmp(h->magic, magic, sizeof h->magic) == 0 && h->version == DISK_VERSION &&
           h->number == number && memcmp(h->identity, d->identity, sizeof h->identity) == 0 &&
           h->crc == head_crc(h);
}

void disk_line_seal(disk_line *line) {
    line->magic = LINE_MAGIC;
    line->crc = crc32c(0, line, offsetof(disk_line, crc));
}

bool disk_line_fits(const disk_cache *d, const disk_line *line) {
    disk_line record = *line;
    if (line->type == DISK_FORGOTTEN) record.type = line->extra;
    return line->magic == LINE_MAGIC && line->crc == crc32c(0, line, offsetof(disk_line, crc)) &&
           record.type >= DISK_PAGE && record.type <= DISK_TAIL &&
           line->n_tokens <= (uint32_t)d->o.page_tokens &&
           line->len == disk_content_bytes(d, &record) && line->offset >= sizeof(disk_head);
}

void disk_segment_path(const disk_cache *d, uint64_t number, buf *out) {
    buf_reset(out);
    buf_printf(out, "%s/segment-%010llu", d->dir, (unsigned long long)number);
}

uint64_t disk_segment_size(const disk_segment *s) {
    uint64_t bytes = atomic_load(&s->bytes);
    uint64_t hole = atomic_load(&s->hole_bytes);
    return (bytes > hole ? bytes - hole : 0) + atomic_load(&s->manifest_bytes);
}

void disk_dropped(disk_cache *d, const char *why, const char *what) {
    atomic_fetch_add_explicit(&d->n_dropped, 1, memory_order_relaxed);
    LOG(LOG_WARN, "cache", "cache entry dropped", "what=\"%s\" why=\"%s\"", what, why);
}

/* ---- the index ---- */

static uint32_t bucket_of(const disk_cache *d, uint32_t type, const prefix_hash *h) {
    return (uint32_t)(h->a * 3 + h->b + type) & (d->n_buckets - 1);
}

/* Tails are listed below their parents, all else by itself. */
static const prefix_hash *index_hash(const disk_line *line) {
    return line->type == DISK_TAIL ? &line->parent : &line->self;
}

static bool same_hash(const prefix_hash *a, const prefix_hash *b) {
    return a->a == b->a && a->b == b->b;
}

static bool is_named(const disk_line *line, const disk_name *name) {
    return line->type == (uint32_t)name->type && same_hash(&line->self, &name->self) &&
           line->n_tokens == (uint32_t)name->n_tokens && same_hash(&line->parent, &name->parent);
}

int32_t disk_index_find(const disk_cache *d, const disk_name *name) {
    const prefix_hash *h = name->type == DISK_TAIL ? &name->parent : &name->self;
    int32_t i = d->buckets[bucket_of(d, (uint32_t)name->type, h)];
    while (i >= 0 && !is_named(&d->entries[i].line, name)) {
        i = d->entries[i].next;
    }
    return i;
}

bool disk_index_add(disk_cache *d, const disk_line *line) {
    int32_t i = d->first_free;
    if (i < 0) return false;
    d->first_free = d->entries[i].next;
    int32_t *bucket = &d->buckets[bucket_of(d, line->type, index_hash(line))];
    int32_t *child = &d->children[bucket_of(d, DISK_PAGE, &line->parent)];
    d->entries[i] =
        (disk_entry){.line = *line, .next = *bucket, .next_child = -1, .serial = ++d->n_serials};
    *bucket = i;
    if (line->type == DISK_PAGE) {
        d->entries[i].next_child = *child;
        *child = i;
    }
    atomic_fetch_add_explicit(&d->n_records, 1, memory_order_relaxed);
    return true;
}

void disk_index_remove(disk_cache *d, int32_t i) {
    disk_line *line = &d->entries[i].line;
    int32_t *link = &d->buckets[bucket_of(d, line->type, index_hash(line))];
    while (*link != i) {
        link = &d->entries[*link].next;
    }
    *link = d->entries[i].next;
    link = &d->children[bucket_of(d, DISK_PAGE, &line->parent)];
    while (line->type == DISK_PAGE && *link != i) {
        link = &d->entries[*link].next_child;
    }
    if (line->type == DISK_PAGE) *link = d->entries[i].next_child;
    line->type = 0;
    d->entries[i].next = d->first_free;
    d->first_free = i;
    atomic_fetch_sub_explicit(&d->n_records, 1, memory_order_relaxed);
}

void disk_index_clear(disk_cache *d) {
    for (int32_t i = 0; i < d->entries_cap; i++) {
        d->entries[i].line.type = 0;
        d->entries[i].next = i + 1 < d->entries_cap ? i + 1 : -1;
    }
    d->first_free = 0;
    memset(d->buckets, 0xff, d->n_buckets * sizeof *d->buckets);
    memset(d->children, 0xff, d->n_buckets * sizeof *d->children);
    atomic_store(&d->n_records, 0);
}

int32_t disk_index_page(const disk_cache *d, const prefix_hash *self) {
    int32_t i = d->buckets[bucket_of(d, DISK_PAGE, self)];
    while (i >= 0 &&
           !(d->entries[i].line.type == DISK_PAGE && same_hash(&d->entries[i].line.self, self))) {
        i = d->entries[i].next;
    }
    return i;
}

static int32_t next_child(const disk_cache *d, int32_t i, const prefix_hash *parent) {
    while (i >= 0 && !same_hash(&d->entries[i].line.parent, parent)) {
        i = d->entries[i].next_child;
    }
    return i;
}

int32_t disk_index_child(const disk_cache *d, const prefix_hash *parent) {
    return next_child(d, d->children[bucket_of(d, DISK_PAGE, parent)], parent);
}

int32_t disk_index_sibling(const disk_cache *d, int32_t i) {
    return next_child(d, d->entries[i].next_child, &d->entries[i].line.parent);
}

bool disk_index_needs(const disk_cache *d, const prefix_hash *self) {
    const disk_name mark = {.type = DISK_MARK, .self = *self, .parent = *self};
    if (disk_index_find(d, &mark) >= 0 || disk_index_child(d, self) >= 0) return true;
    int32_t i = d->buckets[bucket_of(d, DISK_TAIL, self)];
    while (i >= 0 &&
           !(d->entries[i].line.type == DISK_TAIL && same_hash(&d->entries[i].line.parent, self))) {
        i = d->entries[i].next;
    }
    return i >= 0;
}

bool disk_has(disk_cache *d, const disk_name *name) {
    return disk_index_find(d, name) >= 0;
}

void disk_look(disk_cache *d) {
    d->n_looks++;
}

bool disk_pass(disk_cache *d, const disk_name *name) {
    int32_t i = disk_index_find(d, name);
    bool is_there = i >= 0;
    for (; i >= 0; i = d->entries[i].next) { /* twice, if it was given while it was on its way */
        if (is_named(&d->entries[i].line, name)) d->entries[i].look = d->n_looks;
    }
    return is_there;
}

static disk_name name_of(const disk_line *line) {
    return (disk_name){(int32_t)line->type, (int32_t)line->n_tokens, line->self, line->parent,
        (int32_t)line->extra};
}

int32_t disk_next_state(const disk_cache *d, int32_t i, disk_state *out) {
    for (i++; i < d->entries_cap; i++) {
        const disk_entry *x = &d->entries[i];
        bool is_state = x->line.type == DISK_MARK || x->line.type == DISK_TAIL;
        if (!is_state || x->look == d->n_looks) continue;
        *out = (disk_state){.serial = x->serial, .name = name_of(&x->line)};
        return i;
    }
    return -1;
}

void disk_each_tail(disk_cache *d, const prefix_hash *parent,
    bool (*fn)(void *ctx, const disk_name *name), void *ctx) {
    int32_t i = d->buckets[bucket_of(d, DISK_TAIL, parent)];
    for (; i >= 0; i = d->entries[i].next) {
        const disk_line *line = &d->entries[i].line;
        if (line->type != DISK_TAIL || !same_hash(&line->parent, parent)) continue;
        disk_name name = name_of(line);
        if (!fn(ctx, &name)) return;
    }
}

/* ---- opening ---- */

static void make_identity(disk_cache *d) {
    struct {
        uint8_t given[DISK_IDENTITY_BYTES];
        uint64_t values[5];
    } all = {.values = {DISK_VERSION, d->o.layout_hash, (uint64_t)d->o.page_tokens, d->o.page_bytes,
                 d->o.snapshot_bytes}};
    memcpy(all.given, d->o.identity, sizeof all.given);
    sha256_of(&all, sizeof all, d->identity);
}

/* What earlier prompts held is nobody else's to change, so a folder that somebody else made, or a link
 * to another place, is not used. */
static int check_own(const char *dir, err *e) {
    struct stat st;
    if (lstat(dir, &st) != 0) return err_errno(e, "looking at %s", dir);
    bool is_own = S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 022) == 0;
    return is_own
               ? OK
               : err_set(e, ERR_AUTH,
                     "%s is no folder of this user alone; remove it, or choose another place", dir);
}

static int take_folder(disk_cache *d, err *e) {
    char hex[SHA256_HEX];
    char path[DISK_PATH + 8];
    sha256_hex(d->identity, hex);
    int n = snprintf(d->dir, sizeof d->dir, "%s/%.16s", d->o.dir, hex);
    if (n < 0 || (size_t)n >= sizeof d->dir - 32)
        return err_set(e, ERR_LIMIT, "the path of the cache folder is too long");
    int rc = dir_make_all(d->dir, 0700, e);
    if (rc == OK) rc = check_own(d->dir, e);
    if (rc != OK) return rc;
    snprintf(path, sizeof path, "%s/lock", d->dir);
    d->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (d->lock_fd < 0) return err_errno(e, "opening %s", path);
    if (flock(d->lock_fd, LOCK_EX | LOCK_NB) == 0) return OK;
    return err_set(e, ERR_BUSY, "another engine uses the cache folder %s", d->dir);
}

static void make_index(disk_cache *d) {
    uint64_t n = d->o.budget_bytes / (d->o.page_bytes + sizeof(disk_line)) * 2;
    n = n < ENTRIES_MIN ? ENTRIES_MIN : n > ENTRIES_MAX ? ENTRIES_MAX : n;
    d->entries_cap = (int32_t)n;
    d->entries = mem_array(n, sizeof *d->entries);
    d->n_buckets = 1024;
    while (d->n_buckets < n) {
        d->n_buckets *= 2;
    }
    d->buckets = mem_array(d->n_buckets, sizeof *d->buckets);
    d->children = mem_array(d->n_buckets, sizeof *d->children);
    disk_index_clear(d);
}

static int make_buffers(disk_cache *d, err *e) {
    d->tokens_bytes = (size_t)d->o.page_tokens * sizeof(int32_t);
    d->slot_bytes = d->tokens_bytes + d->o.page_bytes + d->o.snapshot_bytes;
    d->slots = mem_try_alloc(DISK_SLOTS * slot_stride(d));
    d->read_buffer = mem_try_alloc(slot_stride(d));
    if (d->slots == NULL || d->read_buffer == NULL)
        return err_set(e, ERR_MEMORY, "no memory for the buffers of the disk cache");
    memset(d->slots, 1, DISK_SLOTS * slot_stride(d)); /* touched, so that memory stays flat */
    memset(d->read_buffer, 1, slot_stride(d));
    for (int32_t i = 0; i < DISK_SLOTS; i++) {
        d->free_slots[d->n_free_slots++] = i;
    }
    d->jobs = spsc_new(DISK_SLOTS + DISK_FORGETS + 1, sizeof(disk_job));
    d->news = spsc_new(DISK_NEWS, sizeof(disk_news));
    return OK;
}

static void free_parts(disk_cache *d) {
    for (int i = 0; i < DISK_SEGMENTS; i++) {
        if (d->segments[i].fd >= 0) close(d->segments[i].fd);
    }
    if (d->manifest_fd >= 0) close(d->manifest_fd);
    if (d->lock_fd >= 0) close(d->lock_fd);
    spsc_free(d->jobs);
    spsc_free(d->news);
    mem_free(d->entries);
    mem_free(d->buckets);
    mem_free(d->children);
    mem_free(d->slots);
    mem_free(d->read_buffer);
    buf_release(&d->left);
    mem_free(d);
}

int disk_open(const disk_options *options, disk_cache **out, err *e) {
    disk_cache *d = mem_alloc(sizeof *d);
    *out = NULL;
    d->o = *options;
    d->lock_fd = d->manifest_fd = -1;
    d->i_current = -1;
    d->epoch = 1;
    d->is_alone = true;
    d->left = (buf)BUF_MAX(DISK_FORGETS * sizeof(disk_line));
    for (int i = 0; i < DISK_SEGMENTS; i++) {
        d->segments[i].fd = -1;
    }
    d->segment_max = options->budget_bytes / 16;
    if (d->segment_max < SEGMENT_MIN) d->segment_max = SEGMENT_MIN;
    if (d->segment_max > SEGMENT_MOST) d->segment_max = SEGMENT_MOST;
    make_identity(d);
    int rc = take_folder(d, e);
    if (rc == OK) rc = make_buffers(d, e);
    if (rc == OK) {
        make_index(d);
        rc = disk_manifest_open(d, e);
    }
    d->is_alone = false;
    if (rc == OK && pthread_create(&d->thread, NULL, disk_writer, d) != 0) {
        rc = err_set(e, ERR_MEMORY, "no thread for the disk cache");
    }
    if (rc != OK) {
        free_parts(d);
        return rc;
    }
    *out = d;
    return OK;
}

void disk_close(disk_cache *d) {
    if (d == NULL) return;
    atomic_store(&d->is_closing, 1);
    spsc_close(d->jobs);
    pthread_join(d->thread, NULL);
    d->is_alone = true;
    disk_poll(d); /* what was to be forgotten as soon as it is there */
    disk_tidy(d);
    free_parts(d);
}

/* ---- reading ---- */

void disk_load_begin(disk_cache *d) {
    atomic_fetch_add(&d->n_loading, 1);
}

void disk_load_end(disk_cache *d) {
    atomic_fetch_sub(&d->n_loading, 1);
}

static disk_segment *segment_of(disk_cache *d, uint64_t number) {
    for (int i = 0; i < DISK_SEGMENTS; i++) {
        if (d->segments[i].number == number) return &d->segments[i];
    }
    return NULL;
}

static int read_checked(disk_cache *d, const disk_line *line, err *e) {
    disk_line head;
    char *content = d->read_buffer + sizeof head;
    disk_segment *s = segment_of(d, line->segment);
    if (s == NULL) return err_set(e, ERR_NOT_FOUND, "its segment is gone");
    atomic_store_explicit(&s->last_used_s, clock_wall_ms() / 1000, memory_order_relaxed);
    int fd = s->fd;
    int rc = fd_read_at(
        fd, d->read_buffer, sizeof head + (size_t)line->len, line->offset - sizeof head, e);
    if (rc != OK) return rc;
    memcpy(&head, d->read_buffer, sizeof head);
    if (memcmp(&head, line, sizeof head) != 0)
        return err_set(e, ERR_FORMAT, "its head in the segment differs from the manifest");
    if (crc32c(0, content, (size_t)line->len) != line->content_crc)
        return err_set(e, ERR_FORMAT, "its checksum is wrong");
    atomic_fetch_add_explicit(&d->n_read, line->len, memory_order_relaxed);
    return OK;
}

int disk_read(disk_cache *d, const disk_name *name, disk_record *out, err *e) {
    err why = ERR_INIT;
    int32_t i = disk_index_find(d, name);
    if (i < 0) return err_set(e, ERR_NOT_FOUND, "no such record");
    disk_line line = d->entries[i].line;
    int rc = read_checked(d, &line, &why);
    if (rc != OK) {
        disk_index_remove(d, i);
        disk_dropped(d, why.msg, "record");
        return err_set(e, rc, "%s", why.msg);
    }
    const char *content = d->read_buffer + sizeof line;
    const char *page = content + d->tokens_bytes;
    *out = (disk_record){.tokens = (const int32_t *)(const void *)content,
        .page = line.type != DISK_MARK ? page : NULL,
        .snapshot = line.type == DISK_PAGE   ? NULL
                    : line.type == DISK_MARK ? page
                                             : page + d->o.page_bytes};
    return OK;
}

/* ---- writing ---- */

bool disk_has_room(const disk_cache *d) {
    bool is_paused = d->paused_until_ms > 0 && clock_mono_ms() < d->paused_until_ms;
    return d->n_free_slots > 0 && !is_paused;
}

bool disk_take_place(disk_cache *d, int32_t type, disk_place *out) {
    if (!disk_has_room(d)) return false;
    int32_t i = d->free_slots[--d->n_free_slots];
    char *content = disk_slot(d, i) + sizeof(disk_line);
    memset(content, 0, d->tokens_bytes);
    char *page = content + d->tokens_bytes;
    *out = (disk_place){.tokens = (int32_t *)(void *)content,
        .page = type != DISK_MARK ? page : NULL,
        .snapshot = type == DISK_PAGE   ? NULL
                    : type == DISK_MARK ? page
                                        : page + d->o.page_bytes,
        .i_slot = i};
    return true;
}

void disk_return(disk_cache *d, const disk_place *place) {
    d->free_slots[d->n_free_slots++] = place->i_slot;
}

void disk_give(disk_cache *d, const disk_place *place, const disk_name *name, bool ends_group) {
    disk_job job = {.i_slot = place->i_slot,
        .ends_group = ends_group,
        .line = {.type = (uint32_t)name->type,
            .self = name->self,
            .parent = name->parent,
            .n_tokens = (uint32_t)name->n_tokens,
            .extra = (uint32_t)name->n_all}};
    job.line.len = disk_content_bytes(d, &job.line);
    d->n_given++;
    bool is_given = spsc_push(d->jobs, &job);
    CHECK(is_given); /* there are no more slots than places in the ring */
}

static void take_news(disk_cache *d, const disk_news *n) {
    switch (n->kind) {
    case DISK_NEWS_SLOT:
        d->free_slots[d->n_free_slots++] = n->i_slot;
        return;
    case DISK_NEWS_ENTRY:
        disk_index_add(d, &n->line);
        disk_forget_doomed(d, &n->line);
        return;
    case DISK_NEWS_FAILED:
        d->epoch++;
        d->paused_until_ms = clock_mono_ms() + PAUSE_MS;
        return;
    default:
        d->epoch++;
        for (int32_t i = 0; i < d->entries_cap; i++) {
            const disk_line *line = &d->entries[i].line;
            if (line->type != 0 && line->segment == n->line.segment) disk_index_remove(d, i);
        }
        disk_segment *s = segment_of(d, n->line.segment);
        if (s == NULL) return;
        close(s->fd);
        s->fd = -1;
        atomic_store(&s->number, 0);
    }
}

void disk_poll(disk_cache *d) {
    disk_news n;
    uint64_t n_settled = atomic_load(&d->n_settled);
    while (spsc_pop(d->news, &n, 0) == OK) {
        take_news(d, &n);
    }
    disk_forget_settle(d, n_settled);
}

uint32_t disk_epoch(const disk_cache *d) {
    return d->epoch;
}

void disk_count(disk_cache *d, disk_counts *out) {
    *out = (disk_counts){.n_records = atomic_load(&d->n_records),
        .n_written_bytes = atomic_load(&d->n_written),
        .n_read_bytes = atomic_load(&d->n_read),
        .n_dropped = atomic_load(&d->n_dropped),
        .n_errors = atomic_load(&d->n_errors)};
    for (int i = 0; i < DISK_SEGMENTS; i++) {
        if (d->segments[i].number != 0) {
            out->bytes += disk_segment_size(&d->segments[i]);
        }
    }
}
