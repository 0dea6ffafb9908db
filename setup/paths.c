#include "setup/paths.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"

static int home_dir(buf *out, err *e) {
    const char *home = getenv("HOME");
    if (home == NULL || home[0] == '\0') {
        const struct passwd *pw = getpwuid(getuid());
        home = pw != NULL ? pw->pw_dir : NULL;
    }
    if (home == NULL || home[0] != '/') {
        return err_set(e, ERR_NOT_FOUND,
            "no home folder is known for this user; set HOME to an absolute path");
    }
    return buf_puts(out, home);
}

/* $variable/tandem, else HOME/fallback/tandem. The XDG rule: a relative value is ignored. */
static int xdg_dir(const char *variable, const char *fallback, buf *out, err *e) {
    const char *value = getenv(variable);
    int rc;
    if (value != NULL && value[0] == '/') {
        rc = buf_puts(out, value);
    } else {
        rc = home_dir(out, e);
        if (rc != OK) return rc;
        rc = buf_printf(out, "/%s", fallback);
    }
    if (rc == OK) rc = buf_puts(out, "/tandem");
    return rc == OK ? OK : err_set(e, rc, "the path in %s is too long", variable);
}

int paths_config(buf *out, err *e) {
    return xdg_dir("XDG_CONFIG_HOME", ".config", out, e);
}

int paths_state(buf *out, err *e) {
    return xdg_dir("XDG_STATE_HOME", ".local/state", out, e);
}

int paths_runtime(buf *out, err *e) {
    const char *value = getenv("XDG_RUNTIME_DIR");
    if (value != NULL && value[0] == '/') return xdg_dir("XDG_RUNTIME_DIR", "", out, e);
    char system_dir[64];
    struct stat st;
    buf name = BUF_INIT;
    int rc = buf_printf(&name, "/run/user/%u", (unsigned)getuid());
    if (rc == OK && name.len < sizeof system_dir && stat(buf_cstr(&name), &st) == 0 &&
        S_ISDIR(st.st_mode) && st.st_uid == getuid()) {
        rc = buf_printf(out, "%s/tandem", buf_cstr(&name));
        buf_release(&name);
        return rc;
    }
    buf_release(&name);
    rc = paths_state(out, e);
    return rc == OK ? buf_puts(out, "/run") : rc;
}

static int below(int (*base)(buf *, err *), const char *name, buf *out, err *e) {
    int rc = base(out, e);
    return rc == OK ? buf_printf(out, "/%s", name) : rc;
}

int paths_settings_file(buf *out, err *e) {
    return below(paths_config, "tandem.conf", out, e);
}

int paths_socket(buf *out, err *e) {
    const char *value = getenv("TANDEM_SOCKET");
    if (value != NULL && value[0] != '\0') {
        if (value[0] != '/') {
            return err_set(
                e, ERR_ARG, "TANDEM_SOCKET is \"%s\"; it must be an absolute path", value);
        }
        return buf_puts(out, value);
    }
    return below(paths_runtime, "engine.sock", out, e);
}

int paths_logs(buf *out, err *e) {
    return below(paths_state, "logs", out, e);
}

int paths_engine_log(buf *out, err *e) {
    return below(paths_state, "logs/engine.log", out, e);
}

int paths_make_private(const char *dir, err *e) {
    int rc = dir_make_all(dir, 0700, e);
    if (rc != OK) return rc;
    struct stat st;
    if (stat(dir, &st) != 0) return err_errno(e, "cannot look at %s", dir);
    if (!S_ISDIR(st.st_mode)) {
        return err_set(e, ERR_EXISTS, "%s is not a folder; move it away", dir);
    }
    if (st.st_uid != getuid()) {
        return err_set(e, ERR_AUTH, "%s belongs to another user; use a folder of your own", dir);
    }
    if ((st.st_mode & 0022) != 0 && chmod(dir, 0700) != 0) {
        return err_errno(e, "%s can be written by others and cannot be made private", dir);
    }
    return OK;
}
