/* The journal file of a session: append, load, repair, lock. */
#include "tui/session_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

/* Given back when the disk is full, so that the turn in progress can still be finished. */
#define RESERVE_NAME ".reserve"
enum { RESERVE_BYTES = 16 << 20 };

void journal_path(buf *out, const char *dir, const char *name) {
    buf_reset(out);
    int rc = buf_printf(out, "%s/%s%s", dir, name, JOURNAL_ENDING);
    CHECK(rc == OK);
}

/* Locks. */

int journal_lock(int fd, err *e) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_SETLK, &whole) == 0) return OK;
    if (errno == EAGAIN || errno == EACCES) {
        return err_set(e, ERR_BUSY,
            "this session is open in another tandem; close it there or start a new session");
    }
    return err_errno(e, "cannot lock the session");
}

bool journal_is_locked(int fd) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

/* Appending. */

static void reserve_make(const char *dir) {
    buf path = BUF_INIT;
    buf_printf(&path, "%s/%s", dir, RESERVE_NAME);
    int fd = open(buf_cstr(&path), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
        /* No reserve is better than half of one: it must not be what fills the disk. */
        if (posix_fallocate(fd, 0, RESERVE_BYTES) != 0) unlink(buf_cstr(&path));
        close(fd);
    }
    buf_release(&path);
}

static bool reserve_drop(const char *dir) {
    buf path = BUF_INIT;
    buf_printf(&path, "%s/%s", dir, RESERVE_NAME);
    bool is_dropped = unlink(buf_cstr(&path)) == 0;
    buf_release(&path);
    return is_dropped;
}

static int file_make(session *s, err *e) {
    buf path = BUF_INIT, head = BUF_INIT;
    journal_path(&path, s->dir, s->name);
    reserve_make(s->dir);
    s->fd = open(buf_cstr(&path), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int rc = s->fd >= 0 ? journal_lock(s->fd, e) : err_errno(e, "cannot make %s", buf_cstr(&path));
    if (rc == OK) {
        buf_printf(&head, "%s %d\n", JOURNAL_MAGIC, JOURNAL_VERSION);
        rc = fd_write_full(s->fd, head.data, head.len, e);
    }
    if (rc == OK) s->end = head.len;
    if (rc != OK && s->fd >= 0) {
        unlink(buf_cstr(&path));
        close(s->fd);
        s->fd = -1;
    }
    buf_release(&path);
    buf_release(&head);
    return rc;
}

static int write_line(session *s, const buf *line, err *e) {
    int rc = fd_write_at(s->fd, line->data, line->len, s->end, e);
    if (rc != OK) {
        /* A half line would be a damaged record for the next reader. */
        if (ftruncate(s->fd, (off_t)s->end) != 0) return rc;
        return rc;
    }
    s->end += line->len;
    return OK;
}

/* A file size limit of the shell is as good as a full disk. */
static bool is_full(int rc) {
    return rc == ERR_FULL || rc == ERR_LIMIT;
}

static int full_sentence(const session *s, int rc, err *e) {
    err why = e != NULL ? *e : (err)ERR_INIT;
    if (!is_full(rc)) return rc;
    return err_set(e, ERR_FULL,
        "the session cannot be saved (%.200s); free some space under %s, nothing written so far is lost",
        why.msg, s->dir);
}

int journal_append(session *s, const buf *record, bool sync, err *e) {
    if (s->is_read_only) return err_set(e, ERR_ARG, "this session is open for reading only");
    int rc = s->fd < 0 ? file_make(s, e) : OK;
    buf line = BUF_MAX(SESSION_MAX_BYTES);
    if (rc == OK) {
        rc = buf_printf(&line, "%08zx %08x ", record->len, crc32c(0, record->data, record->len));
        if (rc == OK) rc = buf_append(&line, record->data, record->len);
        if (rc == OK) rc = buf_putc(&line, '\n');
        if (rc != OK) err_set(e, rc, "the turn is too long to keep");
    }
    if (rc == OK) {
        rc = write_line(s, &line, e);
        if (is_full(rc) && reserve_drop(s->dir)) rc = write_line(s, &line, e);
    }
    if (rc == OK && sync) {
        if (s->sync == NULL) s->sync = session_sync_new(s->fd, s->dir);
        session_sync_want(s->sync);
    }
    buf_release(&line);
    return full_sentence(s, rc, e);
}

/* Loading. */

int journal_head(const char *text, size_t len, size_t *used, err *e) {
    const char *end = memchr(text, '\n', len < 64 ? len : 64);
    char line[64];
    if (end == NULL || !str_starts(text, JOURNAL_MAGIC " ")) {
        return err_set(e, ERR_FORMAT, "the file does not begin as a session of Tandem does");
    }
    size_t n = (size_t)(end - text);
    memcpy(line, text, n);
    line[n] = '\0';
    int64_t version = 0;
    if (parse_i64(line + sizeof JOURNAL_MAGIC, &version) != OK) {
        return err_set(e, ERR_FORMAT, "the first line of the session file is damaged");
    }
    if (version != JOURNAL_VERSION) {
        return err_set(e, ERR_UNSUPPORTED,
            "the session was written in format %lld by another version of Tandem; this one reads "
            "format %d",
            (long long)version, JOURNAL_VERSION);
    }
    *used = n + 1;
    return OK;
}

static bool hex8(const char *p, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 8; i++) {
        char c = p[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return false;
        *out = *out << 4 | (uint32_t)digit;
    }
    return p[8] == ' ';
}

const char *journal_line(const char *text, size_t len, size_t *json_len, size_t *used) {
    const char *end = memchr(text, '\n', len);
    *used = end != NULL ? (size_t)(end - text) + 1 : len;
    if (end == NULL || *used < JOURNAL_PREFIX + 1) return NULL;
    uint32_t want_len = 0, want_crc = 0;
    if (!hex8(text, &want_len) || !hex8(text + 9, &want_crc)) return NULL;
    *json_len = *used - 1 - JOURNAL_PREFIX;
    const char *body = text + JOURNAL_PREFIX;
    if (*json_len != want_len || crc32c(0, body, *json_len) != want_crc) return NULL;
    return body;
}

typedef struct load_result {
    size_t good_end;  /* behind the last good record */
    size_t n_skipped; /* damaged or unusable lines before it */
    size_t n_since;   /* such lines behind it */
} load_result;

static void load_lines(session *s, const char *text, size_t len, size_t at, load_result *r) {
    r->good_end = at;
    while (at < len) {
        size_t json_len = 0, used = 0;
        const char *body = journal_line(text + at, len - at, &json_len, &used);
        json *v = NULL;
        bool is_good = body != NULL && json_parse(body, json_len, NULL, &v, NULL) == OK &&
                       record_apply(s, v, NULL) == OK;
        json_free(v);
        at += used;
        if (!is_good) {
            r->n_since++;
            continue;
        }
        r->n_skipped += r->n_since;
        r->n_since = 0;
        r->good_end = at;
    }
}

/* Copies the bytes behind the good part to NAME.damaged-TIME, then cuts them off. */
static int keep_aside(session *s, const char *path, const buf *all, err *e) {
    buf aside = BUF_INIT;
    int rc = buf_printf(
        &aside, "%s/%s.damaged-%llu", s->dir, s->name, (unsigned long long)clock_wall_ms());
    if (rc == OK) {
        rc = file_write_atomic(buf_cstr(&aside), all->data + s->end, all->len - s->end, 0600, e);
    }
    if (rc == OK && ftruncate(s->fd, (off_t)s->end) != 0)
        rc = err_errno(e, "cannot repair %s", path);
    if (rc == OK) {
        buf note = BUF_INIT;
        buf_printf(&note, "%zu damaged bytes at the end of the session were cut off and kept in %s",
            (size_t)(all->len - s->end), buf_cstr(&aside));
        mem_free(s->note);
        s->note = buf_take(&note);
    }
    buf_release(&aside);
    return rc;
}

static void note_skipped(session *s, size_t n) {
    buf note = BUF_INIT;
    if (s->note != NULL) buf_printf(&note, "%s; ", s->note);
    buf_printf(
        &note, "%zu damaged record%s skipped, the rest is whole", n, n == 1 ? " was" : "s were");
    mem_free(s->note);
    s->note = buf_take(&note);
}

int journal_load(session *s, const char *path, bool repair, err *e) {
    buf all = BUF_MAX(SESSION_MAX_BYTES);
    load_result r = {0};
    size_t at = 0;
    int rc = file_read(path, &all, SESSION_MAX_BYTES, e);
    if (rc == OK) rc = journal_head(buf_cstr(&all), all.len, &at, e);
    if (rc == OK) {
        load_lines(s, all.data, all.len, at, &r);
        s->end = r.good_end;
        if (s->open_id != 0) tree_close_reply(s, SESSION_INTERRUPTED, NULL, NULL);
        if (r.good_end < all.len && repair) rc = keep_aside(s, path, &all, e);
        size_t n_skipped = r.n_skipped + (repair ? 0 : r.n_since);
        if (n_skipped > 0) note_skipped(s, n_skipped);
    }
    buf_release(&all);
    return err_add(e, rc, "session %s", s->name);
}
