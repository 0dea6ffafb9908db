/*
 * The input decoder: bytes from the terminal in, events out. It understands UTF-8, control keys,
 * the CSI and SS3 forms of function keys with modifiers, the kitty and modifyOtherKeys forms,
 * bracketed paste, SGR and old mouse reports, focus reports and answers to our questions; what it
 * does not know is dropped whole. Cutting the bytes differently gives the same events, except that
 * a lone Esc is known only after a wait. One thread; the decoder owns its buffers, also the paste
 * it hands out.
 */
#ifndef TUI_INPUT_H
#define TUI_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

#define INPUT_PASTE_MAX_BYTES (16u << 20)

typedef enum {
    INPUT_TEXT,   /* code: one printable code point */
    INPUT_KEY,    /* key, mods; for INPUT_KEY_CHAR code is the character in lower case */
    INPUT_PASTE,  /* paste: cleaned text, valid until the next call */
    INPUT_MOUSE,  /* row, column from 0, button, is_release, is_motion */
    INPUT_FOCUS,  /* code: 1 focus in, 0 out */
    INPUT_REPLY,  /* reply, code */
    INPUT_INVALID /* code: a byte that is no UTF-8 */
} input_kind;

typedef enum {
    INPUT_KEY_CHAR,
    INPUT_KEY_ENTER,
    INPUT_KEY_TAB,
    INPUT_KEY_BACKSPACE,
    INPUT_KEY_ESC,
    INPUT_KEY_UP,
    INPUT_KEY_DOWN,
    INPUT_KEY_RIGHT,
    INPUT_KEY_LEFT,
    INPUT_KEY_HOME,
    INPUT_KEY_END,
    INPUT_KEY_PAGE_UP,
    INPUT_KEY_PAGE_DOWN,
    INPUT_KEY_INSERT,
    INPUT_KEY_DELETE,
    INPUT_KEY_F1, /* F1 to F12 in order */
    INPUT_KEY_F12 = INPUT_KEY_F1 + 11
} input_key;

enum { INPUT_SHIFT = 1, INPUT_ALT = 2, INPUT_CTRL = 4 };

typedef enum {
    INPUT_REPLY_ATTRIBUTES, /* the terminal answered the last question */
    INPUT_REPLY_SYNC,       /* code: 1 if synchronized output is known */
    INPUT_REPLY_KITTY,      /* the kitty keyboard protocol is known */
    INPUT_REPLY_CURSOR      /* row, column from 0 */
} input_reply;

enum { INPUT_WHEEL_UP = 64, INPUT_WHEEL_DOWN = 65 };

typedef struct input_event {
    input_kind kind;
    input_key key;
    int mods; /* INPUT_ bits */
    uint32_t code;
    const char *paste;
    size_t paste_len;
    int row, column, button;
    bool is_release, is_motion;
    input_reply reply;
} input_event;

typedef struct input {
    buf raw;
    size_t at; /* first byte not decoded yet */
    buf paste;
    bool is_pasting, has_paste;
    uint64_t since_ms; /* when the incomplete bytes at the front were first seen; 0: none wait */
    int esc_ms;
} input;

/* esc_ms: how long a lone Esc waits (25 ms, 50 ms over ssh). */
void input_init(input *in, int esc_ms);
void input_release(input *in);
/* Takes bytes read from the terminal. OK, or ERR_LIMIT when far too many wait. */
int input_feed(input *in, const char *s, size_t n);
/* The next event, or false when more bytes or more time are needed. */
bool input_next(input *in, uint64_t now_ms, input_event *ev);
/* Milliseconds until input_next may have an event without new bytes; -1 if it never will. */
int input_wait_ms(const input *in, uint64_t now_ms);

#endif
