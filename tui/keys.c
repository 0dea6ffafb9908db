/* What a key does: overlays first, then prompts and prefixes, then the key table, then the line
 * editor. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/app_internal.h"
#include "tui/line.h"
#include "tui/width.h"
#include "tui/wizard.h"

#define DOUBLE_MS 500
#define STOP_AGAIN_MS 2000

int app_keys_where(const app *a) {
    if (a->screen == SCREEN_HOME) return KEYS_HOME;
    if (a->screen == SCREEN_DASH) return KEYS_DASH;
    if (a->screen == SCREEN_SETUP) return KEYS_SETUP;
    return a->is_input_focused ? KEYS_INPUT : KEYS_TRANSCRIPT;
}

static bool is_key(const input_event *ev, input_key key) {
    return ev->kind == INPUT_KEY && ev->key == key;
}

static bool is_control(const input_event *ev, uint32_t code) {
    return ev->kind == INPUT_KEY && ev->key == INPUT_KEY_CHAR && ev->mods == INPUT_CTRL &&
           ev->code == code;
}

/* --- the prompt line (: and /) --- */

static void end_prompt(app *a) {
    char text[512];
    char label = a->prompt.label;
    str_copy(text, sizeof text, buf_cstr(&a->prompt.text));
    a->prompt.is_open = false;
    if (label == ':') {
        if (text[0] != '\0') app_command(a, text, true);
        return;
    }
    if (text[0] != '\0') str_copy(a->search, sizeof a->search, text);
    screen_chat_action(a, ACTION_SEARCH_PREVIOUS);
}

static void prompt_key(app *a, const input_event *ev) {
    buf *t = &a->prompt.text;
    a->prompt.hint[0] = '\0';
    if (ev->kind == INPUT_TEXT) {
        char bytes[4];
        if (t->len < 400) buf_append(t, bytes, utf8_encode(ev->code, bytes));
    } else if (ev->kind == INPUT_PASTE) {
        size_t n = strcspn(ev->paste, "\n");
        if (t->len + n < 400) buf_append(t, ev->paste, n);
    } else if (is_key(ev, INPUT_KEY_ENTER))
        end_prompt(a);
    else if (is_key(ev, INPUT_KEY_ESC) || is_control(ev, 'c') || is_control(ev, 'g'))
        a->prompt.is_open = false;
    else if (is_key(ev, INPUT_KEY_TAB) && a->prompt.label == ':')
        app_complete(a, t, true);
    else if (is_key(ev, INPUT_KEY_BACKSPACE)) {
        if (t->len == 0)
            a->prompt.is_open = false;
        else
            buf_truncate(t, t->len - width_previous(t->data, t->len));
    } else if (is_control(ev, 'u'))
        buf_reset(t);
}

/* --- the ladder of Ctrl-C --- */

static void stop(app *a) {
    if (chat_is_busy(&a->chat)) {
        chat_stop(&a->chat);
        return;
    }
    if (a->prefix != 0 || line_abort()) {
        a->prefix = 0;
        return;
    }
    if (a->screen == SCREEN_SETUP && wizard_is_busy(a->wizard)) {
        app_ask(a, ACTION_SETUP_STOP, "Stop this step? What is done is kept.");
        return;
    }
    if (a->screen == SCREEN_CHAT && a->chat.edit_parent >= 0) {
        a->chat.edit_parent = -1;
        app_hint(a, "the edit is dropped; Ctrl-Y brings the text back");
        part_input_clear(a->input);
        return;
    }
    if (a->screen == SCREEN_CHAT && !part_input_is_empty(a->input)) {
        part_input_clear(a->input);
        app_hint(a, "cleared; Ctrl-Y or Up brings it back");
        return;
    }
    if (a->stop_ms != 0 && a->now_ms - a->stop_ms < STOP_AGAIN_MS) {
        a->overlay = OVERLAY_LEAVE;
        a->overlay_selected = 0;
        return;
    }
    a->stop_ms = a->now_ms;
    app_hint(a, "nothing to stop; Ctrl-D or F10 leaves");
}

static void leave(app *a) {
    if (!chat_is_busy(&a->chat) && part_input_is_empty(a->input) && a->chat.n_queue == 0) {
        a->is_leaving = true;
        return;
    }
    a->overlay = OVERLAY_LEAVE;
    a->overlay_selected = 0;
}

/* --- actions that every screen has --- */

static void global_action(app *a, key_action action) {
    switch (action) {
    case ACTION_HELP:
        a->overlay = OVERLAY_HELP;
        a->overlay_top = 0;
        break;
    case ACTION_HOME:
        app_go(a, SCREEN_HOME);
        break;
    case ACTION_CHAT:
        app_go(a, SCREEN_CHAT);
        break;
    case ACTION_DASH:
        app_go(a, SCREEN_DASH);
        break;
    case ACTION_SETUP:
        app_go(a, SCREEN_SETUP);
        break;
    case ACTION_LEAVE:
        leave(a);
        break;
    case ACTION_STOP:
        stop(a);
        break;
    case ACTION_ABORT:
        a->prefix = 0;
        line_abort();
        break;
    case ACTION_REDRAW:
        a->wants_redraw = true;
        break;
    case ACTION_SUSPEND:
        a->wants_suspend = true;
        break;
    case ACTION_PANEL:
        a->has_panel = !a->has_panel;
        break;
    case ACTION_MOUSE:
        a->wants_mouse = !a->wants_mouse;
        term_set_mouse(a->term, a->wants_mouse);
        app_hint(
            a, a->wants_mouse ? "mouse on: Shift selects text, Alt-m turns this off" : "mouse off");
        break;
    case ACTION_COMMAND:
        a->prompt.is_open = true;
        a->prompt.label = ':';
        a->prompt.hint[0] = '\0';
        buf_reset(&a->prompt.text);
        break;
    default:
        break;
    }
}

static bool is_global(key_action action) {
    return action >= ACTION_HELP && action < ACTION_BACK;
}

/* --- prefixes --- */

static void copy_block(app *a, int number) {
    buf out = BUF_INIT;
    int i = a->scroll.selected;
    if (i >= 0 && i < a->chat.n_views) md_code(a->chat.views[i].text, number, &out);
    char what[32];
    snprintf(what, sizeof what, "code block %d", number);
    if (out.len == 0)
        app_hint(a, "there is no %s in this message", what);
    else
        app_copy(a, buf_cstr(&out), out.len, what);
    buf_release(&out);
}

static void copy_message(app *a) {
    int i = a->scroll.selected;
    if (i < 0 || i >= a->chat.n_views) return;
    size_t n;
    const char *s = md_source(a->chat.views[i].text, &n);
    app_copy(a, s, n, "the message");
}

static void after_y(app *a, const input_event *ev) {
    a->prefix = 0;
    if (ev->kind == INPUT_TEXT && ev->code >= '1' && ev->code <= '9')
        copy_block(a, (int)(ev->code - '0'));
    else if (!is_key(ev, INPUT_KEY_ESC) && !is_control(ev, 'g'))
        copy_message(a);
}

static void take_back(app *a) {
    chat *c = &a->chat;
    if (c->n_queue == 0) {
        app_hint(a, "no message waits");
        return;
    }
    part_input_set(a->input, c->queue[0], strlen(c->queue[0]));
    mem_free(c->queue[0]);
    memmove(c->queue, c->queue + 1, (CHAT_QUEUE_MAX - 1) * sizeof c->queue[0]);
    c->n_queue--;
}

static void after_control_x(app *a, const input_event *ev) {
    a->prefix = 0;
    if (is_control(ev, 'e'))
        a->wants_editor = true;
    else if (is_control(ev, 'q'))
        take_back(a);
    else if (!is_control(ev, 'g') && !is_control(ev, 'c')) {
        const input_event x = {
            .kind = INPUT_KEY, .key = INPUT_KEY_CHAR, .mods = INPUT_CTRL, .code = 'x'};
        part_input_event(a->input, &x);
        part_input_event(a->input, ev);
    }
}

/* --- input focus --- */

static void complete(app *a) {
    size_t n;
    const char *s = part_input_before_point(a->input, &n);
    if (n == 0) {
        a->is_input_focused = false;
        return;
    }
    if (s[0] != '/') {
        app_hint(a, "Tab completes /commands");
        return;
    }
    buf text = BUF_INIT;
    buf_append(&text, s, n);
    size_t before = text.len;
    if (app_complete(a, &text, false)) part_input_insert(a->input, buf_cstr(&text) + before);
    buf_release(&text);
}

static void input_action(app *a, key_action action) {
    if (action == ACTION_COMPLETE)
        complete(a);
    else if (action == ACTION_EDITOR)
        a->wants_editor = true;
    else if (action == ACTION_UNQUEUE)
        take_back(a);
    else
        screen_chat_action(a, action);
}

/* Esc in the input: twice stops the reply and sends what waits; once goes to the transcript. */
static bool input_escape(app *a) {
    bool is_double = a->esc_ms != 0 && a->now_ms - a->esc_ms < DOUBLE_MS;
    a->esc_ms = a->now_ms;
    if (is_double && chat_is_busy(&a->chat)) {
        a->chat.send_queued_after_stop = true;
        chat_stop(&a->chat);
        a->is_input_focused = true;
        return true;
    }
    if (line_abort()) return true;
    return false;
}

static void input_key_event(app *a, const input_event *ev) {
    bool is_escape = is_key(ev, INPUT_KEY_ESC);
    if (is_escape && input_escape(a)) return;
    if (is_control(ev, 'x')) {
        a->prefix = 'x';
        a->prefix_ms = a->now_ms;
        return;
    }
    if (is_control(ev, 'd') && part_input_is_empty(a->input)) {
        leave(a);
        return;
    }
    /* In vi mode a lone Esc is the editor's. */
    bool is_editors = is_escape && line_is_vi();
    key_action action = is_editors ? ACTION_NONE : keymap_find(ev, KEYS_INPUT);
    if (line_message() != NULL && action != ACTION_STOP) action = ACTION_NONE;
    if (is_global(action))
        global_action(a, action);
    else if (action != ACTION_NONE)
        input_action(a, action);
    else if (part_input_event(a->input, ev))
        app_submit(a);
}

static void list_key_event(app *a, const input_event *ev) {
    if (is_key(ev, INPUT_KEY_ESC) && a->screen == SCREEN_CHAT) {
        bool is_double = a->esc_ms != 0 && a->now_ms - a->esc_ms < DOUBLE_MS;
        if (is_double && chat_is_busy(&a->chat)) {
            input_escape(a);
            return;
        }
    }
    key_action action = keymap_find(ev, app_keys_where(a));
    if (is_global(action))
        global_action(a, action);
    else if (a->screen == SCREEN_HOME)
        screen_home_key(a, action);
    else if (a->screen == SCREEN_DASH)
        screen_dash_key(a, action);
    else if (a->screen == SCREEN_CHAT)
        screen_chat_action(a, action);
}

/* Esc, then a digit within half a second: the function keys of terminals that keep them. */
static bool escape_digit(app *a, const input_event *ev) {
    if (ev->kind != INPUT_TEXT || a->esc_ms == 0 || a->now_ms - a->esc_ms >= DOUBLE_MS)
        return false;
    if (ev->code < '0' || ev->code > '9') return false;
    a->esc_ms = 0;
    input_event f = {.kind = INPUT_KEY};
    f.key = (input_key)(INPUT_KEY_F1 + (ev->code == '0' ? 9 : (int)ev->code - '1'));
    key_action action = keymap_find(&f, app_keys_where(a));
    if (is_global(action)) global_action(a, action);
    return true;
}

static void mouse_event(app *a, const input_event *ev) {
    if (ev->button == INPUT_WHEEL_UP || ev->button == INPUT_WHEEL_DOWN) {
        int by = ev->button == INPUT_WHEEL_UP ? -3 : 3;
        if (a->overlay != OVERLAY_NONE)
            a->overlay_top += by;
        else if (a->screen == SCREEN_CHAT)
            transcript_scroll(a, by);
        else if (a->screen == SCREEN_HOME)
            screen_home_key(a, by < 0 ? ACTION_LINE_UP : ACTION_LINE_DOWN);
        return;
    }
    if (ev->is_release || ev->is_motion || ev->button != 0 || a->overlay != OVERLAY_NONE) return;
    if (ev->row == 0) {
        int tab = ev->column / 8;
        if (tab < N_SCREENS) app_go(a, (app_screen)tab);
    } else if (a->screen == SCREEN_CHAT) {
        int row = a->scroll.top + ev->row - (a->n_rows >= 13 ? 2 : 1);
        bool is_in_transcript = ev->row < a->scroll.n_shown + 2;
        a->is_input_focused = !is_in_transcript;
        if (is_in_transcript) a->scroll.selected = transcript_view_at(a, row);
    }
}

void app_key(app *a, const input_event *ev) {
    a->is_dirty = true;
    a->is_urgent = true;
    if (ev->kind == INPUT_MOUSE) {
        mouse_event(a, ev);
        return;
    }
    if (ev->kind == INPUT_INVALID) {
        app_hint(a,
            "byte 0x%02x from the terminal is not UTF-8 and was dropped; set the terminal's "
            "encoding to UTF-8",
            (unsigned)ev->code);
        return;
    }
    if (ev->kind == INPUT_FOCUS || ev->kind == INPUT_REPLY) return;
    if (part_overlay_key(a, ev)) return;
    if (a->prompt.is_open) {
        prompt_key(a, ev);
        return;
    }
    if (a->screen == SCREEN_SETUP && screen_setup_key(a, ev)) return;
    if (ev->kind == INPUT_PASTE) {
        if (a->screen != SCREEN_CHAT) app_go(a, SCREEN_CHAT);
        a->is_input_focused = true;
        part_input_event(a->input, ev);
        return;
    }
    if (a->prefix == 'y')
        after_y(a, ev);
    else if (a->prefix == 'x')
        after_control_x(a, ev);
    else if (escape_digit(a, ev))
        return;
    else if (a->screen == SCREEN_CHAT && a->is_input_focused)
        input_key_event(a, ev);
    else
        list_key_event(a, ev);
}
