#include "setup/cache_wipe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/str.h"

enum { NAME_DIGITS = 16 };

static bool is_ours(const char *name) {
    return str_starts(name, "segment-") || str_starts(name, "manifest-");
}

static bool is_cache_folder(const char *name) {
    return strlen(name) == NAME_DIGITS && strspn(name, "0123456789abcdef") == NAME_DIGITS;
}

static int remove_file(int dir_fd, const char *name, cache_wiped *out, err *e) {
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return OK; /* gone meanwhile */
    if (unlinkat(dir_fd, name, 0) != 0) return err_errno(e, "removing %s", name);
    out->n_files++;
    if (S_ISREG(st.st_mode)) out->bytes += (uint64_t)st.st_size;
    return OK;
}

/* Calls fn for each name in the folder; takes the descriptor. */
static int each_name(int fd, int (*fn)(int dir_fd, const char *name, cache_wiped *out, err *e),
    cache_wiped *out, err *e) {
    DIR *d = fdopendir(fd);
    int rc = OK;
    if (d == NULL) {
        rc = err_errno(e, "reading the cache folder");
        close(fd);
        return rc;
    }
    for (struct dirent *x = readdir(d); x != NULL && rc == OK; x = readdir(d))
        rc = fn(dirfd(d), x->d_name, out, e);
    closedir(d);
    return rc;
}

static int wipe_name(int dir_fd, const char *name, cache_wiped *out, err *e) {
    return is_ours(name) ? remove_file(dir_fd, name, out, e) : OK;
}

static int wipe_folder(int parent_fd, const char *name, cache_wiped *out, err *e) {
    if (!is_cache_folder(name)) return OK;
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP || errno == ENOENT)) return OK;
    if (fd < 0) return err_errno(e, "opening the cache folder %s", name);
    int lock = openat(fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0) {
        out->n_busy++;
        close(lock);
        close(fd);
        return OK;
    }
    int rc = each_name(dup(fd), wipe_name, out, e);
    if (rc == OK) (void)unlinkat(fd, "lock", 0);
    if (lock >= 0) close(lock);
    close(fd);
    /* What is not ours keeps the folder. */
    if (rc == OK) (void)unlinkat(parent_fd, name, AT_REMOVEDIR);
    return rc;
}

int cache_wipe(const char *dir, cache_wiped *out, err *e) {
    *out = (cache_wiped){0};
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return OK;
    if (fd < 0) return err_errno(e, "opening the cache folder %s", dir);
    return each_name(fd, wipe_folder, out, e);
}
