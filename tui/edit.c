/* The line editor: readline through its callback interface, fed from a byte queue, without any
 * terminal control of its own. The queue answers "end of file" when it is empty, because readline's
 * own paste reader would otherwise ask for ever (tui.md 5.1). Only this file knows readline. */
#include "tui/line.h"

#ifndef TANDEM_NO_READLINE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <readline/history.h>
#include <readline/readline.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"

#define HISTORY_MAX 2000

/* readline has one process-wide state; so has this file. */
static struct {
    char queue[256];
    size_t head, n;
    char *ended; /* text of the line that Enter ended, owned */
    FILE *nowhere;
    bool is_open;
} editor;

static int take_byte(FILE *stream) {
    (void)stream;
    if (editor.n == 0) return EOF;
    unsigned char c = (unsigned char)editor.queue[editor.head];
    editor.head++;
    editor.n--;
    return c;
}

static int is_byte_waiting(void) {
    return editor.n > 0;
}

static void on_redisplay(void) {
    /* The frame draws the line; readline calls this once per byte. */
}

static void on_matches(char **matches, int n, int longest) {
    (void)matches;
    (void)n;
    (void)longest;
}

static char *no_match(const char *text, int state) {
    (void)text;
    (void)state;
    return NULL;
}

static void on_line(char *line) {
    mem_free(editor.ended);
    editor.ended = line != NULL ? mem_strdup(line) : NULL;
    free(line);
}

static int keep_newline(int count, int key) {
    (void)key;
    for (int i = 0; i < count; i++)
        rl_insert_text("\n");
    return 0;
}

int line_open(err *e) {
    if (editor.is_open) return err_set(e, ERR_BUSY, "the line editor is in use already");
    editor.nowhere = fopen("/dev/null", "r+e");
    if (editor.nowhere == NULL) return err_errno(e, "/dev/null cannot be opened");
    rl_readline_name = "tandem";
    rl_catch_signals = 0;
    rl_catch_sigwinch = 0;
    rl_change_environment = 0;
    rl_prep_term_function = NULL;
    rl_deprep_term_function = NULL;
    rl_getc_function = take_byte;
    rl_input_available_hook = is_byte_waiting;
    rl_redisplay_function = on_redisplay;
    rl_instream = editor.nowhere;
    rl_outstream = editor.nowhere;
    rl_completion_entry_function = no_match;
    rl_completion_display_matches_hook = on_matches;
    rl_initialize();
    rl_variable_bind("bell-style", "none");
    rl_variable_bind("enable-bracketed-paste", "off");
    rl_variable_bind("blink-matching-paren", "off");
    rl_variable_bind("horizontal-scroll-mode", "off");
    rl_add_defun("tandem-newline", keep_newline, -1);
    using_history();
    stifle_history(HISTORY_MAX);
    rl_callback_handler_install("", on_line);
    editor.is_open = true;
    return OK;
}

void line_close(void) {
    if (!editor.is_open) return;
    rl_end_of_history(1, 0); /* gives up the line that readline keeps while an old one is shown */
    rl_replace_line("", 1);
    rl_callback_handler_remove();
    rl_clear_history(); /* with the undo lists that its entries hold */
    fclose(editor.nowhere);
    rl_instream = NULL;
    rl_outstream = NULL;
    mem_free(editor.ended);
    memset(&editor, 0, sizeof editor);
}

static void feed(const char *s, size_t n) {
    if (n > sizeof editor.queue) return;
    memcpy(editor.queue, s, n);
    editor.head = 0;
    editor.n = n;
    while (editor.n > 0)
        rl_callback_read_char();
}

/* Keys with no byte form of their own go out in the form that readline binds by default; a form
 * that it cannot parse would leave its tail in the text. */
static const char *key_bytes(const input_event *ev) {
    bool is_word = (ev->mods & (INPUT_CTRL | INPUT_ALT)) != 0;
    switch (ev->key) {
    case INPUT_KEY_ENTER:
        return "\r";
    case INPUT_KEY_TAB:
        return "\t";
    case INPUT_KEY_BACKSPACE:
        return is_word ? "\033\177" : "\177";
    case INPUT_KEY_ESC:
        return "\033";
    case INPUT_KEY_UP:
        return "\033[A";
    case INPUT_KEY_DOWN:
        return "\033[B";
    case INPUT_KEY_RIGHT:
        return is_word ? "\033f" : "\033[C";
    case INPUT_KEY_LEFT:
        return is_word ? "\033b" : "\033[D";
    case INPUT_KEY_HOME:
        return "\033[H";
    case INPUT_KEY_END:
        return "\033[F";
    case INPUT_KEY_DELETE:
        return is_word ? "\033d" : "\033[3~";
    default:
        return NULL;
    }
}

void line_key(const input_event *ev) {
    char bytes[8];
    size_t n = 0;
    if (ev->kind == INPUT_TEXT) {
        feed(bytes, utf8_encode(ev->code, bytes));
        return;
    }
    if (ev->kind != INPUT_KEY) return;
    if (ev->key != INPUT_KEY_CHAR) {
        const char *s = key_bytes(ev);
        if (s != NULL) feed(s, strlen(s));
        return;
    }
    if (ev->mods & INPUT_ALT) bytes[n++] = '\033';
    if (ev->mods & INPUT_CTRL) {
        if (ev->code >= 128) return;
        bytes[n++] = (char)(ev->code == '?' ? 0x7f : ev->code & 0x1f);
    } else
        n += utf8_encode(ev->code, bytes + n);
    feed(bytes, n);
}

bool line_take(buf *out) {
    if (editor.ended == NULL) return false;
    buf_puts(out, editor.ended);
    mem_free(editor.ended);
    editor.ended = NULL;
    return true;
}

const char *line_text(size_t *len) {
    *len = (size_t)rl_end;
    return rl_line_buffer;
}

size_t line_point(void) {
    return (size_t)rl_point;
}

void line_set_point(size_t at) {
    rl_point = at > (size_t)rl_end ? rl_end : (int)at;
}

void line_replace(const char *s, size_t n) {
    char *copy = mem_strndup(s, n);
    rl_replace_line(copy, 1);
    rl_point = rl_end;
    mem_free(copy);
}

void line_insert(const char *s, size_t n) {
    char *copy = mem_strndup(s, n);
    rl_begin_undo_group();
    rl_insert_text(copy);
    rl_end_undo_group();
    mem_free(copy);
}

void line_delete(size_t from, size_t to) {
    rl_begin_undo_group();
    rl_delete_text((int)from, (int)to);
    rl_end_undo_group();
    if (rl_point > (int)from)
        rl_point = rl_point >= (int)to ? rl_point - (int)(to - from) : (int)from;
}

void line_kill_all(void) {
    rl_kill_text(0, rl_end);
    rl_point = 0;
}

void line_history_step(int direction) {
    if (direction < 0)
        rl_get_previous_history(1, 0);
    else
        rl_get_next_history(1, 0);
    rl_point = rl_end;
}

void line_history_add(const char *s) {
    if (s[0] == '\0') return;
    if (history_length > 0) {
        HIST_ENTRY *last = history_get(history_base + history_length - 1);
        if (last != NULL && strcmp(last->line, s) == 0) return;
    }
    add_history(s);
    using_history();
}

const char *line_message(void) {
    if (!RL_ISSTATE(RL_STATE_ISEARCH | RL_STATE_NSEARCH | RL_STATE_NUMERICARG)) return NULL;
    return rl_display_prompt != NULL ? rl_display_prompt : "";
}

bool line_abort(void) {
    if (!RL_ISSTATE(
            RL_STATE_ISEARCH | RL_STATE_NSEARCH | RL_STATE_NUMERICARG | RL_STATE_MULTIKEY)) {
        return false;
    }
    feed("\007", 1);
    rl_callback_sigcleanup();
    return true;
}

bool line_is_vi(void) {
    return rl_editing_mode == 0;
}

const char *line_editor_name(void) {
    static char name[48];
    snprintf(name, sizeof name, "readline %s", rl_library_version);
    return name;
}

#endif
