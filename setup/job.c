#include "setup/job.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/paths.h"

enum { STATUS_MAX = 4 << 20, EVENT_MAX = 1024, START_MS = 10000 };

struct job {
    buf dir;
    int lock_fd, pipe_fd, journal_fd;
    char line[256]; /* unfinished command */
    size_t n_line;
};

static int job_dir(const char *name, buf *out, err *e) {
    buf state = BUF_INIT;
    int rc = paths_state(&state, e);
    if (rc == OK) {
        buf_reset(out);
        rc = buf_printf(out, "%s/jobs/%s", buf_cstr(&state), name);
    }
    buf_release(&state);
    return rc;
}

static int in_dir(const buf *dir, const char *file, buf *out) {
    return path_join(out, buf_cstr(dir), file);
}

/* The running side. */

static int open_file(job *j, const char *name, int flags, int *fd, err *e) {
    buf path = BUF_INIT;
    in_dir(&j->dir, name, &path);
    *fd = open(buf_cstr(&path), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    int rc = *fd >= 0 ? OK : err_errno(e, "opening %s", buf_cstr(&path));
    buf_release(&path);
    return rc;
}

static int take_lock(job *j, const char *name, err *e) {
    char pid[32] = "";
    int rc = open_file(j, "lock", O_RDWR | O_CREAT, &j->lock_fd, e);
    if (rc != OK) return rc;
    if (fd_lock(j->lock_fd) != OK) {
        ssize_t n = pread(j->lock_fd, pid, sizeof pid - 1, 0);
        (void)n;
        pid[strcspn(pid, "\n")] = '\0';
        return err_set(e, ERR_BUSY, "the %s is running already (process %s)", name, pid);
    }
    int n = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (ftruncate(j->lock_fd, 0) != 0 || pwrite(j->lock_fd, pid, (size_t)n, 0) != n)
        return err_errno(e, "writing the lock of the %s", name);
    return OK;
}

static int make_pipe(job *j, err *e) {
    buf path = BUF_INIT;
    in_dir(&j->dir, "commands", &path);
    /* A new one each time: commands for a run that ended must not reach this one. */
    int rc = file_remove(buf_cstr(&path), e);
    if (rc == OK && mkfifo(buf_cstr(&path), 0600) != 0)
        rc = err_errno(e, "making the commands pipe");
    buf_release(&path);
    /* Read and write, so that it never ends when a writer leaves. */
    return rc == OK ? open_file(j, "commands", O_RDWR | O_NONBLOCK, &j->pipe_fd, e) : rc;
}

int job_open(const char *name, job **out, err *e) {
    job *j = mem_alloc(sizeof *j);
    j->lock_fd = j->pipe_fd = j->journal_fd = -1;
    int rc = job_dir(name, &j->dir, e);
    if (rc == OK) rc = paths_make_private(buf_cstr(&j->dir), e);
    if (rc == OK) rc = take_lock(j, name, e);
    if (rc == OK) rc = make_pipe(j, e);
    if (rc == OK) rc = open_file(j, "journal", O_WRONLY | O_CREAT | O_APPEND, &j->journal_fd, e);
    if (rc == OK) {
        *out = j;
        return OK;
    }
    job_close(j);
    return rc;
}

void job_close(job *j) {
    if (j == NULL) return;
    if (j->pipe_fd >= 0) close(j->pipe_fd);
    if (j->journal_fd >= 0) close(j->journal_fd);
    if (j->lock_fd >= 0) close(j->lock_fd);
    buf_release(&j->dir);
    mem_free(j);
}

job_command job_command_parse(const char *line, size_t len) {
    static const struct {
        const char *word;
        job_command_kind kind;
        bool has_value;
    } words[] = {{"pause", JOB_PAUSE, false}, {"cancel", JOB_CANCEL, false},
        {"rate ", JOB_RATE, true}, {"connections ", JOB_CONNECTIONS, true}};
    job_command none = {JOB_NONE, 0};
    char text[64];
    if (len >= sizeof text) return none;
    memcpy(text, line, len);
    text[len] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        job_command c = {words[i].kind, 0};
        if (!words[i].has_value && str_eq(text, words[i].word)) return c;
        if (words[i].has_value && str_starts(text, words[i].word) &&
            parse_u64(text + strlen(words[i].word), &c.value) == OK)
            return c;
    }
    return none;
}

job_command job_poll(job *j) {
    job_command none = {JOB_NONE, 0};
    for (;;) {
        char *end = memchr(j->line, '\n', j->n_line);
        if (end != NULL) {
            size_t n = (size_t)(end - j->line);
            job_command c = job_command_parse(j->line, n);
            j->n_line -= n + 1;
            memmove(j->line, end + 1, j->n_line);
            if (c.kind != JOB_NONE) return c;
            continue;
        }
        if (j->n_line == sizeof j->line) j->n_line = 0; /* nobody of ours writes such lines */
        ssize_t n = read(j->pipe_fd, j->line + j->n_line, sizeof j->line - j->n_line);
        if (n <= 0) return none;
        j->n_line += (size_t)n;
    }
}

/* Replaced by renaming, so a reader sees the old one or the new one. Not flushed: after a power cut
 * the journal counts. */
int job_status_write(job *j, const char *text, size_t len, err *e) {
    buf path = BUF_INIT, temporary = BUF_INIT;
    int fd = -1;
    in_dir(&j->dir, "status.json", &path);
    in_dir(&j->dir, "status.json.new", &temporary);
    int rc = open_file(j, "status.json.new", O_WRONLY | O_CREAT | O_TRUNC, &fd, e);
    if (rc == OK) rc = fd_write_full(fd, text, len, e);
    if (fd >= 0) close(fd);
    if (rc == OK && rename(buf_cstr(&temporary), buf_cstr(&path)) != 0)
        rc = err_errno(e, "writing %s", buf_cstr(&path));
    buf_release(&path);
    buf_release(&temporary);
    return rc;
}

int job_event(job *j, const char *event, const char *fmt, ...) {
    char time[32], text[EVENT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    log_redact(text, strlen(text));
    for (char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < 32 || *at == 127) *at = '?';
    }
    clock_format_utc(clock_wall_ms(), time);
    buf line = BUF_INIT;
    err e = ERR_INIT;
    buf_printf(&line, "%s %s %s\n", time, event, text);
    int rc = fd_write_full(j->journal_fd, line.data, line.len, &e);
    if (rc == OK && fdatasync(j->journal_fd) != 0) rc = ERR_IO;
    buf_release(&line);
    return rc;
}

/* Any other side. */

bool job_is_running(const char *name) {
    buf dir = BUF_INIT, path = BUF_INIT;
    bool is = false;
    if (job_dir(name, &dir, NULL) == OK) {
        in_dir(&dir, "lock", &path);
        int fd = open(buf_cstr(&path), O_RDONLY | O_CLOEXEC);
        is = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (fd >= 0) close(fd);
    }
    buf_release(&dir);
    buf_release(&path);
    return is;
}

int job_status_read(const char *name, buf *out, err *e) {
    buf dir = BUF_INIT, path = BUF_INIT;
    int rc = job_dir(name, &dir, e);
    if (rc == OK) {
        in_dir(&dir, "status.json", &path);
        rc = file_read(buf_cstr(&path), out, STATUS_MAX, e);
    }
    buf_release(&dir);
    buf_release(&path);
    return rc;
}

int job_send(const char *name, job_command c, err *e) {
    buf dir = BUF_INIT, path = BUF_INIT;
    char line[64];
    int n = 0;
    switch (c.kind) {
    case JOB_PAUSE:
        n = snprintf(line, sizeof line, "pause\n");
        break;
    case JOB_CANCEL:
        n = snprintf(line, sizeof line, "cancel\n");
        break;
    case JOB_RATE:
        n = snprintf(line, sizeof line, "rate %llu\n", (unsigned long long)c.value);
        break;
    case JOB_CONNECTIONS:
        n = snprintf(line, sizeof line, "connections %llu\n", (unsigned long long)c.value);
        break;
    case JOB_NONE:
        return OK;
    }
    int rc = job_dir(name, &dir, e);
    if (rc == OK && !job_is_running(name)) rc = err_set(e, ERR_NOT_FOUND, "no %s is running", name);
    if (rc == OK) {
        in_dir(&dir, "commands", &path);
        int fd = open(buf_cstr(&path), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        rc = fd >= 0 ? fd_write_full(fd, line, (size_t)n, e)
                     : err_set(e, ERR_NOT_FOUND, "no %s is running", name);
        if (fd >= 0) close(fd);
    }
    buf_release(&dir);
    buf_release(&path);
    return rc;
}

/* In the child, after the second fork: only calls that are safe there. */
static _Noreturn void become(char *const *argv, const char *log_path, int report_fd) {
    int null_fd = open("/dev/null", O_RDWR);
    int log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (null_fd >= 0) dup2(null_fd, 0);
    dup2(log_fd >= 0 ? log_fd : null_fd, 1);
    dup2(log_fd >= 0 ? log_fd : null_fd, 2);
    execv(argv[0], argv);
    int cause = errno;
    ssize_t n = write(report_fd, &cause, sizeof cause);
    (void)n;
    _exit(127);
}

static int spawn_detached(char *const *argv, const char *log_path, err *e) {
    int report[2], cause = 0;
    if (pipe2(report, O_CLOEXEC) != 0) return err_errno(e, "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        pid_t again = fork();
        if (again != 0) _exit(again > 0 ? 0 : 1);
        become(argv, log_path, report[1]);
    }
    int rc = pid > 0 ? OK : err_errno(e, "starting %s", argv[0]);
    close(report[1]);
    if (pid > 0) waitpid(pid, NULL, 0);
    /* Ends without a byte when the program was entered: the pipe closes with exec. */
    if (rc == OK && read(report[0], &cause, sizeof cause) == (ssize_t)sizeof cause) {
        errno = cause;
        rc = err_errno(e, "starting %s", argv[0]);
    }
    close(report[0]);
    return rc;
}

static void drop_status(const char *name) {
    buf dir = BUF_INIT, at = BUF_INIT;
    if (job_dir(name, &dir, NULL) == OK) {
        in_dir(&dir, "status.json", &at);
        (void)unlink(buf_cstr(&at));
    }
    buf_release(&dir);
    buf_release(&at);
}

int job_start(const char *name, char *const *argv, err *e) {
    buf logs = BUF_INIT, path = BUF_INIT, file = BUF_INIT;
    int rc = paths_logs(&logs, e);
    if (rc == OK) rc = paths_make_private(buf_cstr(&logs), e);
    buf_printf(&file, "%s.log", name);
    path_join(&path, buf_cstr(&logs), buf_cstr(&file));
    uint64_t begun = clock_wall_ms();
    /* Nobody shall take how the last one ended for this one. */
    if (rc == OK && !job_is_running(name)) drop_status(name);
    if (rc == OK) rc = spawn_detached(argv, buf_cstr(&path), e);
    /* A short job may be over before it is seen running; then its status is new. */
    for (uint64_t until = clock_mono_ms() + START_MS; rc == OK && !job_is_running(name);) {
        struct stat st;
        buf dir = BUF_INIT, at = BUF_INIT;
        job_dir(name, &dir, NULL);
        in_dir(&dir, "status.json", &at);
        bool is_new =
            stat(buf_cstr(&at), &st) == 0 &&
            (uint64_t)st.st_mtim.tv_sec * 1000 + (uint64_t)st.st_mtim.tv_nsec / 1000000 >= begun;
        buf_release(&dir);
        buf_release(&at);
        if (is_new) break;
        if (clock_mono_ms() > until)
            rc = err_set(e, ERR_TIMEOUT, "the %s did not begin; see %s", name, buf_cstr(&path));
        sleep_ms(20);
    }
    buf_release(&logs);
    buf_release(&path);
    buf_release(&file);
    return rc;
}
