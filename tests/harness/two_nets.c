#include "tests/harness/two_nets.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs one command line of ip; its complaints go nowhere. */
static bool ip(const char *line) {
    char command[256];
    snprintf(command, sizeof command, "exec ip %s >/dev/null 2>&1", line);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static bool make_all(const two_nets *n) {
    char line[200];
    bool is_good = true;
    for (int i = 0; i < 2 && is_good; i++) {
        snprintf(line, sizeof line, "netns add %s", n->name[i]);
        is_good = ip(line);
    }
    snprintf(line, sizeof line, "link add %s netns %s type veth peer name %s netns %s", n->cable[0],
        n->name[0], n->cable[1], n->name[1]);
    is_good = is_good && ip(line);
    for (int i = 0; i < 2 && is_good; i++) {
        snprintf(line, sizeof line, "-n %s addr add %s/24 dev %s", n->name[i], n->address[i],
            n->cable[i]);
        is_good = ip(line);
        snprintf(line, sizeof line, "-n %s link set %s up", n->name[i], n->cable[i]);
        is_good = is_good && ip(line);
        snprintf(line, sizeof line, "-n %s link set lo up", n->name[i]);
        is_good = is_good && ip(line);
    }
    return is_good;
}

bool two_nets_open(two_nets *n) {
    unsigned id = (unsigned)getpid();
    for (int i = 0; i < 2; i++) {
        snprintf(n->name[i], sizeof n->name[i], "tandem%u-%d", id, i);
        snprintf(n->address[i], sizeof n->address[i], "10.%u.%u.%d", 177 + id / 250 % 50, id % 250,
            i + 1);
        snprintf(n->cable[i], sizeof n->cable[i], "tv%u-%d", id % 1000000, i);
    }
    n->own_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (n->own_fd >= 0 && geteuid() == 0 && make_all(n)) return true;
    two_nets_close(n);
    return false;
}

void two_nets_enter(const two_nets *n, int side) {
    char path[80];
    int fd = n->own_fd;
    if (side >= 0) {
        snprintf(path, sizeof path, "/var/run/netns/%s", n->name[side]);
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
        perror("entering a network namespace");
        exit(1);
    }
    if (side >= 0) close(fd);
}

void two_nets_cut(const two_nets *n, bool is_cut) {
    char line[120];
    snprintf(
        line, sizeof line, "-n %s link set %s %s", n->name[1], n->cable[1], is_cut ? "down" : "up");
    if (!ip(line)) {
        fprintf(stderr, "ip %s failed\n", line);
        exit(1);
    }
}

void two_nets_close(two_nets *n) {
    char line[80];
    for (int i = 0; i < 2; i++) {
        snprintf(line, sizeof line, "netns del %s", n->name[i]);
        (void)ip(line);
    }
    if (n->own_fd >= 0) close(n->own_fd);
    n->own_fd = -1;
}
