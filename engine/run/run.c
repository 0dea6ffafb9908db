#include "engine/run/run.h"

#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/run_internal.h"

#define QUEUE_CAP_DEFAULT 64
#define GAP_MS_DEFAULT 150
#define STEP_LIMIT_MS_DEFAULT 60000

static void free_parts(run *r) {
    run_reap(r);
    if (r->wake_fd >= 0) {
        close(r->wake_fd);
    }
    for (int i = 0; i < RUN_MAX_SLOTS; i++) {
        mem_free(r->streams[i].pages);
        copy_draft_free(r->streams[i].copies);
    }
    mem_free(r->waiting);
    disk_close(r->disk);
    prefix_free(r->prefixes);
    page_pool_free(r->pool);
    sampler_free(r->sampler);
    mem_free(r->asks);
    pthread_mutex_destroy(&r->registry_lock);
    pthread_mutex_destroy(&r->ask_lock);
    mem_aligned_free(r);
}

static void fill_options(run *r, const run_options *options) {
    r->options = *options;
    if (r->options.queue_cap <= 0) r->options.queue_cap = QUEUE_CAP_DEFAULT;
    if (r->options.gap_ms <= 0) r->options.gap_ms = GAP_MS_DEFAULT;
    if (r->options.step_limit_ms == 0) r->options.step_limit_ms = STEP_LIMIT_MS_DEFAULT;
    r->guard.reserve_bytes = options->reserve_bytes;
    r->source = options->source;
    r->info = options->source->info;
}

int run_open(const run_options *options, run **out, err *e) {
    const source_info *info = &options->source->info;
    *out = NULL;
    if (info->n_slots < 1 || info->n_slots > RUN_MAX_SLOTS) {
        return err_set(e, ERR_ARG, "%d streams are not possible; choose 1 to %d", info->n_slots,
            RUN_MAX_SLOTS);
    }
    CHECK(
        info->n_vocab > 0 && info->page_tokens > 0 && info->max_rows > 0 && info->max_context > 0);
    CHECK(info->block >= 0 && info->max_logit_rows >= info->n_slots);
    run *r = mem_aligned(64, sizeof *r);
    if (r == NULL) return err_set(e, ERR_MEMORY, "no memory for the scheduler");
    fill_options(r, options);
    pthread_mutex_init(&r->registry_lock, NULL);
    pthread_mutex_init(&r->ask_lock, NULL);
    r->open_ns = clock_mono_ns();
    r->sampler = sampler_new(r->info.n_vocab);
    if (r->source->logit_row != NULL) {
        r->asks = mem_array((size_t)r->info.max_logit_rows, sizeof *r->asks);
    }
    r->pool = page_pool_new(r->info.n_pages);
    r->waiting_cap = r->options.queue_cap + r->info.n_slots;
    r->waiting = mem_array((size_t)r->waiting_cap, sizeof(ticket *));
    r->pages_cap =
        (int32_t)((r->info.max_context + r->info.page_tokens - 1) / r->info.page_tokens) + 1;
    for (int i = 0; i < r->info.n_slots; i++) {
        r->streams[i].pages = mem_array((size_t)r->pages_cap, sizeof(int32_t));
        r->streams[i].copies = copy_draft_new();
    }
    step_cost_reset(&r->cost);
    draft_history_reset(&r->draft_history[0]);
    draft_history_reset(&r->draft_history[1]);
    r->prefixes = reuse_open(r);
    store_attach(r);
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->wake_fd < 0 || pthread_create(&r->thread, NULL, run_step_thread, r) != 0) {
        int rc = err_errno(e, "starting the step thread");
        free_parts(r);
        return rc;
    }
    *out = r;
    return OK;
}

void run_drain(run *r) {
    atomic_store(&r->is_draining, 1);
}

void run_abort_all(run *r) {
    atomic_store(&r->is_aborting, 1);
    run_wake(r);
}

void run_fail(run *r, const err *why) {
    int expected = 0;
    if (!atomic_compare_exchange_strong(&r->is_failing, &expected, 1)) return;
    r->failure = *why;
    atomic_store(&r->has_failed, 1);
    run_wake(r);
}

void run_close(run *r) {
    if (r == NULL) return;
    run_drain(r);
    atomic_store(&r->is_stopping, 1);
    run_wake(r);
    pthread_join(r->thread, NULL);
    free_parts(r);
}

/* The window and the pool bound prompt and reply together; *max_tokens is clipped to what is
 * left. */
static int check_size(run *r, const run_request *q, int32_t *max_tokens, err *e) {
    int64_t pool_tokens = (int64_t)r->info.n_pages * r->info.page_tokens;
    int64_t window = r->info.max_context < pool_tokens ? r->info.max_context : pool_tokens;
    if (q->n_prompt < 1) return err_set(e, ERR_ARG, "the prompt is empty");
    if (q->max_tokens < 1)
        return err_set(e, ERR_ARG, "max_tokens is %d, must be at least 1", q->max_tokens);
    if (q->n_prompt >= window) {
        return err_set(e, ERR_LIMIT, "the prompt has %d tokens, the window holds %lld", q->n_prompt,
            (long long)window);
    }
    int64_t left = window - q->n_prompt;
    *max_tokens = q->max_tokens < left ? q->max_tokens : (int32_t)left;
    return OK;
}

static int check_ids(run *r, const run_request *q, err *e) {
    for (int32_t i = 0; i < q->n_prompt; i++) {
        if (q->prompt[i] < 0 || q->prompt[i] >= r->info.n_vocab) {
            return err_set(e, ERR_ARG, "token %d of the prompt is %d; the vocabulary has %d", i,
                q->prompt[i], r->info.n_vocab);
        }
    }
    if (q->n_stop_ids > RUN_STOP_MAX)
        return err_set(e, ERR_LIMIT, "more than %d stop tokens", RUN_STOP_MAX);
    if (q->n_banned > RUN_BANNED_MAX)
        return err_set(e, ERR_LIMIT, "more than %d banned tokens", RUN_BANNED_MAX);
    return OK;
}

static void copy_ids(ticket *t, const run_request *q) {
    t->n_stop_ids = q->n_stop_ids;
    t->n_banned = q->n_banned;
    for (int32_t i = 0; i < q->n_stop_ids; i++) {
        t->stop_ids[i] = q->stop_ids[i];
    }
    for (int32_t i = 0; i < q->n_banned; i++) {
        t->banned[i] = q->banned[i];
    }
}

static bool copy_arrays(run *r, ticket *t, const run_request *q) {
    t->token_cap = q->n_prompt + t->max_tokens;
    t->tokens = mem_try_alloc((size_t)t->token_cap * sizeof *t->tokens);
    t->write_chunk = t->read_chunk = mem_try_alloc(sizeof *t->read_chunk);
    if (t->tokens == NULL || t->read_chunk == NULL) return false;
    memcpy(t->tokens, q->prompt, (size_t)q->n_prompt * sizeof *t->tokens);
    if (q->sampling.n_bias > 0) {
        t->bias = mem_dup(q->sampling.bias, (size_t)q->sampling.n_bias * sizeof *t->bias);
        t->sampling.bias = t->bias;
    }
    if (!sample_params_penalize(&q->sampling)) return true;
    t->counts.generated = mem_try_alloc((size_t)r->info.n_vocab * sizeof *t->counts.generated);
    t->counts.in_prompt = mem_try_alloc((size_t)r->info.n_vocab);
    if (t->counts.generated == NULL || t->counts.in_prompt == NULL) return false;
    for (int32_t i = 0; i < q->n_prompt; i++) {
        t->counts.in_prompt[q->prompt[i]] = 1;
    }
    return true;
}

static uint64_t hash_tokens(const int32_t *tokens, int32_t n) {
    uint64_t h = 14695981039346656037u;
    for (int32_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)tokens[i]) * 1099511628211u;
    }
    return h;
}

static int make_ticket(run *r, const run_request *q, int32_t max_tokens, ticket **out, err *e) {
    ticket *t = mem_aligned(64, sizeof *t);
    if (t == NULL) return err_set(e, ERR_MEMORY, "no memory for the request");
    t->owner = r;
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    str_copy(t->id, sizeof t->id, q->id != NULL ? q->id : "");
    t->n_prompt = q->n_prompt;
    t->max_tokens = max_tokens;
    t->sampling = q->sampling;
    t->priority = q->priority;
    t->scores_prompt = q->scores_prompt;
    memcpy(t->salt, q->salt, sizeof t->salt);
    t->prompt_hash = hash_tokens(q->prompt, q->n_prompt);
    atomic_store(&t->n_holders, 2);
    copy_ids(t, q);
    if (t->wake_fd < 0 || !copy_arrays(r, t, q)) {
        int rc = t->wake_fd < 0
                     ? err_errno(e, "making a wake-up descriptor for the request")
                     : err_set(e, ERR_MEMORY, "no memory for a request of %d tokens", t->token_cap);
        ticket_destroy(t);
        return rc;
    }
    *out = t;
    return OK;
}

static void enlist(run *r, ticket *t) {
    pthread_mutex_lock(&r->registry_lock);
    t->order = ++r->next_order;
    t->prev_live = r->live_last;
    if (r->live_last != NULL) {
        r->live_last->next_live = t;
    } else {
        r->live_first = t;
    }
    r->live_last = t;
    pthread_mutex_unlock(&r->registry_lock);
    t->next_intake = atomic_load(&r->intake);
    while (!atomic_compare_exchange_weak(&r->intake, &t->next_intake, t)) {
    }
    run_wake(r);
}

/* False: there is no place. */
static bool come_in(run *r) {
    int32_t n = atomic_load(&r->n_inside);
    while (n < r->waiting_cap) {
        if (atomic_compare_exchange_weak(&r->n_inside, &n, n + 1)) return true;
    }
    return false;
}

int run_submit(run *r, const run_request *q, ticket **out, err *e) {
    int32_t max_tokens = 0;
    *out = NULL;
    run_reap(r);
    int rc = check_size(r, q, &max_tokens, e);
    if (rc == OK) rc = check_ids(r, q, e);
    if (rc != OK) return rc;
    if (atomic_load(&r->has_failed)) {
        return err_set(e, ERR_DEVICE, "the engine has failed: %s", r->failure.msg);
    }
    if (atomic_load(&r->is_draining))
        return err_set(e, ERR_CANCELLED, "the server is shutting down");
    uint64_t available = 0;
    if (!memory_guard_allows_now(&r->guard, &available)) {
        atomic_fetch_add(&r->n_refused, 1);
        return err_set(e, ERR_FULL,
            "the machine is short of memory: %llu MiB are available, %llu are"
            " kept in reserve",
            (unsigned long long)(available >> 20),
            (unsigned long long)(r->guard.reserve_bytes >> 20));
    }
    if (!come_in(r)) {
        atomic_fetch_add(&r->n_refused, 1);
        return err_set(e, ERR_FULL, "the queue is full: %d requests wait or run", r->waiting_cap);
    }
    rc = make_ticket(r, q, max_tokens, out, e);
    if (rc != OK) {
        atomic_fetch_sub(&r->n_inside, 1);
        return rc;
    }
    atomic_fetch_add(&r->n_waiting, 1);
    if (q->guide != NULL) {
        (*out)->guide = *q->guide;
        (*out)->has_guide = true;
    }
    atomic_store_explicit(&(*out)->submit_ns, run_now(r), memory_order_relaxed);
    enlist(r, *out);
    return OK;
}

void run_each(run *r, void (*fn)(void *ctx, const run_progress *p), void *ctx) {
    run_progress p;
    pthread_mutex_lock(&r->registry_lock);
    for (ticket *t = r->live_first; t != NULL; t = t->next_live) {
        ticket_progress(t, &p);
        fn(ctx, &p);
    }
    pthread_mutex_unlock(&r->registry_lock);
}

int run_cancel_id(run *r, const char *id) {
    int rc = ERR_NOT_FOUND;
    pthread_mutex_lock(&r->registry_lock);
    for (ticket *t = r->live_first; t != NULL && rc != OK; t = t->next_live) {
        if (strcmp(t->id, id) == 0) {
            ticket_cancel(t);
            rc = OK;
        }
    }
    pthread_mutex_unlock(&r->registry_lock);
    return rc;
}
