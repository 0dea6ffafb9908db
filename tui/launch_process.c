#include "tui/launch_process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

/* What the two children report through the pipe. */
typedef struct start_word {
    int pid;    /* of the daemon, from the first child */
    int errnum; /* why it could not be entered, from the second */
} start_word;

/* Only async-signal-safe calls from here to the exec: the parent may have threads. */
static void say(int fd, start_word word) {
    ssize_t n = write(fd, &word, sizeof word);
    (void)n;
}

static void reset_signals(void) {
    sigset_t none;
    sigemptyset(&none);
    for (int sig = 1; sig < NSIG; sig++)
        signal(sig, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

_Noreturn static void become_daemon(const char *const *argv, const char *log_path, int report_fd) {
    int in = open("/dev/null", O_RDONLY);
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    if (in >= 0 && log >= 0 && chdir("/") == 0 && dup2(in, 0) >= 0 && dup2(log, 1) >= 0 &&
        dup2(log, 2) >= 0) {
        /* Everything else closes at the exec, whoever opened it. */
        syscall(SYS_close_range, 3u, ~0u, 1u << 2);
        fcntl(report_fd, F_SETFD, FD_CLOEXEC);
        reset_signals();
        execv(argv[0], (char *const *)(uintptr_t)argv);
    }
    say(report_fd, (start_word){0, errno});
    _exit(127);
}

_Noreturn static void first_child(const char *const *argv, const char *log_path, int report_fd) {
    setsid();
    pid_t pid = fork();
    if (pid == 0) become_daemon(argv, log_path, report_fd);
    say(report_fd, (start_word){pid > 0 ? (int)pid : 0, pid < 0 ? errno : 0});
    _exit(0);
}

static int read_words(int fd, start_word *sum) {
    start_word word;
    ssize_t n;
    *sum = (start_word){0};
    while ((n = read(fd, &word, sizeof word)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n != (ssize_t)sizeof word) return ERR_IO;
        if (word.pid != 0) sum->pid = word.pid;
        if (word.errnum != 0) sum->errnum = word.errnum;
    }
    return OK;
}

int launch_process_start(launch_process *p, const char *const *argv, const char *log_path, err *e) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return err_errno(e, "cannot make a pipe");
    pid_t child = fork();
    if (child == 0) first_child(argv, log_path, ends[1]);
    int fork_errno = errno;
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        errno = fork_errno;
        return err_errno(e, "cannot start a process");
    }
    start_word sum;
    int rc = read_words(ends[0], &sum);
    close(ends[0]);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        continue;
    if (rc != OK || sum.pid == 0 || sum.errnum != 0) {
        errno = sum.errnum != 0 ? sum.errnum : EIO;
        return err_errno(e, "cannot start %s", argv[0]);
    }
    launch_process_watch(p, sum.pid);
    return OK;
}

void launch_process_watch(launch_process *p, int pid) {
    *p = (launch_process){.pidfd = -1};
    if (pid <= 0) return;
    p->pid = pid;
    p->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
}

bool launch_process_ended(const launch_process *p) {
    if (p->pidfd >= 0) {
        struct pollfd fd = {.fd = p->pidfd, .events = POLLIN};
        return poll(&fd, 1, 0) > 0;
    }
    return kill(p->pid, 0) != 0 && errno == ESRCH;
}

void launch_process_release(launch_process *p) {
    if (p->pidfd >= 0) close(p->pidfd);
    *p = (launch_process){.pidfd = -1};
}

static bool is_program(const buf *path) {
    return access(buf_cstr(path), X_OK) == 0 && !dir_exists(buf_cstr(path));
}

int launch_find_daemon(buf *out, err *e) {
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = '\0';
        buf dir = BUF_INIT;
        int rc = path_dir(&dir, self);
        if (rc == OK) rc = path_join(out, buf_cstr(&dir), "tandemd");
        buf_release(&dir);
        if (rc == OK && is_program(out)) return OK;
    }
    const char *path = getenv("PATH");
    for (const char *at = path != NULL ? path : ""; *at != '\0';) {
        size_t len = strcspn(at, ":");
        buf_reset(out);
        buf_append(out, at, len);
        buf_puts(out, "/tandemd");
        if (at[0] == '/' && is_program(out)) return OK;
        at += len + (at[len] == ':' ? 1 : 0);
    }
    buf_reset(out);
    return err_set(e, ERR_NOT_FOUND,
        "the engine program tandemd is neither beside this program nor in PATH; build it with: make");
}

bool launch_socket_answers(const char *socket_path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (str_copy(to.sun_path, sizeof to.sun_path, socket_path) >= sizeof to.sun_path) return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    bool answers = connect(fd, (const struct sockaddr *)&to, sizeof to) == 0;
    close(fd);
    return answers;
}
