#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/session.h"
#include "tui/session_sync.h"

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    str_copy(dir, sizeof dir, "/tmp/tandem-session-XXXXXX");
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    return dir_remove_all(dir, NULL);
}

static void must(int rc, const err *e) {
    if (rc != OK) fail_msg("code %d: %s", rc, e->msg);
}

static session *new_session(void) {
    session *s = NULL;
    err e = ERR_INIT;
    must(session_new(dir, &s, &e), &e);
    return s;
}

static void say(session *s, const char *question, const char *answer) {
    err e = ERR_INIT;
    must(session_add(s, SESSION_USER, question, -1, NULL, &e), &e);
    must(session_reply_begin(s, "{\"temp\":0.5}", NULL, &e), &e);
    must(session_reply_append(s, answer, strlen(answer), false, &e), &e);
    must(session_reply_end(s, SESSION_DONE, "{\"tokens\":3}", NULL, &e), &e);
}

static session *reopen(session *s) {
    char name[SESSION_NAME_BYTES];
    err e = ERR_INIT;
    str_copy(name, sizeof name, session_name(s));
    session_close(s);
    session *again = NULL;
    must(session_open(dir, name, &again, &e), &e);
    return again;
}

static void file_of(const session *s, buf *path) {
    buf_printf(path, "%s/%s.journal", dir, session_name(s));
}

static void keeps_everything_over_a_reopen(void **state) {
    (void)state;
    session *s = new_session();
    err e = ERR_INIT;
    buf path = BUF_INIT;
    file_of(s, &path);
    assert_false(file_exists(buf_cstr(&path)));
    must(session_add(s, SESSION_SYSTEM, "Be brief.", -1, NULL, &e), &e);
    say(s, "What is\na \"tandem\"?", "A bicycle for two \xE2\x82\xAC.");
    must(session_reply_begin(s, NULL, NULL, &e), &e);
    must(session_reply_append(s, "hm", 2, true, &e), &e);
    must(session_reply_append(s, "a\0b", 3, false, &e), &e);
    must(session_reply_tool_calls(s, "[{\"id\":\"c1\"}]", &e), &e);
    must(session_reply_end(s, SESSION_FAILED, NULL, "the engine ended", &e), &e);
    s = reopen(s);
    assert_null(session_note(s));
    assert_int_equal(session_n_turns(s), 4);
    assert_int_equal(session_head(s), 4);
    assert_string_equal(session_title(s), "What is a \"tandem\"?");
    const session_turn *t = session_turn_at(s, 3);
    assert_string_equal(t->text, "A bicycle for two \xE2\x82\xAC.");
    assert_string_equal(t->settings, "{\"temp\":0.5}");
    assert_string_equal(t->stats, "{\"tokens\":3}");
    assert_int_equal(t->state, SESSION_DONE);
    t = session_turn_at(s, 4);
    assert_string_equal(t->think, "hm");
    assert_string_equal(t->text, "a\xEF\xBF\xBD"
                                 "b");
    assert_string_equal(t->tool_calls, "[{\"id\":\"c1\"}]");
    assert_string_equal(t->error, "the engine ended");
    assert_int_equal(t->state, SESSION_FAILED);
    session_close(s);
    buf_release(&path);
}

static void branches_undo_and_fork(void **state) {
    (void)state;
    session *s = new_session();
    err e = ERR_INIT;
    say(s, "one", "1");
    say(s, "two", "2");
    int id = 0, ids[8];
    must(session_add(s, SESSION_USER, "two, other", 2, &id, &e), &e);
    assert_int_equal(id, 5);
    assert_int_equal(session_siblings(s, 3, ids, 8), 2);
    assert_int_equal(ids[1], 5);
    assert_int_equal(session_path(s, ids, 8), 3);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[2], 5);
    assert_int_equal(session_leaf(s, 3), 4);
    assert_int_equal(session_leaf(s, 1), 5);
    must(session_set_head(s, 4, &e), &e);
    assert_int_equal(session_set_head(s, 9, &e), ERR_ARG);
    s = reopen(s);
    assert_int_equal(session_head(s), 4);
    session *f = NULL;
    must(session_fork(s, dir, &f, &e), &e);
    assert_int_equal(session_n_turns(f), 4);
    assert_string_equal(session_turn_at(f, 4)->text, "2");
    assert_string_equal(session_title(f), "one");
    session_close(f);
    session_close(s);
}

static void a_killed_writer_loses_nothing_flushed(void **state) {
    (void)state;
    session *s = new_session();
    err e = ERR_INIT;
    char name[SESSION_NAME_BYTES];
    say(s, "first", "answer");
    str_copy(name, sizeof name, session_name(s));
    session_close(s);
    pid_t child = fork();
    if (child == 0) {
        session *w = NULL;
        if (session_open(dir, name, &w, &e) != OK) _exit(1);
        if (session_add(w, SESSION_USER, "second", -1, NULL, &e) != OK) _exit(1);
        if (session_reply_begin(w, NULL, NULL, &e) != OK) _exit(1);
        session_reply_append(w, "kept \xE2\x82", 7, false, &e);
        if (session_tick(w, INT64_MAX, &e) != OK) _exit(1);
        session_reply_append(w, "\xAC unwritten", 11, false, &e);
        kill(getpid(), SIGKILL);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    must(session_open(dir, name, &s, &e), &e);
    assert_null(session_note(s));
    const session_turn *t = session_turn_at(s, 4);
    assert_non_null(t);
    assert_int_equal(t->state, SESSION_INTERRUPTED);
    assert_string_equal(t->text, "kept ");
    /* It can be gone on with. */
    must(session_reply_reopen(s, 4, &e), &e);
    must(session_reply_append(s, "and more", 8, false, &e), &e);
    must(session_reply_end(s, SESSION_DONE, NULL, NULL, &e), &e);
    s = reopen(s);
    assert_string_equal(session_turn_at(s, 4)->text, "kept and more");
    assert_int_equal(session_turn_at(s, 4)->state, SESSION_DONE);
    session_close(s);
}

/* Cuts all over the file: opening works, and every turn whose record is whole is there. */
static void any_cut_of_the_tail_is_repaired_and_kept_aside(void **state) {
    (void)state;
    session *s = new_session();
    buf path = BUF_INIT, all = BUF_INIT, aside = BUF_INIT;
    err e = ERR_INIT;
    char name[SESSION_NAME_BYTES];
    say(s, "a question", "an answer");
    file_of(s, &path);
    str_copy(name, sizeof name, session_name(s));
    session_close(s);
    must(file_read(buf_cstr(&path), &all, 65536, &e), &e);
    const char *first_line = strchr(all.data, '\n');
    size_t head = (size_t)(first_line - all.data) + 1;
    /* A step that is no divisor of the record lengths meets every kind of place. */
    for (size_t cut = head; cut < all.len; cut += 7) {
        must(file_write_atomic(buf_cstr(&path), all.data, cut, 0600, &e), &e);
        must(session_open(dir, name, &s, &e), &e);
        bool is_whole = all.data[cut - 1] == '\n';
        assert_int_equal(session_note(s) == NULL, is_whole);
        session_close(s);
        uint64_t size = 0;
        must(file_size(buf_cstr(&path), &size, &e), &e);
        assert_true(size <= cut && all.data[size - 1] == '\n');
        must(session_open(dir, name, &s, &e), &e);
        assert_null(session_note(s));
        session_close(s);
    }
    must(session_delete(dir, name, &e), &e);
    session_info *rows = NULL;
    int n = 0;
    must(session_list(dir, &rows, &n, &e), &e);
    for (int i = 0; i < n; i++)
        assert_string_not_equal(rows[i].name, name);
    mem_free(rows);
    buf_release(&path);
    buf_release(&all);
    buf_release(&aside);
}

static void a_flipped_byte_costs_one_record(void **state) {
    (void)state;
    session *s = new_session();
    buf path = BUF_INIT, all = BUF_INIT;
    err e = ERR_INIT;
    char name[SESSION_NAME_BYTES];
    say(s, "one", "1");
    say(s, "two", "2");
    file_of(s, &path);
    str_copy(name, sizeof name, session_name(s));
    session_close(s);
    must(file_read(buf_cstr(&path), &all, 65536, &e), &e);
    char *at = strstr(all.data, "\"text\":\"two\"");
    assert_non_null(at);
    at[9] ^= 1;
    must(file_write_atomic(buf_cstr(&path), all.data, all.len, 0600, &e), &e);
    must(session_open(dir, name, &s, &e), &e);
    assert_non_null(session_note(s));
    assert_int_equal(session_n_turns(s), 4);
    assert_string_equal(session_turn_at(s, 2)->text, "1");
    assert_int_equal(session_turn_at(s, 3)->role, SESSION_USER);
    assert_non_null(strstr(session_turn_at(s, 3)->text, "damaged"));
    assert_string_equal(session_turn_at(s, 4)->text, "2");
    session_close(s);
    session_info *rows = NULL;
    int n = 0;
    must(session_list(dir, &rows, &n, &e), &e);
    for (int i = 0; i < n; i++) {
        if (str_eq(rows[i].name, name)) assert_true(rows[i].is_damaged);
    }
    mem_free(rows);
    buf_release(&path);
    buf_release(&all);
}

static void foreign_files_are_refused_with_a_sentence(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int code;
    } cases[] = {{"", ERR_FORMAT}, {"hello\n", ERR_FORMAT}, {"TNDMSESS 9\n", ERR_UNSUPPORTED},
        {"TNDMSESS x\n", ERR_FORMAT}, {"TNDMSESS 1", ERR_FORMAT}};
    buf path = BUF_INIT;
    buf_printf(&path, "%s/foreign.journal", dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        err e = ERR_INIT;
        session *s = NULL;
        must(
            file_write_atomic(buf_cstr(&path), cases[i].text, strlen(cases[i].text), 0600, &e), &e);
        assert_int_equal(session_open(dir, "foreign", &s, &e), cases[i].code);
        assert_true(e.msg[0] != '\0');
    }
    assert_int_equal(session_delete(dir, "foreign", NULL), OK);
    buf_release(&path);
}

static void one_writer_at_a_time(void **state) {
    (void)state;
    session *s = new_session(), *other = NULL;
    err e = ERR_INIT;
    say(s, "locked", "yes");
    assert_int_equal(session_open(dir, session_name(s), &other, &e), ERR_BUSY);
    assert_int_equal(session_delete(dir, session_name(s), &e), ERR_BUSY);
    must(session_open_read(dir, session_name(s), &other, &e), &e);
    assert_int_equal(session_n_turns(other), 2);
    assert_int_equal(session_add(other, SESSION_USER, "no", -1, NULL, &e), ERR_ARG);
    session_close(other);
    session_info *rows = NULL;
    int n = 0;
    must(session_list(dir, &rows, &n, &e), &e);
    for (int i = 0; i < n; i++) {
        assert_int_equal(rows[i].is_locked, str_eq(rows[i].name, session_name(s)));
    }
    mem_free(rows);
    s = reopen(s);
    session_close(s);
}

static void lists_and_finds(void **state) {
    (void)state;
    session *s = new_session();
    err e = ERR_INIT;
    char name[SESSION_NAME_BYTES], found[SESSION_NAME_BYTES];
    say(s, "Unique question about rope", "1");
    must(session_add(s, SESSION_USER, "edited", 0, NULL, &e), &e);
    must(session_rename(s, "Rope  scaling", &e), &e);
    str_copy(name, sizeof name, session_name(s));
    session_close(s);
    session_info *rows = NULL;
    int n = 0;
    must(session_list(dir, &rows, &n, &e), &e);
    bool is_seen = false;
    for (int i = 0; i < n; i++) {
        if (!str_eq(rows[i].name, name)) continue;
        is_seen = true;
        assert_string_equal(rows[i].title, "Rope  scaling");
        assert_int_equal(rows[i].n_turns, 2);
        assert_int_equal(rows[i].n_branches, 2);
        assert_false(rows[i].is_damaged);
        assert_true(rows[i].created_ms > 0);
    }
    assert_true(is_seen);
    mem_free(rows);
    must(session_find(dir, "rope", found, &e), &e);
    assert_string_equal(found, name);
    must(session_find(dir, name, found, &e), &e);
    assert_int_equal(session_find(dir, "nothing like it", found, &e), ERR_NOT_FOUND);
    assert_int_equal(session_find(dir, "2", found, &e), ERR_ARG);
    assert_int_equal(session_find(dir, "", found, &e), ERR_NOT_FOUND);
    assert_int_equal(session_open(dir, "../etc/passwd", &s, &e), ERR_ARG);
}

static void json_export_is_lossless(void **state) {
    (void)state;
    session *s = new_session(), *back = NULL;
    err e = ERR_INIT;
    buf a = BUF_INIT, b = BUF_INIT;
    say(s, "q \"1\"\n", "a\t1");
    must(session_add(s, SESSION_USER, "other branch", 0, NULL, &e), &e);
    must(session_set_head(s, 2, &e), &e);
    must(session_export(s, SESSION_JSON, &a, &e), &e);
    must(session_import(dir, a.data, a.len, &back, &e), &e);
    must(session_export(back, SESSION_JSON, &b, &e), &e);
    /* Only the name differs. */
    const char *x = strstr(a.data, "\"title\""), *y = strstr(b.data, "\"title\"");
    const char *xt = strstr(a.data, "\"head\""), *yt = strstr(b.data, "\"head\"");
    assert_true(x != NULL && y != NULL && xt != NULL && yt != NULL);
    assert_string_equal(xt, yt);
    buf_reset(&a);
    must(session_export(back, SESSION_MD, &a, &e), &e);
    assert_non_null(strstr(buf_cstr(&a), "## Assistant ("));
    assert_non_null(strstr(buf_cstr(&a), "a\t1"));
    assert_null(strstr(buf_cstr(&a), "other branch"));
    session_close(back);
    session_close(s);
    assert_int_not_equal(session_import(dir, "{}", 2, &back, &e), OK);
    assert_int_not_equal(session_import(dir, "[", 1, &back, &e), OK);
    buf_release(&a);
    buf_release(&b);
}

static void refuses_text_that_is_not_utf8(void **state) {
    (void)state;
    session *s = new_session();
    err e = ERR_INIT;
    assert_int_equal(session_add(s, SESSION_USER, "caf\xe9", -1, NULL, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "UTF-8"));
    assert_int_equal(session_n_turns(s), 0);
    session_close(s);
}

static void keeps_drafts(void **state) {
    (void)state;
    buf out = BUF_INIT;
    err e = ERR_INIT;
    must(session_draft_save(dir, "", "unsent\ntext", 11, &e), &e);
    must(session_draft_load(dir, "", &out, &e), &e);
    assert_string_equal(buf_cstr(&out), "unsent\ntext");
    must(session_draft_save(dir, "", "", 0, &e), &e);
    must(session_draft_load(dir, "", &out, &e), &e);
    assert_int_equal(out.len, 0);
    buf_release(&out);
}

/* The file size limit stands for a full disk: what was there stays whole and readable. */
static void a_full_disk_is_said_and_damages_nothing(void **state) {
    (void)state;
    session *s = new_session();
    err e = ERR_INIT;
    say(s, "before", "fits");
    char big[8192];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = 4096, .rlim_max = old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = session_add(s, SESSION_USER, big, -1, NULL, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, ERR_FULL);
    assert_non_null(strstr(e.msg, "free some space"));
    assert_int_equal(session_n_turns(s), 2);
    say(s, "after", "works again");
    s = reopen(s);
    assert_null(session_note(s));
    assert_int_equal(session_n_turns(s), 4);
    session_close(s);
}

/* A pipe cannot be flushed: its failure is told once, and not to the one who asked for it. */
static void a_failed_flush_is_told_later(void **state) {
    (void)state;
    int ends[2];
    err e = ERR_INIT;
    assert_int_equal(pipe(ends), 0);
    session_sync *s = session_sync_new(ends[1], dir);
    session_sync_want(s);
    int rc = OK;
    for (uint64_t until = clock_mono_ms() + 120000; rc == OK && clock_mono_ms() < until;) {
        rc = session_sync_take_error(s, &e);
        sleep_ms(5);
    }
    assert_int_not_equal(rc, OK);
    assert_non_null(strstr(e.msg, "cannot write the session"));
    assert_int_equal(session_sync_take_error(s, &e), OK);
    session_sync_free(s);
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_everything_over_a_reopen),
        cmocka_unit_test(branches_undo_and_fork),
        cmocka_unit_test(a_killed_writer_loses_nothing_flushed),
        cmocka_unit_test(any_cut_of_the_tail_is_repaired_and_kept_aside),
        cmocka_unit_test(a_flipped_byte_costs_one_record),
        cmocka_unit_test(foreign_files_are_refused_with_a_sentence),
        cmocka_unit_test(one_writer_at_a_time),
        cmocka_unit_test(lists_and_finds),
        cmocka_unit_test(json_export_is_lossless),
        cmocka_unit_test(refuses_text_that_is_not_utf8),
        cmocka_unit_test(keeps_drafts),
        cmocka_unit_test(a_full_disk_is_said_and_damages_nothing),
        cmocka_unit_test(a_failed_flush_is_told_later),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
