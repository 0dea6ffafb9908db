/* The steps of the set-up without a machine: plan ids, the undo journal and taking back, the journal of
 * the steps through crashes, answers, explanations. The way between two machines is tests/e2e. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/known_hosts.h"
#include "setup/plan.h"
#include "setup/step.h"
#include "setup/undo.h"

static char dir[64];

static const char *path_of(const char *name) {
    static char path[4][300];
    static int i;
    i = (i + 1) % 4;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

static void put(const char *name, const char *text) {
    err e = ERR_INIT;
    if (file_write_atomic(path_of(name), text, strlen(text), 0600, &e) != OK) fail_msg("%s", e.msg);
}

static void expect_file(const char *name, const char *text) {
    buf got = BUF_INIT;
    int rc = file_read(path_of(name), &got, 1 << 20, NULL);
    if (text == NULL) {
        assert_int_equal(rc, ERR_NOT_FOUND);
    } else {
        assert_int_equal(rc, OK);
        assert_string_equal(buf_cstr(&got), text);
    }
    buf_release(&got);
}

static int begin(void **state) {
    (void)state;
    str_copy(dir, sizeof dir, "/tmp/tandem-steps.XXXXXX");
    if (mkdtemp(dir) == NULL) return -1;
    setenv("HOME", dir, 1);
    setenv("XDG_CONFIG_HOME", path_of("config"), 1);
    setenv("XDG_STATE_HOME", path_of("state"), 1);
    setenv("XDG_RUNTIME_DIR", path_of("run"), 1);
    unsetenv("TANDEM_WORKER_SSH");
    setenv("TANDEM_ALLOW_ROOT", "1", 1);
    return 0;
}

static int end(void **state) {
    (void)state;
    return dir_remove_all(dir, NULL) == OK ? 0 : -1;
}

/* --- plan --- */

static plan_action action(const char *what, const char *command) {
    return (plan_action){.step = (char *)"cable",
        .node = (char *)"worker",
        .what = (char *)what,
        .command = (char *)command,
        .undo = (char *)""};
}

static void a_plan_id_changes_with_every_word(void **state) {
    (void)state;
    setup_plan a, b;
    char ids[4][PLAN_ID_BYTES];
    plan_action x = action("write", "netplan apply"), y = action("write", "netplan apply 2");
    plan_init(&a);
    plan_init(&b);
    plan_id(&a, ids[0]);
    plan_add(&a, &x);
    plan_id(&a, ids[1]);
    plan_add(&b, &x);
    plan_id(&b, ids[2]);
    assert_string_not_equal(ids[0], ids[1]);
    assert_string_equal(ids[1], ids[2]);
    plan_add(&b, &y);
    plan_id(&b, ids[2]);
    plan_add(&a, &x);
    plan_id(&a, ids[3]);
    assert_string_not_equal(ids[2], ids[3]);
    assert_true(plan_holds(&b, &y));
    assert_false(plan_holds(&a, &y));
    y.is_root = true;
    assert_false(plan_holds(&b, &y));
    /* What could not be shown does not count as shown. */
    y.is_root = false;
    y.command = (char *)"later";
    y.is_later = true;
    plan_add(&a, &y);
    assert_false(plan_holds(&a, &y));
    plan_release(&a);
    plan_release(&b);
}

/* --- undo --- */

static undo_with with_head(node_access *head) {
    return (undo_with){.journal = path_of("undo.jsonl"), .node = {head, NULL}};
}

static undo_entry entry(undo_kind kind, const char *path, const char *text) {
    return (undo_entry){.kind = kind,
        .step = (char *)"test",
        .what = (char *)"a change",
        .path = (char *)path,
        .text = (char *)text};
}

static int undo_all(node_access *head, buf *said, err *e) {
    undo_list l;
    undo_with w = with_head(head);
    int rc = undo_load(&l, w.journal, e);
    for (size_t i = l.n; rc == OK && i-- > 0;) {
        if (!l.entries[i].is_undone) rc = undo_apply(&l.entries[i], &w, said, e);
    }
    undo_list_release(&l);
    return rc;
}

static void changes_are_taken_back_once(void **state) {
    (void)state;
    node_access *head = node_access_local("head", NULL);
    buf said = BUF_INIT;
    err e = ERR_INIT;
    char journal[300], file[300], line[300], folder[300];
    str_copy(journal, sizeof journal, path_of("undo.jsonl"));
    str_copy(file, sizeof file, path_of("file"));
    str_copy(line, sizeof line, path_of("line"));
    str_copy(folder, sizeof folder, path_of("folder"));
    put("line", "first\n");
    undo_entry a = entry(UNDO_FILE, file, ""), b = entry(UNDO_LINE, line, "KEY-BLOB");
    undo_entry c = entry(UNDO_FOLDER, folder, "");
    undo_digest("ours\n", 5, a.digest);
    b.before = (char *)"there";
    assert_int_equal(undo_add(journal, &a, &e), OK);
    assert_int_equal(undo_add(journal, &b, &e), OK);
    assert_int_equal(undo_add(journal, &c, &e), OK);
    /* The same again is no second change. */
    assert_int_equal(undo_add(journal, &b, &e), OK);
    put("file", "ours\n");
    put("line", "first\nssh-ed25519 KEY-BLOB me\nlast\n");
    assert_int_equal(mkdir(folder, 0755), 0);
    put("folder/.tandem-owner", "tandem\n");
    if (undo_all(head, &said, &e) != OK) fail_msg("%s", e.msg);
    expect_file("file", NULL);
    expect_file("line", "first\nlast\n");
    assert_false(dir_exists(folder));
    undo_list l;
    assert_int_equal(undo_load(&l, journal, &e), OK);
    assert_int_equal(l.n, 3);
    for (size_t i = 0; i < l.n; i++)
        assert_true(l.entries[i].is_undone);
    undo_list_release(&l);
    buf_release(&said);
    node_access_close(head);
}

static void what_others_changed_since_is_left(void **state) {
    (void)state;
    node_access *head = node_access_local("head", NULL);
    buf said = BUF_INIT;
    err e = ERR_INIT;
    char file[300], folder[300];
    str_copy(file, sizeof file, path_of("file"));
    str_copy(folder, sizeof folder, path_of("folder"));
    undo_entry a = entry(UNDO_FILE, file, ""), c = entry(UNDO_FOLDER, folder, "");
    undo_digest("ours\n", 5, a.digest);
    undo_with w = with_head(head);
    put("file", "theirs\n");
    assert_int_equal(undo_apply(&a, &w, &said, &e), ERR_EXISTS);
    expect_file("file", "theirs\n");
    assert_int_equal(mkdir(folder, 0755), 0);
    put("folder/model", "bytes");
    assert_int_equal(undo_apply(&c, &w, &said, &e), ERR_EXISTS);
    assert_non_null(strstr(e.msg, "--data"));
    expect_file("folder/model", "bytes");
    /* Data goes only below our marker. */
    undo_entry d = entry(UNDO_DATA, folder, "");
    assert_int_equal(undo_apply(&d, &w, &said, &e), ERR_EXISTS);
    w.is_forced = true;
    assert_int_equal(undo_apply(&a, &w, &said, &e), OK);
    expect_file("file", NULL);
    /* A machine that is not there keeps its change. */
    a.is_worker = true;
    assert_int_equal(undo_apply(&a, &w, &said, &e), ERR_NET);
    buf_release(&said);
    node_access_close(head);
}

static void a_hashed_host_line_is_found_again(void **state) {
    (void)state;
    node_access *head = node_access_local("head", NULL);
    buf said = BUF_INIT;
    err e = ERR_INIT;
    char known[300], text[300];
    static const char key[] =
        "AAAAC3NzaC1lZDI1NTE5AAAAIO1KdJmQYy1NqCZ2m8n8yq1Wl3yQyq2m7mB0hPq0oY8x";
    str_copy(known, sizeof known, path_of("known_hosts"));
    const known_query q = {"10.0.0.2", 22, "ssh-ed25519", key};
    put("known_hosts", "# a comment\n");
    if (known_hosts_add(known, &q, &e) != OK) fail_msg("%s", e.msg);
    snprintf(text, sizeof text, "10.0.0.2 22 ssh-ed25519 %s", key);
    undo_entry x = entry(UNDO_KNOWN_HOST, known, text);
    x.before = (char *)"there";
    undo_with w = with_head(head);
    if (undo_apply(&x, &w, &said, &e) != OK) fail_msg("%s", e.msg);
    expect_file("known_hosts", "# a comment\n");
    buf_release(&said);
    node_access_close(head);
}

static void a_cut_journal_line_counts_for_nothing(void **state) {
    (void)state;
    undo_list l;
    err e = ERR_INIT;
    put("undo.jsonl",
        "{\"v\":1,\"id\":1,\"kind\":\"file\",\"node\":\"head\",\"path\":\"/a\"}\n{\"v\":1,\"id\":2,"
        "\"kind\":\"fi");
    assert_int_equal(undo_load(&l, path_of("undo.jsonl"), &e), OK);
    assert_int_equal(l.n, 1);
    undo_list_release(&l);
    undo_entry x = entry(UNDO_FILE, "/b", "");
    assert_int_equal(undo_add(path_of("undo.jsonl"), &x, &e), OK);
    assert_int_equal(undo_load(&l, path_of("undo.jsonl"), &e), OK);
    assert_int_equal(l.n, 2);
    assert_string_equal(l.entries[1].path, "/b");
    undo_list_release(&l);
}

/* --- steps --- */

static flow *open_flow(void) {
    static const flow_options o = {.program = "/bin/false"};
    flow *f = NULL;
    err e = ERR_INIT;
    if (flow_new(&o, &f, &e) != OK) fail_msg("%s", e.msg);
    return f;
}

static void steps_wait_for_what_they_stand_on(void **state) {
    (void)state;
    step_view v;
    err e = ERR_INIT;
    flow *f = open_flow();
    step_view_init(&v);
    assert_true(flow_is_new(f));
    assert_int_equal(flow_first_open(f), STEP_WELCOME);
    assert_int_equal(flow_state(f, STEP_FIND), STEP_IS_OPEN);
    assert_int_equal(flow_state(f, STEP_TRUST), STEP_IS_WAITING);
    assert_non_null(strstr(flow_state_reason(f, STEP_START), "Prepare"));
    assert_int_equal(flow_inspect(f, STEP_START, &v, &e), ERR_BUSY);
    assert_string_not_equal(v.message.next, "");
    assert_int_equal(flow_inspect(f, STEP_WELCOME, &v, &e), OK);
    assert_int_equal(flow_state(f, STEP_WELCOME), STEP_IS_OK);
    step_view_release(&v);
    /* A second set-up is refused and names the first one. */
    flow *other = NULL;
    const flow_options o = {.program = "/bin/false"};
    char pid[32];
    snprintf(pid, sizeof pid, "process %d", (int)getpid());
    assert_int_equal(flow_new(&o, &other, &e), ERR_BUSY);
    assert_non_null(strstr(e.msg, pid));
    flow_free(f);
    /* What was proven is proven after a restart. */
    f = open_flow();
    assert_false(flow_is_new(f));
    assert_int_equal(flow_first_open(f), STEP_FIND);
    flow_free(f);
}

static void a_journal_is_read_to_its_last_whole_line(void **state) {
    (void)state;
    flow *f = open_flow();
    flow_free(f);
    put("state/tandem/setup/journal.jsonl",
        "{\"v\":1,\"step\":\"welcome\",\"result\":\"proven\",\"inputs\":{}}\n"
        "{\"v\":1,\"step\":\"find\",\"result\":\"proven\",\"inputs\":{\"WORKER_SSH\":\"other\"}}\n"
        "{\"v\":1,\"step\":\"trust\",\"result\":\"failed\",\"inputs\":{}}\n"
        "not json at all\n"
        "{\"v\":1,\"step\":\"machines\",\"resu");
    f = open_flow();
    assert_int_equal(flow_state(f, STEP_WELCOME), STEP_IS_OK);
    assert_int_equal(flow_state(f, STEP_FIND), STEP_IS_STALE);
    assert_non_null(strstr(flow_state_reason(f, STEP_FIND), "WORKER_SSH"));
    assert_int_equal(flow_state(f, STEP_TRUST), STEP_IS_WAITING); /* on Find, which is stale */
    assert_int_equal(flow_first_open(f), STEP_FIND);
    flow_free(f);
}

static void answers_are_checked_and_kept(void **state) {
    (void)state;
    flow *f = open_flow();
    err e = ERR_INIT;
    assert_int_equal(flow_answer_set(f, "WORKER_SSH", "me@spark-b", &e), OK);
    assert_int_not_equal(flow_answer_set(f, "API_PORT", "99999", &e), OK);
    assert_int_equal(flow_answer_set(f, "WORKER_SHH", "x", &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "WORKER_SSH"));
    assert_int_not_equal(flow_answer_set(f, "INSTALL_UNITS", "maybe", &e), OK);
    flow_free(f);
    f = open_flow();
    assert_string_equal(flow_answer(f, "WORKER_SSH"), "me@spark-b");
    put("answers", "# mine\nPROFILE=0909-mia-2.9bpw\nACCEPT_WARNINGS=yes\r\n");
    if (flow_answers_load(f, path_of("answers"), &e) != OK) fail_msg("%s", e.msg);
    assert_string_equal(flow_answer(f, "PROFILE"), "0909-mia-2.9bpw");
    assert_string_equal(flow_answer(f, "ACCEPT_WARNINGS"), "yes");
    put("answers", "PROFILE\n");
    assert_int_equal(flow_answers_load(f, path_of("answers"), &e), ERR_FORMAT);
    flow_free(f);
    /* Only an answer: the settings file is written by a step, and undone. */
    assert_false(file_exists(path_of("config/tandem/tandem.conf")));
}

/* The plan can be made again and has the same id; it changes with an answer. */
static void the_whole_plan_has_a_stable_id(void **state) {
    (void)state;
    char ids[3][PLAN_ID_BYTES];
    err e = ERR_INIT;
    for (int i = 0; i < 3; i++) {
        setup_plan p;
        flow *f = open_flow();
        plan_init(&p);
        if (i == 2) assert_int_equal(flow_answer_set(f, "WORKER_SSH", "me@127.0.0.1:1", &e), OK);
        assert_int_equal(flow_plan_all(f, &p, &e), OK);
        plan_id(&p, ids[i]);
        plan_release(&p);
        flow_free(f);
    }
    assert_string_equal(ids[0], ids[1]);
    assert_string_not_equal(ids[1], ids[2]);
}

static void every_error_is_explained_in_three_sentences(void **state) {
    (void)state;
    static const int codes[] = {ERR_ARG, ERR_IO, ERR_FULL, ERR_NET, ERR_TIMEOUT, ERR_AUTH, ERR_BUSY,
        ERR_MISMATCH, ERR_CANCELLED, ERR_NOT_FOUND};
    for (int i = 0; i < STEP_COUNT; i++) {
        for (size_t k = 0; k < sizeof codes / sizeof codes[0]; k++) {
            for (int fault = 0; fault <= REMOTE_JUMP; fault++) {
                step_message m = {0};
                err e = ERR_INIT;
                err_set(&e, codes[k], "something happened");
                step_explain(i, &e, (remote_fault)fault, &m);
                assert_string_equal(m.what, "something happened");
                assert_string_not_equal(m.why, "");
                assert_string_not_equal(m.next, "");
            }
        }
    }
}

static void a_pause_and_the_root_user_have_their_own_words(void **state) {
    (void)state;
    step_message m = {0};
    err e = ERR_INIT;
    err_set(&e, ERR_TIMEOUT, "stopped on request; what arrived is kept");
    step_explain(STEP_DOWNLOAD, &e, REMOTE_FINE, &m);
    assert_non_null(strstr(m.why, "paused"));
    err_set(&e, ERR_CANCELLED, "the download goes on in the background");
    step_explain(STEP_DOWNLOAD, &e, REMOTE_FINE, &m);
    assert_non_null(strstr(m.why, "Nothing is lost"));
    err_set(&e, ERR_AUTH, "set-up does not run as root; start it as your own user");
    step_explain(STEP_WELCOME, &e, REMOTE_FINE, &m);
    assert_non_null(strstr(m.next, "your own user"));
}

int main(void) {
#define WITH(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        WITH(a_plan_id_changes_with_every_word),
        WITH(changes_are_taken_back_once),
        WITH(what_others_changed_since_is_left),
        WITH(a_hashed_host_line_is_found_again),
        WITH(a_cut_journal_line_counts_for_nothing),
        WITH(steps_wait_for_what_they_stand_on),
        WITH(a_journal_is_read_to_its_last_whole_line),
        WITH(answers_are_checked_and_kept),
        WITH(the_whole_plan_has_a_stable_id),
        WITH(every_error_is_explained_in_three_sentences),
        WITH(a_pause_and_the_root_user_have_their_own_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
