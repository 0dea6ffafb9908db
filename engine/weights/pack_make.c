/* Making a rank pack: blocks are filled by a pool, written and recorded by writers. A block's record
 * is written only after its bytes are on the disk, so that after a kill the records that hold say
 * what need not be made again. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/thread.h"
#include "engine/weights/pack_internal.h"

enum { N_WRITERS = 2, N_BUFFERS = N_WRITERS + 1, TICK_MS = 100 };
/* Large packs leave so much of the disk unused (setup.md 7.8). */
#define RESERVE_BYTES ((uint64_t)5000000000)

typedef struct block_buffer {
    uint64_t number;
    uint8_t *data;
} block_buffer;

typedef struct maker {
    const pack_list *l;
    const pack_source *s;
    const pack_make_options *o;
    pack_make_progress *p;
    pack_header h;
    const char *path; /* of the file that is written */
    int fd;           /* header, table, records */
    int fd_data;      /* direct where it can be */
    bool is_direct;
    pack_block *blocks; /* [n_blocks] */
    uint8_t *is_done;   /* [n_blocks] */
    size_t at_entry;    /* first tensor that ends after the block before */
    pool *workers;
    queue *empty, *full;
    block_buffer buffers[N_BUFFERS];
    uint8_t *memory;
    atomic_ullong written; /* bytes that are on the disk */
    atomic_int rc;         /* of fillers and writers, sticky */
    pthread_mutex_t lock;
    err error; /* under the lock */
    uint64_t told_ms;
    bool is_mending; /* blocks must come out as recorded */
} maker;

static void fail(maker *m, int rc, const err *e) {
    pthread_mutex_lock(&m->lock);
    if (atomic_load(&m->rc) == OK) {
        m->error = *e;
        atomic_store(&m->rc, rc);
    }
    pthread_mutex_unlock(&m->lock);
}

/* ---- progress ---- */

static int tell(maker *m, bool is_now) {
    uint64_t now = clock_mono_ms();
    if (m->p->phase == PACK_WRITING) m->p->done_bytes = m->p->had_bytes + atomic_load(&m->written);
    if (m->o->progress == NULL || (!is_now && now - m->told_ms < TICK_MS)) return OK;
    m->told_ms = now;
    return m->o->progress(m->o->ctx, m->p);
}

/* ---- writing ---- */

static int write_block(maker *m, const block_buffer *b, err *e) {
    uint8_t sha[32];
    size_t len = (size_t)pack_block_len(&m->h, b->number);
    uint64_t at = m->h.data_offset + b->number * m->h.block_bytes;
    pack_block record;
    sha256_of(b->data, len, sha);
    pack_block_seal(&record, b->number, crc32c(0, b->data, len), sha);
    if (m->is_mending && memcmp(&record, &m->blocks[b->number], sizeof record) != 0)
        return err_set(e, ERR_MISMATCH,
            "block %llu of %s comes out different from when it was made: the weights have changed, "
            "or this program packs them in another way; remove the file and prepare it again",
            (unsigned long long)b->number + 1, m->path);
    int rc = fd_write_at(m->fd_data, b->data, len, at, e);
    if (rc == OK && fdatasync(m->fd_data) != 0) rc = err_errno(e, "fdatasync");
    if (rc == OK && !m->is_direct)
        (void)posix_fadvise(m->fd_data, (off_t)at, (off_t)len, POSIX_FADV_DONTNEED);
    m->blocks[b->number] = record;
    if (rc == OK && !m->is_mending)
        rc = fd_write_at(
            m->fd, &record, sizeof record, m->h.digests_offset + b->number * sizeof record, e);
    if (rc != OK) return err_add(e, rc, "writing %s", m->path);
    m->is_done[b->number] = 1;
    atomic_fetch_add(&m->written, len);
    return OK;
}

static void *run_writer(void *ctx) {
    maker *m = ctx;
    void *item = NULL;
    thread_set_name("pack writer");
    while (queue_pop(m->full, &item, -1) == OK) {
        err e = ERR_INIT;
        int rc = atomic_load(&m->rc) == OK ? write_block(m, item, &e) : OK;
        if (rc != OK) fail(m, rc, &e);
        (void)queue_push(m->empty, item, -1);
    }
    return NULL;
}

/* ---- filling ---- */

typedef struct filling {
    maker *m;
    size_t first; /* tensor of item 0 */
    uint64_t from, to;
    uint8_t *data;
} filling;

/* The part of one tensor that lies in the block. */
static void fill_item(void *ctx, int i_item, int i_thread) {
    const filling *f = ctx;
    size_t i = f->first + (size_t)i_item;
    const pack_entry *t = pack_list_at(f->m->l, i);
    uint64_t begin = t->offset > f->from ? t->offset : f->from;
    uint64_t end = t->offset + t->bytes < f->to ? t->offset + t->bytes : f->to;
    err e = ERR_INIT;
    (void)i_thread;
    if (atomic_load(&f->m->rc) != OK || begin >= end) return;
    const uint64_t at_n[2] = {begin - t->offset, end - begin};
    int rc = f->m->s->fill(f->m->s->ctx, i, at_n, f->data + (begin - f->from), &e);
    if (rc != OK) fail(f->m, err_add(&e, rc, "%s", t->name), &e);
}

/* Tensors [first, out) lie at least partly in [from, to); first ends after from. */
static size_t entries_until(const pack_list *l, size_t first, uint64_t to) {
    size_t n = first;
    while (n < pack_list_count(l) && pack_list_at(l, n)->offset < to) {
        n++;
    }
    return n;
}

static size_t skip_entries(const pack_list *l, size_t first, uint64_t from) {
    while (first < pack_list_count(l)) {
        const pack_entry *t = pack_list_at(l, first);
        if (t->offset + t->bytes > from) break;
        first++;
    }
    return first;
}

static void fill_block(maker *m, block_buffer *b) {
    filling f = {.m = m, .from = b->number * m->h.block_bytes, .data = b->data};
    size_t len = (size_t)pack_block_len(&m->h, b->number), old = m->at_entry;
    f.to = f.from + len;
    memset(b->data, 0, len);
    f.first = skip_entries(m->l, m->at_entry, f.from);
    size_t end = entries_until(m->l, f.first, f.to);
    if (m->s->soon != NULL)
        m->s->soon(m->s->ctx, f.first, entries_until(m->l, end, f.to + m->h.block_bytes));
    pool_run(m->workers, (int)(end - f.first), fill_item, &f);
    m->at_entry = skip_entries(m->l, f.first, f.to);
    if (m->s->done != NULL && m->at_entry > old) m->s->done(m->s->ctx, old, m->at_entry);
}

/* A free buffer; tells while it waits. NULL: it is over, *rc says why. */
static block_buffer *next_buffer(maker *m, int *rc) {
    void *item = NULL;
    while (true) {
        *rc = atomic_load(&m->rc);
        if (*rc == OK) *rc = tell(m, false);
        if (*rc != OK) return NULL;
        if (queue_pop(m->empty, &item, TICK_MS) == OK) return item;
    }
}

static int fill_all(maker *m) {
    int rc = OK;
    for (uint64_t i = 0; i < m->h.n_blocks && rc == OK; i++) {
        if (m->is_done[i]) continue;
        block_buffer *b = next_buffer(m, &rc);
        if (b == NULL) break;
        b->number = i;
        fill_block(m, b);
        (void)queue_push(m->full, b, -1);
    }
    return rc;
}

static int run_all(maker *m, err *e) {
    pthread_t writers[N_WRITERS];
    int n = 0;
    for (; n < N_WRITERS; n++) {
        if (pthread_create(&writers[n], NULL, run_writer, m) != 0) break;
    }
    if (n == 0) return err_set(e, ERR_MEMORY, "no thread could be started to write %s", m->path);
    int rc = fill_all(m);
    queue_close(m->full); /* what is in it is still written */
    for (int i = 0; i < n; i++) {
        pthread_join(writers[i], NULL);
    }
    if (atomic_load(&m->rc) != OK) {
        rc = m->error.code;
        if (e != NULL) *e = m->error;
    } else if (rc != OK) {
        err_set(e, rc, "preparing %s was stopped; what is written stays", m->o->path);
    }
    return rc;
}

/* Makes every block that is_done does not name. */
static int make_blocks(maker *m, err *e) {
    size_t size = (size_t)m->h.block_bytes;
    if (m->h.data_bytes < size) size = (size_t)m->h.data_bytes;
    m->memory = mem_aligned(PACK_PAGE, N_BUFFERS * size);
    if (m->memory == NULL)
        return err_set(e, ERR_MEMORY, "no memory for %d blocks of %zu MiB", N_BUFFERS, size >> 20);
    m->fd_data = pack_open_direct(m->path, O_WRONLY, &m->is_direct, e);
    int rc = m->fd_data >= 0 ? OK : m->fd_data;
    if (rc == OK) {
        m->workers = pool_new(m->o->n_threads);
        m->empty = queue_new(N_BUFFERS);
        m->full = queue_new(N_BUFFERS);
        m->at_entry = 0;
        for (size_t i = 0; i < N_BUFFERS; i++) {
            m->buffers[i].data = m->memory + i * size;
            (void)queue_push(m->empty, &m->buffers[i], -1);
        }
        rc = run_all(m, e);
        pool_free(m->workers);
        queue_free(m->empty);
        queue_free(m->full);
        close(m->fd_data);
    }
    mem_aligned_free(m->memory);
    return rc;
}

/* ---- the file ---- */

static int write_header(const maker *m, err *e) {
    uint8_t page[PACK_PAGE];
    pack_header_page(&m->h, page);
    return err_add(e, fd_write_at(m->fd, page, sizeof page, 0, e), "writing %s", m->path);
}

/* The same contents, whoever began to make them and when. */
static bool is_same_pack(const pack_header *a, const pack_header *b) {
    pack_header x = *a, y = *b;
    x.made_s = y.made_s = 0;
    x.is_complete = y.is_complete = 0;
    memset(x.root, 0, sizeof x.root);
    memset(y.root, 0, sizeof y.root);
    memset(x.build, 0, sizeof x.build);
    memset(y.build, 0, sizeof y.build);
    return memcmp(&x, &y, sizeof x) == 0;
}

/* Takes over what an earlier call left. False: it is of another pack, or nothing. */
static bool resume(maker *m) {
    uint8_t page[PACK_PAGE];
    pack_header old;
    if (fd_read_at(m->fd, page, sizeof page, 0, NULL) != OK) return false;
    if (pack_header_parse(&old, page, m->path, NULL) != OK || !is_same_pack(&old, &m->h))
        return false;
    size_t bytes = (size_t)m->h.n_blocks * sizeof *m->blocks;
    if (fd_read_at(m->fd, m->blocks, bytes, m->h.digests_offset, NULL) != OK) {
        memset(m->blocks, 0, bytes);
        return true;
    }
    for (uint64_t i = 0; i < m->h.n_blocks; i++) {
        if (!pack_block_holds(&m->blocks[i], i)) continue;
        m->is_done[i] = 1;
        m->p->had_bytes += pack_block_len(&m->h, i);
        m->p->n_had_blocks++;
    }
    return true;
}

static int start_file(maker *m, err *e) {
    buf table = BUF_MAX(PACK_MAX_TABLE);
    int rc = OK;
    if (ftruncate(m->fd, 0) != 0) rc = err_errno(e, "emptying %s", m->path);
    if (rc == OK) rc = pack_table_print(m->l, &table);
    if (rc == OK) rc = fd_write_at(m->fd, table.data, table.len, m->h.table_offset, e);
    if (rc == OK && fdatasync(m->fd) != 0) rc = err_errno(e, "writing %s", m->path);
    if (rc == OK) rc = write_header(m, e); /* last: a header without its table is never found */
    buf_release(&table);
    return rc;
}

static int take_room(const maker *m, err *e) {
    struct statvfs v;
    struct stat st;
    uint64_t reserve = m->h.file_bytes > RESERVE_BYTES ? RESERVE_BYTES : 0;
    if (fstatvfs(m->fd, &v) == 0 && fstat(m->fd, &st) == 0) {
        uint64_t has = (uint64_t)st.st_blocks * 512, room = (uint64_t)v.f_bavail * v.f_frsize;
        uint64_t need = has < m->h.file_bytes ? m->h.file_bytes - has : 0;
        if (need > 0 && need + reserve > room)
            return err_set(e, ERR_FULL,
                "%s needs %.2f GB (%.2f GiB) more and %.1f GB are kept in reserve; the disk has "
                "%.2f GB free. Free the difference, then run `tandem prepare` again",
                m->path, (double)need / 1e9, (double)need / 1073741824.0, (double)reserve / 1e9,
                (double)room / 1e9);
    }
    if (fallocate(m->fd, 0, 0, (off_t)m->h.file_bytes) == 0) return OK;
    if (errno == ENOSPC || errno == EDQUOT) return err_errno(e, "making room for %s", m->path);
    if (ftruncate(m->fd, (off_t)m->h.file_bytes) != 0) return err_errno(e, "sizing %s", m->path);
    return OK;
}

static int finish_file(maker *m, err *e) {
    buf dir = BUF_INIT;
    pack_root(&m->h, m->blocks, m->h.root);
    m->h.is_complete = 1;
    int rc = fsync(m->fd) == 0 ? OK : err_errno(e, "writing %s", m->path);
    if (rc == OK) rc = write_header(m, e);
    if (rc == OK && fsync(m->fd) != 0) rc = err_errno(e, "writing %s", m->path);
    if (rc == OK && rename(m->path, m->o->path) != 0) rc = err_errno(e, "renaming %s", m->path);
    path_dir(&dir, m->o->path);
    if (rc == OK) rc = dir_sync(buf_cstr(&dir), e);
    buf_release(&dir);
    return rc;
}

static int make_part(maker *m, err *e) {
    m->fd = open(m->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (m->fd < 0) return err_errno(e, "creating %s", m->path);
    int rc = OK;
    if (flock(m->fd, LOCK_EX | LOCK_NB) != 0)
        rc = err_set(e, ERR_BUSY, "another program is making %s", m->path);
    if (rc == OK && !resume(m)) rc = start_file(m, e);
    if (rc == OK) rc = take_room(m, e);
    if (rc == OK) rc = tell(m, true);
    if (rc == OK) rc = make_blocks(m, e);
    if (rc == OK) rc = finish_file(m, e);
    close(m->fd);
    return rc;
}

/* ---- checking ---- */

static int on_verify(void *ctx, const pack_progress *p) {
    maker *m = ctx;
    m->p->done_bytes = p->done_bytes;
    return m->o->progress != NULL ? m->o->progress(m->o->ctx, m->p) : OK;
}

static int make_damaged(maker *m, const pack *p, const uint8_t *damaged, err *e) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < m->h.n_blocks; i++) {
        m->is_done[i] = !damaged[i];
        n += damaged[i];
    }
    memcpy(m->blocks, p->blocks, (size_t)m->h.n_blocks * sizeof *m->blocks);
    m->path = m->o->path;
    m->fd = -1;
    m->is_mending = true;
    atomic_store(&m->written, 0);
    m->p->phase = PACK_WRITING;
    m->p->had_bytes = 0;
    m->p->total_bytes = n * m->h.block_bytes;
    int rc = make_blocks(m, e);
    if (rc == OK) m->p->n_mended += n;
    return rc;
}

/* Reads the finished file back; blocks that are wrong are made once more. */
static int check_file(maker *m, bool may_mend, err *e) {
    pack *p = NULL;
    pack_load_options o = {.tick = on_verify, .tick_ctx = m};
    int rc = pack_open(m->o->path, &p, e);
    if (rc != OK) return rc;
    m->p->phase = PACK_VERIFYING;
    m->p->done_bytes = 0;
    m->p->total_bytes = m->h.data_bytes;
    uint8_t *damaged = mem_alloc((size_t)m->h.n_blocks);
    rc = pack_verify(p, &o, damaged, e);
    bool is_damaged = rc == ERR_FORMAT;
    if (is_damaged && may_mend) rc = make_damaged(m, p, damaged, e);
    mem_free(damaged);
    pack_close(p);
    return is_damaged && may_mend && rc == OK ? check_file(m, false, e) : rc;
}

/* The finished file is there and is this pack. */
static bool is_finished(const maker *m) {
    pack *p = NULL;
    bool is = pack_open(m->o->path, &p, NULL) == OK && is_same_pack(&p->h, &m->h);
    pack_close(p);
    return is;
}

int pack_make(const pack_list *l, const pack_source *s, const pack_make_options *o,
    pack_make_progress *p, err *e) {
    maker m = {.l = l, .s = s, .o = o, .p = p, .fd = -1};
    buf part = BUF_INIT, dir = BUF_INIT;
    *p = (pack_make_progress){0};
    if (pack_list_count(l) == 0) return err_set(e, ERR_ARG, "a pack of nothing");
    pack_header_init(&m.h, l, o);
    int rc = pack_header_check(&m.h, o->path, e);
    if (rc != OK) return rc;
    m.blocks = mem_array((size_t)m.h.n_blocks, sizeof *m.blocks);
    m.is_done = mem_alloc((size_t)m.h.n_blocks);
    pthread_mutex_init(&m.lock, NULL);
    p->total_bytes = p->data_bytes = m.h.data_bytes;
    p->n_blocks = m.h.n_blocks;
    p->is_kept = is_finished(&m);
    path_dir(&dir, o->path);
    buf_printf(&part, "%s.part", o->path);
    m.path = buf_cstr(&part);
    if (!p->is_kept) {
        rc = dir_make_all(buf_cstr(&dir), 0755, e);
        if (rc == OK) rc = make_part(&m, e);
    }
    if (rc == OK && (!p->is_kept || o->checks)) rc = check_file(&m, true, e);
    if (rc == OK) {
        p->phase = PACK_DONE;
        p->done_bytes = p->total_bytes;
        rc = tell(&m, true);
    }
    pthread_mutex_destroy(&m.lock);
    mem_free(m.blocks);
    mem_free(m.is_done);
    buf_release(&part);
    buf_release(&dir);
    return rc;
}
