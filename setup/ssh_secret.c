#include "setup/ssh_secret.h"

#include <string.h>
#include <sys/mman.h>

#include "engine/base/err.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/secret.h"

struct ssh_secret {
    size_t len;
    char text[SSH_SECRET_MAX];
};

/* A mapping of its own: locking works on whole pages, and nothing else may share them. */
ssh_secret *ssh_secret_new(void) {
    ssh_secret *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_MSG(s != MAP_FAILED, "no memory for a secret");
    /* Both may be refused by a limit; the secret is then still wiped and short-lived. */
    if (mlock(s, sizeof *s) != 0) LOG(LOG_DEBUG, "ssh", "a secret could not be locked in memory");
    if (madvise(s, sizeof *s, MADV_DONTDUMP) != 0) {
        LOG(LOG_DEBUG, "ssh", "a secret could not be kept out of core dumps");
    }
    secret_hold();
    return s;
}

void ssh_secret_free(ssh_secret *s) {
    if (s == NULL) return;
    explicit_bzero(s, sizeof *s);
    munmap(s, sizeof *s);
    secret_drop();
}

int ssh_secret_set(ssh_secret *s, const char *text, size_t n) {
    explicit_bzero(s, sizeof *s);
    if (n >= SSH_SECRET_MAX) return ERR_LIMIT;
    memcpy(s->text, text, n);
    s->len = n;
    if (n >= 6) log_hide(s->text);
    return OK;
}

const char *ssh_secret_text(const ssh_secret *s) {
    return s->text;
}

size_t ssh_secret_len(const ssh_secret *s) {
    return s->len;
}
