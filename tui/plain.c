#include "tui/plain.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/cmd_chat_options.h"
#include "tui/cmd_internal.h"
#include "tui/plain_internal.h"

/* TTY_LINE_BYTES: a terminal in line mode drops what is longer (N_TTY of Linux: 4096 with the end). */
enum { MESSAGE_MAX_BYTES = 16 << 20, TWICE_MS = 2000, TTY_LINE_BYTES = 4095 };

bool plain_chunk_parse(const char *word, plain_chunk *out) {
    static const char *const words[] = {"sentence", "word", "reply"};
    for (int i = 0; i < 3; i++) {
        if (!str_eq(word, words[i])) continue;
        *out = (plain_chunk)i;
        return true;
    }
    return false;
}

/* Input. */

typedef enum read_result { READ_LINE, READ_END, READ_INTERRUPT } read_result;

static bool take_line(plain *p, buf *line) {
    const char *end = p->input.len > 0 ? memchr(p->input.data, '\n', p->input.len) : NULL;
    if (end == NULL && !(p->input_ended && p->input.len > 0)) return false;
    size_t n = end != NULL ? (size_t)(end - p->input.data) : p->input.len;
    buf_append(line, p->input.data, n);
    buf_consume(&p->input, end != NULL ? n + 1 : n);
    if (line->len > 0 && line->data[line->len - 1] == '\r') buf_truncate(line, line->len - 1);
    return true;
}

static read_result read_line(plain *p, buf *line) {
    buf_reset(line);
    while (!take_line(p, line)) {
        if (p->input_ended) return READ_END;
        struct pollfd fds[2] = {
            {.fd = 0, .events = POLLIN}, {.fd = cmd_stop_fd(), .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return READ_END;
        if (fds[1].revents != 0) {
            cmd_stop_taken();
            return READ_INTERRUPT;
        }
        char part[4096];
        ssize_t n = fds[0].revents != 0 ? read(0, part, sizeof part) : -2;
        if (n == 0 || (n == -1 && errno != EINTR)) p->input_ended = true;
        if (n > 0 && buf_append(&p->input, part, (size_t)n) != OK) p->input_ended = true;
    }
    return READ_LINE;
}

/* The rest of a message that began with a line of three double quotes. */
static read_result read_block(plain *p, buf *message) {
    buf line = BUF_INIT;
    read_result got;
    while ((got = read_line(p, &line)) == READ_LINE && !str_eq(buf_cstr(&line), "\"\"\"")) {
        if (message->len > 0) buf_putc(message, '\n');
        buf_append(message, buf_cstr(&line), line.len);
    }
    buf_release(&line);
    /* The input may end inside the block: what is there counts. */
    return got == READ_END && message->len > 0 ? READ_LINE : got;
}

static read_result read_message(plain *p, buf *message) {
    buf_reset(message);
    if (p->is_tty) cmd_puts("You: ");
    cmd_flush();
    read_result got = read_line(p, message);
    if (got == READ_LINE && str_eq(buf_cstr(message), "\"\"\"")) {
        buf_reset(message);
        got = read_block(p, message);
    }
    if (got == READ_LINE && !p->is_tty && message->len > 0) {
        cmd_puts("You: ");
        cmd_put_text(buf_cstr(message), message->len);
        cmd_puts("\n");
    }
    return got;
}

/* Replies. */

static void say_end(const plain *p) {
    const turn_result *r = &p->result;
    bool has_text = r->first_s >= 0;
    if (r->state == SESSION_STOPPED) plain_say("stopped by you; the text so far is kept");
    if (r->state == SESSION_CUT) plain_say("cut at the length limit; /continue goes on");
    if (r->state == SESSION_FAILED && has_text) {
        plain_say("%s; the text so far is kept. /continue goes on from here, /again asks anew",
            r->error.msg);
    } else if (r->state == SESSION_FAILED) {
        plain_say("%s", r->error.msg);
    }
    if (r->state == SESSION_DONE && r->content_s < 0) {
        plain_say(
            r->n_calls > 0 ? "the model asked for a tool; nothing was run" : "the reply is empty");
    }
    if (r->kept.code != OK) plain_say("%s", r->kept.msg);
}

/* The reader of our output has gone: nobody wants the rest. */
static bool is_closed(void *ctx) {
    (void)ctx;
    return cmd_output_failed();
}

static int run_turn(plain *p, int continue_id, const chat_settings *settings) {
    plain_printer printer;
    plain_printer_init(&printer, p->options->chunk, p->options->shows_thinking);
    turn_request q = {.client = p->client,
        .session = p->session,
        .settings = settings,
        .continue_id = continue_id,
        .stop_fd = cmd_stop_fd(),
        .printer = {plain_printer_part, plain_printer_progress, is_closed, &printer}};
    err e = ERR_INIT;
    int rc = turn_run(&q, &p->result, &e);
    plain_printer_end(&printer);
    plain_printer_release(&printer);
    cmd_stop_taken();
    p->has_result = rc == OK;
    if (rc != OK) plain_say("%s", e.msg);
    return rc;
}

/* The engine is gone and nothing was shown yet: start it and ask once more. With text shown that
 * would be said twice, so then the user decides. */
static bool can_ask_again(const plain *p) {
    const turn_result *r = &p->result;
    return r->state == SESSION_FAILED && r->first_s < 0 &&
           (r->error.code == ERR_NOT_FOUND || r->error.code == ERR_NET);
}

void plain_reply(plain *p, int continue_id, const chat_settings *settings) {
    int question = session_head(p->session);
    p->redo_head = 0;
    if (run_turn(p, continue_id, settings) != OK) return;
    if (continue_id == 0 && can_ask_again(p)) {
        client *c = NULL;
        err e = ERR_INIT;
        plain_say("the engine is not there; starting it");
        if (cmd_engine(p->options->args, true, &c, &e) != OK) {
            plain_say("%s", e.msg);
            return;
        }
        client_close(p->client);
        p->client = c;
        if (session_set_head(p->session, question, &e) != OK) {
            plain_say("%s", e.msg);
            return;
        }
        if (run_turn(p, 0, settings) != OK) return;
    }
    say_end(p);
}

int plain_open(plain *p, const char *name, err *e) {
    session *s = NULL;
    int rc = name != NULL ? session_open(p->dir, name, &s, e) : session_new(p->dir, &s, e);
    if (rc != OK) return rc;
    session_close(p->session);
    p->session = s;
    p->redo_head = 0;
    p->has_result = false;
    if (name != NULL) {
        plain_say("session \"%s\", %d messages", session_title(s), session_n_turns(s));
        if (session_note(s) != NULL) plain_say("%s", session_note(s));
    }
    return OK;
}

static int add_question(plain *p, const char *text, err *e) {
    int rc = OK;
    if (session_n_turns(p->session) == 0 && p->system.len > 0) {
        rc = session_add(p->session, SESSION_SYSTEM, buf_cstr(&p->system), -1, NULL, e);
    }
    return rc == OK ? session_add(p->session, SESSION_USER, text, -1, NULL, e) : rc;
}

/* True when the terminal may have cut a line of the message; sending it would lose text. */
static bool is_cut_by_terminal(const plain *p, const buf *message) {
    size_t longest = 0;
    for (size_t at = 0; p->is_tty && at < message->len;) {
        size_t n = strcspn(buf_cstr(message) + at, "\n");
        if (n > longest) longest = n;
        at += n + 1;
    }
    return longest >= TTY_LINE_BYTES;
}

static void handle_message(plain *p, const buf *message) {
    const char *text = buf_cstr(message);
    err e = ERR_INIT;
    if (is_cut_by_terminal(p, message)) {
        plain_say(
            "the terminal takes %d bytes a line and may have cut that one, so it was not sent; "
            "use shorter lines between \"\"\", or a file: tandem ask -f FILE",
            TTY_LINE_BYTES);
        return;
    }
    if (strlen(text) != message->len || !utf8_valid(text, message->len)) {
        plain_say(
            "that line is not UTF-8 text, so it was not sent; convert it first (iconv -t UTF-8)");
        return;
    }
    if (text[strspn(text, " \t\n")] == '\0') return;
    if (text[0] == '/' && text[1] != '/') {
        plain_command(p, text);
        return;
    }
    if (text[0] == '/') text++;
    if (add_question(p, text, &e) != OK) {
        plain_say("%s", e.msg);
        return;
    }
    plain_reply(p, 0, &p->settings);
}

static void loop(plain *p) {
    buf message = BUF_MAX(MESSAGE_MAX_BYTES);
    uint64_t interrupted_ms = 0;
    while (!p->is_over) {
        read_result got = read_message(p, &message);
        if (got == READ_LINE) {
            handle_message(p, &message);
            continue;
        }
        if (p->is_tty) cmd_puts("\n");
        uint64_t now = clock_mono_ms();
        bool is_twice = interrupted_ms != 0 && now - interrupted_ms < TWICE_MS;
        if (got == READ_END || is_twice) break;
        interrupted_ms = now;
        plain_say("nothing to stop; /quit or Ctrl-D leaves, and so does a second Ctrl-C");
    }
    buf_release(&message);
}

/* Start and end. */

static int open_first(plain *p, err *e) {
    const plain_options *o = p->options;
    char name[SESSION_NAME_BYTES];
    if (o->session != NULL) {
        int rc = session_find(p->dir, o->session, name, e);
        return rc == OK ? plain_open(p, name, e) : rc;
    }
    if (o->continue_last) {
        session_info *rows = NULL;
        int n = 0;
        int rc = session_list(p->dir, &rows, &n, e);
        bool has_one = rc == OK && n > 0;
        if (has_one) str_copy(name, sizeof name, rows[0].name);
        mem_free(rows);
        if (has_one) return plain_open(p, name, e);
        if (rc != OK) return rc;
        plain_say("there is no earlier session; this is a new one");
    }
    return plain_open(p, NULL, e);
}

static int prepare(plain *p, err *e) {
    const cmd_args *a = p->options->args;
    buf dir = BUF_INIT;
    int rc = session_dir(&dir, e);
    p->dir = buf_take(&dir);
    if (rc == OK) rc = cmd_chat_settings(a, &p->settings, e);
    if (rc == OK) rc = cmd_system_prompt(a, &p->system, e);
    if (rc == OK) rc = open_first(p, e);
    return rc;
}

static void say_welcome(const plain *p) {
    json *state = NULL;
    plain_say("plain mode, because %s", p->options->reason);
    if (cmd_get_json(p->client, "/tandem/v1/state", &state, NULL) == OK) {
        const json *model = json_get(state, "model");
        const char *id = json_str(json_get(model, "id"));
        plain_say("model %s%s; /help lists the commands, /quit leaves", id != NULL ? id : "unknown",
            json_is_true(json_get(model, "demo")) ? ", the small built-in DEMO" : "");
    }
    json_free(state);
}

int plain_run(const plain_options *o) {
    plain p = {.options = o, .input = BUF_MAX(MESSAGE_MAX_BYTES), .system = BUF_INIT};
    err e = ERR_INIT;
    int code = EXIT_OK;
    chat_settings_init(&p.settings);
    p.is_tty = isatty(0) && isatty(1);
    cmd_stop_fd();
    if (cmd_engine(o->args, true, &p.client, &e) != OK) {
        code = cmd_fail_engine(&e);
    } else {
        say_welcome(&p);
        if (prepare(&p, &e) != OK) {
            code = cmd_fail(&e);
        } else {
            loop(&p);
        }
    }
    if (p.session != NULL && session_n_turns(p.session) > 0) {
        plain_say("session \"%s\" is kept; go on with: tandem chat --plain -r %s",
            session_title(p.session), session_name(p.session));
    }
    session_close(p.session);
    client_close(p.client);
    chat_settings_release(&p.settings);
    buf_release(&p.system);
    buf_release(&p.input);
    mem_free(p.dir);
    return cmd_finish(code);
}
