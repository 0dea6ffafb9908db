/* The other ranks' side: calls come in and are made here. */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/dist/peer_io.h"
#include "engine/run/control.h"
#include "engine/run/control_wire.h"

enum { FOLLOW_SPINS = 2000, FOLLOW_PAYLOAD_MS = 10000 };

typedef struct follower {
    const control_follow_options *o;
    int stop_fd;
    uint64_t hash, n_calls;
    uint8_t *payload;
    size_t payload_cap;
    int32_t *tokens;
    plan_span spans[RUN_MAX_SLOTS];
    draft_request drafts[RUN_MAX_SLOTS];
} follower;

/* Waits until a call comes, spinning a little first: calls follow each other closely. */
static int await_call(follower *f, err *e) {
    struct pollfd p[2] = {{.fd = f->o->fd, .events = POLLIN}, {.fd = f->stop_fd, .events = POLLIN}};
    for (int i = 0; i < FOLLOW_SPINS; i++) {
        if (i % 64 == 0 && poll(p, 1, 0) > 0) return OK;
        thread_relax();
    }
    for (;;) {
        int n = poll(p, 2, -1);
        if (n < 0 && errno != EINTR) return err_errno(e, "waiting for rank 0");
        if (n <= 0) continue;
        if (p[0].revents != 0) return OK;
        f->stop_fd = -1;
        p[1].fd = -1;
        if (f->o->on_stop != NULL) f->o->on_stop(f->o->ctx);
    }
}

static int malformed(const call_head *h, err *e) {
    return err_set(e, ERR_MISMATCH, "call %llu of kind %u from rank 0 is malformed",
        (unsigned long long)h->number, h->kind);
}

static int take_call(follower *f, call_head *h, err *e) {
    int rc = await_call(f, e);
    uint64_t deadline = clock_mono_ms() + FOLLOW_PAYLOAD_MS;
    if (rc == OK) rc = peer_receive(f->o->fd, h, sizeof *h, deadline, e);
    if (rc == ERR_PEER) return err_set(e, ERR_PEER, "rank 0 is gone: its process ended");
    if (rc != OK) return rc;
    if (h->magic != CALL_MAGIC || h->number != ++f->n_calls || h->n_bytes > f->payload_cap) {
        return malformed(h, e);
    }
    rc = peer_receive(f->o->fd, f->payload, (size_t)h->n_bytes, deadline, e);
    if (rc != OK) return err_add(e, rc, "reading call %llu", (unsigned long long)h->number);
    size_t first = (size_t)h->n_bytes;
    if (h->kind != CALL_STEP && h->kind != CALL_DRAFT) {
        if (first < CALL_NUMBERS_BYTES) return malformed(h, e);
        first = CALL_NUMBERS_BYTES;
    }
    f->hash = call_hash(f->hash, h, sizeof *h);
    f->hash = call_hash(f->hash, f->payload, first);
    if (h->n_bytes > first) {
        f->hash = call_hash(f->hash, f->payload + first, (size_t)h->n_bytes - first);
    }
    return OK;
}

/* ---- making the calls ---- */

static int agree(follower *f, err *e) {
    return exchange_check(f->o->exchange, f->hash, "the stream of calls", e);
}

/* The result goes into the hash; what rank 0 does not see ends this rank. */
static int settle(follower *f, int rc) {
    f->hash = call_hash(f->hash, &rc, sizeof rc);
    return rc == ERR_ARG || rc == ERR_FULL ? OK : rc;
}

/* What the source may rely on whoever sent the plan; the rest it checks itself. */
static bool is_plan_sane(const source_info *info, const batch_plan *plan) {
    int64_t n_logits = 0;
    for (int32_t i = 0; i < plan->n_spans; i++) {
        const plan_span *s = &plan->spans[i];
        if (s->slot < 0 || s->slot >= info->n_slots || s->pos < 0) return false;
        if (s->pos > info->max_context - s->n_rows) return false;
        n_logits += s->logits == PLAN_LOGITS_ALL ? s->n_rows : s->logits == PLAN_LOGITS_LAST;
    }
    return n_logits <= info->max_logit_rows;
}

static int make_step(follower *f, const call_head *h, err *e) {
    const run_source *s = f->o->source;
    call_reader r = {f->payload, f->payload + h->n_bytes, true};
    batch_plan plan;
    step_result result;
    if (!call_plan_read(&r, &plan, f->spans, f->tokens, s->info.max_rows) ||
        !is_plan_sane(&s->info, &plan)) {
        return malformed(h, e);
    }
    int rc = agree(f, e);
    if (rc != OK) return rc;
    uint64_t start = clock_mono_ns(), used = 0, used_after = 0, n = 0;
    exchange_usage(f->o->exchange, &used, &n);
    rc = settle(f, s->step(s->self, &plan, &result, e));
    exchange_usage(f->o->exchange, &used_after, &n);
    if (f->o->on_step != NULL) {
        f->o->on_step(f->o->ctx, clock_mono_ns() - start, used_after - used);
    }
    return rc;
}

static int make_draft(follower *f, const call_head *h, err *e) {
    const run_source *s = f->o->source;
    call_reader r = {f->payload, f->payload + h->n_bytes, true};
    draft_result result;
    int32_t n = call_read_i32(&r);
    if (n < 1 || n > RUN_MAX_SLOTS) return malformed(h, e);
    for (int32_t i = 0; i < n; i++) {
        f->drafts[i].slot = call_read_i32(&r);
        f->drafts[i].token = call_read_i32(&r);
        call_read(&r, &f->drafts[i].temperature, sizeof f->drafts[i].temperature);
        call_read(&r, &f->drafts[i].seed, sizeof f->drafts[i].seed);
        if (f->drafts[i].slot < 0 || f->drafts[i].slot >= s->info.n_slots) r.is_good = false;
        if (f->drafts[i].token < 0 || f->drafts[i].token >= s->info.n_vocab) r.is_good = false;
    }
    if (!r.is_good || r.at != r.end) return malformed(h, e);
    int rc = agree(f, e);
    return rc == OK ? settle(f, s->draft(s->self, f->drafts, n, &result, e)) : rc;
}

static int make_pages(follower *f, const call_head *h, const int64_t numbers[2], err *e) {
    const run_source *s = f->o->source;
    size_t n = ((size_t)h->n_bytes - CALL_NUMBERS_BYTES) / sizeof(int32_t);
    bool is_good = (uint64_t)numbers[1] == n && n <= (size_t)s->info.n_pages;
    memmove(f->payload, f->payload + CALL_NUMBERS_BYTES, n * sizeof(int32_t));
    const int32_t *pages = (const int32_t *)(const void *)f->payload;
    for (size_t i = 0; i < n && is_good; i++) {
        is_good = pages[i] >= 0 && pages[i] < s->info.n_pages;
    }
    if (!is_good) return malformed(h, e);
    return settle(f, s->slot_pages(s->self, (int)numbers[0], pages, (int)n, e));
}

static int make_prefetch(follower *f, const call_head *h, const int64_t numbers[2], err *e) {
    const run_source *s = f->o->source;
    size_t n = ((size_t)h->n_bytes - CALL_NUMBERS_BYTES) / sizeof(int32_t);
    bool is_good = n <= (size_t)s->info.max_rows && numbers[1] >= 1 &&
                   (uint64_t)(numbers[0] + numbers[1]) == n && s->prefetch != NULL;
    if (!is_good) return malformed(h, e);
    memcpy(f->tokens, f->payload + CALL_NUMBERS_BYTES, n * sizeof(int32_t));
    s->prefetch(s->self, f->tokens, (int32_t)numbers[0], (int32_t)numbers[1]);
    return OK;
}

/* What rank 0 reads is read here, too, and goes into the comparison. */
static int compare_read(follower *f, int rc, const void *data, size_t n, err *e) {
    bool has_read = rc == OK;
    rc = settle(f, rc);
    if (!has_read) return rc;
    f->hash = call_hash(f->hash, data, n);
    return agree(f, e);
}

static int make_read(follower *f, const call_head *h, const int64_t numbers[2], err *e) {
    const run_source *s = f->o->source;
    int i = (int)numbers[0];
    if (h->n_bytes != CALL_NUMBERS_BYTES) return malformed(h, e);
    if (h->kind == CALL_SAVE && i < s->info.n_slots && s->slot_save != NULL) {
        int rc = agree(f, e);
        if (rc != OK) return rc;
        rc = s->slot_save(s->self, i, numbers[1], f->payload, e);
        return compare_read(f, rc, f->payload, s->info.snapshot_bytes, e);
    }
    if (h->kind == CALL_PAGE_READ && i < s->info.n_pages && s->page_read != NULL) {
        int rc = s->page_read(s->self, i, f->payload, e);
        return compare_read(f, rc, f->payload, s->info.page_bytes, e);
    }
    if (h->kind == CALL_DIGEST && s->state_hash != NULL) {
        uint64_t hash = 0;
        int rc = s->state_hash(s->self, &hash, e);
        return compare_read(f, rc, &hash, sizeof hash, e);
    }
    return malformed(h, e);
}

/* The calls that begin with two numbers. */
static int make_small(follower *f, const call_head *h, err *e) {
    const run_source *s = f->o->source;
    const uint8_t *bytes = f->payload + CALL_NUMBERS_BYTES;
    size_t n_bytes = (size_t)h->n_bytes - CALL_NUMBERS_BYTES;
    int64_t v[2];
    memcpy(v, f->payload, sizeof v);
    if (v[0] < 0 || v[0] > INT32_MAX || v[1] < 0 || v[1] > INT64_MAX / 2) return malformed(h, e);
    int a = (int)v[0];
    bool has_slot = a < s->info.n_slots, has_page = a < s->info.n_pages;
    if (h->kind == CALL_SAVE || h->kind == CALL_PAGE_READ || h->kind == CALL_DIGEST) {
        return make_read(f, h, v, e);
    }
    if (h->kind == CALL_PREFETCH) return make_prefetch(f, h, v, e);
    if (h->kind == CALL_COMMIT && has_slot) return settle(f, s->commit(s->self, a, v[1], e));
    if (h->kind == CALL_PAGES && has_slot) return make_pages(f, h, v, e);
    if (h->kind == CALL_RESET && has_slot) {
        s->slot_reset(s->self, a);
        return OK;
    }
    if (h->kind == CALL_COPY && has_slot && v[1] < s->info.n_slots && s->slot_copy != NULL) {
        return settle(f, s->slot_copy(s->self, a, (int)v[1], e));
    }
    if (h->kind == CALL_LOAD && has_slot && n_bytes == s->info.snapshot_bytes &&
        s->slot_load != NULL) {
        int rc = settle(f, s->slot_load(s->self, a, bytes, e));
        return rc == ERR_MISMATCH ? OK : rc; /* a foreign blob: refused on every rank */
    }
    if (h->kind == CALL_PAGE_COPY && has_page && v[1] < s->info.n_pages && s->page_copy != NULL) {
        return settle(f, s->page_copy(s->self, a, (int)v[1], e));
    }
    if (h->kind == CALL_PAGE_WRITE && has_page && n_bytes == s->info.page_bytes &&
        s->page_write != NULL) {
        return settle(f, s->page_write(s->self, a, bytes, e));
    }
    return malformed(h, e);
}

static int make_call(follower *f, const call_head *h, err *e) {
    if (h->kind == CALL_STEP) return make_step(f, h, e);
    return h->kind == CALL_DRAFT ? make_draft(f, h, e) : make_small(f, h, e);
}

static size_t payload_room(const source_info *info) {
    size_t plan = ((size_t)info->max_rows + (size_t)info->n_slots * 8 + 8) * sizeof(int32_t);
    size_t blob = info->snapshot_bytes > info->page_bytes ? info->snapshot_bytes : info->page_bytes;
    size_t pages = (size_t)info->n_pages * sizeof(int32_t);
    size_t most = plan > blob ? plan : blob;
    return (most > pages ? most : pages) + 64;
}

int control_follow(const control_follow_options *o, err *e) {
    follower *f = mem_alloc(sizeof *f);
    err local = ERR_INIT;
    call_head h = {0};
    f->o = o;
    f->stop_fd = o->stop_fd;
    f->payload_cap = payload_room(&o->source->info);
    f->payload = mem_try_alloc(f->payload_cap);
    f->tokens = mem_array((size_t)o->source->info.max_rows, sizeof *f->tokens);
    int rc = f->payload == NULL ? err_set(&local, ERR_MEMORY, "no memory for rank 0's calls") : OK;
    while (rc == OK) {
        rc = take_call(f, &h, &local);
        if (rc != OK || h.kind == CALL_END) break;
        rc = make_call(f, &h, &local);
    }
    mem_free(f->tokens);
    mem_free(f->payload);
    mem_free(f);
    if (rc != OK && e != NULL) *e = local;
    return rc;
}

int control_take_settings(int fd, int stop_fd, control_settings *out, err *e) {
    struct {
        call_head head;
        control_settings settings;
    } message;
    struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
    while (poll(p, 2, FOLLOW_PAYLOAD_MS) < 0 && errno == EINTR) {
    }
    if (p[1].revents != 0) return err_set(e, ERR_CANCELLED, "stopped before rank 0 was there");
    int rc = peer_receive(fd, &message, sizeof message, clock_mono_ms() + FOLLOW_PAYLOAD_MS, e);
    if (rc == OK && (message.head.magic != CALL_MAGIC || message.head.kind != CALL_SETTINGS)) {
        rc = malformed(&message.head, e);
    }
    *out = message.settings;
    return err_add(e, rc, "taking rank 0's settings");
}
