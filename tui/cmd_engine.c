/* tandem start, stop, restart: the engine as a background process. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/node_access.h"
#include "setup/settings.h"
#include "tui/cmd_internal.h"
#include "tui/cmd_pair.h"

static void say(void *ctx, const launch_report *r) {
    (void)ctx;
    if (r->phase != LAUNCH_STARTING || !isatty(2)) return;
    cmd_note("%s%s%s", r->was_running ? "the engine is running" : "starting the engine",
        r->state[0] != '\0' ? ", state " : "", r->state);
}

static int seconds_option(
    const cmd_args *a, const char *name, int fallback_ms, int *out_ms, err *e) {
    const char *text = cmd_value(a, name);
    double seconds = 0;
    *out_ms = fallback_ms;
    if (text == NULL) return OK;
    if (parse_double(text, &seconds) != OK || seconds < 0.1 || seconds > 86400) {
        return err_set(
            e, ERR_ARG, "--%s is \"%.20s\"; it must be seconds from 0.1 to 86400", name, text);
    }
    *out_ms = (int)(seconds * 1000);
    return OK;
}

static int threads_option(const cmd_args *a, const char *out[3], err *e) {
    const char *text = cmd_value(a, "threads");
    int64_t n = 0;
    if (text == NULL) return OK;
    if (parse_i64(text, &n) != OK || n < 1 || n > 1024) {
        return err_set(e, ERR_ARG, "--threads is \"%.20s\"; it must be from 1 to 1024", text);
    }
    out[0] = "--threads";
    out[1] = text;
    return OK;
}

static void put_report(const cmd_args *a, const launch_report *r) {
    char time[32];
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "state", r->state);
        json_w_kstr(&w, "model", r->model_id);
        json_w_kbool(&w, "demo", r->is_demo);
        json_w_kbool(&w, "was_running", r->was_running);
        json_w_key(&w, "waited_s");
        json_w_fixed(&w, (double)r->waited_ms / 1000.0, 3);
        json_w_kstr(&w, "log", r->log_path);
        cmd_put_json(&w);
        buf_release(&out);
        return;
    }
    cmd_printf("engine ready%s: model %s%s, %s\n",
        r->was_running ? " (it was running already)" : "", r->model_id, r->is_demo ? " (DEMO)" : "",
        cmd_time_text((double)r->waited_ms / 1000.0, time));
}

/* ---- --dry-run ---- */

typedef struct start_plan {
    const char *const *words; /* of the daemon */
    const char *log;
    buf memory;      /* what the daemon says it would take */
    err refusal;     /* why it would not start, code OK: it would */
    char state[32];  /* of the engine that runs, "" none */
    bool is_restart; /* the one that runs is stopped first */
} start_plan;

/* The daemon itself knows what it needs. */
static void ask_memory(start_plan *p) {
    node_access *here = node_access_local("head", NULL);
    remote_result r;
    size_t n = 0;
    while (p->words[n] != NULL)
        n++;
    const char **argv = mem_array(n + 2, sizeof *argv);
    memcpy(argv, p->words, n * sizeof *argv);
    argv[n] = "--plan";
    node_command k = {.argv = argv, .timeout_ms = 60000, .max_out = 65536};
    remote_result_init(&r);
    if (node_run(here, &k, &r, &p->refusal) == OK) {
        const char *words = buf_cstr(&r.err);
        if (r.exit_code == 0)
            buf_append(&p->memory, r.out.data, strcspn(buf_cstr(&r.out), "\n"));
        else
            err_set(&p->refusal, ERR_MEMORY, "%.*s", (int)strcspn(words, "\n"),
                str_starts(words, "tandemd: ") ? words + 9 : words);
    }
    remote_result_release(&r);
    mem_free(argv);
    node_access_close(here);
}

static void ask_state(const char *socket, start_plan *p) {
    client *c = NULL;
    json *v = NULL;
    if (client_open(socket, &c, NULL) != OK) return;
    if (cmd_get_json(c, "/tandem/v1/state", &v, NULL) == OK) {
        const char *state = json_str(json_get(v, "state"));
        str_copy(p->state, sizeof p->state, state != NULL ? state : "unknown");
    }
    json_free(v);
    client_close(c);
}

static void put_plan_json(const start_plan *p) {
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kbool(&w, "dry_run", true);
    json_w_kstr(&w, "running", p->state[0] != '\0' ? p->state : NULL);
    json_w_kbool(&w, "stops_it_first", p->is_restart && p->state[0] != '\0');
    json_w_key(&w, "command");
    json_w_array(&w);
    for (int i = 0; p->words[i] != NULL; i++)
        json_w_str(&w, p->words[i]);
    json_w_close(&w);
    json_w_kstr(&w, "log", p->log);
    json_w_kstr(&w, "memory", p->memory.len > 0 ? p->memory.data : NULL);
    json_w_kstr(&w, "refused", p->refusal.code != OK ? p->refusal.msg : NULL);
    cmd_put_json(&w);
    buf_release(&out);
}

static void put_plan(start_plan *p) {
    buf line = BUF_INIT;
    bool is_running = p->state[0] != '\0';
    const node_command k = {.argv = p->words};
    node_command_text(&k, false, &line);
    if (is_running && p->is_restart)
        cmd_printf(
            "stop      the engine that runs (%s); its replies are finished first\n", p->state);
    else if (is_running)
        cmd_printf("running   the engine runs already (%s); nothing would be started\n", p->state);
    if (!is_running || p->is_restart) {
        cmd_puts("start     ");
        cmd_put_text(buf_cstr(&line), line.len);
        cmd_printf("\nlog       %s\n", p->log);
        if (p->memory.len > 0) cmd_printf("memory    %s\n", buf_cstr(&p->memory));
    }
    cmd_puts("nothing was started or stopped\n");
    cmd_flush();
    buf_release(&line);
}

/* What start or restart would do on this machine. */
static int show_start(const cmd_args *a, launch *l, const char *socket, bool is_restart) {
    start_plan p = {.memory = BUF_INIT, .is_restart = is_restart};
    launch_report r;
    err e = ERR_INIT;
    if (launch_words(l, &p.words, &e) != OK) return cmd_fail_engine(&e);
    launch_get_report(l, &r);
    p.log = r.log_path;
    ask_state(socket, &p);
    ask_memory(&p);
    if (cmd_has(a, "json"))
        put_plan_json(&p);
    else
        put_plan(&p);
    buf_release(&p.memory);
    bool would_start = p.state[0] == '\0' || is_restart;
    if (p.refusal.code == OK || !would_start) return EXIT_OK;
    cmd_note("it would be refused: %s", p.refusal.msg);
    return EXIT_REFUSED;
}

/* ---- start ---- */

static int start_here(const cmd_args *a, bool is_restart) {
    buf socket = BUF_INIT;
    launch *l = NULL;
    launch_report r = {0};
    const char *extra[3] = {NULL, NULL, NULL};
    err e = ERR_INIT;
    int deadline_ms = 0, code = EXIT_OK;
    int rc = seconds_option(a, "timeout", 0, &deadline_ms, &e);
    if (rc == OK) rc = threads_option(a, extra, &e);
    if (rc != OK) return cmd_fail_usage(&e);
    rc = cmd_socket(a, &socket, &e);
    launch_options o = {.socket_path = buf_cstr(&socket),
        .model_dir = cmd_value(a, "model"),
        .extra_args = extra,
        .deadline_ms = deadline_ms,
        .may_start = true,
        .is_alone = true};
    if (rc == OK) rc = launch_open(&o, &l, &e);
    bool is_dry = cmd_has(a, "dry-run");
    if (rc == OK && !is_dry) rc = launch_run(l, cmd_stop_fd(), say, NULL, &e);
    if (rc == OK && is_dry) {
        code = show_start(a, l, buf_cstr(&socket), is_restart);
    } else if (rc == OK) {
        launch_get_report(l, &r);
        put_report(a, &r);
        if (cmd_note_other_model(&r)) code = EXIT_WARNINGS;
    } else {
        code = cmd_fail_engine(&e);
    }
    launch_close(l);
    buf_release(&socket);
    return cmd_finish(code);
}

int cmd_start(const cmd_args *a) {
    return cmd_pair_applies(a) ? cmd_pair_start(a) : start_here(a, false);
}

static int stop_engine(const cmd_args *a, err *e) {
    buf socket = BUF_INIT;
    settings *s = settings_new();
    int deadline_ms = 0;
    int rc = settings_load(s, e);
    /* The daemon has this long for its replies; a little more for its own end. */
    int fallback_ms = rc == OK ? (int)settings_int(s, "STOP_TIMEOUT") * 1000 + 5000 : 0;
    if (rc == OK) rc = seconds_option(a, "timeout", fallback_ms, &deadline_ms, e);
    if (rc == OK) rc = cmd_socket(a, &socket, e);
    if (rc == OK) rc = launch_stop(buf_cstr(&socket), deadline_ms, e);
    settings_free(s);
    buf_release(&socket);
    return rc;
}

int cmd_stop(const cmd_args *a) {
    err e = ERR_INIT;
    if (cmd_pair_applies(a)) return cmd_pair_stop(a);
    int rc = stop_engine(a, &e);
    if (rc != OK && rc != ERR_NOT_FOUND) return cmd_fail(&e);
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kbool(&w, "was_running", rc == OK);
        json_w_kstr(&w, "state", "stopped");
        cmd_put_json(&w);
        buf_release(&out);
    } else {
        cmd_puts(rc == OK ? "engine stopped\n" : "no engine was running\n");
    }
    return cmd_finish(EXIT_OK);
}

int cmd_restart(const cmd_args *a) {
    err e = ERR_INIT;
    if (cmd_pair_applies(a)) return cmd_pair_restart(a);
    if (cmd_has(a, "dry-run")) return start_here(a, true);
    int rc = stop_engine(a, &e);
    if (rc != OK && rc != ERR_NOT_FOUND) return cmd_fail(&e);
    return start_here(a, true);
}
