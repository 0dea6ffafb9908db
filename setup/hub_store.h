/* Files under one data root, by safe relative paths only: no part of a path may be a link or lead
 * out of the root. Also what says that a file is sound: its digest, and the record NAME.ok that later
 * starts trust while size, time and inode stay the same. Any thread; the struct is read-only after
 * store_open. */
#ifndef SETUP_HUB_STORE_H
#define SETUP_HUB_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "setup/manifest.h"

typedef struct store {
    int fd;
    char *root; /* as given, for messages */
} store;

/* Makes the folder when it is missing. */
int store_open(store *s, const char *root, err *e);
void store_close(store *s);

/* Opens a file; with O_CREAT its folders are made (0755). Never follows a link. */
int store_file(const store *s, const char *rel, int flags, int *fd, err *e);
/* ERR_NOT_FOUND when there is none; ERR_FORMAT when it is no regular file. */
int store_stat(const store *s, const char *rel, struct stat *st, err *e);
/* Reads a small file; a missing one is ERR_NOT_FOUND. */
int store_read(const store *s, const char *rel, buf *out, size_t max, err *e);
/* The old file or the whole new one, flushed. */
int store_write(const store *s, const char *rel, const void *data, size_t len, err *e);
int store_remove(const store *s, const char *rel, err *e);
/* Never replaces: ERR_EXISTS. Flushes the folder. */
int store_rename(const store *s, const char *from, const char *to, err *e);
/* A hard link when possible, else a clone or a copy of an outside file. */
int store_import(const store *s, const char *outside, const char *rel, bool *is_link, err *e);
uint64_t store_free_bytes(const store *s);

/* A digest as it grows. */
typedef struct store_digest store_digest;
store_digest *store_digest_new(manifest_digest kind, uint64_t size);
void store_digest_free(store_digest *d);
void store_digest_update(store_digest *d, const void *data, size_t n);
/* Lower-case hexadecimal; d is finished. For MANIFEST_SIZE_ONLY the text is empty. */
void store_digest_finish(store_digest *d, char hex[65]);

/* The record REL.ok for the file as it is now. */
int store_ok_write(const store *s, const char *rel, const manifest_file *f, err *e);
/* True when the record fits the file and the manifest. */
bool store_ok_holds(const store *s, const char *rel, const manifest_file *f);
/* What a journal is bound to: digest of size, kind and digest of the file. */
void store_content_id(const manifest_file *f, uint8_t id[32]);

#endif
