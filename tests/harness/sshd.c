#include "tests/harness/sshd.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"

extern char **environ;

static pid_t start(const char *const *argv) {
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)(void *)argv, environ) != 0)
        pid = -1;
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

bool sshd_tool(const char *const *argv) {
    int status = 0;
    pid_t pid = start(argv);
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static bool make_key(const char *path) {
    (void)unlink(path);
    const char *argv[] = {"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path, NULL};
    return sshd_tool(argv);
}

static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = -1;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
        getsockname(fd, (struct sockaddr *)&a, &n) == 0) {
        port = ntohs(a.sin_port);
    }
    if (fd >= 0) close(fd);
    return port;
}

static bool answers(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    if (fd >= 0) close(fd);
    return is;
}

static bool run_server(sshd *s) {
    buf conf = BUF_INIT, path = BUF_INIT;
    (void)buf_printf(&conf,
        "Port %d\nListenAddress 127.0.0.1\nHostKey %s/host\nAuthorizedKeysFile %s/authorized_keys\n"
        "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        "MaxSessions 64\nMaxStartups 100\nPrintMotd no\nSetEnv HOME=%s/home TANDEM_ALLOW_ROOT=1\n",
        s->port, s->dir, s->dir, s->dir);
    (void)buf_printf(&path, "%s/sshd_config", s->dir);
    bool is_written = file_write_atomic(buf_cstr(&path), conf.data, conf.len, 0600, NULL) == OK;
    const char *argv[] = {"/usr/sbin/sshd", "-D", "-f", buf_cstr(&path), NULL};
    if (geteuid() == 0) (void)mkdir("/run/sshd", 0755);
    s->pid = is_written ? start(argv) : -1;
    buf_release(&conf);
    buf_release(&path);
    for (int i = 0; i < 6000 && s->pid > 0; i++) {
        if (answers(s->port)) return true;
        if (waitpid(s->pid, NULL, WNOHANG) == s->pid) s->pid = -1;
        sleep_ms(20);
    }
    return false;
}

static void end_server(sshd *s) {
    if (s->pid <= 0) return;
    (void)kill(s->pid, SIGTERM);
    (void)waitpid(s->pid, NULL, 0);
    s->pid = -1;
}

bool sshd_start(sshd *s) {
    memset(s, 0, sizeof *s);
    s->pid = -1;
    const struct passwd *pw = getpwuid(geteuid());
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/tandem-sshd.XXXXXX");
    if (pw == NULL || access("/usr/sbin/sshd", X_OK) != 0 || mkdtemp(s->dir) == NULL) {
        printf("skip: there is no sshd (openssh-server) here\n");
        return false;
    }
    char host[240], public_key[260], keys[240];
    (void)snprintf(s->key, sizeof s->key, "%s/id_ed25519", s->dir);
    (void)snprintf(s->known_hosts, sizeof s->known_hosts, "%s/known_hosts", s->dir);
    (void)snprintf(host, sizeof host, "%s/host", s->dir);
    (void)snprintf(public_key, sizeof public_key, "%s.pub", s->key);
    (void)snprintf(keys, sizeof keys, "%s/authorized_keys", s->dir);
    char there[240];
    (void)snprintf(there, sizeof there, "%s/home", s->dir);
    (void)mkdir(there, 0755);
    const char *copy[] = {"cp", public_key, keys, NULL};
    bool is_ready = make_key(host) && make_key(s->key) && sshd_tool(copy);
    /* A port that was free may be taken before the server has it. */
    for (int i = 0; i < 5 && is_ready; i++) {
        s->port = free_port();
        (void)snprintf(s->target, sizeof s->target, "%s@127.0.0.1:%d", pw->pw_name, s->port);
        if (s->port > 0 && run_server(s)) return true;
        end_server(s);
    }
    printf("skip: sshd does not start here\n");
    sshd_stop(s);
    return false;
}

void sshd_stop(sshd *s) {
    end_server(s);
    if (s->dir[0] != '\0') (void)dir_remove_all(s->dir, NULL);
    s->dir[0] = '\0';
}

void sshd_trust(const sshd *s) {
    buf path = BUF_INIT, text = BUF_INIT, line = BUF_INIT;
    (void)buf_printf(&path, "%s/host.pub", s->dir);
    if (file_read(buf_cstr(&path), &text, 4096, NULL) == OK) {
        /* type and key, without the comment */
        char *key = strchr(text.data, ' ');
        char *end = key != NULL ? strchr(key + 1, ' ') : NULL;
        if (end != NULL) *end = '\0';
        (void)buf_printf(&line, "[127.0.0.1]:%d %s\n", s->port, text.data);
        (void)file_write_atomic(s->known_hosts, line.data, line.len, 0600, NULL);
    }
    buf_release(&path);
    buf_release(&text);
    buf_release(&line);
}

bool sshd_new_keys(sshd *s) {
    char host[240];
    (void)snprintf(host, sizeof host, "%s/host", s->dir);
    end_server(s);
    if (!make_key(host)) return false;
    /* Somebody's connection may have its port for a moment. */
    for (int i = 0; i < 100; i++) {
        if (run_server(s)) return true;
        end_server(s);
        sleep_ms(100);
    }
    return false;
}
