#include "tui/input.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/str.h"

#define SEQUENCE_WAIT_MS 250 /* a sequence cut by a slow link */
#define PASTE_WAIT_MS 2000   /* a paste whose end never came */
#define MAX_SEQUENCE 128
#define MAX_PARAMETERS 8

static const char PASTE_END[] = "\033[201~";

void input_init(input *in, int esc_ms) {
    memset(in, 0, sizeof *in);
    in->raw.max = 2 * (size_t)INPUT_PASTE_MAX_BYTES;
    in->paste.max = 4 * (size_t)INPUT_PASTE_MAX_BYTES;
    in->esc_ms = esc_ms;
}

void input_release(input *in) {
    buf_release(&in->raw);
    buf_release(&in->paste);
}

int input_feed(input *in, const char *s, size_t n) {
    if (in->at > 0) {
        buf_consume(&in->raw, in->at);
        in->at = 0;
    }
    in->since_ms = 0;
    return buf_append(&in->raw, s, n);
}

static void set_key(input_event *ev, input_key key, int mods) {
    ev->kind = INPUT_KEY;
    ev->key = key;
    ev->mods = mods;
}

static void set_char(input_event *ev, uint32_t code, int mods) {
    set_key(ev, INPUT_KEY_CHAR, mods);
    ev->code = code >= 'A' && code <= 'Z' && (mods & INPUT_CTRL) ? code + 32 : code;
}

/* A control byte or DEL as a key. */
static void set_control(input_event *ev, unsigned char c, int mods) {
    if (c == '\r')
        set_key(ev, INPUT_KEY_ENTER, mods);
    else if (c == '\t')
        set_key(ev, INPUT_KEY_TAB, mods);
    else if (c == 0x7f)
        set_key(ev, INPUT_KEY_BACKSPACE, mods);
    else if (c == 0x1b)
        set_key(ev, INPUT_KEY_ESC, mods);
    else if (c == 0)
        set_char(ev, ' ', mods | INPUT_CTRL);
    else if (c < 27)
        set_char(ev, (uint32_t)c + 'a' - 1, mods | INPUT_CTRL);
    else
        set_char(ev, (uint32_t)c + 64, mods | INPUT_CTRL);
}

typedef struct sequence {
    char lead;   /* one of <=>? after the bracket, or 0 */
    char middle; /* an intermediate byte, or 0 */
    char final;
    int n_parameters;
    int parameters[MAX_PARAMETERS]; /* -1: left out */
    int sub; /* first sub-parameter of the second parameter (kitty: event type) */
} sequence;

static int modifiers(const sequence *q, int i) {
    if (i >= q->n_parameters || q->parameters[i] < 1) return 0;
    return (q->parameters[i] - 1) & 7;
}

static int parameter(const sequence *q, int i) {
    return i < q->n_parameters && q->parameters[i] >= 0 ? q->parameters[i] : 0;
}

/* The number after a tilde. */
static bool tilde_key(int number, input_key *key) {
    static const struct {
        int number;
        input_key key;
    } KEYS[] = {
        {1, INPUT_KEY_HOME},
        {2, INPUT_KEY_INSERT},
        {3, INPUT_KEY_DELETE},
        {4, INPUT_KEY_END},
        {5, INPUT_KEY_PAGE_UP},
        {6, INPUT_KEY_PAGE_DOWN},
        {7, INPUT_KEY_HOME},
        {8, INPUT_KEY_END},
        {11, INPUT_KEY_F1},
        {12, INPUT_KEY_F1 + 1},
        {13, INPUT_KEY_F1 + 2},
        {14, INPUT_KEY_F1 + 3},
        {15, INPUT_KEY_F1 + 4},
        {17, INPUT_KEY_F1 + 5},
        {18, INPUT_KEY_F1 + 6},
        {19, INPUT_KEY_F1 + 7},
        {20, INPUT_KEY_F1 + 8},
        {21, INPUT_KEY_F1 + 9},
        {23, INPUT_KEY_F1 + 10},
        {24, INPUT_KEY_F12},
    };
    for (size_t i = 0; i < sizeof KEYS / sizeof KEYS[0]; i++) {
        if (KEYS[i].number != number) continue;
        *key = KEYS[i].key;
        return true;
    }
    return false;
}

static bool letter_key(char final, input_key *key) {
    static const char LETTERS[] = "ABCDHFPQRS";
    static const input_key KEYS[] = {
        INPUT_KEY_UP,
        INPUT_KEY_DOWN,
        INPUT_KEY_RIGHT,
        INPUT_KEY_LEFT,
        INPUT_KEY_HOME,
        INPUT_KEY_END,
        INPUT_KEY_F1,
        INPUT_KEY_F1 + 1,
        INPUT_KEY_F1 + 2,
        INPUT_KEY_F1 + 3,
    };
    const char *found = final != '\0' ? strchr(LETTERS, final) : NULL;
    if (found == NULL) return false;
    *key = KEYS[found - LETTERS];
    return true;
}

/* A code point with modifiers (kitty "u" and modifyOtherKeys). */
static bool code_key(input_event *ev, int code, int mods) {
    if (code == 13 || code == 57414)
        set_key(ev, INPUT_KEY_ENTER, mods);
    else if (code == 9)
        set_key(ev, INPUT_KEY_TAB, mods);
    else if (code == 27)
        set_key(ev, INPUT_KEY_ESC, mods);
    else if (code == 127 || code == 8)
        set_key(ev, INPUT_KEY_BACKSPACE, mods);
    else if (code >= 57344 && code <= 63743)
        return false; /* keys of the keyboard we have no use for */
    else if (code < 32)
        return false;
    else if ((mods & ~INPUT_SHIFT) == 0) {
        ev->kind = INPUT_TEXT;
        ev->code = (uint32_t)code;
    } else
        set_char(ev, (uint32_t)code, mods);
    return true;
}

static bool mouse_report(input_event *ev, const sequence *q) {
    int b = parameter(q, 0);
    ev->kind = INPUT_MOUSE;
    ev->column = parameter(q, 1) - 1;
    ev->row = parameter(q, 2) - 1;
    ev->mods =
        ((b & 4) ? INPUT_SHIFT : 0) | ((b & 8) ? INPUT_ALT : 0) | ((b & 16) ? INPUT_CTRL : 0);
    ev->is_motion = (b & 32) != 0;
    ev->button = b & ~(4 | 8 | 16 | 32);
    ev->is_release = q->final == 'm';
    return q->n_parameters >= 3 && ev->row >= 0 && ev->column >= 0;
}

static bool reply_event(input_event *ev, const sequence *q) {
    ev->kind = INPUT_REPLY;
    if (q->final == 'c')
        ev->reply = INPUT_REPLY_ATTRIBUTES;
    else if (q->final == 'u')
        ev->reply = INPUT_REPLY_KITTY;
    else if (q->final == 'y' && q->middle == '$' && parameter(q, 0) == 2026) {
        ev->reply = INPUT_REPLY_SYNC;
        int mode = parameter(q, 1);
        ev->code = mode == 1 || mode == 2;
    } else
        return false;
    return true;
}

static bool csi_event(input_event *ev, const sequence *q) {
    if (q->lead == '<') return (q->final == 'M' || q->final == 'm') && mouse_report(ev, q);
    if (q->lead == '?' || q->lead == '>') return reply_event(ev, q);
    if (q->lead != 0 || q->middle != 0) return false;
    input_key key;
    int first = parameter(q, 0);
    switch (q->final) {
    case 'Z':
        set_key(ev, INPUT_KEY_TAB, modifiers(q, 1) | INPUT_SHIFT);
        return true;
    case 'I':
    case 'O':
        ev->kind = INPUT_FOCUS;
        ev->code = q->final == 'I';
        return true;
    case 'u':
        return q->sub != 3 && code_key(ev, first, modifiers(q, 1));
    case '~':
        if (first == 27) return code_key(ev, parameter(q, 2), modifiers(q, 1));
        if (!tilde_key(first, &key)) return false;
        set_key(ev, key, modifiers(q, 1));
        return q->sub != 3;
    case 'R':
        if (q->n_parameters == 2 && first != 1) {
            ev->kind = INPUT_REPLY;
            ev->reply = INPUT_REPLY_CURSOR;
            ev->row = first - 1;
            ev->column = parameter(q, 1) - 1;
            return true;
        }
        break;
    default:
        break;
    }
    if (!letter_key(q->final, &key)) return false;
    set_key(ev, key, modifiers(q, 1));
    return q->sub != 3;
}

/* Reads the parameters of a CSI; returns its length, 0 when it is incomplete. A byte that cannot
 * stand in a sequence ends it (the result is a sequence without a final byte, which means nothing).
 */
static size_t scan_csi(const char *s, size_t n, sequence *q) {
    size_t i = 2;
    memset(q, 0, sizeof *q);
    if (i < n && s[i] >= '<' && s[i] <= '?') q->lead = s[i++];
    bool is_sub = false, is_open = false;
    for (; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= '0' && c <= '9') {
            if (!is_open && q->n_parameters < MAX_PARAMETERS) q->parameters[q->n_parameters++] = 0;
            is_open = true;
            int *to = is_sub ? &q->sub : &q->parameters[q->n_parameters - 1];
            if ((!is_sub || q->n_parameters == 2) && *to < 100000000) *to = *to * 10 + (c - '0');
        } else if (c == ';' || c == ':') {
            if (!is_open && q->n_parameters < MAX_PARAMETERS) q->parameters[q->n_parameters++] = -1;
            is_sub = c == ':';
            is_open = is_sub;
        } else if (c >= 0x20 && c < 0x30)
            q->middle = (char)c;
        else if (c >= 0x40 && c < 0x7f) {
            q->final = (char)c;
            return i + 1;
        } else
            return i;
        if (i >= MAX_SEQUENCE) return i + 1;
    }
    return 0;
}

static size_t decode_csi(const char *s, size_t n, input_event *ev, bool *has) {
    if (n >= 3 && s[2] == '[') { /* Linux console: ESC [ [ A to E */
        if (n < 4) return 0;
        if (s[3] >= 'A' && s[3] <= 'E') {
            set_key(ev, (input_key)(INPUT_KEY_F1 + (s[3] - 'A')), 0);
            *has = true;
        }
        return 4;
    }
    if (n >= 3 && s[2] == 'M') { /* mouse report of the old form: three bytes follow */
        return n >= 6 ? 6 : 0;
    }
    sequence q;
    size_t len = scan_csi(s, n, &q);
    if (len > 0) *has = csi_event(ev, &q);
    return len;
}

static size_t decode_ss3(const char *s, size_t n, input_event *ev, bool *has) {
    if (n < 3) return 0;
    input_key key;
    char c = s[2];
    *has = true;
    if (letter_key(c, &key))
        set_key(ev, key, 0);
    else if (c == 'M')
        set_key(ev, INPUT_KEY_ENTER, 0);
    else if (c == 'I')
        set_key(ev, INPUT_KEY_TAB, 0);
    else if (c >= 'j' && c <= 'y') {
        ev->kind = INPUT_TEXT;
        ev->code = (uint32_t)c - 0x40;
    } else
        *has = false;
    return 3;
}

/* OSC, DCS and APC strings are answers to somebody's question: dropped whole. */
static size_t skip_string(const char *s, size_t n) {
    for (size_t i = 2; i < n; i++) {
        if (s[i] == '\a') return i + 1;
        if (s[i] == '\033') {
            if (i + 1 >= n) return 0;
            return s[i + 1] == '\\' ? i + 2 : i;
        }
        if (i > 4096) return i;
    }
    return 0;
}

/* Text or control bytes at s; with Alt when it follows an Esc. 0: incomplete. */
static size_t decode_plain(const char *s, size_t n, input_event *ev, int mods) {
    unsigned char c = (unsigned char)s[0];
    if (c < 0x20 || c == 0x7f) {
        set_control(ev, c, mods);
        return 1;
    }
    uint32_t code;
    size_t len = utf8_decode(s, n, &code);
    if (code == UTF8_INVALID) {
        if (n < 4 && utf8_partial_tail(s, n) == n) return 0;
        ev->kind = INPUT_INVALID;
        ev->code = c;
        return 1;
    }
    if (mods != 0)
        set_char(ev, code, mods);
    else {
        ev->kind = INPUT_TEXT;
        ev->code = code;
        if (code >= 0x80 && code < 0xa0) ev->kind = INPUT_INVALID; /* C1 controls are no text */
    }
    return len;
}

/* One event or one meaningless sequence at the front; 0: incomplete. */
static size_t decode(const char *s, size_t n, input_event *ev, bool *has) {
    *has = true;
    if (s[0] != '\033') return decode_plain(s, n, ev, 0);
    if (n == 1) return 0;
    switch (s[1]) {
    case '[':
        *has = false;
        return decode_csi(s, n, ev, has);
    case 'O':
        return decode_ss3(s, n, ev, has);
    case ']':
    case 'P':
    case '_':
        *has = false;
        return skip_string(s, n);
    case '\033':
        set_key(ev, INPUT_KEY_ESC, 0);
        return 1;
    default:
        break;
    }
    size_t len = decode_plain(s + 1, n - 1, ev, INPUT_ALT);
    return len == 0 ? 0 : len + 1;
}

/* Appends pasted bytes: line ends become LF, controls visible, what is no UTF-8 U+FFFD. */
static void take_paste(buf *out, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t len = utf8_decode(s + i, n - i, &c);
        if (c == '\r') {
            buf_putc(out, '\n');
            if (i + 1 < n && s[i + 1] == '\n') len = 2;
        } else if (c == UTF8_INVALID)
            buf_puts(out, "\xef\xbf\xbd");
        else if (c == '\n' || c == '\t')
            buf_putc(out, (char)c);
        else if (c < 0x20 || c == 0x7f)
            buf_printf(out, "^%c", (int)((c + 0x40) & 0x7f));
        else if (c >= 0x80 && c < 0xa0)
            buf_printf(out, "<U+%04X>", (unsigned)c);
        else
            buf_append(out, s + i, len);
        i += len;
    }
}

static const char *find_paste_end(const char *s, size_t n) {
    return memmem(s, n, PASTE_END, sizeof PASTE_END - 1);
}

static bool give_paste(input *in, size_t len, size_t used, input_event *ev) {
    buf_reset(&in->paste);
    if (len > INPUT_PASTE_MAX_BYTES) len = INPUT_PASTE_MAX_BYTES;
    take_paste(&in->paste, in->raw.data + in->at, len);
    in->at += used;
    in->is_pasting = false;
    in->since_ms = 0;
    ev->kind = INPUT_PASTE;
    ev->paste = buf_cstr(&in->paste);
    ev->paste_len = in->paste.len;
    return true;
}

static bool next_paste(input *in, uint64_t now_ms, input_event *ev) {
    const char *s = in->raw.data + in->at;
    size_t n = in->raw.len - in->at;
    const char *end = n > 0 ? find_paste_end(s, n) : NULL;
    if (end != NULL) {
        return give_paste(in, (size_t)(end - s), (size_t)(end - s) + sizeof PASTE_END - 1, ev);
    }
    if (in->since_ms == 0) in->since_ms = now_ms;
    if (n > INPUT_PASTE_MAX_BYTES || now_ms - in->since_ms >= PASTE_WAIT_MS) {
        return give_paste(in, n, n, ev);
    }
    return false;
}

static int wait_limit(const input *in) {
    size_t n = in->raw.len - in->at;
    if (in->is_pasting) return PASTE_WAIT_MS;
    return n == 1 && in->raw.data[in->at] == '\033' ? in->esc_ms : SEQUENCE_WAIT_MS;
}

/* The wait is over: an Esc, an Alt key, or a sequence that will not end. */
static bool give_up(input *in, input_event *ev) {
    const char *s = in->raw.data + in->at;
    size_t n = in->raw.len - in->at;
    in->since_ms = 0;
    if (s[0] == '\033' && n <= 2) {
        in->at += n;
        if (n == 1)
            set_key(ev, INPUT_KEY_ESC, 0);
        else
            set_char(ev, (unsigned char)s[1], INPUT_ALT);
        return true;
    }
    in->at += n;
    ev->kind = INPUT_INVALID;
    ev->code = (unsigned char)s[0];
    return s[0] != '\033';
}

bool input_next(input *in, uint64_t now_ms, input_event *ev) {
    while (true) {
        memset(ev, 0, sizeof *ev);
        if (in->is_pasting) return next_paste(in, now_ms, ev);
        if (in->at >= in->raw.len) return false;
        const char *s = in->raw.data + in->at;
        size_t n = in->raw.len - in->at;
        static const char PASTE_START[] = "\033[200~";
        if (n >= sizeof PASTE_START - 1 && memcmp(s, PASTE_START, sizeof PASTE_START - 1) == 0) {
            in->at += sizeof PASTE_START - 1;
            in->is_pasting = true;
            in->since_ms = 0;
            continue;
        }
        bool has = false;
        size_t used = decode(s, n, ev, &has);
        if (used == 0) {
            if (in->since_ms == 0) in->since_ms = now_ms;
            if (now_ms - in->since_ms < (uint64_t)wait_limit(in)) return false;
            if (give_up(in, ev)) return true;
            continue;
        }
        in->at += used;
        in->since_ms = 0;
        if (has) return true;
    }
}

int input_wait_ms(const input *in, uint64_t now_ms) {
    if (in->since_ms == 0) return -1;
    uint64_t end = in->since_ms + (uint64_t)wait_limit(in);
    return end <= now_ms ? 0 : (int)(end - now_ms);
}
