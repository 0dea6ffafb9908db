/* `tandem download` as people use it: a job that goes on by itself, is watched, paused, killed and
 * taken up again; a token that must not be found anywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/hub_store.h"
#include "setup/manifest.h"
#include "tests/harness/hub_server.h"
#include "tests/harness/pty.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define TOKEN "hf_plantedSecretToken12345"
enum { SIZE = 20000003 };

extern char **environ;

typedef struct world {
    hub_server *server;
    uint64_t bytes_per_s; /* changed under hub_server_pause */
    char dir[64], program[512], out[96];
} world;

static void noise(void *ctx, uint64_t offset, void *out, size_t n) {
    (void)ctx;
    hub_server_noise(5, offset, out, n);
}

static void decide(void *ctx, const hub_seen *r, hub_answer *a) {
    world *w = ctx;
    hub_server_file(r, SIZE, noise, NULL, a);
    a->bytes_per_s = w->bytes_per_s;
}

static void put(const char *dir, const char *name, const char *text, mode_t mode) {
    char path[256];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), mode, &e), OK);
}

static void write_manifest(const char *dir) {
    manifest m;
    buf text = BUF_INIT;
    err e = ERR_INIT;
    char *bytes = mem_alloc(SIZE);
    manifest_file f = {.repo = (char *)"o/n",
        .commit = COMMIT,
        .path = (char *)"a.safetensors",
        .size = SIZE,
        .kind = MANIFEST_SHA256,
        .role = MANIFEST_WEIGHTS,
        .is_required = true};
    store_digest *d = store_digest_new(MANIFEST_SHA256, SIZE);
    hub_server_noise(5, 0, bytes, SIZE);
    store_digest_update(d, bytes, SIZE);
    store_digest_finish(d, f.digest);
    store_digest_free(d);
    mem_free(bytes);
    manifest_init(&m);
    assert_int_equal(manifest_add(&m, "test", &f, &e), OK);
    assert_int_equal(manifest_print(&m, &text, &e), OK);
    put(dir, "test.manifest", buf_cstr(&text), 0600);
    manifest_release(&m);
    buf_release(&text);
}

static int begin(void **state) {
    world *w = mem_alloc(sizeof *w);
    const char *out = getenv("OUT");
    char path[256], text[1024];
    err e = ERR_INIT;
    *state = w;
    str_copy(w->dir, sizeof w->dir, "/tmp/tandem-job.XXXXXX");
    if (mkdtemp(w->dir) == NULL) return -1;
    snprintf(w->program, sizeof w->program, "%s/tandem", out != NULL ? out : "build");
    if (w->program[0] != '/') {
        char *real = realpath(w->program, NULL);
        if (real != NULL) str_copy(w->program, sizeof w->program, real);
        free(real);
    }
    snprintf(w->out, sizeof w->out, "%s/out", w->dir);
    w->server = hub_server_new(decide, w);
    snprintf(path, sizeof path, "%s/config/tandem/manifests", w->dir);
    if (dir_make_all(path, 0700, &e) != OK) return -1;
    write_manifest(path);
    put(w->dir, "token", TOKEN "\n", 0600);
    snprintf(path, sizeof path, "%s/config/tandem", w->dir);
    snprintf(text, sizeof text,
        "PROFILE=test\nHEAD_DATA=%s/data\nHF_ENDPOINT=%s\nHF_TOKEN_FILE=%s/token\nDL_CHUNK_MIB=8\n",
        w->dir, hub_server_url(w->server, 0), w->dir);
    put(path, "tandem.conf", text, 0600);
    snprintf(path, sizeof path, "%s/config", w->dir);
    setenv("XDG_CONFIG_HOME", path, 1);
    snprintf(path, sizeof path, "%s/state", w->dir);
    setenv("XDG_STATE_HOME", path, 1);
    snprintf(path, sizeof path, "%s/run", w->dir);
    if (dir_make_all(path, 0700, &e) != OK) return -1;
    setenv("XDG_RUNTIME_DIR", path, 1);
    setenv("HF_TOKEN", "hf_plantedtoken", 1);
    setenv("TANDEM_ALLOW_ROOT", "1", 1); /* a download does not run as root, tests do */
    return 0;
}

static int end(void **state) {
    world *w = *state;
    err e = ERR_INIT;
    hub_server_free(w->server);
    dir_remove_all(w->dir, &e);
    mem_free(w);
    return 0;
}

/* Runs tandem with the words given; exit code, output in text. */
static int tandem(const world *w, buf *text, const char *a, const char *b, const char *c) {
    const char *argv[] = {w->program, a, b, c, NULL};
    pid_t pid = 0;
    int status = 0;
    err e = ERR_INIT;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, w->out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    int rc = posix_spawn(&pid, argv[0], &actions, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0) skip();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(file_read(w->out, text, 1 << 22, &e), OK);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void status_of(const world *w, char state[32], int64_t *pid, uint64_t *done) {
    char path[256];
    json *v = NULL;
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/state/tandem/jobs/download/status.json", w->dir);
    state[0] = '\0';
    *pid = 0;
    *done = 0;
    if (json_parse_file(path, NULL, &v, &e) == OK) {
        str_copy(state, 32, json_str(json_get(v, "state")));
        json_i64(json_get(v, "pid"), pid);
        json_u64(json_get(v, "done_bytes"), done);
    }
    json_free(v);
}

static void wait_for_bytes(const world *w, uint64_t least, int64_t *pid) {
    char state[32];
    uint64_t done = 0;
    for (uint64_t until = clock_mono_ms() + 120000; clock_mono_ms() < until && done < least;) {
        sleep_ms(50);
        status_of(w, state, pid, &done);
    }
    assert_true(done >= least);
}

/* A process that is killed has its locks until it has gone, which takes its own time. */
static void wait_for_end(int64_t pid) {
    char path[64];
    buf stat = BUF_INIT;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    for (uint64_t until = clock_mono_ms() + 120000; clock_mono_ms() < until; sleep_ms(5)) {
        buf_reset(&stat);
        if (file_read(path, &stat, 4096, NULL) != OK) break;
        const char *state = strrchr(buf_cstr(&stat), ')');
        if (state == NULL || str_starts(state, ") Z")) break;
    }
    buf_release(&stat);
}

static bool is_right(const world *w) {
    char path[256];
    uint8_t got[SHA256_BYTES], want[SHA256_BYTES];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/data/models/test/a.safetensors", w->dir);
    if (sha256_file(path, got, &e) != OK) return false;
    char *bytes = mem_alloc(SIZE);
    hub_server_noise(5, 0, bytes, SIZE);
    sha256_of(bytes, SIZE, want);
    mem_free(bytes);
    return sha256_equal(got, want);
}

/* Looks through all files under a folder for the token. */
typedef struct searched {
    const char *dir;
    int n_found;
} searched;

static int find_text(void *ctx, const char *name, err *e) {
    searched *s = ctx;
    buf path = BUF_INIT, text = BUF_INIT;
    path_join(&path, s->dir, name);
    if (dir_exists(buf_cstr(&path))) {
        searched below = {buf_cstr(&path), 0};
        dir_each(below.dir, find_text, &below, e);
        s->n_found += below.n_found;
    } else if (!str_eq(name, "commands") && file_read(buf_cstr(&path), &text, 1 << 22, e) == OK) {
        s->n_found += memmem(text.data, text.len, TOKEN, strlen(TOKEN)) != NULL;
    }
    buf_release(&path);
    buf_release(&text);
    return OK;
}

/* It runs for hours, and others of the user can read its environment and its words. */
static void expect_no_token(int64_t pid) {
    static const char *const names[] = {"environ", "cmdline"};
    for (size_t i = 0; i < 2; i++) {
        char path[64];
        buf bytes = BUF_INIT;
        snprintf(path, sizeof path, "/proc/%lld/%s", (long long)pid, names[i]);
        assert_int_equal(file_read(path, &bytes, 1 << 20, NULL), OK);
        assert_true(bytes.len > 0);
        assert_null(memmem(bytes.data, bytes.len, "hf_planted", 10));
        buf_release(&bytes);
    }
}

static void job_is_paused_killed_and_taken_up(void **state) {
    world *w = *state;
    buf text = BUF_INIT;
    char said[32], path[256];
    int64_t pid = 0;
    uint64_t done = 0;
    hub_counts c;
    err e = ERR_INIT;
    hub_server_pause(w->server);
    w->bytes_per_s = 300000;
    hub_server_go_on(w->server);
    int code = tandem(w, &text, "download", "--background", NULL);
    if (code != 0) fail_msg("%s", buf_cstr(&text));
    /* A second one does not begin: it only watches. */
    wait_for_bytes(w, 1 << 20, &pid);
    expect_no_token(pid);
    assert_int_equal(tandem(w, &text, "download", "--pause", NULL), 0);
    status_of(w, said, &pid, &done);
    assert_string_equal(said, "paused");
    assert_true(done > 0 && done < SIZE);
    /* On again, and killed. */
    assert_int_equal(tandem(w, &text, "download", "--background", NULL), 0);
    uint64_t before = done;
    wait_for_bytes(w, before + 100000, &pid);
    assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
    wait_for_end(pid);
    assert_int_equal(tandem(w, &text, "download", "--attach", NULL), 20);
    assert_int_equal(tandem(w, &text, "download", "--pause", NULL), 20);
    hub_server_pause(w->server);
    w->bytes_per_s = 0;
    hub_server_go_on(w->server);
    code = tandem(w, &text, "download", "--json", NULL);
    if (code != 0) fail_msg("%s", buf_cstr(&text));
    assert_non_null(strstr(buf_cstr(&text), "\"state\":\"done\""));
    assert_true(is_right(w));
    /* The token went to the hub (this machine) and into no file. */
    hub_server_counts(w->server, &c);
    assert_true(c.n_auth_hub > 0);
    snprintf(path, sizeof path, "%s/state", w->dir);
    searched s = {path, 0};
    assert_int_equal(dir_each(path, find_text, &s, &e), OK);
    assert_int_equal(s.n_found, 0);
    assert_null(strstr(buf_cstr(&text), TOKEN));
    buf_release(&text);
}

static void set_speed(world *w, uint64_t bytes_per_s) {
    hub_server_pause(w->server);
    w->bytes_per_s = bytes_per_s;
    hub_server_go_on(w->server);
}

static void see(pty *p, const char *text) {
    buf rows = BUF_INIT;
    if (pty_wait(p, text, true, 120000)) return;
    vt_text(&p->screen, &rows);
    fprintf(stderr, "%s\n", buf_cstr(&rows));
    buf_release(&rows);
    fail_msg("never came: %s", text);
}

static int count_of(const pty *p, const char *text) {
    buf rows = BUF_INIT;
    int n = 0;
    vt_text(&p->screen, &rows);
    for (const char *s = buf_cstr(&rows); (s = strstr(s, text)) != NULL; s += strlen(text))
        n++;
    buf_release(&rows);
    return n;
}

/* On a terminal of 80 columns: a block drawn in place, steered and left by keys. */
static void terminal_shows_plots_and_takes_keys(void **state) {
    world *w = *state;
    const char *begin_it[] = {w->program, "download", "--ascii", NULL};
    const char *attach[] = {w->program, "download", "--attach", "--ascii", NULL};
    const char *env[] = {"TERM=xterm-256color", "LC_ALL=C.UTF-8", NULL};
    char said[32];
    int64_t pid = 0;
    uint64_t done = 0;
    pty p;
    set_speed(w, 60000); /* about two minutes, whatever the keys take */
    pty_start(&p, begin_it, env, 24, 80);
    wait_for_bytes(w, 1 << 18, &pid);
    see(&p, "a.safetensors");
    see(&p, " loading ");
    see(&p, "newest at the right");
    see(&p, "left ");
    see(&p, "p pause  r rate  c connections  l log  q leave, it goes on");
    assert_int_equal(count_of(&p, "download of test"), 1);
    pty_keys(&p, "l");
    see(&p, "logs/download.log");
    pty_keys(&p, "l");
    see(&p, " loading ");
    pty_keys(&p, "c");
    see(&p, "connections, 1 to 32");
    pty_keys(&p, "2\r");
    see(&p, " of 2  free disk");
    pty_keys(&p, "q");
    see(&p, "goes on in the background");
    assert_true(pty_wait_end(&p, 60000));
    assert_true(WIFEXITED(p.status) && WEXITSTATUS(p.status) == 0);
    pty_stop(&p);
    status_of(w, said, &pid, &done);
    assert_string_equal(said, "running");
    pty_start(&p, attach, env, 40, 120);
    see(&p, " loading ");
    pty_keys(&p, "p");
    see(&p, "what arrived is kept");
    assert_true(pty_wait_end(&p, 60000));
    assert_int_equal(count_of(&p, "download of test"), 1);
    pty_stop(&p);
    status_of(w, said, &pid, &done);
    assert_string_equal(said, "paused");
    set_speed(w, 0);
    pty_start(&p, begin_it, env, 24, 80);
    see(&p, "verified 1 of 1 files");
    assert_true(pty_wait_end(&p, 60000));
    pty_stop(&p);
    assert_true(is_right(w));
}

static void unknown_profile_says_what_there_is(void **state) {
    world *w = *state;
    buf text = BUF_INIT;
    assert_int_equal(tandem(w, &text, "download", "--job", "--profile=nothing"), 20);
    assert_non_null(strstr(buf_cstr(&text), "0909-mia-2.9bpw"));
    assert_int_equal(tandem(w, &text, "download", "--job", "--profile=1017-libertai-2.9bpw"), 20);
    assert_non_null(strstr(buf_cstr(&text), "model lock"));
    buf_release(&text);
}

int main(void) {
#define WITH(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        WITH(job_is_paused_killed_and_taken_up),
        WITH(terminal_shows_plots_and_takes_keys),
        WITH(unknown_profile_says_what_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
