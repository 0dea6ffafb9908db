#include "setup/check.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/check_internal.h"

enum { FILE_MAX = 2 << 20, TOOL_MS = 20000 };

/* Everything the rows read from files, in one round trip. */
static const char PATTERNS[] =
    "/proc/meminfo /proc/cmdline /proc/buddyinfo /proc/swaps /proc/net/tcp /proc/net/tcp6 "
    "/proc/net/arp /proc/sys/kernel/osrelease /proc/sys/kernel/hostname "
    "/proc/sys/kernel/random/boot_id /proc/uptime /proc/driver/nvidia/version "
    "/proc/driver/nvidia/gpus/*/information /etc/machine-id /etc/os-release /etc/dgx-release "
    "/etc/nccl.conf /etc/default/earlyoom /etc/ufw/ufw.conf /etc/ssh/ssh_host_ed25519_key.pub "
    "/run/reboot-required /usr/local/cuda/version.json /sys/class/dmi/id/product_name "
    "/sys/class/dmi/id/sys_vendor /sys/class/dmi/id/bios_version "
    "/sys/kernel/mm/transparent_hugepage/enabled /sys/class/nvme/*/hwmon*/temp1_input "
    "/sys/class/nvme/*/model";

const char *check_status_name(check_status s) {
    static const char *const names[] = {"PASS", "WARN", "FAIL", "SKIP", "UNKNOWN"};
    return names[s];
}

check_status check_worse(check_status a, check_status b) {
    static const int order[] = {0, 3, 4, 1, 2}; /* PASS WARN FAIL SKIP UNKNOWN */
    return order[a] >= order[b] ? a : b;
}

check_context *check_context_new(const check_options *o) {
    check_context *c = mem_alloc(sizeof *c);
    CHECK(o->settings != NULL);
    for (int i = 0; i < 2; i++) {
        c->node[i] = o->node[i];
        c->missing[i] = o->missing[i] != NULL ? mem_strdup(o->missing[i]) : NULL;
        c->need_bytes[i] = o->need_bytes[i];
        c->files[i] = o->files[i];
    }
    c->settings = o->settings;
    c->baseline = o->baseline != NULL ? mem_strdup(o->baseline) : NULL;
    c->engine = o->engine != NULL ? mem_strdup(o->engine) : NULL;
    c->need_text = o->need_text != NULL ? mem_strdup(o->need_text) : NULL;
    c->has_need = o->has_need;
    c->is_heavy = o->is_heavy;
    return c;
}

void check_context_free(check_context *c) {
    if (c == NULL) return;
    for (int i = 0; i < 2; i++) {
        mem_free(c->missing[i]);
        mem_free(c->link[i]);
    }
    mem_free(c->baseline);
    mem_free(c->engine);
    mem_free(c->need_text);
    mem_free(c);
}

static void put(char *out, size_t cap, const char *fmt, va_list ap) {
    buf text = BUF_INIT;
    if (buf_vprintf(&text, fmt, ap) == OK) {
        /* Tools' words are outside text: one line, nothing that could act on a terminal. */
        for (size_t i = 0; i < text.len; i++) {
            if ((unsigned char)text.data[i] < 0x20 || text.data[i] == 0x7f) text.data[i] = ' ';
        }
        size_t n = text.len < cap ? text.len : cap - 1;
        buf_truncate(&text, utf8_valid_prefix(buf_cstr(&text), n));
        str_copy(out, cap, buf_cstr(&text));
    }
    buf_release(&text);
}

void check_say(check_result *r, check_status s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    r->status = s;
    put(r->fact, sizeof r->fact, fmt, ap);
    va_end(ap);
}

void check_remedy(check_result *r, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    put(r->remedy, sizeof r->remedy, fmt, ap);
    va_end(ap);
}

void check_value(check_result *r, double v) {
    r->has_value = true;
    r->value = v;
}

/* A tool's words without the end of their sentence, so that ours has only one. */
static int words_length(const char *text) {
    size_t n = strlen(text);
    while (n > 0 && strchr(" .\n\t", text[n - 1]) != NULL)
        n--;
    return n < 300 ? (int)n : 300;
}

void check_unknown(check_result *r, const char *what, const err *e) {
    const char *why = e != NULL ? e->msg : "";
    /* Two tools say the same in their own three sentences. */
    if (strstr(why, "not been booted with systemd") != NULL)
        why = "no systemd runs on this machine";
    check_say(r, CHECK_STATUS_UNKNOWN, "%s could not be measured%s%.*s.", what,
        why[0] != '\0' ? ": " : "", words_length(why), why);
}

bool check_file(check_context *c, int i, const char *path, buf *out) {
    return node_read(c->node[i], path, FILE_MAX, out, NULL) == OK;
}

bool check_line(check_context *c, int i, const char *path, char *out, size_t cap) {
    buf text = BUF_INIT;
    bool is_read = node_read_line(c->node[i], path, &text, NULL) == OK;
    out[0] = '\0';
    if (is_read) str_copy(out, cap, buf_cstr(&text));
    out[strcspn(out, "\n")] = '\0';
    buf_release(&text);
    return is_read;
}

int check_tool(check_context *c, int i, const char *const *argv, buf *out, int *code, err *e) {
    remote_result r;
    remote_result_init(&r);
    node_command k = {.argv = argv, .timeout_ms = TOOL_MS, .max_out = FILE_MAX};
    int rc = node_run(c->node[i], &k, &r, e);
    buf_reset(out);
    *code = r.exit_code;
    if (rc == OK) rc = buf_append(out, buf_cstr(&r.out), r.out.len);
    if (rc == OK && r.exit_code != 0 && e != NULL) {
        const char *words = buf_cstr(r.err.len > 0 ? &r.err : &r.out);
        err_set(e, ERR_IO, "%s ended with code %d%s%.200s", argv[0], r.exit_code,
            words[0] != '\0' ? ": " : "", words);
    }
    remote_result_release(&r);
    return rc;
}

int check_tool_line(
    check_context *c, int i, const char *const *argv, char *out, size_t cap, err *e) {
    buf text = BUF_INIT;
    int code = 0, rc = check_tool(c, i, argv, &text, &code, e);
    if (rc == OK && code != 0) rc = ERR_IO;
    out[0] = '\0';
    if (rc == OK) str_copy(out, cap, buf_cstr(&text));
    out[strcspn(out, "\r\n")] = '\0';
    buf_release(&text);
    return rc;
}

bool check_key(const char *text, const char *key, char *out, size_t cap) {
    size_t n = strlen(key);
    out[0] = '\0';
    for (const char *p = text; p != NULL && *p != '\0';) {
        p += strspn(p, " \t");
        if (strncmp(p, key, n) == 0) {
            const char *v = p + n + strspn(p + n, " \t");
            if (*v == '=' || *v == ':') {
                v++;
                v += strspn(v, " \t\"");
                size_t len = strcspn(v, "\r\n");
                while (len > 0 && (v[len - 1] == '"' || v[len - 1] == ' '))
                    len--;
                char *copy = mem_strndup(v, len);
                str_copy(out, cap, copy);
                mem_free(copy);
                return true;
            }
        }
        p = strchr(p, '\n');
        if (p != NULL) p++;
    }
    return false;
}

bool check_meminfo(const char *text, const char *key, double *bytes) {
    char value[40];
    uint64_t kib = 0;
    if (!check_key(text, key, value, sizeof value)) return false;
    value[strcspn(value, " ")] = '\0';
    if (parse_u64(value, &kib) != OK) return false;
    *bytes = (double)kib * 1024.0;
    return true;
}

bool check_data_dir(check_context *c, int i, char *out, size_t cap, bool *exists) {
    const char *dir = settings_get(c->settings, i == 0 ? "HEAD_DATA" : "WORKER_DATA");
    *exists = true;
    if (dir[0] == '\0') return false;
    str_copy(out, cap, dir);
    while (!node_exists(c->node[i], out)) {
        *exists = false;
        char *slash = strrchr(out, '/');
        if (slash == NULL || slash == out) {
            str_copy(out, cap, "/");
            break;
        }
        *slash = '\0';
    }
    return true;
}

/* Runs. */

static bool prepare(check_context *c, int i, check_result *r) {
    if (c->is_prepared[i]) return true;
    err e = ERR_INIT;
    if (node_fetch(c->node[i], PATTERNS, &e) != OK) {
        check_unknown(r, "This machine", &e);
        return false;
    }
    c->is_prepared[i] = true;
    return true;
}

/* True when the machines a row needs are there; else the result says why not. */
static bool has_machines(check_context *c, const check_row *row, int i, check_result *r) {
    int from = row->scope == CHECK_PAIR ? 0 : i, to = row->scope == CHECK_PAIR ? 1 : i;
    for (int k = from; k <= to; k++) {
        const char *name = k == 0 ? "head" : "worker";
        if (c->node[k] == NULL && c->missing[k] != NULL) {
            check_say(r, CHECK_STATUS_UNKNOWN, "The %s cannot be asked: %s.", name, c->missing[k]);
            return false;
        }
        if (c->node[k] == NULL) {
            check_say(r, CHECK_STATUS_SKIP, "There is no %s in the settings (WORKER_SSH).", name);
            return false;
        }
        if (!prepare(c, k, r)) return false;
    }
    return true;
}

static void run_one(check_context *c, const check_row *row, int i, bool is_named, check_result *r) {
    static const char *const names[] = {"head", "worker"};
    *r = (check_result){.id = row->id,
        .node = row->scope == CHECK_PAIR ? "both" : names[i],
        .status = CHECK_STATUS_UNKNOWN};
    str_copy(r->reason, sizeof r->reason, row->why);
    if (!has_machines(c, row, i, r)) return;
    if (row->is_heavy && !is_named && !c->is_heavy) {
        check_say(r, CHECK_STATUS_SKIP, "Not run because it makes load or traffic.");
        check_remedy(r, "Run it alone: tandem check %s", row->id);
        return;
    }
    row->run(c, i, r);
}

int check_run(check_context *c, const char *id, int i_node, check_sink sink, void *ctx,
    check_status *worst, err *e) {
    size_t n = 0;
    const check_row *rows = check_rows(&n), *one = id != NULL ? check_find(id) : NULL;
    *worst = CHECK_STATUS_PASS;
    if (id != NULL && one == NULL) {
        return err_set(
            e, ERR_NOT_FOUND, "there is no check %.40s; tandem check --list shows all", id);
    }
    for (size_t k = 0; k < n; k++) {
        if (one != NULL && &rows[k] != one) continue;
        for (int i = 0; i < 2; i++) {
            bool is_wanted = rows[k].scope == CHECK_EACH   ? i_node < 0 || i_node == i
                             : rows[k].scope == CHECK_HEAD ? i == 0 && i_node != 1
                                                           : i == 0 && i_node < 0;
            /* A row that was named runs where it can. */
            if (one != NULL && rows[k].scope == CHECK_PAIR) is_wanted = i == 0;
            if (!is_wanted) continue;
            check_result r;
            run_one(c, &rows[k], i, one != NULL, &r);
            *worst = check_worse(*worst, r.status);
            int rc = sink(ctx, &rows[k], &r);
            if (rc != OK) return rc;
        }
    }
    return OK;
}

void check_write_json(json_w *w, const check_row *row, const check_result *r) {
    json_w_object(w);
    json_w_kstr(w, "id", r->id);
    json_w_kstr(w, "node", r->node);
    json_w_kstr(w, "title", row->title);
    json_w_kstr(w, "status", check_status_name(r->status));
    json_w_kstr(w, "fact", r->fact);
    json_w_kstr(w, "reason", r->reason);
    json_w_kstr(w, "remedy", r->remedy[0] != '\0' ? r->remedy : NULL);
    json_w_key(w, "value");
    if (r->has_value)
        json_w_double(w, r->value);
    else
        json_w_null(w);
    json_w_kstr(w, "source", row->source);
    json_w_close(w);
}
