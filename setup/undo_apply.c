/* Taking changes back, each after a look at what is there now. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/known_hosts.h"
#include "setup/settings.h"
#include "setup/undo_internal.h"

enum { FILE_MAX = 16 << 20, REMOVE_MS = 10 * 60 * 1000 };

#define MARKER ".tandem-owner"

static int say(buf *said, const undo_entry *x, const char *fmt, const char *more) {
    int rc = buf_printf(said, "%s: ", x->is_worker ? "worker" : "head");
    return rc == OK ? buf_printf(said, fmt, more) : rc;
}

/* A small command on that machine; a code other than 0 is an error. */
static int tool(node_access *n, const char *const *argv, err *e) {
    remote_result r;
    remote_result_init(&r);
    node_command c = {.argv = argv, .timeout_ms = REMOVE_MS};
    int rc = node_run(n, &c, &r, e);
    if (rc == OK && r.exit_code != 0)
        rc = err_set(
            e, ERR_IO, "%s failed on %s: %.200s", argv[0], node_access_name(n), buf_cstr(&r.err));
    remote_result_release(&r);
    return rc;
}

static int remove_there(node_access *n, const char *path, err *e) {
    const char *const argv[] = {"/bin/rm", "-f", "--", path, NULL};
    return tool(n, argv, e);
}

/* Bookkeeping of our own files goes to the real machine, not below the root of a stored tree. */
static int read_there(node_access *n, const char *path, buf *out, err *e) {
    node_forget(n);
    return node_read(n, path, FILE_MAX, out, e);
}

static int undo_file(const undo_entry *x, const undo_with *w, buf *said, err *e) {
    node_access *n = w->node[x->is_worker];
    buf now = BUF_MAX(FILE_MAX);
    char digest[65];
    int rc = read_there(n, x->path, &now, e);
    if (rc == ERR_NOT_FOUND && x->before == NULL) {
        buf_release(&now);
        return say(said, x, "%s was not there any more", x->path);
    }
    undo_digest(now.data, now.len, digest);
    if (rc == OK && x->digest[0] != '\0' && !str_eq(digest, x->digest) && !w->is_forced)
        rc = err_set(e, ERR_EXISTS, "%s was changed since; it is left as it is (--force)", x->path);
    if (rc == ERR_NOT_FOUND) rc = OK;
    if (rc == OK && x->before == NULL) rc = remove_there(n, x->path, e);
    if (rc == OK && x->before != NULL)
        rc = node_write(n, x->path, x->before, strlen(x->before), 0600, e);
    buf_release(&now);
    if (rc != OK) return rc;
    return say(said, x, x->before == NULL ? "%s is removed" : "%s is as it was before", x->path);
}

typedef bool (*line_test)(const undo_entry *x, const char *line, size_t n);

static bool holds_text(const undo_entry *x, const char *line, size_t n) {
    return memmem(line, n, x->text, strlen(x->text)) != NULL;
}

/* "HOST PORT TYPE KEY": a line that answers for this very key. Judged by the reader of known hosts
 * itself, because the names in the file are hashed. */
static bool answers_for_host(const undo_entry *x, const char *line, size_t n) {
    char host[256], port[16], type[40];
    char path[] = "/tmp/tandem-line.XXXXXX";
    int64_t number = 0;
    const char *s = x->text;
    char *const out[3] = {host, port, type};
    const size_t caps[3] = {sizeof host, sizeof port, sizeof type};
    for (int i = 0; i < 3; i++) {
        size_t len = strcspn(s, " ");
        if (len >= caps[i] || s[len] != ' ') return false;
        memcpy(out[i], s, len);
        out[i][len] = '\0';
        s += len + 1;
    }
    if (parse_i64(port, &number) != OK) return false;
    int fd = mkstemp(path);
    if (fd < 0) return false;
    known_answer a;
    const char *const files[1] = {path};
    const known_query q = {host, (int)number, type, s};
    bool is = fd_write_full(fd, line, n, NULL) == OK && fd_write_full(fd, "\n", 1, NULL) == OK &&
              known_hosts_look(files, 1, &q, &a, NULL) == KNOWN_OK;
    close(fd);
    (void)unlink(path);
    return is;
}

/* The file without the lines of a kind; gone when nothing is left and it was not there before. */
static int undo_lines(const undo_entry *x, const undo_with *w, line_test test, buf *said, err *e) {
    node_access *n = w->node[x->is_worker];
    buf now = BUF_MAX(FILE_MAX), rest = BUF_MAX(FILE_MAX);
    size_t n_removed = 0;
    int rc = read_there(n, x->path, &now, e);
    for (const char *s = buf_cstr(&now); rc == OK && *s != '\0';) {
        size_t len = strcspn(s, "\n"), whole = len + (s[len] == '\n');
        if (len > 0 && test(x, s, len)) {
            n_removed++;
        } else {
            rc = buf_append(&rest, s, whole);
        }
        s += whole;
    }
    if (rc == OK && n_removed > 0 && rest.len == 0 && x->before == NULL) {
        rc = remove_there(n, x->path, e);
    } else if (rc == OK && n_removed > 0) {
        rc = node_write(n, x->path, rest.data, rest.len, 0600, e);
    }
    buf_release(&now);
    buf_release(&rest);
    if (rc == ERR_NOT_FOUND) rc = OK;
    if (rc != OK) return rc;
    return say(said, x, n_removed > 0 ? "our line is out of %s" : "our line was not in %s any more",
        x->path);
}

static int undo_setting(const undo_entry *x, const undo_with *w, buf *said, err *e) {
    settings *s = settings_new();
    int rc = settings_load_file(s, x->path, e);
    bool is_ours = rc == OK && settings_key(x->text) != NULL;
    char digest[65];
    if (is_ours) {
        const char *now = settings_get(s, x->text);
        undo_digest(now, strlen(now), digest);
        if (x->digest[0] != '\0' && !str_eq(digest, x->digest) && !w->is_forced)
            rc = err_set(
                e, ERR_EXISTS, "%s was changed since; it is left as it is (--force)", x->text);
    }
    settings_free(s);
    if (rc == OK) rc = settings_file_set(x->path, x->text, x->before, e);
    uint64_t left = 1;
    /* A file that sets nothing is none. */
    if (rc == OK && file_size(x->path, &left, NULL) == OK && left == 0)
        rc = file_remove(x->path, e);
    if (rc != OK) return rc;
    return say(
        said, x, x->before == NULL ? "%s is not set any more" : "%s is as it was before", x->text);
}

/* Only what is empty but for our marker goes. */
static const char REMOVE_FOLDER[] =
    "cd -- \"$1\" 2>/dev/null || exit 0; "
    "for f in .* *; do case $f in .|..|" MARKER ") ;; *) if [ -e \"$f\" ]; then exit 3; fi ;; "
    "esac; done; "
    "rm -f " MARKER "; [ -n \"$2\" ] || { cd / && rmdir -- \"$1\"; }";

static int undo_folder(const undo_entry *x, const undo_with *w, buf *said, err *e) {
    /* A folder that was there before stays; only our marker goes. */
    const char *was_there = x->before != NULL ? x->before : "";
    const char *const argv[] = {"/bin/sh", "-c", REMOVE_FOLDER, "sh", x->path, was_there, NULL};
    remote_result r;
    remote_result_init(&r);
    node_command c = {.argv = argv};
    int rc = node_run(w->node[x->is_worker], &c, &r, e);
    if (rc == OK && r.exit_code == 3)
        rc = err_set(
            e, ERR_EXISTS, "%s holds files; it is left (--data takes the model away)", x->path);
    else if (rc == OK && r.exit_code != 0)
        rc = err_set(e, ERR_IO, "%s: %.200s", x->path, buf_cstr(&r.err));
    remote_result_release(&r);
    if (rc != OK) return rc;
    return say(said, x, x->before != NULL ? "%s is not ours any more" : "the folder %s is removed",
        x->path);
}

/* Only below a folder that carries our marker. */
static const char REMOVE_DATA[] =
    "cd -- \"$1\" 2>/dev/null || exit 0; [ -f " MARKER " ] || exit 3; "
    "rm -rf models engram prepared incoming cache .tandem .tandem-receive.lock";

static int undo_data(const undo_entry *x, const undo_with *w, buf *said, err *e) {
    const char *const argv[] = {"/bin/sh", "-c", REMOVE_DATA, "sh", x->path, NULL};
    remote_result r;
    remote_result_init(&r);
    node_command c = {.argv = argv, .timeout_ms = REMOVE_MS};
    int rc = node_run(w->node[x->is_worker], &c, &r, e);
    if (rc == OK && r.exit_code == 3)
        rc = err_set(e, ERR_EXISTS, "%s does not carry our marker; nothing is removed", x->path);
    else if (rc == OK && r.exit_code != 0)
        rc = err_set(e, ERR_IO, "%s: %.200s", x->path, buf_cstr(&r.err));
    remote_result_release(&r);
    return rc == OK ? say(said, x, "the model files in %s are removed", x->path) : rc;
}

static int undo_netplan(const undo_entry *x, const undo_with *w, buf *said, err *e) {
    link_apply how = {.sudo = w->sudo};
    int rc = link_netplan_undo(w->node[x->is_worker], x->path, &how, e);
    return rc == OK ? say(said, x, "the network settings are as they were (%s)", x->path) : rc;
}

static int undo_command(const undo_entry *x, const undo_with *w, buf *said, err *e) {
    if (w->command == NULL) return err_set(e, ERR_UNSUPPORTED, "nothing here runs commands");
    int rc = w->command(w->ctx, x->text, e);
    return rc == OK ? say(said, x, "tandem %s was run", x->text) : rc;
}

static int undo_one(const undo_entry *x, const undo_with *w, buf *said, err *e) {
    switch (x->kind) {
    case UNDO_FILE:
        return undo_file(x, w, said, e);
    case UNDO_LINE:
        return undo_lines(x, w, holds_text, said, e);
    case UNDO_KNOWN_HOST:
        return undo_lines(x, w, answers_for_host, said, e);
    case UNDO_NETPLAN:
        return undo_netplan(x, w, said, e);
    case UNDO_SETTING:
        return undo_setting(x, w, said, e);
    case UNDO_FOLDER:
        return undo_folder(x, w, said, e);
    case UNDO_DATA:
        return undo_data(x, w, said, e);
    default:
        return undo_command(x, w, said, e);
    }
}

int undo_apply(const undo_entry *x, const undo_with *w, buf *said, err *e) {
    if (x->is_undone) return say(said, x, "%s was taken back already", x->what);
    if (w->node[x->is_worker] == NULL)
        return err_set(e, ERR_NET, "%s cannot be reached%s%s", x->is_worker ? "worker" : "head",
            w->missing != NULL ? ": " : "", w->missing != NULL ? w->missing : "");
    int rc = undo_one(x, w, said, e);
    return rc == OK ? undo_mark_done(w->journal, x->id, e) : rc;
}
