#include "setup/service.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/privilege.h"
#include "engine/base/str.h"
#include "setup/pair_internal.h"

enum { UNIT_MAX = 16 << 10, TOOL_MS = 30000 };

#define KEEPER_UNIT "tandem-keeper.service"
#define BOOT_UNIT "tandem-boot.service"
#define WATCH_UNIT "tandem-watch.service"
#define TIMER_UNIT "tandem-watch.timer"

const char *const *service_units(int node) {
    static const char *const head[] = {KEEPER_UNIT, BOOT_UNIT, WATCH_UNIT, TIMER_UNIT, NULL};
    static const char *const worker[] = {KEEPER_UNIT, NULL};
    return node == PAIR_HEAD ? head : worker;
}

/* What is switched on: the watch service only runs by its timer. */
static bool is_enabled_by_us(const settings *s, const char *name) {
    if (str_eq(name, WATCH_UNIT)) return false;
    return !str_eq(name, TIMER_UNIT) || settings_is_on(s, "WATCH");
}

/* ---- texts ---- */

static int read_template(const char *name, buf *out, err *e) {
    static const char *const places[] = {
        "../share/tandem/templates/systemd", "../templates/systemd", "../../templates/systemd"};
    const char *source = getenv("TANDEM_SOURCE_DIR");
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    buf dir = BUF_INIT, folder = BUF_INIT, path = BUF_INIT;
    int rc = n > 0 ? OK : err_errno(e, "finding this program");
    self[n > 0 ? n : 0] = '\0';
    path_dir(&dir, self);
    bool is_found = false;
    for (size_t i = 0; i < 3 && rc == OK && !is_found; i++) {
        path_join(&folder, buf_cstr(&dir), places[i]);
        path_join(&path, buf_cstr(&folder), name);
        is_found = file_exists(buf_cstr(&path));
    }
    path_real(&path);
    if (rc == OK && !is_found && source != NULL) {
        buf_reset(&path);
        buf_printf(&path, "%s/templates/systemd/%s", source, name);
    }
    if (rc == OK) rc = file_read(buf_cstr(&path), out, UNIT_MAX, e);
    buf_release(&dir);
    buf_release(&folder);
    buf_release(&path);
    return err_add(e, rc, "the template of the unit %s", name);
}

/* Paths in a unit: systemd reads % and \ as its own. */
static void put_path(buf *out, const char *path) {
    for (const char *c = path; *c != '\0'; c++) {
        if (*c == '%') buf_putc(out, '%');
        buf_putc(out, *c);
    }
}

static int fill(const buf *text, const pair_run *p, int node, buf *out) {
    char tandem[600] = "";
    const char *slash = strrchr(p->program[0], '/');
    if (slash != NULL)
        snprintf(tandem, sizeof tandem, "%.*s/tandem", (int)(slash - p->program[0]), p->program[0]);
    for (const char *at = buf_cstr(text); *at != '\0';) {
        if (str_starts(at, "@NODE@")) {
            put_path(out, p->program[node]);
            at += 6;
        } else if (str_starts(at, "@TANDEM@")) {
            put_path(out, tandem);
            at += 8;
        } else {
            buf_putc(out, *at++);
        }
    }
    return OK;
}

int service_unit_text(const pair_options *o, int node, const char *name, buf *out, err *e) {
    pair_run p = {.o = o, .lock_fd = -1};
    buf text = BUF_INIT;
    int rc = pair_find_programs(&p, e);
    if (rc == OK && strpbrk(p.program[node], " \t\"'\\") != NULL)
        rc = err_set(
            e, ERR_ARG, "the path %s cannot stand in a unit; move the programs", p.program[node]);
    if (rc == OK) rc = read_template(name, &text, e);
    if (rc == OK) rc = fill(&text, &p, node, out);
    buf_release(&text);
    return rc;
}

/* ---- the machine ---- */

/* systemctl --user needs the runtime folder, which an ssh session does not always name. */
static const char SYSTEMCTL[] =
    "export XDG_RUNTIME_DIR=\"${XDG_RUNTIME_DIR:-/run/user/$(id -u)}\"; exec systemctl --user "
    "\"$@\"";

static int systemctl(node_access *n, buf *out, err *e, const char *verb, const char *unit) {
    const char *argv[] = {"sh", "-c", SYSTEMCTL, "systemctl", verb, unit, NULL};
    remote_result r;
    remote_result_init(&r);
    node_command c = {.argv = argv, .timeout_ms = TOOL_MS};
    int rc = node_run(n, &c, &r, e);
    if (rc == OK && out != NULL) buf_append(out, r.out.data, strcspn(buf_cstr(&r.out), "\n"));
    if (rc == OK && r.exit_code != 0) {
        const char *said = buf_cstr(&r.err);
        bool has_none = r.exit_code == 127 || strstr(said, "Failed to connect to bus") != NULL;
        rc = err_set(e, has_none ? ERR_UNSUPPORTED : ERR_IO,
            has_none
                ? "no systemd of the user answers on the %s (%.200s); its keeper runs as a plain "
                  "process there, which tandem start begins"
                : "systemctl --user %s on the %s: %.200s",
            has_none ? node_access_name(n) : verb, has_none ? said : node_access_name(n), said);
    }
    remote_result_release(&r);
    return rc;
}

static const char UNIT_FOLDER[] = "${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user";

/* Writes a file into the folder of the user's units there; the text goes by standard input. */
static int write_unit(node_access *n, const char *name, const buf *text, err *e) {
    buf script = BUF_INIT;
    remote_result r;
    buf_printf(&script,
        "d=\"%s\"; mkdir -p \"$d\" && cat >\"$d/.$1.new\" && chmod 644 \"$d/.$1.new\" && "
        "mv -f \"$d/.$1.new\" \"$d/$1\"",
        UNIT_FOLDER);
    const char *argv[] = {"sh", "-c", buf_cstr(&script), "sh", name, NULL};
    remote_result_init(&r);
    node_command c = {
        .argv = argv, .input = text->data, .n_input = text->len, .timeout_ms = TOOL_MS};
    int rc = node_run(n, &c, &r, e);
    if (rc == OK && r.exit_code != 0)
        rc = err_set(e, ERR_IO, "writing the unit %s on the %s: %.200s", name, node_access_name(n),
            buf_cstr(&r.err));
    remote_result_release(&r);
    buf_release(&script);
    return rc;
}

static int remove_unit(node_access *n, const char *name, err *e) {
    buf script = BUF_INIT, out = BUF_INIT;
    buf_printf(&script, "rm -f -- \"%s/$1\"", UNIT_FOLDER);
    int rc = node_tool(n, &out, e, "sh", "-c", buf_cstr(&script), "sh", name, NULL);
    buf_release(&script);
    buf_release(&out);
    return rc;
}

/* True when the user's units run without a login. */
static bool lingers(node_access *n, bool *is_known) {
    static const char script[] =
        "loginctl show-user \"$(id -un)\" -p Linger --value 2>/dev/null || "
        "{ test -e \"/var/lib/systemd/linger/$(id -un)\" && echo yes || "
        "echo no; }";
    buf out = BUF_INIT;
    *is_known = node_tool(n, &out, NULL, "sh", "-c", script, NULL) == OK && out.len > 0;
    bool is = str_starts(buf_cstr(&out), "yes");
    buf_release(&out);
    return is;
}

/* ---- installing ---- */

static void say(service_sink sink, void *ctx, int node, bool is_warning, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static void say(service_sink sink, void *ctx, int node, bool is_warning, const char *fmt, ...) {
    char text[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (sink != NULL) sink(ctx, node, is_warning, text);
}

static void explain_linger(const pair_options *o, int node, service_sink sink, void *ctx) {
    static const char *const argv[] = {"loginctl", "enable-linger", NULL};
    bool is_known = false;
    remote_result r;
    if (lingers(o->node[node], &is_known)) return;
    remote_result_init(&r);
    node_command c = {.argv = argv, .timeout_ms = TOOL_MS};
    bool is_done = node_run(o->node[node], &c, &r, NULL) == OK && r.exit_code == 0 &&
                   lingers(o->node[node], &is_known);
    remote_result_release(&r);
    if (is_done) {
        say(sink, ctx, node, false,
            "the user's units now start with the machine (loginctl "
            "enable-linger)");
    } else {
        say(sink, ctx, node, true,
            "the user's units only run while somebody is logged in on the %s, so nothing starts after "
            "a boot; run there once: sudo loginctl enable-linger \"$(id -un)\"",
            pair_node_name(node));
    }
}

static int install_on(const pair_options *o, int node, service_sink sink, void *ctx, err *e) {
    node_access *n = o->node[node];
    const char *const *names = service_units(node);
    int rc = OK;
    for (int i = 0; names[i] != NULL && rc == OK; i++) {
        buf text = BUF_INIT;
        rc = service_unit_text(o, node, names[i], &text, e);
        if (rc == OK) rc = write_unit(n, names[i], &text, e);
        if (rc == OK) say(sink, ctx, node, false, "wrote the unit %s", names[i]);
        buf_release(&text);
    }
    if (rc == OK) rc = systemctl(n, NULL, e, "daemon-reload", NULL);
    for (int i = 0; names[i] != NULL && rc == OK; i++) {
        if (!is_enabled_by_us(o->settings, names[i])) continue;
        rc = systemctl(n, NULL, e, "enable", names[i]);
        if (rc == OK) say(sink, ctx, node, false, "enabled %s", names[i]);
    }
    if (rc == OK && node == PAIR_HEAD && settings_is_on(o->settings, "WATCH"))
        rc = systemctl(n, NULL, e, "start", TIMER_UNIT);
    if (rc == OK) explain_linger(o, node, sink, ctx);
    return rc;
}

static int need_both(const pair_options *o, err *e) {
    if (!pair_is_configured(o->settings))
        return err_set(e, ERR_ARG, "the pair is not set up; run tandem setup");
    if (o->node[1] == NULL)
        return err_set(
            e, ERR_NET, "the worker cannot be reached: %s", o->missing != NULL ? o->missing : "");
    return OK;
}

int service_install(const pair_options *o, service_sink sink, void *ctx, err *e) {
    int rc = privilege_refuse_root("a unit of the pair", e);
    if (rc == OK) rc = need_both(o, e);
    /* The worker's unit names the engine's folder there, which must exist before it is enabled. */
    if (rc == OK) {
        pair_run p = {.o = o, .lock_fd = -1};
        rc = pair_place(&p, e);
    }
    for (int i = PAIR_NODES - 1; i >= 0 && rc == OK; i--)
        rc = install_on(o, i, sink, ctx, e);
    if (rc == OK && !settings_is_on(o->settings, "WATCH"))
        say(sink, ctx, PAIR_HEAD, true,
            "the watchdog stays off: switch it on with `tandem config set WATCH on`, then install "
            "again");
    return rc;
}

int service_remove(const pair_options *o, service_sink sink, void *ctx, err *e) {
    int rc = need_both(o, e);
    for (int i = 0; i < PAIR_NODES && rc == OK; i++) {
        const char *const *names = service_units(i);
        for (int k = 0; names[k] != NULL && rc == OK; k++) {
            err ignored = ERR_INIT;
            (void)systemctl(o->node[i], NULL, &ignored, "disable", names[k]);
            if (str_eq(names[k], TIMER_UNIT))
                (void)systemctl(o->node[i], NULL, &ignored, "stop", names[k]);
            rc = remove_unit(o->node[i], names[k], e);
            if (rc == OK) say(sink, ctx, i, false, "removed the unit %s", names[k]);
        }
        err ignored = ERR_INIT;
        if (rc == OK) (void)systemctl(o->node[i], NULL, &ignored, "daemon-reload", NULL);
    }
    return rc;
}

int service_plan(const pair_options *o, bool is_removal, buf *out, err *e) {
    int rc = need_both(o, e);
    for (int i = PAIR_NODES - 1; i >= 0 && rc == OK; i--) {
        const char *const *names = service_units(i);
        const char *node = pair_node_name(i);
        for (int k = 0; names[k] != NULL; k++) {
            bool is_on = is_enabled_by_us(o->settings, names[k]);
            buf_printf(out, "%s: %s ~/.config/systemd/user/%s\n", node,
                is_removal ? "remove" : "write", names[k]);
            if (is_on)
                buf_printf(out, "%s: systemctl --user %s %s\n", node,
                    is_removal ? "disable" : "enable", names[k]);
        }
        buf_printf(out, "%s: systemctl --user daemon-reload\n", node);
        if (!is_removal)
            buf_printf(
                out, "%s: loginctl enable-linger (so that units run without a login)\n", node);
    }
    return rc;
}

/* ---- state ---- */

static void write_unit_state(node_access *n, const char *name, json_w *w) {
    buf enabled = BUF_INIT, active = BUF_INIT;
    err e = ERR_INIT;
    (void)systemctl(n, &enabled, &e, "is-enabled", name);
    (void)systemctl(n, &active, &e, "is-active", name);
    json_w_object(w);
    json_w_kstr(w, "unit", name);
    json_w_kstr(w, "enabled", enabled.len > 0 ? buf_cstr(&enabled) : NULL);
    json_w_kstr(w, "active", active.len > 0 ? buf_cstr(&active) : NULL);
    json_w_close(w);
    buf_release(&enabled);
    buf_release(&active);
}

void service_write(const pair_options *o, json_w *w) {
    json_w_key(w, "nodes");
    json_w_array(w);
    for (int i = 0; i < PAIR_NODES; i++) {
        bool is_known = false, does = o->node[i] != NULL && lingers(o->node[i], &is_known);
        json_w_object(w);
        json_w_kstr(w, "node", pair_node_name(i));
        json_w_kbool(w, "reachable", o->node[i] != NULL);
        json_w_key(w, "linger");
        if (is_known) {
            json_w_bool(w, does);
        } else {
            json_w_null(w);
        }
        json_w_key(w, "units");
        json_w_array(w);
        for (int k = 0; o->node[i] != NULL && service_units(i)[k] != NULL; k++)
            write_unit_state(o->node[i], service_units(i)[k], w);
        json_w_close(w);
        json_w_close(w);
    }
    json_w_close(w);
}
