/* Slash commands of plain mode. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/cmd_chat_options.h"
#include "tui/cmd_internal.h"
#include "tui/cmd_pair.h"
#include "tui/cmd_status_text.h"
#include "tui/plain_internal.h"

typedef int (*command_fn)(plain *p, const char *args, err *e);

static void put_lines(const buf *text) {
    cmd_put_text(buf_cstr(text), text->len);
    if (text->len > 0 && text->data[text->len - 1] != '\n') cmd_puts("\n");
    cmd_flush();
}

static int do_help(plain *p, const char *args, err *e) {
    (void)p, (void)e;
    buf text = BUF_INIT;
    slash_help(&text, args, SLASH_IN_PLAIN);
    if (text.len == 0) buf_printf(&text, "No command is about \"%s\".\n", args);
    buf_puts(&text, "Three double quotes on a line of their own begin and end a message of several "
                    "lines; a line that starts with two slashes is sent with one.\n");
    put_lines(&text);
    buf_release(&text);
    return OK;
}

static int do_new(plain *p, const char *args, err *e) {
    (void)args;
    int rc = plain_open(p, NULL, e);
    if (rc == OK) plain_say("new session");
    return rc;
}

static int do_sessions(plain *p, const char *args, err *e) {
    (void)args;
    session_info *rows = NULL;
    int n = 0;
    int rc = session_list(p->dir, &rows, &n, e);
    if (rc != OK) return rc;
    for (int i = 0; i < n; i++) {
        char date[32];
        cmd_printf("%s: ", rows[i].name);
        cmd_put_text(rows[i].title, strlen(rows[i].title));
        cmd_printf(", %s, %d turn%s%s\n", cmd_date_text(rows[i].changed_ms, date), rows[i].n_turns,
            rows[i].n_turns == 1 ? "" : "s", rows[i].is_damaged ? ", damaged" : "");
    }
    plain_say("%d session%s", n, n == 1 ? "" : "s");
    mem_free(rows);
    return OK;
}

static int do_open(plain *p, const char *args, err *e) {
    char name[SESSION_NAME_BYTES];
    if (args[0] == '\0') return err_set(e, ERR_ARG, "which session? /sessions lists them");
    int rc = session_find(p->dir, args, name, e);
    if (rc == OK && str_eq(name, session_name(p->session))) {
        return err_set(e, ERR_ARG, "that session is open already");
    }
    return rc == OK ? plain_open(p, name, e) : rc;
}

static int do_rename(plain *p, const char *args, err *e) {
    int rc = session_rename(p->session, args, e);
    if (rc == OK) plain_say("the session is now called \"%s\"", session_title(p->session));
    return rc;
}

static int do_delete(plain *p, const char *args, err *e) {
    char name[SESSION_NAME_BYTES];
    if (args[0] == '\0') return err_set(e, ERR_ARG, "which session? /sessions lists them");
    int rc = session_find(p->dir, args, name, e);
    if (rc == OK && str_eq(name, session_name(p->session))) {
        return err_set(e, ERR_BUSY, "that session is open; /new closes it first");
    }
    if (rc == OK) rc = session_delete(p->dir, name, e);
    if (rc == OK) plain_say("session %s is deleted", name);
    return rc;
}

/* Never over a file that is there. */
static int write_new_file(const char *path, const buf *text, err *e) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return err_errno(e, "cannot make %s", path);
    int rc = fd_write_full(fd, buf_cstr(text), text->len, e);
    if (close(fd) != 0 && rc == OK) rc = err_errno(e, "cannot write %s", path);
    if (rc != OK) unlink(path);
    if (rc == OK) plain_say("%zu bytes written to %s", text->len, path);
    return rc;
}

static int do_export(plain *p, const char *args, err *e) {
    static const char *const words[] = {"md", "json", "txt"};
    static const session_format formats[] = {SESSION_MD, SESSION_JSON, SESSION_TXT};
    size_t n = strcspn(args, " ");
    const char *file = args + n + strspn(args + n, " ");
    for (size_t i = 0; i < 3 && file[0] != '\0'; i++) {
        if (strlen(words[i]) != n || strncmp(words[i], args, n) != 0) continue;
        buf text = BUF_INIT;
        int rc = session_export(p->session, formats[i], &text, e);
        if (rc == OK) rc = write_new_file(file, &text, e);
        buf_release(&text);
        return rc;
    }
    return err_set(
        e, ERR_ARG, "write it as: /export md FILE, /export json FILE or /export txt FILE");
}

static const session_turn *last_reply(const plain *p) {
    const session_turn *t = session_turn_at(p->session, session_head(p->session));
    return t != NULL && t->role == SESSION_ASSISTANT ? t : NULL;
}

static int no_reply(err *e) {
    return err_set(e, ERR_ARG, "there is no reply yet");
}

static int do_again(plain *p, const char *args, err *e) {
    const session_turn *t = session_turn_at(p->session, session_head(p->session));
    if (t == NULL) return err_set(e, ERR_ARG, "there is no question yet");
    chat_settings once = p->settings; /* shares its stop texts, so it gets no new ones */
    char *words = mem_strdup(args);
    int rc = OK;
    for (char *at = words; *at != '\0' && rc == OK;) {
        size_t n = strcspn(at, " ");
        bool is_last = at[n] == '\0';
        at[n] = '\0';
        rc = str_starts(at, "stop") ? err_set(e, ERR_ARG, "stop texts are set with /set")
                                    : chat_settings_set_pair(&once, at, e);
        at += is_last ? n : n + 1;
    }
    mem_free(words);
    if (rc == OK && t->role == SESSION_ASSISTANT) rc = session_set_head(p->session, t->parent, e);
    if (rc == OK) plain_reply(p, 0, &once);
    return rc;
}

static int do_continue(plain *p, const char *args, err *e) {
    (void)args;
    const session_turn *t = last_reply(p);
    if (t == NULL) return no_reply(e);
    if (t->state == SESSION_DONE) return err_set(e, ERR_ARG, "the last reply is complete");
    plain_reply(p, t->id, &p->settings);
    return OK;
}

static int do_undo(plain *p, const char *args, err *e) {
    (void)args;
    int head = session_head(p->session), id = head;
    const session_turn *t = session_turn_at(p->session, id);
    while (t != NULL && t->role != SESSION_USER)
        t = session_turn_at(p->session, t->parent);
    if (t == NULL) return err_set(e, ERR_ARG, "there is nothing to undo");
    int rc = session_set_head(p->session, t->parent, e);
    if (rc != OK) return rc;
    p->redo_head = head;
    plain_say("one turn back; /redo takes that back");
    return OK;
}

static int do_redo(plain *p, const char *args, err *e) {
    (void)args;
    if (p->redo_head == 0) return err_set(e, ERR_ARG, "there is nothing to redo");
    int rc = session_set_head(p->session, p->redo_head, e);
    if (rc != OK) return rc;
    p->redo_head = 0;
    plain_say("the turn is back");
    return OK;
}

static bool is_leaf(const session *s, int id) {
    return session_leaf(s, id) == id;
}

static int do_branches(plain *p, const char *args, err *e) {
    (void)args, (void)e;
    int n = 0;
    for (int id = 1; id <= session_n_turns(p->session); id++) {
        const session_turn *t = session_turn_at(p->session, id);
        if (!is_leaf(p->session, id)) continue;
        size_t len = width_fit(t->text, strcspn(t->text, "\n"), 60, NULL);
        cmd_printf("Branch %d%s: ", ++n, id == session_head(p->session) ? ", this one" : "");
        cmd_put_text(t->text, len);
        cmd_puts("\n");
    }
    plain_say("%d branch%s", n, n == 1 ? "" : "es");
    return OK;
}

static int do_branch(plain *p, const char *args, err *e) {
    int64_t wanted = 0;
    int n = 0;
    if (parse_i64(args, &wanted) != OK)
        return err_set(e, ERR_ARG, "which branch? /branches lists them");
    for (int id = 1; id <= session_n_turns(p->session); id++) {
        if (!is_leaf(p->session, id) || ++n != wanted) continue;
        int rc = session_set_head(p->session, id, e);
        if (rc == OK) plain_say("branch %d", n);
        return rc;
    }
    return err_set(e, ERR_ARG, "there is no branch %s; /branches lists them", args);
}

static int do_fork(plain *p, const char *args, err *e) {
    session *to = NULL;
    int rc = session_fork(p->session, p->dir, &to, e);
    if (rc == OK && args[0] != '\0') rc = session_rename(to, args, e);
    if (rc != OK) {
        session_close(to);
        return rc;
    }
    session_close(p->session);
    p->session = to;
    plain_say("this is now the new session \"%s\"", session_title(to));
    return OK;
}

static int do_system(plain *p, const char *args, err *e) {
    if (args[0] == '\0') {
        plain_say("system prompt: %s", p->system.len > 0 ? buf_cstr(&p->system) : "none");
        return OK;
    }
    buf text = BUF_INIT;
    int rc = cmd_text_or_file(args, &text, e);
    if (rc == OK && session_n_turns(p->session) > 0) {
        /* A branch at the root: what was said stays reachable. */
        rc = session_add(p->session, SESSION_SYSTEM, buf_cstr(&text), 0, NULL, e);
        if (rc == OK)
            plain_say("a new branch begins here with this system prompt; /branches lists all");
    }
    if (rc == OK) {
        buf_reset(&p->system);
        buf_append(&p->system, buf_cstr(&text), text.len);
        plain_say("the system prompt is set");
    }
    buf_release(&text);
    return rc;
}

static int do_set(plain *p, const char *args, err *e) {
    if (args[0] != '\0') {
        int rc = chat_settings_set_pair(&p->settings, args, e);
        if (rc == OK) plain_say("%s", args);
        return rc;
    }
    const char *name;
    for (int i = 0; (name = chat_settings_name(i)) != NULL; i++) {
        buf value = BUF_INIT;
        chat_settings_value(&p->settings, name, &value);
        cmd_printf("%s: %s\n", name, value.len > 0 ? buf_cstr(&value) : "default of the engine");
        buf_release(&value);
    }
    return OK;
}

static int do_unset(plain *p, const char *args, err *e) {
    int rc = chat_settings_unset(&p->settings, args, e);
    if (rc == OK) plain_say("%s is at the default of the engine", args);
    return rc;
}

static int do_think(plain *p, const char *args, err *e) {
    int rc = args[0] != '\0' ? chat_settings_think(&p->settings, args, e) : OK;
    buf value = BUF_INIT;
    chat_settings_value(&p->settings, "think", &value);
    if (rc == OK)
        plain_say("thinking: %s", value.len > 0 ? buf_cstr(&value) : "default of the engine");
    buf_release(&value);
    return rc;
}

static int do_save(plain *p, const char *args, err *e) {
    const session_turn *t = last_reply(p);
    if (t == NULL) return no_reply(e);
    if (args[0] == '\0') return err_set(e, ERR_ARG, "to which file? /save FILE");
    buf text = BUF_INIT;
    buf_printf(&text, "%s\n", t->text);
    int rc = write_new_file(args, &text, e);
    buf_release(&text);
    return rc;
}

static int get_state(plain *p, json **state, err *e) {
    return cmd_get_json(p->client, "/tandem/v1/state", state, e);
}

static int do_context(plain *p, const char *args, err *e) {
    (void)args;
    json *state = NULL;
    int64_t window = 0;
    int rc = get_state(p, &state, e);
    if (rc != OK) return rc;
    json_i64(json_get(json_get(state, "model"), "context"), &window);
    json_free(state);
    const chat_usage *u = &p->result.usage;
    if (!p->has_result || u->prompt_tokens < 0) {
        plain_say("window %lld tokens; nothing has been counted yet", (long long)window);
        return OK;
    }
    long long used =
        (long long)(u->prompt_tokens + (u->completion_tokens > 0 ? u->completion_tokens : 0));
    plain_say("%lld of %lld tokens used, %lld percent; the last prompt had %lld", used,
        (long long)window, window > 0 ? 100 * used / window : 0, (long long)u->prompt_tokens);
    return OK;
}

static int do_stats(plain *p, const char *args, err *e) {
    (void)args;
    if (!p->has_result) return no_reply(e);
    buf line = BUF_INIT;
    turn_stats_line(&p->result, &line);
    plain_say("last reply: %s", buf_cstr(&line));
    buf_release(&line);
    return OK;
}

static int do_status(plain *p, const char *args, err *e) {
    (void)args;
    json *state = NULL;
    int rc = get_state(p, &state, e);
    if (rc != OK) return rc;
    buf text = BUF_INIT;
    status_paragraph(state, &text);
    plain_say("%s", buf_cstr(&text));
    buf_release(&text);
    json_free(state);
    return OK;
}

static int do_model(plain *p, const char *args, err *e) {
    (void)args;
    json *state = NULL;
    int rc = get_state(p, &state, e);
    if (rc != OK) return rc;
    const json *model = json_get(state, "model");
    const char *id = json_str(json_get(model, "id")), *dir = json_str(json_get(model, "dir"));
    plain_say("model %s%s%s%s", id != NULL ? id : "unknown",
        json_is_true(json_get(model, "demo")) ? ", the built-in DEMO" : "",
        dir != NULL ? ", from " : "", dir != NULL ? dir : "");
    json_free(state);
    return OK;
}

/* Both machines; they say themselves what they do. */
static int do_pair(plain *p, const char *args, err *e) {
    const cmd_args *a = p->options->args;
    int code = str_eq(args, "stop")      ? cmd_pair_stop(a)
               : str_eq(args, "restart") ? cmd_pair_restart(a)
                                         : cmd_pair_start(a);
    if (code == EXIT_OK || code == EXIT_WARNINGS) return OK;
    return err_set(e, ERR_PEER, "the pair did not %s; what was wrong stands above", args);
}

static int do_engine(plain *p, const char *args, err *e) {
    bool does_stop = str_eq(args, "stop") || str_eq(args, "restart");
    bool does_start = str_eq(args, "start") || str_eq(args, "restart");
    bool is_pair = cmd_pair_applies(p->options->args);
    int rc = OK;
    if (!does_stop && !does_start) return err_set(e, ERR_ARG, "/engine start, stop or restart");
    if (is_pair) rc = do_pair(p, args, e);
    if (does_stop && !is_pair) {
        rc = launch_stop(client_socket_path(p->client), 30000, e);
        if (rc == OK) plain_say("the engine has ended");
        if (rc == ERR_NOT_FOUND && does_start) rc = OK;
    }
    client *c = NULL;
    if (rc == OK && does_start) rc = cmd_engine(p->options->args, !is_pair, &c, e);
    if (rc == OK && does_start) {
        client_close(p->client);
        p->client = c;
        plain_say("the engine is ready");
    }
    return rc;
}

static int do_quit(plain *p, const char *args, err *e) {
    (void)args, (void)e;
    p->is_over = true;
    return OK;
}

/* The yes is a word of the command: a line that is read aloud has no dialog. */
static int do_cache(plain *p, const char *args, err *e) {
    json *v = NULL;
    buf body = BUF_INIT;
    int64_t n = 0;
    bool is_wipe = str_eq(args, "wipe yes");
    if (args[0] != '\0' && !is_wipe)
        return err_set(e, ERR_ARG,
            "/cache tells what is kept of earlier prompts; /cache wipe yes "
            "forgets all of it");
    const client_request q = {
        .path = "/tandem/v1/cache", .limits = {.total_ms = 30000}, .is_delete = is_wipe};
    int rc = client_fetch(p->client, &q, &body, NULL, e);
    if (rc == OK) rc = json_parse(buf_cstr(&body), body.len, NULL, &v, e);
    (void)json_i64(json_get(v, is_wipe ? "entries" : "n_entries"), &n);
    if (rc == OK && is_wipe) {
        plain_say("forgotten: %lld%s", (long long)n,
            cmd_pair_applies(p->options->args) ? "; for the disk of the worker: tandem cache wipe"
                                               : "");
    } else if (rc == OK) {
        plain_say(
            n == 1 ? "%lld beginning of a prompt is kept" : "%lld beginnings of prompts are kept",
            (long long)n);
    }
    json_free(v);
    buf_release(&body);
    return rc;
}

static const command_fn COMMANDS[SLASH_COUNT] = {
    [SLASH_HELP] = do_help,
    [SLASH_NEW] = do_new,
    [SLASH_SESSIONS] = do_sessions,
    [SLASH_OPEN] = do_open,
    [SLASH_RENAME] = do_rename,
    [SLASH_DELETE] = do_delete,
    [SLASH_EXPORT] = do_export,
    [SLASH_AGAIN] = do_again,
    [SLASH_CONTINUE] = do_continue,
    [SLASH_UNDO] = do_undo,
    [SLASH_REDO] = do_redo,
    [SLASH_BRANCHES] = do_branches,
    [SLASH_BRANCH] = do_branch,
    [SLASH_FORK] = do_fork,
    [SLASH_SYSTEM] = do_system,
    [SLASH_SET] = do_set,
    [SLASH_UNSET] = do_unset,
    [SLASH_THINK] = do_think,
    [SLASH_SAVE] = do_save,
    [SLASH_CONTEXT] = do_context,
    [SLASH_STATS] = do_stats,
    [SLASH_STATUS] = do_status,
    [SLASH_MODEL] = do_model,
    [SLASH_ENGINE] = do_engine,
    [SLASH_CACHE] = do_cache,
    [SLASH_QUIT] = do_quit,
};

void plain_command(plain *p, const char *line) {
    const char *args = "";
    err e = ERR_INIT;
    const slash_entry *s = slash_find(line, false, &args, &e);
    if (s != NULL && COMMANDS[s->id] == NULL) {
        err_set(&e, ERR_UNSUPPORTED, "/%s works in the full screen only", s->name);
        s = NULL;
    }
    if (s == NULL || COMMANDS[s->id](p, args, &e) != OK) plain_say("%s", e.msg);
}
