/* Reading the data of a rank pack: several threads, direct reads, one block at a time each. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/thread.h"
#include "engine/weights/pack_internal.h"

enum { MAX_READERS = 64, DEFAULT_READERS = 8, TICK_MS = 100 };
#define DEFAULT_PIECE ((size_t)4 << 20)

/* What a reader hands to the caller's thread. */
typedef struct piece {
    uint64_t offset;
    size_t len;
    uint8_t *data;
} piece;

typedef struct reading {
    const pack *p;
    const pack_load_options *o;
    int fd;
    bool is_direct, has_sha;
    size_t piece_bytes;
    uint8_t *own; /* buffers made here */
    piece *pieces;
    queue *empty, *full; /* of pieces, with take */
    uint8_t *damaged;    /* [n_blocks] or NULL */
    atomic_ullong next, done;
    atomic_bool stop;
    atomic_int n_running;
    pthread_mutex_t lock;
    int rc; /* first failure, under the lock */
    err error;
} reading;

typedef struct reader {
    reading *r;
    uint8_t *buffer; /* without area and take */
    pthread_t thread;
} reader;

static void fail(reading *r, int rc, const err *e) {
    pthread_mutex_lock(&r->lock);
    if (r->rc == OK) {
        r->rc = rc;
        r->error = *e;
    }
    pthread_mutex_unlock(&r->lock);
    atomic_store(&r->stop, true);
}

static int first_failure(reading *r, err *e) {
    pthread_mutex_lock(&r->lock);
    int rc = r->rc;
    if (rc != OK && e != NULL) *e = r->error;
    pthread_mutex_unlock(&r->lock);
    return rc;
}

/* Where the next bytes go; NULL: the reading is over. */
static uint8_t *place_for(reader *me, uint64_t offset, piece **out) {
    reading *r = me->r;
    *out = NULL;
    if (r->o->area != NULL) return (uint8_t *)r->o->area + offset;
    if (r->o->take == NULL) return me->buffer;
    void *item = NULL;
    while (!atomic_load(&r->stop)) {
        int rc = queue_pop(r->empty, &item, TICK_MS);
        if (rc == ERR_TIMEOUT) continue;
        *out = rc == OK ? item : NULL;
        return rc == OK ? (*out)->data : NULL;
    }
    return NULL;
}

static int read_piece(reading *r, uint8_t *to, size_t n, uint64_t offset, err *e) {
    uint64_t at = r->p->h.data_offset + offset;
    int rc = fd_read_at(r->fd, to, n, at, e);
    if (rc != OK) return err_add(e, rc, "reading %s", r->p->path);
    if (!r->is_direct) (void)posix_fadvise(r->fd, (off_t)at, (off_t)n, POSIX_FADV_DONTNEED);
    return OK;
}

static void block_is_wrong(reading *r, uint64_t block) {
    err e = ERR_INIT;
    int rc = pack_damaged(r->p, block, "is damaged", &e);
    if (r->damaged == NULL) {
        fail(r, rc, &e);
        return;
    }
    r->damaged[block] = 1;
    pthread_mutex_lock(&r->lock);
    if (r->rc == OK) {
        r->rc = rc;
        r->error = e;
    }
    pthread_mutex_unlock(&r->lock);
}

static bool is_block_good(const reading *r, uint64_t block, uint32_t crc, sha256 *sum) {
    const pack_block *b = &r->p->blocks[block];
    uint8_t digest[32];
    if (sum == NULL) return crc == b->crc;
    sha256_finish(sum, digest);
    return crc == b->crc && sha256_equal(digest, b->sha);
}

static void read_block(reader *me, uint64_t block, sha256 *sum) {
    reading *r = me->r;
    uint64_t from = block * r->p->h.block_bytes, len = pack_block_len(&r->p->h, block);
    uint32_t crc = 0;
    err e = ERR_INIT;
    for (uint64_t at = 0; at < len && !atomic_load(&r->stop);) {
        size_t n = len - at < r->piece_bytes ? (size_t)(len - at) : r->piece_bytes;
        piece *out = NULL;
        uint8_t *to = place_for(me, from + at, &out);
        if (to == NULL) return;
        int rc = read_piece(r, to, n, from + at, &e);
        if (rc != OK) {
            fail(r, rc, &e);
            return;
        }
        crc = crc32c(crc, to, n);
        if (sum != NULL) sha256_update(sum, to, n);
        at += n;
        if (out != NULL) {
            out->offset = from + at - n;
            out->len = n;
            (void)queue_push(r->full, out, -1);
        }
        atomic_fetch_add(&r->done, n);
    }
    if (!atomic_load(&r->stop) && !is_block_good(r, block, crc, sum)) block_is_wrong(r, block);
}

static void *run_reader(void *ctx) {
    reader *me = ctx;
    reading *r = me->r;
    sha256 *sum = r->has_sha ? sha256_new() : NULL;
    thread_set_name("pack reader");
    while (!atomic_load(&r->stop)) {
        uint64_t block = atomic_fetch_add(&r->next, 1);
        if (block >= r->p->h.n_blocks) break;
        read_block(me, block, sum);
    }
    sha256_free(sum);
    atomic_fetch_sub(&r->n_running, 1);
    return NULL;
}

static int tell(reading *r, uint64_t *told_ms) {
    uint64_t now = clock_mono_ms();
    if (r->o->tick == NULL || now - *told_ms < TICK_MS) return OK;
    *told_ms = now;
    pack_progress p = {atomic_load(&r->done), r->p->h.data_bytes};
    return r->o->tick(r->o->tick_ctx, &p);
}

/* The caller's thread while the readers work: takes pieces and tells how far it is. */
static void attend(reading *r) {
    uint64_t told_ms = clock_mono_ms();
    err e = ERR_INIT;
    bool is_over = false;
    while (!is_over) {
        void *item = NULL;
        is_over = atomic_load(&r->n_running) == 0; /* asked before the queue: nothing is missed */
        int rc = OK;
        if (r->full == NULL) {
            if (!is_over) sleep_ms(2);
        } else if (queue_pop(r->full, &item, is_over ? 0 : 10) == OK) {
            piece *x = item;
            is_over = false;
            if (!atomic_load(&r->stop)) rc = r->o->take(r->o->ctx, x->offset, x->data, x->len, &e);
            (void)queue_push(r->empty, x, -1);
        }
        if (rc == OK) rc = tell(r, &told_ms);
        if (rc != OK) fail(r, rc, &e);
    }
}

static int make_pieces(reading *r, int n_readers, err *e) {
    size_t n = (size_t)n_readers + (r->o->take != NULL ? 2 : 0);
    uint8_t *base = r->o->take != NULL ? r->o->staging : NULL;
    if (base != NULL) {
        size_t fits = r->o->staging_bytes / n / PACK_PAGE * PACK_PAGE;
        if (fits == 0 || (uintptr_t)base % PACK_PAGE != 0)
            return err_set(e, ERR_ARG,
                "%zu bytes of staging memory are too few for %zu pieces, or "
                "not aligned",
                r->o->staging_bytes, n);
        r->piece_bytes = fits < r->piece_bytes ? fits : r->piece_bytes;
    } else {
        base = r->own = mem_aligned(PACK_PAGE, n * r->piece_bytes);
        if (base == NULL) return err_set(e, ERR_MEMORY, "no memory to read %s", r->p->path);
    }
    r->pieces = mem_array(n, sizeof *r->pieces);
    for (size_t i = 0; i < n; i++) {
        r->pieces[i].data = base + i * r->piece_bytes;
    }
    if (r->o->take == NULL) return OK;
    r->empty = queue_new(n);
    r->full = queue_new(n);
    for (size_t i = 0; i < n; i++) {
        (void)queue_push(r->empty, &r->pieces[i], -1);
    }
    return OK;
}

static int run_readers(reading *r, int n_readers, err *e) {
    reader readers[MAX_READERS];
    int n = 0;
    for (; n < n_readers; n++) {
        readers[n] = (reader){.r = r, .buffer = r->pieces != NULL ? r->pieces[n].data : NULL};
        atomic_fetch_add(&r->n_running, 1);
        if (pthread_create(&readers[n].thread, NULL, run_reader, &readers[n]) != 0) {
            atomic_fetch_sub(&r->n_running, 1);
            break;
        }
    }
    if (n == 0) return err_set(e, ERR_MEMORY, "no thread could be started to read the pack");
    attend(r);
    for (int i = 0; i < n; i++) {
        pthread_join(readers[i].thread, NULL);
    }
    return first_failure(r, e);
}

static int read_all(reading *r, err *e) {
    const pack_load_options *o = r->o;
    int n = o->n_readers > 0 ? o->n_readers : thread_cpu_count();
    if (o->n_readers <= 0 && n > DEFAULT_READERS) n = DEFAULT_READERS;
    n = n > MAX_READERS ? MAX_READERS : n;
    if ((uint64_t)n > r->p->h.n_blocks) n = (int)r->p->h.n_blocks;
    r->piece_bytes = o->piece_bytes > 0 ? o->piece_bytes / PACK_PAGE * PACK_PAGE : DEFAULT_PIECE;
    if (r->piece_bytes == 0) r->piece_bytes = PACK_PAGE;
    if (o->area != NULL && (uintptr_t)o->area % PACK_PAGE != 0)
        return err_set(e, ERR_ARG, "the memory for a pack must be aligned to %d", PACK_PAGE);
    r->fd = pack_open_direct(r->p->path, O_RDONLY, &r->is_direct, e);
    if (r->fd < 0) return r->fd;
    pthread_mutex_init(&r->lock, NULL);
    int rc = o->area != NULL ? OK : make_pieces(r, n, e);
    if (rc == OK) rc = run_readers(r, n, e);
    queue_free(r->empty);
    queue_free(r->full);
    mem_free(r->pieces);
    mem_aligned_free(r->own);
    pthread_mutex_destroy(&r->lock);
    close(r->fd);
    return rc;
}

int pack_load(const pack *p, const pack_load_options *o, err *e) {
    reading r = {.p = p, .o = o};
    if (o->area == NULL && o->take == NULL)
        return err_set(e, ERR_ARG, "a pack is loaded into an area or to a taker");
    return read_all(&r, e);
}

int pack_verify(const pack *p, const pack_load_options *o, uint8_t *damaged, err *e) {
    pack_load_options quiet = o != NULL ? *o : (pack_load_options){0};
    quiet.area = NULL;
    quiet.take = NULL;
    reading r = {.p = p, .o = &quiet, .has_sha = true, .damaged = damaged};
    if (damaged != NULL) memset(damaged, 0, (size_t)p->h.n_blocks);
    return read_all(&r, e);
}
