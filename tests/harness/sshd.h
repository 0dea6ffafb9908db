/* A real sshd on a loopback port for tests of ssh: own folder, own host keys, own authorized_keys, no
 * PAM. One thread. */
#ifndef TESTS_HARNESS_SSHD_H
#define TESTS_HARNESS_SSHD_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct sshd {
    char dir[200];         /* the folder; DIR/home is HOME of who logs in */
    char key[240];         /* DIR/id_ed25519, allowed to log in */
    char known_hosts[240]; /* DIR/known_hosts, made by sshd_trust */
    char target[120];      /* user@127.0.0.1:PORT */
    int port;
    pid_t pid;
} sshd;

/* False with a printed reason ("skip: ...") when sshd or ssh-keygen is missing or does not start. */
bool sshd_start(sshd *s);
/* Ends it and removes the folder. */
void sshd_stop(sshd *s);
/* Writes known_hosts with the host key that is shown now. */
void sshd_trust(const sshd *s);
/* New host keys and a new server on the same port. */
bool sshd_new_keys(sshd *s);
/* Runs a program found in PATH; the words end with NULL. True when it ended with 0. */
bool sshd_tool(const char *const *argv);

#endif
