#ifndef TANDEM_BASE_FILE_H
#define TANDEM_BASE_FILE_H
/* Whole files and paths. Every descriptor is close-on-exec. Errors name the path. Any thread. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

/* Reads a regular file (or pipe, /proc file) into b, replacing its content. More than max bytes is
 * ERR_LIMIT; a missing file is ERR_NOT_FOUND. */
int file_read(const char *path, buf *b, size_t max, err *e);
/* The old file or the whole new one, never a part: temporary file in the same folder, fsync,
 * rename, fsync of the folder. The mode is exact (not masked by umask). On failure the temporary
 * file is removed and the old file is untouched. */
int file_write_atomic(const char *path, const void *data, size_t len, mode_t mode, err *e);
bool file_exists(const char *path);
bool dir_exists(const char *path);
int file_size(const char *path, uint64_t *out, err *e);
/* OK also when there is nothing to remove. */
int file_remove(const char *path, err *e);
/* mkdir -p; new folders get mode. */
int dir_make_all(const char *path, mode_t mode, err *e);
/* fsync of a folder, so that a rename in it survives a power cut. */
int dir_sync(const char *path, err *e);
/* Calls fn with each entry name except . and .. in byte order; a non-OK return of fn stops the walk
 * and is returned. */
int dir_each(const char *path, int (*fn)(void *ctx, const char *name, err *e), void *ctx, err *e);
/* Removes a folder and all in it without following links. OK when it does not exist. */
int dir_remove_all(const char *path, err *e);

/* Exactly n bytes or an error; retries after signals and short transfers. End of file before n
 * bytes is ERR_FORMAT. */
int fd_read_full(int fd, void *p, size_t n, err *e);
int fd_read_at(int fd, void *p, size_t n, uint64_t offset, err *e);
int fd_write_full(int fd, const void *p, size_t n, err *e);
int fd_write_at(int fd, const void *p, size_t n, uint64_t offset, err *e);

/* Takes the flock of an open file alone, or ERR_BUSY. A process that was killed holds its locks until the
 * kernel is done with it, so one that is held is asked for again for two seconds. */
int fd_lock(int fd);

/* out = a "/" b with one slash between; b absolute gives b. Replaces the content of out. */
int path_join(buf *out, const char *a, const char *b);
/* The part after the last slash ("" when it ends in one); borrows from path. */
const char *path_base(const char *path);
/* out = the folder part as dirname(1) would say, "." when there is none. */
int path_dir(buf *out, const char *path);
/* Without links, "." and "..", as people want to read it; what is not there stays as it is. */
void path_real(buf *path);

#endif
