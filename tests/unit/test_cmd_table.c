/* The command table against what is made from it: parser, help, completion scripts, manual pages and
 * the sample settings file in the tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/settings.h"
#include "setup/step.h"
#include "tui/chat_settings.h"
#include "tui/cmd_complete.h"
#include "tui/cmd_man.h"
#include "tui/cmd_table.h"

enum { MAX_WORDS = 16 };

/* Words of a line, cut at blanks; the line is changed. */
static int parse(char *line, cmd_args *a, err *e) {
    static char *argv[MAX_WORDS];
    int argc = 0;
    for (char *at = line; *at != '\0' && argc < MAX_WORDS;) {
        argv[argc++] = at;
        at += strcspn(at, " ");
        if (*at == ' ') *at++ = '\0';
    }
    return cmd_parse(argc, argv, a, e);
}

static void reads_nouns_verbs_options_and_words(void **state) {
    (void)state;
    cmd_args a;
    err e = ERR_INIT;
    char one[] = "tandem ask --set temp=0.5 -t low what is --json water";
    assert_int_equal(parse(one, &a, &e), OK);
    assert_string_equal(a.entry->noun, "ask");
    assert_int_equal(a.n_args, 3);
    assert_string_equal(a.args[0], "what");
    assert_string_equal(a.args[2], "water");
    assert_string_equal(cmd_value(&a, "set"), "temp=0.5");
    assert_string_equal(cmd_value(&a, "thinking"), "low");
    assert_true(cmd_has(&a, "json"));
    char two[] = "tandem --socket /x session export --format=md abc -o out.md";
    assert_int_equal(parse(two, &a, &e), OK);
    assert_string_equal(a.entry->verb, "export");
    assert_string_equal(cmd_value(&a, "socket"), "/x");
    assert_string_equal(cmd_value(&a, "format"), "md");
    assert_string_equal(a.args[0], "abc");
    char three[] = "tandem ask -- --json -x";
    assert_int_equal(parse(three, &a, &e), OK);
    assert_int_equal(a.n_args, 2);
    assert_string_equal(a.args[0], "--json");
    assert_false(cmd_has(&a, "json"));
    char four[] = "tandem";
    assert_int_equal(parse(four, &a, &e), OK);
    assert_string_equal(a.entry->noun, "");
    char five[] = "tandem ask -";
    assert_int_equal(parse(five, &a, &e), OK);
    assert_string_equal(a.args[0], "-");
    char six[] = "tandem sessions rename --help";
    assert_int_equal(parse(six, &a, &e), OK);
    assert_true(cmd_has(&a, "help"));
    char seven[] = "tandem logs -f -n 5";
    assert_int_equal(parse(seven, &a, &e), OK);
    assert_true(cmd_has(&a, "follow"));
    assert_int_equal(a.n_args, 0);
    assert_string_equal(cmd_value(&a, "lines"), "5");
}

static void refuses_with_a_sentence(void **state) {
    (void)state;
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"tandem statsu", "did you mean status?"},
        {"tandem frobnicate", "tandem help"},
        {"tandem model", "needs a verb; there is: list, show, quantize"},
        {"tandem model lst", "has no lst"},
        {"tandem status --jsn", "has no option --jsn"},
        {"tandem ask --set", "--set needs a value"},
        {"tandem status --json=1", "takes no value"},
        {"tandem config set CONTEXT", "missing argument"},
        {"tandem status now", "\"now\" is too much"},
        {"tandem -x", "has no option -x"},
        {"tandem status -wf", "takes no value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[80];
        cmd_args a;
        err e = ERR_INIT;
        str_copy(line, sizeof line, cases[i].line);
        int rc = parse(line, &a, &e);
        if (rc != ERR_ARG || strstr(e.msg, cases[i].part) == NULL) {
            fail_msg("%s: code %d, message: %s", cases[i].line, rc, e.msg);
        }
    }
}

static void the_table_is_sound(void **state) {
    (void)state;
    size_t n;
    const cmd_entry *t = cmd_table(&n);
    for (size_t i = 0; i < n; i++) {
        assert_non_null(t[i].run);
        assert_non_null(t[i].args);
        assert_true(t[i].help[0] != '\0' && !str_ends(t[i].help, "."));
        assert_ptr_equal(cmd_find(t[i].noun, t[i].verb), &t[i]);
        for (const cmd_option *o = t[i].options; o != NULL && o->name != NULL; o++) {
            assert_non_null(o->help);
            /* The parser finds the command before it knows whose options they are. */
            for (size_t j = 0; j < n; j++) {
                if (!str_eq(t[i].noun, t[j].noun)) continue;
                for (const cmd_option *p = t[j].options; p != NULL && p->name != NULL; p++) {
                    bool is_same =
                        str_eq(p->name, o->name) || (p->letter != 0 && p->letter == o->letter);
                    if (is_same && (p->value == NULL) != (o->value == NULL)) {
                        fail_msg("--%s takes a value in one place and none in another (--%s)",
                            o->name, p->name);
                    }
                }
            }
        }
    }
}

static void slash_commands_are_found(void **state) {
    (void)state;
    size_t n;
    const slash_entry *t = slash_table(&n);
    const char *args = NULL;
    err e = ERR_INIT;
    assert_int_equal(n, SLASH_COUNT);
    for (size_t i = 0; i < n; i++) {
        buf line = BUF_INIT;
        buf_printf(&line, "/%s  some args", t[i].name);
        assert_int_equal(t[i].id, i);
        assert_ptr_equal(slash_find(buf_cstr(&line), false, &args, &e), &t[i]);
        assert_string_equal(args, "some args");
        buf_release(&line);
    }
    assert_int_equal(slash_find("quit", true, &args, &e)->id, SLASH_QUIT);
    assert_string_equal(args, "");
    assert_int_equal(slash_find("/q", false, &args, &e)->id, SLASH_QUIT);
    assert_null(slash_find("/s", false, &args, &e));
    assert_non_null(strstr(e.msg, "/sessions"));
    assert_null(slash_find("/hlep", false, &args, &e));
    assert_non_null(strstr(e.msg, "did you mean /help?"));
    assert_null(slash_find("/", false, &args, &e));
}

static void chat_settings_have_ranges(void **state) {
    (void)state;
    chat_settings s;
    err e = ERR_INIT;
    buf out = BUF_INIT;
    chat_settings_init(&s);
    assert_int_equal(chat_settings_set_pair(&s, "temp=0.25", &e), OK);
    assert_int_equal(chat_settings_set_pair(&s, "stop a b", &e), OK);
    assert_int_equal(chat_settings_set(&s, "seed", "9007199254740993", &e), OK);
    assert_int_equal(chat_settings_think(&s, "low", &e), OK);
    chat_settings_json(&s, &out);
    assert_string_equal(buf_cstr(&out),
        "{\"temp\":0.25,\"seed\":9007199254740993,\"think\":\"low\",\"stop\":[\"a b\"]}");
    assert_int_equal(chat_settings_set(&s, "temp", "2.5", &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "from 0 to 2"));
    assert_int_equal(chat_settings_set(&s, "tmp", "1", &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "did you mean temp?"));
    assert_int_equal(chat_settings_set_pair(&s, "temp", &e), ERR_ARG);
    assert_int_equal(chat_settings_think(&s, "lots", &e), ERR_ARG);
    assert_int_equal(chat_settings_think(&s, "101", &e), ERR_ARG);
    assert_int_equal(chat_settings_unset(&s, "temp", &e), OK);
    assert_int_equal(chat_settings_unset(&s, "stop", &e), OK);
    assert_int_equal(chat_settings_unset(&s, "think", &e), OK);
    buf_reset(&out);
    chat_settings_json(&s, &out);
    assert_string_equal(buf_cstr(&out), "{\"seed\":9007199254740993}");
    chat_settings_release(&s);
    buf_release(&out);
}

/* Files of the tree. */

static void source_path(const char *name, buf *out) {
    const char *top = getenv("TANDEM_SOURCE_DIR");
    path_join(out, top != NULL ? top : ".", name);
}

static void assert_file_is(const char *name, const buf *expected, const char *command) {
    buf path = BUF_INIT, text = BUF_INIT;
    source_path(name, &path);
    err e = ERR_INIT;
    if (file_read(buf_cstr(&path), &text, 1 << 20, &e) != OK) fail_msg("%s", e.msg);
    if (!str_eq(buf_cstr(&text), buf_cstr(expected))) {
        fail_msg(
            "%s is not what the tables give; make it again with: %s > %s", name, command, name);
    }
    buf_release(&path);
    buf_release(&text);
}

static void manual_pages_are_up_to_date(void **state) {
    (void)state;
    size_t n;
    const cmd_entry *t = cmd_table(&n);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && str_eq(t[i].noun, t[i - 1].noun)) continue;
        buf page = BUF_INIT, name = BUF_INIT, command = BUF_INIT;
        man_page(t[i].noun, &page);
        bool is_main = t[i].noun[0] == '\0';
        buf_printf(&name, "man/tandem%s%s.1", is_main ? "" : "-", t[i].noun);
        buf_printf(&command, "tandem help --man %s", t[i].noun);
        assert_file_is(buf_cstr(&name), &page, buf_cstr(&command));
        buf_release(&page);
        buf_release(&name);
        buf_release(&command);
    }
    buf page = BUF_INIT;
    man_page("tandem.conf", &page);
    assert_file_is("man/tandem.conf.5", &page, "tandem help --man tandem.conf");
    buf_release(&page);
}

static void completion_scripts_are_up_to_date(void **state) {
    (void)state;
    static const char *const shells[] = {"bash", "zsh", "fish"};
    for (int i = 0; i < 3; i++) {
        buf script = BUF_INIT, name = BUF_INIT, command = BUF_INIT;
        assert_int_equal(completion_script(shells[i], &script), OK);
        buf_printf(&name, "templates/completions/tandem.%s", shells[i]);
        buf_printf(&command, "tandem completion %s", shells[i]);
        assert_file_is(buf_cstr(&name), &script, buf_cstr(&command));
        buf_release(&script);
        buf_release(&name);
        buf_release(&command);
    }
    buf none = BUF_INIT;
    assert_int_equal(completion_script("tcsh", &none), ERR_ARG);
}

/* The sample sets nothing, and every line of it is good when its mark is taken away. */
static void the_sample_settings_file_is_right(void **state) {
    (void)state;
    buf sample = BUF_INIT, plain = BUF_INIT;
    err e = ERR_INIT;
    settings_sample(&sample);
    assert_file_is("templates/tandem.conf", &sample, "tandem config sample");
    for (size_t at = 0; at < sample.len; at++) {
        bool is_key = sample.data[at] == '#' && sample.data[at + 1] != ' ';
        if (!is_key) buf_putc(&plain, sample.data[at]);
    }
    settings *s = settings_new();
    if (settings_load_text(s, plain.data, plain.len, "sample", &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(settings_origin(s, "CONTEXT"), SETTING_FILE);
    settings_free(s);
    buf_release(&sample);
    buf_release(&plain);
}

/* Help is wrapped: to look for a sentence each run of white space is one blank. */
static void unwrap(buf *text) {
    size_t n = 0;
    for (size_t i = 0; i < text->len; i++) {
        char c = text->data[i];
        bool is_blank = c == ' ' || c == '\n';
        if (is_blank && n > 0 && text->data[n - 1] == ' ') continue;
        text->data[n++] = is_blank ? ' ' : c;
    }
    buf_truncate(text, n);
}

static void assert_fits_80_columns(const buf *text) {
    for (size_t at = 0; at < text->len;) {
        size_t n = strcspn(buf_cstr(text) + at, "\n");
        if (n > 80) fail_msg("%zu columns: %.*s", n, (int)n, text->data + at);
        at += n + 1;
    }
}

/* Help names every command and option; the manual of a noun names its options. */
static void help_is_complete(void **state) {
    (void)state;
    size_t n;
    const cmd_entry *t = cmd_table(&n);
    buf all = BUF_INIT;
    cmd_help(&all, NULL, NULL);
    assert_fits_80_columns(&all);
    unwrap(&all);
    for (size_t i = 0; i < n; i++) {
        buf one = BUF_INIT;
        assert_non_null(strstr(buf_cstr(&all), t[i].help));
        cmd_help(&one, t[i].noun, t[i].verb);
        assert_fits_80_columns(&one);
        unwrap(&one);
        assert_non_null(strstr(buf_cstr(&one), t[i].help));
        for (const cmd_option *o = t[i].options; o != NULL && o->name != NULL; o++) {
            assert_non_null(strstr(buf_cstr(&one), o->help));
        }
        buf_release(&one);
    }
    buf_release(&all);
    slash_help(&all, NULL, SLASH_IN_PLAIN | SLASH_IN_SCREEN);
    assert_fits_80_columns(&all);
    buf_release(&all);
}

/* The steps of set-up are counted in one way: help, welcome and README say the number of the enum. */
static void the_steps_are_counted_once(void **state) {
    (void)state;
    buf readme = BUF_INIT;
    err e = ERR_INIT;
    if (file_read("README.md", &readme, 1 << 20, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(STEP_LAST, 16);
    assert_non_null(strstr(buf_cstr(&readme), "Sixteen steps"));
    assert_non_null(strstr(cmd_find("setup", NULL)->more, "Sixteen steps"));
    assert_non_null(strstr(step_info_of(STEP_WELCOME)->about, "Sixteen steps"));
    buf_release(&readme);
}

/* A page never points at itself, and where it points there is a page. */
static void pages_point_at_pages(void **state) {
    (void)state;
    static const char *const pages[] = {"", "tandem.conf", "serve", "node", "api"};
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        buf page = BUF_INIT;
        man_page(pages[i], &page);
        const char *at = strstr(buf_cstr(&page), ".SH SEE ALSO");
        assert_non_null(at);
        while ((at = strstr(at, ".BR ")) != NULL) {
            char name[64], section[8], file[100], clean[64] = "";
            at += 4;
            assert_int_equal(sscanf(at, "%63s (%7[0-9])", name, section), 2);
            for (size_t k = 0, n = 0; name[k] != '\0'; k++) {
                if (name[k] != '\\') clean[n++] = name[k];
            }
            snprintf(file, sizeof file, "man/%s.%s", clean, section);
            if (!file_exists(file)) fail_msg("%s points at %s", pages[i], file);
            if (pages[i][0] != '\0') assert_string_not_equal(clean, pages[i]);
        }
        buf_release(&page);
    }
}

static void suggestions_make_sense(void **state) {
    (void)state;
    static const struct {
        const char *word, *meant; /* NULL: nothing is near */
    } tries[] = {{"sttaus", "status"}, {"stat", "status"}, {"statu", "status"},
        {"dowload", "download"}, {"verfy", "verify"}, {"Bench", "bench"}, {"foo", NULL},
        {"xyz", NULL}, {"run", NULL}, {"ls", NULL}, {"quit", NULL}, {"doc", "doctor"},
        {"restrat", "restart"}, {"models", "model"}};
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        char *argv[] = {(char *)(uintptr_t) "tandem", (char *)(uintptr_t)tries[i].word};
        cmd_args a;
        err e = ERR_INIT;
        char want[80] = "`tandem help` lists all";
        if (tries[i].meant != NULL) snprintf(want, sizeof want, "did you mean %s?", tries[i].meant);
        assert_int_equal(cmd_parse(2, argv, &a, &e), ERR_ARG);
        if (strstr(e.msg, want) == NULL) fail_msg("%s: %s", tries[i].word, e.msg);
    }
    assert_string_equal(settings_nearest("CONTEX"), "CONTEXT");
    assert_string_equal(settings_nearest("WORKER_SHH"), "WORKER_SSH");
    assert_null(settings_nearest("FOO"));
    assert_null(settings_nearest("COLOUR"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_nouns_verbs_options_and_words),
        cmocka_unit_test(refuses_with_a_sentence),
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(slash_commands_are_found),
        cmocka_unit_test(chat_settings_have_ranges),
        cmocka_unit_test(manual_pages_are_up_to_date),
        cmocka_unit_test(completion_scripts_are_up_to_date),
        cmocka_unit_test(the_sample_settings_file_is_right),
        cmocka_unit_test(help_is_complete),
        cmocka_unit_test(the_steps_are_counted_once),
        cmocka_unit_test(pages_point_at_pages),
        cmocka_unit_test(suggestions_make_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
