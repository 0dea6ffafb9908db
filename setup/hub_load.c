/* A worker: takes a range, asks for it, judges the reply, writes the bytes, and decides what a failure
 * means. Nothing is written that the reply's headers do not place exactly. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/thread.h"
#include "setup/hub_internal.h"

enum {
    MAX_REDIRECTS = 5,
    MAX_RANGE_FAULTS = 4,
    MAX_BACKOFF_MS = 60000,
    COLLECT_TEXT = 1 /* hub_get.accept: the body is only of interest as text */
};

static bool is_stopped(void *ctx) {
    hub_worker *w = ctx;
    pthread_mutex_lock(&w->h->lock);
    bool is = w->h->stop_rc != OK;
    pthread_mutex_unlock(&w->h->lock);
    return is;
}

/* Judging a reply. */

static int fault(hub_claim *c, hub_fault f) {
    c->fault = (int)f;
    return ERR_MISMATCH;
}

static bool is_page(const hub_worker *w, const hub_reply *r) {
    return str_starts(r->type, "text/html") && !str_ends(w->claim.f->f->path, ".html");
}

/* A range reply that says where it starts. */
static int accept_range(hub_claim *c, const hub_reply *r) {
    uint64_t size = c->f->r.size;
    if (r->range_total != size) return fault(c, FAULT_TOTAL);
    bool fits = c->is_sequential ? r->range_start <= c->pos && r->range_end >= c->pos
                                 : r->range_start == c->pos && r->range_end == c->end - 1;
    if (!fits) return fault(c, FAULT_RANGE);
    uint64_t length = r->range_end - r->range_start + 1;
    if (r->length >= 0 && (uint64_t)r->length != length) return fault(c, FAULT_RANGE);
    c->skip = c->pos - r->range_start;
    return OK;
}

/* The whole file although a part was asked for: of use only when read from its beginning. */
static int accept_whole(hub_claim *c, const hub_reply *r) {
    if (!c->is_sequential) return fault(c, FAULT_RANGE);
    if (r->length >= 0 && (uint64_t)r->length != c->f->r.size) return fault(c, FAULT_TOTAL);
    c->skip = c->pos;
    return OK;
}

static int accept(void *ctx, const hub_reply *r) {
    hub_worker *w = ctx;
    hub_claim *c = &w->claim;
    if (r->status != 200 && r->status != 206) return COLLECT_TEXT;
    if (is_page(w, r)) {
        c->fault = FAULT_PAGE;
        return COLLECT_TEXT;
    }
    if (r->encoding[0] != '\0' && !str_eq_nocase(r->encoding, "identity"))
        return fault(c, FAULT_ENCODED);
    if (!c->is_far && r->commit[0] != '\0' && !str_eq_nocase(r->commit, c->f->f->commit))
        return fault(c, FAULT_COMMIT);
    if (r->status == 206 && !r->has_range) return fault(c, FAULT_RANGE);
    if (r->has_range && (r->status == 206 || c->is_sequential)) return accept_range(c, r);
    return r->status == 200 ? accept_whole(c, r) : fault(c, FAULT_RANGE);
}

static int write_bytes(hub_worker *w, const void *data, size_t n) {
    hub *h = w->h;
    hub_claim *c = &w->claim;
    err e = ERR_INIT;
    int rc = h->o.disk.write != NULL ? h->o.disk.write(h->o.disk.ctx, c->f->fd, data, n, c->pos, &e)
                                     : fd_write_at(c->f->fd, data, n, c->pos, &e);
    if (rc != OK) {
        err_add(&e, rc, "writing %s", c->f->part);
        hub_stop(h, rc, &e);
        c->fault = FAULT_DISK;
        return rc;
    }
    c->pos += n;
    hub_count_bytes(h, c->f, n);
    if (c->pos - c->marked < c->f->r.unit || c->pos >= c->end) return OK;
    rc = hub_claim_mark(h, c, &e);
    if (rc != OK) hub_stop(h, rc, &e);
    return rc;
}

static int take(void *ctx, const void *data, size_t n) {
    hub_worker *w = ctx;
    hub_claim *c = &w->claim;
    const char *at = data;
    hub_throttle(w->h, n);
    if (c->skip > 0) {
        size_t part = n < c->skip ? n : (size_t)c->skip;
        c->skip -= part;
        at += part;
        n -= part;
    }
    if (n > c->end - c->pos) {
        /* More than was asked for: what came before it is not to be trusted either. */
        pthread_mutex_lock(&w->h->lock);
        w->h->p.again_bytes += c->pos - c->marked;
        c->f->unmarked_bytes -= c->pos - c->marked;
        pthread_mutex_unlock(&w->h->lock);
        c->pos = c->marked;
        return fault(c, FAULT_RANGE);
    }
    return n > 0 ? write_bytes(w, at, n) : OK;
}

/* Where to ask. */

static char *hub_url(const hub *h, const hub_file *f) {
    buf url = BUF_INIT;
    size_t n = strlen(h->o.endpoint);
    while (n > 0 && h->o.endpoint[n - 1] == '/')
        n--;
    buf_printf(&url, "%.*s/%s/resolve/%s/", (int)n, h->o.endpoint, f->f->repo, f->f->commit);
    for (const char *at = f->f->path; *at != '\0'; at++) {
        if (strchr("+@=,", *at) != NULL) {
            buf_printf(&url, "%%%02X", (unsigned)(unsigned char)*at);
        } else {
            buf_putc(&url, *at);
        }
    }
    return buf_take(&url);
}

/* The token goes to the configured host alone, and only under the scheme of the endpoint. */
static const hub_secret *token_for(hub *h, const hub_file *f, const char *url) {
    char host[256];
    pthread_mutex_lock(&h->lock);
    bool is_anonymous = f->is_anonymous;
    pthread_mutex_unlock(&h->lock);
    if (h->o.token == NULL || is_anonymous || !hub_url_same_host(url, h->o.endpoint)) return NULL;
    hub_url_host(url, host, sizeof host);
    return h->o.token_host != NULL && str_eq_nocase(host, h->o.token_host) ? h->o.token : NULL;
}

/* NULL and an error when the target must not be followed. */
static char *redirect_target(const hub *h, const char *from, const hub_reply *r, err *e) {
    char host[128];
    char *to = hub_url_join(from, r->location);
    hub_url_host(from, host, sizeof host);
    bool is_fine =
        to != NULL &&
        (hub_url_is_https(to) || (hub_url_is_loopback(h->o.endpoint) && hub_url_is_loopback(to)));
    if (is_fine) return to;
    mem_free(to);
    err_set(e, ERR_NET, "%s points to an address that is not https", host);
    return NULL;
}

static void remember(hub *h, hub_file *f, const char *url) {
    pthread_mutex_lock(&h->lock);
    mem_free(f->location);
    f->location = url != NULL ? mem_strdup(url) : NULL;
    f->location_serial++;
    pthread_mutex_unlock(&h->lock);
}

/* First URL to ask: the remembered one, else the hub. */
static char *first_url(hub *h, hub_claim *c) {
    hub_file *f = c->f;
    pthread_mutex_lock(&h->lock);
    c->serial = f->location_serial;
    char *url = f->location != NULL ? mem_strdup(f->location) : NULL;
    pthread_mutex_unlock(&h->lock);
    return url != NULL ? url : hub_url(h, f);
}

static void count_request(hub *h, const hub_reply *r, bool is_far) {
    pthread_mutex_lock(&h->lock);
    h->p.n_requests++;
    if (!is_far) h->p.n_resolves++;
    if (!is_far && r->limit_left >= 0) h->p.resolves_left = r->limit_left;
    pthread_mutex_unlock(&h->lock);
}

static int get_once(hub_worker *w, const char *url, err *e) {
    hub_claim *c = &w->claim;
    hub_get g = {.url = url,
        .has_range = true,
        .first = c->pos,
        .last = c->end - 1,
        .token = token_for(w->h, c->f, url),
        .accept = accept,
        .take = take,
        .is_stopped = is_stopped,
        .ctx = w};
    c->is_far = !hub_url_same_host(url, w->h->o.endpoint);
    c->fault = FAULT_NONE;
    c->skip = 0;
    int rc = hub_http_get(w->http, &g, &w->reply, e);
    count_request(w->h, &w->reply, c->is_far);
    return rc;
}

static bool is_redirect(long status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* Asks for the claim, over redirects. */
static int fetch(hub_worker *w, err *e) {
    hub_claim *c = &w->claim;
    char *url = first_url(w->h, c);
    int rc = OK, n = 0;
    for (; rc == OK; n++) {
        rc = get_once(w, url, e);
        if (rc != OK || !is_redirect(w->reply.status)) break;
        if (!c->is_far && w->reply.commit[0] != '\0' &&
            !str_eq_nocase(w->reply.commit, c->f->f->commit)) {
            rc = fault(c, FAULT_COMMIT);
            break;
        }
        char *next = n < MAX_REDIRECTS ? redirect_target(w->h, url, &w->reply, e) : NULL;
        if (n >= MAX_REDIRECTS) err_set(e, ERR_NET, "the hub redirects in a circle");
        mem_free(url);
        url = next;
        if (url == NULL) {
            rc = ERR_NET;
            break;
        }
        remember(w->h, c->f, url);
        pthread_mutex_lock(&w->h->lock);
        c->serial = c->f->location_serial;
        pthread_mutex_unlock(&w->h->lock);
    }
    mem_free(url);
    return rc;
}

/* What a failure means. */

static void pause_file(hub *h, hub_file *f, const char *reason) {
    pthread_mutex_lock(&h->lock);
    int n = f->n_fails < 16 ? f->n_fails++ : 16;
    uint64_t base = h->o.backoff_ms > 0 ? (uint64_t)h->o.backoff_ms : 1000;
    uint64_t wait = n < 7 ? base << n : MAX_BACKOFF_MS;
    if (wait > MAX_BACKOFF_MS) wait = MAX_BACKOFF_MS;
    wait += clock_mono_ns() % (wait / 4 + 1); /* so that connections do not come back together */
    f->not_before_ms = clock_mono_ms() + wait;
    pthread_mutex_unlock(&h->lock);
    hub_note_retry(h, reason);
}

static void slow_down(hub *h, const hub_reply *r) {
    int64_t wait = r->limit_left == 0 && r->limit_reset_s >= 0 ? (r->limit_reset_s + 1) * 1000
                                                               : r->retry_after_ms;
    pthread_mutex_lock(&h->lock);
    h->n_allowed = h->n_allowed > 1 ? h->n_allowed / 2 : 1;
    h->grown_rate = 0;
    h->grown_ms = clock_mono_ms();
    /* Waiting on request is no lack of progress. */
    if (wait > 0) {
        h->wait_until_ms = clock_mono_ms() + (uint64_t)wait;
        h->last_progress_ms = h->wait_until_ms;
    }
    pthread_mutex_unlock(&h->lock);
}

static void fail(hub_worker *w, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail(hub_worker *w, int rc, const char *fmt, ...) {
    char text[512];
    err e = ERR_INIT;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&e, rc, "%s: %s", w->claim.f->f->path, text);
    hub_file_fail(w->h, w->claim.f, rc, &e);
}

static void range_fault(hub_worker *w) {
    hub_file *f = w->claim.f;
    pthread_mutex_lock(&w->h->lock);
    int n = ++f->n_range_faults;
    bool may_go_on = f->r.size < HUB_SEQUENTIAL_MAX;
    if (may_go_on) f->is_sequential = true;
    pthread_mutex_unlock(&w->h->lock);
    remember(w->h, f, NULL);
    if (n >= MAX_RANGE_FAULTS || (!may_go_on && n >= 2)) {
        fail(w, ERR_NET, "the server does not answer ranges as it must%s",
            may_go_on ? "" : "; a file of this size cannot be loaded in one piece");
        return;
    }
    hub_note_retry(w->h, "the server ignored or changed the range");
    LOG(LOG_WARN, "hub", "range ignored", "file=%s status=%ld", f->rel, w->reply.status);
}

static void total_fault(hub_worker *w) {
    hub_file *f = w->claim.f;
    char text[256];
    uint64_t said = w->reply.has_range ? w->reply.range_total : (uint64_t)w->reply.length;
    pthread_mutex_lock(&w->h->lock);
    int n = ++f->n_total_faults;
    hub_file_discard_locked(w->h, f);
    pthread_mutex_unlock(&w->h->lock);
    remember(w->h, f, NULL);
    err e = ERR_INIT;
    hub_journal_write(w->h, f, &e);
    snprintf(text, sizeof text, "the server has another file (%llu bytes, expected %llu)",
        (unsigned long long)said, (unsigned long long)f->r.size);
    if (n >= 2) {
        fail(w, ERR_MISMATCH, "%s: it changed at a pinned commit; the mirror is bad", text);
    } else {
        pause_file(w->h, f, text);
    }
}

/* True when the fault was dealt with. */
static bool settle_fault(hub_worker *w) {
    char title[160];
    int n;
    switch ((hub_fault)w->claim.fault) {
    case FAULT_RANGE:
    case FAULT_ENCODED:
        range_fault(w);
        return true;
    case FAULT_TOTAL:
        total_fault(w);
        return true;
    case FAULT_COMMIT:
        fail(w, ERR_MISMATCH, "the server answers for commit %.12s, pinned is %.12s",
            w->reply.commit, w->claim.f->f->commit);
        return true;
    case FAULT_PAGE:
        hub_page_title(&w->reply, title, sizeof title);
        pthread_mutex_lock(&w->h->lock);
        n = ++w->claim.f->n_page_faults;
        pthread_mutex_unlock(&w->h->lock);
        if (n >= 2) {
            fail(w, ERR_NET,
                "a web page came instead of the file (\"%s\"): a login page, a proxy "
                "or a filter is in between",
                title);
        } else {
            pause_file(w->h, w->claim.f, "a web page came instead of the file");
        }
        return true;
    case FAULT_DISK:
        return true;
    case FAULT_NONE:
        break;
    }
    return false;
}

/* A signature ran out: the hub is asked again, once without counting it. Others may have done that
 * already; then only this range goes again. */
static bool may_ask_again(hub *h, hub_claim *c) {
    hub_file *f = c->f;
    pthread_mutex_lock(&h->lock);
    bool is_current = c->serial == f->location_serial;
    bool may = !is_current || ++f->n_auth_fails <= 2;
    if (is_current) {
        mem_free(f->location);
        f->location = NULL;
        f->location_serial++;
    }
    pthread_mutex_unlock(&h->lock);
    return may;
}

/* A status that is no success. */
static void settle_status(hub_worker *w) {
    hub *h = w->h;
    hub_file *f = w->claim.f;
    long status = w->reply.status;
    bool was_far = w->claim.is_far;
    char text[128];
    snprintf(text, sizeof text, "the %s answered %ld", was_far ? "storage" : "hub", status);
    if (was_far && (status == 401 || status == 403 || status == 404 || status == 410)) {
        if (may_ask_again(h, &w->claim)) return;
    } else if (status == 401 && w->reply.error_code[0] == '\0' &&
               token_for(h, f, h->o.endpoint) != NULL) {
        pthread_mutex_lock(&h->lock);
        f->is_anonymous = true;
        pthread_mutex_unlock(&h->lock);
        hub_note_retry(h, "the hub refused the token; trying without it");
        return;
    } else if (status == 408 || status == 429 || status >= 500) {
        if (status == 429 || status == 503) slow_down(h, &w->reply);
        pause_file(h, f, text);
        return;
    } else if (status == 416) {
        total_fault(w);
        return;
    }
    err e = ERR_INIT;
    int rc = hub_words(h, f, &w->reply, was_far, &e);
    hub_file_fail(h, f, rc, &e);
}

static void settle(hub_worker *w, int rc, err *e) {
    hub_claim *c = &w->claim;
    err mark = ERR_INIT;
    int marked = hub_claim_mark(w->h, c, &mark);
    if (marked != OK) {
        hub_stop(w->h, marked, &mark);
        return;
    }
    if (c->pos == c->end && c->fault == FAULT_NONE) {
        pthread_mutex_lock(&w->h->lock);
        c->f->n_auth_fails = 0;
        pthread_mutex_unlock(&w->h->lock);
        return;
    }
    if (settle_fault(w) || rc == ERR_CANCELLED) return;
    if (rc == OK && w->reply.status != 200 && w->reply.status != 206) {
        settle_status(w);
        return;
    }
    if (rc == OK) err_set(e, ERR_NET, "the reply was shorter than it said");
    pause_file(w->h, c->f, e->msg);
}

void *hub_load_main(void *arg) {
    hub_worker *w = arg;
    char name[16];
    snprintf(name, sizeof name, "hub-%d", w->index);
    thread_set_name(name);
    while (hub_claim_take(w->h, w->index, &w->claim)) {
        err e = ERR_INIT;
        int rc = hub_file_open(w->h, w->claim.f, &e);
        if (rc != OK) {
            hub_stop(w->h, rc, &e);
        } else {
            rc = fetch(w, &e);
            settle(w, rc, &e);
        }
        hub_claim_give(w->h, &w->claim);
    }
    return NULL;
}
