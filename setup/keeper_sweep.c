#include "setup/keeper_sweep.h"

#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "setup/keeper_internal.h"

enum { TERM_MS = 5000, KILL_MS = 5000, DYING_MS = 2000, TABLE_MAX = 8 << 20 };

/* ---- leftovers ---- */

static bool is_locked(void) {
    buf path = BUF_INIT;
    int fd = keeper_file("lock", &path, NULL) == OK
                 ? open(buf_cstr(&path), O_RDWR | O_CLOEXEC | O_NOFOLLOW)
                 : -1;
    bool is = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0) close(fd);
    buf_release(&path);
    return is;
}

/* One that was killed a moment ago holds the lock until the kernel is done with it, and answers nobody. */
static bool is_running(void) {
    uint64_t end = clock_mono_ms() + DYING_MS;
    while (is_locked()) {
        err ignored = ERR_INIT;
        if (keeper_call("status", NULL, NULL, &ignored) == OK || clock_mono_ms() >= end)
            return true;
        sleep_ms(20);
    }
    return false;
}

/* The process that is meant, not a later one with its number. */
static bool is_same(long pid, uint64_t start_ticks) {
    return start_ticks != 0 && keeper_start_ticks((pid_t)pid) == start_ticks;
}

static bool is_gone(long pid) {
    return kill((pid_t)pid, 0) != 0;
}

static bool wait_gone(long pid, uint64_t ms) {
    uint64_t end = clock_mono_ms() + ms;
    while (!is_gone(pid) && clock_mono_ms() < end)
        sleep_ms(20);
    return is_gone(pid);
}

static int put_swept(buf *out, bool is_ended, long pid, const char *what) {
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_kbool(&w, "ended", is_ended);
    json_w_ki64(&w, "pid", pid);
    json_w_kstr(&w, "what", what);
    json_w_close(&w);
    return json_w_end(&w);
}

int keeper_sweep(buf *out, err *e) {
    buf path = BUF_INIT;
    json *v = NULL;
    int64_t pid = 0;
    if (is_running()) return put_swept(out, false, 0, "a keeper runs here");
    int rc = keeper_file("status.json", &path, e);
    bool is_there = rc == OK && file_exists(buf_cstr(&path)) &&
                    json_parse_file(buf_cstr(&path), NULL, &v, NULL) == OK;
    uint64_t ticks = 0;
    bool is_left = is_there && json_i64(json_get(v, "rank_pid"), &pid) == OK && pid > 1 &&
                   json_u64(json_get(v, "rank_ticks"), &ticks) == OK && is_same((long)pid, ticks);
    if (!is_left) {
        rc = put_swept(out, false, 0, "nothing was left");
    } else {
        (void)kill((pid_t)pid, SIGTERM);
        if (!wait_gone((long)pid, TERM_MS)) (void)kill((pid_t)pid, SIGKILL);
        rc = wait_gone((long)pid, KILL_MS)
                 ? put_swept(out, true, (long)pid, "a rank without its keeper was ended")
                 : err_set(e, ERR_TIMEOUT, "process %lld does not end", (long long)pid);
    }
    json_free(v);
    buf_release(&path);
    return rc;
}

/* ---- ports ---- */

typedef struct listener {
    bool is_found;
    unsigned long inode;
    unsigned uid;
    char address[48];
} listener;

/* A line of /proc/net/tcp: "sl: ADDRESS:PORT peer state ... uid timeout inode". State 0A listens. */
static void look_line(char *line, int port, listener *l) {
    char *save = NULL, *field[12] = {NULL};
    int n = 0;
    for (char *at = strtok_r(line, " ", &save); at != NULL && n < 12;
         at = strtok_r(NULL, " ", &save))
        field[n++] = at;
    if (n < 10 || strcmp(field[3], "0A") != 0) return;
    char *colon = strrchr(field[1], ':');
    if (colon == NULL || strtol(colon + 1, NULL, 16) != port) return;
    l->is_found = true;
    l->uid = (unsigned)strtoul(field[7], NULL, 10);
    l->inode = strtoul(field[9], NULL, 10);
    *colon = '\0';
    if (strlen(field[1]) == 8) {
        unsigned long a = strtoul(field[1], NULL, 16);
        snprintf(l->address, sizeof l->address, "%lu.%lu.%lu.%lu", a & 255, a >> 8 & 255,
            a >> 16 & 255, a >> 24 & 255);
    } else {
        str_copy(l->address, sizeof l->address, "an IPv6 address");
    }
}

static void look_table(const char *path, int port, listener *l) {
    buf text = BUF_MAX(TABLE_MAX);
    if (file_read(path, &text, TABLE_MAX, NULL) == OK && text.len > 0) {
        char *save = NULL;
        for (char *line = strtok_r(text.data, "\n", &save); line != NULL && !l->is_found;
             line = strtok_r(NULL, "\n", &save))
            look_line(line, port, l);
    }
    buf_release(&text);
}

static bool holds(long pid, unsigned long inode) {
    char dir[64], want[64];
    bool is = false;
    snprintf(dir, sizeof dir, "/proc/%ld/fd", pid);
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    DIR *d = opendir(dir);
    for (struct dirent *entry = d != NULL ? readdir(d) : NULL; entry != NULL && !is;
         entry = readdir(d)) {
        char target[64];
        ssize_t n = readlinkat(dirfd(d), entry->d_name, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = '\0';
        is = str_eq(target, want);
    }
    if (d != NULL) closedir(d);
    return is;
}

static long find_holder(unsigned long inode) {
    long found = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *entry = d != NULL ? readdir(d) : NULL; entry != NULL && found == 0;
         entry = readdir(d)) {
        char *end = NULL;
        long pid = strtol(entry->d_name, &end, 10);
        if (pid > 0 && *end == '\0' && holds(pid, inode)) found = pid;
    }
    if (d != NULL) closedir(d);
    return found;
}

static void put_user(json_w *w, unsigned uid) {
    const struct passwd *pw = getpwuid(uid);
    char number[16];
    snprintf(number, sizeof number, "%u", uid);
    json_w_kstr(w, "user", pw != NULL ? pw->pw_name : number);
}

int port_owner(int port, buf *out, err *e) {
    listener l = {0};
    json_w w;
    look_table("/proc/net/tcp", port, &l);
    if (!l.is_found) look_table("/proc/net/tcp6", port, &l);
    long pid = l.is_found ? find_holder(l.inode) : 0;
    char path[64];
    buf name = BUF_INIT;
    snprintf(path, sizeof path, "/proc/%ld/comm", pid);
    if (pid > 0 && file_read(path, &name, 4096, NULL) == OK && name.len > 0)
        buf_truncate(&name, strcspn(name.data, "\n"));
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_ki64(&w, "port", port);
    json_w_kbool(&w, "listening", l.is_found);
    if (pid > 0) {
        json_w_ki64(&w, "pid", pid);
    } else {
        json_w_knull(&w, "pid");
    }
    json_w_kstr(&w, "name", name.len > 0 ? buf_cstr(&name) : NULL);
    if (l.is_found) {
        put_user(&w, l.uid);
    } else {
        json_w_knull(&w, "user");
    }
    json_w_kstr(&w, "address", l.is_found ? l.address : NULL);
    json_w_close(&w);
    buf_release(&name);
    return err_add(e, json_w_end(&w), "looking for the owner of port %d", port);
}
