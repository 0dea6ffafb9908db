#include "tui/cmd_setup_talk.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "engine/base/str.h"

enum { ANSWER_MAX = 512 };

typedef struct talking {
    bool is_quiet;
    int shown_tenth;
    char title[96];
} talking;

bool setup_read_line(const char *prompt, bool is_hidden, char *out, size_t cap) {
    struct termios before, quiet;
    bool is_set = is_hidden && tcgetattr(STDIN_FILENO, &before) == 0;
    if (is_set) { /* before the prompt: who answers at once is not shown, and loses nothing */
        quiet = before;
        quiet.c_lflag &= ~(tcflag_t)ECHO;
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet);
    }
    cmd_flush();
    fprintf(stderr, "%s", prompt);
    fflush(stderr);
    /* Byte by byte, so that nothing of a secret stays in a buffer of the library. */
    size_t n = 0;
    bool is_ended = false;
    while (!is_ended && n + 1 < cap) {
        char c;
        if (read(STDIN_FILENO, &c, 1) <= 0) break;
        is_ended = c == '\n';
        if (!is_ended && c != '\r') out[n++] = c;
    }
    out[n] = '\0';
    if (is_set) {
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
        fputc('\n', stderr);
    }
    return is_ended || n > 0;
}

static setup_word word_of(const char *s) {
    if (str_eq(s, "?") || str_eq_nocase(s, "help")) return SETUP_WHY;
    if (str_eq_nocase(s, "back") || str_eq_nocase(s, "b")) return SETUP_BACK;
    if (str_eq_nocase(s, "quit") || str_eq_nocase(s, "exit") || str_eq_nocase(s, "q"))
        return SETUP_QUIT;
    return SETUP_ANSWER;
}

setup_word setup_ask(const char *prompt, char *out, size_t cap) {
    if (!setup_read_line(prompt, false, out, cap)) return SETUP_ENDED;
    size_t from = strspn(out, " \t"), n = strlen(out);
    while (n > from && (out[n - 1] == ' ' || out[n - 1] == '\t'))
        n--;
    memmove(out, out + from, n - from);
    out[n - from] = '\0';
    return word_of(out);
}

setup_word setup_agree(const char *question, const char *why) {
    char answer[ANSWER_MAX];
    for (;;) {
        setup_word w = setup_ask(question, answer, sizeof answer);
        if (w == SETUP_WHY) {
            setup_put_line("  ", why);
            continue;
        }
        if (w != SETUP_ANSWER) return w;
        return str_eq_nocase(answer, "yes") || str_eq_nocase(answer, "y") ? SETUP_ANSWER
                                                                          : SETUP_WHY;
    }
}

bool setup_confirm(const char *question) {
    char answer[ANSWER_MAX];
    return setup_read_line(question, false, answer, sizeof answer) &&
           (str_eq_nocase(answer, "yes") || str_eq_nocase(answer, "y"));
}

void setup_put_line(const char *label, const char *text) {
    if (text[0] == '\0') return;
    cmd_puts(label);
    cmd_put_text(text, strlen(text));
    cmd_puts("\n");
}

static void put_line(void *ctx, const char *text) {
    const talking *t = ctx;
    if (t->is_quiet) return;
    setup_put_line("  > ", text);
    cmd_flush();
}

static void put_progress(void *ctx, const flow_progress *p) {
    talking *t = ctx;
    char done[32], total[32], left[32];
    int tenth = p->total_bytes > 0 ? (int)(p->done_bytes * 10 / p->total_bytes) : 0;
    if (t->is_quiet || (tenth == t->shown_tenth && str_eq(t->title, p->title))) return;
    t->shown_tenth = tenth;
    str_copy(t->title, sizeof t->title, p->title);
    cmd_printf("  %s", p->title);
    if (p->total_bytes > 0)
        cmd_printf(": %s of %s (%d %%)", cmd_bytes_text((double)p->done_bytes, done),
            cmd_bytes_text((double)p->total_bytes, total), tenth * 10);
    if (p->eta_s >= 0) cmd_printf(", %s left", cmd_time_text(p->eta_s, left));
    if (p->note[0] != '\0') cmd_printf(", %s", p->note);
    cmd_puts("\n");
    cmd_flush();
}

static bool ask_host_key(void *ctx, const remote_host_key *key) {
    char answer[ANSWER_MAX];
    (void)ctx;
    cmd_flush();
    fprintf(stderr,
        "%s port %d is not known yet.\n%s key %s\n%sRead it on that machine's own screen and "
        "compare:\n  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n",
        key->host, key->port, key->type, key->fingerprint, key->picture);
    setup_word w;
    do {
        w = setup_ask(
            "Type the last 6 characters of the fingerprint, or accept (? why, quit leaves): ",
            answer, sizeof answer);
        if (w == SETUP_WHY)
            setup_put_line("  ",
                "Whoever answers at this address could be another machine. Its own screen "
                "shows the true fingerprint; what is typed here is kept and compared from "
                "now on.");
    } while (w == SETUP_WHY);
    return w == SETUP_ANSWER && remote_key_confirmed(key->fingerprint, answer);
}

static bool ask_secret(void *ctx, const char *prompt, ssh_secret *out) {
    char answer[SSH_SECRET_MAX], text[400];
    (void)ctx;
    snprintf(text, sizeof text, "%.360s (Enter alone leaves): ", prompt);
    bool is_given = setup_read_line(text, true, answer, sizeof answer) && answer[0] != '\0' &&
                    ssh_secret_set(out, answer, strlen(answer)) == OK;
    explicit_bzero(answer, sizeof answer);
    return is_given;
}

static bool ask_typed(void *ctx, const char *prompt, char *out, size_t cap) {
    char text[500];
    (void)ctx;
    snprintf(text, sizeof text, "%.490s ", prompt);
    return setup_read_line(text, false, out, cap);
}

/* Also without anybody to ask: then it is what the caller of the command reads. */
static bool show_once(void *ctx, const char *what, const char *text) {
    const talking *t = ctx;
    if (t->is_quiet) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "api_key", text);
        json_w_kstr(&w, "note", what);
        cmd_put_json(&w);
        explicit_bzero(out.data, out.cap);
        buf_release(&out);
    } else {
        cmd_printf("  %s\n  %s\n", what, text);
    }
    cmd_flush();
    return !cmd_output_failed();
}

const flow_talk *setup_talk(bool is_quiet, bool may_ask) {
    static talking t;
    static flow_talk talk;
    t = (talking){.is_quiet = is_quiet, .shown_tenth = -1};
    talk = (flow_talk){&t, put_line, put_progress, NULL, may_ask ? ask_host_key : NULL,
        may_ask ? ask_secret : NULL, may_ask ? ask_typed : NULL, show_once};
    return &talk;
}

int setup_program(buf *out, err *e) {
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return err_errno(e, "finding this program");
    self[n] = '\0';
    return buf_puts(out, self);
}
