#include "tui/cmd_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "tui/width.h"

/* Errors. */

/* Words of the other machine or of a tool may be in it: nothing of them steers the terminal. */
void cmd_note(const char *fmt, ...) {
    buf text = BUF_INIT, clean = BUF_INIT;
    width_cleaner c;
    va_list ap;
    va_start(ap, fmt);
    (void)buf_vprintf(&text, fmt, ap);
    va_end(ap);
    width_cleaner_reset(&c);
    (void)width_clean(&c, buf_cstr(&text), text.len, &clean);
    (void)width_clean_end(&c, &clean);
    fprintf(stderr, "tandem: %s\n", buf_cstr(&clean));
    buf_release(&text);
    buf_release(&clean);
}

static int show(const err *e) {
    cmd_flush();
    cmd_note("%s", e->msg);
    return e->code;
}

int cmd_fail(const err *e) {
    switch (show(e)) {
    case ERR_CANCELLED:
        return EXIT_INTERRUPTED;
    case ERR_INTERNAL:
    case ERR_MEMORY:
        return EXIT_INTERNAL;
    default:
        return EXIT_REFUSED;
    }
}

int cmd_fail_engine(const err *e) {
    switch (show(e)) {
    case ERR_CANCELLED:
        return EXIT_INTERRUPTED;
    case ERR_ARG:
    case ERR_FORMAT:
    case ERR_LIMIT:
    case ERR_FULL:
    case ERR_AUTH:
    case ERR_MISMATCH:
        return EXIT_REFUSED;
    default:
        return EXIT_NOT_READY;
    }
}

int cmd_fail_usage(const err *e) {
    show(e);
    return EXIT_USAGE;
}

/* Output. The first failure is kept: later writes would only hide its cause. */

static int output_errno;

void cmd_put(const char *text, size_t len) {
    if (output_errno == 0 && len > 0 && fwrite(text, 1, len, stdout) != len) output_errno = errno;
}

void cmd_puts(const char *text) {
    cmd_put(text, strlen(text));
}

void cmd_printf(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    if (output_errno == 0 && vprintf(fmt, ap) < 0) output_errno = errno;
    va_end(ap);
}

void cmd_flush(void) {
    if (fflush(stdout) != 0 && output_errno == 0) output_errno = errno;
}

void cmd_put_json_of(const json *v) {
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    JSON_EACH(x, v) {
        if (str_eq(json_key(x), "v")) continue;
        json_w_key(&w, json_key(x));
        json_w_value(&w, x);
    }
    cmd_put_json(&w);
    buf_release(&out);
}

bool cmd_output_failed(void) {
    return output_errno != 0;
}

int cmd_finish(int exit_code) {
    cmd_flush();
    /* Whoever closed the pipe does not want to read more: nothing to say. */
    if (output_errno == 0 || output_errno == EPIPE) return exit_code;
    cmd_note("the output could not be written: %s; nothing that was kept is lost",
        strerror(output_errno));
    return EXIT_REFUSED;
}

void cmd_begin_json(json_w *w, buf *out) {
    json_w_begin(w, out);
    json_w_object(w);
    json_w_ki64(w, "v", 1);
}

void cmd_put_json(json_w *w) {
    json_w_close(w);
    json_w_end(w);
    cmd_put(buf_cstr(w->out), w->out->len);
    cmd_puts("\n");
    cmd_flush();
}

void cmd_put_text(const char *text, size_t len) {
    buf clean = BUF_INIT;
    width_cleaner c;
    width_cleaner_reset(&c);
    width_clean(&c, text, len, &clean);
    width_clean_end(&c, &clean);
    cmd_put(buf_cstr(&clean), clean.len);
    buf_release(&clean);
}

/* Interrupts. */

static int stop_pipe[2] = {-1, -1};
static volatile sig_atomic_t n_signals;
static atomic_bool stop_flag;

static void on_signal(int sig) {
    int saved = errno;
    /* The second one ends the process at once, as people expect. */
    if (++n_signals > 1) _exit(EXIT_INTERRUPTED);
    atomic_store(&stop_flag, true);
    ssize_t n = write(stop_pipe[1], "!", 1);
    (void)n;
    (void)sig;
    errno = saved;
}

int cmd_stop_fd(void) {
    if (stop_pipe[0] >= 0) return stop_pipe[0];
    if (pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return -1;
    struct sigaction sa = {.sa_handler = on_signal};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    return stop_pipe[0];
}

void cmd_stop_taken(void) {
    char bytes[16];
    while (stop_pipe[0] >= 0 && read(stop_pipe[0], bytes, sizeof bytes) > 0)
        continue;
    n_signals = 0;
    atomic_store(&stop_flag, false);
}

const atomic_bool *cmd_stop_flag(void) {
    return &stop_flag;
}

int cmd_int_option(const cmd_args *a, const char *name, cmd_range range, int64_t *out, err *e) {
    const char *text = cmd_value(a, name);
    *out = range.fallback;
    if (text == NULL) return OK;
    if (parse_i64(text, out) == OK && *out >= range.min && *out <= range.max) return OK;
    return err_set(e, ERR_ARG, "--%s is \"%.20s\"; it must be a whole number from %lld to %lld",
        name, text, (long long)range.min, (long long)range.max);
}

/* The engine. */

int cmd_socket(const cmd_args *a, buf *out, err *e) {
    const char *given = cmd_value(a, "socket");
    if (given == NULL) return paths_socket(out, e);
    /* The daemon runs in another folder. */
    char *here = given[0] != '/' ? getcwd(NULL, 0) : NULL;
    if (given[0] != '/' && here == NULL) return err_errno(e, "the current folder is not known");
    int rc = path_join(out, here != NULL ? here : "/", given);
    free(here);
    return rc;
}

static void say_change(void *ctx, const launch_report *r) {
    bool *has_spoken = ctx;
    if (r->phase != LAUNCH_STARTING || *has_spoken || !isatty(2)) return;
    *has_spoken = true;
    cmd_note(r->was_running ? "the engine is loading ..." : "starting the engine ...");
}

bool cmd_note_other_model(const launch_report *r) {
    if (!r->is_other_model) return false;
    cmd_note("--model is not used: the engine that runs has another model (%s, %s); it is changed "
             "with: tandem restart --model DIR",
        r->model_id, r->model_dir);
    return true;
}

int cmd_engine(const cmd_args *a, bool may_start, client **out, err *e) {
    buf socket = BUF_INIT;
    launch *l = NULL;
    bool has_spoken = false;
    int rc = cmd_socket(a, &socket, e);
    launch_options o = {.socket_path = buf_cstr(&socket),
        .model_dir = cmd_value(a, "model"),
        .may_start = may_start};
    if (rc == OK) rc = launch_open(&o, &l, e);
    if (rc == OK) rc = launch_run(l, cmd_stop_fd(), say_change, &has_spoken, e);
    if (rc == OK) {
        launch_report r;
        launch_get_report(l, &r);
        (void)cmd_note_other_model(&r);
        rc = client_open(buf_cstr(&socket), out, e);
    }
    launch_close(l);
    buf_release(&socket);
    return rc;
}

int cmd_get_json(client *c, const char *path, json **out, err *e) {
    client_request r = {.path = path, .limits = {.total_ms = 5000}};
    buf body = BUF_INIT;
    int rc = client_fetch(c, &r, &body, NULL, e);
    if (rc == OK) rc = json_parse(buf_cstr(&body), body.len, NULL, out, e);
    buf_release(&body);
    return rc;
}

/* Numbers for people. */

static const char *put(char out[32], const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out, 32, fmt, ap);
    va_end(ap);
    return out;
}

const char *cmd_count_text(int64_t n, char out[32]) {
    if (n < 10000) return put(out, "%lld", (long long)n);
    if (n < 1000000) return put(out, "%.1fk", (double)n / 1000.0);
    return put(out, "%.2fM", (double)n / 1000000.0);
}

const char *cmd_time_text(double seconds, char out[32]) {
    long s = (long)seconds;
    if (seconds < 60) return put(out, "%.1f s", seconds);
    if (s < 3600) return put(out, "%ld m %02ld s", s / 60, s % 60);
    if (s < 86400) return put(out, "%ld h %02ld m", s / 3600, s / 60 % 60);
    return put(out, "%ld d %02ld h", s / 86400, s / 3600 % 24);
}

const char *cmd_bytes_text(double bytes, char out[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int i = 0;
    while (bytes >= 1024 && i < 4) {
        bytes /= 1024;
        i++;
    }
    return put(out, i == 0 ? "%.0f %s" : "%.1f %s", bytes, units[i]);
}

const char *cmd_date_text(int64_t wall_ms, char out[32]) {
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm local;
    out[0] = '\0';
    if (localtime_r(&seconds, &local) != NULL) strftime(out, 32, "%Y-%m-%d %H:%M", &local);
    return out;
}
