/* Putting the netplan file in place with a way back: the old file is kept outside /etc/netplan, a
 * dead man's timer on that machine restores it, and only a machine that can still be reached
 * afterwards gets the timer taken away. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/str.h"
#include "setup/link.h"
#include "setup/node_access_internal.h"

enum { RESTORE_S = 120, APPLY_MS = 60000, REACH_TRIES = 10, REACH_PAUSE_MS = 500 };

/* $1 file, $2 kept copy, $3 marker, $4 tools folder or "". With the word armed it acts only while the
 * marker is there. */
static const char UNDO[] = "#!/bin/sh\n"
                           "# Goes back to the network settings before Tandem changed them.\n"
                           "file='%s'\nkept='%s'\nmark='%s'\nPATH=%s$PATH:/usr/sbin:/sbin\n"
                           "if [ \"$1\" = armed ] && [ ! -e \"$mark\" ]; then exit 0; fi\n"
                           "rm -f \"$mark\"\n"
                           "if [ -f \"$kept\" ]; then "
                           "install -m 0600 \"$kept\" \"$file.tandem-new\" && "
                           "mv -f \"$file.tandem-new\" \"$file\"; "
                           "else rm -f \"$file\"; fi\n"
                           "exec netplan apply\n";
/* $1 tools folder, $2 file, $3 new text, $4 kept copy */
static const char VALIDATE[] =
    "PATH=$1$PATH; t=$(mktemp -d) || exit 1; mkdir -p \"$t/etc/netplan\"; d=${2%/*}; "
    "for f in \"$d\"/*.yaml; do if [ -f \"$f\" ]; then cp -p \"$f\" \"$t/etc/netplan/\"; fi; done; "
    "install -m 0600 \"$3\" \"$t/etc/netplan/${2##*/}\" && netplan generate --root-dir \"$t\"; rc=$?; "
    "rm -rf \"$t\"; exit $rc";
static const char KEEP[] = "if [ -f \"$2\" ]; then cp -p \"$2\" \"$4\"; fi";
/* $1 tools folder, $2 undo script, $3 marker, $4 seconds */
static const char ARM[] =
    "PATH=$1$PATH; : > \"$3\"; if [ -d /run/systemd/system ] && [ -z \"$1\" ]; then "
    "systemd-run --collect --quiet --unit=tandem-netplan-undo --on-active=\"$4\" /bin/sh \"$2\" armed; "
    "else setsid sh -c 'sleep \"$2\"; exec sh \"$1\" armed' sh \"$2\" \"$4\" </dev/null >/dev/null 2>&1 & "
    "fi";
static const char APPLY[] =
    "PATH=$1$PATH; install -m 0600 \"$3\" \"$2.tandem-new\" && mv -f \"$2.tandem-new\" \"$2\" && "
    "netplan apply";
static const char DISARM[] = "rm -f \"$3\"; if [ -d /run/systemd/system ] && [ -z \"$1\" ]; then "
                             "systemctl stop tandem-netplan-undo.timer 2>/dev/null; fi; exit 0";

typedef struct applying {
    node_access *n;
    const link_apply *a;
    buf tools; /* "DIR:" for a fixture, else empty */
    buf file, kept, fresh, script, mark;
} applying;

static void say(const applying *w, const char *text) {
    if (w->a->say == NULL) return;
    buf line = BUF_INIT;
    if (buf_printf(&line, "%s: %s", node_access_name(w->n), text) == OK) {
        w->a->say(w->a->ctx, buf_cstr(&line));
    }
    buf_release(&line);
}

static void applying_release(applying *w) {
    buf_release(&w->tools);
    buf_release(&w->file);
    buf_release(&w->kept);
    buf_release(&w->fresh);
    buf_release(&w->script);
    buf_release(&w->mark);
}

/* Only characters that mean nothing inside the quotes of the undo script. */
static bool is_plain_path(const char *path) {
    return path[0] == '/' && strpbrk(path, "'\\\"$`\n") == NULL;
}

static int paths_make(applying *w, err *e) {
    buf home = BUF_INIT;
    char stamp[32];
    clock_format_utc(clock_wall_ms(), stamp);
    for (char *c = stamp; *c != '\0'; c++) {
        if (*c == ':' || *c == '.') *c = '-';
    }
    int rc = OK;
    if (node_access_is_fixture(w->n)) {
        rc = buf_printf(&home, "%s/home", w->n->root);
        if (rc == OK) rc = buf_printf(&w->tools, "%s/tools:", w->n->root);
    } else {
        rc = node_tool(w->n, &home, e, "printenv", "HOME", NULL);
    }
    while (home.len > 0 && home.data[home.len - 1] == '\n')
        buf_truncate(&home, home.len - 1);
    const char *h = buf_cstr(&home);
    if (rc == OK && !is_plain_path(h)) {
        rc =
            err_set(e, ERR_FORMAT, "the home folder on %s is \"%.80s\"", node_access_name(w->n), h);
    }
    static const char form[] = "%s/.local/state/tandem/undo/%s-%s";
    if (rc == OK) rc = buf_printf(&w->file, "%s%s", w->n->root, LINK_NETPLAN_FILE);
    if (rc == OK) rc = buf_printf(&w->kept, form, h, stamp, "40-cx7.yaml");
    if (rc == OK) rc = buf_printf(&w->fresh, form, h, stamp, "new.yaml");
    if (rc == OK) rc = buf_printf(&w->script, form, h, stamp, "undo.sh");
    if (rc == OK) rc = buf_printf(&w->mark, form, h, stamp, "armed");
    buf_release(&home);
    return rc;
}

/* One step as root: a constant script and words. */
static int step(
    applying *w, const char *what, const char *script, const char *const words[4], err *e) {
    const char *argv[] = {
        "/bin/sh", "-c", script, "sh", words[0], words[1], words[2], words[3], NULL};
    node_command c = {.argv = argv, .timeout_ms = APPLY_MS};
    say(w, what);
    if (w->a->is_dry) return OK;
    remote_result r;
    remote_result_init(&r);
    int rc = node_run_root(w->n, &c, what, &r, e);
    if (rc == OK && r.exit_code != 0) {
        rc = err_set(e, ERR_IO, "%s failed on %s (code %d): %.300s", what, node_access_name(w->n),
            r.exit_code, buf_cstr(r.err.len > 0 ? &r.err : &r.out));
    }
    remote_result_release(&r);
    return rc;
}

static int write_files(applying *w, const char *text, err *e) {
    buf dir = BUF_INIT, script = BUF_INIT;
    const char *slash = strrchr(buf_cstr(&w->kept), '/');
    int rc = buf_append(&dir, buf_cstr(&w->kept), (size_t)(slash - buf_cstr(&w->kept)));
    say(w, "keep the new text and the way back in ~/.local/state/tandem/undo");
    if (rc == OK && !w->a->is_dry) {
        const char *argv[] = {"/usr/bin/install", "-d", "-m", "0700", buf_cstr(&dir), NULL};
        node_command c = {.argv = argv};
        remote_result r;
        remote_result_init(&r);
        rc = node_run(w->n, &c, &r, e);
        if (rc == OK && r.exit_code != 0) rc = err_set(e, ERR_IO, "%.200s", buf_cstr(&r.err));
        remote_result_release(&r);
        /* Paths of a fixture are below its root already. */
        size_t skip = strlen(w->n->root);
        if (rc == OK) {
            rc = buf_printf(&script, UNDO, buf_cstr(&w->file), buf_cstr(&w->kept),
                buf_cstr(&w->mark), buf_cstr(&w->tools));
        }
        if (rc == OK) {
            rc = node_write(w->n, buf_cstr(&w->script) + skip, script.data, script.len, 0700, e);
        }
        if (rc == OK)
            rc = node_write(w->n, buf_cstr(&w->fresh) + skip, text, strlen(text), 0600, e);
    }
    buf_release(&dir);
    buf_release(&script);
    return rc;
}

/* Reached anew: the old session may live on although nobody new could come in. */
static int reach_again(applying *w, err *e) {
    remote *old = node_access_session(w->n);
    if (old == NULL || w->a->is_dry) return OK;
    for (int i = 0;; i++) {
        remote *fresh = NULL;
        int rc = remote_again(old, &fresh, e);
        if (rc == OK) {
            w->n->session = fresh;
            remote_close(old);
            return OK;
        }
        if (i == REACH_TRIES) return rc;
        sleep_ms(REACH_PAUSE_MS);
    }
}

static int apply_steps(applying *w, const char *text, err *e) {
    const char *tools = buf_cstr(&w->tools), *file = buf_cstr(&w->file), *kept = buf_cstr(&w->kept);
    const char *fresh = buf_cstr(&w->fresh), *script = buf_cstr(&w->script);
    const char *mark = buf_cstr(&w->mark);
    buf seconds = BUF_INIT;
    int rc = buf_printf(&seconds, "%d", w->a->restore_s > 0 ? w->a->restore_s : RESTORE_S);
    const char *const files[4] = {tools, file, fresh, kept};
    const char *const timer[4] = {tools, script, mark, buf_cstr(&seconds)};
    if (rc == OK) rc = write_files(w, text, e);
    if (rc == OK) rc = step(w, "check the new file with netplan generate", VALIDATE, files, e);
    if (rc == OK) rc = step(w, "keep the file that is there", KEEP, files, e);
    if (rc == OK)
        rc = step(w, "arm the way back, in case the machine cannot be reached", ARM, timer, e);
    if (rc == OK) rc = step(w, "put the file in place and run netplan apply", APPLY, files, e);
    if (rc == OK) rc = reach_again(w, e);
    if (rc != OK) {
        buf_release(&seconds);
        return err_add(e, rc, "the old settings come back by themselves");
    }
    rc = step(w, "reached again: take the way back off the clock", DISARM, timer, e);
    buf_release(&seconds);
    return rc;
}

int link_netplan_apply(node_access *n, const link_plan *plan, int i_node, const char *text,
    const link_apply *a, buf *undo, err *e) {
    applying w = {.n = n, .a = a};
    if (plan->physical_ports_used == 0 || plan->rail[i_node][0].netdev[0] == '\0') {
        return err_set(e, ERR_ARG, "there is no planned port on %s", node_access_name(n));
    }
    node_sudo_begin(n, a->sudo);
    int rc = paths_make(&w, e);
    if (rc == OK) rc = apply_steps(&w, text, e);
    node_sudo_end(n);
    if (rc == OK && undo != NULL) rc = buf_puts(undo, buf_cstr(&w.script));
    applying_release(&w);
    return err_add(e, rc, "setting up the network of %s", node_access_name(n));
}

int link_netplan_undo(node_access *n, const char *script, const link_apply *a, err *e) {
    applying w = {.n = n, .a = a};
    const char *const words[4] = {script, "", "", ""};
    if (!is_plain_path(script)) return err_set(e, ERR_ARG, "\"%.80s\" is no undo script", script);
    node_sudo_begin(n, a->sudo);
    int rc = step(&w, "go back to the network settings before", "exec /bin/sh \"$1\"", words, e);
    node_sudo_end(n);
    return rc;
}
