/* Rank 0's side: calls go out, then are made here. */
#include "engine/run/control.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/dist/peer_io.h"
#include "engine/run/control_wire.h"
#include "engine/run/step_times.h"

enum { CONTROL_GATHER_BYTES = 1 << 16, CONTROL_COPY_BYTES = 1 << 13, CONTROL_DEFAULT_MS = 10000 };

struct control {
    const run_source *inner;
    exchange *x;
    int fd[EXCHANGE_MAX_WORLD];
    int n_fds, timeout_ms;
    int check_every, n_unchecked; /* steps */
    uint64_t hash, n_calls;
    /* Calls that wait for the next one that must arrive. */
    uint8_t *out;
    size_t n_out, out_cap;
    step_times exchanges; /* of each step */
    int rc;               /* first failure; every later call gives it again */
    err broken;
};

/* ---- sending ---- */

static int break_off(control *c, int rc, err *e) {
    if (c->rc == OK) {
        c->rc = rc;
        c->broken = *e;
    }
    return rc;
}

static int give_broken(const control *c, err *e) {
    if (e != NULL) *e = c->broken;
    return c->rc;
}

static int send_all(control *c, const void *data, size_t n, err *e) {
    err local = ERR_INIT;
    for (int i = 0; i < c->n_fds; i++) {
        uint64_t deadline = clock_mono_ms() + (uint64_t)c->timeout_ms;
        int rc = peer_send(c->fd[i], data, n, deadline, &local);
        if (rc == OK) continue;
        err_set(&local, ERR_PEER, "rank %d does not take calls: %s", i + 1,
            rc == ERR_TIMEOUT ? "it stands still" : "it is gone");
        if (e != NULL) *e = local;
        return break_off(c, ERR_PEER, &local);
    }
    return OK;
}

static int flush(control *c, err *e) {
    size_t n = c->n_out;
    c->n_out = 0;
    return c->rc != OK ? give_broken(c, e) : n == 0 ? OK : send_all(c, c->out, n, e);
}

/* Room for a call of n payload bytes behind its head. */
static uint8_t *begin_call(control *c, uint32_t kind, size_t n, err *e) {
    size_t need = sizeof(call_head) + n;
    if (c->rc != OK) {
        (void)give_broken(c, e);
        return NULL;
    }
    if (c->n_out + need > c->out_cap && flush(c, e) != OK) return NULL;
    CHECK(need <= c->out_cap);
    call_head head = {CALL_MAGIC, kind, n, ++c->n_calls};
    memcpy(c->out + c->n_out, &head, sizeof head);
    return c->out + c->n_out + sizeof head;
}

static void end_call(control *c, size_t n) {
    const uint8_t *head = c->out + c->n_out;
    c->hash = call_hash(c->hash, head, sizeof(call_head));
    c->hash = call_hash(c->hash, head + sizeof(call_head), n);
    c->n_out += sizeof(call_head) + n;
}

/* A call whose payload is a few numbers and then, perhaps, bytes: few are copied and wait with the
 * call, many go out from where they lie. */
static int call_with(
    control *c, uint32_t kind, const int64_t numbers[2], const void *blob, size_t n_blob, err *e) {
    size_t n = CALL_NUMBERS_BYTES, n_copied = n_blob <= CONTROL_COPY_BYTES ? n_blob : 0;
    uint8_t *at = begin_call(c, kind, n + n_copied, e);
    if (at == NULL) return c->rc;
    call_head head = {CALL_MAGIC, kind, n + n_blob, c->n_calls};
    memcpy(c->out + c->n_out, &head, sizeof head);
    memcpy(at, numbers, n);
    end_call(c, n);
    if (n_blob == 0) return OK;
    c->hash = call_hash(c->hash, blob, n_blob);
    if (n_copied > 0) {
        memcpy(at + n, blob, n_blob);
        c->n_out += n_blob;
        return OK;
    }
    int rc = flush(c, e);
    return rc == OK ? send_all(c, blob, n_blob, e) : rc;
}

/* Sends what waits and compares the ranks' places. */
static int agree(control *c, err *e) {
    err local = ERR_INIT;
    int rc = flush(c, e);
    if (rc != OK) return rc;
    rc = exchange_check(c->x, c->hash, "the stream of calls", &local);
    if (rc != OK && e != NULL) *e = local;
    return rc != OK ? break_off(c, rc, &local) : OK;
}

/* Errors of a plan are the same on every rank; any other may be this rank's alone. */
static int settle(control *c, int rc, err *e) {
    c->hash = call_hash(c->hash, &rc, sizeof rc);
    if (rc == OK || rc == ERR_ARG || rc == ERR_FULL) return rc;
    err local = ERR_INIT;
    if (e != NULL) local = *e;
    local.code = rc == ERR_PEER || rc == ERR_MISMATCH || rc == ERR_TIMEOUT ? rc : ERR_DEVICE;
    if (e != NULL) e->code = local.code;
    return break_off(c, local.code, &local);
}

/* ---- the source ---- */

double control_exchange_ms(const control *c) {
    double mean;
    step_times_read(&c->exchanges, &mean, NULL);
    return mean;
}

static int state_hash(void *self, uint64_t *hash, err *e);

static int step(void *self, const batch_plan *plan, step_result *out, err *e) {
    control *c = self;
    size_t n = call_plan_bytes(plan);
    uint8_t *at = begin_call(c, CALL_STEP, n, e);
    if (at == NULL) return c->rc;
    (void)call_plan_write(plan, at);
    end_call(c, n);
    int rc = agree(c, e);
    if (rc != OK) return rc;
    uint64_t before = 0, after = 0, calls = 0;
    exchange_usage(c->x, &before, &calls);
    rc = settle(c, c->inner->step(c->inner->self, plan, out, e), e);
    exchange_usage(c->x, &after, &calls);
    step_times_add(&c->exchanges, after - before);
    if (rc != OK || c->check_every <= 0 || ++c->n_unchecked < c->check_every) return rc;
    uint64_t hash;
    c->n_unchecked = 0;
    return state_hash(c, &hash, e);
}

static int draft(void *self, const draft_request *requests, int n, draft_result *out, err *e) {
    control *c = self;
    int32_t count = n;
    size_t bytes = sizeof count + (size_t)n * CALL_DRAFT_BYTES;
    uint8_t *at = begin_call(c, CALL_DRAFT, bytes, e);
    if (at == NULL) return c->rc;
    memcpy(at, &count, sizeof count);
    for (int i = 0; i < n; i++) {
        const draft_request *q = &requests[i];
        uint8_t *to = at + sizeof count + (size_t)i * CALL_DRAFT_BYTES;
        memcpy(to, &q->slot, sizeof q->slot);
        memcpy(to + 4, &q->token, sizeof q->token);
        memcpy(to + 8, &q->temperature, sizeof q->temperature);
        memcpy(to + 12, &q->seed, sizeof q->seed);
    }
    end_call(c, bytes);
    int rc = agree(c, e);
    return rc == OK ? settle(c, c->inner->draft(c->inner->self, requests, n, out, e), e) : rc;
}

/* Rank 0 alone samples: no call. */
static int logit_row(void *self, int i, const float **row, err *e) {
    control *c = self;
    return c->inner->logit_row(c->inner->self, i, row, e);
}

static int commit(void *self, int slot, int64_t new_len, err *e) {
    control *c = self;
    int rc = call_with(c, CALL_COMMIT, (int64_t[2]){slot, new_len}, NULL, 0, e);
    return rc == OK ? settle(c, c->inner->commit(c->inner->self, slot, new_len, e), e) : rc;
}

static int slot_pages(void *self, int slot, const int32_t *pages, int n, err *e) {
    control *c = self;
    int rc = call_with(c, CALL_PAGES, (int64_t[2]){slot, n}, pages, (size_t)n * sizeof *pages, e);
    return rc == OK ? settle(c, c->inner->slot_pages(c->inner->self, slot, pages, n, e), e) : rc;
}

static void slot_reset(void *self, int slot) {
    control *c = self;
    err ignored = ERR_INIT; /* the next call that can fail gives it again */
    (void)call_with(c, CALL_RESET, (int64_t[2]){slot, 0}, NULL, 0, &ignored);
    c->inner->slot_reset(c->inner->self, slot);
}

/* A hint without a result: what does not fit is left out. */
static void prefetch(void *self, const int32_t *tokens, int32_t n_before, int32_t n) {
    control *c = self;
    err ignored = ERR_INIT;
    int32_t room = c->inner->info.max_rows - n_before;
    if (n > room) n = room;
    if (n_before < 0 || n < 1) return;
    size_t bytes = (size_t)(n_before + n) * sizeof *tokens;
    (void)call_with(c, CALL_PREFETCH, (int64_t[2]){n_before, n}, tokens, bytes, &ignored);
    c->inner->prefetch(c->inner->self, tokens, n_before, n);
}

static int slot_copy(void *self, int dst, int src, err *e) {
    control *c = self;
    int rc = call_with(c, CALL_COPY, (int64_t[2]){dst, src}, NULL, 0, e);
    return rc == OK ? settle(c, c->inner->slot_copy(c->inner->self, dst, src, e), e) : rc;
}

/* What was read must be the same on every rank before it is kept: nothing in the cache, in memory or
 * on disk, comes from ranks that drifted apart. */
static int compare_read(control *c, int rc, const void *data, size_t n, err *e) {
    rc = settle(c, rc, e);
    if (rc != OK) return rc;
    c->hash = call_hash(c->hash, data, n);
    return agree(c, e);
}

/* Feeds the draft rings first, which takes the exchange. */
static int slot_save(void *self, int slot, int64_t len, void *blob, err *e) {
    control *c = self;
    int rc = call_with(c, CALL_SAVE, (int64_t[2]){slot, len}, NULL, 0, e);
    if (rc == OK) rc = agree(c, e);
    if (rc != OK) return rc;
    rc = c->inner->slot_save(c->inner->self, slot, len, blob, e);
    return compare_read(c, rc, blob, c->inner->info.snapshot_bytes, e);
}

static int slot_load(void *self, int slot, const void *blob, err *e) {
    control *c = self;
    size_t n = c->inner->info.snapshot_bytes;
    int rc = call_with(c, CALL_LOAD, (int64_t[2]){slot, 0}, blob, n, e);
    if (rc != OK) return rc;
    rc = c->inner->slot_load(c->inner->self, slot, blob, e);
    /* A foreign blob is refused by all ranks alike and is no fault of the engine. */
    if (rc == ERR_MISMATCH) {
        c->hash = call_hash(c->hash, &rc, sizeof rc);
        return rc;
    }
    return settle(c, rc, e);
}

static int page_copy(void *self, int dst, int src, err *e) {
    control *c = self;
    int rc = call_with(c, CALL_PAGE_COPY, (int64_t[2]){dst, src}, NULL, 0, e);
    return rc == OK ? settle(c, c->inner->page_copy(c->inner->self, dst, src, e), e) : rc;
}

static int page_read(void *self, int page, void *out, err *e) {
    control *c = self;
    int rc = call_with(c, CALL_PAGE_READ, (int64_t[2]){page, 0}, NULL, 0, e);
    if (rc != OK) return rc;
    rc = c->inner->page_read(c->inner->self, page, out, e);
    return compare_read(c, rc, out, c->inner->info.page_bytes, e);
}

static int page_write(void *self, int page, const void *data, err *e) {
    control *c = self;
    size_t n = c->inner->info.page_bytes;
    int rc = call_with(c, CALL_PAGE_WRITE, (int64_t[2]){page, 0}, data, n, e);
    return rc == OK ? settle(c, c->inner->page_write(c->inner->self, page, data, e), e) : rc;
}

static int state_hash(void *self, uint64_t *hash, err *e) {
    control *c = self;
    int rc = call_with(c, CALL_DIGEST, (int64_t[2]){0, 0}, NULL, 0, e);
    if (rc != OK) return rc;
    rc = c->inner->state_hash(c->inner->self, hash, e);
    return compare_read(c, rc, hash, sizeof *hash, e);
}

static void fill_source(control *c, run_source *out) {
    const run_source *in = c->inner;
    *out = (run_source){.self = c,
        .info = in->info,
        .step = step,
        .draft = draft,
        .logit_row = in->logit_row != NULL ? logit_row : NULL,
        .commit = commit,
        .slot_pages = slot_pages,
        .slot_reset = slot_reset,
        .slot_copy = in->slot_copy != NULL ? slot_copy : NULL,
        .slot_save = in->slot_save != NULL ? slot_save : NULL,
        .slot_load = in->slot_load != NULL ? slot_load : NULL,
        .page_copy = in->page_copy != NULL ? page_copy : NULL,
        .page_read = in->page_read != NULL ? page_read : NULL,
        .page_write = in->page_write != NULL ? page_write : NULL,
        .prefetch = in->prefetch != NULL ? prefetch : NULL,
        .state_hash = in->state_hash != NULL ? state_hash : NULL};
}

/* ---- life ---- */

int control_open(const control_options *o, control **out, run_source *source, err *e) {
    const source_info *info = &o->source->info;
    control *c = mem_alloc(sizeof *c);
    *out = NULL;
    c->inner = o->source;
    c->x = o->exchange;
    c->n_fds = o->world - 1;
    c->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : CONTROL_DEFAULT_MS;
    c->check_every = o->source->state_hash != NULL ? o->check_every : 0;
    memcpy(c->fd, o->fds, (size_t)c->n_fds * sizeof *c->fd);
    size_t plan = ((size_t)info->max_rows + (size_t)info->n_slots * 8 + 8) * sizeof(int32_t);
    c->out_cap = CONTROL_GATHER_BYTES + sizeof(call_head) + plan;
    c->out = mem_try_alloc(c->out_cap);
    if (c->out == NULL) {
        control_close(c);
        return err_set(e, ERR_MEMORY, "no memory for the calls to the other ranks");
    }
    fill_source(c, source);
    *out = c;
    return OK;
}

void control_abort(control *c, const err *why) {
    exchange_abort(c->x, why);
    for (int i = 0; i < c->n_fds; i++) {
        (void)shutdown(c->fd[i], SHUT_RDWR);
    }
}

void control_close(control *c) {
    if (c == NULL) return;
    err ignored = ERR_INIT;
    if (c->out != NULL && c->rc == OK &&
        call_with(c, CALL_END, (int64_t[2]){0, 0}, NULL, 0, &ignored) == OK) {
        (void)flush(c, &ignored);
    }
    for (int i = 0; i < c->n_fds; i++) {
        close(c->fd[i]);
    }
    mem_free(c->out);
    mem_free(c);
}

int control_send_settings(const int *fds, int n, const control_settings *s, err *e) {
    uint8_t message[sizeof(call_head) + sizeof *s];
    call_head head = {CALL_MAGIC, CALL_SETTINGS, sizeof *s, 0};
    memcpy(message, &head, sizeof head);
    memcpy(message + sizeof head, s, sizeof *s);
    int rc = OK;
    for (int i = 0; i < n && rc == OK; i++) {
        uint64_t deadline = clock_mono_ms() + CONTROL_DEFAULT_MS;
        rc = peer_send(fds[i], message, sizeof message, deadline, e);
        rc = err_add(e, rc, "telling rank %d the settings", i + 1);
    }
    return rc;
}
