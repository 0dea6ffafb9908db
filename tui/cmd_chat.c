/* tandem chat, tandem: the full screen or plain mode. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/settings.h"
#include "tui/app.h"
#include "tui/cmd_chat_options.h"
#include "tui/cmd_internal.h"
#include "tui/cmd_pair.h"
#include "tui/cmd_setup_talk.h"
#include "tui/plain.h"
#include "tui/session.h"
#include "tui/term.h"
#include "tui/wizard.h"

enum { TEXT_MAX_BYTES = 4 << 20 };

int cmd_text_or_file(const char *word, buf *out, err *e) {
    int rc = OK;
    if (word[0] == '@') {
        rc = file_read(word + 1, out, TEXT_MAX_BYTES, e);
        while (rc == OK && out->len > 0 && out->data[out->len - 1] == '\n') {
            buf_truncate(out, out->len - 1);
        }
    } else {
        rc = buf_puts(out, word);
    }
    bool is_text = utf8_valid(buf_cstr(out), out->len) && strlen(buf_cstr(out)) == out->len;
    if (rc == OK && !is_text) rc = err_set(e, ERR_FORMAT, "the system prompt is not UTF-8 text");
    return rc;
}

int cmd_system_prompt(const cmd_args *a, buf *out, err *e) {
    const char *word = cmd_value(a, "system");
    return word != NULL ? cmd_text_or_file(word, out, e) : OK;
}

int cmd_chat_settings(const cmd_args *a, chat_settings *s, err *e) {
    int rc = OK;
    for (int i = 0; i < a->n_given && rc == OK; i++) {
        const char *name = a->given[i].option->name;
        if (str_eq(name, "set")) rc = chat_settings_set_pair(s, a->given[i].value, e);
        if (str_eq(name, "thinking")) rc = chat_settings_think(s, a->given[i].value, e);
    }
    return rc;
}

/* Why this is plain mode, or NULL. The order of tui.md 14; the text lives as long as e. */
static const char *plain_reason(const cmd_args *a, err *e) {
    const char *accessible = getenv("ACCESSIBLE"), *term = getenv("TERM");
    if (cmd_has(a, "plain")) return "--plain was given";
    bool is_off = accessible == NULL || accessible[0] == '\0' || str_eq(accessible, "0") ||
                  str_eq_nocase(accessible, "false");
    if (!is_off) return "ACCESSIBLE is set";
    if (str_eq(term, "dumb")) return "TERM is dumb";
    if (!isatty(0)) return "standard input is no terminal";
    if (!isatty(1)) return "standard output is no terminal";
    return term_check(e) != OK ? e->msg : NULL;
}

static int run_plain(const cmd_args *a, const char *reason) {
    plain_options o = {.args = a,
        .reason = reason,
        .continue_last = cmd_has(a, "continue"),
        .session = cmd_value(a, "resume"),
        .shows_thinking = cmd_has(a, "show-thinking")};
    const char *unit = cmd_value(a, "chunk");
    err e = ERR_INIT;
    if (unit != NULL && !plain_chunk_parse(unit, &o.chunk)) {
        err_set(&e, ERR_ARG, "--chunk is \"%.20s\"; it must be word, sentence or reply", unit);
        return cmd_fail_usage(&e);
    }
    return plain_run(&o);
}

/* A model of the owner's may take minutes and most of the memory: the Home screen offers to start
 * it. The demo model takes a blink. */
static bool starts_at_once(const cmd_args *a, err *e, bool *is_broken) {
    settings *s = settings_new();
    *is_broken = settings_load(s, e) != OK;
    bool is_demo = cmd_value(a, "model") == NULL && !settings_is_set(s, "MODEL_DIR");
    settings_free(s);
    return is_demo;
}

static int check_words(const cmd_args *a, err *e) {
    static const struct {
        const char *option;
        cmd_complete words;
    } checked[] = {
        {"screen", COMPLETE_SCREEN}, {"color", COMPLETE_COLOR}, {"mouse", COMPLETE_MOUSE}};
    for (size_t i = 0; i < sizeof checked / sizeof checked[0]; i++) {
        const char *value = cmd_value(a, checked[i].option);
        const char *words = cmd_complete_words(checked[i].words);
        if (value == NULL) continue;
        const char *at = value[0] != '\0' ? strstr(words, value) : NULL;
        size_t n = strlen(value);
        bool is_word =
            at != NULL && (at == words || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0');
        if (!is_word) {
            return err_set(e, ERR_ARG, "--%s is \"%.20s\"; it must be one of: %s",
                checked[i].option, value, words);
        }
    }
    return OK;
}

static int run_screen(const cmd_args *a, const char *screen) {
    buf dir = BUF_INIT, socket = BUF_INIT;
    char name[SESSION_NAME_BYTES];
    const char *wanted = cmd_value(a, "resume");
    err e = ERR_INIT;
    bool is_broken = false;
    if (cmd_socket(a, &socket, &e) != OK) return cmd_fail(&e);
    app_options o = {.screen = screen,
        .continue_last = cmd_has(a, "continue"),
        .ascii = cmd_has(a, "ascii"),
        .color = cmd_value(a, "color"),
        .mouse = cmd_value(a, "mouse"),
        .socket_path = buf_cstr(&socket),
        .model_dir = cmd_value(a, "model")};
    if (str_eq(screen, "setup")) {
        o.head_root = cmd_value(a, "head-root");
        o.worker_root = cmd_value(a, "worker-root");
    }
    o.is_first_run = a->entry->noun[0] == '\0' && screen == NULL && wizard_is_first_run();
    o.is_pair = cmd_pair_applies(a);
    o.may_start = starts_at_once(a, &e, &is_broken) && !o.is_pair;
    if (is_broken) return cmd_fail(&e);
    if (wanted != NULL) {
        int rc = session_dir(&dir, &e);
        if (rc == OK) rc = session_find(buf_cstr(&dir), wanted, name, &e);
        buf_release(&dir);
        if (rc != OK) return cmd_fail(&e);
        o.session = name;
    }
    int code = app_run(&o, &e);
    buf_release(&socket);
    if (code != EXIT_OK && e.msg[0] != '\0') cmd_note("%s", e.msg);
    return code;
}

/* The Setup screen; cmd_setup saw to it that there is a terminal. */
int cmd_setup_screen(const cmd_args *a) {
    err e = ERR_INIT;
    if (check_words(a, &e) != OK) return cmd_fail_usage(&e);
    if (term_check(&e) != OK) return cmd_fail_usage(&e);
    return run_screen(a, "setup");
}

int cmd_chat(const cmd_args *a) {
    err e = ERR_INIT, why = ERR_INIT;
    const char *reason = plain_reason(a, &why);
    if (check_words(a, &e) != OK) return cmd_fail_usage(&e);
    return reason != NULL ? run_plain(a, reason) : run_screen(a, "chat");
}

int cmd_screen(const cmd_args *a) {
    err e = ERR_INIT;
    if (cmd_has(a, "version")) return cmd_version(a);
    if (check_words(a, &e) != OK) return cmd_fail_usage(&e);
    if (cmd_has(a, "plain")) return run_plain(a, "--plain was given");
    if (!isatty(0) || !isatty(1)) {
        err_set(&e, ERR_UNSUPPORTED,
            "the full screen needs a terminal; use `tandem ask TEXT`, `tandem chat --plain` or "
            "`tandem help`");
        return cmd_fail_usage(&e);
    }
    const char *reason = plain_reason(a, &e);
    return reason != NULL ? run_plain(a, reason) : run_screen(a, cmd_value(a, "screen"));
}
