/* Running one command: both output streams are taken as they come, input goes out as the window
 * allows, and every wait is short so that deadlines and stops are seen. */
#include <libssh/callbacks.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/ssh_internal.h"

enum {
    COMMAND_MS = 30000,
    OUTPUT_MAX = 4 << 20,
    PIECE = 32 << 10,
    WAIT_MS = 20,
    SOURCE_TURNS = 64, /* pieces taken before the deadline is looked at again */
    ALIVE_MS = 5000,
    KEEP_ALIVE_MS = 15000
};

void remote_result_init(remote_result *r) {
    *r = (remote_result){.exit_code = -1, .out = BUF_INIT, .err = BUF_INIT};
}

void remote_result_release(remote_result *r) {
    buf_release(&r->out);
    buf_release(&r->err);
}

static int take(
    const remote_command *c, remote_result *out, int i, const char *p, size_t n, err *e) {
    if (c->sink != NULL) return c->sink(c->sink_ctx, i == 1, p, n);
    buf *b = i == 1 ? &out->err : &out->out;
    size_t max = c->max_out > 0 ? c->max_out : OUTPUT_MAX;
    if (b->len + n > max) {
        return err_set(e, ERR_LIMIT, "a command printed more than %zu bytes", max);
    }
    return buf_append(b, p, n);
}

int remote_reader_step(
    remote_reader *r, const remote_command *c, remote_result *out, remote_step *step, err *e) {
    char piece[PIECE];
    bool has_data = false;
    bool is_open = r->source.is_open(r->source.ctx);
    for (int i = 0; i < 2; i++) {
        if (r->is_ended[i]) continue;
        int n = r->source.read(r->source.ctx, i == 1, piece, sizeof piece);
        if (n > 0) {
            int rc = take(c, out, i, piece, (size_t)n, e);
            if (rc != OK) return rc;
            has_data = true;
        } else if (n == SSH_EOF || (n == 0 && !is_open)) {
            r->is_ended[i] = true;
        } else if (n == SSH_ERROR) {
            return err_set(e, ERR_NET, "the ssh session broke while a command ran");
        }
    }
    *step = has_data                           ? REMOTE_STEP_DATA
            : r->is_ended[0] && r->is_ended[1] ? REMOTE_STEP_END
                                               : REMOTE_STEP_WAIT;
    return OK;
}

typedef struct run_state {
    remote *r;
    ssh_channel channel;
    ssh_event event;
    const remote_command *c;
    remote_result *out;
    size_t sent;
    bool is_input_done, has_status;
    uint64_t deadline_ms; /* 0: none */
} run_state;

static void on_exit_status(ssh_session session, ssh_channel channel, int status, void *ctx) {
    (void)session, (void)channel;
    run_state *s = ctx;
    s->out->exit_code = status;
    s->has_status = true;
}

static void on_exit_signal(ssh_session session, ssh_channel channel, const char *signal, int core,
    const char *text, const char *lang, void *ctx) {
    (void)session, (void)channel, (void)core, (void)text, (void)lang;
    run_state *s = ctx;
    str_copy(s->out->signal, sizeof s->out->signal, signal);
    s->has_status = true;
}

static int source_read(void *ctx, bool is_error, void *p, size_t n) {
    return ssh_channel_read_nonblocking(ctx, p, (uint32_t)n, is_error ? 1 : 0);
}

static bool source_is_open(void *ctx) {
    return ssh_channel_is_open(ctx) != 0 && ssh_channel_is_eof(ctx) == 0;
}

static int send_some(run_state *s, bool *did, err *e) {
    *did = false;
    if (s->is_input_done) return OK;
    size_t left = s->c->n_input - s->sent;
    uint32_t window = ssh_channel_window_size(s->channel);
    if (left > 0 && window > 0 && ssh_channel_is_closed(s->channel) == 0) {
        uint32_t n = left < PIECE ? (uint32_t)left : PIECE;
        if (n > window) n = window;
        int w = ssh_channel_write(s->channel, (const char *)s->c->input + s->sent, n);
        /* A command that ended without reading its input is no error of the session. */
        if (w < 0 && ssh_is_connected(s->r->session) == 0) {
            return err_set(e, ERR_NET, "the connection to %s was lost", s->r->node);
        }
        if (w < 0) left = 0;
        if (w > 0) s->sent += (size_t)w;
        *did = w > 0;
    }
    if (left == 0 || s->sent == s->c->n_input) {
        s->is_input_done = true;
        (void)ssh_channel_send_eof(s->channel);
    }
    return OK;
}

static int look_at_limits(run_state *s, err *e) {
    uint64_t now = clock_mono_ms();
    if (s->c->stop != NULL && atomic_load(s->c->stop)) {
        return err_set(e, ERR_CANCELLED, "a command on %s was stopped", s->r->node);
    }
    if (s->deadline_ms != 0 && now >= s->deadline_ms) {
        return err_set(e, ERR_TIMEOUT, "a command on %s did not end in time", s->r->node);
    }
    if (ssh_is_connected(s->r->session) == 0) {
        return err_set(e, ERR_NET, "the connection to %s was lost", s->r->node);
    }
    if (now - s->r->last_traffic_ms > KEEP_ALIVE_MS) {
        s->r->last_traffic_ms = now;
        /* Lets TCP notice a dead peer (TCP_USER_TIMEOUT); no answer is asked for. */
        (void)ssh_send_ignore(s->r->session, "keep-alive");
    }
    return OK;
}

/* The library's own loop: after the end of the streams only this still takes in packets, and the
 * exit status may come then. */
static void wait_traffic(run_state *s) {
    if (ssh_event_dopoll(s->event, WAIT_MS) == SSH_ERROR) sleep_ms(1);
}

static int pump(run_state *s, err *e) {
    remote_reader reader = {.source = {s->channel, source_read, source_is_open}};
    remote_step step = REMOTE_STEP_WAIT;
    for (int turn = 0; step != REMOTE_STEP_END; turn++) {
        bool did = false;
        int rc = send_some(s, &did, e);
        if (rc == OK) rc = remote_reader_step(&reader, s->c, s->out, &step, e);
        if (rc == OK && (step == REMOTE_STEP_WAIT || turn % SOURCE_TURNS == 0)) {
            rc = look_at_limits(s, e);
        }
        if (rc != OK) return rc;
        if (step == REMOTE_STEP_DATA) s->r->last_traffic_ms = clock_mono_ms();
        if (step == REMOTE_STEP_WAIT && !did) wait_traffic(s);
    }
    return OK;
}

/* The status usually comes with the end of the streams, but may come a moment later. */
static int wait_status(run_state *s, err *e) {
    while (!s->has_status && ssh_channel_is_closed(s->channel) == 0) {
        int rc = look_at_limits(s, e);
        if (rc != OK) return rc;
        wait_traffic(s);
    }
    return OK;
}

static int open_channel(run_state *s, err *e) {
    s->event = ssh_event_new();
    if (s->event == NULL || ssh_event_add_session(s->event, s->r->session) != SSH_OK) {
        return err_set(e, ERR_INTERNAL, "no event loop for the session with %s", s->r->node);
    }
    s->channel = ssh_channel_new(s->r->session);
    if (s->channel == NULL || ssh_channel_open_session(s->channel) != SSH_OK) {
        return err_set(
            e, ERR_NET, "no channel to %s: %.200s", s->r->node, ssh_get_error(s->r->session));
    }
    return OK;
}

static int run_on_channel(run_state *s, err *e) {
    struct ssh_channel_callbacks_struct calls = {.userdata = s,
        .channel_exit_status_function = on_exit_status,
        .channel_exit_signal_function = on_exit_signal};
    ssh_callbacks_init(&calls);
    int rc = open_channel(s, e);
    if (rc == OK && ssh_set_channel_callbacks(s->channel, &calls) != SSH_OK) {
        rc = err_set(e, ERR_INTERNAL, "no callbacks on a channel to %s", s->r->node);
    }
    if (rc == OK && ssh_channel_request_exec(s->channel, s->c->line) != SSH_OK) {
        rc = err_set(e, ERR_NET, "%s refuses to run a command: %.200s", s->r->node,
            ssh_get_error(s->r->session));
    }
    if (rc == OK) rc = pump(s, e);
    if (rc == OK) rc = wait_status(s, e);
    if (s->channel != NULL) {
        ssh_remove_channel_callbacks(s->channel, &calls);
        (void)ssh_channel_close(s->channel);
        ssh_channel_free(s->channel);
    }
    if (s->event != NULL) {
        (void)ssh_event_remove_session(s->event, s->r->session);
        ssh_event_free(s->event);
    }
    return rc;
}

int remote_run(remote *r, const remote_command *c, remote_result *out, err *e) {
    int ms = c->timeout_ms == 0 ? COMMAND_MS : c->timeout_ms;
    buf_reset(&out->out);
    buf_reset(&out->err);
    out->exit_code = -1;
    out->signal[0] = '\0';
    run_state s = {.r = r, .c = c, .out = out};
    if (ms > 0) s.deadline_ms = clock_mono_ms() + (uint64_t)ms;
    int rc = run_on_channel(&s, e);
    if (rc != OK) {
        if (e != NULL) err_node(e, r->node);
        return rc;
    }
    if (!s.has_status) {
        return err_set(e, ERR_NET, "%s ended a command without saying how", r->node);
    }
    return OK;
}

int remote_alive(remote *r, err *e) {
    remote_result out;
    remote_result_init(&out);
    remote_command c = {.line = "exit 0", .timeout_ms = ALIVE_MS};
    int rc = remote_run(r, &c, &out, e);
    remote_result_release(&out);
    return rc;
}

int remote_quote(buf *out, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./=:,+%@";
    if (word[0] != '\0' && strspn(word, plain) == strlen(word)) return buf_puts(out, word);
    int rc = buf_putc(out, '\'');
    for (const char *c = word; *c != '\0' && rc == OK; c++)
        rc = *c == '\'' ? buf_puts(out, "'\\''") : buf_putc(out, *c);
    return rc == OK ? buf_putc(out, '\'') : rc;
}
