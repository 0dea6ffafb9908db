/* A flow from its beginning to its end: folders, lock, settings, journal. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/privilege.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "setup/step_internal.h"

static int find_paths(flow *f, err *e) {
    buf path = BUF_INIT;
    int rc = paths_settings_file(&path, e);
    if (rc == OK) str_copy(f->settings_path, sizeof f->settings_path, buf_cstr(&path));
    buf_reset(&path);
    if (rc == OK) rc = paths_state(&path, e);
    if (rc == OK) rc = buf_puts(&path, "/setup");
    if (rc == OK) str_copy(f->state_dir, sizeof f->state_dir, buf_cstr(&path));
    snprintf(f->journal_path, sizeof f->journal_path, "%s/journal.jsonl", f->state_dir);
    snprintf(f->answers_path, sizeof f->answers_path, "%s/answers", f->state_dir);
    snprintf(f->undo_path, sizeof f->undo_path, "%s/undo.jsonl", f->state_dir);
    buf_release(&path);
    return rc;
}

/* One set-up at a time. A lock whose holder is gone is none: the system let it go. */
static int take_lock(flow *f, err *e) {
    char path[600], pid[24] = "";
    int rc = paths_make_private(f->state_dir, e);
    if (rc != OK) return rc;
    snprintf(path, sizeof path, "%s/lock", f->state_dir);
    f->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f->lock_fd < 0) return err_errno(e, "opening %s", path);
    if (fd_lock(f->lock_fd) != OK) {
        ssize_t n = read(f->lock_fd, pid, sizeof pid - 1);
        pid[n > 0 ? n : 0] = '\0';
        pid[strcspn(pid, "\n")] = '\0';
        close(f->lock_fd);
        f->lock_fd = -1;
        return err_set(
            e, ERR_BUSY, "another set-up is open (process %s); end it first, or go on there", pid);
    }
    snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (ftruncate(f->lock_fd, 0) != 0 || pwrite(f->lock_fd, pid, strlen(pid), 0) < 0)
        return err_errno(e, "writing %s", path);
    return OK;
}

static void read_boot(flow *f) {
    buf text = BUF_INIT;
    if (file_read("/proc/sys/kernel/random/boot_id", &text, 256, NULL) == OK)
        snprintf(
            f->boot, sizeof f->boot, "%.*s", (int)strcspn(buf_cstr(&text), "\n"), buf_cstr(&text));
    buf_release(&text);
}

static int open_flow(const flow_options *o, bool is_locked, flow **out, err *e) {
    flow *f = mem_alloc(sizeof *f);
    f->o = *o;
    f->lock_fd = -1;
    f->s = settings_new();
    f->on_disk = settings_new();
    int rc = find_paths(f, e);
    if (rc == OK && is_locked) rc = take_lock(f, e);
    if (rc == OK) rc = settings_load(f->s, e);
    if (rc == OK) rc = settings_load_file(f->on_disk, f->settings_path, e);
    if (rc == OK) rc = flow_answers_open(f, e);
    read_boot(f);
    if (rc == OK) rc = flow_journal_load(f, e);
    f->plain[0] = node_access_local("head", NULL);
    if (o->head_root != NULL) f->rooted[0] = node_access_local("head", o->head_root);
    if (rc == OK) {
        *out = f;
    } else {
        flow_free(f);
    }
    return rc;
}

/* As root keys, settings and model files would land in root's home, and every step would have more
 * rights than it needs. */
int flow_new(const flow_options *o, flow **out, err *e) {
    int rc = privilege_refuse_root("set-up", e);
    if (rc != OK) return rc;
    return open_flow(o, true, out, e);
}

int flow_look(const flow_options *o, flow **out, err *e) {
    return open_flow(o, false, out, e);
}

void flow_free(flow *f) {
    if (f == NULL) return;
    flow_disconnect(f);
    node_access_close(f->plain[0]);
    node_access_close(f->rooted[0]);
    flow_answers_close(f);
    ssh_secret_free(f->new_key);
    settings_free(f->s);
    settings_free(f->on_disk);
    if (f->lock_fd >= 0) close(f->lock_fd);
    mem_free(f);
}
