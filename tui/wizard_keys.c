/* The Setup screen's keys. */
#include <string.h>

#include "engine/base/str.h"
#include "tui/app_internal.h"
#include "tui/rich.h"
#include "tui/width.h"
#include "tui/wizard.h"

static bool is_key(const input_event *ev, input_key key) {
    return ev->kind == INPUT_KEY && ev->key == key;
}

/* --- text --- */

/* Typing into a text of cap bytes; true when the event was one of typing. */
static bool type_into(char *text, size_t cap, const input_event *ev) {
    size_t n = strlen(text);
    if (ev->kind == INPUT_TEXT) {
        char bytes[4];
        size_t len = utf8_encode(ev->code, bytes);
        if (n + len < cap) {
            memcpy(text + n, bytes, len);
            text[n + len] = '\0';
        }
        return true;
    }
    if (ev->kind == INPUT_PASTE) {
        size_t len = strcspn(ev->paste, "\r\n");
        if (len > ev->paste_len) len = ev->paste_len;
        if (n + len < cap) {
            memcpy(text + n, ev->paste, len);
            text[n + len] = '\0';
        }
        return true;
    }
    if (is_key(ev, INPUT_KEY_BACKSPACE)) {
        if (n > 0) text[n - width_previous(text, n)] = '\0';
        return true;
    }
    if (ev->kind == INPUT_KEY && ev->key == INPUT_KEY_CHAR && ev->mods == INPUT_CTRL &&
        ev->code == 'u') {
        text[0] = '\0';
        return true;
    }
    return false;
}

static bool question_key(wizard *w, const input_event *ev) {
    if (is_key(ev, INPUT_KEY_ENTER)) {
        wizard_answer(w, w->typed, false);
        return true;
    }
    if (is_key(ev, INPUT_KEY_ESC)) {
        wizard_answer(w, "", true);
        return true;
    }
    return type_into(w->typed, sizeof w->typed, ev);
}

/* The next or previous word of a choice. */
static void step_choice(char *value, const char *choices, int by) {
    char words[8][32];
    int n = 0, at = 0;
    for (const char *s = choices; *s != '\0' && n < 8;) {
        size_t len = strcspn(s, " ");
        if (len < sizeof words[0]) {
            memcpy(words[n], s, len);
            words[n][len] = '\0';
            if (str_eq(words[n], value)) at = n;
            n++;
        }
        s += len + (s[len] == ' ');
    }
    if (n > 0) str_copy(value, WIZARD_FIELD_BYTES, words[(at + by + n) % n]);
}

/* --- moving and choosing --- */

static void move_focus(wizard *w, int by) {
    int n = w->n_fields + w->n_buttons;
    if (n > 0) w->focus = (w->focus + by + n) % n;
}

static void scroll(wizard *w, int by) {
    w->top += by; /* drawing keeps it inside */
}

static void enter_step(app *a, int i) {
    wizard *w = a->wizard;
    if (i < 0 || i >= STEP_COUNT) return;
    if (wizard_is_busy(w)) {
        app_hint(a, "this step works; Stop ends it, a download can be left running");
        return;
    }
    wizard_go(w, i);
}

/* Long lines go on below, so that every word of a command can be read. */
static void show_commands(app *a) {
    buf text = BUF_INIT, wrapped = BUF_INIT;
    int columns = (a->n_columns < 100 ? a->n_columns : 100) - 4;
    if (plan_print(&a->wizard->view.plan, &text) != OK) return;
    for (const char *s = buf_cstr(&text); *s != '\0';) {
        size_t n = strcspn(s, "\n");
        do {
            size_t fits = width_fit(s, n, columns, NULL);
            if (fits == 0) fits = n;
            buf_printf(&wrapped, "%.*s\n", (int)fits, s);
            s += fits;
            n -= fits;
        } while (n > 0);
        s += *s == '\n';
    }
    app_show_text(a, "What will run", buf_cstr(&wrapped));
    buf_release(&text);
    buf_release(&wrapped);
}

static void go_next(app *a) {
    wizard *w = a->wizard;
    if (w->i_step == STEP_SUMMARY) {
        app_go(a, SCREEN_CHAT);
        return;
    }
    int i = w->i_step + 1;
    /* A step that waits is passed over while a later one is open. */
    while (i < STEP_SUMMARY && w->states[i] == STEP_IS_WAITING)
        i++;
    wizard_go(w, w->states[i] == STEP_IS_WAITING ? w->i_step + 1 : i);
}

static void press(app *a, wizard_button b) {
    wizard *w = a->wizard;
    switch (b) {
    case BUTTON_BACK:
        enter_step(a, w->i_step - 1);
        break;
    case BUTTON_AGAIN:
        if (w->n_fields == 0 || wizard_take_fields(w)) wizard_start(w, WIZARD_INSPECT);
        break;
    case BUTTON_APPLY:
        wizard_start(w, WIZARD_APPLY);
        break;
    case BUTTON_GO_ON:
        wizard_start(w, WIZARD_ACCEPT);
        break;
    case BUTTON_COMMANDS:
        show_commands(a);
        break;
    case BUTTON_NEXT:
        go_next(a);
        break;
    case BUTTON_STOP:
        app_ask(a, ACTION_SETUP_STOP, "Stop this step? What is done is kept.");
        break;
    default:
        wizard_stop(w, true);
        app_hint(a, "it goes on in the background; enter this step again to watch it");
        break;
    }
}

/* Enter on a field: the next one; on the last one the answers count and the step is looked at. */
static void enter_field(wizard *w) {
    if (w->focus + 1 < w->n_fields) {
        w->focus++;
    } else if (wizard_take_fields(w)) {
        wizard_start(w, WIZARD_INSPECT);
    }
}

/* Prose in the box: its lines are wrapped at words. */
static void show_prose(app *a, const char *title, const char *text) {
    rich r = {0};
    rich_rows rows = {0};
    buf wrapped = BUF_INIT;
    rich_puts(&r, text, style_of(ROLE_TEXT));
    rich_wrap(&r, 0, (a->n_columns < 100 ? a->n_columns : 100) - 4, 0, 0, &rows);
    for (int i = 0; i < rows.n_rows; i++) {
        const rich_row *x = &rows.rows[i];
        buf_printf(&wrapped, "%.*s\n", (int)x->len, buf_cstr(&r.text) + x->at);
    }
    app_show_text(a, title, buf_cstr(&wrapped));
    buf_release(&wrapped);
    rich_rows_release(&rows);
    rich_release(&r);
}

static bool field_key(app *a, const input_event *ev) {
    wizard *w = a->wizard;
    const step_field *x = &step_info_of(w->i_step)->fields[w->focus];
    char *value = w->fields[w->focus];
    if (ev->kind == INPUT_TEXT && ev->code == '?') {
        show_prose(a, x->label, x->why);
        return true;
    }
    if (x->choices != NULL) {
        bool is_step = is_key(ev, INPUT_KEY_LEFT) || is_key(ev, INPUT_KEY_RIGHT) ||
                       (ev->kind == INPUT_TEXT && ev->code == ' ');
        if (is_step) step_choice(value, x->choices, is_key(ev, INPUT_KEY_LEFT) ? -1 : 1);
        if (is_step || ev->kind == INPUT_TEXT) return true;
    }
    return type_into(value, WIZARD_FIELD_BYTES, ev);
}

static void explain(app *a) {
    const step_info *info = step_info_of(a->wizard->i_step);
    show_prose(a, info->title, info->about);
}

static bool list_action(app *a, key_action action) {
    wizard *w = a->wizard;
    int page = w->n_room > 2 ? w->n_room - 1 : 1;
    switch (action) {
    case ACTION_SETUP_NEXT:
        move_focus(w, 1);
        return true;
    case ACTION_SETUP_PREVIOUS:
        move_focus(w, -1);
        return true;
    case ACTION_SETUP_DOWN:
        scroll(w, page);
        return true;
    case ACTION_SETUP_UP:
        scroll(w, -page);
        return true;
    case ACTION_SETUP_OLDER:
        enter_step(a, w->i_step - 1);
        return true;
    case ACTION_SETUP_NEWER:
        enter_step(a, w->i_step + 1);
        return true;
    case ACTION_SETUP_WHY:
        explain(a);
        return true;
    case ACTION_BACK:
        app_go(a, a->last_screen != SCREEN_SETUP ? a->last_screen : SCREEN_CHAT);
        return true;
    default:
        return false;
    }
}

/* Keys that move whatever has the focus. */
static bool moving_key(wizard *w, const input_event *ev) {
    if (is_key(ev, INPUT_KEY_TAB)) {
        move_focus(w, ev->mods & INPUT_SHIFT ? -1 : 1);
    } else if (is_key(ev, INPUT_KEY_DOWN)) {
        move_focus(w, 1);
    } else if (is_key(ev, INPUT_KEY_UP)) {
        move_focus(w, -1);
    } else if (is_key(ev, INPUT_KEY_PAGE_DOWN)) {
        scroll(w, w->n_room > 2 ? w->n_room - 1 : 1);
    } else if (is_key(ev, INPUT_KEY_PAGE_UP)) {
        scroll(w, w->n_room > 2 ? 1 - w->n_room : -1);
    } else {
        return false;
    }
    return true;
}

bool screen_setup_key(app *a, const input_event *ev) {
    wizard *w = a->wizard;
    bool is_typing = ev->kind == INPUT_TEXT || ev->kind == INPUT_PASTE;
    if (w->f == NULL) {
        if (is_key(ev, INPUT_KEY_ENTER)) wizard_enter(w);
        return is_typing && ev->kind == INPUT_PASTE;
    }
    if (wizard_has_question(w)) return question_key(w, ev) || is_typing;
    if (moving_key(w, ev)) return true;
    bool is_field = !wizard_is_busy(w) && w->focus < w->n_fields;
    if (is_key(ev, INPUT_KEY_ENTER)) {
        int i = w->focus - w->n_fields;
        if (is_field)
            enter_field(w);
        else if (i >= 0 && i < w->n_buttons)
            press(a, w->buttons[i]);
        return true;
    }
    if (is_field && field_key(a, ev)) return true;
    if (is_key(ev, INPUT_KEY_LEFT) || is_key(ev, INPUT_KEY_RIGHT)) {
        move_focus(w, is_key(ev, INPUT_KEY_LEFT) ? -1 : 1);
        return true;
    }
    if (ev->kind == INPUT_PASTE) return true;
    return list_action(a, keymap_find(ev, KEYS_SETUP));
}
