/* Runs the hf cases of CASES_DIR: a server that answers by the rules of the case, a file partly on
 * disk, and the real download over both. "hub" is 127.0.0.1 and every other host 127.0.0.2, so what
 * is sent to which host can be seen. A request that no rule fits is answered as a sound server would.
 * H1 stands for the SHA-256 of the file that the server holds. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/hub.h"
#include "setup/hub_store.h"
#include "tests/harness/hub_server.h"
#include "tests/harness/vectors.h"

enum { SEED = 7, MAX_RULES = 32 };

typedef struct fixture {
    const json *doc, *rules, *client, *expect;
    int used[MAX_RULES];
    const manifest *files;
    char alias[128]; /* path of the first path: rule stands for the file's own */
    hub_server *server;
    char root[64];
    buf log;
    pthread_mutex_t log_lock;
    uint64_t free_bytes, enospc_at;
    bool has_free, has_enospc;
    uint64_t first_ms, last_ms; /* of the requests */
    bool asked_from_zero;
} fixture;

static void noise(void *ctx, uint64_t offset, void *out, size_t n) {
    (void)ctx;
    hub_server_noise(SEED, offset, out, n);
}

static uint64_t number(const json *v, uint64_t fallback) {
    uint64_t n = fallback;
    if (v != NULL) json_u64(v, &n);
    return n;
}

/* The server of the case. */

static bool rule_fits(const fixture *f, const json *rule, const hub_seen *r) {
    const char *match = json_str(json_get(rule, "match"));
    const char *host = json_str(json_get(rule, "host"));
    if (host != NULL && (str_eq(host, "hub") ? 0 : 1) != r->address) return false;
    if (match == NULL || str_eq(match, "any")) return true;
    if (str_starts(match, "path:")) {
        const char *path = strstr(r->path, "/resolve/") != NULL ? f->alias : r->path;
        return str_eq(match + 5, path);
    }
    return str_starts(r->range, match);
}

/* Size of the file that is asked for; a path that names none stands for the first. */
static uint64_t size_of(const fixture *f, const hub_seen *r) {
    for (size_t i = 0; i < f->files->n_files; i++) {
        if (str_ends(r->path, f->files->files[i].path)) return f->files->files[i].size;
    }
    return f->files->files[0].size;
}

static void add_headers(const fixture *f, const json *rule, hub_answer *a) {
    /* The case's own range stands in place of the true one. */
    JSON_EACH(h, json_get(rule, "headers")) {
        if (strcasecmp(json_key(h), "Content-Range") == 0) buf_reset(&a->headers);
    }
    JSON_EACH(h, json_get(rule, "headers")) {
        const char *value = json_str(h);
        if (str_eq(json_key(h), "Location") && str_starts(value, "https://")) {
            const char *path = strchr(value + 8, '/');
            buf_printf(&a->headers, "Location: %s%s\r\n", hub_server_url(f->server, 1), path);
        } else {
            buf_printf(&a->headers, "%s: %s\r\n", json_key(h), value);
        }
    }
}

static void apply(fixture *f, const json *rule, const hub_seen *r, hub_answer *a) {
    uint64_t status = number(json_get(rule, "reply"), 200);
    const char *then = json_str(json_get(rule, "then")), *body = json_str(json_get(rule, "body"));
    if (json_is_true(json_get(rule, "needs_authorization")) && r->authorization[0] == '\0') {
        a->status = 401;
        return;
    }
    if (status == 206) hub_server_file(r, size_of(f, r), noise, NULL, a);
    a->status = (int)status;
    a->source = noise;
    a->corrupt_at = (int64_t)number(json_get(rule, "corrupt_at"), UINT64_MAX);
    a->body = body;
    a->body_len = body != NULL ? strlen(body) : 0;
    add_headers(f, rule, a);
    a->send_bytes = number(json_get(rule, "send_bytes"), status == 206 ? a->length : 0);
    /* A body longer than the range that was asked for is what the case wants only when it says so. */
    if (status == 206 && json_get(rule, "headers") == NULL && a->send_bytes > a->length)
        a->send_bytes = a->length;
    if (status == 200 || json_get(rule, "headers") != NULL) a->length = a->send_bytes;
    if (then != NULL)
        a->then = str_eq(then, "close")   ? HUB_THEN_CLOSE
                  : str_eq(then, "reset") ? HUB_THEN_RESET
                                          : HUB_THEN_STALL;
}

static void decide(void *ctx, const hub_seen *r, hub_answer *a) {
    fixture *f = ctx;
    int i = 0;
    f->last_ms = clock_mono_ms();
    if (f->first_ms == 0) f->first_ms = f->last_ms;
    if (r->has_range && r->first == 0) f->asked_from_zero = true;
    JSON_EACH(rule, f->rules) {
        uint64_t times = number(json_get(rule, "times"), UINT64_MAX);
        if (i < MAX_RULES && (uint64_t)f->used[i] < times && rule_fits(f, rule, r)) {
            f->used[i]++;
            apply(f, rule, r, a);
            return;
        }
        i++;
    }
    hub_server_file(r, size_of(f, r), noise, NULL, a);
}

/* The disk of the case. */

static uint64_t case_free(void *ctx) {
    return ((fixture *)ctx)->free_bytes;
}

static int case_reserve(void *ctx, int fd, uint64_t offset, uint64_t length, err *e) {
    (void)ctx, (void)fd, (void)offset, (void)length, (void)e;
    return OK;
}

static int case_write(void *ctx, int fd, const void *data, size_t n, uint64_t offset, err *e) {
    fixture *f = ctx;
    if (offset + n <= f->enospc_at) return fd_write_at(fd, data, n, offset, e);
    size_t fits = offset < f->enospc_at ? (size_t)(f->enospc_at - offset) : 0;
    if (fits > 0 && fd_write_at(fd, data, fits, offset, e) != OK) return ERR_IO;
    errno = ENOSPC;
    return err_errno(e, "write");
}

static void keep_log(void *ctx, log_level level, const char *line, size_t len) {
    fixture *f = ctx;
    (void)level;
    pthread_mutex_lock(&f->log_lock);
    buf_append(&f->log, line, len);
    pthread_mutex_unlock(&f->log_lock);
}

/* The file of the case. */

static void digest_of(uint64_t size, char hex[65]) {
    uint8_t raw[SHA256_BYTES];
    sha256 *s = sha256_new();
    char piece[4096];
    for (uint64_t at = 0; at < size; at += sizeof piece) {
        size_t n = size - at < sizeof piece ? (size_t)(size - at) : sizeof piece;
        hub_server_noise(SEED, at, piece, n);
        sha256_update(s, piece, n);
    }
    sha256_finish(s, raw);
    sha256_hex(raw, hex);
    sha256_free(s);
}

static void add_file(manifest *m, const json *file, int i) {
    err e = ERR_INIT;
    char name[64];
    const char *path = json_str(json_get(file, "path"));
    snprintf(name, sizeof name, "file-%d.safetensors", i);
    manifest_file f = {.repo = (char *)"owner/name",
        .commit = "0123456789abcdef0123456789abcdef01234567",
        .path = (char *)(path != NULL ? path : name),
        .size = number(json_get(file, "size"), 0),
        .kind = json_get(file, "sha256") != NULL ? MANIFEST_SHA256 : MANIFEST_SIZE_ONLY,
        .role = MANIFEST_WEIGHTS,
        .is_required = true};
    if (f.kind == MANIFEST_SHA256) digest_of(f.size, f.digest);
    if (manifest_add(m, "case", &f, &e) != OK) {
        fprintf(stderr, "manifest: %s\n", e.msg);
        exit(2);
    }
}

static void place(const fixture *f, const manifest *m, size_t i, char out[320], const char *end) {
    buf rel = BUF_INIT;
    manifest_place(m, &m->files[i], &rel);
    snprintf(out, 320, "%s/%s%s", f->root, buf_cstr(&rel), end);
    buf_release(&rel);
}

static void put_local(fixture *f, const manifest *m, size_t i, uint64_t bytes) {
    const manifest_file *mf = &m->files[i];
    bool is_verified = json_is_true(json_get(f->client, "verified"));
    char path[320], dir[320];
    err e = ERR_INIT;
    place(f, m, i, path, is_verified ? "" : ".part");
    snprintf(dir, sizeof dir, "%s/models/case", f->root);
    dir_make_all(dir, 0755, &e);
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) abort();
    char piece[4096];
    for (uint64_t at = 0; at < bytes && bytes < 1 << 20; at += sizeof piece) {
        size_t n = bytes - at < sizeof piece ? (size_t)(bytes - at) : sizeof piece;
        hub_server_noise(SEED, at, piece, n);
        if (fd_write_at(fd, piece, n, at, &e) != OK) abort();
    }
    close(fd);
    if (!is_verified) return;
    store s;
    buf rel = BUF_INIT;
    manifest_place(m, mf, &rel);
    if (store_open(&s, f->root, &e) != OK || store_ok_write(&s, buf_cstr(&rel), mf, &e) != OK)
        abort();
    store_close(&s);
    buf_release(&rel);
}

/* What came out. */

typedef struct outcome {
    int rc;
    err e;
    hub_progress p;
    bool has_progress;
    hub_counts seen;
} outcome;

static bool is_sound(const fixture *f, const manifest *m) {
    char path[320], hex[65];
    uint8_t raw[SHA256_BYTES];
    uint64_t size = 0;
    err e = ERR_INIT;
    place(f, m, 0, path, "");
    if (file_size(path, &size, &e) != OK || size != m->files[0].size) return false;
    if (m->files[0].kind != MANIFEST_SHA256) return true;
    if (sha256_file(path, raw, &e) != OK) return false;
    sha256_hex(raw, hex);
    return str_eq(hex, m->files[0].digest);
}

static bool all_in(const char *text, const json *list) {
    JSON_EACH(item, list) {
        if (strstr(text, json_str(item)) == NULL) return false;
    }
    return true;
}

/* True when the host "hub" (or any other) is in a list of hosts and n says that it was used. */
static bool hosts_fit(const json *list, const outcome *o, bool is_sent) {
    JSON_EACH(item, list) {
        int n = str_eq(json_str(item), "hub") ? o->seen.n_auth_hub : o->seen.n_auth_cdn;
        if ((n > 0) != is_sent) return false;
    }
    return true;
}

/* One expectation; false when it does not hold. */
static bool holds(fixture *f, const manifest *m, const outcome *o, const json *x) {
    const char *key = json_key(x), *text = json_str(x);
    uint64_t n = number(x, 0), size = 0;
    char path[320], part[320];
    place(f, m, 0, path, "");
    place(f, m, 0, part, ".part");
    if (str_eq(key, "exit")) return (o->rc == OK) == (n == 0);
    if (str_eq(key, "exit_not")) return n == 0 && o->rc != OK;
    if (str_eq(key, "final_size")) return file_size(path, &size, NULL) == OK && size == n;
    if (str_eq(key, "hash_checked")) return is_sound(f, m);
    if (str_eq(key, "bytes_fetched_max"))
        return (o->has_progress ? o->p.fetched_bytes : 0) <= n && o->seen.sent_bytes <= n;
    if (str_eq(key, "requests_max")) return (uint64_t)o->seen.n_requests <= n;
    if (str_eq(key, "retries_max")) return o->seen.n_requests <= (int)n + 1;
    if (str_eq(key, "message_contains")) return strstr(o->e.msg, text) != NULL;
    if (str_eq(key, "message_contains_all")) return all_in(o->e.msg, x);
    if (str_eq(key, "not_in_place")) return !file_exists(path);
    if (str_eq(key, "partial_kept"))
        return file_size(part, &size, NULL) == OK && size > 0 && !file_exists(path);
    if (str_eq(key, "part_discarded")) return f->asked_from_zero;
    if (str_eq(key, "exit_not_silent")) return o->rc == OK ? o->p.last_reason[0] : o->e.msg[0];
    if (str_eq(key, "min_wait_ms")) return f->last_ms - f->first_ms >= n;
    if (str_eq(key, "authorization_sent_to")) return hosts_fit(x, o, true);
    if (str_eq(key, "authorization_not_sent_to")) return hosts_fit(x, o, false);
    if (str_eq(key, "token_not_in_logs"))
        return strstr(buf_cstr(&f->log), json_str(json_get(f->client, "token"))) == NULL &&
               f->log.len > 0;
    if (str_eq(key, "request_header"))
        return str_eq(json_str(json_get(x, "Accept-Encoding")), o->seen.accept_encoding);
    printf("the expectation %s is not known to this runner\n", key);
    return false;
}

static void judge(vectors *v, fixture *f, const manifest *m, const outcome *o) {
    const char *id = json_str(json_get(f->doc, "id"));
    JSON_EACH(x, f->expect) {
        if (holds(f, m, o, x)) continue;
        buf want = BUF_INIT, got = BUF_INIT;
        json_print(x, &want);
        buf_printf(&got, "%s not so: rc %d (%s), %d requests, %llu bytes sent", json_key(x), o->rc,
            o->e.msg, o->seen.n_requests, (unsigned long long)o->seen.sent_bytes);
        vectors_fail(v, id, buf_cstr(&want), buf_cstr(&got));
        buf_release(&want);
        buf_release(&got);
        return;
    }
    vectors_pass(v);
}

/* Running one. */

static void run_download(fixture *f, const manifest *m, outcome *o) {
    const char *token = json_str(json_get(f->client, "token"));
    hub_secret *secret = token != NULL ? hub_secret_new(token) : NULL;
    hub_options options = {.endpoint = hub_server_url(f->server, 0),
        .root = f->root,
        .token = secret,
        .token_host = "127.0.0.1",
        .connections = 4,
        .unit_bytes = 64 << 20,
        .backoff_ms = 20,
        .give_up_ms = 120000,
        .limits = {.stall_ms = (int64_t)number(json_get(f->client, "stall_timeout_s"), 30) * 1000},
        .disk = {.ctx = f}};
    if (f->has_free) {
        options.disk.free_bytes = case_free;
        options.disk.reserve = case_reserve;
    }
    if (f->has_enospc) options.disk.write = case_write;
    hub *h = hub_new(m, &options, &o->e);
    o->rc = h != NULL ? hub_run(h, NULL, NULL, &o->e) : o->e.code;
    o->has_progress = h != NULL;
    if (h != NULL) hub_progress_get(h, &o->p);
    hub_free(h);
    hub_secret_free(secret);
}

static void set_alias(fixture *f) {
    JSON_EACH(rule, f->rules) {
        const char *match = json_str(json_get(rule, "match"));
        if (match == NULL || !str_starts(match, "path:") || f->alias[0] != '\0') continue;
        str_copy(f->alias, sizeof f->alias, match + 5);
    }
}

static void run_case(vectors *v, const json *doc) {
    fixture f = {.doc = doc,
        .rules = json_get(doc, "server"),
        .client = json_get(doc, "client"),
        .expect = json_get(doc, "expect"),
        .log_lock = PTHREAD_MUTEX_INITIALIZER};
    manifest m;
    outcome o = {0};
    err e = ERR_INIT;
    int i = 0;
    manifest_init(&m);
    str_copy(f.root, sizeof f.root, "/tmp/tandem-hf.XXXXXX");
    if (mkdtemp(f.root) == NULL) abort();
    f.has_free = json_get(f.client, "free_bytes") != NULL;
    f.free_bytes = number(json_get(f.client, "free_bytes"), 0);
    f.has_enospc = json_get(f.client, "enospc_at") != NULL;
    f.enospc_at = number(json_get(f.client, "enospc_at"), 0);
    set_alias(&f);
    const json *one = json_get(f.client, "file");
    if (one != NULL) add_file(&m, one, 0);
    JSON_EACH(file, json_get(f.client, "files")) {
        add_file(&m, file, i);
        uint64_t local = number(json_get(file, "local_bytes"), 0);
        if (local > 0) put_local(&f, &m, m.n_files - 1, local);
        i++;
    }
    f.files = &m;
    uint64_t local = number(json_get(f.client, "local_bytes"), 0);
    if (local > 0) put_local(&f, &m, 0, local);
    f.server = hub_server_new(decide, &f);
    log_open(
        &(log_options){.fd = -1, .level = LOG_DEBUG, .rank = -1, .sink = keep_log, .sink_ctx = &f});
    run_download(&f, &m, &o);
    log_close();
    hub_server_counts(f.server, &o.seen);
    judge(v, &f, &m, &o);
    hub_server_free(f.server);
    manifest_release(&m);
    buf_release(&f.log);
    dir_remove_all(f.root, &e);
}

static int run_file(void *ctx, const char *name, err *e) {
    char dir[512];
    (void)e;
    if (!str_ends(name, ".json")) return OK;
    snprintf(dir, sizeof dir, "%s/hf", vectors_cases_dir());
    json *doc = vectors_load(dir, name);
    const char *kind = json_str(json_get(doc, "kind"));
    if (str_eq(kind, "download")) {
        run_case(ctx, doc);
    } else {
        vectors_skip(ctx, name, "not a download");
    }
    json_free(doc);
    return OK;
}

int main(void) {
    vectors v = {0};
    err e = ERR_INIT;
    char dir[512];
    snprintf(dir, sizeof dir, "%s/hf", vectors_cases_dir());
    if (dir_each(dir, run_file, &v, &e) != OK) {
        printf("FAIL %s\n", e.msg);
        v.failed++;
    }
    return vectors_end(&v);
}
