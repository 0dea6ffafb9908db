/* The full screen's one loop: keys, engine events, signals and timers in; at most one frame out. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "tui/app_internal.h"
#include "tui/cmd_table.h"
#include "tui/wizard.h"

#define FRAME_MS 33
#define FRAME_REMOTE_MS 83
#define FRAME_BEHIND_MS 250
#define RESIZE_QUIET_MS 30
#define HINT_MS 6000
#define SHOWN_MS 250
#define PREFIX_MS 1500
#define ESC_LOCAL_MS 25
#define ESC_REMOTE_MS 50

/* Written by the signal handler, so it cannot be inside the app. */
static int signal_pipe[2] = {-1, -1};
static const int SIGNALS[] = {SIGWINCH, SIGCONT, SIGTERM, SIGHUP, SIGINT, SIGUSR1, SIGTSTP};
#define N_SIGNALS (sizeof SIGNALS / sizeof SIGNALS[0])

static void on_signal(int number) {
    int saved = errno;
    unsigned char byte = (unsigned char)number;
    ssize_t done = write(signal_pipe[1], &byte, 1);
    (void)done; /* a full pipe has signals in it already */
    errno = saved;
}

static int catch_signals(struct sigaction old[N_SIGNALS], err *e) {
    if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return err_errno(e, "the signal pipe cannot be made");
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < N_SIGNALS; i++)
        sigaction(SIGNALS[i], &action, &old[i]);
    signal(SIGPIPE, SIG_IGN);
    return OK;
}

static void release_signals(const struct sigaction old[N_SIGNALS]) {
    for (size_t i = 0; i < N_SIGNALS; i++)
        sigaction(SIGNALS[i], &old[i], NULL);
    close(signal_pipe[0]);
    close(signal_pipe[1]);
    signal_pipe[0] = signal_pipe[1] = -1;
}

/* --- small things for the screens --- */

void app_hint(app *a, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->hint, sizeof a->hint, fmt, ap);
    va_end(ap);
    for (char *s = a->hint; *s != '\0'; s++) {
        if (*s == '\n' || *s == '\t') *s = ' ';
    }
    a->hint_until_ms = a->now_ms + HINT_MS;
    a->is_hint_of_waiting = false;
    a->is_dirty = true;
}

void app_go(app *a, app_screen screen) {
    if (screen != a->screen) a->last_screen = a->screen;
    a->screen = screen;
    if (screen == SCREEN_HOME) app_load_sessions(a);
    if (screen == SCREEN_CHAT) a->is_input_focused = true;
    if (screen == SCREEN_SETUP) wizard_enter(a->wizard);
    if (a->options->mouse != NULL && str_eq(a->options->mouse, "wheel")) {
        term_set_wheel(a->term, screen != SCREEN_CHAT);
    }
}

void app_ask(app *a, key_action what, const char *text) {
    a->overlay = OVERLAY_CONFIRM;
    a->overlay_selected = 1;
    a->confirm = what;
    str_copy(a->confirm_text, sizeof a->confirm_text, text);
}

void app_show_text(app *a, const char *title, const char *text) {
    a->overlay = OVERLAY_TEXT;
    a->overlay_top = 0;
    str_copy(a->overlay_title, sizeof a->overlay_title, title);
    buf_reset(&a->overlay_text);
    buf_puts(&a->overlay_text, text);
}

static const char *format_time(int64_t wall_ms, const char *format, char out[16]) {
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm local;
    if (localtime_r(&seconds, &local) == NULL || strftime(out, 16, format, &local) == 0)
        out[0] = '\0';
    return out;
}

const char *app_clock(const app *a, char out[16]) {
    return format_time(a->wall_ms, "%H:%M", out);
}

const char *app_time_of(int64_t wall_ms, char out[16]) {
    bool is_old = (int64_t)clock_wall_ms() - wall_ms > 20 * 3600 * 1000;
    return format_time(wall_ms, is_old ? "%m-%d %H:%M" : "%H:%M", out);
}

/* --- drawing --- */

static void draw_too_small(app *a) {
    pen p = pen_on(&a->frame, canvas_area(&a->frame));
    char text[64];
    snprintf(text, sizeof text, "%dx%d: needs 40x8", a->n_columns, a->n_rows);
    pen_role(&p, ROLE_WARN);
    pen_cut(&p, text, a->n_columns, "");
}

static void draw_screen(app *a, int *cursor_row, int *cursor_column) {
    area box = {1, 0, a->n_rows - 1, a->n_columns};
    part_tabs_draw(a, (area){0, 0, 1, a->n_columns});
    switch (a->screen) {
    case SCREEN_HOME:
        screen_home_draw(a, box);
        break;
    case SCREEN_DASH:
        screen_dash_draw(a, box);
        break;
    case SCREEN_SETUP:
        screen_setup_draw(a, box, cursor_row, cursor_column);
        break;
    default:
        screen_chat_draw(a, box, cursor_row, cursor_column);
        break;
    }
    if (a->prompt.is_open && a->screen != SCREEN_CHAT) {
        pen p = pen_on(&a->frame, (area){a->n_rows - 1, 0, 1, a->n_columns});
        pen_blank_to(&p, a->n_columns);
        pen_move(&p, 0, 0);
        pen_printf(&p, "%c%s", a->prompt.label, buf_cstr(&a->prompt.text));
        *cursor_row = a->n_rows - 1;
        *cursor_column = p.column < a->n_columns ? p.column : a->n_columns - 1;
        pen_role(&p, ROLE_DIM);
        pen_str(&p, "  ");
        pen_cut(&p, a->prompt.hint, pen_left(&p), a->look->glyphs->ellipsis);
    }
    part_overlay_draw(a, box, cursor_row, cursor_column);
}

static void draw(app *a) {
    int cursor_row = -1, cursor_column = 0;
    canvas_blank(&a->frame);
    if (a->n_columns < 40 || a->n_rows < 8)
        draw_too_small(a);
    else
        draw_screen(a, &cursor_row, &cursor_column);
    term_draw(a->term, &a->frame, cursor_row, cursor_column);
    a->is_dirty = a->is_urgent = false;
}

static void take_size(app *a) {
    term_size(a->term, &a->n_rows, &a->n_columns);
    canvas_resize(&a->frame, a->n_rows, a->n_columns);
    a->is_dirty = a->is_urgent = true;
}

/* --- events --- */

typedef struct timing {
    uint64_t frame_due_ms, resize_due_ms;
} timing;

static void suspend(app *a) {
    struct sigaction old, stop = {.sa_handler = SIG_DFL};
    a->wants_suspend = false;
    app_keep_draft(a, true);
    term_suspend(a->term);
    sigaction(SIGTSTP, &stop, &old);
    kill(0, SIGTSTP);
    sigaction(SIGTSTP, &old, NULL);
    term_resume(a->term);
    take_size(a);
}

static void take_signals(app *a, timing *t) {
    unsigned char byte;
    while (read(signal_pipe[0], &byte, 1) == 1) {
        switch (byte) {
        case SIGWINCH:
            t->resize_due_ms = a->now_ms + RESIZE_QUIET_MS;
            break;
        case SIGTSTP:
            a->wants_suspend = true;
            break;
        case SIGCONT:
        case SIGUSR1:
            a->wants_redraw = true;
            break;
        default:
            a->is_leaving = true;
            break;
        }
    }
}

static void take_reply(app *a, const input_event *ev) {
    if (ev->reply == INPUT_REPLY_SYNC && ev->code == 1) term_set_sync(a->term);
    if (ev->reply == INPUT_REPLY_KITTY) term_set_kitty(a->term);
}

static void take_input(app *a) {
    char bytes[65536];
    input_event ev;
    ssize_t n = read(term_input_fd(a->term), bytes, sizeof bytes);
    if (n > 0) input_feed(&a->in, bytes, (size_t)n);
    /* A terminal that is gone: keep everything and end. */
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        a->is_leaving = true;
    while (!a->is_leaving && !a->wants_suspend && !a->wants_editor &&
           input_next(&a->in, a->now_ms, &ev)) {
        if (ev.kind == INPUT_REPLY)
            take_reply(a, &ev);
        else
            app_key(a, &ev);
    }
}

/* Keys that wait in the decoder, and those that came while an editor or a suspension was due. */
static void take_waiting_input(app *a) {
    input_event ev;
    while (!a->is_leaving && !a->wants_suspend && !a->wants_editor &&
           input_next(&a->in, a->now_ms, &ev)) {
        if (ev.kind == INPUT_REPLY)
            take_reply(a, &ev);
        else
            app_key(a, &ev);
    }
}

static void take_wishes(app *a) {
    if (a->wants_suspend) suspend(a);
    if (a->wants_editor) {
        a->wants_editor = false;
        app_run_editor(a);
        take_size(a);
    }
    if (!a->wants_redraw) return;
    a->wants_redraw = false;
    term_resize(a->term);
    term_redraw(a->term);
    take_size(a);
}

static void tick(app *a, timing *t) {
    if (t->resize_due_ms != 0 && a->now_ms >= t->resize_due_ms) {
        t->resize_due_ms = 0;
        if (term_resize(a->term)) take_size(a);
    }
    chat_tick(&a->chat, a->now_ms);
    app_engine_tick(a);
    if (gauges_tick(&a->gauges, a->now_ms)) a->is_dirty = true;
    app_keep_draft(a, false);
    if (a->screen == SCREEN_HOME && a->now_ms >= a->sessions_due_ms) app_load_sessions(a);
    if (a->screen == SCREEN_HOME) screen_home_tick(a);
    /* What waited is on its way: the rate of its reply takes the line. */
    bool is_told = a->is_hint_of_waiting && chat_is_busy(&a->chat);
    if (a->hint[0] != '\0' && (is_told || a->now_ms >= a->hint_until_ms)) {
        a->hint[0] = '\0';
        a->is_dirty = true;
    }
    if (a->prefix != 0 && a->now_ms - a->prefix_ms > PREFIX_MS) a->prefix = 0;
    const char *notice = chat_take_notice(&a->chat);
    if (notice != NULL) {
        app_hint(a, "%s", notice);
        a->chat.notice[0] = '\0';
    }
    if (chat_is_busy(&a->chat) && a->now_ms - a->shown_ms >= SHOWN_MS) {
        a->shown_ms = a->now_ms;
        a->shown_rate = chat_rate(&a->chat, a->now_ms);
        a->shown_pieces = a->chat.n_pieces;
        a->is_dirty = true;
    }
}

static int least(int a, int b) {
    if (a < 0) return b;
    return b < 0 || a < b ? a : b;
}

static int until(uint64_t due, uint64_t now) {
    return due <= now ? 0 : (int)(due - now);
}

static int wait_ms(const app *a, const timing *t) {
    int wait = app_engine_wait_ms(a);
    wait = least(wait, client_timeout_ms(a->engine));
    wait = least(wait, input_wait_ms(&a->in, a->now_ms));
    if (t->resize_due_ms != 0) wait = least(wait, until(t->resize_due_ms, a->now_ms));
    if (a->is_dirty) wait = least(wait, until(t->frame_due_ms, a->now_ms));
    if (a->is_urgent) wait = 0;
    if (chat_is_busy(&a->chat)) wait = least(wait, SHOWN_MS);
    return wait;
}

static void frame(app *a, timing *t) {
    bool is_due = a->is_urgent || (a->is_dirty && a->now_ms >= t->frame_due_ms);
    if (!is_due) return;
    if (term_is_behind(a->term)) {
        t->frame_due_ms = a->now_ms + FRAME_BEHIND_MS;
        a->is_urgent = false;
        a->is_dirty = true;
        return;
    }
    draw(a);
    t->frame_due_ms = a->now_ms + (a->is_remote ? FRAME_REMOTE_MS : FRAME_MS);
}

static void run(app *a) {
    timing t = {0};
    take_size(a);
    while (!a->is_leaving) {
        struct pollfd fds[5] = {
            {.fd = term_input_fd(a->term), .events = POLLIN},
            {.fd = signal_pipe[0], .events = POLLIN},
            {.fd = client_fd(a->engine), .events = POLLIN},
            {.fd = a->start != NULL ? launch_fd(a->start) : -1, .events = POLLIN},
            {.fd = wizard_fd(a->wizard), .events = POLLIN},
        };
        int n = poll(fds, 5, wait_ms(a, &t));
        a->now_ms = clock_mono_ms();
        a->wall_ms = (int64_t)clock_wall_ms();
        a->chat.now_ms = a->now_ms;
        /* Keys first, so that a stop is never behind the text it stops. */
        if (n > 0 && fds[0].revents != 0)
            take_input(a);
        else
            take_waiting_input(a);
        if (n > 0 && fds[1].revents != 0) take_signals(a, &t);
        int64_t pieces = a->chat.n_pieces;
        chat_phase phase = a->chat.phase;
        client_pump(a->engine);
        if (n > 0 && fds[4].revents != 0 && wizard_pump(a->wizard)) a->is_dirty = true;
        if (pieces != a->chat.n_pieces || phase != a->chat.phase) a->is_dirty = true;
        tick(a, &t);
        take_wishes(a);
        if (!a->is_leaving) frame(a, &t);
    }
}

/* --- opening and closing --- */

static int open_paths(app *a, buf *history, err *e) {
    buf dir = BUF_INIT, path = BUF_INIT;
    int rc = session_dir(&dir, e);
    if (rc != OK) goto out;
    str_copy(a->session_dir, sizeof a->session_dir, buf_cstr(&dir));
    if (a->options->socket_path != NULL)
        str_copy(a->socket_path, sizeof a->socket_path, a->options->socket_path);
    else {
        if ((rc = paths_socket(&path, e)) != OK) goto out;
        str_copy(a->socket_path, sizeof a->socket_path, buf_cstr(&path));
    }
    buf_reset(&dir);
    if ((rc = paths_state(&dir, e)) != OK) goto out;
    buf_printf(history, "%s/history", buf_cstr(&dir));
    buf_reset(&dir);
    if ((rc = paths_config(&dir, e)) != OK) goto out;
    buf_reset(&path);
    buf_printf(&path, "%s/keys.conf", buf_cstr(&dir));
    rc = keymap_load(buf_cstr(&path), e);
out:
    buf_release(&dir);
    buf_release(&path);
    return rc;
}

static void open_state(app *a) {
    a->screen = a->last_screen = SCREEN_CHAT;
    a->is_input_focused = true;
    a->has_panel = true;
    a->window_s = 60;
    a->shown_rate = (double)NAN;
    a->scroll.is_following = true;
    a->is_remote = getenv("SSH_CONNECTION") != NULL;
    a->now_ms = clock_mono_ms();
    a->wall_ms = (int64_t)clock_wall_ms();
    gauges_init(&a->gauges);
    alerts_init(&a->alerts);
    a->one_node = -1;
    a->wizard = wizard_new(a->options->head_root, a->options->worker_root);
    input_init(&a->in, a->is_remote ? ESC_REMOTE_MS : ESC_LOCAL_MS);
    canvas_init(&a->frame);
}

static int open_first_session(app *a, err *e) {
    const char *name = a->options->session;
    if (name == NULL && a->options->continue_last) {
        app_load_sessions(a);
        if (a->n_sessions > 0) name = a->sessions[0].name;
    }
    if (name != NULL) {
        int rc = chat_load(&a->chat, name, e);
        if (rc != OK) return rc;
    }
    app_load_draft(a);
    return OK;
}

static int open_all(app *a, err *e) {
    buf history = BUF_INIT;
    int rc = open_paths(a, &history, e);
    if (rc == OK) rc = part_input_open(buf_cstr(&history), &a->input, e);
    if (rc == OK) rc = client_open(a->socket_path, &a->engine, e);
    if (rc == OK) rc = chat_open(&a->chat, a->engine, a->session_dir, e);
    if (rc == OK) a->drafts = draft_keeper_new(a->session_dir);
    if (rc == OK) rc = open_first_session(a, e);
    const term_options look = {a->options->ascii, a->options->color};
    if (rc == OK) rc = term_open(&look, &a->term, e);
    if (rc == OK) a->look = term_theme(a->term);
    buf_release(&history);
    return rc;
}

static void close_all(app *a) {
    if (a->drafts != NULL) app_keep_draft(a, true);
    term_close(a->term);
    draft_keeper_free(a->drafts);
    if (a->start != NULL) launch_close(a->start);
    app_pair_close(a);
    wizard_free(a->wizard);
    chat_close(&a->chat);
    if (a->engine != NULL) client_close(a->engine);
    part_input_close(a->input);
    input_release(&a->in);
    canvas_release(&a->frame);
    buf_release(&a->prompt.text);
    buf_release(&a->overlay_text);
    buf_release(&a->help_filter);
    buf_release(&a->draft_saved);
    mem_free(a->sessions);
}

static void start_screen(app *a) {
    static const char *const NAMES[] = {"home", "chat", "dash", "setup"};
    for (int i = 0; a->options->screen != NULL && i < N_SCREENS; i++) {
        if (str_eq(a->options->screen, NAMES[i])) app_go(a, (app_screen)i);
    }
    if (a->options->mouse != NULL && str_eq(a->options->mouse, "on")) {
        a->wants_mouse = true;
        term_set_mouse(a->term, true);
    }
    term_ask(a->term);
    if (a->options->is_first_run) {
        a->overlay = OVERLAY_WELCOME;
        app_go(a, SCREEN_HOME);
    }
    app_start_engine(
        a, a->options->may_start && !a->options->is_first_run && a->screen != SCREEN_SETUP);
}

/* Libraries that print must not write over the screen: standard error goes to a file meanwhile. */
static int divert_errors(void) {
    buf dir = BUF_INIT, path = BUF_INIT;
    int kept = -1;
    if (paths_logs(&dir, NULL) == OK && dir_make_all(buf_cstr(&dir), 0700, NULL) == OK) {
        buf_printf(&path, "%s/screen.log", buf_cstr(&dir));
        int fd =
            open(buf_cstr(&path), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0) {
            kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
            if (kept >= 0) dup2(fd, STDERR_FILENO);
            close(fd);
        }
    }
    buf_release(&dir);
    buf_release(&path);
    return kept;
}

static void restore_errors(int kept) {
    if (kept < 0) return;
    dup2(kept, STDERR_FILENO);
    close(kept);
}

int app_run(const app_options *o, err *e) {
    struct sigaction old[N_SIGNALS];
    char farewell[160] = "";
    if (term_check(e) != OK) return EXIT_REFUSED;
    if (catch_signals(old, e) != OK) return EXIT_INTERNAL;
    app *a = mem_alloc(sizeof *a);
    a->options = o;
    open_state(a);
    int rc = open_all(a, e), kept = -1;
    if (rc == OK) {
        kept = divert_errors();
        start_screen(a);
        run(a);
        if (session_n_turns(a->chat.open) > 0) {
            snprintf(farewell, sizeof farewell, "session kept; go on with: tandem chat -r %s",
                session_name(a->chat.open));
        }
    }
    close_all(a);
    restore_errors(kept);
    release_signals(old);
    mem_free(a);
    if (farewell[0] != '\0') puts(farewell);
    return rc == OK ? EXIT_OK : EXIT_REFUSED;
}
