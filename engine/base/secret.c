#include "engine/base/secret.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "engine/base/mem.h"

static pthread_mutex_t hold_lock = PTHREAD_MUTEX_INITIALIZER;
static int n_held, dumpable_before;

void secret_hold(void) {
    pthread_mutex_lock(&hold_lock);
    if (n_held++ == 0) {
        dumpable_before = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
        (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
    pthread_mutex_unlock(&hold_lock);
}

void secret_drop(void) {
    pthread_mutex_lock(&hold_lock);
    CHECK(n_held > 0);
    /* 2 is the system's own choice and cannot be set from here. */
    if (--n_held == 0 && dumpable_before == 1) (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    pthread_mutex_unlock(&hold_lock);
}

void secret_wipe_variable(const char *name) {
    char *value = getenv(name);
    if (value == NULL) return;
    explicit_bzero(value, strlen(value));
    (void)unsetenv(name);
}

/* No lock: another thread may have held it at the fork. */
void secret_drop_in_child(void) {
    if (n_held > 0 && dumpable_before == 1) (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}
