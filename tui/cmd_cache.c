/* tandem cache: what the engine kept of earlier prompts, and forgetting it. */
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "setup/cache_wipe.h"
#include "setup/pair.h"
#include "tui/cmd_internal.h"
#include "tui/cmd_nodes.h"

enum { WAIT_MS = 30000, NODE_MS = 120000 };

/* ---- list ---- */

static void put_entries(const json *v) {
    if (json_count(json_get(v, "entries")) > 0)
        cmd_printf("%8s  %8s\n", "number", "length");
    else
        cmd_puts("nothing is kept of earlier prompts\n");
    JSON_EACH(x, json_get(v, "entries")) {
        int64_t id = 0, n = 0;
        char count[32];
        (void)json_i64(json_get(x, "id"), &id);
        (void)json_i64(json_get(x, "tokens"), &n);
        bool is_on_disk = json_is_true(json_get(x, "on_disk"));
        const json *memory = json_get(x, "in_memory");
        bool is_disk_only = is_on_disk && json_is_bool(memory) && !json_is_true(memory);
        cmd_printf("%8lld  %8s tokens%s\n", (long long)id, cmd_count_text(n, count),
            is_disk_only ? "  on disk only"
            : is_on_disk ? "  on disk"
                         : "");
    }
    double bytes = 0;
    char text[32];
    const json *disk = json_get(v, "disk");
    if (json_double(json_get(disk, "bytes"), &bytes) == OK)
        cmd_printf("on disk: %s\n", cmd_bytes_text(bytes, text));
}

int cmd_cache_list(const cmd_args *a) {
    client *c = NULL;
    json *v = NULL;
    err e = ERR_INIT;
    int rc = cmd_engine(a, false, &c, &e);
    if (rc == OK) rc = cmd_get_json(c, "/tandem/v1/cache", &v, &e);
    if (rc == OK && cmd_has(a, "json")) {
        cmd_put_json_of(v);
    } else if (rc == OK) {
        put_entries(v);
    }
    json_free(v);
    client_close(c);
    return rc == OK ? cmd_finish(EXIT_OK) : cmd_fail_engine(&e);
}

/* ---- rm ---- */

/* DELETE; the parsed answer may be NULL when nobody wants it. */
static int delete_at(client *c, const char *path, json **out, err *e) {
    buf body = BUF_INIT;
    int status = 0;
    client_request r = {.path = path, .limits = {.total_ms = WAIT_MS}, .is_delete = true};
    int rc = client_fetch(c, &r, &body, &status, e);
    if (rc == OK && out != NULL) rc = json_parse(buf_cstr(&body), body.len, NULL, out, e);
    buf_release(&body);
    return rc;
}

int cmd_cache_rm(const cmd_args *a) {
    client *c = NULL;
    err e = ERR_INIT;
    int n = 0;
    int rc = cmd_engine(a, false, &c, &e);
    if (rc != OK) return cmd_fail_engine(&e);
    for (; n < a->n_args && rc == OK; n++) {
        char path[64];
        uint64_t id = 0;
        if (parse_u64(a->args[n], &id) != OK) {
            err_set(&e, ERR_ARG, "\"%.40s\" is no number of an entry; tandem cache list shows them",
                a->args[n]);
            client_close(c);
            return cmd_fail_usage(&e);
        }
        snprintf(path, sizeof path, "/tandem/v1/cache/%llu", (unsigned long long)id);
        rc = delete_at(c, path, NULL, &e);
    }
    client_close(c);
    if (rc != OK) return cmd_fail(&e);
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_ki64(&w, "forgotten", n);
        cmd_put_json(&w);
        buf_release(&out);
    } else {
        cmd_printf("%d forgotten\n", n);
    }
    return cmd_finish(EXIT_OK);
}

/* ---- wipe ---- */

typedef struct wiped {
    bool has_engine;
    int64_t n_entries;     /* of the running engine */
    cache_wiped disk[2];   /* head, worker; what the engine removed counts for the head */
    bool is_worker_wanted; /* a worker is set up */
    char missing[700];     /* why it could not be asked */
} wiped;

/* The engine forgets by itself: it has the files open. */
static int wipe_engine(const cmd_args *a, wiped *out, err *e) {
    client *c = NULL;
    json *v = NULL;
    int64_t bytes = 0;
    int rc = cmd_engine(a, false, &c, e);
    if (rc == ERR_NOT_FOUND) return OK;
    if (rc == OK) rc = delete_at(c, "/tandem/v1/cache", &v, e);
    out->has_engine = rc == OK;
    (void)json_i64(json_get(v, "entries"), &out->n_entries);
    (void)json_i64(json_get(v, "disk_bytes"), &bytes);
    if (bytes > 0) out->disk[0].bytes += (uint64_t)bytes;
    json_free(v);
    client_close(c);
    return rc;
}

static int wipe_head(const settings *s, wiped *out, err *e) {
    buf dir = BUF_INIT;
    cache_wiped w = {0};
    if (!settings_is_set(s, "HEAD_DATA")) return OK;
    int rc = buf_printf(&dir, "%s/cache", settings_get(s, "HEAD_DATA"));
    if (rc == OK) rc = cache_wipe(buf_cstr(&dir), &w, e);
    out->disk[0].n_files += w.n_files;
    out->disk[0].bytes += w.bytes;
    out->disk[0].n_busy = out->has_engine ? 0 : w.n_busy;
    buf_release(&dir);
    return rc;
}

/* What the helper on the worker printed. */
static int read_answer(const remote_result *r, cache_wiped *out, err *e) {
    json *v = NULL;
    json_limits limits = {.max_bytes = 4096, .max_depth = 4};
    int64_t n = 0;
    const char *said = buf_cstr(&r->err);
    if (r->exit_code != 0)
        return err_set(e, ERR_IO, "the cache of the worker: %.*s", (int)strcspn(said, "\n"), said);
    int rc = json_parse(r->out.data, strcspn(buf_cstr(&r->out), "\n"), &limits, &v, e);
    if (rc == OK && json_i64(json_get(v, "files"), &n) == OK && n > 0) out->n_files = (uint64_t)n;
    n = 0;
    if (rc == OK && json_i64(json_get(v, "bytes"), &n) == OK && n > 0) out->bytes = (uint64_t)n;
    json_free(v);
    return err_add(e, rc, "the answer of the worker");
}

static int wipe_worker(const cmd_args *a, wiped *out, err *e) {
    cmd_nodes n;
    remote_result r;
    buf dir = BUF_INIT, program = BUF_INIT;
    int rc = cmd_nodes_open(a, true, &n, e);
    if (rc != OK) return rc;
    remote_result_init(&r);
    const char *data = settings_get(n.settings, "WORKER_DATA");
    buf_printf(&dir, "%s/cache", data);
    buf_printf(&program, "%s/.tandem/bin/tandem-node", data);
    const char *argv[] = {buf_cstr(&program), "wipe", buf_cstr(&dir), NULL};
    node_command c = {.argv = argv, .timeout_ms = NODE_MS, .stop = cmd_stop_flag()};
    if (n.node[1] == NULL) {
        str_copy(out->missing, sizeof out->missing, n.missing[1]);
    } else if (node_exists(n.node[1], buf_cstr(&dir))) {
        rc = node_run(n.node[1], &c, &r, e);
        if (rc == OK) rc = read_answer(&r, &out->disk[1], e);
    }
    remote_result_release(&r);
    buf_release(&dir);
    buf_release(&program);
    cmd_nodes_close(&n);
    return rc;
}

static void put_node(json_w *w, const char *name, const cache_wiped *x) {
    json_w_key(w, name);
    json_w_object(w);
    json_w_ku64(w, "files", x->n_files);
    json_w_ku64(w, "bytes", x->bytes);
    json_w_close(w);
}

static void report_wiped(const cmd_args *a, const wiped *x) {
    char text[32];
    uint64_t bytes = x->disk[0].bytes + x->disk[1].bytes;
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kbool(&w, "engine", x->has_engine);
        json_w_ki64(&w, "entries", x->n_entries);
        put_node(&w, "head", &x->disk[0]);
        if (x->is_worker_wanted && x->missing[0] == '\0') put_node(&w, "worker", &x->disk[1]);
        if (x->missing[0] != '\0') json_w_kstr(&w, "worker_missing", x->missing);
        cmd_put_json(&w);
        buf_release(&out);
        return;
    }
    cmd_printf("%lld entries forgotten%s, %s removed from the disks\n", (long long)x->n_entries,
        x->has_engine ? "" : " (no engine runs)", cmd_bytes_text((double)bytes, text));
}

static int wipe(const cmd_args *a, const settings *s, wiped *x, err *e) {
    int rc = wipe_engine(a, x, e);
    if (rc == OK) rc = wipe_head(s, x, e);
    x->is_worker_wanted = !cmd_has(a, "local") && settings_is_set(s, "WORKER_SSH") &&
                          settings_is_set(s, "WORKER_DATA");
    if (rc == OK && x->is_worker_wanted) rc = wipe_worker(a, x, e);
    if (rc == OK && x->disk[0].n_busy > 0)
        rc = err_set(e, ERR_BUSY,
            "another engine uses the cache on this machine; wipe it through its socket (--socket)");
    return rc;
}

int cmd_cache_wipe(const cmd_args *a) {
    err e = ERR_INIT;
    wiped x = {0};
    settings *s = settings_new();
    (void)cmd_stop_fd();
    if (!cmd_has(a, "yes") && !cmd_confirm("Forget everything that was kept of earlier prompts?")) {
        settings_free(s);
        cmd_note("nothing was forgotten; without a terminal give --yes");
        return cmd_finish(EXIT_ENDED_BY_USER);
    }
    int rc = settings_load(s, &e);
    if (rc == OK) rc = wipe(a, s, &x, &e);
    if (rc == OK) report_wiped(a, &x);
    settings_free(s);
    if (rc != OK) return cmd_fail(&e);
    if (x.missing[0] == '\0') return cmd_finish(EXIT_OK);
    cmd_note("the worker cannot be reached, its cache is as it was: %s", x.missing);
    (void)cmd_finish(EXIT_OK);
    return EXIT_NODE_UNREACHABLE;
}
