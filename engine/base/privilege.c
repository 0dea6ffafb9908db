#include "engine/base/privilege.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int privilege_refuse_root(const char *what, err *e) {
    const char *allowed = getenv("TANDEM_ALLOW_ROOT");
    if (geteuid() != 0 || (allowed != NULL && strcmp(allowed, "1") == 0)) return OK;
    return err_set(e, ERR_AUTH,
        "%s does not run as root; start it as your own user: what needs root is asked of sudo, one "
        "command at a time",
        what);
}
