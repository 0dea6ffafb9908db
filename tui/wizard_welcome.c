/* The first screen of all. */
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/privilege.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "setup/settings.h"
#include "tui/app_internal.h"
#include "tui/session.h"
#include "tui/wizard.h"

enum { CHOICE_CHAT, CHOICE_SETUP, CHOICE_ATTACH, N_CHOICES };

static const char *const CHOICES[N_CHOICES] = {
    "c  Chat now with the built-in demo model",
    "s  Set up two Sparks",
    "a  Attach to an engine that runs already",
};
static const char *const ABOUT[N_CHOICES] = {
    "small, on the CPU of this machine; nothing is downloaded or changed",
    "guided: check, download, copy, start, prove; changes are shown first",
    "only looks for its socket; starts nothing",
};
/* In place of the set-up for root, whom it refuses. */
static const char NO_SETUP[] = "-  Two Sparks: set-up does not run as root";
static const char ABOUT_NO_SETUP[] =
    "start tandem as your own user: sudo is asked for what needs root";

static bool is_offered(int choice) {
    return choice != CHOICE_SETUP || privilege_refuse_root("set-up", NULL) == OK;
}

static int note_name(void *ctx, const char *name, err *e) {
    (void)name;
    (void)e;
    *(bool *)ctx = true;
    return OK;
}

static bool has_files(const char *dir) {
    bool has = false;
    return dir_exists(dir) && dir_each(dir, note_name, &has, NULL) == OK && has;
}

bool wizard_is_first_run(void) {
    buf path = BUF_INIT;
    bool is_first = true;
    if (paths_settings_file(&path, NULL) != OK || file_exists(buf_cstr(&path))) is_first = false;
    buf_reset(&path);
    if (is_first && session_dir(&path, NULL) == OK && has_files(buf_cstr(&path))) is_first = false;
    buf_reset(&path);
    if (is_first && paths_state(&path, NULL) == OK && buf_puts(&path, "/setup") == OK &&
        has_files(buf_cstr(&path)))
        is_first = false;
    settings *s = settings_new();
    if (settings_load(s, NULL) != OK || settings_is_set(s, "MODEL_DIR")) is_first = false;
    settings_free(s);
    buf_release(&path);
    return is_first;
}

static void draw_choice(pen *p, int i, bool is_here, bool has_about) {
    bool is_open = is_offered(i);
    int row = has_about ? 2 + 3 * i : 1 + i;
    pen_move(p, row, 0);
    pen_style(p, is_here   ? style_with(ROLE_SELECT, STYLE_REVERSE)
                 : is_open ? style_of(ROLE_TEXT)
                           : style_of(ROLE_DIM));
    pen_printf(p, "%s %s ", is_here ? ">" : " ", is_open ? CHOICES[i] : NO_SETUP);
    if (!has_about) return;
    pen_move(p, row + 1, 5);
    pen_role(p, is_open ? ROLE_DIM : ROLE_WARN);
    pen_cut(p, is_open ? ABOUT[i] : ABOUT_NO_SETUP, pen_left(p), "...");
}

void wizard_welcome_draw(app *a, area box) {
    int n_rows = 14 < box.n_rows ? 14 : box.n_rows;
    int n_columns = 78 < box.n_columns ? 78 : box.n_columns;
    area where = {box.row + (box.n_rows - n_rows) / 2, box.column + (box.n_columns - n_columns) / 2,
        n_rows, n_columns};
    pen back = pen_on(&a->frame, where);
    for (int i = 0; i < n_rows; i++) {
        pen_move(&back, i, 0);
        pen_blank_to(&back, n_columns);
    }
    pen p = part_box(&a->frame, where, a->look, "Welcome to Tandem", NULL);
    pen_role(&p, ROLE_TEXT);
    pen_cut(&p, "One model on two DGX Sparks, or a small demo right here.", pen_left(&p), "...");
    for (int i = 0; i < N_CHOICES; i++)
        draw_choice(&p, i, i == a->overlay_selected, n_rows >= 14);
    if (p.box.n_rows < 12) return;
    pen_move(&p, p.box.n_rows - 1, 0);
    pen_role(&p, ROLE_DIM);
    pen_cut(&p, "Enter or the letter chooses; all of this can be reached later (F7: Setup)",
        pen_left(&p), "...");
}

static void choose(app *a, int i) {
    if (!is_offered(i)) { /* the line says why; the others can still be chosen */
        a->overlay_selected = i;
        return;
    }
    a->overlay = OVERLAY_NONE;
    a->overlay_selected = 0;
    if (i == CHOICE_SETUP) {
        app_go(a, SCREEN_SETUP);
        return;
    }
    app_go(a, SCREEN_CHAT);
    app_start_engine(a, i == CHOICE_CHAT);
    if (i == CHOICE_ATTACH) app_hint(a, "looking for a running engine; s on Home starts one");
}

bool wizard_welcome_key(app *a, const input_event *ev) {
    static const char letters[] = "csa";
    if (ev->kind == INPUT_TEXT) {
        const char *at = ev->code < 128 && ev->code > 0 ? strchr(letters, (int)ev->code) : NULL;
        if (at != NULL && *at != '\0') choose(a, (int)(at - letters));
        if (ev->code == 'j') a->overlay_selected = (a->overlay_selected + 1) % N_CHOICES;
        if (ev->code == 'k')
            a->overlay_selected = (a->overlay_selected + N_CHOICES - 1) % N_CHOICES;
        return true;
    }
    switch (ev->key) {
    case INPUT_KEY_ENTER:
        choose(a, a->overlay_selected);
        return true;
    case INPUT_KEY_ESC:
        choose(a, CHOICE_CHAT);
        return true;
    case INPUT_KEY_DOWN:
    case INPUT_KEY_TAB:
        a->overlay_selected = (a->overlay_selected + 1) % N_CHOICES;
        return true;
    case INPUT_KEY_UP:
        a->overlay_selected = (a->overlay_selected + N_CHOICES - 1) % N_CHOICES;
        return true;
    default:
        return false;
    }
}
