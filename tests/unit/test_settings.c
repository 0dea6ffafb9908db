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
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "setup/settings.h"

static int load(settings *s, const char *text, err *e) {
    return settings_load_text(s, text, strlen(text), "tandem.conf", e);
}

static void reads_plain_lines(void **state) {
    (void)state;
    settings *s = settings_new();
    err e = ERR_INIT;
    assert_int_equal(
        load(s,
            "# Tandem\r\n\n  CONTEXT = 4096  # tokens\nTHINKING=yes\nMODEL_DIR=\"/data/my "
            "model#1\"\nWORKER_SSH='spark@10.0.0.2:2222'\nHF_TOKEN_FILE=~/token",
            &e),
        OK);
    assert_int_equal(settings_int(s, "CONTEXT"), 4096);
    assert_true(settings_is_on(s, "THINKING"));
    assert_string_equal(settings_get(s, "THINKING"), "on");
    assert_string_equal(settings_get(s, "MODEL_DIR"), "/data/my model#1");
    assert_string_equal(settings_get(s, "WORKER_SSH"), "spark@10.0.0.2:2222");
    assert_true(settings_get(s, "HF_TOKEN_FILE")[0] == '/');
    assert_int_equal(settings_origin(s, "CONTEXT"), SETTING_FILE);
    assert_string_equal(settings_place(s, "CONTEXT"), "tandem.conf:3");
    assert_int_equal(settings_origin(s, "PARALLEL"), SETTING_BUILTIN);
    assert_int_equal(settings_int(s, "PARALLEL"), 4);
    assert_false(settings_is_set(s, "PROFILE"));
    settings_free(s);
}

static void refuses_bad_lines_with_their_place(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"CONTEXT=4096\nCONTXT=1\n", "line 2: there is no setting CONTXT; did you mean CONTEXT?"},
        {"XYZZY=1", "line 1: there is no setting XYZZY"},
        {"CONTEXT=1\nCONTEXT=2", "CONTEXT is \"1\"; it must be a whole number from 256"},
        {"CONTEXT=4096\nCONTEXT=4096", "line 2: CONTEXT stands here a second time"},
        {"CONTEXT=4096x", "whole number"},
        {"CONTEXT=1e5", "whole number"},
        {"TEMPERATURE=3", "a number from 0 to 2"},
        {"TEMPERATURE=nan", "a number from 0 to 2"},
        {"export CONTEXT=4096", "shell syntax"},
        {"MODEL_DIR=$HOME/x", "not run by a shell"},
        {"MODEL_DIR=`id`", "not run by a shell"},
        {"MODEL_DIR=\"/x", "a quote is not closed"},
        {"MODEL_DIR=\"/x\" y", "after the closing quote"},
        {"MODEL_DIR=/a\"b", "a quote stands inside"},
        {"MODEL_DIR=relative", "an absolute path"},
        {"MODEL_DIR=/a/../b", "\"..\""},
        {"MODEL_DIR=/a/..", "\"..\""},
        {"MODEL_DIR=/a:b", "without ':'"},
        {"HEAD_DATA=/data/my models", "without blanks"},
        {"WORKER_DATA=\"/my data\"", "without blanks"},
        {"HEAD_IP_A=10.0.0.300", "an IP address"},
        {"HF_ENDPOINT=http://example.com", "https"},
        {"HEAD_IF_A=eth0;id", "letters, digits"},
        {"WORKER_SSH=-oProxyCommand=x", "user@host"},
        {"WORKER_SSH=a@b:99999", "user@host"},
        {"WORKER_SSH=me@10.0.0.256", "user@host"},
        {"WORKER_SSH=me@10.0.0", "user@host"},
        {"WORKER_SSH=me@spark..b", "user@host"},
        {"WORKER_SSH=me@spark-", "user@host"},
        {"WORKER_SSH=me@spark b", "user@host"},
        {"WORKER_SSH=me@[fe80:1", "user@host"},
        {"WORKER_SSH=me@[fe80::x]:22", "user@host"},
        {"SYNC_MODE=ftp", "one of: stream rsync none"},
        {"SYNC_MODE=rsync none", "one of"},
        {"API=maybe", "on or off"},
        {"no pair here", "no KEY=VALUE line"},
        {"context=4096", "keys are capitals"},
        {"LOG_DIR=/x\x01", "one line of text"},
        {"LOG_DIR=/\xff", "UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        settings *s = settings_new();
        err e = ERR_INIT;
        int rc = load(s, cases[i].text, &e);
        if (rc != ERR_FORMAT || strstr(e.msg, cases[i].part) == NULL) {
            fail_msg("%s: code %d, message: %s", cases[i].text, rc, e.msg);
        }
        /* Nothing of a bad file is taken. */
        assert_int_equal(settings_origin(s, "CONTEXT"), SETTING_BUILTIN);
        settings_free(s);
    }
}

static void allows_what_looks_close_to_bad(void **state) {
    (void)state;
    settings *s = settings_new();
    err e = ERR_INIT;
    assert_int_equal(load(s,
                         "MODEL_DIR=/a/b..c/..d\nHF_ENDPOINT=http://127.0.0.1:8000\nTEMPERATURE=0\n"
                         "HEAD_IP_A=fd00::1\nPROFILE=\nLOG_DIR=/x#y\n",
                         &e),
        OK);
    assert_string_equal(settings_get(s, "MODEL_DIR"), "/a/b..c/..d");
    assert_string_equal(settings_get(s, "LOG_DIR"), "/x#y");
    assert_false(settings_is_set(s, "PROFILE"));
    settings_free(s);
}

static void the_endpoint_and_the_pair_need_ports_of_their_own(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int want;
    } cases[] = {{"", OK}, {"MASTER_PORT=8888\n", ERR_ARG}, {"MASTER_PORT=8887\n", ERR_ARG},
        {"MASTER_PORT=8889\n", OK}, {"API_PORT=29621\n", ERR_ARG}, {"API_PORT=29622\n", OK}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        settings *s = settings_new();
        err e = ERR_INIT;
        assert_int_equal(load(s, cases[i].text, &e), OK);
        assert_int_equal(settings_check_ports(s, &e), cases[i].want);
        settings_free(s);
    }
}

static void every_builtin_value_passes_its_own_check(void **state) {
    (void)state;
    size_t n = 0;
    const setting_key *keys = settings_keys(&n);
    assert_true(n > 40);
    for (size_t i = 0; i < n; i++) {
        err e = ERR_INIT;
        if (settings_check(&keys[i], keys[i].builtin, &e) != OK) fail_msg("%s", e.msg);
        assert_ptr_equal(settings_key(keys[i].name), &keys[i]);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(keys[i].name, keys[j].name);
    }
}

static void later_sources_win(void **state) {
    (void)state;
    settings *s = settings_new();
    err e = ERR_INIT;
    assert_int_equal(load(s, "CONTEXT=4096\nPARALLEL=2\n", &e), OK);
    setenv("TANDEM_CONTEXT", "8192", 1);
    setenv("TANDEM_OF_ANOTHER_PROGRAM", "x", 1);
    assert_int_equal(settings_load_environment(s, &e), OK);
    assert_int_equal(settings_int(s, "CONTEXT"), 8192);
    assert_int_equal(settings_origin(s, "CONTEXT"), SETTING_ENVIRONMENT);
    assert_string_equal(settings_place(s, "CONTEXT"), "TANDEM_CONTEXT");
    assert_int_equal(settings_set(s, "context", "16384", SETTING_COMMAND_LINE, &e), OK);
    assert_int_equal(settings_int(s, "CONTEXT"), 16384);
    assert_int_equal(settings_int(s, "PARALLEL"), 2);
    setenv("TANDEM_CONTEXT", "lots", 1);
    assert_int_not_equal(settings_load_environment(s, &e), OK);
    assert_non_null(strstr(e.msg, "TANDEM_CONTEXT"));
    unsetenv("TANDEM_CONTEXT");
    settings_free(s);
}

static char *temp_dir(void) {
    char *dir = mem_strdup("/tmp/tandem-settings-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void assert_file(const char *path, const char *expected) {
    buf text = BUF_INIT;
    struct stat st;
    assert_int_equal(file_read(path, &text, 65536, NULL), OK);
    assert_string_equal(buf_cstr(&text), expected);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    buf_release(&text);
}

static void rewrites_one_line_and_keeps_the_rest(void **state) {
    (void)state;
    char *dir = temp_dir();
    buf path = BUF_INIT;
    err e = ERR_INIT;
    path_join(&path, dir, "new/tandem.conf");
    const char *p = buf_cstr(&path);
    assert_int_equal(settings_file_set(p, "context", "4096", &e), OK);
    assert_file(p, "CONTEXT=4096\n");
    const char *text = "# mine\n\n  CONTEXT = 4096 # old\nCONTEXTX_NOT=1\n";
    assert_int_equal(file_write_atomic(p, text, strlen(text), 0600, &e), OK);
    assert_int_equal(settings_file_set(p, "PARALLEL", "2", &e), ERR_FORMAT);
    assert_file(p, text);
    text = "# mine\n\n  CONTEXT = 4096 # old\nPARALLEL=3";
    assert_int_equal(file_write_atomic(p, text, strlen(text), 0600, &e), OK);
    assert_int_equal(settings_file_set(p, "CONTEXT", "512", &e), OK);
    assert_file(p, "# mine\n\nCONTEXT=512\nPARALLEL=3\n");
    assert_int_equal(settings_file_set(p, "LOG_DIR", "/a b#c", &e), OK);
    assert_file(p, "# mine\n\nCONTEXT=512\nPARALLEL=3\nLOG_DIR=\"/a b#c\"\n");
    assert_int_equal(settings_file_set(p, "CONTEXT", NULL, &e), OK);
    assert_file(p, "# mine\n\nPARALLEL=3\nLOG_DIR=\"/a b#c\"\n");
    assert_int_equal(settings_file_set(p, "CONTEXT", "1", &e), ERR_ARG);
    assert_file(p, "# mine\n\nPARALLEL=3\nLOG_DIR=\"/a b#c\"\n");
    settings *s = settings_new();
    assert_int_equal(settings_load_file(s, p, &e), OK);
    assert_string_equal(settings_get(s, "LOG_DIR"), "/a b#c");
    assert_int_equal(chmod(p, 0666), 0);
    assert_int_equal(settings_load_file(s, p, &e), ERR_AUTH);
    settings_free(s);
    dir_remove_all(dir, NULL);
    buf_release(&path);
    mem_free(dir);
}

static void both_nodes_get_the_same_digest(void **state) {
    (void)state;
    settings *a = settings_new(), *b = settings_new();
    char x[65], y[65];
    err e = ERR_INIT;
    assert_int_equal(load(a, "CONTEXT=4096\nHEAD_DATA=/data\n", &e), OK);
    assert_int_equal(load(b, "WORKER_DATA=/other\nCONTEXT=4096\n", &e), OK);
    settings_digest(a, x);
    settings_digest(b, y);
    assert_string_equal(x, y);
    assert_int_equal(settings_set(b, "PARALLEL", "5", SETTING_COMMAND_LINE, &e), OK);
    settings_digest(b, y);
    assert_string_not_equal(x, y);
    buf all = BUF_INIT;
    settings_frozen(a, false, &all);
    assert_non_null(strstr(buf_cstr(&all), "HEAD_DATA=/data\n"));
    buf_release(&all);
    settings_free(a);
    settings_free(b);
}

static void paths_follow_the_environment(void **state) {
    (void)state;
    buf out = BUF_INIT;
    err e = ERR_INIT;
    setenv("XDG_CONFIG_HOME", "/c", 1);
    setenv("XDG_STATE_HOME", "relative/is/ignored", 1);
    setenv("HOME", "/home/u", 1);
    setenv("XDG_RUNTIME_DIR", "/r", 1);
    assert_int_equal(paths_settings_file(&out, &e), OK);
    assert_string_equal(buf_cstr(&out), "/c/tandem/tandem.conf");
    buf_reset(&out);
    assert_int_equal(paths_engine_log(&out, &e), OK);
    assert_string_equal(buf_cstr(&out), "/home/u/.local/state/tandem/logs/engine.log");
    buf_reset(&out);
    assert_int_equal(paths_socket(&out, &e), OK);
    assert_string_equal(buf_cstr(&out), "/r/tandem/engine.sock");
    buf_reset(&out);
    setenv("TANDEM_SOCKET", "x.sock", 1);
    assert_int_equal(paths_socket(&out, &e), ERR_ARG);
    unsetenv("TANDEM_SOCKET");
    buf_release(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_plain_lines),
        cmocka_unit_test(refuses_bad_lines_with_their_place),
        cmocka_unit_test(allows_what_looks_close_to_bad),
        cmocka_unit_test(the_endpoint_and_the_pair_need_ports_of_their_own),
        cmocka_unit_test(every_builtin_value_passes_its_own_check),
        cmocka_unit_test(later_sources_win),
        cmocka_unit_test(rewrites_one_line_and_keeps_the_rest),
        cmocka_unit_test(both_nodes_get_the_same_digest),
        cmocka_unit_test(paths_follow_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
