/* The process of a rank: started with its secret on standard input, followed by its status file. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/secret.h"
#include "engine/base/str.h"
#include "setup/keeper_internal.h"
#include "setup/paths.h"

extern char **environ;

enum { START_LINE = 64 + 1 + 16 + 1, REASON_READ_MAX = 256 << 10, ENVIRON_MAX = 512 };

void keeper_generation(
    const keeper_order *o, int generation, uint8_t secret[SHA256_BYTES], uint64_t *start_id) {
    memcpy(secret, o->secret, SHA256_BYTES);
    *start_id = o->start_id;
    if (generation == 0) return;
    char text[48];
    uint8_t id[SHA256_BYTES];
    int n = snprintf(text, sizeof text, "secret of start %d", generation);
    sha256_hmac(o->secret, SHA256_BYTES, text, (size_t)n, secret);
    n = snprintf(text, sizeof text, "id of start %d", generation);
    sha256_hmac(o->secret, SHA256_BYTES, text, (size_t)n, id);
    memcpy(start_id, id, sizeof *start_id);
}

/* ---- the log ---- */

/* Both nodes' clocks at the top of each log: the line says whose it is. */
static int open_log(keeper_rank *r, const keeper_order *o, int *fd, err *e) {
    buf dir = BUF_INIT;
    int rc = o->log_dir != NULL ? buf_puts(&dir, o->log_dir) : paths_logs(&dir, e);
    if (rc == OK) rc = paths_make_private(buf_cstr(&dir), e);
    if (rc == OK && r->generation == 0) keeper_logs_thin(buf_cstr(&dir), o->rank, o->log_keep);
    if (rc == OK) {
        int n = snprintf(r->log_path, sizeof r->log_path, "%s/rank%d-%016llx.log", buf_cstr(&dir),
            o->rank, (unsigned long long)o->start_id);
        if (n < 0 || (size_t)n >= sizeof r->log_path)
            rc = err_set(e, ERR_LIMIT, "the folder of the logs has too long a name");
    }
    buf_release(&dir);
    if (rc != OK) return rc;
    *fd = open(r->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0) return err_errno(e, "opening the log %s", r->log_path);
    uint64_t size = 0;
    char time[32], host[64] = "";
    clock_format_utc(clock_wall_ms(), time);
    (void)gethostname(host, sizeof host - 1);
    (void)file_size(r->log_path, &size, NULL);
    dprintf(*fd, "%s info  rank=%d keeper: start of the rank generation=%d host=%s\n", time,
        o->rank, r->generation, host);
    r->log_from = size;
    return OK;
}

/* ---- starting ---- */

typedef struct rank_child {
    char *argv[KEEPER_WORDS_MAX + 1];
    char *envp[ENVIRON_MAX + KEEPER_ENV_MAX + 1];
    uint8_t *secret; /* of the order, wiped in the child */
} rank_child;

static void fill_environment(rank_child *c, const keeper_order *o) {
    int n = 0;
    for (char **at = environ; *at != NULL && n < ENVIRON_MAX; at++) {
        /* Leftovers of other programs have frozen starts; only what the order says counts. */
        if (!str_starts(*at, "NCCL_")) c->envp[n++] = *at;
    }
    for (int i = 0; i < o->n_env; i++)
        c->envp[n++] = o->env[i];
    c->envp[n] = NULL;
}

/* In the child, between fork and exec: only calls that are safe there. */
static _Noreturn void become_rank(rank_child *c, int in_fd, int log_fd, pid_t parent) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* Without its keeper a rank ends: nobody would watch it. */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(EXIT_FAILURE);
    explicit_bzero(c->secret, SHA256_BYTES);
    secret_drop_in_child();
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = write(fd, "1000", 4);
        (void)n;
        close(fd);
    }
    dup2(in_fd, STDIN_FILENO);
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    execve(c->argv[0], c->argv, c->envp);
    dprintf(STDERR_FILENO, "tandemd: %s cannot be run: %s\n", c->argv[0], strerror(errno));
    _exit(20);
}

static int say_start(int fd, const keeper_order *o, int generation, err *e) {
    uint8_t secret[SHA256_BYTES];
    char hex[SHA256_HEX], line[START_LINE + 1];
    uint64_t id = 0;
    keeper_generation(o, generation, secret, &id);
    sha256_hex(secret, hex);
    snprintf(line, sizeof line, "%s %016llx\n", hex, (unsigned long long)id);
    /* A pipe holds this much, so a rank that does not read cannot hold us up; one that has ended
     * shows as such at the next look. */
    int rc = fd_write_full(fd, line, START_LINE, e);
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(hex, sizeof hex);
    explicit_bzero(line, sizeof line);
    return rc == ERR_IO || rc == ERR_CANCELLED || rc == ERR_NET ? OK : rc;
}

static int fork_rank(keeper_rank *r, const keeper_order *o, int log_fd, err *e) {
    int in[2] = {-1, -1};
    rank_child *c = mem_alloc(sizeof *c);
    char status[] = "{status}";
    for (int i = 0; i < o->n_words; i++)
        c->argv[i] = str_eq(o->words[i], status) ? r->status_path : o->words[i];
    fill_environment(c, o);
    c->secret = (uint8_t *)(uintptr_t)o->secret; /* only the child writes there */
    int rc = pipe2(in, O_CLOEXEC) == 0 ? OK : err_errno(e, "making a pipe for the rank");
    pid_t parent = getpid(), pid = rc == OK ? fork() : -1;
    if (pid == 0) become_rank(c, in[0], log_fd, parent);
    if (rc == OK && pid < 0) rc = err_errno(e, "starting the rank");
    if (rc == OK) {
        r->pid = pid;
        r->ticks = keeper_start_ticks(pid);
        rc = say_start(in[1], o, r->generation, e);
    }
    if (in[0] >= 0) close(in[0]);
    if (in[1] >= 0) close(in[1]);
    mem_free(c);
    return rc;
}

int keeper_rank_start(keeper_rank *r, const keeper_order *o, int generation, err *e) {
    buf path = BUF_INIT;
    char name[32];
    int log_fd = -1;
    *r = (keeper_rank){.generation = generation};
    snprintf(name, sizeof name, "rank%d.json", o->rank);
    int rc = keeper_file(name, &path, e);
    if (rc == OK && path.len >= sizeof r->status_path)
        rc = err_set(e, ERR_LIMIT, "the state folder has too long a name");
    if (rc == OK) {
        str_copy(r->status_path, sizeof r->status_path, buf_cstr(&path));
        (void)unlink(r->status_path); /* what an earlier rank left says nothing about this one */
        rc = open_log(r, o, &log_fd, e);
    }
    if (rc == OK) rc = fork_rank(r, o, log_fd, e);
    if (log_fd >= 0) close(log_fd);
    buf_release(&path);
    r->started_ms = r->moved_ms = clock_mono_ms();
    if (rc == OK)
        LOG(LOG_INFO, "keeper", "rank started", "rank=%d pid=%ld generation=%d", o->rank,
            (long)r->pid, generation);
    return rc;
}

/* Field 22 of stat; the name in brackets before may hold blanks. */
uint64_t keeper_start_ticks(pid_t pid) {
    char path[64];
    buf text = BUF_INIT;
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    const char *at =
        file_read(path, &text, 4096, NULL) == OK ? strrchr(buf_cstr(&text), ')') : NULL;
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at != NULL) ticks = strtoull(at, NULL, 10);
    buf_release(&text);
    return ticks;
}

void keeper_rank_signal(const keeper_rank *r, int signal_number) {
    if (r->pid > 0) (void)kill(r->pid, signal_number);
}

/* ---- looking ---- */

static bool take_phase(keeper_rank *r, const json *v) {
    const char *phase = json_str(json_get(v, "phase"));
    double progress = -1;
    int64_t pid = 0;
    (void)json_double(json_get(v, "progress"), &progress);
    if (phase == NULL || json_i64(json_get(v, "pid"), &pid) != OK || pid != r->pid) return false;
    bool is_same = str_eq(phase, r->phase) && progress <= r->progress && progress >= r->progress;
    if (is_same) return false;
    str_copy(r->phase, sizeof r->phase, phase);
    r->progress = progress;
    r->moved_ms = clock_mono_ms();
    r->is_ready = str_eq(phase, "ready");
    return true;
}

bool keeper_rank_look(keeper_rank *r) {
    json *v = NULL;
    int status = 0;
    bool has_changed = false;
    if (r->pid == 0) return false;
    if (file_exists(r->status_path) && json_parse_file(r->status_path, NULL, &v, NULL) == OK)
        has_changed = take_phase(r, v);
    json_free(v);
    if (waitpid(r->pid, &status, WNOHANG) != r->pid) return has_changed;
    r->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    r->has_ended = true;
    r->pid = 0;
    return true;
}

static bool reported_reason(const keeper_rank *r, char *out, size_t cap) {
    json *v = NULL;
    const char *message = NULL;
    if (file_exists(r->status_path) && json_parse_file(r->status_path, NULL, &v, NULL) == OK)
        message = json_str(json_get(json_get(v, "failure"), "message"));
    bool is_there = message != NULL && message[0] != '\0';
    if (is_there) str_copy(out, cap, message);
    json_free(v);
    return is_there;
}

/* The first sentence of the rank's own in its log of this generation. */
static bool logged_reason(const keeper_rank *r, char *out, size_t cap) {
    int fd = open(r->log_path, O_RDONLY | O_CLOEXEC);
    char *text = fd >= 0 ? mem_alloc(REASON_READ_MAX + 1) : NULL;
    ssize_t n = fd >= 0 ? pread(fd, text, REASON_READ_MAX, (off_t)r->log_from) : -1;
    const char *at = n > 0 ? strstr(text, "tandemd: ") : NULL;
    while (at != NULL && at != text && at[-1] != '\n')
        at = strstr(at + 1, "tandemd: ");
    if (at != NULL) {
        str_copy(out, cap, at + 9);
        out[strcspn(out, "\n")] = '\0';
    }
    mem_free(text);
    if (fd >= 0) close(fd);
    return at != NULL;
}

void keeper_rank_reason(const keeper_rank *r, char *out, size_t cap) {
    if (reported_reason(r, out, cap) || logged_reason(r, out, cap)) return;
    if (r->code > 128) {
        snprintf(
            out, cap, "it was ended by signal %d (%s)", r->code - 128, strsignal(r->code - 128));
    } else {
        snprintf(out, cap, "it ended with code %d and left no word", r->code);
    }
}

/* ---- stacks ---- */

static void put_file(buf *out, const char *dir, const char *task, const char *name) {
    char path[128];
    buf text = BUF_INIT;
    snprintf(path, sizeof path, "%s/%s/%s", dir, task, name);
    if (file_read(path, &text, 16 << 10, NULL) == OK && text.len > 0)
        buf_printf(
            out, "  %s: %s%s", name, buf_cstr(&text), text.data[text.len - 1] == '\n' ? "" : "\n");
    buf_release(&text);
}

void keeper_rank_stacks(const keeper_rank *r, buf *out) {
    static const char *const names[] = {"comm", "wchan", "syscall", "stack"};
    char dir[64];
    if (r->pid == 0) return;
    snprintf(dir, sizeof dir, "/proc/%ld/task", (long)r->pid);
    DIR *d = opendir(dir);
    for (struct dirent *entry = d != NULL ? readdir(d) : NULL; entry != NULL; entry = readdir(d)) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) > 16) continue;
        buf_printf(out, "thread %s\n", entry->d_name);
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            put_file(out, dir, entry->d_name, names[i]);
    }
    if (d != NULL) closedir(d);
}
