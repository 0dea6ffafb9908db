/* What lies over a screen: help from the key table, the leave dialog, yes or no, a text; and the
 * row of tabs at the top of every screen. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "tui/app_internal.h"
#include "tui/cmd_table.h"
#include "tui/width.h"
#include "tui/wizard.h"

static const char *const TAB_NAMES[N_SCREENS] = {"Home", "Chat", "Dash", "Setup"};
/* Places of their own: F2 to F4, and F7 for Setup. */
static const int TAB_NUMBERS[N_SCREENS] = {1, 2, 3, 6};

bool app_is_small(const app *a) {
    return a->n_columns < 60 || a->n_rows < 16;
}

static void tabs_right(const app *a, part_line *l) {
    char clock[16];
    const gauges *g = &a->gauges;
    canvas_role role = g->state == ENGINE_READY                               ? ROLE_GOOD
                       : g->state == ENGINE_DOWN || g->state == ENGINE_FAILED ? ROLE_BAD
                                                                              : ROLE_WARN;
    if (g->is_demo) part_line_add_right(l, 3, ROLE_WARN, "DEMO");
    if (a->screen != SCREEN_CHAT && chat_is_busy(&a->chat)) {
        if (!isnan(a->shown_rate)) part_line_add_right(l, 4, ROLE_TEXT, "%.1f t/s", a->shown_rate);
    }
    part_line_add_right(
        l, 2, role, "%sengine %s", role == ROLE_BAD ? "! " : "", gauges_state_word(g->state));
    part_line_add_right(l, 5, ROLE_DIM, "%s", app_clock(a, clock));
}

void part_tabs_draw(app *a, area box) {
    pen p = pen_on(&a->frame, box);
    for (int i = 0; i < N_SCREENS; i++) {
        bool is_here = i == (int)a->screen;
        /* The state of the engine is worth more than names of other screens. */
        if (box.n_columns < (i == SCREEN_SETUP ? 56 : 34) && !is_here) continue;
        pen_style(&p, is_here ? style_with(ROLE_FOCUS, STYLE_BOLD) : style_of(ROLE_DIM));
        pen_printf(&p, is_here ? "<%d %s>" : " %d %s ", TAB_NUMBERS[i], TAB_NAMES[i]);
    }
    area rest = {box.row, box.column + p.column + 2, 1, box.n_columns - p.column - 2};
    if (rest.n_columns < 1) return;
    pen q = pen_on(&a->frame, rest);
    part_line l = {.n_left = 0};
    tabs_right(a, &l);
    part_line_draw(&l, &q);
}

/* --- boxes over the screen --- */

static area centred(area box, int n_rows, int n_columns) {
    if (n_rows > box.n_rows) n_rows = box.n_rows;
    if (n_columns > box.n_columns) n_columns = box.n_columns;
    return (area){box.row + (box.n_rows - n_rows) / 2, box.column + (box.n_columns - n_columns) / 2,
        n_rows, n_columns};
}

static pen open_box(app *a, area where, const char *title, const char *note) {
    pen back = pen_on(&a->frame, where);
    for (int i = 0; i < where.n_rows; i++) {
        pen_move(&back, i, 0);
        pen_blank_to(&back, where.n_columns);
    }
    return part_box(&a->frame, where, a->look, title, note);
}

static int places_of(const app *a) {
    if (a->screen == SCREEN_HOME) return KEYS_HOME;
    if (a->screen == SCREEN_DASH) return KEYS_DASH;
    if (a->screen == SCREEN_SETUP) return KEYS_SETUP;
    return KEYS_INPUT | KEYS_TRANSCRIPT;
}

static bool matches(const char *text, const char *filter) {
    return filter[0] == '\0' || strcasestr(text, filter) != NULL;
}

static void help_line(buf *out, const char *keys, const char *what, const char *filter) {
    char line[200];
    snprintf(line, sizeof line, "  %-14s %s", keys, what);
    if (keys[0] != '\0' && matches(line, filter)) buf_printf(out, "%s\n", line);
}

static void help_section(buf *out, const char *name, int where, const char *filter) {
    static const struct {
        const char *keys, *what;
    } FIXED[] = {{"Enter", "send; while a reply is written: queue"}, {"M-Enter C-j", "new line"},
        {"\"\"\"", "on a line of its own: block until the next"},
        {"C-r", "search the history (readline)"}, {"Up Down", "history at the first and last row"},
        {"C-x C-e", "edit in $VISUAL or $EDITOR"}, {"C-x C-q", "take back a queued message"},
        {"Esc Esc", "stop the reply, send what is queued"}};
    size_t n, start = out->len;
    const key_row *rows = keymap_rows(&n);
    buf_printf(out, "%s\n", name);
    size_t after_name = out->len;
    if (where == KEYS_INPUT) {
        for (size_t i = 0; i < sizeof FIXED / sizeof FIXED[0]; i++)
            help_line(out, FIXED[i].keys, FIXED[i].what, filter);
    }
    for (size_t i = 0; i < n; i++) {
        if (rows[i].where == where)
            help_line(out, keymap_keys(rows[i].action), rows[i].help, filter);
    }
    if (out->len == after_name)
        buf_truncate(out, start);
    else
        buf_putc(out, '\n');
}

static void help_text(const app *a, buf *out) {
    const char *filter = buf_cstr(&a->help_filter);
    int here = places_of(a);
    if (here & KEYS_INPUT) help_section(out, "Writing", KEYS_INPUT, filter);
    if (here & KEYS_TRANSCRIPT)
        help_section(out, "Transcript (Esc from the input)", KEYS_TRANSCRIPT, filter);
    if (here & KEYS_HOME) help_section(out, "Home", KEYS_HOME, filter);
    if (here & KEYS_DASH) help_section(out, "Dash", KEYS_DASH, filter);
    if (here & KEYS_SETUP) help_section(out, "Setup", KEYS_SETUP, filter);
    help_section(out, "Anywhere", KEYS_ALL, filter);
    size_t n;
    const slash_entry *s = slash_table(&n);
    buf_puts(out, "Commands: /NAME while typing, : or M-x anywhere\n");
    for (size_t i = 0; i < n; i++) {
        char name[64];
        if ((s[i].where & SLASH_IN_SCREEN) == 0) continue;
        snprintf(name, sizeof name, "/%s %s", s[i].name, s[i].args);
        help_line(out, name, s[i].help, filter);
    }
    buf_puts(out,
        "\nYour ~/.inputrc is read: vi or emacs mode and your own bindings act in the input.\n");
}

/* Lines of text from overlay_top on; keeps overlay_top inside. */
static void draw_lines(app *a, pen *p, const char *text) {
    int n = 0;
    for (const char *s = text; *s != '\0'; s++)
        n += *s == '\n';
    int most = n - p->box.n_rows;
    if (a->overlay_top > most) a->overlay_top = most;
    if (a->overlay_top < 0) a->overlay_top = 0;
    int row = -a->overlay_top;
    for (const char *s = text; *s != '\0'; row++) {
        size_t len = strcspn(s, "\n");
        bool is_heading = len > 0 && s[0] != ' ' && row >= 0;
        pen_move(p, row, 0);
        pen_role(p, is_heading && a->overlay == OVERLAY_HELP ? ROLE_STRONG : ROLE_TEXT);
        if (row >= 0 && row < p->box.n_rows) pen_text(p, s, len);
        s += len + (s[len] == '\n' ? 1 : 0);
    }
}

static void draw_help(app *a, area box, int *cursor_row, int *cursor_column) {
    buf text = BUF_INIT;
    char title[40], note[64];
    static const char *const NAMES[] = {"Help: Home", "Help: Chat", "Help: Dash", "Help: Setup"};
    str_copy(title, sizeof title, NAMES[a->screen]);
    if (a->help_filter.len == 0)
        str_copy(note, sizeof note, "type to filter, Esc closes");
    else
        snprintf(note, sizeof note, "filter: %.40s", buf_cstr(&a->help_filter));
    help_text(a, &text);
    area where = centred(box, box.n_rows, box.n_columns < 84 ? box.n_columns : 84);
    pen p = open_box(a, where, title, note);
    draw_lines(a, &p, buf_cstr(&text));
    *cursor_row = -1;
    *cursor_column = 0;
    buf_release(&text);
}

static int wrapped(pen *p, const char *text) {
    rich r = {0};
    rich_rows rows = {0};
    rich_puts(&r, text, style_of(ROLE_TEXT));
    rich_wrap(&r, 0, p->box.n_columns, 0, 0, &rows);
    for (int i = 0; i < rows.n_rows; i++) {
        pen_move(p, i, 0);
        rich_draw(&r, &rows.rows[i], 0, "", p);
    }
    int n = rows.n_rows;
    rich_rows_release(&rows);
    rich_release(&r);
    return n;
}

static void button(pen *p, bool is_selected, const char *text) {
    pen_style(p, is_selected ? style_with(ROLE_SELECT, STYLE_REVERSE) : style_of(ROLE_TEXT));
    pen_printf(p, "[ %s ]", text);
    pen_role(p, ROLE_TEXT);
    pen_str(p, "  ");
}

static void draw_leave(app *a, area box) {
    static const char *const CHOICES[] = {
        "Leave, keep the engine running", "Stop the engine and leave", "Cancel"};
    pen p = open_box(a, centred(box, 10, 62), "Leave Tandem", NULL);
    int row =
        wrapped(&p,
            chat_is_busy(&a->chat)
                ? "A reply is being written. What is written by now is kept; text that you have "
                  "not sent is kept too."
                : "Text that you have not sent is kept.") +
        1;
    for (int i = 0; i < 3; i++) {
        pen_move(&p, row + i, 0);
        button(&p, i == a->overlay_selected, CHOICES[i]);
    }
}

static void draw_confirm(app *a, area box) {
    pen p = open_box(a, centred(box, 7, 62), "Please confirm", NULL);
    int row = wrapped(&p, a->confirm_text);
    pen_move(&p, row + 1 < p.box.n_rows ? row + 1 : p.box.n_rows - 1, 0);
    button(&p, a->overlay_selected == 0, "y  Yes");
    button(&p, a->overlay_selected == 1, "n  No");
}

void part_overlay_draw(app *a, area box, int *cursor_row, int *cursor_column) {
    if (a->overlay == OVERLAY_NONE) return;
    *cursor_row = -1;
    switch (a->overlay) {
    case OVERLAY_HELP:
        draw_help(a, box, cursor_row, cursor_column);
        break;
    case OVERLAY_LEAVE:
        draw_leave(a, box);
        break;
    case OVERLAY_CONFIRM:
        draw_confirm(a, box);
        break;
    case OVERLAY_WELCOME:
        wizard_welcome_draw(a, box);
        break;
    default: {
        pen p = open_box(a, centred(box, box.n_rows - 2, box.n_columns < 100 ? box.n_columns : 100),
            a->overlay_title, "Esc closes");
        draw_lines(a, &p, buf_cstr(&a->overlay_text));
        break;
    }
    }
}

/* --- keys --- */

static void close_overlay(app *a) {
    bool is_back = a->overlay == OVERLAY_HELP && a->is_help_over_welcome;
    a->overlay = is_back ? OVERLAY_WELCOME : OVERLAY_NONE;
    a->is_help_over_welcome = false;
    a->overlay_top = a->overlay_selected = 0;
    buf_reset(&a->help_filter);
}

static void choose(app *a) {
    int choice = a->overlay_selected;
    app_overlay what = a->overlay;
    key_action confirmed = a->confirm;
    close_overlay(a);
    if (what == OVERLAY_LEAVE && choice < 2) {
        if (choice == 1) app_stop_engine(a, false);
        a->is_leaving = true;
    }
    if (what != OVERLAY_CONFIRM || choice != 0) return;
    if (confirmed == ACTION_STOP_ENGINE) app_stop_engine(a, false);
    if (confirmed == ACTION_RESTART) app_stop_engine(a, true);
    if (confirmed == ACTION_SETUP_STOP) wizard_stop(a->wizard, false);
    if (confirmed == ACTION_CACHE_WIPE) app_wipe_cache(a);
}

static void step_choice(app *a, int by) {
    int n = a->overlay == OVERLAY_LEAVE ? 3 : 2;
    a->overlay_selected = (a->overlay_selected + by + n) % n;
}

static void dialog_key(app *a, const input_event *ev) {
    if (ev->kind == INPUT_TEXT) {
        if (ev->code == 'y' && a->overlay == OVERLAY_CONFIRM) {
            a->overlay_selected = 0;
            choose(a);
        } else if (ev->code == 'n' || ev->code == 'q')
            close_overlay(a);
        else if (ev->code == 'j')
            step_choice(a, 1);
        else if (ev->code == 'k')
            step_choice(a, -1);
        return;
    }
    switch (ev->key) {
    case INPUT_KEY_ENTER:
        choose(a);
        break;
    case INPUT_KEY_DOWN:
    case INPUT_KEY_RIGHT:
    case INPUT_KEY_TAB:
        step_choice(a, ev->mods & INPUT_SHIFT ? -1 : 1);
        break;
    case INPUT_KEY_UP:
    case INPUT_KEY_LEFT:
        step_choice(a, -1);
        break;
    default:
        break;
    }
}

static void text_key(app *a, const input_event *ev) {
    int page = a->n_rows - 6 > 1 ? a->n_rows - 6 : 1;
    if (ev->kind == INPUT_TEXT) {
        if (a->overlay == OVERLAY_HELP) {
            char bytes[4];
            if (a->help_filter.len < 40)
                buf_append(&a->help_filter, bytes, utf8_encode(ev->code, bytes));
            a->overlay_top = 0;
        } else if (ev->code == 'j')
            a->overlay_top++;
        else if (ev->code == 'k')
            a->overlay_top--;
        else if (ev->code == ' ')
            a->overlay_top += page;
        else if (ev->code == 'q')
            close_overlay(a);
        return;
    }
    switch (ev->key) {
    case INPUT_KEY_DOWN:
        a->overlay_top++;
        break;
    case INPUT_KEY_UP:
        a->overlay_top--;
        break;
    case INPUT_KEY_PAGE_DOWN:
        a->overlay_top += page;
        break;
    case INPUT_KEY_PAGE_UP:
        a->overlay_top -= page;
        break;
    case INPUT_KEY_HOME:
        a->overlay_top = 0;
        break;
    case INPUT_KEY_END:
        a->overlay_top = 100000;
        break;
    case INPUT_KEY_ENTER:
        close_overlay(a);
        break;
    case INPUT_KEY_BACKSPACE:
        if (a->help_filter.len > 0) {
            buf_truncate(&a->help_filter,
                a->help_filter.len - width_previous(a->help_filter.data, a->help_filter.len));
        }
        break;
    default:
        break;
    }
}

/* True if the key was taken: all are while an overlay is open, except the ones that act anywhere.
 */
bool part_overlay_key(app *a, const input_event *ev) {
    if (a->overlay == OVERLAY_NONE || (ev->kind != INPUT_TEXT && ev->kind != INPUT_KEY))
        return false;
    bool is_control = ev->kind == INPUT_KEY && ev->key == INPUT_KEY_CHAR && (ev->mods & INPUT_CTRL);
    if (a->overlay == OVERLAY_WELCOME && wizard_welcome_key(a, ev)) return true;
    if (ev->kind == INPUT_KEY && ev->key == INPUT_KEY_ESC)
        close_overlay(a);
    else if (is_control && (ev->code == 'c' || ev->code == 'g')) {
        /* The first rung of Ctrl-C is the reply. */
        if (ev->code == 'c' && chat_is_busy(&a->chat)) return false;
        close_overlay(a);
    } else if (is_control ||
               (ev->kind == INPUT_KEY && (ev->key >= INPUT_KEY_F1 || ev->mods & INPUT_ALT))) {
        bool is_help = ev->key == INPUT_KEY_F1 && a->overlay == OVERLAY_HELP;
        bool is_welcome = a->overlay == OVERLAY_WELCOME;
        if (!is_control) close_overlay(a);
        /* Another screen was chosen: the welcome has done its part. */
        if (!is_control && !is_help) a->overlay = OVERLAY_NONE;
        bool is_help_key =
            ev->key == INPUT_KEY_F1 || (ev->key == INPUT_KEY_CHAR && ev->code == 'h');
        a->is_help_over_welcome = is_welcome && !is_control && is_help_key;
        return is_help;
    } else if (a->overlay == OVERLAY_LEAVE || a->overlay == OVERLAY_CONFIRM)
        dialog_key(a, ev);
    else
        text_key(a, ev);
    return true;
}
