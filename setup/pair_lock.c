/* One command at a time changes the pair. The lock is the kernel's (flock), so it is free soon after
 * its holder is gone; what stands in the file tells who that was and how far it came. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/pair_internal.h"
#include "setup/paths.h"

enum { LOCK_MAX = 4096 };

int pair_file(const char *name, buf *out, err *e) {
    int rc = paths_state(out, e);
    return rc == OK ? buf_printf(out, "/pair/%s", name) : rc;
}

const char *pair_node_name(int node) {
    return node == PAIR_HEAD ? "head" : "worker";
}

void pair_say(pair_run *p, pair_event_kind kind, int node, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pair_event ev = {.kind = kind, .node = node, .text = text, .progress = -1};
    if (p->sink != NULL) p->sink(p->ctx, &ev);
}

static int make_folder(err *e) {
    buf dir = BUF_INIT;
    int rc = pair_file("", &dir, e);
    if (rc == OK) buf_truncate(&dir, dir.len - 1);
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    buf_release(&dir);
    return rc;
}

typedef struct lock_text {
    int64_t pid;
    uint64_t since_ms;
    char verb[24], phase[80];
} lock_text;

static bool parse_lock(const char *text, size_t n, lock_text *out) {
    json *v = NULL;
    *out = (lock_text){0};
    if (n == 0 || json_parse(text, n, NULL, &v, NULL) != OK) return false;
    const char *verb = json_str(json_get(v, "verb")), *phase = json_str(json_get(v, "phase"));
    bool is_good = verb != NULL && json_i64(json_get(v, "pid"), &out->pid) == OK;
    (void)json_u64(json_get(v, "since_ms"), &out->since_ms);
    str_copy(out->verb, sizeof out->verb, verb != NULL ? verb : "");
    str_copy(out->phase, sizeof out->phase, phase != NULL ? phase : "");
    json_free(v);
    return is_good;
}

static bool read_lock(int fd, lock_text *out) {
    char text[LOCK_MAX];
    ssize_t n = pread(fd, text, sizeof text, 0);
    return n > 0 && parse_lock(text, (size_t)n, out);
}

static void holder_text(const lock_text *l, char *out, size_t cap) {
    char since[32] = "";
    clock_format_utc(l->since_ms, since);
    snprintf(out, cap, "`tandem %s` (process %lld, since %s%s%s)", l->verb, (long long)l->pid,
        since, l->phase[0] != '\0' ? ", at: " : "", l->phase);
}

static int open_lock(int flags, int *fd, err *e) {
    buf path = BUF_INIT;
    int rc = pair_file("lock", &path, e);
    if (rc == OK) {
        *fd = open(buf_cstr(&path), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (*fd < 0) rc = err_errno(e, "opening the lock %s", buf_cstr(&path));
    }
    buf_release(&path);
    return rc;
}

void pair_lock_holder(char *out, size_t cap) {
    int fd = -1;
    lock_text l;
    out[0] = '\0';
    if (open_lock(O_RDWR, &fd, NULL) != OK) return;
    if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK && read_lock(fd, &l))
        holder_text(&l, out, cap);
    close(fd);
}

int pair_lock_take(pair_run *p, const char *verb, err *e) {
    lock_text l;
    char text[300];
    int rc = make_folder(e);
    if (rc == OK) rc = open_lock(O_RDWR | O_CREAT, &p->lock_fd, e);
    if (rc != OK) return rc;
    bool is_ours = fd_lock(p->lock_fd) == OK;
    bool has_text = read_lock(p->lock_fd, &l);
    if (has_text) holder_text(&l, text, sizeof text);
    if (!is_ours) {
        close(p->lock_fd);
        p->lock_fd = -1;
        return err_set(e, ERR_BUSY,
            "%s holds the pair; wait for it, or end that process and ask again",
            has_text ? text : "another command");
    }
    if (has_text)
        pair_say(p, PAIR_WARN, -1,
            "the lock of %s was left behind: that command was killed in the middle; what it left is "
            "looked at and mended now",
            text);
    pair_lock_note(p, verb, "");
    return OK;
}

void pair_lock_note(pair_run *p, const char *verb, const char *phase) {
    buf text = BUF_INIT;
    json_w w;
    if (p->lock_fd < 0) return;
    json_w_begin(&w, &text);
    json_w_object(&w);
    json_w_ki64(&w, "pid", getpid());
    json_w_kstr(&w, "verb", verb);
    json_w_kstr(&w, "phase", phase);
    json_w_ku64(&w, "since_ms", clock_wall_ms());
    json_w_close(&w);
    (void)json_w_end(&w);
    /* Written whole over the old text: a reader sees the one or the other, or a broken one that says
     * nothing; the lock itself does not depend on it. */
    if (ftruncate(p->lock_fd, 0) == 0) (void)fd_write_at(p->lock_fd, text.data, text.len, 0, NULL);
    buf_release(&text);
}

void pair_lock_drop(pair_run *p) {
    if (p->lock_fd < 0) return;
    int rc = ftruncate(p->lock_fd, 0);
    (void)rc;
    close(p->lock_fd);
    p->lock_fd = -1;
}

/* ---- the mark of a stop that was meant ---- */

static void boot_id_here(char out[64]) {
    buf text = BUF_INIT;
    out[0] = '\0';
    if (file_read("/proc/sys/kernel/random/boot_id", &text, 4096, NULL) == OK)
        str_copy(out, 64, buf_cstr(&text));
    out[strcspn(out, "\n")] = '\0';
    buf_release(&text);
}

int pair_mark_stopped(bool is_stopped, err *e) {
    buf path = BUF_INIT, text = BUF_INIT;
    char boot[64];
    int rc = make_folder(e);
    if (rc == OK) rc = pair_file("stopped", &path, e);
    boot_id_here(boot);
    buf_printf(&text, "%s %llu\n", boot, (unsigned long long)clock_wall_ms());
    if (rc == OK && is_stopped)
        rc = file_write_atomic(buf_cstr(&path), text.data, text.len, 0600, e);
    if (rc == OK && !is_stopped) rc = file_remove(buf_cstr(&path), e);
    buf_release(&path);
    buf_release(&text);
    return rc;
}

bool pair_is_marked_stopped(char boot_id[64]) {
    buf path = BUF_INIT, text = BUF_INIT;
    bool is = pair_file("stopped", &path, NULL) == OK && file_exists(buf_cstr(&path)) &&
              file_read(buf_cstr(&path), &text, 4096, NULL) == OK;
    str_copy(boot_id, 64, is ? buf_cstr(&text) : "");
    boot_id[strcspn(boot_id, " \n")] = '\0';
    buf_release(&path);
    buf_release(&text);
    return is;
}
