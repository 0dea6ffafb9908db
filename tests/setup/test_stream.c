/* The copy between two network namespaces with two rails, by the real tandem-node on both sides: whole
 * copies, lost links, killed sides, a full disk, wrong bytes, strangers. Needs root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "setup/manifest.h"
#include "setup/stream_internal.h"
#include "tests/harness/hub_server.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
enum { N_FILES = 4, MAX_ARGS = 48 };
static const uint64_t SIZES[N_FILES] = {12000001, 3000000, 65536, 5};

extern char **environ;

typedef struct world {
    char head[32], worker[32]; /* name spaces */
    char dir[64], from[96], to[96], list[96], program[512];
} world;

/* Runs a command to its end; its exit status, output dropped unless a file is named. */
static int run(const char *const *argv) {
    pid_t pid = 0;
    int status = 0;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0 || waitpid(pid, &status, 0) != pid) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A command line cut at blanks. */
static int command(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int command(const char *fmt, ...) {
    char line[512];
    const char *argv[MAX_ARGS];
    int n = 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    for (char *at = line; *at != '\0' && n < MAX_ARGS - 1;) {
        argv[n++] = at;
        at += strcspn(at, " ");
        if (*at == ' ') *at++ = '\0';
    }
    argv[n] = NULL;
    return run(argv);
}

static int make_links(const world *w) {
    int rc = command("ip netns add %s", w->head) | command("ip netns add %s", w->worker);
    for (int i = 0; i < 2 && rc == 0; i++) {
        char rail = (char)('a' + i);
        rc |= command("ip link add rail%c netns %s type veth peer name rail%c netns %s", rail,
            w->head, rail, w->worker);
        rc |= command("ip -n %s addr add 10.77.%d.1/24 dev rail%c", w->head, i + 1, rail);
        rc |= command("ip -n %s addr add 10.77.%d.2/24 dev rail%c", w->worker, i + 1, rail);
        rc |= command("ip -n %s link set rail%c up", w->head, rail);
        rc |= command("ip -n %s link set rail%c up", w->worker, rail);
    }
    return rc;
}

/* About rate megabits a second on each rail, so that there is time for faults. */
static void slow_down(const world *w, int rate) {
    for (int i = 0; i < 2; i++) {
        command("ip netns exec %s tc qdisc del dev rail%c root", w->head, 'a' + i);
        if (rate > 0)
            assert_int_equal(
                command("ip netns exec %s tc qdisc add dev rail%c root tbf rate %dmbit "
                        "burst 64kb latency 50ms",
                    w->head, 'a' + i, rate),
                0);
    }
}

static void write_file(const char *path, uint64_t seed, uint64_t size) {
    err e = ERR_INIT;
    char *bytes = mem_alloc(size + 1);
    hub_server_noise(seed, 0, bytes, size);
    assert_int_equal(file_write_atomic(path, bytes, size, 0644, &e), OK);
    mem_free(bytes);
}

static void make_files(world *w) {
    manifest m;
    buf text = BUF_INIT;
    char path[160];
    err e = ERR_INIT;
    manifest_init(&m);
    snprintf(path, sizeof path, "%s/models/test", w->from);
    assert_int_equal(dir_make_all(path, 0755, &e), OK);
    for (int i = 0; i < N_FILES; i++) {
        char name[16];
        uint8_t raw[SHA256_BYTES];
        manifest_file f = {.repo = (char *)"o/n",
            .commit = COMMIT,
            .path = name,
            .size = SIZES[i],
            .kind = MANIFEST_SHA256,
            .role = MANIFEST_WEIGHTS,
            .is_required = true};
        snprintf(name, sizeof name, "file%d", i);
        snprintf(path, sizeof path, "%s/models/test/%s", w->from, name);
        write_file(path, (uint64_t)i + 1, SIZES[i]);
        assert_int_equal(sha256_file(path, raw, &e), OK);
        sha256_hex(raw, f.digest);
        assert_int_equal(manifest_add(&m, "test", &f, &e), OK);
    }
    assert_int_equal(manifest_print(&m, &text, &e), OK);
    assert_int_equal(file_write_atomic(w->list, text.data, text.len, 0644, &e), OK);
    manifest_release(&m);
    buf_release(&text);
}

static int begin(void **state) {
    world *w = mem_alloc(sizeof *w);
    const char *out = getenv("OUT");
    *state = w;
    snprintf(w->head, sizeof w->head, "th%d", (int)getpid());
    snprintf(w->worker, sizeof w->worker, "tw%d", (int)getpid());
    str_copy(w->dir, sizeof w->dir, "/tmp/tandem-stream.XXXXXX");
    if (mkdtemp(w->dir) == NULL) return -1;
    snprintf(w->from, sizeof w->from, "%s/from", w->dir);
    snprintf(w->to, sizeof w->to, "%s/to", w->dir);
    snprintf(w->list, sizeof w->list, "%s/list", w->dir);
    snprintf(w->program, sizeof w->program, "%s/tandem-node", out != NULL ? out : "build");
    make_files(w);
    return 0;
}

static int end(void **state) {
    world *w = *state;
    err e = ERR_INIT;
    command("ip netns del %s", w->head);
    command("ip netns del %s", w->worker);
    dir_remove_all(w->dir, &e);
    mem_free(w);
    return 0;
}

static void need_links(const world *w) {
    if (geteuid() != 0 || access(w->program, X_OK) != 0 || make_links(w) != 0) skip();
}

static pid_t start(const world *w, const char *log) {
    const char *argv[] = {"ip", "netns", "exec", w->head, w->program, "send", "--manifest", w->list,
        "--root", w->from, "--to", w->to, "--rail", "10.77.1.1,10.77.1.2", "--rail",
        "10.77.2.1,10.77.2.2", "--streams", "4", "--frame", "65536", "--reserve", "0", "--idle",
        "1500", "--", "ip", "netns", "exec", w->worker, w->program, "receive", NULL};
    pid_t pid = 0;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    assert_int_equal(posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static int wait_for(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void read_log(const char *path, buf *out) {
    err e = ERR_INIT;
    assert_int_equal(file_read(path, out, 1 << 20, &e), OK);
}

/* Copies to the end and returns the exit code; the output in text. */
static int copy(const world *w, buf *text) {
    char log[96];
    snprintf(log, sizeof log, "%s/log", w->dir);
    int code = wait_for(start(w, log));
    read_log(log, text);
    return code;
}

static void assert_same(const world *w) {
    for (int i = 0; i < N_FILES; i++) {
        char path[160];
        uint8_t a[SHA256_BYTES], b[SHA256_BYTES];
        err e = ERR_INIT;
        snprintf(path, sizeof path, "%s/models/test/file%d", w->from, i);
        assert_int_equal(sha256_file(path, a, &e), OK);
        snprintf(path, sizeof path, "%s/models/test/file%d", w->to, i);
        assert_int_equal(sha256_file(path, b, &e), OK);
        assert_memory_equal(a, b, sizeof a);
        str_copy(path + strlen(path), 8, ".ranges");
        assert_false(file_exists(path));
    }
}

static void copies_over_both_rails(void **state) {
    world *w = *state;
    buf text = BUF_INIT;
    need_links(w);
    int code = copy(w, &text);
    if (code != 0) fail_msg("exit %d: %s", code, buf_cstr(&text));
    assert_same(w);
    /* Again: all is known by its record, nothing is sent. */
    assert_int_equal(copy(w, &text), 0);
    assert_non_null(strstr(buf_cstr(&text), "4 of 4 files"));
    buf_release(&text);
}

/* The receiver: the child of the sender. */
static pid_t child_of(pid_t parent) {
    DIR *d = opendir("/proc");
    pid_t found = 0;
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d)) != NULL && found == 0;) {
        char path[300], want[32];
        buf text = BUF_INIT;
        err e = ERR_INIT;
        if (x->d_name[0] < '0' || x->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "/proc/%s/status", x->d_name);
        snprintf(want, sizeof want, "PPid:\t%d\n", (int)parent);
        if (file_read(path, &text, 1 << 16, &e) == OK && strstr(buf_cstr(&text), want) != NULL)
            found = (pid_t)strtol(x->d_name, NULL, 10);
        buf_release(&text);
    }
    closedir(d);
    return found;
}

static void killed_receiver_is_started_again(void **state) {
    world *w = *state;
    buf text = BUF_INIT;
    char log[96];
    need_links(w);
    slow_down(w, 30);
    snprintf(log, sizeof log, "%s/log", w->dir);
    pid_t pid = start(w, log);
    for (int i = 0; i < 2; i++) {
        sleep_ms(700);
        pid_t child = child_of(pid);
        if (child > 0 && kill(child, SIGKILL) != 0) assert_int_equal(errno, ESRCH); /* it is done */
    }
    int code = wait_for(pid);
    read_log(log, &text);
    if (code != 0) fail_msg("exit %d: %s", code, buf_cstr(&text));
    assert_same(w);
    buf_release(&text);
}

/* Waits until the receiver's journal of a file has been written and written again: something is kept. */
static void wait_for_journal(const world *w) {
    buf first[N_FILES], now = BUF_INIT;
    for (int i = 0; i < N_FILES; i++)
        first[i] = (buf)BUF_INIT;
    bool is_kept = false;
    for (uint64_t end = clock_mono_ms() + 120000; !is_kept && clock_mono_ms() < end; sleep_ms(10)) {
        for (int i = 0; i < N_FILES && !is_kept; i++) {
            char path[160];
            snprintf(path, sizeof path, "%s/models/test/file%d.ranges", w->to, i);
            buf_reset(&now);
            if (file_read(path, &now, 1 << 20, NULL) != OK || now.len == 0) continue;
            is_kept = first[i].len > 0 &&
                      (first[i].len != now.len || memcmp(first[i].data, now.data, now.len) != 0);
            if (first[i].len == 0) buf_append(&first[i], now.data, now.len);
        }
    }
    for (int i = 0; i < N_FILES; i++)
        buf_release(&first[i]);
    buf_release(&now);
    assert_true(is_kept);
}

static void killed_sender_goes_on_where_it_was(void **state) {
    world *w = *state;
    buf text = BUF_INIT;
    char log[96];
    unsigned long long had = 0;
    need_links(w);
    slow_down(w, 5); /* it takes more than ten seconds, so it is in the middle */
    snprintf(log, sizeof log, "%s/log", w->dir);
    pid_t pid = start(w, log);
    wait_for_journal(w);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(wait_for(pid), -1);
    slow_down(w, 0);
    int code = copy(w, &text);
    if (code != 0) fail_msg("exit %d: %s", code, buf_cstr(&text));
    assert_same(w);
    /* What the journal kept is not sent again. */
    for (const char *at = buf_cstr(&text); (at = strstr(at, "bytes (")) != NULL; at += 7)
        assert_int_equal(sscanf(at, "bytes (%llu were there)", &had), 1);
    assert_true(had > 0);
    buf_release(&text);
}

static void lost_links_are_survived(void **state) {
    world *w = *state;
    buf text = BUF_INIT;
    char log[96];
    need_links(w);
    slow_down(w, 25);
    snprintf(log, sizeof log, "%s/log", w->dir);
    pid_t pid = start(w, log);
    sleep_ms(600);
    assert_int_equal(command("ip -n %s link set raila down", w->head), 0);
    sleep_ms(500);
    assert_int_equal(command("ip -n %s link set railb down", w->worker), 0);
    sleep_ms(700);
    assert_int_equal(command("ip -n %s link set railb up", w->worker), 0);
    assert_int_equal(command("ip -n %s link set raila up", w->head), 0);
    int code = wait_for(pid);
    read_log(log, &text);
    if (code != 0) fail_msg("exit %d: %s", code, buf_cstr(&text));
    assert_same(w);
    buf_release(&text);
}

static void full_worker_pauses(void **state) {
    world *w = *state;
    buf text = BUF_INIT;
    err e = ERR_INIT;
    need_links(w);
    assert_int_equal(dir_make_all(w->to, 0755, &e), OK);
    assert_int_equal(mount("tandem", w->to, "tmpfs", 0, "size=8m"), 0);
    int code = copy(w, &text);
    bool says = strstr(buf_cstr(&text), "space") != NULL;
    int grown = mount("tandem", w->to, "tmpfs", MS_REMOUNT, "size=64m");
    int code_after = copy(w, &text);
    if (code_after == 0) assert_same(w);
    umount2(w->to, MNT_DETACH);
    assert_int_equal(code, 20);
    assert_true(says);
    assert_int_equal(grown, 0);
    if (code_after != 0) fail_msg("exit %d: %s", code_after, buf_cstr(&text));
    buf_release(&text);
}

static void wrong_bytes_get_no_name(void **state) {
    world *w = *state;
    buf text = BUF_INIT;
    char path[160];
    need_links(w);
    snprintf(path, sizeof path, "%s/models/test/file1", w->from);
    write_file(path, 77, SIZES[1]);
    assert_int_equal(copy(w, &text), 20);
    assert_non_null(strstr(buf_cstr(&text), "digest"));
    snprintf(path, sizeof path, "%s/models/test/file1", w->to);
    assert_false(file_exists(path));
    /* The owner repairs the head's file. */
    snprintf(path, sizeof path, "%s/models/test/file1", w->from);
    write_file(path, 2, SIZES[1]);
    int code = copy(w, &text);
    if (code != 0) fail_msg("exit %d: %s", code, buf_cstr(&text));
    assert_same(w);
    buf_release(&text);
}

/* Proofs, without name spaces. */

typedef struct greeting {
    int fd, rc;
    uint8_t secret[STREAM_SECRET_BYTES];
} greeting;

static void *greet(void *arg) {
    greeting *g = arg;
    err e = ERR_INIT;
    g->rc = stream_greet_sender(g->fd, g->secret, 3, &e);
    close(g->fd);
    return NULL;
}

static void strangers_are_refused(void **state) {
    (void)state;
    for (int is_stranger = 0; is_stranger < 2; is_stranger++) {
        int pair[2];
        uint32_t index = 0;
        err e = ERR_INIT;
        pthread_t thread;
        uint8_t secret[STREAM_SECRET_BYTES] = {1, 2, 3};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        greeting g = {.fd = pair[1]};
        memcpy(g.secret, secret, sizeof secret);
        g.secret[31] ^= (uint8_t)is_stranger;
        assert_int_equal(pthread_create(&thread, NULL, greet, &g), 0);
        int rc = stream_greet_receiver(pair[0], secret, &index, &e);
        close(pair[0]);
        pthread_join(thread, NULL);
        assert_int_equal(rc, is_stranger ? ERR_AUTH : OK);
        assert_int_equal(g.rc == OK, !is_stranger);
        if (!is_stranger) assert_int_equal(index, 3);
    }
}

static void damaged_frames_are_seen(void **state) {
    (void)state;
    frame f = {.kind = FRAME_DATA,
              .file = 3,
              .length = 5,
              .crc = 7,
              .sequence = 9,
              .offset = (uint64_t)99 << 32},
          back;
    uint8_t head[FRAME_HEAD_BYTES];
    err e = ERR_INIT;
    frame_encode(&f, head);
    assert_int_equal(frame_decode(&back, head, &e), OK);
    assert_true(back.offset == f.offset && back.file == 3 && back.sequence == 9);
    for (size_t i = 0; i < sizeof head; i++) {
        head[i] ^= 0x20;
        assert_int_equal(frame_decode(&back, head, &e), ERR_FORMAT);
        head[i] ^= 0x20;
    }
}

int main(void) {
    setenv("TANDEM_ALLOW_ROOT", "1", 1); /* tandem-node does not run as root, tests do */
#define WITH(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(damaged_frames_are_seen),
        WITH(copies_over_both_rails),
        WITH(killed_receiver_is_started_again),
        WITH(killed_sender_goes_on_where_it_was),
        WITH(lost_links_are_survived),
        WITH(full_worker_pauses),
        WITH(wrong_bytes_get_no_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
