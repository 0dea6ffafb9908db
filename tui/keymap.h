/*
 * The keys: one table of actions with their names, default keys, where they act and what they do.
 * Help and `tandem keys` are made from it, keys.conf rebinds by name. Loaded once, then read only;
 * the screen's thread.
 */
#ifndef TUI_KEYMAP_H
#define TUI_KEYMAP_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tui/input.h"

typedef enum {
    ACTION_NONE,
    ACTION_HELP,
    ACTION_HOME,
    ACTION_CHAT,
    ACTION_DASH,
    ACTION_SETUP,
    ACTION_LEAVE,
    ACTION_COMMAND,
    ACTION_REDRAW,
    ACTION_SUSPEND,
    ACTION_STOP,
    ACTION_ABORT,
    ACTION_BACK,
    ACTION_PANEL,
    ACTION_MOUSE,
    /* input */
    ACTION_EDITOR,
    ACTION_UNQUEUE,
    ACTION_COMPLETE,
    ACTION_SCROLL_UP,
    ACTION_SCROLL_DOWN,
    ACTION_SCROLL_LINE_UP,
    ACTION_SCROLL_LINE_DOWN,
    ACTION_THINK_ALL,
    ACTION_TRANSCRIPT,
    /* transcript */
    ACTION_LINE_DOWN,
    ACTION_LINE_UP,
    ACTION_NEXT_MESSAGE,
    ACTION_PREVIOUS_MESSAGE,
    ACTION_HALF_DOWN,
    ACTION_HALF_UP,
    ACTION_PAGE_DOWN,
    ACTION_PAGE_UP,
    ACTION_TOP,
    ACTION_END,
    ACTION_FOLD,
    ACTION_THINK,
    ACTION_COPY,
    ACTION_COPY_ALL,
    ACTION_EDIT,
    ACTION_AGAIN,
    ACTION_CONTINUE,
    ACTION_FORK,
    ACTION_OLDER_BRANCH,
    ACTION_NEWER_BRANCH,
    ACTION_RAW,
    ACTION_DETAILS,
    ACTION_INPUT,
    ACTION_LEFT,
    ACTION_RIGHT,
    ACTION_SEARCH,
    ACTION_SEARCH_NEXT,
    ACTION_SEARCH_PREVIOUS,
    /* home */
    ACTION_OPEN,
    ACTION_NEW_CHAT,
    ACTION_START,
    ACTION_STOP_ENGINE,
    ACTION_RESTART,
    /* dashboard */
    ACTION_ZOOM_IN,
    ACTION_ZOOM_OUT,
    ACTION_ZOOM_RESET,
    ACTION_PAUSE,
    ACTION_NODES,
    ACTION_PARTS,
    /* setup */
    ACTION_SETUP_NEXT,
    ACTION_SETUP_PREVIOUS,
    ACTION_SETUP_CHOOSE,
    ACTION_SETUP_DOWN,
    ACTION_SETUP_UP,
    ACTION_SETUP_OLDER,
    ACTION_SETUP_NEWER,
    ACTION_SETUP_WHY,
    ACTION_SETUP_STOP, /* no key: the button Stop, after a yes */
    ACTION_CACHE_WIPE, /* no key: /cache wipe, after a yes */
    N_ACTIONS
} key_action;

/* Where an action is valid, one bit each. */
enum {
    KEYS_INPUT = 1,
    KEYS_TRANSCRIPT = 2,
    KEYS_HOME = 4,
    KEYS_DASH = 8,
    KEYS_SETUP = 16,
    KEYS_LIST = KEYS_TRANSCRIPT | KEYS_HOME | KEYS_DASH,
    KEYS_ALL = KEYS_LIST | KEYS_INPUT | KEYS_SETUP
};

typedef struct key_row {
    key_action action;
    const char *name; /* for keys.conf */
    int where;
    const char *keys; /* names between blanks: C- Ctrl, M- Alt, S- Shift; F1, Enter, PgUp, a ... */
    const char *help;
} key_row;

const key_row *keymap_rows(size_t *n);
/* The keys of a row as they are bound now. */
const char *keymap_keys(key_action action);
/* The action of an event at a place (one KEYS_ bit). */
key_action keymap_find(const input_event *ev, int where);
/* Reads NAME = KEYS lines. A missing file is fine; unknown names, unknown keys and two actions on
 * one key at one place are refused with file and line. */
int keymap_load(const char *path, err *e);
/* The table as text: name, keys, help. */
void keymap_print(buf *out);
/* The name of an event's key in the form of the table; empty when it has none. */
void keymap_event_name(const input_event *ev, char out[24]);

#endif
