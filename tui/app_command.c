/* Slash commands and the command line: one function per command, found through the table of
 * cmd_table.h; completion of their names and words. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/app_internal.h"
#include "tui/cmd_table.h"

typedef void (*command_fn)(app *a, const char *args);

/* Shows the error if there is one; true if all went well. */
static bool went_well(app *a, int rc, const err *e) {
    if (rc != OK) app_hint(a, "%s", e->msg);
    return rc == OK;
}

void app_copy(app *a, const char *text, size_t n, const char *what) {
    err e = ERR_INIT;
    if (term_copy(a->term, text, n, &e) == OK) {
        app_hint(a, "%s was sent to the terminal's clipboard (%zu bytes)", what, n);
        return;
    }
    buf path = BUF_INIT;
    path_join(&path, a->session_dir, "copied.txt");
    if (went_well(a, file_write_atomic(buf_cstr(&path), text, n, 0600, &e), &e)) {
        app_hint(a, "too long for the terminal's clipboard: written to %s", buf_cstr(&path));
    }
    buf_release(&path);
}

static void to_chat(app *a) {
    if (a->screen != SCREEN_CHAT) app_go(a, SCREEN_CHAT);
}

static void do_help(app *a, const char *args) {
    a->overlay = OVERLAY_HELP;
    a->overlay_top = 0;
    buf_reset(&a->help_filter);
    buf_puts(&a->help_filter, args);
}

static void do_new(app *a, const char *args) {
    (void)args;
    app_open_session(a, NULL);
}

static void do_sessions(app *a, const char *args) {
    (void)args;
    app_go(a, SCREEN_HOME);
}

static void do_open(app *a, const char *args) {
    char name[SESSION_NAME_BYTES];
    err e = ERR_INIT;
    if (args[0] == '\0')
        app_hint(a, "/open needs a name; /sessions lists them");
    else if (went_well(a, session_find(a->session_dir, args, name, &e), &e))
        app_open_session(a, name);
}

static void do_rename(app *a, const char *args) {
    err e = ERR_INIT;
    if (args[0] == '\0')
        app_hint(a, "/rename needs a title");
    else if (went_well(a, session_rename(a->chat.open, args, &e), &e))
        app_hint(a, "renamed");
}

static void do_delete(app *a, const char *args) {
    char name[SESSION_NAME_BYTES];
    err e = ERR_INIT;
    if (args[0] == '\0') {
        app_hint(a, "/delete needs a name; /sessions lists them");
        return;
    }
    if (!went_well(a, session_find(a->session_dir, args, name, &e), &e)) return;
    if (str_eq(name, session_name(a->chat.open)))
        app_hint(a, "this session is open; /new first, then /delete it");
    else if (went_well(a, session_delete(a->session_dir, name, &e), &e)) {
        app_load_sessions(a);
        app_hint(a, "deleted %s", name);
    }
}

/* A path with a leading ~/ as the user means it. */
static void expand(const char *path, buf *out) {
    const char *home = getenv("HOME");
    if (path[0] == '~' && path[1] == '/' && home != NULL)
        buf_printf(out, "%s%s", home, path + 1);
    else
        buf_puts(out, path);
}

static void write_to(app *a, const char *path, const char *s, size_t n) {
    buf full = BUF_INIT;
    err e = ERR_INIT;
    expand(path, &full);
    if (file_exists(buf_cstr(&full)))
        app_hint(a, "%s exists; choose another name", buf_cstr(&full));
    else if (went_well(a, file_write_atomic(buf_cstr(&full), s, n, 0644, &e), &e)) {
        app_hint(a, "written: %s (%zu bytes)", buf_cstr(&full), n);
    }
    buf_release(&full);
}

static void do_export(app *a, const char *args) {
    static const char *const WORDS[] = {"md", "json", "txt"};
    size_t len = strcspn(args, " ");
    const char *path = args + len + strspn(args + len, " ");
    for (int i = 0; i < 3; i++) {
        if (strlen(WORDS[i]) != len || memcmp(WORDS[i], args, len) != 0 || path[0] == '\0')
            continue;
        buf out = BUF_INIT;
        err e = ERR_INIT;
        if (went_well(a, session_export(a->chat.open, (session_format)i, &out, &e), &e)) {
            write_to(a, path, buf_cstr(&out), out.len);
        }
        buf_release(&out);
        return;
    }
    app_hint(a, "write it as: /export md FILE (or json, txt)");
}

static void do_again(app *a, const char *args) {
    err e = ERR_INIT;
    while (args[0] != '\0') {
        char pair[128];
        size_t len = strcspn(args, " ");
        snprintf(pair, sizeof pair, "%.*s", (int)(len < 127 ? len : 127), args);
        if (!went_well(a, chat_settings_set_pair(&a->chat.settings, pair, &e), &e)) return;
        args += len + strspn(args + len, " ");
    }
    to_chat(a);
    went_well(a, chat_again(&a->chat, a->now_ms, &e), &e);
}

static void do_edit(app *a, const char *args) {
    int64_t number = 0;
    int view = a->chat.n_views - 1;
    if (args[0] != '\0' && parse_i64(args, &number) == OK) {
        for (int i = 0, n = 0; i < a->chat.n_views; i++) {
            if (a->chat.views[i].role == SESSION_USER && ++n == number) view = i;
        }
    }
    to_chat(a);
    a->scroll.selected = view;
    screen_chat_action(a, ACTION_EDIT);
}

static void do_continue(app *a, const char *args) {
    (void)args;
    to_chat(a);
    screen_chat_action(a, ACTION_CONTINUE);
}

static void do_undo(app *a, const char *args) {
    err e = ERR_INIT;
    (void)args;
    if (went_well(a, chat_undo(&a->chat, &e), &e))
        app_hint(a, "one turn back; /redo takes it back");
}

static void do_redo(app *a, const char *args) {
    err e = ERR_INIT;
    (void)args;
    if (went_well(a, chat_redo(&a->chat, &e), &e)) app_hint(a, "one turn forward again");
}

static int leaves(const session *s, int *ids, int cap) {
    int n = 0;
    for (int id = 1; id <= session_n_turns(s); id++) {
        if (session_leaf(s, id) == id && n < cap) ids[n++] = id;
    }
    return n;
}

static void do_branches(app *a, const char *args) {
    int ids[64];
    int n = leaves(a->chat.open, ids, 64), head = session_head(a->chat.open);
    buf out = BUF_INIT;
    (void)args;
    for (int i = 0; i < n; i++) {
        const session_turn *t = session_turn_at(a->chat.open, ids[i]);
        while (t != NULL && t->role != SESSION_USER)
            t = session_turn_at(a->chat.open, t->parent);
        size_t len = t != NULL ? strcspn(t->text, "\n") : 0;
        buf_printf(&out, "%s %2d  %.*s\n", ids[i] == head ? "*" : " ", i + 1,
            (int)(len < 70 ? len : 70), t != NULL ? t->text : "");
    }
    buf_puts(&out, "\n/branch N goes to one; [ and ] step through the siblings of a turn.\n");
    app_show_text(a, "Branches", buf_cstr(&out));
    buf_release(&out);
}

static void do_branch(app *a, const char *args) {
    int ids[64];
    int64_t number = 0;
    err e = ERR_INIT;
    int n = leaves(a->chat.open, ids, 64);
    if (parse_i64(args, &number) != OK || number < 1 || number > n) {
        app_hint(a, "/branch needs a number from 1 to %d; /branches lists them", n);
    } else if (chat_is_busy(&a->chat))
        app_hint(a, "a reply is being written; Ctrl-C stops it");
    else if (went_well(a, session_set_head(a->chat.open, ids[number - 1], &e), &e))
        chat_rebuild(&a->chat);
}

static void do_fork(app *a, const char *args) {
    err e = ERR_INIT;
    screen_chat_action(a, ACTION_FORK);
    if (args[0] != '\0') went_well(a, session_rename(a->chat.open, args, &e), &e);
}

static void do_system(app *a, const char *args) {
    buf text = BUF_INIT;
    err e = ERR_INIT;
    if (args[0] == '\0') {
        const chat_message_view *v = a->chat.n_views > 0 ? &a->chat.views[0] : NULL;
        size_t n;
        bool has = v != NULL && v->role == SESSION_SYSTEM;
        app_show_text(a, "System prompt",
            has ? md_source(v->text, &n) : "There is none. /system TEXT sets one.");
        return;
    }
    if (args[0] == '@') {
        buf path = BUF_INIT;
        expand(args + 1, &path);
        int rc = file_read(buf_cstr(&path), &text, 1 << 20, &e);
        if (rc == OK && !utf8_valid(buf_cstr(&text), text.len)) {
            rc = err_set(&e, ERR_FORMAT, "%s is not UTF-8 text", buf_cstr(&path));
        }
        buf_release(&path);
        if (!went_well(a, rc, &e)) goto out;
    } else
        buf_puts(&text, args);
    to_chat(a);
    if (went_well(a, chat_set_system(&a->chat, buf_cstr(&text), &e), &e)) {
        app_hint(a, "system prompt set: a new branch from the root");
    }
out:
    buf_release(&text);
}

static void do_set(app *a, const char *args) {
    err e = ERR_INIT;
    if (args[0] != '\0') {
        if (went_well(a, chat_settings_set_pair(&a->chat.settings, args, &e), &e))
            app_hint(a, "set: %s", args);
        return;
    }
    buf out = BUF_INIT;
    const char *name;
    for (int i = 0; (name = chat_settings_name(i)) != NULL; i++) {
        buf value = BUF_INIT;
        chat_settings_value(&a->chat.settings, name, &value);
        buf_printf(
            &out, "%-14s %s\n", name, value.len > 0 ? buf_cstr(&value) : "(the engine's default)");
        buf_release(&value);
    }
    app_show_text(a, "Settings", buf_cstr(&out));
    buf_release(&out);
}

static void do_unset(app *a, const char *args) {
    err e = ERR_INIT;
    if (went_well(a, chat_settings_unset(&a->chat.settings, args, &e), &e))
        app_hint(a, "%s is the engine's default again", args);
}

static void do_think(app *a, const char *args) {
    err e = ERR_INIT;
    if (args[0] == '\0')
        app_hint(a, "/think off, on, or an effort: minimal low medium high xhigh max");
    else if (went_well(a, chat_settings_think(&a->chat.settings, args, &e), &e))
        app_hint(a, "thinking: %s", args);
}

static void do_raw(app *a, const char *args) {
    (void)args;
    screen_chat_action(a, ACTION_RAW);
}

static void do_fold(app *a, const char *args) {
    (void)args;
    screen_chat_action(a, ACTION_THINK_ALL);
}

static const chat_message_view *last_reply(const app *a) {
    for (int i = a->chat.n_views - 1; i >= 0; i--) {
        if (a->chat.views[i].role == SESSION_ASSISTANT) return &a->chat.views[i];
    }
    return NULL;
}

static void do_copy(app *a, const char *args) {
    const chat_message_view *v = last_reply(a);
    int64_t number = 0;
    size_t n;
    if (str_eq(args, "all"))
        screen_chat_action(a, ACTION_COPY_ALL);
    else if (v == NULL)
        app_hint(a, "there is no reply to copy yet");
    else if (args[0] == '\0') {
        const char *s = md_source(v->text, &n);
        app_copy(a, s, n, "the reply");
    } else if (parse_i64(args, &number) == OK && number >= 1 && number <= md_n_code(v->text)) {
        buf out = BUF_INIT;
        md_code(v->text, (int)number, &out);
        app_copy(a, buf_cstr(&out), out.len, "the code block");
        buf_release(&out);
    } else
        app_hint(a, "/copy needs a code block from 1 to %d, or all", md_n_code(v->text));
}

static void do_save(app *a, const char *args) {
    const chat_message_view *v = last_reply(a);
    if (v == NULL)
        app_hint(a, "there is no reply to save yet");
    else if (args[0] == '\0')
        app_hint(a, "/save needs a file");
    else {
        size_t n;
        const char *s = md_source(v->text, &n);
        write_to(a, args, s, n);
    }
}

static void do_context(app *a, const char *args) {
    char used[16], all[16];
    buf out = BUF_INIT;
    (void)args;
    buf_printf(&out, "window          %s tokens\n", part_count(a->gauges.context, all));
    buf_printf(&out, "after the last reply %s tokens\n\n", part_count(a->chat.context_used, used));
    for (int i = 0; i < a->chat.n_views; i++) {
        size_t n, think = 0;
        const chat_message_view *v = &a->chat.views[i];
        md_source(v->text, &n);
        if (v->think != NULL) md_source(v->think, &think);
        buf_printf(&out, "turn %-4d %-10s %7zu bytes", v->id, session_role_name(v->role), n);
        if (think > 0) buf_printf(&out, ", thinking %zu bytes", think);
        buf_putc(&out, '\n');
    }
    app_show_text(a, "Context", buf_cstr(&out));
    buf_release(&out);
}

static void do_stats(app *a, const char *args) {
    buf out = BUF_INIT;
    (void)args;
    int64_t tokens = 0;
    int replies = 0;
    for (int i = 0; i < a->chat.n_views; i++) {
        if (a->chat.views[i].role != SESSION_ASSISTANT) continue;
        replies++;
        if (a->chat.views[i].tokens > 0) tokens += a->chat.views[i].tokens;
    }
    buf_printf(&out, "last reply   %s\n", a->chat.last_line[0] != '\0' ? a->chat.last_line : "-");
    buf_printf(&out, "session      %d replies, %lld tokens written\n", replies, (long long)tokens);
    app_show_text(a, "Statistics", buf_cstr(&out));
    buf_release(&out);
}

static void do_status(app *a, const char *args) {
    const gauges *g = &a->gauges;
    buf out = BUF_INIT;
    char n[16];
    (void)args;
    buf_printf(&out, "engine     %s %s\n", gauges_state_word(g->state), g->reason);
    buf_printf(&out, "model      %s%s\n", g->model_id[0] != '\0' ? g->model_id : "-",
        g->is_demo ? " (built-in demo)" : "");
    buf_printf(&out, "folder     %s\n", g->model_dir[0] != '\0' ? g->model_dir : "-");
    buf_printf(&out, "window     %s tokens\n", part_count(g->context, n));
    buf_printf(&out, "version    %s %s\n", g->version, g->build);
    buf_printf(&out, "endpoint   %s\n", g->is_endpoint_on ? g->endpoint : "off");
    buf_printf(&out, "socket     %s\n", a->socket_path);
    app_show_text(a, "Engine", buf_cstr(&out));
    buf_release(&out);
}

static void do_engine(app *a, const char *args) {
    if (str_eq(args, "start"))
        screen_home_key(a, ACTION_START);
    else if (str_eq(args, "stop"))
        screen_home_key(a, ACTION_STOP_ENGINE);
    else if (str_eq(args, "restart"))
        screen_home_key(a, ACTION_RESTART);
    else
        app_hint(a, "write it as: /engine start, stop or restart");
}

static void do_cache(app *a, const char *args) {
    app_cache_command(a, args);
}

static void do_keys(app *a, const char *args) {
    buf out = BUF_INIT;
    (void)args;
    keymap_print(&out);
    app_show_text(a, "Keys by name (keys.conf rebinds them)", buf_cstr(&out));
    buf_release(&out);
}

static void do_quit(app *a, const char *args) {
    (void)args;
    a->overlay_selected = 0;
    if (chat_is_busy(&a->chat))
        a->overlay = OVERLAY_LEAVE;
    else
        a->is_leaving = true;
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
    [SLASH_EDIT] = do_edit,
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
    [SLASH_RAW] = do_raw,
    [SLASH_FOLD] = do_fold,
    [SLASH_COPY] = do_copy,
    [SLASH_SAVE] = do_save,
    [SLASH_CONTEXT] = do_context,
    [SLASH_STATS] = do_stats,
    [SLASH_STATUS] = do_status,
    [SLASH_MODEL] = do_status,
    [SLASH_ENGINE] = do_engine,
    [SLASH_CACHE] = do_cache,
    [SLASH_KEYS] = do_keys,
    [SLASH_QUIT] = do_quit,
};

/* The short forms that a hand used to vi or k9s types after the colon. */
static bool short_form(app *a, const char *line) {
    static const struct {
        const char *word;
        app_screen screen;
    } SCREENS[] = {{"home", SCREEN_HOME}, {"chat", SCREEN_CHAT}, {"dash", SCREEN_DASH}};
    for (int i = 0; i < 3; i++) {
        if (!str_eq(line, SCREENS[i].word)) continue;
        app_go(a, SCREENS[i].screen);
        return true;
    }
    if (!str_eq(line, "q")) return false;
    do_quit(a, "");
    return true;
}

void app_command(app *a, const char *line, bool is_palette) {
    const char *args = "";
    err e = ERR_INIT;
    if (is_palette && short_form(a, line)) return;
    const slash_entry *s = slash_find(line, is_palette, &args, &e);
    if (s == NULL)
        app_hint(a, "%s", e.msg);
    else if ((s->where & SLASH_IN_SCREEN) == 0 || COMMANDS[s->id] == NULL)
        app_hint(a, "/%s is a command of plain mode", s->name);
    else
        COMMANDS[s->id](a, args);
}

/* --- completion --- */

/* Collects candidates that start with the typed part and what they have in common. */
typedef struct candidates {
    const char *typed;
    size_t typed_len, common_len;
    char common[128];
    buf list;
    int n;
} candidates;

static void offer(candidates *k, const char *word) {
    if (strncmp(word, k->typed, k->typed_len) != 0) return;
    if (k->n++ == 0) {
        str_copy(k->common, sizeof k->common, word);
        k->common_len = strlen(k->common);
    }
    size_t same = 0;
    while (same < k->common_len && word[same] == k->common[same])
        same++;
    k->common_len = same;
    buf_printf(&k->list, "%s%s", k->n > 1 ? "  " : "", word);
}

static void offer_words(candidates *k, const char *words) {
    while (words != NULL && *words != '\0') {
        char word[64];
        size_t len = strcspn(words, " ");
        snprintf(word, sizeof word, "%.*s", (int)(len < 63 ? len : 63), words);
        offer(k, word);
        words += len + strspn(words + len, " ");
    }
}

static void offer_names(candidates *k) {
    size_t n;
    const slash_entry *s = slash_table(&n);
    for (size_t i = 0; i < n; i++) {
        if (s[i].where & SLASH_IN_SCREEN) offer(k, s[i].name);
    }
}

static void offer_arguments(app *a, candidates *k, const char *line) {
    const char *args;
    const slash_entry *s = slash_find(line, true, &args, NULL);
    if (s == NULL) return;
    k->typed = args;
    k->typed_len = strlen(args);
    for (int i = 0; s->complete == COMPLETE_SESSION && i < a->n_sessions; i++)
        offer(k, a->sessions[i].name);
    if (s->complete == COMPLETE_COMMAND) offer_names(k);
    offer_words(k, cmd_complete_words(s->complete));
}

bool app_complete(app *a, buf *text, bool is_palette) {
    candidates k = {.list = BUF_INIT};
    const char *line = buf_cstr(text);
    const char *word = line + (line[0] == '/' || line[0] == ':');
    bool grew = false;
    if (strchr(word, ' ') != NULL)
        offer_arguments(a, &k, line);
    else {
        k.typed = word;
        k.typed_len = strlen(word);
        offer_names(&k);
    }
    if (k.n > 0 && k.common_len >= k.typed_len) {
        char more[130];
        snprintf(more, sizeof more, "%.*s%s", (int)(k.common_len - k.typed_len),
            k.common + k.typed_len, k.n == 1 ? " " : "");
        grew = more[0] != '\0';
        buf_puts(text, more);
    }
    const char *shown = k.n > 1 ? buf_cstr(&k.list) : k.n == 0 ? "no such command or word" : "";
    if (is_palette)
        str_copy(a->prompt.hint, sizeof a->prompt.hint, shown);
    else if (shown[0] != '\0')
        app_hint(a, "%s", shown);
    buf_release(&k.list);
    return grew;
}
