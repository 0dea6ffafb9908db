#include "tests/harness/npm_package.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"

#define FETCH_DIR "build/fetch/schema-suite"
#define DEB_DIR "build/fetch/schema-suite-2020-12"
#define DEB_PACKAGE "libtest-json-schema-acceptance-perl"
#define DEB_SUITE                                                                                  \
    DEB_DIR                                                                                        \
    "/package/usr/share/perl5/auto/share/dist/Test-JSON-Schema-Acceptance/tests/draft2020-"        \
    "12"
#define PACKAGE "json-schema-test-suite@0.0.10"
#define ARCHIVE FETCH_DIR "/json-schema-test-suite-0.0.10.tgz"
#define SUITE FETCH_DIR "/package/tests/draft4"
#define FETCH_SECONDS 60

extern char **environ;

/* Runs a program found on PATH with its output thrown away. Whether it ended well. */
static bool run(char *const argv[]) {
    posix_spawn_file_actions_t actions;
    pid_t pid = 0;
    int status = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    int failed = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return false;
    uint64_t end = clock_mono_ms() + FETCH_SECONDS * 1000;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_mono_ms() > end) {
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            return false;
        }
        sleep_ms(20);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Programs that fetch the same thing at the same time wait for each other. */
static int lock_folder(const char *path) {
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock >= 0) (void)flock(lock, LOCK_EX);
    return lock;
}

int npm_schema_suite(buf *dir, err *e) {
    char *pack[] = {"npm", "pack", PACKAGE, "--pack-destination", FETCH_DIR, "--fetch-retries=0",
        "--fetch-timeout=30000", NULL};
    char *unpack[] = {"tar", "-xzf", ARCHIVE, "-C", FETCH_DIR, NULL};
    int rc = dir_make_all(FETCH_DIR, 0755, e);
    if (rc != OK) return rc;
    int lock = lock_folder(FETCH_DIR "/lock");
    bool is_there =
        file_exists(SUITE "/type.json") ||
        ((file_exists(ARCHIVE) || run(pack)) && run(unpack) && file_exists(SUITE "/type.json"));
    if (lock >= 0) (void)close(lock);
    if (!is_there) {
        return err_set(e, ERR_NOT_FOUND, "npm could not fetch %s (no network, or no npm)", PACKAGE);
    }
    return buf_puts(dir, SUITE);
}

int deb_schema_suite(buf *dir, err *e) {
    char *fetch[] = {"sh", "-c",
        "cd " DEB_DIR " && apt-get -q -o APT::Sandbox::User=root download " DEB_PACKAGE
        " && dpkg-deb -x " DEB_PACKAGE "_*.deb package",
        NULL};
    int rc = dir_make_all(DEB_DIR, 0755, e);
    if (rc != OK) return rc;
    int lock = lock_folder(DEB_DIR "/lock");
    bool is_there =
        file_exists(DEB_SUITE "/type.json") || (run(fetch) && file_exists(DEB_SUITE "/type.json"));
    if (lock >= 0) (void)close(lock);
    if (!is_there) {
        return err_set(e, ERR_NOT_FOUND,
            "apt could not fetch %s (no network, no package lists, or another system)",
            DEB_PACKAGE);
    }
    return buf_puts(dir, DEB_SUITE);
}
