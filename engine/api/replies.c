#include "engine/api/replies.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "engine/api/api_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

#define REPLIES_MAX 64
#define TEXT_MAX_BYTES ((size_t)32 << 20)
#define KEPT_MS (10u * 60u * 1000u)
/* A reader looks so often whether its client has gone. */
#define LOOK_MS 200
#define SEND_BLOCK_BYTES ((size_t)64 << 10)

typedef struct reply {
    replies *owner;
    char id[64];
    const char *type;
    http_producer producer;
    http_request request; /* stands for a client that never goes */
    pthread_t thread;
    /* Under the owner's lock from here. */
    buf text;
    bool is_done, is_broken;
    uint64_t ended_ms;
    int n_readers;
} reply;

struct replies {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    reply *list[REPLIES_MAX];
};

replies *replies_new(void) {
    replies *r = mem_alloc(sizeof *r);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, &attr);
    pthread_condattr_destroy(&attr);
    return r;
}

static void reply_free(reply *x) {
    pthread_join(x->thread, NULL);
    buf_release(&x->text);
    mem_free(x);
}

void replies_free(replies *r) {
    if (r == NULL) return;
    for (int i = 0; i < REPLIES_MAX; i++) {
        if (r->list[i] != NULL) reply_free(r->list[i]);
    }
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

/* Takes out one that is over: past its time, or with must_go the one that ended first. The caller
 * frees it outside of the lock. */
static reply *take_old_locked(replies *r, bool must_go) {
    int oldest = -1;
    for (int i = 0; i < REPLIES_MAX; i++) {
        const reply *x = r->list[i];
        if (x == NULL || !x->is_done || x->n_readers > 0) continue;
        if (oldest < 0 || x->ended_ms < r->list[oldest]->ended_ms) oldest = i;
    }
    if (oldest < 0) return NULL;
    reply *x = r->list[oldest];
    if (!must_go && clock_mono_ms() - x->ended_ms < KEPT_MS) return NULL;
    r->list[oldest] = NULL;
    return x;
}

static int find_place_locked(const replies *r) {
    for (int i = 0; i < REPLIES_MAX; i++) {
        if (r->list[i] == NULL) return i;
    }
    return -1;
}

static void forget_old(replies *r) {
    for (;;) {
        pthread_mutex_lock(&r->lock);
        reply *x = take_old_locked(r, find_place_locked(r) < 0);
        pthread_mutex_unlock(&r->lock);
        if (x == NULL) return;
        reply_free(x);
    }
}

static void *make_text(void *ctx) {
    reply *x = ctx;
    replies *r = x->owner;
    int rc = HTTP_MORE;
    while (rc == HTTP_MORE) {
        buf out = BUF_INIT;
        rc = x->producer.fill(x->producer.ctx, &x->request, &out);
        pthread_mutex_lock(&r->lock);
        if (buf_append(&x->text, buf_cstr(&out), out.len) != OK) rc = HTTP_BROKEN;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
        buf_release(&out);
    }
    x->producer.release(x->producer.ctx);
    pthread_mutex_lock(&r->lock);
    x->is_broken = rc == HTTP_BROKEN;
    x->is_done = true;
    x->ended_ms = clock_mono_ms();
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int replies_begin(replies *r, const http_request *q, const reply_start *s) {
    forget_old(r);
    reply *x = mem_alloc(sizeof *x);
    x->owner = r;
    x->type = s->type;
    x->producer = s->producer;
    x->text = (buf)BUF_MAX(TEXT_MAX_BYTES);
    str_copy(x->id, sizeof x->id, s->id);
    x->request = (http_request){.api = q->api, .fd = -1, .has_probed = true, .shape = q->shape};
    str_copy(x->request.id, sizeof x->request.id, q->id);
    pthread_mutex_lock(&r->lock);
    int i = find_place_locked(r);
    bool is_started = i >= 0 && pthread_create(&x->thread, NULL, make_text, x) == 0;
    if (is_started) r->list[i] = x;
    pthread_mutex_unlock(&r->lock);
    if (is_started) return OK;
    mem_free(x);
    return ERR_FULL;
}

/* ---- readers ---- */

typedef struct reader {
    reply *reply; /* counted */
    size_t at;
} reader;

static void wait_locked(replies *r) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&r->changed, &r->lock, &until);
}

static int read_text(void *ctx, http_request *q, buf *out) {
    reader *d = ctx;
    reply *x = d->reply;
    replies *r = x->owner;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        if (d->at >= x->text.len && !x->is_done) wait_locked(r);
        size_t n = d->at < x->text.len ? x->text.len - d->at : 0;
        if (n > SEND_BLOCK_BYTES) n = SEND_BLOCK_BYTES;
        if (n > 0) buf_append(out, x->text.data + d->at, n);
        d->at += n;
        bool is_last = x->is_done && d->at >= x->text.len;
        bool is_broken = x->is_broken;
        if (is_last) {
            q->finish = x->request.finish;
            q->n_prompt = x->request.n_prompt;
            q->n_cached = x->request.n_cached;
            q->n_completion = x->request.n_completion;
        }
        pthread_mutex_unlock(&r->lock);
        if (is_last) return is_broken ? HTTP_BROKEN : HTTP_LAST;
        if (n > 0) return HTTP_MORE;
        int rc = http_wait(q, NULL, 0, 0, true);
        if (rc == HTTP_GONE) return HTTP_BROKEN;
        if (rc != HTTP_HALF_CLOSED) continue;
        buf_puts(out, ": still here?\n\n"); /* a client that has closed answers with a reset */
        return HTTP_MORE;
    }
}

static void release_reader(void *ctx) {
    reader *d = ctx;
    replies *r = d->reply->owner;
    pthread_mutex_lock(&r->lock);
    d->reply->n_readers--;
    pthread_mutex_unlock(&r->lock);
    mem_free(d);
}

static reply *hold(replies *r, const char *id) {
    reply *found = NULL;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < REPLIES_MAX && found == NULL; i++) {
        if (r->list[i] != NULL && strcmp(r->list[i]->id, id) == 0) found = r->list[i];
    }
    if (found != NULL) found->n_readers++;
    pthread_mutex_unlock(&r->lock);
    return found;
}

void replies_send(replies *r, http_request *q, const char *id, uint64_t from) {
    api_error e;
    forget_old(r);
    reply *x = hold(r, id);
    if (x == NULL) {
        api_set(&e, 404, "invalid_request_error", NULL, "no reply of this id is kept");
        http_fail(q, &e);
        return;
    }
    reader *d = mem_alloc(sizeof *d);
    d->reply = x;
    d->at = from < SIZE_MAX ? (size_t)from : SIZE_MAX;
    http_stream(
        q, x->type, (http_producer){.fill = read_text, .release = release_reader, .ctx = d});
}
