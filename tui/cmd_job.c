/* Starting, watching and steering detached jobs from the shell. */
#include "tui/cmd_job.h"

#include <errno.h>
#include <langinfo.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/privilege.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "tui/cmd_job_view.h"
#include "tui/width.h"

enum { WATCH_MS = 500, STATUS_MS = 500, MAX_ARGS = 32, LOG_LINES = 8 };
#define LOG_MAX_BYTES ((size_t)8 << 20)

/* The working side. */

void cmd_job_status_put(cmd_job_status *s, const char *state, const char *message, bool is_last) {
    buf out = BUF_INIT;
    json_w w;
    err e = ERR_INIT;
    uint64_t now = clock_mono_ms();
    if (!is_last && now < s->next_ms) return;
    s->next_ms = now + STATUS_MS;
    json_w_begin(&w, &out);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    json_w_kstr(&w, "job", s->name);
    json_w_kstr(&w, "state", state);
    json_w_kstr(&w, "message", message);
    json_w_kstr(&w, "profile", s->profile);
    json_w_ki64(&w, "pid", getpid());
    json_w_ku64(&w, "time_ms", clock_wall_ms());
    if (s->fill != NULL) s->fill(s->ctx, &w);
    json_w_close(&w);
    if (json_w_end(&w) == OK) {
        buf_putc(&out, '\n');
        if (job_status_write(s->j, out.data, out.len, &e) != OK)
            LOG(LOG_WARN, "job", "status not written", "reason=%s", e.msg);
    }
    buf_release(&out);
}

int cmd_job_end(cmd_job_status *s, int rc, bool is_cancelled, const err *e) {
    const char *state = rc == OK                                   ? "done"
                        : rc == ERR_CANCELLED && is_cancelled      ? "cancelled"
                        : rc == ERR_FULL                           ? "full"
                        : rc == ERR_CANCELLED || rc == ERR_TIMEOUT ? "paused"
                                                                   : "failed";
    cmd_job_status_put(s, state, rc == OK ? NULL : e->msg, true);
    job_event(s->j, state, "%s", rc == OK ? "" : e->msg);
    if (rc != OK) fprintf(stderr, "tandem: %s\n", e->msg);
    return rc == OK ? EXIT_OK : EXIT_REFUSED;
}

static int work_here(const cmd_args *a, const cmd_job *c) {
    job *j = NULL;
    err e = ERR_INIT;
    log_open(&(log_options){.fd = 2, .level = LOG_INFO, .rank = -1});
    if (job_open(c->name, &j, &e) != OK) return cmd_fail(&e);
    job_event(j, "begun", "pid=%d", (int)getpid());
    cmd_stop_fd();
    int code = c->work(a, j);
    job_close(j);
    return code;
}

/* The watching side. */

static uint64_t number(const json *v, const char *key) {
    uint64_t n = 0;
    json_u64(json_get(v, key), &n);
    return n;
}

static double rate_of(const json *v, const char *key) {
    double n = 0;
    json_double(json_get(v, key), &n);
    return n;
}

/* One line about the whole. */
static void describe(const json *v, buf *out) {
    char done[32], total[32], rate[32], mean[32], left[32];
    uint64_t all = number(v, "total_bytes"), there = number(v, "done_bytes");
    double eta = rate_of(v, "eta_s");
    cmd_bytes_text((double)there, done);
    cmd_bytes_text((double)all, total);
    cmd_bytes_text(rate_of(v, "rate_now"), rate);
    cmd_bytes_text(rate_of(v, "rate_mean"), mean);
    buf_printf(out, "%s of %s (%.1f %%), %s/s (mean %s/s), verified %llu of %llu files", done,
        total, all > 0 ? 100.0 * (double)there / (double)all : 0.0, rate, mean,
        (unsigned long long)number(v, "n_ok"), (unsigned long long)number(v, "n_files"));
    if (str_eq(json_str(json_get(v, "phase")), "verifying")) buf_puts(out, ", reading back");
    if (eta > 0) buf_printf(out, ", %s left", cmd_time_text(eta, left));
    if (number(v, "wait_ms") > 0)
        buf_printf(out, ", waiting %llu s on request of the hub",
            (unsigned long long)(number(v, "wait_ms") + 999) / 1000);
}

typedef struct watcher {
    const cmd_job *c;
    bool is_ascii, is_json, is_terminal, is_last; /* is_last: the job has ended */
    bool is_in_place; /* the terminal can move up: rows are drawn over */
    bool is_asking_rate, is_asking_connections, is_log_shown, is_leaving;
    uint64_t shown_tenth, shown_ok;
    uint64_t last_time_ms;
    int n_drawn;   /* rows of the block on the terminal */
    char typed[8]; /* a number that is being asked for */
    theme look;
    job_view view;
    struct termios before; /* of the terminal, when has_keys */
    bool has_keys;
} watcher;

/* Per file: what ended since the last look; on a terminal also what is in work. */
static void show_files(watcher *w, const json *v) {
    uint64_t n = 0;
    JSON_EACH(f, json_get(v, "files")) {
        const char *state = json_str(json_get(f, "state"));
        n += str_eq(state, "ok") || str_eq(state, "failed");
    }
    if (n == w->shown_ok) return;
    w->shown_ok = n;
    cmd_printf("%llu of %llu files are verified\n", (unsigned long long)number(v, "n_ok"),
        (unsigned long long)number(v, "n_files"));
}

static int terminal_columns(void) {
    struct winsize z = {0};
    return ioctl(1, TIOCGWINSZ, &z) == 0 && z.ws_col > 0 ? z.ws_col : 80;
}

/* The newest lines of the job's log. */
static void read_log(const watcher *w, buf *out) {
    buf path = BUF_INIT, text = BUF_INIT;
    size_t from = 0;
    if (paths_state(&path, NULL) != OK) return;
    buf_printf(&path, "/logs/%s.log", w->c->name);
    buf_printf(out, "log: %s\n", buf_cstr(&path));
    if (file_read(buf_cstr(&path), &text, LOG_MAX_BYTES, NULL) == OK) {
        int n = 0;
        for (from = text.len; from > 0 && (text.data[from - 1] != '\n' || n++ < LOG_LINES);)
            from--;
        buf_append(out, buf_cstr(&text) + from, text.len - from);
    }
    buf_release(&path);
    buf_release(&text);
}

static void draw_block(watcher *w, const json *v) {
    struct winsize z = {0};
    buf rows = BUF_INIT, log = BUF_INIT;
    char foot[120];
    bool is_download = str_eq(w->c->name, "download");
    bool has_size = ioctl(1, TIOCGWINSZ, &z) == 0 && z.ws_col > 0 && z.ws_row > 0;
    w->view.n_columns = has_size ? z.ws_col : 80;
    w->view.n_rows = has_size ? z.ws_row : 24;
    snprintf(foot, sizeof foot, "%s",
        is_download ? "p pause  r rate  c connections  l log  q leave, it goes on"
                    : "p pause  l log  q leave, it goes on");
    if (w->is_asking_rate)
        snprintf(foot, sizeof foot, "limit in MB/s, 0 is none, then Enter: %s_", w->typed);
    if (w->is_asking_connections)
        snprintf(foot, sizeof foot, "connections, 1 to 32, then Enter: %s_", w->typed);
    w->view.foot = w->has_keys && !w->is_last && !w->is_leaving ? foot : NULL;
    if (w->is_log_shown) read_log(w, &log);
    w->view.notes = w->is_log_shown ? buf_cstr(&log) : NULL;
    /* The former block is drawn over, row by row; what is left of it is cleared. */
    if (w->n_drawn > 0) cmd_printf("\033[%dA\r\033[J", w->n_drawn);
    w->n_drawn = job_view_rows(&w->view, v, &rows);
    cmd_put(rows.data, rows.len);
    cmd_flush();
    buf_release(&rows);
    buf_release(&log);
}

static void show(watcher *w, const json *v, const buf *text) {
    buf line = BUF_INIT;
    uint64_t time_ms = number(v, "time_ms"), all = number(v, "total_bytes");
    /* Before the work is known there is no share of it; the end says by itself what was wrong. */
    if (all == 0 && !w->is_json) return;
    uint64_t tenth = all > 0 ? number(v, "done_bytes") * 10 / all : 0;
    if (w->is_in_place) {
        if (time_ms != w->last_time_ms) job_view_sample(&w->view, v);
        w->last_time_ms = time_ms;
        draw_block(w, v);
        return;
    }
    if (time_ms == w->last_time_ms && (!w->is_last || w->is_json || w->is_terminal)) return;
    w->last_time_ms = time_ms;
    describe(v, &line);
    if (w->is_json) {
        cmd_put(text->data, text->len);
    } else if (w->is_terminal) {
        (void)buf_cstr(&line);
        size_t fit = width_fit(line.data, line.len, terminal_columns() - 1, NULL);
        cmd_printf("\r%.*s", (int)fit, line.data);
    } else {
        show_files(w, v);
        if (tenth != w->shown_tenth || w->is_last) cmd_printf("%s\n", buf_cstr(&line));
        w->shown_tenth = tenth;
    }
    cmd_flush();
    buf_release(&line);
}

static int end_code(const cmd_job *c, const json *v) {
    const char *state = json_str(json_get(v, "state"));
    const char *message = json_str(json_get(v, "message"));
    if (str_eq(state, "done")) return EXIT_OK;
    if (str_eq(state, "failed") && message != NULL && number(v, "total_bytes") == 0) {
        cmd_note("%s: %s", c->name, message); /* refused before anything was begun */
        return EXIT_REFUSED;
    }
    /* The process is gone without a last word: killed. What it wrote is sound. */
    if (str_eq(state, "running")) message = "the job's process ended without a word";
    cmd_note("%s: %s%s`tandem %s` goes on", c->name, message != NULL ? message : "",
        message != NULL ? "; " : "", c->name);
    return EXIT_REFUSED;
}

/* Keys one by one, without echo; Ctrl-C stays a signal. */
static void keys_begin(watcher *w) {
    const char *term = getenv("TERM");
    w->is_in_place = w->is_terminal && term != NULL && term[0] != '\0' && !str_eq(term, "dumb");
    if (!w->is_in_place) return;
    bool is_utf8 = str_eq(nl_langinfo(CODESET), "UTF-8");
    w->look = theme_choose("none", 0, is_utf8, str_eq(term, "linux") || w->is_ascii);
    w->view = (job_view){.name = w->c->name, .look = &w->look};
    if (!isatty(0) || tcgetpgrp(0) != getpgrp() || tcgetattr(0, &w->before) != 0) return;
    struct termios raw = w->before;
    raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    w->has_keys = tcsetattr(0, TCSADRAIN, &raw) == 0;
}

static void keys_end(watcher *w) {
    if (w->has_keys) tcsetattr(0, TCSADRAIN, &w->before);
    w->has_keys = false;
}

/* A digit, Enter or a way out of the question. */
static void take_answer(watcher *w, char key) {
    size_t n = strlen(w->typed);
    uint64_t value = 0;
    err e = ERR_INIT;
    if (key >= '0' && key <= '9' && n + 2 < sizeof w->typed) {
        w->typed[n] = key;
        w->typed[n + 1] = '\0';
    } else if ((key == 127 || key == 8) && n > 0) {
        w->typed[n - 1] = '\0';
    } else if (key == '\r' || key == '\n') {
        bool is_number = parse_u64(w->typed, &value) == OK;
        job_command c = {JOB_RATE, value * 1000000};
        if (w->is_asking_connections) c = (job_command){JOB_CONNECTIONS, value};
        if (w->is_asking_connections && (value < 1 || value > 32)) return;
        if (is_number) (void)job_send(w->c->name, c, &e);
        w->is_asking_rate = w->is_asking_connections = false;
    } else if (key == 27) {
        w->is_asking_rate = w->is_asking_connections = false;
    }
}

static void take_key(watcher *w, char key) {
    bool is_download = str_eq(w->c->name, "download");
    err e = ERR_INIT;
    if (w->is_asking_rate || w->is_asking_connections) {
        take_answer(w, key);
        return;
    }
    w->typed[0] = '\0';
    if (key == 'q') w->is_leaving = true;
    if (key == 'p') (void)job_send(w->c->name, (job_command){JOB_PAUSE, 0}, &e);
    if (key == 'l') w->is_log_shown = !w->is_log_shown;
    w->is_asking_rate = is_download && key == 'r';
    w->is_asking_connections = is_download && key == 'c';
}

/* Waits for the next look; true when the person leaves. */
static bool wait_a_little(watcher *w) {
    struct pollfd p[2] = {
        {.fd = cmd_stop_fd(), .events = POLLIN}, {.fd = w->has_keys ? 0 : -1, .events = POLLIN}};
    char keys[64];
    if (poll(p, 2, WATCH_MS) <= 0) return false;
    if (p[0].revents != 0) return true;
    ssize_t n = read(0, keys, sizeof keys);
    if (n <= 0) { /* the terminal is gone */
        if (n == 0 || errno != EINTR) w->has_keys = false;
        return false;
    }
    /* More than one byte from Escape on is a key that means nothing here. */
    for (ssize_t i = 0; i < n && !(keys[0] == 27 && n > 1); i++)
        take_key(w, keys[i]);
    return w->is_leaving;
}

/* The newest status, shown; what the job ended with when it is over. */
static int look(watcher *w) {
    buf text = BUF_INIT;
    json *v = NULL;
    err e = ERR_INIT;
    int code = EXIT_OK, rc = job_status_read(w->c->name, &text, &e);
    if (rc == ERR_NOT_FOUND)
        err_set(&e, rc, "no %s has run yet; begin with: tandem %s", w->c->name, w->c->name);
    if (rc == OK) rc = json_parse(buf_cstr(&text), text.len, NULL, &v, &e);
    if (rc == OK) show(w, v, &text);
    if (w->is_last && w->is_terminal && !w->is_in_place) cmd_puts("\n");
    cmd_flush();
    if (w->is_last) code = rc == OK ? end_code(w->c, v) : cmd_fail(&e);
    json_free(v);
    buf_release(&text);
    return code;
}

/* Until the job ends or the person leaves. */
static int attach(const cmd_args *a, const cmd_job *c) {
    watcher w = {
        .c = c, .is_ascii = cmd_has(a, "ascii"), .is_json = cmd_has(a, "json"), .shown_tenth = 99};
    w.is_terminal = !w.is_json && isatty(1);
    int code = EXIT_OK;
    keys_begin(&w);
    for (;;) {
        w.is_last = !job_is_running(c->name); /* before reading: the last status must be seen */
        code = look(&w);
        if (w.is_last || !wait_a_little(&w)) {
            if (w.is_last) break;
            continue;
        }
        if (w.is_terminal && !w.is_in_place) cmd_puts("\n");
        cmd_flush();
        cmd_note(
            "the %s goes on in the background: `tandem %s --attach` shows it, --pause stops it",
            c->name, c->name);
        code = w.is_leaving ? EXIT_OK : EXIT_INTERRUPTED;
        break;
    }
    keys_end(&w);
    return cmd_finish(code);
}

static int steer(const cmd_job *c, job_command command, const char *done) {
    err e = ERR_INIT;
    if (job_send(c->name, command, &e) != OK) return cmd_fail(&e);
    for (uint64_t until = clock_mono_ms() + 15000;
         done != NULL && job_is_running(c->name) && clock_mono_ms() < until;)
        sleep_ms(50);
    if (done != NULL) cmd_note("the %s %s; what arrived is kept", c->name, done);
    return EXIT_OK;
}

/* The same command line with --job in front of its options. */
static int start(const cmd_args *a, const cmd_job *c, err *e) {
    char self[PATH_MAX], *argv[MAX_ARGS * 2 + 4];
    char *texts[MAX_ARGS];
    int n = 0, n_texts = 0;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len <= 0) return err_errno(e, "finding this program");
    self[len] = '\0';
    argv[n++] = self;
    argv[n++] = (char *)c->name;
    argv[n++] = (char *)"--job";
    for (int i = 0; i < a->n_given && n_texts < MAX_ARGS; i++) {
        buf text = BUF_INIT;
        const char *name = a->given[i].option->name;
        if (str_eq(name, "json") || str_eq(name, "background") || str_eq(name, "ascii")) continue;
        buf_printf(&text, "--%s%s%s", name, a->given[i].value != NULL ? "=" : "",
            a->given[i].value != NULL ? a->given[i].value : "");
        texts[n_texts] = buf_take(&text);
        argv[n++] = texts[n_texts++];
    }
    argv[n] = NULL;
    int rc = job_start(c->name, argv, e);
    for (int i = 0; i < n_texts; i++)
        mem_free(texts[i]);
    return rc;
}

/* What brings files in from other machines does not run as root. */
static int refuse_root(const cmd_job *c, err *e) {
    bool is_outside = str_eq(c->name, "download") || str_eq(c->name, "copy");
    return is_outside ? privilege_refuse_root(c->name, e) : OK;
}

int cmd_job_run(const cmd_args *a, const cmd_job *c) {
    err e = ERR_INIT;
    if (cmd_has(a, "job")) return work_here(a, c);
    if (cmd_has(a, "pause")) return steer(c, (job_command){JOB_PAUSE, 0}, "is paused");
    if (cmd_has(a, "cancel")) return steer(c, (job_command){JOB_CANCEL, 0}, "is cancelled");
    if (cmd_has(a, "attach")) return attach(a, c);
    if (refuse_root(c, &e) != OK) return cmd_fail(&e);
    if (!job_is_running(c->name) && start(a, c, &e) != OK) return cmd_fail(&e);
    if (cmd_has(a, "background")) {
        cmd_note("the %s runs in the background: `tandem %s --attach` shows it", c->name, c->name);
        return EXIT_OK;
    }
    return attach(a, c);
}
