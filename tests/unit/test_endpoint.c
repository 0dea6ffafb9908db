/* The endpoint as the settings may have it, its keys, and what may run as root; the wipe of the cache's
 * files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/api/keys.h"
#include "engine/base/file.h"
#include "engine/base/privilege.h"
#include "engine/base/str.h"
#include "setup/cache_wipe.h"
#include "setup/endpoint.h"
#include "setup/engine_args.h"

static char dir[64];

static const char *path_of(const char *name) {
    static char path[4][200];
    static int i;
    i = (i + 1) % 4;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

static int begin(void **state) {
    (void)state;
    str_copy(dir, sizeof dir, "/tmp/tandem-endpoint.XXXXXX");
    if (mkdtemp(dir) == NULL) return -1;
    setenv("XDG_CONFIG_HOME", dir, 1);
    setenv("TANDEM_ALLOW_ROOT", "1", 1);
    return 0;
}

static int end(void **state) {
    (void)state;
    return dir_remove_all(dir, NULL);
}

/* --- settings --- */

static settings *made(const char *text) {
    settings *s = settings_new();
    err e = ERR_INIT;
    if (settings_load_text(s, text, strlen(text), "test", &e) != OK) fail_msg("%s", e.msg);
    return s;
}

static void expect_verdict(const char *text, int code, const char *holds) {
    settings *s = made(text);
    err e = ERR_INIT;
    int rc = endpoint_check_settings(s, &e);
    if (rc != code || (holds != NULL && strstr(e.msg, holds) == NULL))
        fail_msg("\"%s\": expected %d \"%s\", got %d \"%s\"", text, code,
            holds != NULL ? holds : "", rc, e.msg);
    settings_free(s);
}

typedef struct seen_options {
    char listen[100], confirmed[100];
} seen_options;

static void take_option(void *ctx, const char *option, const char *value) {
    seen_options *o = ctx;
    if (str_eq(option, "--listen")) str_copy(o->listen, sizeof o->listen, value);
    if (str_eq(option, "--confirm-remote")) str_copy(o->confirmed, sizeof o->confirmed, value);
}

static void expect_options(const char *text, const char *listen, const char *confirmed) {
    settings *s = made(text);
    seen_options o = {0};
    const engine_args_sink sink = {take_option, &o};
    engine_args_put_endpoint(s, &sink);
    assert_string_equal(o.listen, listen);
    assert_string_equal(o.confirmed, confirmed);
    settings_free(s);
}

static void settings_do_not_confirm_themselves(void **state) {
    (void)state;
    const key_limits none = {0};
    expect_verdict("API=off\nAPI_BIND=192.0.2.5\n", OK, NULL);
    expect_verdict("API=on\n", OK, NULL);
    expect_verdict("API=on\nAPI_BIND=127.0.0.9\n", OK, NULL);
    expect_verdict("API=on\nAPI_BIND=::1\n", ERR_ARG, "IPv4");
    expect_verdict("API=on\nAPI_BIND=192.0.2.5\nAPI_CONFIRMED=192.0.2.5\n", ERR_AUTH, "no API key");
    assert_int_equal(dir_make_all(path_of("tandem"), 0700, NULL), OK);
    assert_int_equal(
        keys_add(path_of("tandem/api-keys"), "a", "some-key-of-mine-1", &none, NULL), OK);
    expect_verdict("API=on\nAPI_BIND=192.0.2.5\n", ERR_AUTH, "tandem api on --bind 192.0.2.5");
    expect_verdict(
        "API=on\nAPI_BIND=192.0.2.5\nAPI_CONFIRMED=192.0.2.6\n", ERR_AUTH, "not confirmed");
    expect_verdict("API=on\nAPI_BIND=192.0.2.5\nAPI_CONFIRMED=192.0.2.5\n", OK, NULL);
    /* The engine is told what was confirmed, never what is bound. */
    expect_options("API=on\nAPI_BIND=192.0.2.5\n", "192.0.2.5:8888", "");
    expect_options(
        "API=on\nAPI_BIND=192.0.2.5\nAPI_CONFIRMED=192.0.2.6\n", "192.0.2.5:8888", "192.0.2.6");
    expect_options("API=off\nAPI_CONFIRMED=192.0.2.6\n", "", "");
}

static void addresses_are_those_of_this_machine(void **state) {
    (void)state;
    err e = ERR_INIT;
    assert_int_equal(endpoint_check_address("127.0.0.1", &e), OK);
    assert_int_equal(endpoint_check_address("0.0.0.0", &e), OK);
    assert_int_equal(endpoint_check_address("192.0.2.77", &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "no interface of this machine has the address 192.0.2.77"));
    assert_int_equal(endpoint_check_address("localhost", &e), ERR_ARG);
    assert_true(endpoint_is_loopback("127.3.2.1"));
    assert_false(endpoint_is_loopback("128.0.0.1"));
    assert_false(endpoint_is_loopback("0.0.0.0"));
    assert_true(endpoint_is_wide("0.0.0.0"));
    assert_false(endpoint_is_wide("127.0.0.1"));
}

/* --- keys --- */

static void keys_are_32_random_bytes(void **state) {
    (void)state;
    enum { N = 400, PREFIX = sizeof KEY_TEXT_PREFIX - 1, DIGITS = 43 };
    static char made_keys[N][64];
    int n_seen[128] = {0};
    for (int i = 0; i < N; i++) {
        key_make(made_keys[i], sizeof made_keys[i]);
        assert_int_equal(strlen(made_keys[i]), PREFIX + DIGITS);
        assert_memory_equal(made_keys[i], KEY_TEXT_PREFIX, PREFIX);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(made_keys[i], made_keys[k]);
        for (int k = 0; k < DIGITS - 1; k++)
            n_seen[(unsigned char)made_keys[i][PREFIX + k] & 127]++;
    }
    /* 62 digits, all about equally often: 271 expected, 5 deviations are 82. */
    int n_digits = 0;
    for (int c = 0; c < 128; c++) {
        if (n_seen[c] == 0) continue;
        n_digits++;
        assert_in_range(n_seen[c], 271 - 90, 271 + 90);
    }
    assert_int_equal(n_digits, 62);
}

static void labels_are_found(void **state) {
    (void)state;
    const char *file = path_of("keys");
    const key_limits none = {0};
    assert_int_equal(endpoint_count_keys(file), 0);
    assert_false(endpoint_has_key(file, "a"));
    assert_int_equal(keys_add(file, "a", "some-key-of-mine-1", &none, NULL), OK);
    assert_int_equal(keys_add(file, "b", "some-key-of-mine-2", &none, NULL), OK);
    assert_int_equal(endpoint_count_keys(file), 2);
    assert_true(endpoint_has_key(file, "b"));
    assert_false(endpoint_has_key(file, "c"));
    assert_int_equal(chmod(file, 0644), 0); /* others may read it: it opens nothing */
    assert_int_equal(endpoint_count_keys(file), 0);
}

/* --- root --- */

static void root_is_refused_unless_it_is_meant(void **state) {
    (void)state;
    err e = ERR_INIT;
    assert_int_equal(privilege_refuse_root("the pair", &e), OK);
    setenv("TANDEM_ALLOW_ROOT", "yes", 1);
    int expected = geteuid() == 0 ? ERR_AUTH : OK;
    assert_int_equal(privilege_refuse_root("the pair", &e), expected);
    unsetenv("TANDEM_ALLOW_ROOT");
    assert_int_equal(privilege_refuse_root("the pair", &e), expected);
    if (expected != OK) assert_non_null(strstr(e.msg, "the pair does not run as root"));
    setenv("TANDEM_ALLOW_ROOT", "1", 1);
}

/* --- wipe --- */

static void put(const char *name, const char *text) {
    err e = ERR_INIT;
    if (file_write_atomic(path_of(name), text, strlen(text), 0600, &e) != OK) fail_msg("%s", e.msg);
}

static void a_wipe_takes_its_own_files_only(void **state) {
    (void)state;
    cache_wiped w;
    err e = ERR_INIT;
    assert_int_equal(cache_wipe(path_of("nowhere"), &w, &e), OK);
    assert_int_equal(w.n_files, 0);
    assert_int_equal(dir_make_all(path_of("cache/0123456789abcdef"), 0700, &e), OK);
    assert_int_equal(dir_make_all(path_of("cache/fedcba9876543210"), 0700, &e), OK);
    assert_int_equal(dir_make_all(path_of("cache/others"), 0700, &e), OK);
    assert_int_equal(dir_make_all(path_of("elsewhere"), 0700, &e), OK);
    put("cache/0123456789abcdef/segment-0000000001", "four");
    put("cache/0123456789abcdef/manifest-0000000001", "two");
    put("cache/0123456789abcdef/lock", "");
    put("cache/fedcba9876543210/segment-0000000001", "in use");
    put("cache/fedcba9876543210/lock", "");
    put("cache/others/segment-0000000001", "not ours");
    put("elsewhere/segment-0000000001", "not here");
    assert_int_equal(symlink(path_of("elsewhere"), path_of("cache/aaaaaaaaaaaaaaaa")), 0);
    int lock = open(path_of("cache/fedcba9876543210/lock"), O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(cache_wipe(path_of("cache"), &w, &e), OK);
    assert_int_equal(w.n_files, 2);
    assert_int_equal(w.bytes, 7);
    assert_int_equal(w.n_busy, 1);
    assert_false(dir_exists(path_of("cache/0123456789abcdef")));
    assert_true(file_exists(path_of("cache/fedcba9876543210/segment-0000000001")));
    assert_true(file_exists(path_of("cache/others/segment-0000000001")));
    assert_true(file_exists(path_of("elsewhere/segment-0000000001")));
    close(lock);
    assert_int_equal(cache_wipe(path_of("cache"), &w, &e), OK);
    assert_int_equal(w.n_files, 1);
    assert_int_equal(w.n_busy, 0);
    assert_false(dir_exists(path_of("cache/fedcba9876543210")));
    /* The folder itself may be no link either. */
    assert_int_equal(symlink(path_of("elsewhere"), path_of("linked")), 0);
    assert_int_not_equal(cache_wipe(path_of("linked"), &w, &e), OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_do_not_confirm_themselves),
        cmocka_unit_test(addresses_are_those_of_this_machine),
        cmocka_unit_test(keys_are_32_random_bytes),
        cmocka_unit_test(labels_are_found),
        cmocka_unit_test(root_is_refused_unless_it_is_meant),
        cmocka_unit_test(a_wipe_takes_its_own_files_only),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
