#include "tui/keymap.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/str.h"

#define MAX_KEYS_TEXT 64
#define LISTS (KEYS_LIST)
#define PLACES (KEYS_LIST | KEYS_SETUP)

static const key_row ROWS[] = {
    {ACTION_HELP, "help", KEYS_ALL, "F1 M-h", "this help"},
    {ACTION_HELP, "help-list", LISTS, "?", "this help (not while typing)"},
    {ACTION_HOME, "home", KEYS_ALL, "F2 M-1", "Home"},
    {ACTION_HOME, "home-list", PLACES, "1", "Home (not while typing)"},
    {ACTION_CHAT, "chat", KEYS_ALL, "F3 M-2", "Chat"},
    {ACTION_CHAT, "chat-list", PLACES, "2", "Chat (not while typing)"},
    {ACTION_DASH, "dash", KEYS_ALL, "F4 M-3", "Dash"},
    {ACTION_DASH, "dash-list", PLACES, "3", "Dash (not while typing)"},
    {ACTION_SETUP, "setup", KEYS_ALL, "F7 M-6", "Setup"},
    {ACTION_SETUP, "setup-list", PLACES, "6", "Setup (not while typing)"},
    {ACTION_LEAVE, "leave", KEYS_ALL, "F10", "leave"},
    {ACTION_COMMAND, "command", KEYS_ALL, "M-x", "command line"},
    {ACTION_COMMAND, "command-list", PLACES, ":", "command line (not while typing)"},
    {ACTION_STOP, "stop", KEYS_ALL, "C-c", "stop the reply; else close, clear the input"},
    {ACTION_ABORT, "abort", KEYS_ALL, "C-g", "cancel a search or prefix"},
    {ACTION_REDRAW, "redraw", KEYS_ALL, "C-l", "redraw"},
    {ACTION_SUSPEND, "suspend", KEYS_ALL, "C-z", "suspend"},
    {ACTION_PANEL, "panel", KEYS_ALL, "M-p", "side panel on or off"},
    {ACTION_MOUSE, "mouse", KEYS_ALL, "M-m", "mouse on or off"},
    {ACTION_BACK, "back", KEYS_HOME | KEYS_DASH | KEYS_SETUP, "Esc q", "back"},

    {ACTION_TRANSCRIPT, "transcript", KEYS_INPUT, "Esc M-Up", "to the transcript"},
    {ACTION_EDITOR, "editor", KEYS_INPUT, "", "edit in $VISUAL or $EDITOR (Ctrl-X Ctrl-E)"},
    {ACTION_UNQUEUE, "unqueue", KEYS_INPUT, "", "take back a queued message (Ctrl-X Ctrl-Q)"},
    {ACTION_COMPLETE, "complete", KEYS_INPUT, "Tab", "complete a command"},
    {ACTION_SCROLL_UP, "scroll-up", KEYS_INPUT, "PgUp", "page up in the transcript"},
    {ACTION_SCROLL_DOWN, "scroll-down", KEYS_INPUT, "PgDn", "page down in the transcript"},
    {ACTION_SCROLL_LINE_UP, "scroll-line-up", KEYS_INPUT, "C-Up", "line up in the transcript"},
    {ACTION_SCROLL_LINE_DOWN, "scroll-line-down", KEYS_INPUT, "C-Down",
        "line down in the transcript"},
    {ACTION_THINK_ALL, "thinking", KEYS_INPUT, "M-t", "fold or open all thinking"},
    {ACTION_THINK_ALL, "thinking-list", KEYS_TRANSCRIPT, "T", "fold or open all thinking"},

    {ACTION_LINE_DOWN, "down", KEYS_TRANSCRIPT, "j Down C-e", "line down"},
    {ACTION_LINE_UP, "up", KEYS_TRANSCRIPT, "k Up C-y", "line up"},
    {ACTION_NEXT_MESSAGE, "next", KEYS_TRANSCRIPT, "J }", "next message"},
    {ACTION_PREVIOUS_MESSAGE, "previous", KEYS_TRANSCRIPT, "K {", "previous message"},
    {ACTION_HALF_DOWN, "half-down", KEYS_TRANSCRIPT, "C-d", "half a page down"},
    {ACTION_HALF_UP, "half-up", KEYS_TRANSCRIPT, "C-u", "half a page up"},
    {ACTION_PAGE_DOWN, "page-down", KEYS_TRANSCRIPT, "Space PgDn", "page down"},
    {ACTION_PAGE_UP, "page-up", KEYS_TRANSCRIPT, "b PgUp", "page up"},
    {ACTION_TOP, "top", KEYS_TRANSCRIPT, "g Home", "top"},
    {ACTION_END, "end", KEYS_TRANSCRIPT, "G End", "end, and follow"},
    {ACTION_FOLD, "fold", KEYS_TRANSCRIPT, "Enter o", "open or fold what is selected"},
    {ACTION_THINK, "think", KEYS_TRANSCRIPT, "t", "fold or open this thinking"},
    {ACTION_COPY, "copy", KEYS_TRANSCRIPT, "y", "copy: y message, 1..9 code block"},
    {ACTION_COPY_ALL, "copy-all", KEYS_TRANSCRIPT, "Y", "copy the whole session"},
    {ACTION_EDIT, "edit", KEYS_TRANSCRIPT, "e", "edit this question of mine"},
    {ACTION_AGAIN, "again", KEYS_TRANSCRIPT, "r", "answer again"},
    {ACTION_CONTINUE, "continue", KEYS_TRANSCRIPT, "c", "go on with a stopped reply"},
    {ACTION_FORK, "fork", KEYS_TRANSCRIPT, "f", "fork the session here"},
    {ACTION_OLDER_BRANCH, "older", KEYS_TRANSCRIPT, "[", "older branch"},
    {ACTION_NEWER_BRANCH, "newer", KEYS_TRANSCRIPT, "]", "newer branch"},
    {ACTION_RAW, "raw", KEYS_TRANSCRIPT, "m", "raw text or rendered"},
    {ACTION_DETAILS, "details", KEYS_TRANSCRIPT, "v", "times and counts of this reply"},
    {ACTION_LEFT, "left", KEYS_TRANSCRIPT, "h Left", "scroll code left"},
    {ACTION_RIGHT, "right", KEYS_TRANSCRIPT, "l Right", "scroll code right"},
    {ACTION_SEARCH, "search", KEYS_TRANSCRIPT, "/", "search"},
    {ACTION_SEARCH_NEXT, "search-next", KEYS_TRANSCRIPT, "n", "next match"},
    {ACTION_SEARCH_PREVIOUS, "search-previous", KEYS_TRANSCRIPT, "N", "previous match"},
    {ACTION_INPUT, "input", KEYS_TRANSCRIPT, "i a Esc Tab", "back to the input"},

    {ACTION_LINE_DOWN, "home-down", KEYS_HOME, "j Down", "next session"},
    {ACTION_LINE_UP, "home-up", KEYS_HOME, "k Up", "previous session"},
    {ACTION_OPEN, "open", KEYS_HOME, "Enter", "open the session"},
    {ACTION_NEW_CHAT, "new-chat", KEYS_HOME, "c", "new chat"},
    {ACTION_START, "start", KEYS_HOME, "s", "start the engine"},
    {ACTION_STOP_ENGINE, "stop-engine", KEYS_HOME, "x", "stop the engine (asks)"},
    {ACTION_RESTART, "restart", KEYS_HOME, "r", "restart the engine (asks)"},

    {ACTION_ZOOM_IN, "zoom-in", KEYS_DASH, "+ =", "shorter time"},
    {ACTION_ZOOM_OUT, "zoom-out", KEYS_DASH, "-", "longer time"},
    {ACTION_ZOOM_RESET, "zoom-reset", KEYS_DASH, "0", "60 seconds"},
    {ACTION_PAUSE, "pause", KEYS_DASH, "p", "pause drawing; sampling goes on"},
    {ACTION_NODES, "nodes", KEYS_DASH, "b", "both nodes, or one of them"},
    {ACTION_PARTS, "memory-parts", KEYS_DASH, "m", "what the memory holds"},

    {ACTION_SETUP_NEXT, "setup-next", KEYS_SETUP, "Tab Down j l Right", "next field or button"},
    {ACTION_SETUP_PREVIOUS, "setup-previous", KEYS_SETUP, "S-Tab Up k h Left",
        "previous field or button"},
    {ACTION_SETUP_CHOOSE, "setup-choose", KEYS_SETUP, "Enter", "choose; in a field: the next one"},
    {ACTION_SETUP_DOWN, "setup-down", KEYS_SETUP, "PgDn Space", "page down in the step"},
    {ACTION_SETUP_UP, "setup-up", KEYS_SETUP, "PgUp b", "page up in the step"},
    {ACTION_SETUP_OLDER, "setup-older", KEYS_SETUP, "[", "the step before"},
    {ACTION_SETUP_NEWER, "setup-newer", KEYS_SETUP, "]", "the step after"},
    {ACTION_SETUP_WHY, "setup-why", KEYS_SETUP, "?", "why this is asked or done"},
};
#define N_ROWS (sizeof ROWS / sizeof ROWS[0])

/* Keys of keys.conf, beside the rows they replace. Written by keymap_load before the screen starts.
 */
static char bound[N_ROWS][MAX_KEYS_TEXT];
static bool is_bound[N_ROWS];

const key_row *keymap_rows(size_t *n) {
    *n = N_ROWS;
    return ROWS;
}

static const char *row_keys(size_t i) {
    return is_bound[i] ? bound[i] : ROWS[i].keys;
}

const char *keymap_keys(key_action action) {
    for (size_t i = 0; i < N_ROWS; i++) {
        if (ROWS[i].action == action) return row_keys(i);
    }
    return "";
}

static const char *const KEY_NAMES[] = {"", "Enter", "Tab", "Backspace", "Esc", "Up", "Down",
    "Right", "Left", "Home", "End", "PgUp", "PgDn", "Insert", "Delete"};

void keymap_event_name(const input_event *ev, char out[24]) {
    char key[8] = "";
    const char *name = key;
    int mods = ev->kind == INPUT_KEY ? ev->mods : 0;
    out[0] = '\0';
    if (ev->kind != INPUT_TEXT && ev->kind != INPUT_KEY) return;
    if (ev->kind == INPUT_TEXT || ev->key == INPUT_KEY_CHAR) {
        if (ev->code == ' ')
            name = "Space";
        else
            key[utf8_encode(ev->code, key)] = '\0';
    } else if (ev->key >= INPUT_KEY_F1)
        snprintf(key, sizeof key, "F%d", (int)(ev->key - INPUT_KEY_F1) + 1);
    else
        name = KEY_NAMES[ev->key];
    snprintf(out, 24, "%s%s%s%s", mods & INPUT_CTRL ? "C-" : "", mods & INPUT_ALT ? "M-" : "",
        mods & INPUT_SHIFT ? "S-" : "", name);
}

static bool has_key(const char *keys, const char *name) {
    size_t len = strlen(name);
    for (const char *s = keys; *s != '\0';) {
        const char *end = strchr(s, ' ');
        size_t n = end != NULL ? (size_t)(end - s) : strlen(s);
        if (n == len && memcmp(s, name, n) == 0) return true;
        s += n + (end != NULL ? 1 : 0);
    }
    return false;
}

key_action keymap_find(const input_event *ev, int where) {
    char name[24];
    keymap_event_name(ev, name);
    if (name[0] == '\0') return ACTION_NONE;
    for (size_t i = 0; i < N_ROWS; i++) {
        if ((ROWS[i].where & where) && has_key(row_keys(i), name)) return ROWS[i].action;
    }
    return ACTION_NONE;
}

/* --- keys.conf --- */

static bool is_key_name(const char *s, size_t n) {
    while (n > 2 && s[1] == '-' && strchr("CMS", s[0]) != NULL) {
        s += 2;
        n -= 2;
    }
    if (n == 0) return false;
    uint32_t c;
    if (utf8_decode(s, n, &c) == n && c != UTF8_INVALID && c > ' ') return true;
    if (n == 5 && memcmp(s, "Space", 5) == 0) return true;
    for (size_t i = 1; i < sizeof KEY_NAMES / sizeof KEY_NAMES[0]; i++) {
        if (strlen(KEY_NAMES[i]) == n && memcmp(KEY_NAMES[i], s, n) == 0) return true;
    }
    return s[0] == 'F' && n <= 3 && isdigit((unsigned char)s[1]) &&
           (n == 2 || isdigit((unsigned char)s[2]));
}

static int check_keys(const char *keys, const char *path, int line, err *e) {
    for (const char *s = keys; *s != '\0';) {
        while (*s == ' ')
            s++;
        size_t n = strcspn(s, " ");
        if (n > 0 && !is_key_name(s, n)) {
            return err_set(e, ERR_FORMAT,
                "%s:%d: \"%.*s\" is no key; write it like C-x, M-x, F5, PgUp or a", path, line,
                (int)n, s);
        }
        s += n;
    }
    return OK;
}

static int check_double(size_t row, const char *path, int line, err *e) {
    for (size_t i = 0; i < N_ROWS; i++) {
        if (i == row || (ROWS[i].where & ROWS[row].where) == 0) continue;
        const char *s = row_keys(row);
        while (*s != '\0') {
            char name[24];
            size_t n = strcspn(s, " ");
            snprintf(name, sizeof name, "%.*s", (int)n, s);
            if (n > 0 && has_key(row_keys(i), name)) {
                return err_set(e, ERR_FORMAT, "%s:%d: %s is bound to \"%s\" already", path, line,
                    name, ROWS[i].name);
            }
            s += n + (s[n] == ' ' ? 1 : 0);
        }
    }
    return OK;
}

static int take_line(char *line, const char *path, int number, err *e) {
    char *equals = strchr(line, '=');
    while (*line == ' ' || *line == '\t')
        line++;
    if (*line == '\0' || *line == '#') return OK;
    if (equals == NULL) return err_set(e, ERR_FORMAT, "%s:%d: expected NAME = KEYS", path, number);
    char *end = equals;
    while (end > line && isspace((unsigned char)end[-1]))
        end--;
    *end = '\0';
    const char *keys = equals + 1;
    while (*keys == ' ' || *keys == '\t')
        keys++;
    for (size_t i = 0; i < N_ROWS; i++) {
        if (strcmp(ROWS[i].name, line) != 0) continue;
        int rc = check_keys(keys, path, number, e);
        if (rc != OK) return rc;
        str_copy(bound[i], sizeof bound[i], keys);
        is_bound[i] = true;
        return check_double(i, path, number, e);
    }
    return err_set(e, ERR_FORMAT, "%s:%d: there is no action \"%s\"; `tandem keys` lists them",
        path, number, line);
}

int keymap_load(const char *path, err *e) {
    buf text = BUF_INIT;
    err why = ERR_INIT;
    int rc = file_read(path, &text, 1 << 20, &why), number = 1;
    if (rc == ERR_NOT_FOUND) return OK;
    if (rc != OK && e != NULL) *e = why;
    for (char *s = text.data; rc == OK && s != NULL && *s != '\0'; number++) {
        size_t n = strcspn(s, "\n");
        bool is_last = s[n] == '\0';
        s[n] = '\0';
        size_t len = n;
        while (len > 0 && isspace((unsigned char)s[len - 1]))
            s[--len] = '\0';
        rc = take_line(s, path, number, e);
        s += n + (is_last ? 0 : 1);
    }
    buf_release(&text);
    return rc;
}

void keymap_print(buf *out) {
    for (size_t i = 0; i < N_ROWS; i++) {
        buf_printf(out, "%-18s %-14s %s\n", ROWS[i].name, row_keys(i), ROWS[i].help);
    }
}
