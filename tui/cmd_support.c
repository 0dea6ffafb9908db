/* tandem support: everything that helps to understand a fault, of both machines, in one text file, with what must not leave the machine taken
 * out. It is shown before it is written. */
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/check.h"
#include "setup/paths.h"
#include "setup/redact.h"
#include "setup/settings.h"
#include "tui/cmd_pair.h"

enum { FILE_MAX_BYTES = 64 << 20, LOG_TAIL_BYTES = 256 << 10, BUNDLE_MAX_BYTES = 8 << 20 };

static void heading(buf *out, const char *title) {
    buf_printf(out, "\n==== %s ====\n", title);
}

/* The last bytes of a file, from the start of a line. */
static void add_file(buf *out, const char *title, const char *path, size_t max) {
    buf text = BUF_MAX(FILE_MAX_BYTES);
    err e = ERR_INIT;
    heading(out, title);
    if (file_read(path, &text, FILE_MAX_BYTES, &e) != OK) {
        buf_printf(out, "(not read: %s)\n", e.msg);
    } else {
        const char *from = text.data;
        size_t n = text.len;
        if (n > max) {
            from += n - max;
            n = max;
            const char *line = memchr(from, '\n', n);
            if (line != NULL) {
                n -= (size_t)(line + 1 - from);
                from = line + 1;
            }
        }
        buf_append(out, from, n);
        if (n > 0 && from[n - 1] != '\n') buf_puts(out, "\n");
    }
    buf_release(&text);
}

static void add_versions(buf *out) {
    heading(out, "versions");
    buf_printf(out, "tandem %s, build %s\n", TANDEM_VERSION, version_build_id());
    add_file(out, "kernel", "/proc/version", 4096);
    add_file(out, "system", "/etc/os-release", 4096);
    add_file(out, "memory", "/proc/meminfo", 8192);
    add_file(out, "GPU driver", "/proc/driver/nvidia/version", 4096);
}

static void add_settings(buf *out, settings *s) {
    heading(out, "settings that are not built in");
    size_t n = 0;
    const setting_key *keys = settings_keys(&n);
    for (size_t i = 0; i < n; i++) {
        if (!settings_is_set(s, keys[i].name)) continue;
        if (settings_origin(s, keys[i].name) == SETTING_BUILTIN) continue;
        buf_printf(out, "%s=%s  (%s)\n", keys[i].name, settings_get(s, keys[i].name),
            settings_origin_name(settings_origin(s, keys[i].name)));
    }
}

static void add_engine(const cmd_args *a, buf *out) {
    client *c = NULL;
    err e = ERR_INIT;
    static const char *const paths[] = {"/tandem/v1/state", "/metrics"};
    if (cmd_engine(a, false, &c, &e) != OK) {
        heading(out, "engine");
        buf_printf(out, "(%s)\n", e.msg);
        return;
    }
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        client_request r = {.path = paths[i], .limits = {.connect_ms = 2000, .total_ms = 5000}};
        heading(out, paths[i]);
        if (client_fetch(c, &r, out, NULL, &e) != OK) buf_printf(out, "(%s)", e.msg);
        buf_puts(out, "\n");
    }
    client_close(c);
}

static int add_check(void *ctx, const check_row *row, const check_result *r) {
    buf *out = ctx;
    (void)row;
    buf_printf(out, "%-7s %-11s %-6s %s\n", check_status_name(r->status), r->id, r->node, r->fact);
    if (r->status == CHECK_STATUS_FAIL || r->status == CHECK_STATUS_WARN)
        buf_printf(out, "        %s\n", r->reason);
    return OK;
}

/* This machine's checks that make no load. */
static void add_checks(buf *out, settings *s) {
    heading(out, "checks of this machine");
    node_access *head = node_access_local("head", NULL);
    check_options o = {.node = {head, NULL}, .settings = s};
    check_context *c = check_context_new(&o);
    check_status worst = CHECK_STATUS_PASS;
    err e = ERR_INIT;
    if (check_run(c, NULL, 0, add_check, out, &worst, &e) != OK) buf_printf(out, "(%s)\n", e.msg);
    check_context_free(c);
    node_access_close(head);
}

static void add_logs(buf *out) {
    buf path = BUF_INIT;
    err e = ERR_INIT;
    if (paths_engine_log(&path, &e) == OK) {
        add_file(out, "log of the engine, its end", buf_cstr(&path), LOG_TAIL_BYTES);
    }
    buf_release(&path);
}

/* ---- the pair ---- */

typedef struct known_names {
    char host[256], worker[256], worker_user[64];
    char worker_host[256], worker_home[256]; /* as the worker itself says; "" not asked */
} known_names;

/* The end of a log on its machine. */
static void add_log_there(buf *out, node_access *n, const char *node, const char *path) {
    static const char last[] = "262144"; /* bytes, LOG_TAIL_BYTES */
    buf text = BUF_MAX(2 * LOG_TAIL_BYTES);
    err e = ERR_INIT;
    buf_printf(out, "\n==== %s, end of %s ====\n", node, path_base(path));
    if (node_tool(n, &text, &e, "tail", "-c", last, "--", path, NULL) == OK) {
        buf_append(out, text.data, text.len);
        buf_puts(out, "\n");
    } else {
        buf_printf(out, "(not read: %s)\n", e.msg);
    }
    buf_release(&text);
}

/* The log of the rank and, beside it, that of its keeper. */
static void add_node_logs(buf *out, const cmd_nodes *n, const pair_view *v, int i) {
    const char *node = i == PAIR_HEAD ? "head" : "worker";
    const char *log = json_str(json_get(v->node[i].keeper, "log"));
    buf keeper = BUF_INIT;
    if (n->node[i] == NULL || log == NULL) {
        buf_printf(out, "\n==== logs of the %s ====\n(%s)\n", node,
            v->node[i].missing[0] != '\0' ? v->node[i].missing : "none yet");
        return;
    }
    path_dir(&keeper, log);
    buf_puts(&keeper, "/keeper.log");
    add_log_there(out, n->node[i], node, log);
    add_log_there(out, n->node[i], node, buf_cstr(&keeper));
    buf_release(&keeper);
}

static void ask_worker_names(node_access *worker, known_names *known) {
    buf text = BUF_INIT;
    if (worker == NULL) return;
    if (node_read_line(worker, "/proc/sys/kernel/hostname", &text, NULL) == OK)
        str_copy(known->worker_host, sizeof known->worker_host, buf_cstr(&text));
    buf_reset(&text);
    if (node_tool(worker, &text, NULL, "sh", "-c", "printf %s \"$HOME\"", NULL) == OK)
        str_copy(known->worker_home, sizeof known->worker_home, buf_cstr(&text));
    buf_release(&text);
}

static void add_pair_state(buf *out, const cmd_nodes *n, const pair_view *v) {
    pair_options o = cmd_pair_options(n);
    buf text = BUF_INIT;
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    pair_view_write(v, &w);
    pair_figures_write(&o, &w);
    pair_proofs_write(&o, &w);
    pair_versions_write(&o, &w);
    json_w_close(&w);
    heading(out, "the pair");
    if (json_w_end(&w) == OK) buf_printf(out, "%s\n", buf_cstr(&text));
    buf_release(&text);
}

/* State, versions and logs of both machines, where two are set up. */
static void add_pair(const cmd_args *a, buf *out, known_names *known) {
    cmd_nodes n;
    pair_view v;
    err e = ERR_INIT;
    if (!cmd_pair_applies(a)) return;
    if (cmd_nodes_open(a, true, &n, &e) != OK) {
        heading(out, "the pair");
        buf_printf(out, "(%s)\n", e.msg);
        return;
    }
    ask_worker_names(n.node[PAIR_WORKER], known);
    pair_options o = cmd_pair_options(&n);
    if (pair_look(&o, &v, &e) == OK) {
        add_pair_state(out, &n, &v);
        for (int i = 0; i < PAIR_NODES; i++)
            add_node_logs(out, &n, &v, i);
        pair_view_release(&v);
    } else {
        heading(out, "the pair");
        buf_printf(out, "(%s)\n", e.msg);
    }
    cmd_nodes_close(&n);
}

/* ---- names ---- */

static void add_name(redact_names *n, const char *word, const char *shown) {
    if (word[0] == '\0' || n->n_names == REDACT_MAX_NAMES) return;
    n->name[n->n_names].word = word;
    n->name[n->n_names++].shown = shown;
}

/* Whose names are taken out; known is filled up and must outlive the result. */
static redact_names names_of(const settings *s, known_names *known) {
    const struct passwd *me = getpwuid(getuid());
    redact_names n = {.home = me != NULL ? me->pw_dir : NULL};
    gethostname(known->host, sizeof known->host - 1);
    const char *ssh = settings_get(s, "WORKER_SSH"), *at = strchr(ssh, '@');
    str_copy(known->worker, sizeof known->worker, at != NULL ? at + 1 : ssh);
    known->worker[strcspn(known->worker, ":")] = '\0';
    if (at != NULL && (size_t)(at - ssh) < sizeof known->worker_user) {
        memcpy(known->worker_user, ssh, (size_t)(at - ssh));
    }
    add_name(&n, known->host, "head");
    add_name(&n, known->worker, "worker");
    add_name(&n, known->worker_host, "worker");
    if (strlen(known->worker_home) > 1) add_name(&n, known->worker_home, "~");
    if (me != NULL && strcmp(me->pw_name, "root") != 0) add_name(&n, me->pw_name, "owner");
    if (strcmp(known->worker_user, "root") != 0) add_name(&n, known->worker_user, "owner");
    return n;
}

static int make_bundle(const cmd_args *a, buf *out, redact_counts *counts, err *e) {
    settings *s = settings_new();
    buf raw = BUF_MAX(BUNDLE_MAX_BYTES);
    known_names known = {0};
    int rc = settings_load(s, e);
    if (rc == OK) {
        add_versions(&raw);
        add_settings(&raw, s);
        add_engine(a, &raw);
        add_checks(&raw, s);
        add_logs(&raw);
        add_pair(a, &raw, &known);
        redact_names names = names_of(s, &known);
        rc = redact_text(&names, raw.data, raw.len, out, counts);
        if (rc != OK) rc = err_set(e, rc, "the bundle passes %d bytes", BUNDLE_MAX_BYTES);
    }
    buf_release(&raw);
    settings_free(s);
    return rc;
}

/* Asks on the terminal; without one the answer is no. */
static bool is_agreed(const char *path) {
    char line[16] = "";
    if (!isatty(STDIN_FILENO)) return false;
    fprintf(stderr, "Write this to %s? [y/N] ", path);
    fflush(stderr);
    return fgets(line, sizeof line, stdin) != NULL && (line[0] == 'y' || line[0] == 'Y');
}

static void default_path(char path[64]) {
    time_t now = time(NULL);
    struct tm t;
    localtime_r(&now, &t);
    strftime(path, 64, "tandem-support-%Y%m%d-%H%M%S.txt", &t);
}

/* path NULL: nothing was written, so the text itself is given. */
static int put_result(const cmd_args *a, const char *path, const buf *out, const redact_counts *c) {
    if (!cmd_has(a, "json")) {
        cmd_note(
            "%s is written (%zu bytes): %d secrets, %d addresses, %d names and %d texts were taken out",
            path, out->len, c->secrets, c->addresses, c->names, c->texts);
        return EXIT_OK;
    }
    buf text = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &text);
    json_w_kstr(&w, "file", path);
    json_w_ku64(&w, "bytes", out->len);
    json_w_ki64(&w, "secrets", c->secrets);
    json_w_ki64(&w, "addresses", c->addresses);
    json_w_ki64(&w, "names", c->names);
    json_w_ki64(&w, "texts", c->texts);
    if (path == NULL) json_w_kstr(&w, "text", buf_cstr(out));
    cmd_put_json(&w);
    buf_release(&text);
    return EXIT_OK;
}

int cmd_support(const cmd_args *a) {
    buf out = BUF_MAX(2 * BUNDLE_MAX_BYTES);
    redact_counts counts = {0};
    err e = ERR_INIT;
    char name[64];
    default_path(name);
    const char *path = cmd_value(a, "output") != NULL ? cmd_value(a, "output") : name;
    bool has_yes = cmd_has(a, "yes"), is_json = cmd_has(a, "json"), is_shown = cmd_has(a, "print");
    if (is_json && !has_yes && !is_shown) {
        err_set(&e, ERR_ARG, "--json needs --yes (write the file) or --print (the text in it)");
        return cmd_fail_usage(&e);
    }
    int code = EXIT_OK, rc = make_bundle(a, &out, &counts, &e);
    if (rc == OK && is_json && is_shown) {
        code = put_result(a, NULL, &out, &counts);
    } else if (rc == OK && (is_shown || !has_yes)) {
        cmd_put_text(out.data, out.len);
        cmd_flush();
        if (!is_shown && !is_agreed(path)) {
            cmd_note("nothing was written; tandem support --yes writes it without asking");
            code = EXIT_ENDED_BY_USER;
        }
    }
    if (rc == OK && code == EXIT_OK && !is_shown) {
        rc = file_write_atomic(path, out.data, out.len, 0600, &e);
        if (rc == OK) code = put_result(a, path, &out, &counts);
    }
    buf_release(&out);
    return rc == OK ? cmd_finish(code) : cmd_fail(&e);
}
