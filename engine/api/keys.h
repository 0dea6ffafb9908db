/* The keys of the TCP endpoint (api.md 1): a file, mode 0600, one key a line,
 *   LABEL sha256:HEX [requests=N] [tokens=N] [seconds=N] [context=N]
 * or a bare key written by hand. Only digests are held in memory. The file is read again when it
 * changes; while it cannot be read or is damaged nobody gets in. A file that may come later counts
 * from the moment it is there: until then everybody gets in. Limits of a key: requests at once,
 * tokens (prompt and reply) in an hour, seconds of one request, tokens of prompt and reply together.
 * Threads: any. */
#ifndef TANDEM_API_KEYS_H
#define TANDEM_API_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

#define KEYS_LABEL_MAX 64
#define KEYS_MAX 256
#define KEY_TEXT_PREFIX "sk-tandem-"

typedef struct keys keys;
/* One client of a key while a request lasts. */
typedef struct key_user key_user;

typedef struct key_limits {
    int64_t requests, tokens, seconds, context; /* 0: none */
} key_limits;

/* The file must be readable now, unless it may_come later and is not there yet: errors name the line
 * and the remedy. */
int keys_open(const char *path, bool may_come, keys **out, err *e);
void keys_free(keys *k);

/* Whether a key is needed: the file is there, or was. */
bool keys_count(keys *k);
/* given NULL: the client shows none. ERR_AUTH: no such key. ERR_FULL: the key is at a limit; the message says which and *retry_s when
 * to come again. On OK the caller gives *out back with keys_leave; it is NULL
 * while no key is needed. */
int keys_enter(keys *k, const char *given, key_user **out, int *retry_s, err *e);
void keys_leave(key_user *u, int64_t n_tokens);
const char *key_user_label(const key_user *u);
const key_limits *key_user_limits(const key_user *u);

/* For the program that makes keys. A fresh key as text (cap at least 64). */
void key_make(char *out, size_t cap);
/* Appends a key to the file, making it if needed. ERR_EXISTS: the label is taken. */
int keys_add(
    const char *path, const char *label, const char *key, const key_limits *limits, err *e);
/* Takes the label's line out. ERR_NOT_FOUND. */
int keys_remove(const char *path, const char *label, err *e);
/* Calls fn for each key of the file; bare keys have the label "bare-" and their digest's first 8
 * digits. */
int keys_each(const char *path, void (*fn)(void *ctx, const char *label, const key_limits *limits),
    void *ctx, err *e);

#endif
