#include "engine/api/keys.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/api/keys_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

#define HOUR_MS 3600000u
#define HOUR_S 3600
/* Labels ever seen: their counts outlive a change of the file. */
#define USERS_MAX 1024
#define RETRY_BUSY_S 1

struct key_user {
    keys *owner;
    char label[KEYS_LABEL_MAX];
    key_limits limits;
    int64_t n_open, n_tokens; /* in the running hour */
    uint64_t hour_ms;
};

struct keys {
    pthread_mutex_t lock;
    char *path;
    struct timespec changed;
    off_t size;
    ino_t inode;
    bool is_awaited; /* it may come later and was not there yet */
    bool is_broken;
    key_line lines[KEYS_MAX];
    int n_lines;
    key_user *users[USERS_MAX];
    int n_users;
};

static bool look_changed_locked(keys *k) {
    struct stat st;
    if (stat(k->path, &st) != 0) {
        k->is_awaited = k->is_awaited && errno == ENOENT;
        k->is_broken = !k->is_awaited;
        k->size = -1;
        return false;
    }
    if (k->is_awaited) {
        LOG(LOG_INFO, "api", "key file found, a key is needed over TCP", "file=%s", k->path);
        k->is_awaited = false;
    }
    /* The time of the last change of anything: chmod counts too. */
    bool is_same = st.st_ctim.tv_sec == k->changed.tv_sec &&
                   st.st_ctim.tv_nsec == k->changed.tv_nsec && st.st_size == k->size &&
                   st.st_ino == k->inode;
    k->changed = st.st_ctim;
    k->size = st.st_size;
    k->inode = st.st_ino;
    return !is_same;
}

static int load_locked(keys *k, err *e) {
    int rc = keys_read_file(k->path, k->lines, &k->n_lines, e);
    k->is_broken = rc != OK;
    return rc;
}

int keys_open(const char *path, bool may_come, keys **out, err *e) {
    keys *k = mem_alloc(sizeof *k);
    k->path = mem_strdup(path);
    k->is_awaited = may_come;
    pthread_mutex_init(&k->lock, NULL);
    look_changed_locked(k);
    int rc = k->is_awaited ? OK : load_locked(k, e);
    if (rc == OK && k->n_lines == 0 && !k->is_awaited) {
        LOG(LOG_WARN, "api", "the key file holds no key, so nobody gets in over TCP",
            "file=%s remedy=\"tandem api key new LABEL\"", path);
    }
    if (rc != OK) {
        keys_free(k);
        k = NULL;
    }
    *out = k;
    return rc;
}

void keys_free(keys *k) {
    if (k == NULL) return;
    for (int i = 0; i < k->n_users; i++) {
        mem_free(k->users[i]);
    }
    pthread_mutex_destroy(&k->lock);
    mem_free(k->path);
    mem_free(k);
}

/* Every line is compared, so that time tells nothing about where a key stands. */
static const key_line *find_locked(const keys *k, const uint8_t digest[SHA256_BYTES]) {
    const key_line *found = NULL;
    for (int i = 0; i < k->n_lines; i++) {
        if (sha256_equal(k->lines[i].digest, digest)) found = &k->lines[i];
    }
    return found;
}

static key_user *user_locked(keys *k, const key_line *line) {
    for (int i = 0; i < k->n_users; i++) {
        if (strcmp(k->users[i]->label, line->label) == 0) {
            if (k->users[i]->n_open == 0) k->users[i]->limits = line->limits;
            return k->users[i];
        }
    }
    if (k->n_users == USERS_MAX) return NULL;
    key_user *u = mem_alloc(sizeof *u);
    u->owner = k;
    u->limits = line->limits;
    str_copy(u->label, sizeof u->label, line->label);
    k->users[k->n_users++] = u;
    return u;
}

static int check_limits_locked(key_user *u, int *retry_s, err *e) {
    uint64_t now = clock_mono_ms();
    if (u->hour_ms == 0 || now - u->hour_ms >= HOUR_MS) {
        u->hour_ms = now;
        u->n_tokens = 0;
    }
    if (u->limits.requests > 0 && u->n_open >= u->limits.requests) {
        *retry_s = RETRY_BUSY_S;
        return err_set(
            e, ERR_FULL, "the key has %lld requests running, its limit", (long long)u->n_open);
    }
    if (u->limits.tokens > 0 && u->n_tokens >= u->limits.tokens) {
        *retry_s = HOUR_S - (int)((now - u->hour_ms) / 1000);
        return err_set(e, ERR_FULL, "the key has used its %lld tokens of this hour",
            (long long)u->limits.tokens);
    }
    return OK;
}

static void refresh_locked(keys *k) {
    err why = ERR_INIT;
    if (look_changed_locked(k) && load_locked(k, &why) != OK) {
        LOG(LOG_ERROR, "api", "key file unusable, nobody gets in", "why=\"%s\"", why.msg);
    }
}

bool keys_count(keys *k) {
    pthread_mutex_lock(&k->lock);
    refresh_locked(k);
    bool do_count = !k->is_awaited;
    pthread_mutex_unlock(&k->lock);
    return do_count;
}

static int enter_locked(
    keys *k, const uint8_t digest[SHA256_BYTES], key_user **out, int *retry_s, err *e) {
    const key_line *line = k->is_broken ? NULL : find_locked(k, digest);
    key_user *u = line != NULL ? user_locked(k, line) : NULL;
    if (u == NULL) return err_set(e, ERR_AUTH, "the key is not known here");
    int rc = check_limits_locked(u, retry_s, e);
    if (rc != OK) return rc;
    u->n_open++;
    *out = u;
    return OK;
}

int keys_enter(keys *k, const char *given, key_user **out, int *retry_s, err *e) {
    uint8_t digest[SHA256_BYTES];
    int rc = OK;
    *out = NULL;
    if (given != NULL) sha256_of(given, strlen(given), digest);
    pthread_mutex_lock(&k->lock);
    refresh_locked(k);
    if (k->is_awaited) {
        rc = OK;
    } else if (given == NULL) {
        rc = err_set(e, ERR_AUTH, "a key is needed");
    } else {
        rc = enter_locked(k, digest, out, retry_s, e);
    }
    pthread_mutex_unlock(&k->lock);
    return rc;
}

void keys_leave(key_user *u, int64_t n_tokens) {
    if (u == NULL) return;
    pthread_mutex_lock(&u->owner->lock);
    u->n_open--;
    u->n_tokens += n_tokens;
    pthread_mutex_unlock(&u->owner->lock);
}

const char *key_user_label(const key_user *u) {
    return u->label;
}

const key_limits *key_user_limits(const key_user *u) {
    return &u->limits;
}
