#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"

int dir_make_all(const char *path, mode_t mode, err *e) {
    char *copy = mem_strdup(path);
    int rc = OK;
    for (char *at = copy + (copy[0] == '/');; at++) {
        if (*at != '/' && *at != '\0') continue;
        char end = *at;
        *at = '\0';
        int why = copy[0] == '\0' || mkdir(copy, mode) == 0 ? 0 : errno;
        if (why != 0 && !dir_exists(copy)) {
            errno = why;
            rc = err_errno(e, "cannot make the folder %s", copy);
            break;
        }
        *at = end;
        if (end == '\0') break;
    }
    mem_free(copy);
    return rc;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

typedef struct name_list {
    char **names;
    size_t n;
    size_t cap;
} name_list;

static void name_list_release(name_list *l) {
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->names[i]);
    mem_free(l->names);
}

static int name_list_read(name_list *l, const char *path, err *e) {
    DIR *d = opendir(path);
    if (d == NULL) return err_errno(e, "cannot open the folder %s", path);
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(d);
        if (entry == NULL) break;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (l->n == l->cap) {
            l->cap = l->cap == 0 ? 16 : l->cap * 2;
            l->names = mem_realloc(l->names, l->cap * sizeof *l->names);
        }
        l->names[l->n++] = mem_strdup(entry->d_name);
    }
    int rc = errno != 0 ? err_errno(e, "cannot read the folder %s", path) : OK;
    (void)closedir(d);
    if (l->n > 1) qsort(l->names, l->n, sizeof *l->names, compare_names);
    return rc;
}

int dir_each(const char *path, int (*fn)(void *ctx, const char *name, err *e), void *ctx, err *e) {
    name_list list = {0};
    int rc = name_list_read(&list, path, e);
    for (size_t i = 0; rc == OK && i < list.n; i++)
        rc = fn(ctx, list.names[i], e);
    name_list_release(&list);
    return rc;
}

/* Depth is bounded by the file system's own path limit, not by outside data. */
static int remove_entry(void *ctx, const char *name, err *e) {
    buf path = BUF_INIT;
    struct stat st;
    int rc = path_join(&path, ctx, name);
    if (rc == OK && lstat(path.data, &st) != 0) rc = err_errno(e, "cannot look at %s", path.data);
    if (rc == OK && S_ISDIR(st.st_mode)) {
        rc = dir_remove_all(path.data, e);
    } else if (rc == OK) {
        rc = file_remove(path.data, e);
    }
    buf_release(&path);
    return rc;
}

int dir_remove_all(const char *path, err *e) {
    struct stat st;
    if (lstat(path, &st) != 0) {
        return errno == ENOENT ? OK : err_errno(e, "cannot look at %s", path);
    }
    if (!S_ISDIR(st.st_mode)) return err_set(e, ERR_ARG, "%s is not a folder", path);
    char *copy = mem_strdup(path);
    int rc = dir_each(path, remove_entry, copy, e);
    mem_free(copy);
    if (rc == OK && rmdir(path) != 0) rc = err_errno(e, "cannot remove the folder %s", path);
    return rc;
}
