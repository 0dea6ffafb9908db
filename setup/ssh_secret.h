/* A password or passphrase in memory that is kept out of swap and core dumps and wiped on release.
 * Owned by one thread. Its text never goes into argv, an environment, a log or a file. */
#ifndef SETUP_SSH_SECRET_H
#define SETUP_SSH_SECRET_H

#include <stddef.h>

#define SSH_SECRET_MAX 1024

typedef struct ssh_secret ssh_secret;

/* Empty; never NULL. Freed, wiped, with ssh_secret_free. */
ssh_secret *ssh_secret_new(void);
void ssh_secret_free(ssh_secret *s);
/* Copies at most SSH_SECRET_MAX - 1 bytes; the caller wipes its own copy. Returns OK or ERR_LIMIT. */
int ssh_secret_set(ssh_secret *s, const char *text, size_t n);
/* Terminated; valid until the next change. */
const char *ssh_secret_text(const ssh_secret *s);
size_t ssh_secret_len(const ssh_secret *s);

#endif
