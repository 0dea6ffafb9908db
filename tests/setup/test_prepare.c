/* Preparing on one machine: the lines of tandem-node, a task that is stopped and goes on, the real
 * program killed at random points, and its end when nobody listens any more. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/weights/pack.h"
#include "setup/prepare.h"

enum { WAIT_MS = 120000 };

extern char **environ;
static char dir[] = "/tmp/tandem-prepare-XXXXXX", out_dir[64], model_dir[512], program[512];

static int clean(void **state) {
    (void)state;
    return dir_remove_all(out_dir, NULL);
}

/* ---- lines ---- */

static void lines_are_read(void **state) {
    (void)state;
    char line[256], sha[65];
    prepare_progress p = {0};
    memset(sha, 'a', 64);
    sha[64] = '\0';
    assert_true(prepare_line_parse("progress writing 5 10 2", &p));
    assert_int_equal(p.state, PREPARE_WRITING);
    assert_int_equal(p.done_bytes, 5);
    assert_int_equal(p.had_bytes, 2);
    assert_true(prepare_line_parse("progress verifying 3 10 2", &p));
    assert_int_equal(p.state, PREPARE_VERIFYING);
    assert_int_equal(p.done_bytes, 10);
    assert_int_equal(p.read_bytes, 3);
    snprintf(line, sizeof line, "done 10 1 0 %s %s /a b/rank.pack", sha, sha);
    assert_true(prepare_line_parse(line, &p));
    assert_int_equal(p.state, PREPARE_DONE);
    assert_string_equal(p.path, "/a b/rank.pack");
    assert_int_equal(p.n_mended, 1);
    assert_true(prepare_line_parse("fail the disk is full", &p));
    assert_int_equal(p.state, PREPARE_FAILED);
    assert_string_equal(p.error.msg, "the disk is full");
}

static void other_lines_change_nothing(void **state) {
    (void)state;
    static const char *const bad[] = {"", "progress", "progress writing", "progress writing x 1 2",
        "done", "done 1 2 0 aa bb /x", "done 10 1 0 zz yy x", "hello", "tandem-prepare 1",
        "failed"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        prepare_progress p = {.state = PREPARE_WRITING, .done_bytes = 7};
        if (prepare_line_parse(bad[i], &p)) fail_msg("taken: '%s'", bad[i]);
        assert_int_equal(p.state, PREPARE_WRITING);
        assert_int_equal(p.done_bytes, 7);
    }
}

/* ---- a task ---- */

static prepare_rank usual(void) {
    return (prepare_rank){.node = "head",
        .model_dir = model_dir,
        .out_dir = out_dir,
        .world = 1,
        .n_threads = 1,
        .block_bytes = 1 << 20};
}

static prepare_progress finish(prepare_task *t) {
    prepare_progress p = {0};
    uint64_t end = clock_mono_ms() + WAIT_MS;
    do {
        sleep_ms(2);
        prepare_task_get(t, &p);
    } while (p.state < PREPARE_DONE && clock_mono_ms() < end);
    prepare_task_free(t);
    return p;
}

static void a_task_makes_a_pack_and_keeps_it(void **state) {
    (void)state;
    err e = ERR_INIT;
    prepare_rank r = usual();
    for (int round = 0; round < 2; round++) {
        prepare_progress p = finish(prepare_task_start(&r, &e));
        if (p.state != PREPARE_DONE) fail_msg("%s", p.error.msg);
        assert_int_equal(p.is_kept, round);
        assert_true(p.total_bytes > 1 << 20);
        assert_int_equal(strlen(p.source), 64);
        assert_true(file_exists(p.path));
    }
}

static void a_stopped_task_goes_on(void **state) {
    (void)state;
    err e = ERR_INIT;
    prepare_rank r = usual();
    prepare_progress p = {0};
    prepare_task *t = prepare_task_start(&r, &e);
    uint64_t end = clock_mono_ms() + WAIT_MS;
    while (p.done_bytes == 0 && p.state < PREPARE_DONE && clock_mono_ms() < end) {
        prepare_task_get(t, &p);
    }
    prepare_task_stop(t);
    p = finish(t);
    /* On a fast disk it may be over before it is stopped. */
    if (p.state == PREPARE_FAILED) assert_int_equal(p.error.code, ERR_CANCELLED);
    p = finish(prepare_task_start(&r, &e));
    if (p.state != PREPARE_DONE) fail_msg("%s", p.error.msg);
}

static void a_folder_without_a_model_is_named(void **state) {
    (void)state;
    err e = ERR_INIT;
    prepare_rank r = usual();
    r.model_dir = dir;
    prepare_progress p = finish(prepare_task_start(&r, &e));
    assert_int_equal(p.state, PREPARE_FAILED);
    assert_non_null(strstr(p.error.msg, "config.json"));
    assert_non_null(strstr(p.error.msg, dir));
}

/* ---- the program ---- */

/* tandem-node prepare, its output into fd. */
static pid_t start(int fd) {
    char *argv[] = {program, (char *)"prepare", (char *)"--model", model_dir, (char *)"--out",
        out_dir, (char *)"--rank", (char *)"0", (char *)"--ranks", (char *)"1", (char *)"--layout",
        (char *)"cpu-1", (char *)"--block", (char *)"1048576", (char *)"--threads", (char *)"1",
        NULL};
    posix_spawn_file_actions_t files;
    pid_t pid = -1;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, fd, 1);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawn(&pid, program, &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    assert_int_equal(rc, 0);
    return pid;
}

static void check_pack(void) {
    buf path = BUF_INIT;
    pack *p = NULL;
    err e = ERR_INIT;
    (void)pack_path(&path, out_dir, EXL3_LAYOUT_CPU, (const int[2]){0, 1});
    if (pack_open(buf_cstr(&path), &p, &e) != OK || pack_verify(p, NULL, NULL, &e) != OK)
        fail_msg("%s", e.msg);
    pack_close(p);
    buf_release(&path);
}

static void killed_at_random_it_goes_on(void **state) {
    (void)state;
    rand_state r;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC), n_kills = 0, status = -1;
    rand_init(&r, 77, 1);
    for (uint32_t n = 0;; n++) {
        pid_t pid = start(null);
        sleep_ms(5 + rand_below(&r, 40 + 100 * n));
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFSIGNALED(status)) break;
        n_kills++;
    }
    close(null);
    assert_int_equal(WEXITSTATUS(status), 0);
    check_pack();
    printf("%d kills\n", n_kills);
}

static void it_ends_when_nobody_listens(void **state) {
    (void)state;
    int ends[2], status = 0;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = start(ends[1]);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid); /* done before its first words, or stopped */
    assert_true(WIFEXITED(status));
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    pid = start(null);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 0);
    close(null);
    check_pack();
}

int main(void) {
    setenv("TANDEM_ALLOW_ROOT", "1", 1); /* tandem-node does not run as root, tests do */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_read),
        cmocka_unit_test(other_lines_change_nothing),
        cmocka_unit_test_setup(a_task_makes_a_pack_and_keeps_it, clean),
        cmocka_unit_test_setup(a_stopped_task_goes_on, clean),
        cmocka_unit_test_setup(a_folder_without_a_model_is_named, clean),
        cmocka_unit_test_setup(killed_at_random_it_goes_on, clean),
        cmocka_unit_test_setup(it_ends_when_nobody_listens, clean),
    };
    const char *source = getenv("TANDEM_SOURCE_DIR"), *out = getenv("OUT");
    snprintf(model_dir, sizeof model_dir, "%s/templates/demo-model", source != NULL ? source : ".");
    snprintf(program, sizeof program, "%s/tandem-node", out != NULL ? out : "build");
    if (access(program, X_OK) != 0 || mkdtemp(dir) == NULL) {
        fprintf(stderr, "%s is not built\n", program);
        return 77;
    }
    snprintf(out_dir, sizeof out_dir, "%s/out", dir);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)dir_remove_all(dir, NULL);
    return rc;
}
