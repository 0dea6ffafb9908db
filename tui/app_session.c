/* Sessions, drafts and sending, as the screen does them. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/app_internal.h"

#define DRAFT_MS 1000
#define SESSIONS_MS 5000

extern char **environ;

void app_load_sessions(app *a) {
    session_info *rows = NULL;
    int n = 0;
    err e = ERR_INIT;
    a->sessions_due_ms = a->now_ms + SESSIONS_MS;
    if (session_list(a->session_dir, &rows, &n, &e) != OK) {
        app_hint(a, "%s", e.msg);
        return;
    }
    mem_free(a->sessions);
    a->sessions = rows;
    a->n_sessions = n;
    if (a->selected_session >= n) a->selected_session = n > 0 ? n - 1 : 0;
    a->is_dirty = true;
}

/* A session that has no turn yet has no file: its draft belongs to "none open". */
static const char *draft_owner(const app *a) {
    return session_n_turns(a->chat.open) == 0 ? "" : session_name(a->chat.open);
}

void app_keep_draft(app *a, bool is_now) {
    if (!is_now && a->now_ms < a->draft_due_ms) return;
    a->draft_due_ms = a->now_ms + DRAFT_MS;
    buf text = BUF_INIT;
    err e = ERR_INIT;
    if (draft_keeper_take_error(a->drafts, &e)) {
        /* The remedy must fit into a line of 80 columns. */
        if (e.code == ERR_FULL)
            app_hint(a, "the disk is full: free some space; your text stays in the input line");
        else
            app_hint(a, "the unsent text could not be kept: %s", e.msg);
    }
    part_input_get(a->input, &text);
    /* Messages that wait are unsent text as well. */
    for (int i = a->chat.n_queue - 1; i >= 0; i--) {
        buf all = BUF_INIT;
        buf_printf(&all, "%s%s%s", a->chat.queue[i], text.len > 0 ? "\n" : "", buf_cstr(&text));
        buf_release(&text);
        text = all;
    }
    const char *owner = draft_owner(a);
    bool is_same = str_eq(owner, a->draft_of) && text.len == a->draft_saved.len &&
                   memcmp(buf_cstr(&text), buf_cstr(&a->draft_saved), text.len) == 0;
    if (is_same) {
        buf_release(&text);
        return;
    }
    if (!str_eq(owner, a->draft_of)) draft_keeper_put(a->drafts, a->draft_of, "", 0);
    draft_keeper_put(a->drafts, owner, buf_cstr(&text), text.len);
    str_copy(a->draft_of, sizeof a->draft_of, owner);
    buf_release(&a->draft_saved);
    a->draft_saved = text;
}

void app_load_draft(app *a) {
    buf text = BUF_INIT;
    str_copy(a->draft_of, sizeof a->draft_of, draft_owner(a));
    if (session_draft_load(a->session_dir, a->draft_of, &text, NULL) == OK && text.len > 0) {
        part_input_set(a->input, buf_cstr(&text), text.len);
        app_hint(a, "your unsent text is back");
    }
    buf_release(&a->draft_saved);
    a->draft_saved = text;
}

void app_open_session(app *a, const char *name) {
    err e = ERR_INIT;
    app_keep_draft(a, true);
    /* What is to be read back must be written first: the old keeper ends when it has. */
    draft_keeper_free(a->drafts);
    a->drafts = draft_keeper_new(a->session_dir);
    if (chat_load(&a->chat, name, &e) != OK) {
        app_hint(a, "%s", e.msg);
        return;
    }
    part_input_set(a->input, "", 0);
    buf_reset(&a->draft_saved);
    app_load_draft(a);
    if (a->screen != SCREEN_CHAT) app_go(a, SCREEN_CHAT);
    a->is_input_focused = true;
}

static bool is_command(const char *s) {
    return s[0] == '/' && s[1] != '/' && s[1] != '\0' && s[1] != ' ';
}

/* The engine is not there: start it if we may, and keep the message until it is. */
static void queue_until_ready(app *a, const char *text) {
    err e = ERR_INIT;
    if (chat_queue(&a->chat, text, &e) != OK) {
        app_hint(a, "%s", e.msg);
        part_input_set(a->input, text, strlen(text));
        return;
    }
    engine_state s = a->gauges.state;
    bool is_away = s == ENGINE_ABSENT || s == ENGINE_DOWN || s == ENGINE_FAILED;
    if (is_away && a->options->may_start && a->start == NULL) {
        app_start_engine(a, true);
        app_hint(a, "the engine is being started; your message waits for it");
    } else if (is_away && a->start == NULL)
        app_hint(a, "no engine is running; /engine start starts it, your message waits");
    else
        app_hint(a, "the engine is not ready yet; your message waits for it");
    a->is_hint_of_waiting = true;
}

void app_submit(app *a) {
    buf text = BUF_INIT;
    err e = ERR_INIT;
    part_input_take(a->input, &text);
    const char *s = buf_cstr(&text);
    if (s[strspn(s, " \t\n")] ==
        '\0') { /* an empty Enter sends what a stopped reply left waiting */
        if (app_engine_is_ready(a)) chat_send_queued(&a->chat, a->now_ms);
        goto out;
    }
    transcript_to_end(a);
    if (is_command(s)) {
        app_command(a, s, false);
        goto out;
    }
    if (s[0] == '/' && s[1] == '/') s++;
    if (!app_engine_is_ready(a) && !chat_is_busy(&a->chat)) {
        queue_until_ready(a, s);
        goto out;
    }
    if (chat_send(&a->chat, s, a->now_ms, &e) != OK) {
        app_hint(a, "%s", e.msg);
        part_input_set(a->input, s, strlen(s));
    }
out:
    app_keep_draft(a, true);
    buf_release(&text);
}

/* Runs the editor on a file and waits; the user's word decides which. */
static int run_editor(const char *path, err *e) {
    const char *editor = getenv("VISUAL");
    if (editor == NULL || editor[0] == '\0') editor = getenv("EDITOR");
    if (editor == NULL || editor[0] == '\0') editor = "vi";
    char command[512];
    snprintf(command, sizeof command, "exec %s \"$1\"", editor);
    char *const argv[] = {"sh", "-c", command, "tandem", (char *)(uintptr_t)path, NULL};
    pid_t pid;
    int status = 0;
    int rc = posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ);
    if (rc != 0) {
        errno = rc;
        return err_errno(e, "the editor could not be started");
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return OK;
    return err_set(e, ERR_CANCELLED,
        "the editor \"%.60s\" ended with an error; the text is as it was", editor);
}

void app_run_editor(app *a) {
    buf text = BUF_INIT, path = BUF_INIT;
    err e = ERR_INIT;
    buf_printf(&path, "%s/edit-%d.md", a->session_dir, (int)getpid());
    part_input_get(a->input, &text);
    int rc = file_write_atomic(buf_cstr(&path), buf_cstr(&text), text.len, 0600, &e);
    if (rc == OK) {
        term_suspend(a->term);
        rc = run_editor(buf_cstr(&path), &e);
        term_resume(a->term);
    }
    if (rc == OK) rc = file_read(buf_cstr(&path), &text, 16u << 20, &e);
    if (rc == OK && !utf8_valid(buf_cstr(&text), text.len))
        rc = err_set(&e, ERR_FORMAT, "the edited text is not UTF-8; the text is as it was");
    if (rc == OK) {
        while (text.len > 0 && text.data[text.len - 1] == '\n')
            buf_truncate(&text, text.len - 1);
        part_input_set(a->input, buf_cstr(&text), text.len);
    } else
        app_hint(a, "%s", e.msg);
    file_remove(buf_cstr(&path), NULL);
    buf_release(&text);
    buf_release(&path);
}
