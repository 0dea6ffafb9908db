#include "tui/draft.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/session.h"

/* Two sessions can have a write waiting at a switch; a third makes the caller write. */
#define MAX_WAITING 4

typedef struct waiting {
    char name[SESSION_NAME_BYTES];
    char *text;
    size_t len;
} waiting;

struct draft_keeper {
    pthread_mutex_t lock; /* guards all below except dir and thread */
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, is_ending, has_failed;
    err failure;
    waiting list[MAX_WAITING];
    int n;
    char *dir;
};

static void save(draft_keeper *k, const waiting *w) {
    err e = ERR_INIT;
    if (session_draft_save(k->dir, w->name, w->text, w->len, &e) == OK) return;
    pthread_mutex_lock(&k->lock);
    k->has_failed = true;
    k->failure = e;
    pthread_mutex_unlock(&k->lock);
}

/* Takes the oldest draft that waits; false when there is none. */
static bool take_locked(draft_keeper *k, waiting *out) {
    if (k->n == 0) return false;
    *out = k->list[0];
    k->n--;
    memmove(k->list, k->list + 1, (size_t)k->n * sizeof k->list[0]);
    return true;
}

static void *run_keeper(void *ctx) {
    draft_keeper *k = ctx;
    waiting w;
    pthread_mutex_lock(&k->lock);
    while (true) {
        if (take_locked(k, &w)) {
            pthread_mutex_unlock(&k->lock);
            save(k, &w);
            mem_free(w.text);
            pthread_mutex_lock(&k->lock);
        } else if (k->is_ending)
            break;
        else
            pthread_cond_wait(&k->changed, &k->lock);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

draft_keeper *draft_keeper_new(const char *session_dir) {
    draft_keeper *k = mem_alloc(sizeof *k);
    k->dir = mem_strdup(session_dir);
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->changed, NULL);
    /* Signals belong to the screen's thread. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    k->has_thread = pthread_create(&k->thread, NULL, run_keeper, k) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return k;
}

void draft_keeper_free(draft_keeper *k) {
    if (k == NULL) return;
    pthread_mutex_lock(&k->lock);
    k->is_ending = true;
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
    if (k->has_thread) pthread_join(k->thread, NULL);
    pthread_cond_destroy(&k->changed);
    pthread_mutex_destroy(&k->lock);
    mem_free(k->dir);
    mem_free(k);
}

/* The place for a name: the one that waits already, or a new one; NULL when all are taken. */
static waiting *place_locked(draft_keeper *k, const char *name) {
    for (int i = 0; i < k->n; i++) {
        if (str_eq(k->list[i].name, name)) return &k->list[i];
    }
    if (k->n == MAX_WAITING) return NULL;
    waiting *w = &k->list[k->n++];
    memset(w, 0, sizeof *w);
    str_copy(w->name, sizeof w->name, name);
    return w;
}

void draft_keeper_put(draft_keeper *k, const char *name, const char *text, size_t len) {
    waiting *w = NULL;
    if (k->has_thread) {
        pthread_mutex_lock(&k->lock);
        w = place_locked(k, name);
        if (w != NULL) {
            mem_free(w->text);
            w->text = mem_strndup(text, len);
            w->len = len;
            pthread_cond_signal(&k->changed);
        }
        pthread_mutex_unlock(&k->lock);
    }
    if (w != NULL) return;
    waiting now = {.text = mem_strndup(text, len), .len = len};
    str_copy(now.name, sizeof now.name, name);
    save(k, &now);
    mem_free(now.text);
}

bool draft_keeper_take_error(draft_keeper *k, err *e) {
    pthread_mutex_lock(&k->lock);
    bool has = k->has_failed;
    if (has) *e = k->failure;
    k->has_failed = false;
    pthread_mutex_unlock(&k->lock);
    return has;
}
