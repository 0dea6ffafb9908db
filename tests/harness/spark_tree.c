#include "tests/harness/spark_tree.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

typedef struct laying {
    const char *file, *root;
    int k;
    bool is_dry, is_removing;
    buf *names;       /* gets the paths, each with a line feed before and after; NULL: not wanted */
    const char *only; /* writes only paths of this list; NULL: all */
    spark_fault *fault;
    char path[400]; /* of the record that is open, "" none */
    mode_t mode;
    buf text;
} laying;

static _Noreturn void broken(const laying *l, const char *why) {
    fprintf(stderr, "%s: %s\n", l->file, why);
    exit(1);
}

/* {{k}}, {{h}} (0 or 1) and {{gid}} (0a or 0b) of the machine. */
static void put(const laying *l, const char *text, size_t n, buf *out) {
    static const char *const marks[] = {"{{k}}", "{{h}}", "{{gid}}"};
    const char *const values[] = {
        l->k == 1 ? "1" : "2", l->k == 1 ? "0" : "1", l->k == 1 ? "0a" : "0b"};
    for (size_t i = 0; i < n;) {
        size_t used = 0;
        for (int m = 0; m < 3; m++) {
            size_t len = strlen(marks[m]);
            if (n - i >= len && memcmp(text + i, marks[m], len) == 0) {
                (void)buf_puts(out, values[m]);
                used = len;
                break;
            }
        }
        if (used == 0) (void)buf_putc(out, text[i]);
        i += used > 0 ? used : 1;
    }
}

static void make_parent(const laying *l, const char *path) {
    buf dir = BUF_INIT;
    if (path_dir(&dir, path) != OK || dir_make_all(buf_cstr(&dir), 0755, NULL) != OK) {
        broken(l, "no folder");
    }
    buf_release(&dir);
}

static bool is_wanted(const laying *l) {
    if (l->only == NULL) return true;
    buf name = BUF_INIT;
    (void)buf_printf(&name, "\n%s\n", l->path);
    bool is = strstr(l->only, buf_cstr(&name)) != NULL;
    buf_release(&name);
    return is;
}

static void close_record(laying *l) {
    if (l->path[0] != '\0' && l->is_removing) (void)unlink(l->path);
    if (l->path[0] != '\0' && !l->is_dry && is_wanted(l)) {
        make_parent(l, l->path);
        (void)unlink(l->path);
        /* Thousands of files: written plainly, without waiting for the disk. */
        int fd = open(l->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, l->mode);
        if (fd < 0 || fd_write_full(fd, buf_cstr(&l->text), l->text.len, NULL) != OK) {
            broken(l, "a file cannot be written");
        }
        close(fd);
    }
    l->path[0] = '\0';
    buf_reset(&l->text);
}

static void full_path(const laying *l, const char *path, char out[400]) {
    (void)snprintf(out, 400, "%s%s", l->root != NULL ? l->root : "", path);
}

static void open_record(laying *l, char *line) {
    char *save = NULL, *kind = strtok_r(line, " ", &save), *first = strtok_r(NULL, " ", &save);
    char path[400];
    if (first == NULL) broken(l, "a record without a path");
    full_path(l, first, path);
    if (l->names != NULL && (str_eq(kind, "@file") || str_eq(kind, "@remove"))) {
        (void)buf_printf(l->names, "\n%s\n", path);
    }
    if (str_eq(kind, "@file")) {
        char *mode = strtok_r(NULL, " ", &save);
        str_copy(l->path, sizeof l->path, path);
        l->mode = mode != NULL ? 0755 : 0644;
    } else if (str_eq(kind, "@link")) {
        char *target = strtok_r(NULL, " ", &save);
        if (target == NULL) broken(l, "a link without a target");
        if (!l->is_dry && l->only == NULL) make_parent(l, path);
        if (!l->is_dry && l->only == NULL && symlink(target, path) != 0)
            broken(l, "a link cannot be made");
    } else if (str_eq(kind, "@remove")) {
        if (!l->is_dry && unlink(path) != 0) broken(l, "nothing to remove");
    } else if (str_eq(kind, "@node") && l->fault != NULL) {
        str_copy(l->fault->node, sizeof l->fault->node, first);
    } else if (str_eq(kind, "@expect") && l->fault != NULL && l->fault->n_expect < 12) {
        spark_expect *x = &l->fault->expect[l->fault->n_expect++];
        char *id = strtok_r(NULL, " ", &save), *status = strtok_r(NULL, " ", &save);
        char *rest = strtok_r(NULL, "", &save);
        if (status == NULL) broken(l, "an expectation needs machine, check and status");
        str_copy(x->node, sizeof x->node, first);
        str_copy(x->id, sizeof x->id, id);
        str_copy(x->status, sizeof x->status, status);
        str_copy(x->contains, sizeof x->contains, rest != NULL ? rest : "");
    } else {
        broken(l, "an unknown record");
    }
}

static void lay(laying *l) {
    buf all = BUF_INIT;
    err e = ERR_INIT;
    if (file_read(l->file, &all, 1 << 20, &e) != OK) broken(l, e.msg);
    if (l->fault != NULL) *l->fault = (spark_fault){.n_expect = 0};
    for (char *p = all.data; p != NULL && *p != '\0';) {
        char *end = strchr(p, '\n');
        size_t n = end != NULL ? (size_t)(end - p) : strlen(p);
        if (*p == '@') {
            close_record(l);
            char *line = mem_strndup(p, n);
            open_record(l, line);
            mem_free(line);
        } else if (l->path[0] != '\0') {
            put(l, p, n, &l->text);
            (void)buf_putc(&l->text, '\n');
        }
        p = end != NULL ? end + 1 : NULL;
    }
    close_record(l);
    buf_release(&l->text);
    buf_release(&all);
}

void spark_tree_lay(const char *file, const char *root, int k, spark_fault *fault) {
    laying l = {.file = file, .root = root, .k = k, .fault = fault, .text = BUF_INIT};
    spark_fault unused;
    if (fault == NULL) l.fault = &unused;
    lay(&l);
}

void spark_tree_expect(const char *file, spark_fault *fault) {
    laying l = {.file = file, .root = "", .k = 1, .is_dry = true, .fault = fault, .text = BUF_INIT};
    lay(&l);
}

void spark_tree_restore(const char *healthy, const char *fault_file, const char *root, int k) {
    buf names = BUF_INIT;
    spark_fault unused;
    laying away = {.file = fault_file,
        .root = root,
        .k = k,
        .is_dry = true,
        .is_removing = true,
        .names = &names,
        .fault = &unused,
        .text = BUF_INIT};
    lay(&away);
    laying back = {.file = healthy,
        .root = root,
        .k = k,
        .only = buf_cstr(&names),
        .fault = &unused,
        .text = BUF_INIT};
    lay(&back);
    buf_release(&names);
}
