#include "engine/api/watch.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

struct watched {
    int fd;
    uint64_t deadline_ms; /* 0: none */
    watched *prev, *next;
};

struct watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool is_ending;
    bool is_shut; /* nobody comes in any more */
    uint32_t look_ms;
    watched *first;
};

static void shut_late_locked(watch *w) {
    uint64_t now = clock_mono_ms();
    for (watched *c = w->first; c != NULL; c = c->next) {
        if (c->deadline_ms == 0 || now < c->deadline_ms) continue;
        c->deadline_ms = 0;
        shutdown(c->fd, SHUT_RDWR);
    }
}

static void wait_locked(watch *w, uint64_t ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + ms * 1000000u;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_cond_timedwait(&w->wake, &w->lock, &until);
}

static void *look(void *ctx) {
    watch *w = ctx;
    pthread_mutex_lock(&w->lock);
    while (!w->is_ending) {
        wait_locked(w, w->look_ms);
        shut_late_locked(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

watch *watch_new(uint32_t look_ms) {
    watch *w = mem_alloc(sizeof *w);
    pthread_condattr_t attributes;
    w->look_ms = look_ms;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&w->thread, NULL, look, w) == 0) return w;
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
    return NULL;
}

void watch_free(watch *w) {
    if (w == NULL) return;
    pthread_mutex_lock(&w->lock);
    w->is_ending = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    while (w->first != NULL) {
        watch_leave(w, w->first);
    }
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}

bool watch_shut_all(watch *w, uint32_t timeout_ms) {
    uint64_t deadline = clock_mono_ms() + timeout_ms;
    pthread_mutex_lock(&w->lock);
    w->is_shut = true;
    for (watched *c = w->first; c != NULL; c = c->next) {
        shutdown(c->fd, SHUT_RDWR);
    }
    for (uint64_t now = clock_mono_ms(); w->first != NULL && now < deadline;) {
        wait_locked(w, deadline - now);
        now = clock_mono_ms();
    }
    bool is_empty = w->first == NULL;
    pthread_mutex_unlock(&w->lock);
    return is_empty;
}

watched *watch_enter(watch *w, int fd) {
    watched *c = mem_alloc(sizeof *c);
    c->fd = fd;
    pthread_mutex_lock(&w->lock);
    c->next = w->first;
    if (w->first != NULL) w->first->prev = c;
    w->first = c;
    if (w->is_shut) shutdown(fd, SHUT_RDWR);
    pthread_mutex_unlock(&w->lock);
    return c;
}

void watch_leave(watch *w, watched *c) {
    if (c == NULL) return;
    pthread_mutex_lock(&w->lock);
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        w->first = c->next;
    }
    if (c->next != NULL) c->next->prev = c->prev;
    if (w->is_shut) pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    mem_free(c);
}

void watch_set(watch *w, watched *c, uint64_t timeout_ms) {
    if (c == NULL) return;
    pthread_mutex_lock(&w->lock);
    c->deadline_ms = timeout_ms > 0 ? clock_mono_ms() + timeout_ms : 0;
    pthread_mutex_unlock(&w->lock);
}
