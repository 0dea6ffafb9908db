/* Starting, watching and steering detached jobs from the shell. */
#include "tui/cmd_job.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

enum { WATCH_MS = 500, STATUS_MS = 500, MAX_ARGS = 32 };

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
        total, all > 0 ? 100.0 * (double)there / (double)all : 100.0, rate, mean,
        (unsigned long long)number(v, "n_ok"), (unsigned long long)number(v, "n_files"));
    if (str_eq(json_str(json_get(v, "phase")), "verifying")) buf_puts(out, ", reading back");
    if (eta > 0) buf_printf(out, ", %s left", cmd_time_text(eta, left));
    if (number(v, "wait_ms") > 0)
        buf_printf(out, ", waiting %llu s on request of the hub",
            (unsigned long long)(number(v, "wait_ms") + 999) / 1000);
}

typedef struct watcher {
    bool is_json, is_terminal, is_last; /* is_last: the job has ended */
    uint64_t shown_tenth, shown_ok;
    uint64_t last_time_ms;
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

static void show(watcher *w, const json *v, const buf *text) {
    buf line = BUF_INIT;
    uint64_t time_ms = number(v, "time_ms"), all = number(v, "total_bytes");
    uint64_t tenth = all > 0 ? number(v, "done_bytes") * 10 / all : 10;
    if (time_ms == w->last_time_ms && (!w->is_last || w->is_json || w->is_terminal)) return;
    w->last_time_ms = time_ms;
    describe(v, &line);
    if (w->is_json) {
        cmd_put(text->data, text->len);
    } else if (w->is_terminal) {
        cmd_printf("\r\033[K%s", buf_cstr(&line));
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
    /* The process is gone without a last word: killed. What it wrote is sound. */
    if (str_eq(state, "running")) message = "the job's process ended without a word";
    cmd_note("%s: %s%s`tandem %s` goes on", c->name, message != NULL ? message : "",
        message != NULL ? "; " : "", c->name);
    return EXIT_REFUSED;
}

/* Until the job ends or the person leaves. */
static int attach(const cmd_args *a, const cmd_job *c) {
    watcher w = {.is_json = cmd_has(a, "json"), .shown_tenth = 99};
    w.is_terminal = !w.is_json && isatty(1);
    int code = EXIT_OK;
    for (bool is_over = false; !is_over;) {
        buf text = BUF_INIT;
        json *v = NULL;
        err e = ERR_INIT;
        is_over = !job_is_running(c->name); /* before reading: the last status must be seen */
        int rc = job_status_read(c->name, &text, &e);
        if (rc == OK) rc = json_parse(buf_cstr(&text), text.len, NULL, &v, &e);
        w.is_last = is_over;
        if (rc == OK) show(&w, v, &text);
        if (is_over && w.is_terminal) cmd_puts("\n");
        if (is_over) code = rc == OK ? end_code(c, v) : cmd_fail(&e);
        json_free(v);
        buf_release(&text);
        struct pollfd p = {.fd = cmd_stop_fd(), .events = POLLIN};
        if (!is_over && poll(&p, 1, WATCH_MS) > 0) {
            cmd_note(
                "the %s goes on in the background: `tandem %s --attach` shows it, --pause stops "
                "it",
                c->name, c->name);
            code = EXIT_INTERRUPTED;
            is_over = true;
        }
    }
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
        if (str_eq(name, "json") || str_eq(name, "background")) continue;
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

int cmd_job_run(const cmd_args *a, const cmd_job *c) {
    err e = ERR_INIT;
    if (cmd_has(a, "job")) return work_here(a, c);
    if (cmd_has(a, "pause")) return steer(c, (job_command){JOB_PAUSE, 0}, "is paused");
    if (cmd_has(a, "cancel")) return steer(c, (job_command){JOB_CANCEL, 0}, "is cancelled");
    if (cmd_has(a, "attach")) return attach(a, c);
    if (!job_is_running(c->name) && start(a, c, &e) != OK) return cmd_fail(&e);
    if (cmd_has(a, "background")) {
        cmd_note("the %s runs in the background: `tandem %s --attach` shows it", c->name, c->name);
        return EXIT_OK;
    }
    return attach(a, c);
}
