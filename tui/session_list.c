/* Sessions as files: list, find, delete, drafts. Reads journals without building their trees. */
#include "tui/session_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

/* How a turn's record begins: see record_put_turn. */
#define TURN_START "{\"t\":\"turn\",\"id\":"
#define PARENT_MARK ",\"parent\":"
#define USER_MARK ",\"role\":\"user\""

typedef struct scan {
    session_info *row;
    int last_id;
    uint8_t *has_child; /* by message id */
    size_t cap;
} scan;

static void scan_turn(scan *sc, const char *body) {
    char *end = NULL;
    long id = strtol(body + sizeof TURN_START - 1, &end, 10);
    if (id <= 0 || id > SESSION_MAX_TURNS || !str_starts(end, PARENT_MARK)) return;
    long parent = strtol(end + sizeof PARENT_MARK - 1, &end, 10);
    if ((size_t)id >= sc->cap) {
        size_t cap = 2 * (size_t)id + 64;
        sc->has_child = mem_realloc(sc->has_child, cap);
        memset(sc->has_child + sc->cap, 0, cap - sc->cap);
        sc->cap = cap;
    }
    if (parent > 0 && parent < id) sc->has_child[parent] = 1;
    if (id > sc->last_id && str_starts(end, USER_MARK)) sc->row->n_turns++;
    sc->last_id = (int)id;
}

static void scan_line(scan *sc, const char *body, size_t len) {
    if (len > sizeof TURN_START && strncmp(body, TURN_START, sizeof TURN_START - 1) == 0) {
        scan_turn(sc, body);
        return;
    }
    bool is_wanted = str_starts(body, "{\"t\":\"session\"") || str_starts(body, "{\"t\":\"title\"");
    json *v = NULL;
    if (!is_wanted || json_parse(body, len, NULL, &v, NULL) != OK) return;
    const char *title = json_str(json_get(v, "title"));
    if (title != NULL) str_copy(sc->row->title, sizeof sc->row->title, title);
    json_i64(json_get(v, "created_ms"), &sc->row->created_ms);
    json_free(v);
}

static void scan_text(session_info *row, const buf *all) {
    scan sc = {.row = row};
    size_t at = 0;
    if (journal_head(buf_cstr(all), all->len, &at, NULL) != OK) {
        row->is_damaged = true;
        return;
    }
    while (at < all->len) {
        size_t len = 0, used = 0;
        const char *body = journal_line(all->data + at, all->len - at, &len, &used);
        at += used;
        if (body != NULL) {
            scan_line(&sc, body, len);
        } else {
            row->is_damaged = true;
        }
    }
    for (int id = 1; id <= sc.last_id; id++) {
        if (!sc.has_child[id]) row->n_branches++;
    }
    mem_free(sc.has_child);
}

static void scan_file(const char *dir, session_info *row) {
    buf path = BUF_INIT, all = BUF_MAX(SESSION_MAX_BYTES);
    journal_path(&path, dir, row->name);
    struct stat st;
    int fd = open(buf_cstr(&path), O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0) {
        row->changed_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
        row->is_locked = journal_is_locked(fd);
    }
    if (fd >= 0) close(fd);
    if (fd >= 0 && file_read(buf_cstr(&path), &all, SESSION_MAX_BYTES, NULL) == OK) {
        scan_text(row, &all);
    } else {
        row->is_damaged = true;
    }
    buf_release(&path);
    buf_release(&all);
}

typedef struct list_ctx {
    session_info *rows;
    int n, cap;
} list_ctx;

static int list_one(void *ctx, const char *file, err *e) {
    (void)e;
    list_ctx *l = ctx;
    size_t n = strlen(file);
    if (file[0] == '.' || !str_ends(file, JOURNAL_ENDING)) return OK;
    n -= sizeof JOURNAL_ENDING - 1;
    if (n == 0 || n >= SESSION_NAME_BYTES) return OK;
    if (l->n == l->cap) {
        l->cap = l->cap > 0 ? 2 * l->cap : 16;
        l->rows = mem_realloc(l->rows, (size_t)l->cap * sizeof *l->rows);
    }
    session_info *row = &l->rows[l->n++];
    *row = (session_info){0};
    memcpy(row->name, file, n);
    return OK;
}

static int newest_first(const void *a, const void *b) {
    const session_info *x = a, *y = b;
    if (x->changed_ms != y->changed_ms) return x->changed_ms < y->changed_ms ? 1 : -1;
    return strcmp(y->name, x->name);
}

int session_list(const char *dir, session_info **rows, int *n_rows, err *e) {
    list_ctx l = {0};
    int rc = dir_each(dir, list_one, &l, e);
    if (rc != OK) {
        mem_free(l.rows);
        return rc;
    }
    for (int i = 0; i < l.n; i++)
        scan_file(dir, &l.rows[i]);
    if (l.n > 1) qsort(l.rows, (size_t)l.n, sizeof *l.rows, newest_first);
    *rows = l.rows;
    *n_rows = l.n;
    return OK;
}

/* How well a row fits: 4 name, 3 title, 2 start of the name, 1 start of the title, 0 not. */
static int fit(const session_info *row, const char *wanted) {
    if (str_eq(row->name, wanted)) return 4;
    if (str_eq_nocase(row->title, wanted)) return 3;
    if (str_starts(row->name, wanted)) return 2;
    size_t n = strlen(wanted);
    char start[sizeof row->title];
    if (n >= sizeof start) return 0;
    str_copy(start, n + 1, row->title);
    return str_eq_nocase(start, wanted) ? 1 : 0;
}

int session_find(const char *dir, const char *wanted, char name[SESSION_NAME_BYTES], err *e) {
    session_info *rows = NULL;
    int n = 0, best = 0, n_best = 0;
    int rc = session_list(dir, &rows, &n, e);
    if (rc != OK) return rc;
    buf names = BUF_INIT;
    for (int i = 0; i < n && wanted[0] != '\0'; i++) {
        int f = fit(&rows[i], wanted);
        if (f == 0 || f < best) continue;
        if (f > best) {
            n_best = 0;
            buf_reset(&names);
        }
        best = f;
        if (n_best++ == 0) str_copy(name, SESSION_NAME_BYTES, rows[i].name);
        if (n_best <= 5) buf_printf(&names, "%s%s", n_best > 1 ? ", " : "", rows[i].name);
    }
    mem_free(rows);
    if (n_best == 0) {
        rc = err_set(e, ERR_NOT_FOUND,
            "there is no session \"%.80s\"; `tandem sessions list` shows what there is", wanted);
    } else if (n_best > 1) {
        rc = err_set(e, ERR_ARG, "\"%.80s\" fits %d sessions (%s%s); give more of the name", wanted,
            n_best, buf_cstr(&names), n_best > 5 ? ", ..." : "");
    }
    buf_release(&names);
    return rc;
}

typedef struct delete_ctx {
    const char *dir, *name;
} delete_ctx;

static int delete_one(void *ctx, const char *file, err *e) {
    const delete_ctx *d = ctx;
    size_t n = strlen(d->name);
    bool is_ours = strncmp(file, d->name, n) == 0 &&
                   (str_eq(file + n, JOURNAL_ENDING) || str_eq(file + n, ".draft") ||
                       str_starts(file + n, ".damaged-"));
    if (!is_ours) return OK;
    buf path = BUF_INIT;
    path_join(&path, d->dir, file);
    int rc = file_remove(buf_cstr(&path), e);
    buf_release(&path);
    return rc;
}

int session_delete(const char *dir, const char *name, err *e) {
    buf path = BUF_INIT;
    journal_path(&path, dir, name);
    int rc = OK;
    int fd = open(buf_cstr(&path), O_RDWR | O_CLOEXEC);
    if (fd < 0) rc = err_set(e, ERR_NOT_FOUND, "there is no session %s", name);
    if (rc == OK) rc = journal_lock(fd, e);
    if (rc == OK) {
        delete_ctx d = {dir, name};
        rc = dir_each(dir, delete_one, &d, e);
    }
    if (fd >= 0) close(fd);
    if (rc == OK) rc = dir_sync(dir, e);
    buf_release(&path);
    return rc;
}

/* Drafts. */

static void draft_path(buf *out, const char *dir, const char *name) {
    int rc = name[0] != '\0' ? buf_printf(out, "%s/%s.draft", dir, name)
                             : buf_printf(out, "%s/.draft", dir);
    CHECK(rc == OK);
}

int session_draft_save(const char *dir, const char *name, const char *text, size_t len, err *e) {
    buf path = BUF_INIT;
    draft_path(&path, dir, name);
    int rc = len == 0 ? file_remove(buf_cstr(&path), e)
                      : file_write_atomic(buf_cstr(&path), text, len, 0600, e);
    buf_release(&path);
    return rc;
}

int session_draft_load(const char *dir, const char *name, buf *out, err *e) {
    buf path = BUF_INIT;
    draft_path(&path, dir, name);
    buf_reset(out);
    int rc = OK;
    if (file_exists(buf_cstr(&path))) {
        rc = file_read(buf_cstr(&path), out, SESSION_MAX_BYTES, e);
        /* A draft is a convenience: what cannot be a text is as good as none. */
        if (rc == OK && !utf8_valid(buf_cstr(out), out->len)) buf_reset(out);
    }
    buf_release(&path);
    return rc;
}
