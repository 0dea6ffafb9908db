/* One row of text per changed canvas row goes to curses, which finds the cheapest way to bring it
 * to the terminal. Clusters that a curses cell cannot hold, or whose width terminals disagree
 * about, are handled after it: curses gets a no-break space in their place (which nothing else
 * uses, so it always rewrites the cell later), and their rows are written once more with absolute
 * positions, so that a wrong guess never moves what stands to their right. */
#include "tui/term.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/width.h"

/* Last, and without the macros that take ordinary names. */
#define NCURSES_WIDECHAR 1
#include <curses.h>
#include <term.h>
#undef columns
#undef lines

#define BEHIND_BYTES 8192
#define COPY_MAX_BYTES 74000

struct terminal {
    SCREEN *screen;
    theme look;
    canvas shown; /* what the terminal shows */
    bool is_shown_valid;
    int cursor_row, cursor_column;
    int n_rows, n_columns;
    bool has_sync, has_kitty, has_mouse, has_wheel, can_ask;
    buf direct; /* bytes that go round curses, gathered for one write */
};

/* For the fatal signals: everything prepared, nothing computed in the handler. */
static struct {
    volatile sig_atomic_t is_armed;
    struct termios modes;
    char bytes[256];
    size_t len;
} rescue;

static const int FATAL[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

static void write_all(const char *s, size_t n) {
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, s, n);
        if (done < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN) return;
            struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
            if (poll(&p, 1, 200) <= 0) return;
            continue;
        }
        s += done;
        n -= (size_t)done;
    }
}

static void rescue_terminal(void) {
    if (!rescue.is_armed) return;
    rescue.is_armed = 0;
    write_all(rescue.bytes, rescue.len);
    tcsetattr(STDIN_FILENO, TCSANOW, &rescue.modes);
}

static void on_fatal(int sig) {
    rescue_terminal();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void on_check(const char *msg) {
    rescue_terminal();
    write_all("tandem: ", 8);
    if (write(STDERR_FILENO, msg, strlen(msg)) > 0) write_all("\r\n", 2);
}

/* Appends a terminfo string without its padding marks. */
static void add_capability(buf *out, const char *name) {
    const char *s = tigetstr(name);
    if (s == NULL || s == (const char *)-1) return;
    while (*s != '\0') {
        if (s[0] == '$' && s[1] == '<') {
            const char *end = strchr(s, '>');
            if (end != NULL) {
                s = end + 1;
                continue;
            }
        }
        buf_putc(out, *s++);
    }
}

static void prepare_rescue(const terminal *t) {
    buf b = BUF_INIT;
    if (t->has_sync) buf_puts(&b, "\033[?2026l");
    if (t->has_kitty) buf_puts(&b, "\033[<u");
    buf_puts(&b, "\033[?2004l");
    if (t->has_mouse) buf_puts(&b, "\033[?1002l\033[?1006l");
    if (t->has_wheel) buf_puts(&b, "\033[?1007l");
    add_capability(&b, "sgr0");
    add_capability(&b, "cnorm");
    add_capability(&b, "rmcup");
    CHECK(b.len <= sizeof rescue.bytes);
    memcpy(rescue.bytes, buf_cstr(&b), b.len);
    rescue.len = b.len;
    buf_release(&b);
}

static void arm_rescue(void) {
    rescue.is_armed = 1;
    struct sigaction action = {.sa_handler = on_fatal, .sa_flags = (int)SA_RESETHAND | SA_NODEFER};
    for (size_t i = 0; i < sizeof FATAL / sizeof FATAL[0]; i++)
        sigaction(FATAL[i], &action, NULL);
    crash_set_hook(on_check);
}

static void disarm_rescue(void) {
    rescue.is_armed = 0;
    for (size_t i = 0; i < sizeof FATAL / sizeof FATAL[0]; i++)
        signal(FATAL[i], SIG_DFL);
    crash_set_hook(NULL);
}

int term_check(err *e) {
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
        return err_set(e, ERR_UNSUPPORTED,
            "the full screen needs a terminal on standard input and output; use "
            "`tandem chat --plain` or `tandem ask` in a pipe");
    }
    const char *name = getenv("TERM");
    if (name == NULL || name[0] == '\0') {
        return err_set(e, ERR_UNSUPPORTED,
            "TERM is not set, so the terminal's kind is unknown; set it (for example "
            "TERM=xterm-256color) or use `tandem chat --plain`");
    }
    int status = 0;
    if (setupterm(name, STDOUT_FILENO, &status) != OK || status != 1) {
        return err_set(e, ERR_UNSUPPORTED,
            "the terminal kind TERM=%.60s is not in the terminfo database; set TERM to a "
            "known one (for example xterm-256color) or use `tandem chat --plain`",
            name);
    }
    const char *move_to = tigetstr("cup");
    bool can_move = move_to != NULL && move_to != (const char *)-1;
    del_curterm(cur_term);
    if (can_move) return OK;
    return err_set(e, ERR_UNSUPPORTED,
        "the terminal kind TERM=%.60s cannot place the cursor; use `tandem chat --plain`", name);
}

static void read_size(terminal *t) {
    struct winsize w;
    t->n_rows = LINES;
    t->n_columns = COLS;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_row > 0 && w.ws_col > 0) {
        t->n_rows = w.ws_row;
        t->n_columns = w.ws_col;
    }
    if (t->n_rows > 1000) t->n_rows = 1000;
    if (t->n_columns > 2000) t->n_columns = 2000;
}

static void start_colors(const terminal *t) {
    if (t->look.colors == COLORS_NONE || start_color() != OK) return;
    use_default_colors();
    for (int i = 0; i < N_ROLES; i++) {
        int color = theme_role(&t->look, (canvas_role)i).color;
        init_pair((short)(i + 1), (short)(color < COLORS ? color : -1), -1);
    }
}

static bool knows_queries(const char *name) {
    static const char *const KNOWN[] = {"xterm", "tmux", "screen", "foot", "alacritty", "ghostty",
        "wezterm", "rxvt", "kitty", "st-"};
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++) {
        if (str_starts(name, KNOWN[i])) return true;
    }
    return false;
}

static void set_modes(terminal *t) {
    raw();
    noecho();
    nonl();
    intrflush(stdscr, FALSE);
    typeahead(-1);
    idlok(stdscr, TRUE);
    leaveok(stdscr, FALSE);
    resizeterm(t->n_rows, t->n_columns);
}

int term_open(const term_options *o, terminal **out, err *e) {
    int rc = term_check(e);
    if (rc != OK) return rc;
    if (setlocale(LC_ALL, "") == NULL) setlocale(LC_ALL, "C");
    setlocale(LC_NUMERIC, "C");
    if (tcgetattr(STDIN_FILENO, &rescue.modes) != 0) {
        return err_errno(e, "the terminal's modes cannot be read");
    }
    const char *name = getenv("TERM");
    terminal *t = mem_alloc(sizeof *t);
    t->screen = newterm(NULL, stdout, stdin);
    if (t->screen == NULL) {
        mem_free(t);
        return err_set(e, ERR_UNSUPPORTED,
            "the terminal kind TERM=%.60s cannot show a full screen; "
            "use `tandem chat --plain`",
            name);
    }
    bool is_utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    /* The text inside is UTF-8 whatever the terminal can show: readline must edit by character. */
    if (!is_utf8 && setlocale(LC_CTYPE, "C.UTF-8") == NULL) setlocale(LC_CTYPE, "en_US.UTF-8");
    bool is_console = strcmp(name, "linux") == 0;
    t->look = theme_choose(o->color, tigetnum("colors"), is_utf8, o->plain_glyphs || is_console);
    t->can_ask = knows_queries(name);
    t->cursor_row = -1;
    canvas_init(&t->shown);
    prepare_rescue(t);
    arm_rescue();
    start_colors(t);
    read_size(t);
    set_modes(t);
    write_all("\033[?2004h", 8);
    *out = t;
    return OK;
}

void term_close(terminal *t) {
    if (t == NULL) return;
    endwin();
    tcflush(STDIN_FILENO, TCIFLUSH);
    rescue_terminal();
    disarm_rescue();
    delscreen(t->screen);
    canvas_release(&t->shown);
    buf_release(&t->direct);
    mem_free(t);
}

int term_input_fd(const terminal *t) {
    (void)t;
    return STDIN_FILENO;
}

const theme *term_theme(const terminal *t) {
    return &t->look;
}

void term_size(const terminal *t, int *n_rows, int *n_columns) {
    *n_rows = t->n_rows;
    *n_columns = t->n_columns;
}

bool term_resize(terminal *t) {
    int rows = t->n_rows, columns = t->n_columns;
    read_size(t);
    if (rows == t->n_rows && columns == t->n_columns) return false;
    resizeterm(t->n_rows, t->n_columns);
    term_redraw(t);
    return true;
}

void term_redraw(terminal *t) {
    t->is_shown_valid = false;
    clearok(curscr, TRUE);
}

bool term_is_behind(const terminal *t) {
    (void)t;
    int waiting = 0;
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) == 0) return true;
    return ioctl(STDOUT_FILENO, TIOCOUTQ, &waiting) == 0 && waiting > BEHIND_BYTES;
}

static attr_t curses_attributes(const terminal *t, style st) {
    int flags = st.flags | theme_role(&t->look, (canvas_role)st.role).flags;
    attr_t a = A_NORMAL;
    if (flags & STYLE_BOLD) a |= A_BOLD;
    if (flags & STYLE_DIM) a |= A_DIM;
    if (flags & STYLE_UNDERLINE) a |= A_UNDERLINE;
    if (flags & STYLE_REVERSE) a |= A_REVERSE;
#ifdef A_ITALIC
    if (flags & STYLE_ITALIC) a |= A_ITALIC;
#endif
    return a;
}

/* The cell as wide characters for curses; false when curses cannot hold it as we count it. */
static bool cell_to_wide(const cell *k, wchar_t out[CCHARW_MAX + 1]) {
    int n = 0;
    if (k->is_special) return false;
    for (size_t at = 0; at < k->len;) {
        uint32_t c;
        size_t len = utf8_decode(k->text + at, k->len - at, &c);
        if (n == CCHARW_MAX || len == 0) return false;
        int columns = wcwidth((wchar_t)c);
        if (columns != (n == 0 ? k->columns : 0)) return false;
        out[n++] = (wchar_t)c;
        at += len;
    }
    out[n] = L'\0';
    return true;
}

static void put_row(const terminal *t, const canvas *c, int row) {
    for (int i = 0; i < c->n_columns; i++) {
        const cell *k = canvas_at(c, row, i);
        if (k->columns == 0) continue;
        wchar_t wide[CCHARW_MAX + 1] = L" ";
        bool is_ascii = k->len <= 1;
        int n_blank = 1;
        if (k->len == 1) wide[0] = (wchar_t)(unsigned char)k->text[0];
        if (!is_ascii && !t->look.glyphs->has_utf8) {
            wide[0] = L'?';
            n_blank = k->columns;
        } else if (!is_ascii && !cell_to_wide(k, wide)) {
            wide[0] = L'\u00a0';
            wide[1] = L'\0';
            n_blank = k->columns;
        }
        cchar_t out;
        short pair = t->look.colors == COLORS_NONE ? 0 : (short)(k->st.role + 1);
        setcchar(&out, wide, curses_attributes(t, k->st), pair, NULL);
        for (int j = 0; j < n_blank; j++)
            mvadd_wch(row, i + j, &out);
    }
}

/* --- rows that go round curses --- */

static void add_bytes(buf *out, const char *s) {
    if (s != NULL) buf_puts(out, s);
}

static void direct_style(terminal *t, style st) {
    theme_look look = theme_role(&t->look, (canvas_role)st.role);
    int flags = st.flags | look.flags;
    add_bytes(&t->direct, exit_attribute_mode);
    if (flags & STYLE_BOLD) add_bytes(&t->direct, enter_bold_mode);
    if (flags & STYLE_DIM) add_bytes(&t->direct, enter_dim_mode);
    if (flags & STYLE_UNDERLINE) add_bytes(&t->direct, enter_underline_mode);
    if (flags & STYLE_REVERSE) add_bytes(&t->direct, enter_reverse_mode);
    if (look.color >= 0 && set_a_foreground != NULL) {
        add_bytes(&t->direct, tparm(set_a_foreground, look.color, 0, 0, 0, 0, 0, 0, 0, 0));
    }
}

static bool is_odd(const terminal *t, const cell *k) {
    wchar_t wide[CCHARW_MAX + 1];
    return k->len > 1 && t->look.glyphs->has_utf8 && !cell_to_wide(k, wide);
}

static int first_odd(const terminal *t, const canvas *c, int row) {
    for (int i = 0; i < c->n_columns; i++) {
        if (is_odd(t, canvas_at(c, row, i))) return i;
    }
    return -1;
}

static void direct_row(terminal *t, const canvas *c, int row, int from) {
    bool must_move = true;
    style now = {N_ROLES, 0};
    for (int i = from; i < c->n_columns; i++) {
        const cell *k = canvas_at(c, row, i);
        if (k->columns == 0) continue;
        if (must_move) add_bytes(&t->direct, tparm(cursor_address, row, i, 0, 0, 0, 0, 0, 0, 0));
        if (k->st.role != now.role || k->st.flags != now.flags) direct_style(t, k->st);
        now = k->st;
        if (k->len == 0)
            buf_putc(&t->direct, ' ');
        else
            buf_append(&t->direct, k->text, k->len);
        must_move = is_odd(t, k);
    }
}

static void draw_odd_rows(terminal *t, const canvas *c) {
    buf_reset(&t->direct);
    for (int row = 0; row < c->n_rows; row++) {
        if (t->is_shown_valid && canvas_same_row(c, &t->shown, row)) continue;
        int from = first_odd(t, c, row);
        if (from < 0) continue;
        if (t->direct.len == 0) add_bytes(&t->direct, save_cursor);
        direct_row(t, c, row, from);
    }
    if (t->direct.len == 0) return;
    add_bytes(&t->direct, restore_cursor);
    write_all(t->direct.data, t->direct.len);
}

static bool has_changed(const terminal *t, const canvas *c, int row, int column) {
    if (!t->is_shown_valid || row != t->cursor_row || column != t->cursor_column) return true;
    for (int i = 0; i < c->n_rows; i++) {
        if (!canvas_same_row(c, &t->shown, i)) return true;
    }
    return false;
}

void term_draw(terminal *t, const canvas *c, int cursor_row, int cursor_column) {
    if (c->n_rows != t->n_rows || c->n_columns != t->n_columns) return;
    if (t->shown.n_rows != c->n_rows || t->shown.n_columns != c->n_columns) {
        canvas_resize(&t->shown, c->n_rows, c->n_columns);
        t->is_shown_valid = false;
    }
    if (!has_changed(t, c, cursor_row, cursor_column)) return;
    for (int row = 0; row < c->n_rows; row++) {
        if (!t->is_shown_valid || !canvas_same_row(c, &t->shown, row)) put_row(t, c, row);
    }
    if (t->has_sync) write_all("\033[?2026h", 8);
    curs_set(cursor_row >= 0 ? 1 : 0);
    if (cursor_row >= 0) move(cursor_row, cursor_column);
    refresh();
    draw_odd_rows(t, c);
    if (t->has_sync) write_all("\033[?2026l", 8);
    canvas_copy(&t->shown, c);
    t->is_shown_valid = true;
    t->cursor_row = cursor_row;
    t->cursor_column = cursor_column;
}

/* --- modes --- */

void term_ask(terminal *t) {
    if (!t->can_ask) return;
    static const char ASK[] = "\033[?2026$p\033[?u\033[c";
    write_all(ASK, sizeof ASK - 1);
}

void term_set_sync(terminal *t) {
    t->has_sync = true;
    prepare_rescue(t);
}

void term_set_kitty(terminal *t) {
    if (t->has_kitty) return;
    t->has_kitty = true;
    prepare_rescue(t);
    write_all("\033[>1u", 5);
}

void term_set_mouse(terminal *t, bool on) {
    if (on == t->has_mouse) return;
    static const char ON[] = "\033[?1002h\033[?1006h", OFF[] = "\033[?1002l\033[?1006l";
    t->has_mouse = on;
    prepare_rescue(t);
    write_all(on ? ON : OFF, sizeof ON - 1);
}

void term_set_wheel(terminal *t, bool on) {
    if (on == t->has_wheel) return;
    t->has_wheel = on;
    prepare_rescue(t);
    write_all(on ? "\033[?1007h" : "\033[?1007l", 8);
}

void term_suspend(terminal *t) {
    (void)t;
    def_prog_mode();
    endwin();
    write_all(rescue.bytes, rescue.len);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &rescue.modes);
}

void term_resume(terminal *t) {
    reset_prog_mode();
    write_all("\033[?2004h", 8);
    if (t->has_kitty) write_all("\033[>1u", 5);
    if (t->has_mouse) write_all("\033[?1002h\033[?1006h", 16);
    if (t->has_wheel) write_all("\033[?1007h", 8);
    refresh();
    term_resize(t);
    term_redraw(t);
}

void term_bell(terminal *t) {
    (void)t;
    write_all("\a", 1);
}

static void base64(buf *out, const unsigned char *s, size_t n) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        unsigned v = (unsigned)s[i] << 16;
        if (left > 1) v |= (unsigned)s[i + 1] << 8;
        if (left > 2) v |= s[i + 2];
        buf_putc(out, DIGITS[v >> 18]);
        buf_putc(out, DIGITS[(v >> 12) & 63]);
        buf_putc(out, left > 1 ? DIGITS[(v >> 6) & 63] : '=');
        buf_putc(out, left > 2 ? DIGITS[v & 63] : '=');
    }
}

int term_copy(terminal *t, const char *text, size_t len, err *e) {
    if (len > COPY_MAX_BYTES) {
        return err_set(
            e, ERR_LIMIT, "%zu bytes are too much for the terminal's clipboard (74 KB)", len);
    }
    buf_reset(&t->direct);
    buf_puts(&t->direct, "\033]52;c;");
    base64(&t->direct, (const unsigned char *)text, len);
    buf_puts(&t->direct, "\a");
    write_all(t->direct.data, t->direct.len);
    return OK;
}
