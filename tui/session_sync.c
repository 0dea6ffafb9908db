#include "tui/session_sync.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"

struct session_sync {
    pthread_mutex_t lock; /* guards the flags and the failure */
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, is_wanted, is_dir_flushed, is_ending;
    err failure; /* code OK: none */
    int fd;
    char *dir;
};

/* Not under the lock: the owner goes on writing meanwhile. */
static void flush(session_sync *s) {
    err e = ERR_INIT;
    int rc = OK;
    if (!s->is_dir_flushed) rc = dir_sync(s->dir, &e);
    if (rc == OK) s->is_dir_flushed = true;
    if (rc == OK && fdatasync(s->fd) != 0) rc = err_errno(&e, "cannot write the session");
    if (rc == OK) return;
    pthread_mutex_lock(&s->lock);
    s->failure = e;
    pthread_mutex_unlock(&s->lock);
}

static void *run_sync(void *ctx) {
    session_sync *s = ctx;
    pthread_mutex_lock(&s->lock);
    while (true) {
        if (s->is_wanted) {
            s->is_wanted = false;
            pthread_mutex_unlock(&s->lock);
            flush(s);
            pthread_mutex_lock(&s->lock);
        } else if (s->is_ending)
            break;
        else
            pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

session_sync *session_sync_new(int fd, const char *dir) {
    session_sync *s = mem_alloc(sizeof *s);
    s->fd = fd;
    s->dir = mem_strdup(dir);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    /* Signals belong to the owner's thread. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    s->has_thread = pthread_create(&s->thread, NULL, run_sync, s) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return s;
}

void session_sync_free(session_sync *s) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    s->is_ending = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    mem_free(s->dir);
    mem_free(s);
}

void session_sync_want(session_sync *s) {
    if (!s->has_thread) {
        flush(s);
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->is_wanted = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

int session_sync_take_error(session_sync *s, err *e) {
    if (s == NULL) return OK;
    pthread_mutex_lock(&s->lock);
    err failure = s->failure;
    s->failure = (err)ERR_INIT;
    pthread_mutex_unlock(&s->lock);
    if (failure.code != OK && e != NULL) *e = failure;
    return failure.code;
}
