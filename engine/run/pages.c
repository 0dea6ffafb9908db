#include "engine/run/pages.h"

#include <stdatomic.h>
#include <stddef.h>

#include "engine/base/mem.h"

struct page_pool {
    int32_t n_total, n_free, n_reserved;
    int32_t *free_list; /* [n_free] a stack; the lowest id is on top at first */
    uint16_t *holders;  /* [n_total] streams and cached prefixes */
    uint16_t *cached;   /* [n_total] of these, cached prefixes */
    _Atomic int32_t n_used, n_cached, n_idle;
};

page_pool *page_pool_new(int32_t n_pages) {
    CHECK(n_pages >= 0);
    page_pool *p = mem_alloc(sizeof *p);
    p->n_total = n_pages;
    p->n_free = n_pages;
    p->free_list = mem_array((size_t)n_pages + 1, sizeof *p->free_list);
    p->holders = mem_array((size_t)n_pages + 1, sizeof *p->holders);
    p->cached = mem_array((size_t)n_pages + 1, sizeof *p->cached);
    for (int32_t i = 0; i < n_pages; i++) {
        p->free_list[i] = n_pages - 1 - i;
    }
    return p;
}

void page_pool_free(page_pool *p) {
    if (p == NULL) return;
    mem_free(p->free_list);
    mem_free(p->holders);
    mem_free(p->cached);
    mem_free(p);
}

bool page_pool_reserve(page_pool *p, int32_t n) {
    CHECK(n >= 0);
    if (p->n_free + atomic_load_explicit(&p->n_idle, memory_order_relaxed) - p->n_reserved < n) {
        return false;
    }
    p->n_reserved += n;
    return true;
}

void page_pool_unreserve(page_pool *p, int32_t n) {
    CHECK(n >= 0 && n <= p->n_reserved);
    p->n_reserved -= n;
}

int32_t page_pool_take(page_pool *p) {
    CHECK(p->n_reserved > 0 && p->n_free > 0);
    p->n_reserved--;
    int32_t page = p->free_list[--p->n_free];
    p->holders[page] = 1;
    atomic_fetch_add_explicit(&p->n_used, 1, memory_order_relaxed);
    return page;
}

static bool is_idle(const page_pool *p, int32_t page) {
    return p->cached[page] > 0 && p->cached[page] == p->holders[page];
}

/* Changes the holders of a page and keeps the counts of idle, cached and used pages. */
static void change(page_pool *p, int32_t page, int n_holders, int n_cached) {
    CHECK(page >= 0 && page < p->n_total && p->holders[page] > 0 && p->holders[page] < UINT16_MAX);
    bool was_idle = is_idle(p, page);
    bool was_cached = p->cached[page] > 0;
    p->holders[page] = (uint16_t)(p->holders[page] + n_holders);
    p->cached[page] = (uint16_t)(p->cached[page] + n_cached);
    CHECK(p->cached[page] <= p->holders[page]);
    bool is_cached = p->cached[page] > 0;
    atomic_fetch_add_explicit(
        &p->n_idle, (int32_t)is_idle(p, page) - (int32_t)was_idle, memory_order_relaxed);
    atomic_fetch_add_explicit(
        &p->n_cached, (int32_t)is_cached - (int32_t)was_cached, memory_order_relaxed);
    if (p->holders[page] > 0) return;
    p->free_list[p->n_free++] = page;
    atomic_fetch_sub_explicit(&p->n_used, 1, memory_order_relaxed);
}

void page_pool_get(page_pool *p, int32_t page) {
    change(p, page, 1, 0);
}

void page_pool_put(page_pool *p, int32_t page) {
    change(p, page, -1, 0);
}

void page_pool_cache(page_pool *p, int32_t page) {
    change(p, page, 1, 1);
}

void page_pool_uncache(page_pool *p, int32_t page) {
    CHECK(p->cached[page] > 0);
    change(p, page, -1, -1);
}

bool page_pool_is_idle(const page_pool *p, int32_t page) {
    return is_idle(p, page);
}

bool page_pool_lacks_free(const page_pool *p) {
    return p->n_free == 0;
}

int32_t page_pool_cached(const page_pool *p) {
    return atomic_load_explicit(&p->n_cached, memory_order_relaxed);
}

int32_t page_pool_idle(const page_pool *p) {
    return atomic_load_explicit(&p->n_idle, memory_order_relaxed);
}

int32_t page_pool_total(const page_pool *p) {
    return p->n_total;
}

int32_t page_pool_used(const page_pool *p) {
    return atomic_load_explicit(&p->n_used, memory_order_relaxed) -
           atomic_load_explicit(&p->n_idle, memory_order_relaxed);
}

int32_t page_pool_holders(const page_pool *p, int32_t page) {
    CHECK(page >= 0 && page < p->n_total);
    return p->holders[page];
}
