/* tandem support: what is planted in settings, logs and the engine's own words does not get into the
 * file, what explains a fault does, and nothing is written without a yes. The command itself runs, in
 * folders of its own and beside a fake daemon. */
#include <fcntl.h>
#include <pwd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "tests/harness/fake_daemon.h"
#include "tui/cmd_internal.h"

enum { FILE_MAX = 16 << 20 };

/* None of these may leave the machine. */
static const char *const PLANTED[] = {"hf_PlantedHubToken1234567", "sk-PlantedApiKey12345678901",
    "PlantedBearer.abc-123456", "PlantedPassword1", "PlantedSecretOfEnv1", "93.184.216.34",
    "2001:db8:1:2::7", "spark-two.example", "ada-planted", "PlantedPromptAboutMyDiary",
    "PlantedReplyAboutMyDiary", "dd:ee:ff"};

static const char LOG_TEXT[] =
    "2026-11-30T10:00:00Z info engine: started build=abc123\n"
    "2026-11-30T10:00:01Z warn hub: token hf_PlantedHubToken1234567 refused from 93.184.216.34\n"
    "2026-11-30T10:00:02Z info api: Authorization: Bearer PlantedBearer.abc-123456\n"
    "2026-11-30T10:00:03Z info api: key sk-PlantedApiKey12345678901 of ada-planted\n"
    "2026-11-30T10:00:04Z info ssh: {\"password\":\"PlantedPassword1\",\"port\":22}\n"
    "2026-11-30T10:00:05Z info env: HF_TOKEN=PlantedSecretOfEnv1\n"
    "2026-11-30T10:00:06Z info link: spark-two.example [2001:db8:1:2::7]:29620 aa:bb:cc:dd:ee:ff\n"
    "2026-11-30T10:00:07Z debug api: {\"role\":\"user\",\"content\":\"PlantedPromptAboutMyDiary\"}\n"
    "2026-11-30T10:00:08Z error engine: the exchange ended, rank=1 at 192.168.100.11\n";

static const char STATE_TEXT[] =
    "{\"v\":1,\"state\":\"ready\",\"model\":{\"id\":\"tandem-demo\",\"demo\":true,\"context\":4096},"
    "\"last\":{\"role\":\"assistant\",\"content\":\"PlantedReplyAboutMyDiary\"},\"requests\":[]}";

typedef struct world {
    char dir[64], file[96], socket[96];
    fake_daemon *daemon;
} world;

static void put_file(const char *dir, const char *name, const char *text) {
    buf path = BUF_INIT, folder = BUF_INIT;
    err e = ERR_INIT;
    path_join(&path, dir, name);
    path_dir(&folder, buf_cstr(&path));
    if (dir_make_all(buf_cstr(&folder), 0700, &e) != OK ||
        file_write_atomic(buf_cstr(&path), text, strlen(text), 0600, &e) != OK)
        fail_msg("%s", e.msg);
    buf_release(&path);
    buf_release(&folder);
}

static void set_place(const char *name, const char *dir, const char *below) {
    char path[128];
    snprintf(path, sizeof path, "%s%s", dir, below);
    setenv(name, path, 1);
}

static void world_open(world *w) {
    const struct passwd *me = getpwuid(getuid());
    buf home = BUF_INIT;
    str_copy(w->dir, sizeof w->dir, "/tmp/tandem-support-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->file, sizeof w->file, "%s/bundle.txt", w->dir);
    snprintf(w->socket, sizeof w->socket, "%s/engine.sock", w->dir);
    set_place("XDG_CONFIG_HOME", w->dir, "/config");
    set_place("XDG_STATE_HOME", w->dir, "/state");
    set_place("XDG_RUNTIME_DIR", w->dir, "");
    put_file(w->dir, "config/tandem/tandem.conf",
        "WORKER_SSH=ada-planted@spark-two.example:2222\nCONTEXT=8192\n");
    buf_puts(&home, LOG_TEXT);
    if (me != NULL && strlen(me->pw_dir) > 1)
        buf_printf(&home, "info engine: model in %s/models/x\n", me->pw_dir);
    put_file(w->dir, "state/tandem/logs/engine.log", buf_cstr(&home));
    buf_release(&home);
    w->daemon = fake_daemon_start(w->dir);
    fake_daemon_state(w->daemon, STATE_TEXT);
}

static void world_close(world *w) {
    fake_daemon_stop(w->daemon);
    dir_remove_all(w->dir, NULL);
}

/* Runs the command with further words, standard input empty and standard output in a file. */
static int support(const world *w, const char *first, const char *second, buf *out) {
    const char *words[] = {
        "tandem", "support", "--socket", w->socket, "--output", w->file, first, second, NULL};
    char *argv[sizeof words / sizeof words[0]], shown[96];
    int argc = 0;
    cmd_args a;
    err e = ERR_INIT;
    for (; words[argc] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc];
    argv[argc] = NULL;
    snprintf(shown, sizeof shown, "%s/shown", w->dir);
    if (cmd_parse(argc, argv, &a, &e) != OK) fail_msg("%s", e.msg);
    fflush(stdout);
    int kept = dup(1), kept_in = dup(0), in = open("/dev/null", O_RDONLY);
    int fd = open(shown, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && in >= 0 && fd >= 0 && kept_in >= 0);
    dup2(fd, 1);
    dup2(in, 0);
    int code = cmd_support(&a);
    fflush(stdout);
    dup2(kept, 1);
    dup2(kept_in, 0);
    close(kept), close(in), close(fd), close(kept_in);
    if (file_read(shown, out, FILE_MAX, &e) != OK) fail_msg("%s", e.msg);
    return code;
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

static bool has_word(const char *text, const char *word) {
    size_t n = strlen(word);
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += n) {
        if ((at == text || !is_letter(at[-1])) && !is_letter(at[n])) return true;
    }
    return false;
}

static void assert_clean(const char *text) {
    char host[256] = "";
    for (size_t i = 0; i < sizeof PLANTED / sizeof PLANTED[0]; i++) {
        const char *at = strstr(text, PLANTED[i]);
        if (at != NULL) fail_msg("%s is in the bundle: ...%.60s", PLANTED[i], at);
    }
    (void)gethostname(host, sizeof host - 1);
    if (has_word(text, host)) fail_msg("the host's name %s is in the bundle", host);
}

static void assert_has(const char *text, const char *part) {
    if (strstr(text, part) == NULL) fail_msg("the bundle has no %s", part);
}

static void secrets_stay_and_facts_go(void **state) {
    (void)state;
    world w;
    buf shown = BUF_MAX(FILE_MAX), text = BUF_MAX(FILE_MAX);
    struct stat st;
    err e = ERR_INIT;
    world_open(&w);
    assert_int_equal(support(&w, "--yes", NULL, &shown), EXIT_OK);
    assert_int_equal(shown.len, 0); /* with --yes it is not shown */
    if (file_read(w.file, &text, FILE_MAX, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(stat(w.file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    const char *all = buf_cstr(&text);
    assert_clean(all);
    static const char *const facts[] = {"==== versions ====", "CONTEXT=8192  (file)",
        "WORKER_SSH=owner@worker:2222", "\"state\":\"ready\"",
        "==== checks of this machine ====", "started build=abc123",
        "token <secret> refused from <address>", "Authorization: Bearer <secret>",
        "{\"password\":\"<secret>\",\"port\":22}", "HF_TOKEN=<secret>",
        "worker [<address>]:29620 aa:bb:cc:xx:xx:xx", "\"content\":\"<text>\"",
        "the exchange ended, rank=1 at 192.168.100.11"};
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        assert_has(all, facts[i]);
    if (getuid() == 0) assert_has(all, "model in ~/models/x");
    if (strstr(all, "  (built-in)") != NULL) fail_msg("a built-in setting is in the bundle");
    world_close(&w);
    buf_release(&shown);
    buf_release(&text);
}

static void nothing_is_written_without_a_yes(void **state) {
    (void)state;
    world w;
    buf shown = BUF_MAX(FILE_MAX);
    world_open(&w);
    assert_int_equal(support(&w, NULL, NULL, &shown), EXIT_ENDED_BY_USER);
    assert_has(buf_cstr(&shown), "==== versions ====");
    assert_clean(buf_cstr(&shown));
    assert_false(file_exists(w.file));
    buf_reset(&shown);
    assert_int_equal(support(&w, "--print", NULL, &shown), EXIT_OK);
    assert_clean(buf_cstr(&shown));
    assert_false(file_exists(w.file));
    world_close(&w);
    buf_release(&shown);
}

static void counts_are_told(void **state) {
    (void)state;
    world w;
    buf shown = BUF_MAX(FILE_MAX);
    json *v = NULL;
    int64_t n = 0;
    world_open(&w);
    assert_int_equal(support(&w, "--yes", "--json", &shown), EXIT_OK);
    assert_int_equal(json_parse(buf_cstr(&shown), shown.len, NULL, &v, NULL), OK);
    assert_string_equal(json_str(json_get(v, "file")), w.file);
    assert_int_equal(json_i64(json_get(v, "secrets"), &n), OK);
    assert_true(n >= 5);
    assert_int_equal(json_i64(json_get(v, "addresses"), &n), OK);
    assert_true(n >= 3);
    assert_int_equal(json_i64(json_get(v, "names"), &n), OK);
    assert_true(n >= 3);
    assert_int_equal(json_i64(json_get(v, "texts"), &n), OK);
    assert_true(n >= 2);
    json_free(v);
    world_close(&w);
    buf_release(&shown);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(secrets_stay_and_facts_go),
        cmocka_unit_test(nothing_is_written_without_a_yes), cmocka_unit_test(counts_are_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
