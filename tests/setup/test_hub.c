/* The download against a server that plays hub and storage with the faults of the field. With
 * --child ROOT URL the program is the downloader itself, to be killed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/hub.h"
#include "setup/hub_store.h"
#include "setup/manifest_lock.h"
#include "tests/harness/hub_server.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
enum { N_FILES = 4, UNIT = 64 << 10 };
static const uint64_t SIZES[N_FILES] = {1000003, 300000, UNIT * 3, 17};

extern char **environ;

/* A hub with files of noise. Fields are changed before a run, by the test's thread. */
typedef struct fake {
    hub_server *server;
    int fault_percent;   /* of storage answers */
    int signature_uses;  /* 0: for ever */
    int uses, signature; /* of the current signed address */
    int64_t corrupt_at;
    uint64_t bytes_per_s;
    const char *commit;
    const char *redirect; /* instead of the storage */
    int n_limited;        /* so many 429 first */
    rand_state rnd;
    const char *tree[3]; /* pages of the listing */
    const char *config;
    bool sent_elsewhere_token;
    bool is_mirror; /* gives the bytes itself, without commit, digest or signed address */
} fake;

/* Changes what the server does while its threads are alive. */
#define CHANGE(w, statement)                                                                       \
    do {                                                                                           \
        hub_server_pause((w)->f.server);                                                           \
        statement;                                                                                 \
        hub_server_go_on((w)->f.server);                                                           \
    } while (0)

static uint64_t seeds[N_FILES] = {1, 2, 3, 4};

static void noise(void *ctx, uint64_t offset, void *out, size_t n) {
    hub_server_noise(*(uint64_t *)ctx, offset, out, n);
}

static void spoil(fake *f, const hub_seen *r, hub_answer *a) {
    switch (rand_below(&f->rnd, 9)) {
    case 0:
        buf_release(&a->headers);
        *a = (hub_answer){.status = 503, .corrupt_at = -1};
        break;
    case 1:
        buf_release(&a->headers);
        *a = (hub_answer){.status = 429, .corrupt_at = -1};
        buf_puts(&a->headers, "Retry-After: 0\r\n");
        break;
    case 2:
        a->send_bytes /= 2;
        a->then = HUB_THEN_CLOSE;
        break;
    case 3:
        a->send_bytes /= 3;
        a->then = HUB_THEN_RESET;
        break;
    case 4: /* off by one */
        buf_reset(&a->headers);
        buf_printf(&a->headers, "Content-Range: bytes %llu-%llu/%llu\r\n",
            (unsigned long long)r->first + 1, (unsigned long long)r->last,
            (unsigned long long)SIZES[0]);
        break;
    case 5: /* no Content-Range at all */
        buf_reset(&a->headers);
        break;
    case 6:
        buf_puts(&a->headers, "Content-Encoding: gzip\r\n");
        break;
    case 7: /* longer than the range */
        a->length += 10;
        a->send_bytes += 10;
        break;
    default:
        buf_puts(&a->headers, "Content-Type: multipart/byteranges; boundary=x\r\n");
        a->status = 200;
        break;
    }
}

static int index_of(const char *path) {
    const char *at = strstr(path, "file");
    return at != NULL && at[4] >= '0' && at[4] < '0' + N_FILES ? at[4] - '0' : -1;
}

static void answer_text(hub_answer *a, const char *text) {
    a->status = 200;
    a->body = text;
    a->body_len = strlen(text);
}

static void answer_api(fake *f, const hub_seen *r, hub_answer *a) {
    if (strstr(r->path, "/revision/") != NULL) {
        answer_text(a, "{\"sha\":\"" COMMIT "\",\"lastModified\":\"2026-10-17T00:00:00.000Z\","
                       "\"tags\":[\"license:mit\"]}");
        return;
    }
    int page = strstr(r->path, "page=2") != NULL ? 1 : 0;
    if (strstr(r->path, "tables") != NULL) page = 2;
    if (page == 0 && f->tree[1] != NULL)
        buf_puts(&a->headers, "Link: </api/models/o/weights/tree/" COMMIT
                              "?recursive=true&page=2>; rel=\"next\"\r\n");
    answer_text(a, f->tree[page]);
}

static void decide(void *ctx, const hub_seen *r, hub_answer *a) {
    fake *f = ctx;
    int i = index_of(r->path);
    if (strstr(r->path, "/api/") != NULL) {
        answer_api(f, r, a);
        return;
    }
    if (strstr(r->path, "config.json") != NULL && f->config != NULL) {
        answer_text(a, f->config);
        return;
    }
    if (r->address == 0 && f->n_limited > 0) {
        f->n_limited--;
        a->status = 429;
        buf_puts(&a->headers, "RateLimit: \"resolvers\";r=0;t=1\r\n");
        return;
    }
    if (r->address == 0 && f->is_mirror && i >= 0) {
        hub_server_file(r, SIZES[i], noise, &seeds[i], a);
        return;
    }
    if (r->address == 0) {
        a->status = 302;
        f->uses = 0;
        buf_printf(&a->headers, "X-Repo-Commit: %s\r\n", f->commit != NULL ? f->commit : COMMIT);
        if (f->redirect != NULL) {
            buf_printf(&a->headers, "Location: %s\r\n", f->redirect);
        } else {
            buf_printf(&a->headers, "Location: %s/file%d?sig=%d\r\n", hub_server_url(f->server, 1),
                i, ++f->signature);
        }
        return;
    }
    if (f->signature_uses > 0 && ++f->uses > f->signature_uses) {
        a->status = 403;
        return;
    }
    if (i < 0) return;
    hub_server_file(r, SIZES[i], noise, &seeds[i], a);
    a->corrupt_at = f->corrupt_at;
    a->bytes_per_s = f->bytes_per_s;
    if (f->fault_percent > 0 && (int)rand_below(&f->rnd, 100) < f->fault_percent) spoil(f, r, a);
}

static void digest(uint64_t seed, uint64_t size, char hex[65]) {
    store_digest *d = store_digest_new(MANIFEST_SHA256, size);
    char piece[8192];
    for (uint64_t at = 0; at < size; at += sizeof piece) {
        size_t n = size - at < sizeof piece ? (size_t)(size - at) : sizeof piece;
        hub_server_noise(seed, at, piece, n);
        store_digest_update(d, piece, n);
    }
    store_digest_finish(d, hex);
    store_digest_free(d);
}

static void make_manifest(manifest *m) {
    manifest_init(m);
    for (int i = 0; i < N_FILES; i++) {
        char path[16];
        err e = ERR_INIT;
        snprintf(path, sizeof path, "file%d", i);
        manifest_file f = {.repo = (char *)"o/n",
            .commit = COMMIT,
            .path = path,
            .size = SIZES[i],
            .kind = MANIFEST_SHA256,
            .role = i == 0 ? MANIFEST_ENGRAM : MANIFEST_WEIGHTS,
            .is_required = true};
        digest(seeds[i], SIZES[i], f.digest);
        assert_int_equal(manifest_add(m, "test", &f, &e), OK);
    }
}

typedef struct world {
    fake f;
    manifest m;
    char root[64];
    hub_progress p;
    err e;
} world;

static int begin(void **state) {
    world *w = mem_alloc(sizeof *w);
    w->f.corrupt_at = -1;
    rand_init(&w->f.rnd, 42, 1);
    hub_server *server = hub_server_new(decide, &w->f);
    hub_server_pause(server); /* its threads look at the fields below */
    w->f.server = server;
    hub_server_go_on(server);
    make_manifest(&w->m);
    str_copy(w->root, sizeof w->root, "/tmp/tandem-hub.XXXXXX");
    assert_non_null(mkdtemp(w->root));
    *state = w;
    return 0;
}

static int end(void **state) {
    world *w = *state;
    err e = ERR_INIT;
    hub_server_free(w->f.server);
    manifest_release(&w->m);
    dir_remove_all(w->root, &e);
    mem_free(w);
    return 0;
}

static hub_options usual(const char *root, const char *url) {
    return (hub_options){.endpoint = url,
        .root = root,
        .connections = 4,
        .unit_bytes = UNIT,
        .backoff_ms = 5,
        .give_up_ms = 120000,
        .limits = {.stall_ms = 60000}};
}

static int run(world *w, const hub_options *o) {
    hub *h = hub_new(&w->m, o, &w->e);
    if (h == NULL) return w->e.code;
    int rc = hub_run(h, NULL, NULL, &w->e);
    hub_progress_get(h, &w->p);
    hub_free(h);
    return rc;
}

static int load(world *w) {
    hub_options o = usual(w->root, hub_server_url(w->f.server, 0));
    return run(w, &o);
}

static void assert_all_right(const world *w) {
    for (size_t i = 0; i < w->m.n_files; i++) {
        buf rel = BUF_INIT, path = BUF_INIT;
        uint8_t raw[SHA256_BYTES];
        char hex[SHA256_HEX];
        err e = ERR_INIT;
        manifest_place(&w->m, &w->m.files[i], &rel);
        path_join(&path, w->root, buf_cstr(&rel));
        assert_int_equal(sha256_file(buf_cstr(&path), raw, &e), OK);
        sha256_hex(raw, hex);
        assert_string_equal(hex, w->m.files[i].digest);
        buf_puts(&path, ".ranges");
        assert_false(file_exists(buf_cstr(&path)));
        buf_release(&rel);
        buf_release(&path);
    }
}

static void loads_over_signed_addresses(void **state) {
    world *w = *state;
    hub_counts c;
    hub_secret *token = hub_secret_new("hf_planted_secret");
    hub_options o = usual(w->root, hub_server_url(w->f.server, 0));
    o.token = token;
    o.token_host = "127.0.0.1";
    CHANGE(w, w->f.signature_uses = 5);
    assert_int_equal(run(w, &o), OK);
    hub_secret_free(token);
    assert_all_right(w);
    hub_server_counts(w->f.server, &c);
    assert_int_equal(c.n_without_range, 0);
    assert_int_equal(c.n_auth_cdn, 0);
    assert_true(c.n_auth_hub > 0);
    assert_true(c.n_requests - c.n_cdn < c.n_cdn); /* addresses are used again */
    assert_true(w->p.n_ok == N_FILES);
    /* Nothing is asked again when all is there. */
    int before = c.n_requests;
    assert_int_equal(load(w), OK);
    hub_server_counts(w->f.server, &c);
    assert_int_equal(c.n_requests, before);
}

static void faults_never_give_wrong_bytes(void **state) {
    world *w = *state;
    CHANGE(w, w->f.fault_percent = 30);
    int n = getenv("TANDEM_LONG") != NULL ? 100 : 6, n_ok = 0;
    for (int i = 0; i < n; i++) {
        err e = ERR_INIT;
        assert_int_equal(dir_remove_all(w->root, &e), OK);
        int rc = OK;
        /* A run may give up on a server that breaks ranges so often; the next one goes on. */
        for (int k = 0; k < 20 && (rc = load(w)) != OK; k++)
            assert_true(rc == ERR_NET || rc == ERR_MISMATCH);
        assert_int_equal(rc, OK);
        assert_all_right(w);
        n_ok++;
    }
    assert_int_equal(n_ok, n);
}

static void wrong_bytes_never_get_the_final_name(void **state) {
    world *w = *state;
    char path[128];
    CHANGE(w, w->f.corrupt_at = 70000);
    assert_int_equal(load(w), ERR_MISMATCH);
    assert_non_null(strstr(w->e.msg, "wrong"));
    snprintf(path, sizeof path, "%s/engram/test/file0", w->root);
    assert_false(file_exists(path));
    CHANGE(w, w->f.corrupt_at = -1);
    assert_int_equal(load(w), OK);
    assert_all_right(w);
}

static void old_tables_are_named(void **state) {
    world *w = *state;
    char hex[65], path[128];
    err e = ERR_INIT;
    digest(seeds[0], SIZES[0], hex); /* what the server sends */
    digest(99, SIZES[0], w->m.files[0].digest);
    assert_int_equal(manifest_add_deny(&w->m, hex, "these are the tables of September", &e), OK);
    assert_int_equal(load(w), ERR_MISMATCH);
    assert_non_null(strstr(w->e.msg, "tables of September"));
    snprintf(path, sizeof path, "%s/engram/test/file0", w->root);
    assert_false(file_exists(path));
    /* A manifest that lists them is refused before anything is asked. */
    hub_counts before, after;
    hub_server_counts(w->f.server, &before);
    str_copy(w->m.files[0].digest, 65, hex);
    assert_int_equal(load(w), ERR_MISMATCH);
    hub_server_counts(w->f.server, &after);
    assert_int_equal(before.n_requests, after.n_requests);
}

/* A mirror is trusted for bytes alone: the manifest has sizes and digests, and the token stays here. */
static void a_mirror_needs_no_headers(void **state) {
    world *w = *state;
    hub_counts c;
    hub_secret *token = hub_secret_new("hf_planted_secret");
    hub_options o = usual(w->root, hub_server_url(w->f.server, 0));
    o.token = token;
    o.token_host = "huggingface.co";
    CHANGE(w, w->f.is_mirror = true);
    assert_int_equal(run(w, &o), OK);
    hub_secret_free(token);
    assert_all_right(w);
    hub_server_counts(w->f.server, &c);
    assert_int_equal(c.n_auth_hub, 0);
    assert_int_equal(c.n_cdn, 0);
    assert_int_equal(c.n_without_range, 0);
}

static void other_commit_is_refused(void **state) {
    world *w = *state;
    CHANGE(w, w->f.commit = "ffffffffffffffffffffffffffffffffffffffff");
    assert_int_equal(load(w), ERR_MISMATCH);
    assert_true(w->p.fetched_bytes == 0);
}

static void bad_redirects_are_not_followed(void **state) {
    world *w = *state;
    static const char *const targets[] = {"http://192.0.2.1/x", "ftp://127.0.0.1/x", "/loop/file0"};
    for (size_t i = 0; i < 3; i++) {
        hub_options o = usual(w->root, hub_server_url(w->f.server, 0));
        CHANGE(w, w->f.redirect = targets[i]);
        /* Where not even one answer came within the time, it gets more. */
        for (o.give_up_ms = 300; o.give_up_ms < 100000; o.give_up_ms *= 8) {
            assert_int_equal(run(w, &o), ERR_TIMEOUT);
            assert_true(w->p.fetched_bytes == 0);
            if (i < 2 || strstr(w->e.msg, "circle") != NULL) break;
        }
    }
    assert_non_null(strstr(w->e.msg, "circle"));
}

static void rate_limit_is_waited_for(void **state) {
    world *w = *state;
    CHANGE(w, w->f.n_limited = 1);
    uint64_t begun = clock_mono_ms();
    assert_int_equal(load(w), OK);
    assert_true(clock_mono_ms() - begun >= 2000);
    assert_int_equal(w->p.resolves_left, 0);
    assert_all_right(w);
}

static void files_of_others_are_taken_over(void **state) {
    world *w = *state;
    char cache[64] = "/tmp/tandem-cache.XXXXXX", path[512], to[512];
    hub_counts c;
    struct stat before, after;
    err e = ERR_INIT;
    assert_non_null(mkdtemp(cache));
    /* The layout of the official cache: blobs named by digest, and links to them. */
    snprintf(path, sizeof path, "%s/models--o--n/blobs", cache);
    assert_int_equal(dir_make_all(path, 0755, &e), OK);
    for (int i = 0; i < N_FILES; i++) {
        char *bytes = mem_alloc(SIZES[i]);
        hub_server_noise(seeds[i], 0, bytes, SIZES[i]);
        if (i == 2) bytes[5] ^= 1; /* of the right size and name, but not the file */
        snprintf(path, sizeof path, "%s/models--o--n/blobs/%s", cache, w->m.files[i].digest);
        assert_int_equal(file_write_atomic(path, bytes, SIZES[i], 0644, &e), OK);
        mem_free(bytes);
    }
    snprintf(to, sizeof to, "%s/models--o--n/blobs/%s", cache, w->m.files[0].digest);
    assert_int_equal(stat(to, &before), 0);
    const char *search[] = {cache, NULL};
    hub_options o = usual(w->root, hub_server_url(w->f.server, 0));
    o.search = search;
    assert_int_equal(run(w, &o), OK);
    assert_all_right(w);
    hub_server_counts(w->f.server, &c);
    assert_true(c.sent_bytes == SIZES[2]);
    assert_int_equal(stat(to, &after), 0);
    assert_int_equal(after.st_mode, before.st_mode);
    assert_int_equal(after.st_ino, before.st_ino);
    assert_int_equal(dir_remove_all(cache, &e), OK);
}

static void changed_file_is_found_and_repaired(void **state) {
    world *w = *state;
    char path[128];
    err e = ERR_INIT;
    assert_int_equal(load(w), OK);
    snprintf(path, sizeof path, "%s/models/test/file1", w->root);
    assert_int_equal(chmod(path, 0644), 0);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_at(fd, "x", 1, 4000, &e), OK);
    close(fd);
    assert_int_equal(load(w), OK);
    assert_all_right(w);
}

static void full_disk_pauses(void **state) {
    world *w = *state;
    if (geteuid() != 0 || mount("tandem", w->root, "tmpfs", 0, "size=1m") != 0) skip();
    hub_options o = usual(w->root, hub_server_url(w->f.server, 0));
    int rc = run(w, &o);
    bool says = strstr(w->e.msg, "space") != NULL;
    int grown = mount("tandem", w->root, "tmpfs", MS_REMOUNT, "size=4m");
    int rc_after = run(w, &o);
    if (rc_after == OK) assert_all_right(w);
    umount2(w->root, MNT_DETACH);
    assert_int_equal(rc, ERR_FULL);
    assert_true(says);
    assert_int_equal(grown, 0);
    assert_int_equal(rc_after, OK);
}

/* Killing. */

static int child_main(const char *root, const char *url) {
    manifest m;
    err e = ERR_INIT;
    make_manifest(&m);
    hub_options o = usual(root, url);
    hub *h = hub_new(&m, &o, &e);
    int rc = h != NULL ? hub_run(h, NULL, NULL, &e) : e.code;
    if (rc != OK) fprintf(stderr, "child: %s\n", e.msg);
    hub_free(h);
    manifest_release(&m);
    return rc == OK ? 0 : 1;
}

static void kills_only_cost_the_ranges_in_work(void **state) {
    world *w = *state;
    int n_kills = 0, most = getenv("TANDEM_LONG") != NULL ? 200 : 25, status = -1;
    hub_counts c;
    CHANGE(w, w->f.bytes_per_s = 1000000);
    for (;;) {
        pid_t pid = 0;
        char *argv[] = {(char *)"test_hub", (char *)"--child", w->root,
            (char *)hub_server_url(w->f.server, 0), NULL};
        assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
        if (n_kills < most) {
            sleep_ms(20 + rand_below(&w->f.rnd, 160));
            if (kill(pid, SIGKILL) == 0) n_kills++;
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WIFEXITED(status)) break;
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_all_right(w);
    hub_server_counts(w->f.server, &c);
    uint64_t total = manifest_bytes(&w->m);
    /* Each kill costs at most the ranges of its connections, and what was in the sockets. */
    assert_true(c.sent_bytes <= total + (uint64_t)n_kills * 4 * UNIT * 2);
    assert_true(n_kills > 0);
}

/* A file of zeros above 50 GB, really loaded; the disk keeps it sparse. Only in the long run. */

#define HUGE_BYTES (((uint64_t)55 << 30) + 12345)

static void zeros(void *ctx, uint64_t offset, void *out, size_t n) {
    (void)ctx;
    (void)offset;
    memset(out, 0, n);
}

static void decide_huge(void *ctx, const hub_seen *r, hub_answer *a) {
    (void)ctx;
    if (!r->has_range) {
        a->status = 400; /* as the storage does for files of this size */
    } else {
        hub_server_file(r, HUGE_BYTES, zeros, NULL, a);
    }
}

static uint64_t much_space(void *ctx) {
    (void)ctx;
    return (uint64_t)1 << 50;
}

static int reserve_nothing(void *ctx, int fd, uint64_t offset, uint64_t length, err *e) {
    (void)ctx, (void)fd, (void)offset, (void)length, (void)e;
    return OK;
}

static int write_sparse(void *ctx, int fd, const void *data, size_t n, uint64_t offset, err *e) {
    const char *p = data;
    (void)ctx;
    bool is_zero = n > 0 && p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
    return is_zero ? OK : fd_write_at(fd, data, n, offset, e);
}

static void file_over_50_gb_is_loaded(void **state) {
    world *w = *state;
    if (getenv("TANDEM_LONG") == NULL) skip();
    manifest m;
    hub_counts c;
    manifest_file f = {.repo = (char *)"o/n",
        .commit = COMMIT,
        .path = (char *)"huge",
        .size = HUGE_BYTES,
        .kind = MANIFEST_SHA256,
        .role = MANIFEST_ENGRAM,
        .is_required = true};
    char *piece = mem_alloc(1 << 20);
    store_digest *d = store_digest_new(MANIFEST_SHA256, HUGE_BYTES);
    for (uint64_t at = 0; at < HUGE_BYTES; at += 1 << 20)
        store_digest_update(
            d, piece, HUGE_BYTES - at < 1 << 20 ? (size_t)(HUGE_BYTES - at) : 1 << 20);
    store_digest_finish(d, f.digest);
    store_digest_free(d);
    mem_free(piece);
    manifest_init(&m);
    assert_int_equal(manifest_add(&m, "test", &f, &w->e), OK);
    hub_server *server = hub_server_new(decide_huge, NULL);
    hub_options o = usual(w->root, hub_server_url(server, 0));
    o.unit_bytes = 0;
    o.disk =
        (hub_disk){.free_bytes = much_space, .reserve = reserve_nothing, .write = write_sparse};
    hub *h = hub_new(&m, &o, &w->e);
    int rc = h != NULL ? hub_run(h, NULL, NULL, &w->e) : w->e.code;
    hub_free(h);
    hub_server_counts(server, &c);
    hub_server_free(server);
    manifest_release(&m);
    if (rc != OK) fail_msg("%s", w->e.msg);
    assert_int_equal(c.n_without_range, 0);
    assert_true(c.sent_bytes == HUGE_BYTES);
}

/* Lock. */

#define SHA(c) c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c
#define BLOB "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static const lock_rules RULES = {.profile = "test",
    .weights_min = 100,
    .weights_max = 200,
    .n_engram = 1,
    .engram_min = 50,
    .engram_max = 60,
    .tokenizer_bytes = 10,
    .model_type = "deepseek_v41",
    .bits_min = 2.8,
    .bits_max = 3.0,
    .deny = {"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"},
    .deny_why = "these are the tables of September"};

static const char CONFIG[] =
    "{\"model_type\":\"deepseek_v41\",\"quantization_config\":{\"quant_method\":\"exl3\",\"bits\":2.9}}";

static int lock(world *w, manifest *m, lock_report *r, const char *weights, const char *engram) {
    lock_options o = {.endpoint = hub_server_url(w->f.server, 0),
        .profile = "test",
        .weights = {.repo = weights},
        .engram = {.repo = engram}};
    return manifest_lock(&o, &RULES, m, r, &w->e);
}

static void lock_fixes_what_the_hub_lists(void **state) {
    world *w = *state;
    manifest m;
    lock_report r;
    char page[2048], git[65];
    store_digest *d = store_digest_new(MANIFEST_GITBLOB, strlen(CONFIG));
    store_digest_update(d, CONFIG, strlen(CONFIG));
    store_digest_finish(d, git);
    store_digest_free(d);
    hub_server_pause(w->f.server);
    w->f.config = CONFIG;
    snprintf(page, sizeof page,
        "[{\"type\":\"file\",\"path\":\"config.json\",\"size\":%zu,\"oid\":\"%s\"},"
        "{\"type\":\"file\",\"path\":\"tokenizer.json\",\"size\":11,\"oid\":\"" BLOB "\"},"
        "{\"type\":\"directory\",\"path\":\"x\",\"size\":0,\"oid\":\"" BLOB "\"}]",
        strlen(CONFIG), git);
    w->f.tree[0] = page;
    w->f.tree[1] =
        "[{\"type\":\"file\",\"path\":\"a.safetensors\",\"size\":150,\"oid\":\"" BLOB "\",\"lfs\":"
        "{\"oid\":\"" SHA("0b") "\",\"size\":150,\"pointerSize\":134},\"xetHash\":\"****\"}]";
    w->f.tree[2] =
        "[{\"type\":\"file\",\"path\":\"t.safetensors\",\"size\":55,\"oid\":\"" BLOB "\",\"lfs\":"
        "{\"oid\":\"" SHA("0c") "\",\"size\":55}}]";
    hub_server_go_on(w->f.server);
    assert_int_equal(lock(w, &m, &r, "o/weights", "o/tables"), OK);
    assert_int_equal(m.n_files, 4);
    assert_string_equal(r.weights_commit, COMMIT);
    assert_string_equal(r.weights_licence, "mit");
    assert_string_equal(manifest_licence_of(&m, "o/weights"), "mit");
    assert_non_null(strstr(r.warnings, "tokenizer.json"));
    assert_int_equal(m.files[3].role, MANIFEST_ENGRAM);
    manifest_release(&m);
    /* The tables of the other release, by digest alone. */
    CHANGE(
        w, w->f.tree[2] =
               "[{\"type\":\"file\",\"path\":\"t.safetensors\",\"size\":55,\"lfs\":{\"oid\":\"" SHA(
                   "dd") "\"}}]");
    assert_int_equal(lock(w, &m, &r, "o/weights", "o/tables"), ERR_MISMATCH);
    assert_non_null(strstr(w->e.msg, "September"));
    /* What is not known must be named. */
    assert_int_equal(lock(w, &m, &r, "", "o/tables"), ERR_ARG);
    assert_non_null(strstr(w->e.msg, "--weights"));
}

static void hostile_listings_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "[{\"type\":\"file\",\"path\":\"../x\",\"size\":1,\"oid\":\"" BLOB "\"}]",
        "[{\"type\":\"file\",\"path\":\"/etc/x\",\"size\":1,\"oid\":\"" BLOB "\"}]",
        "[{\"type\":\"file\",\"path\":\"a\\u001b[2J\",\"size\":1,\"oid\":\"" BLOB "\"}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":-1,\"oid\":\"" BLOB "\"}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":1e9,\"oid\":\"" BLOB "\"}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"oid\":\"****\"}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"oid\":\"" BLOB "\"},"
        "{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"oid\":\"" BLOB "\"}]",
        "{\"error\":\"x\"}", "[1]", "[{\"type\":\"file\"}]", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        manifest m;
        err e = ERR_INIT;
        manifest_file like = {.repo = (char *)"o/n", .commit = COMMIT};
        manifest_init(&m);
        if (manifest_lock_tree(&m, &RULES, &like, false, bad[i], strlen(bad[i]), &e) == OK)
            fail_msg("taken: %s", bad[i]);
        assert_null(strchr(e.msg, 27));
        manifest_release(&m);
    }
}

int main(int argc, char **argv) {
    if (argc == 4 && str_eq(argv[1], "--child")) return child_main(argv[2], argv[3]);
#define WITH(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        WITH(loads_over_signed_addresses),
        WITH(faults_never_give_wrong_bytes),
        WITH(wrong_bytes_never_get_the_final_name),
        WITH(old_tables_are_named),
        WITH(a_mirror_needs_no_headers),
        WITH(other_commit_is_refused),
        WITH(bad_redirects_are_not_followed),
        WITH(rate_limit_is_waited_for),
        WITH(files_of_others_are_taken_over),
        WITH(changed_file_is_found_and_repaired),
        WITH(full_disk_pauses),
        WITH(kills_only_cost_the_ranges_in_work),
        WITH(file_over_50_gb_is_loaded),
        WITH(lock_fixes_what_the_hub_lists),
        WITH(hostile_listings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
