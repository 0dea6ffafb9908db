#include "setup/need.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/str.h"

enum { LIST_MAX = 8 << 20, BLOCK = 512 };
/* Prepared files of one rank of two against the weights: 106.5 GB of 210.6 GB. */
#define PREPARED_SHARE 0.5055

typedef struct listing {
    buf files;   /* "SIZE BLOCKS PATH" a line */
    buf records; /* "PATH.ok:TEXT" a line */
    buf root;
} listing;

static int run(node_access *n, const char *const *argv, buf *out, err *e) {
    remote_result r;
    node_command c = {.argv = argv, .max_out = LIST_MAX, .timeout_ms = 60000};
    remote_result_init(&r);
    int rc = node_run(n, &c, &r, e);
    if (rc == OK)
        rc = buf_append(out, r.out.data, r.out.len); /* what was found counts, not the code */
    remote_result_release(&r);
    return rc;
}

static int read_listing(node_access *n, const char *profile, listing *l, err *e) {
    static const char *const folders[] = {"models", "engram", "prepared"};
    buf path[3] = {BUF_INIT, BUF_INIT, BUF_INIT};
    for (int i = 0; i < 3; i++) {
        buf_printf(&path[i], "%s/%s/%s", buf_cstr(&l->root), folders[i], profile);
    }
    const char *const find[] = {"find", buf_cstr(&path[0]), buf_cstr(&path[1]), buf_cstr(&path[2]),
        "-type", "f", "-printf", "%s %b %p\\n", NULL};
    const char *const grep[] = {
        "grep", "-rH", "--include=*.ok", "", buf_cstr(&path[0]), buf_cstr(&path[1]), NULL};
    int rc = run(n, find, &l->files, e);
    if (rc == OK) rc = run(n, grep, &l->records, e);
    for (int i = 0; i < 3; i++) {
        buf_release(&path[i]);
    }
    return err_add(e, rc, "listing the files of %s on the %s", profile, node_access_name(n));
}

/* The rest of the line that begins with these words, NULL when there is none. */
static const char *line_of(const buf *text, const char *begin) {
    size_t n = strlen(begin);
    for (const char *line = text->data; line != NULL && *line != '\0';) {
        if (strncmp(line, begin, n) == 0) return line + n;
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return NULL;
}

/* Size and bytes on the disk of a file; false when it is not there. */
static bool find_file(const listing *l, const char *path, uint64_t *size, uint64_t *on_disk) {
    size_t n = strlen(path);
    for (const char *line = l->files.data; line != NULL && *line != '\0';) {
        char *rest = NULL;
        unsigned long long bytes = strtoull(line, &rest, 10);
        unsigned long long blocks = *rest == ' ' ? strtoull(rest + 1, &rest, 10) : 0;
        if (*rest == ' ' && strncmp(rest + 1, path, n) == 0 && rest[1 + n] == '\n') {
            *size = bytes;
            *on_disk = blocks * BLOCK;
            return true;
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return false;
}

static void look_at(const listing *l, const manifest *m, const manifest_file *f, need *out) {
    buf rel = BUF_INIT, path = BUF_INIT;
    uint64_t size = 0, on_disk = 0;
    (void)manifest_place(m, f, &rel);
    buf_printf(&path, "%s/%s", buf_cstr(&l->root), buf_cstr(&rel));
    out->n_files++;
    if (find_file(l, buf_cstr(&path), &size, &on_disk) && size == f->size) {
        out->n_there++;
        buf_puts(&path, ".ok:");
        const char *record = line_of(&l->records, buf_cstr(&path));
        const char *end = record != NULL ? strchr(record, '\n') : NULL;
        const char *digest = record != NULL ? strstr(record, f->digest) : NULL;
        bool holds = digest != NULL && (end == NULL || digest < end);
        out->n_verified += holds;
        if (record != NULL && !holds && out->wrong[0] == '\0')
            str_copy(out->wrong, sizeof out->wrong, f->path);
    } else {
        buf_puts(&path, ".part"); /* what is kept for it already is not needed again */
        if (!find_file(l, buf_cstr(&path), &size, &on_disk)) on_disk = 0;
        out->files_bytes += on_disk < f->size ? f->size - on_disk : 0;
    }
    buf_release(&rel);
    buf_release(&path);
}

static uint64_t prepared_missing(const listing *l, const manifest *m, int i_node) {
    char name[48];
    uint64_t weights = 0;
    snprintf(name, sizeof name, "/rank-%d-of-2.pack\n", i_node);
    if (l->files.len > 0 && strstr(l->files.data, name) != NULL) return 0;
    for (size_t i = 0; i < m->n_files; i++) {
        weights += m->files[i].role == MANIFEST_WEIGHTS ? m->files[i].size : 0;
    }
    return (uint64_t)((double)weights * PREPARED_SHARE);
}

int need_find(node_access *n, const settings *s, const manifest *m, int i_node, need *out, err *e) {
    const char *key = i_node == 0 ? "HEAD_DATA" : "WORKER_DATA";
    listing l = {.files = BUF_MAX(LIST_MAX), .records = BUF_MAX(LIST_MAX)};
    *out = (need){0};
    if (!settings_is_set(s, key)) return err_set(e, ERR_ARG, "%s is not set", key);
    buf_puts(&l.root, settings_get(s, key));
    int rc = read_listing(n, m->profile, &l, e);
    (void)buf_cstr(&l.files);
    (void)buf_cstr(&l.records);
    for (size_t i = 0; i < m->n_files && rc == OK; i++) {
        if (i_node == 0 || !m->files[i].is_head_only) look_at(&l, m, &m->files[i], out);
    }
    if (rc == OK) out->prepared_bytes = prepared_missing(&l, m, i_node);
    buf_release(&l.files);
    buf_release(&l.records);
    buf_release(&l.root);
    return rc;
}
