/* The line editor without readline (make READLINE=0): the usual Emacs keys, kill and yank, history,
 * and undo of pastes and kills. No inputrc, no vi mode, no incremental search. */
#include "tui/line.h"

#ifdef TANDEM_NO_READLINE

#include <ctype.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/width.h"

#define HISTORY_MAX 500

static struct {
    buf text, kill, saved; /* saved: the text before the last large change */
    size_t point, saved_point;
    char *history[HISTORY_MAX];
    int n_history, i_history; /* i_history == n_history: the new line */
    buf draft;                /* the new line while an old one is shown */
    char *ended;
    bool is_open, has_saved;
} editor;

int line_open(err *e) {
    if (editor.is_open) return err_set(e, ERR_BUSY, "the line editor is in use already");
    memset(&editor, 0, sizeof editor);
    editor.is_open = true;
    return OK;
}

void line_close(void) {
    for (int i = 0; i < editor.n_history; i++)
        mem_free(editor.history[i]);
    buf_release(&editor.text);
    buf_release(&editor.kill);
    buf_release(&editor.saved);
    buf_release(&editor.draft);
    mem_free(editor.ended);
    memset(&editor, 0, sizeof editor);
}

static void remember(void) {
    buf_reset(&editor.saved);
    buf_append(&editor.saved, buf_cstr(&editor.text), editor.text.len);
    editor.saved_point = editor.point;
    editor.has_saved = true;
}

static void splice(size_t from, size_t to, const char *s, size_t n) {
    buf next = BUF_INIT;
    const char *old = buf_cstr(&editor.text);
    buf_append(&next, old, from);
    buf_append(&next, s, n);
    buf_append(&next, old + to, editor.text.len - to);
    buf_release(&editor.text);
    editor.text = next;
    editor.point = from + n;
}

static size_t next_of(size_t at) {
    size_t left = editor.text.len - at;
    return left == 0 ? at : at + width_next(editor.text.data + at, left).len;
}

static size_t previous_of(size_t at) {
    return at - width_previous(buf_cstr(&editor.text), at);
}

static bool is_word_byte(size_t at) {
    unsigned char c = (unsigned char)editor.text.data[at];
    return c >= 0x80 || isalnum(c);
}

static size_t word_right(size_t at) {
    while (at < editor.text.len && !is_word_byte(at))
        at = next_of(at);
    while (at < editor.text.len && is_word_byte(at))
        at = next_of(at);
    return at;
}

static size_t word_left(size_t at) {
    while (at > 0 && !is_word_byte(previous_of(at)))
        at = previous_of(at);
    while (at > 0 && is_word_byte(previous_of(at)))
        at = previous_of(at);
    return at;
}

static void kill_range(size_t from, size_t to) {
    if (from >= to) return;
    remember();
    buf_reset(&editor.kill);
    buf_append(&editor.kill, editor.text.data + from, to - from);
    splice(from, to, "", 0);
}

static void undo(void) {
    if (!editor.has_saved) return;
    editor.has_saved = false;
    line_replace(buf_cstr(&editor.saved), editor.saved.len);
    editor.point = editor.saved_point;
}

static void control_key(uint32_t code) {
    size_t p = editor.point, end = editor.text.len;
    switch (code) {
    case 'a':
        editor.point = 0;
        break;
    case 'e':
        editor.point = end;
        break;
    case 'b':
        editor.point = previous_of(p);
        break;
    case 'f':
        editor.point = next_of(p);
        break;
    case 'd':
        splice(p, next_of(p), "", 0);
        break;
    case 'h':
        splice(previous_of(p), p, "", 0);
        break;
    case 'k':
        kill_range(p, end);
        break;
    case 'u':
        kill_range(0, p);
        break;
    case 'w':
        kill_range(word_left(p), p);
        break;
    case 'y':
        line_insert(buf_cstr(&editor.kill), editor.kill.len);
        break;
    case 'p':
        line_history_step(-1);
        break;
    case 'n':
        line_history_step(1);
        break;
    case '_':
        undo();
        break;
    default:
        break;
    }
}

static void named_key(const input_event *ev) {
    bool is_word = (ev->mods & (INPUT_CTRL | INPUT_ALT)) != 0;
    size_t p = editor.point;
    switch (ev->key) {
    case INPUT_KEY_ENTER:
        mem_free(editor.ended);
        editor.ended = mem_strdup(buf_cstr(&editor.text));
        line_replace("", 0);
        editor.i_history = editor.n_history;
        break;
    case INPUT_KEY_BACKSPACE:
        if (is_word)
            kill_range(word_left(p), p);
        else
            splice(previous_of(p), p, "", 0);
        break;
    case INPUT_KEY_DELETE:
        splice(p, next_of(p), "", 0);
        break;
    case INPUT_KEY_LEFT:
        editor.point = is_word ? word_left(p) : previous_of(p);
        break;
    case INPUT_KEY_RIGHT:
        editor.point = is_word ? word_right(p) : next_of(p);
        break;
    case INPUT_KEY_HOME:
        editor.point = 0;
        break;
    case INPUT_KEY_END:
        editor.point = editor.text.len;
        break;
    case INPUT_KEY_UP:
        line_history_step(-1);
        break;
    case INPUT_KEY_DOWN:
        line_history_step(1);
        break;
    default:
        break;
    }
}

void line_key(const input_event *ev) {
    if (ev->kind == INPUT_TEXT) {
        char bytes[4];
        splice(editor.point, editor.point, bytes, utf8_encode(ev->code, bytes));
        return;
    }
    if (ev->kind != INPUT_KEY) return;
    if (ev->key != INPUT_KEY_CHAR)
        named_key(ev);
    else if (ev->mods & INPUT_CTRL)
        control_key(ev->code);
    else if (ev->code == 'b')
        editor.point = word_left(editor.point);
    else if (ev->code == 'f')
        editor.point = word_right(editor.point);
    else if (ev->code == 'd')
        kill_range(editor.point, word_right(editor.point));
}

bool line_take(buf *out) {
    if (editor.ended == NULL) return false;
    buf_puts(out, editor.ended);
    mem_free(editor.ended);
    editor.ended = NULL;
    return true;
}

const char *line_text(size_t *len) {
    *len = editor.text.len;
    return buf_cstr(&editor.text);
}

size_t line_point(void) {
    return editor.point;
}

void line_set_point(size_t at) {
    editor.point = at > editor.text.len ? editor.text.len : at;
}

void line_replace(const char *s, size_t n) {
    buf_reset(&editor.text);
    buf_append(&editor.text, s, n);
    editor.point = editor.text.len;
}

void line_insert(const char *s, size_t n) {
    remember();
    splice(editor.point, editor.point, s, n);
}

void line_delete(size_t from, size_t to) {
    remember();
    size_t p = editor.point;
    splice(from, to, "", 0);
    editor.point = p <= from ? p : p >= to ? p - (to - from) : from;
}

void line_kill_all(void) {
    kill_range(0, editor.text.len);
}

void line_history_step(int direction) {
    int to = editor.i_history + (direction < 0 ? -1 : 1);
    if (to < 0 || to > editor.n_history) return;
    if (editor.i_history == editor.n_history) {
        buf_reset(&editor.draft);
        buf_append(&editor.draft, buf_cstr(&editor.text), editor.text.len);
    }
    editor.i_history = to;
    if (to == editor.n_history)
        line_replace(buf_cstr(&editor.draft), editor.draft.len);
    else
        line_replace(editor.history[to], strlen(editor.history[to]));
}

void line_history_add(const char *s) {
    if (s[0] == '\0') return;
    if (editor.n_history > 0 && strcmp(editor.history[editor.n_history - 1], s) == 0) return;
    if (editor.n_history == HISTORY_MAX) {
        mem_free(editor.history[0]);
        memmove(editor.history, editor.history + 1, (HISTORY_MAX - 1) * sizeof editor.history[0]);
        editor.n_history--;
    }
    editor.history[editor.n_history++] = mem_strdup(s);
    editor.i_history = editor.n_history;
}

const char *line_message(void) {
    return NULL;
}

bool line_abort(void) {
    return false;
}

bool line_is_vi(void) {
    return false;
}

const char *line_editor_name(void) {
    return "built-in";
}

#endif
