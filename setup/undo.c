/* The journal itself: reading and appending. Taking back is undo_apply.c. */
#include "setup/undo.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "setup/undo_internal.h"

enum { JOURNAL_MAX = 64 << 20 };

static const char *const KINDS[UNDO_KINDS] = {
    "file", "line", "known-host", "netplan", "setting", "folder", "data", "command"};

const char *undo_kind_name(undo_kind k) {
    return KINDS[k];
}

int undo_journal_path(buf *out, err *e) {
    int rc = paths_state(out, e);
    return rc == OK ? buf_puts(out, "/setup/undo.jsonl") : rc;
}

void undo_digest(const void *data, size_t len, char out[65]) {
    uint8_t raw[SHA256_BYTES];
    sha256_of(data, len, raw);
    sha256_hex(raw, out);
}

static void entry_release(undo_entry *x) {
    mem_free(x->step);
    mem_free(x->what);
    mem_free(x->path);
    mem_free(x->text);
    mem_free(x->before);
}

void undo_list_release(undo_list *l) {
    for (size_t i = 0; i < l->n; i++)
        entry_release(&l->entries[i]);
    mem_free(l->entries);
    *l = (undo_list){0};
}

static char *text_of(const json *v, const char *key) {
    const char *s = json_str(json_get(v, key));
    return mem_strdup(s != NULL ? s : "");
}

static bool kind_of(const char *name, undo_kind *out) {
    for (int i = 0; i < UNDO_KINDS && name != NULL; i++) {
        if (str_eq(name, KINDS[i])) {
            *out = (undo_kind)i;
            return true;
        }
    }
    return false;
}

static void take_line(undo_list *l, const json *v) {
    undo_entry x = {0};
    int64_t undone = 0;
    if (json_i64(json_get(v, "undone"), &undone) == OK) {
        for (size_t i = 0; i < l->n; i++) {
            if (l->entries[i].id == undone) l->entries[i].is_undone = true;
        }
        return;
    }
    if (json_i64(json_get(v, "id"), &x.id) != OK) return;
    if (!kind_of(json_str(json_get(v, "kind")), &x.kind)) return;
    const char *before = json_str(json_get(v, "before"));
    json_u64(json_get(v, "time_ms"), &x.time_ms);
    x.is_worker = str_eq(json_str(json_get(v, "node")), "worker");
    x.step = text_of(v, "step");
    x.what = text_of(v, "what");
    x.path = text_of(v, "path");
    x.text = text_of(v, "text");
    x.before = before != NULL ? mem_strdup(before) : NULL;
    const char *digest = json_str(json_get(v, "digest"));
    str_copy(x.digest, sizeof x.digest, digest != NULL ? digest : "");
    l->entries = mem_realloc(l->entries, (l->n + 1) * sizeof *l->entries);
    l->entries[l->n++] = x;
}

int undo_load(undo_list *l, const char *path, err *e) {
    buf text = BUF_MAX(JOURNAL_MAX);
    err why = ERR_INIT;
    *l = (undo_list){0};
    int rc = file_read(path, &text, JOURNAL_MAX, &why);
    if (rc == ERR_NOT_FOUND) {
        buf_release(&text);
        return OK;
    }
    if (rc != OK && e != NULL) *e = why;
    for (const char *s = buf_cstr(&text); rc == OK && *s != '\0';) {
        size_t n = strcspn(s, "\n");
        json *v = NULL;
        /* A line that was cut off by a crash says nothing that was done. */
        if (s[n] == '\n' && json_parse(s, n, NULL, &v, NULL) == OK) take_line(l, v);
        json_free(v);
        s += n + (s[n] == '\n');
    }
    buf_release(&text);
    return rc;
}

/* Appends one line under a lock, after a line break that a crash may have left out. */
static int append(const char *path, const buf *line, err *e) {
    buf dir = BUF_INIT;
    int rc = path_dir(&dir, path);
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    buf_release(&dir);
    if (rc != OK) return rc;
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return err_errno(e, "opening %s", path);
    char last = '\n';
    (void)flock(fd, LOCK_EX);
    off_t end = lseek(fd, 0, SEEK_END);
    if (end > 0 && pread(fd, &last, 1, end - 1) != 1) last = '\n';
    if (last != '\n') rc = fd_write_full(fd, "\n", 1, e);
    if (rc == OK) rc = fd_write_full(fd, line->data, line->len, e);
    if (rc == OK && fsync(fd) != 0) rc = err_errno(e, "writing %s", path);
    close(fd);
    return rc;
}

static bool is_same(const undo_entry *a, const undo_entry *b) {
    return !a->is_undone && a->kind == b->kind && a->is_worker == b->is_worker &&
           str_eq(a->path, b->path != NULL ? b->path : "") &&
           str_eq(a->text, b->text != NULL ? b->text : "") && str_eq(a->digest, b->digest);
}

static void write_entry(const undo_entry *x, buf *line) {
    json_w w;
    json_w_begin(&w, line);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    json_w_ki64(&w, "id", x->id);
    json_w_ku64(&w, "time_ms", x->time_ms);
    json_w_kstr(&w, "step", x->step);
    json_w_kstr(&w, "node", x->is_worker ? "worker" : "head");
    json_w_kstr(&w, "kind", KINDS[x->kind]);
    json_w_kstr(&w, "what", x->what);
    json_w_kstr(&w, "path", x->path);
    json_w_kstr(&w, "text", x->text);
    json_w_kstr(&w, "before", x->before);
    json_w_kstr(&w, "digest", x->digest);
    json_w_close(&w);
    (void)json_w_end(&w);
    (void)buf_putc(line, '\n');
}

int undo_add(const char *path, undo_entry *x, err *e) {
    undo_list l;
    buf line = BUF_INIT;
    int rc = undo_load(&l, path, e);
    bool is_there = false;
    x->id = 1;
    for (size_t i = 0; i < l.n && rc == OK; i++) {
        if (is_same(&l.entries[i], x)) is_there = true;
        if (l.entries[i].id >= x->id) x->id = l.entries[i].id + 1;
    }
    undo_list_release(&l);
    if (rc != OK || is_there) return rc;
    x->time_ms = clock_wall_ms();
    write_entry(x, &line);
    rc = append(path, &line, e);
    buf_release(&line);
    return rc;
}

int undo_mark_done(const char *path, int64_t id, err *e) {
    buf line = BUF_INIT;
    int rc = buf_printf(&line, "{\"v\":1,\"undone\":%lld,\"time_ms\":%llu}\n", (long long)id,
        (unsigned long long)clock_wall_ms());
    if (rc == OK) rc = append(path, &line, e);
    buf_release(&line);
    return rc;
}
