/* Which KV pages are free and how many holders each has. Streams reserve what they may need at
 * most before they start and take pages as they grow, so a running stream can never find the
 * pool empty. Cached prefixes hold pages by count as well; a page that only they hold is idle: it can
 * be reserved like a free one, and its holder gives it up before it is taken. Threads: the step thread only;
 * the two counters for display are atomic. Nothing allocates after page_pool_new. */
#ifndef TANDEM_RUN_PAGES_H
#define TANDEM_RUN_PAGES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct page_pool page_pool;

/* n_pages may be 0 (then nothing can be reserved). */
page_pool *page_pool_new(int32_t n_pages);
void page_pool_free(page_pool *p);

/* Sets n pages aside. False if fewer than n are free or idle and not set aside. */
bool page_pool_reserve(page_pool *p, int32_t n);
/* Gives back what was set aside and not taken. */
void page_pool_unreserve(page_pool *p, int32_t n);
/* Takes one free page out of a reservation of the caller, count 1. While page_pool_lacks_free, the
 * cache must give up idle pages first. */
int32_t page_pool_take(page_pool *p);
/* One more holder of a page that has one. */
void page_pool_get(page_pool *p, int32_t page);
/* One holder less; the page is free when none is left. */
void page_pool_put(page_pool *p, int32_t page);

/* The same for a cached prefix. */
void page_pool_cache(page_pool *p, int32_t page);
void page_pool_uncache(page_pool *p, int32_t page);
bool page_pool_lacks_free(const page_pool *p);
/* Only cached prefixes hold it. */
bool page_pool_is_idle(const page_pool *p, int32_t page);

int32_t page_pool_total(const page_pool *p);
/* Pages that streams hold; any thread. */
int32_t page_pool_used(const page_pool *p);
/* Pages that cached prefixes hold, and of these the ones that no stream holds; any thread. */
int32_t page_pool_cached(const page_pool *p);
int32_t page_pool_idle(const page_pool *p);
int32_t page_pool_holders(const page_pool *p, int32_t page);

#endif
