#include "tests/harness/screen_test.h"

#include <ctype.h>
#include <glob.h>
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/base/str.h"

#define WAIT_MS 120000
#define DIR_PREFIX "/tmp/tandem-screen-"

void screen_open(screen_test *t, const screen_setup *s) {
    memset(t, 0, sizeof *t);
    setlocale(LC_CTYPE, "C.UTF-8");
    str_copy(t->dir, sizeof t->dir, DIR_PREFIX "XXXXXX");
    if (mkdtemp(t->dir) == NULL) {
        perror("mkdtemp");
        exit(1);
    }
    snprintf(t->socket, sizeof t->socket, "%s/engine.sock", t->dir);
    if (!s->without_daemon) t->daemon = fake_daemon_start(t->dir);
}

static const char *program(void) {
    static char path[512];
    const char *build = getenv("BUILD_DIR");  /* of make test */
    if (build == NULL) build = getenv("OUT"); /* of make bench */
    snprintf(path, sizeof path, "%s/tandem", build != NULL ? build : "build");
    return path;
}

void screen_run(screen_test *t, const screen_setup *s) {
    static char home[96], config[128], state[128], runtime[128];
    const char *argv[24] = {program(), "--socket", t->socket};
    const char *env[24] = {home, config, state, runtime, "TERM=xterm-256color", "LANG=C.UTF-8",
        "LC_ALL=C.UTF-8", "TZ=UTC", "NO_COLOR", "COLORTERM", "SSH_CONNECTION", "VISUAL", "EDITOR",
        "ACCESSIBLE", "INPUTRC=/dev/null", "TANDEM_MODEL_DIR=/nonexistent",
        "LSAN_OPTIONS=suppressions=tests/data/lsan.supp:print_suppressions=0"};
    int n = s->without_socket ? 1 : 3, n_env = 17;
    if (s->screen != NULL) {
        argv[n++] = "--screen";
        argv[n++] = s->screen;
    }
    for (int i = 0; s->arguments != NULL && s->arguments[i] != NULL; i++)
        argv[n++] = s->arguments[i];
    argv[n] = NULL;
    for (int i = 0; s->env != NULL && s->env[i] != NULL; i++)
        env[n_env++] = s->env[i];
    snprintf(home, sizeof home, "HOME=%s", t->dir);
    snprintf(config, sizeof config, "XDG_CONFIG_HOME=%s/config", t->dir);
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s/state", t->dir);
    snprintf(runtime, sizeof runtime, "XDG_RUNTIME_DIR=%s", t->dir);
    pty_start(&t->term, argv, env, s->n_rows, s->n_columns);
    t->term.screen.answers = s->answers;
    t->is_running = true;
}

void screen_end(screen_test *t) {
    if (t->is_running) pty_stop(&t->term);
    t->is_running = false;
}

void screen_close(screen_test *t) {
    screen_end(t);
    if (t->daemon != NULL) fake_daemon_stop(t->daemon);
    dir_remove_all(t->dir, NULL);
}

void screen_text(const screen_test *t, buf *out) {
    buf_reset(out);
    vt_text(&t->term.screen, out);
}

static void fail_with_screen(screen_test *t, const char *what, const char *text) {
    buf out = BUF_INIT;
    screen_text(t, &out);
    fprintf(stderr, "--- the screen is:\n%s---\n", buf_cstr(&out));
    buf_release(&out);
    fail_msg("%s: \"%s\"", what, text);
}

void screen_expect(screen_test *t, const char *text) {
    if (!pty_wait(&t->term, text, true, WAIT_MS)) fail_with_screen(t, "never came", text);
}

void screen_expect_gone(screen_test *t, const char *text) {
    if (!pty_wait(&t->term, text, false, WAIT_MS)) fail_with_screen(t, "never went", text);
}

void screen_expect_end(screen_test *t) {
    if (!pty_wait_end(&t->term, WAIT_MS)) fail_with_screen(t, "does not end", "the program");
}

static bool is_in_files(const char *pattern, const char *text) {
    glob_t g;
    bool is_there = false;
    if (glob(pattern, GLOB_PERIOD, NULL, &g) != 0) return false;
    for (size_t i = 0; i < g.gl_pathc && !is_there; i++) {
        buf bytes = BUF_INIT;
        is_there = file_read(g.gl_pathv[i], &bytes, 1 << 22, NULL) == OK &&
                   strstr(buf_cstr(&bytes), text) != NULL;
        buf_release(&bytes);
    }
    globfree(&g);
    return is_there;
}

void screen_expect_kept(screen_test *t, const char *ending, const char *text) {
    char pattern[160];
    uint64_t end = clock_mono_ms() + WAIT_MS;
    snprintf(pattern, sizeof pattern, "%s/state/tandem/sessions/*%s", t->dir, ending);
    while (!is_in_files(pattern, text)) {
        if (clock_mono_ms() >= end) fail_with_screen(t, "never kept", text);
        pty_settle(&t->term, 20, 20);
    }
}

void screen_keys(screen_test *t, const char *keys) {
    pty_keys(&t->term, keys);
}

/* --- goldens --- */

/* "hh:mm" for a time of day; 0: none here. */
static size_t mask_clock(const char *s) {
    bool is_time = isdigit((unsigned char)s[0]) && isdigit((unsigned char)s[1]) && s[2] == ':' &&
                   isdigit((unsigned char)s[3]) && isdigit((unsigned char)s[4]) &&
                   !isdigit((unsigned char)s[5]);
    return is_time ? 5 : 0;
}

/* A number with its unit of time or speed, such as "0.41 s" and "38.4 t/s". */
static size_t mask_number(const char *s, const char **shown) {
    size_t n = 0;
    if (strncmp(s, "- t/s", 5) == 0) n = 1; /* not known yet */
    while (n == 0 || isdigit((unsigned char)s[n]) || s[n] == '.') {
        if (!isdigit((unsigned char)s[n]) && s[n] != '.') break;
        n++;
    }
    if (n == 0) return 0;
    if (strncmp(s + n, " t/s", 4) == 0) {
        *shown = "N t/s";
        return n + 4;
    }
    if (memchr(s, '.', n) != NULL && strncmp(s + n, " s", 2) == 0 &&
        !isalpha((unsigned char)s[n + 2])) {
        *shown = "N s";
        return n + 2;
    }
    return 0;
}

/* Rows with masked numbers lose their runs of blanks, because the numbers differ in length. */
static void mask_row(const char *s, size_t len, buf *out) {
    buf row = BUF_INIT;
    bool has_number = false;
    for (size_t i = 0; i < len;) {
        const char *shown = NULL;
        bool is_start = i == 0 || !(isdigit((unsigned char)s[i - 1]) || s[i - 1] == '.');
        size_t clock = is_start ? mask_clock(s + i) : 0,
               number = is_start && clock == 0 ? mask_number(s + i, &shown) : 0;
        if (clock > 0)
            buf_puts(&row, "hh:mm");
        else if (number > 0) {
            buf_puts(&row, shown);
            has_number = true;
        } else
            buf_putc(&row, s[i]);
        i += clock + number > 0 ? clock + number : 1;
    }
    for (size_t i = 0; i < row.len; i++) {
        bool is_run = has_number && row.data[i] == ' ' && i >= 2 && row.data[i - 1] == ' ' &&
                      row.data[i - 2] == ' ';
        if (!is_run) buf_putc(out, row.data[i]);
    }
    buf_release(&row);
}

static void masked_screen(const screen_test *t, buf *out) {
    buf text = BUF_INIT;
    screen_text(t, &text);
    /* The folder's name differs from run to run, and may be cut at the edge of a box. */
    for (char *at = text.data; at != NULL && (at = strstr(at, DIR_PREFIX)) != NULL;) {
        for (at += sizeof DIR_PREFIX - 1; isalnum((unsigned char)*at); at++)
            *at = '0';
    }
    for (const char *s = buf_cstr(&text); *s != '\0';) {
        size_t len = strcspn(s, "\n");
        mask_row(s, len, out);
        buf_putc(out, '\n');
        s += len + (s[len] == '\n' ? 1 : 0);
    }
    buf_release(&text);
}

/* The screen once nothing came for a while. */
static void settled_screen(screen_test *t, buf *out) {
    pty_settle(&t->term, 150, 1500);
    buf_reset(out);
    masked_screen(t, out);
}

void screen_golden(screen_test *t, const char *name) {
    buf got = BUF_INIT, want = BUF_INIT;
    char path[256];
    err e = ERR_INIT;
    uint64_t end = clock_mono_ms() + WAIT_MS;
    snprintf(path, sizeof path, "tests/data/screens/%s.txt", name);
    settled_screen(t, &got);
    if (getenv("SCREEN_UPDATE") != NULL) {
        if (file_write_atomic(path, got.data, got.len, 0644, &e) != OK) fail_msg("%s", e.msg);
    } else if (file_read(path, &want, 1 << 20, &e) != OK)
        fail_msg("%s", e.msg);
    else {
        /* A program that was quiet may only have been kept from going on. */
        while (strcmp(buf_cstr(&got), buf_cstr(&want)) != 0 && clock_mono_ms() < end) {
            sleep_ms(20);
            settled_screen(t, &got);
        }
    }
    if (want.len > 0 && strcmp(buf_cstr(&got), buf_cstr(&want)) != 0) {
        fprintf(stderr, "--- %s, expected:\n%s--- got:\n%s---\n", path, buf_cstr(&want),
            buf_cstr(&got));
        fail_msg("the screen differs from %s", path);
    }
    if (t->term.screen.n_unknown > 0)
        fail_msg("unknown sequence sent: ESC%s", t->term.screen.unknown + 1);
    if (t->term.screen.n_controls > 0)
        fail_msg("%d control bytes were sent", t->term.screen.n_controls);
    buf_release(&got);
    buf_release(&want);
}
