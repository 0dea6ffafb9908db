/* tandem help, version, keys. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/paths.h"
#include "tui/cmd_internal.h"
#include "tui/cmd_man.h"
#include "tui/keymap.h"
#include "tui/launch_process.h"

extern char **environ;

enum { VERSION_MAX_BYTES = 8192 };

int cmd_help_run(const cmd_args *a) {
    buf out = BUF_INIT;
    const char *noun = a->n_args > 0 ? a->args[0] : NULL;
    const char *verb = a->n_args > 1 ? a->args[1] : NULL;
    if (cmd_has(a, "man")) {
        man_page(noun != NULL ? noun : "", &out);
    } else {
        cmd_help(&out, noun, verb);
    }
    if (out.len == 0) {
        cmd_note("there is no command \"%s%s%s\"; `tandem help` lists all", noun,
            verb != NULL ? " " : "", verb != NULL ? verb : "");
        return EXIT_USAGE;
    }
    cmd_put(buf_cstr(&out), out.len);
    buf_release(&out);
    return cmd_finish(EXIT_OK);
}

/* keys.conf decides too, so that the table is what the screen does. */
int cmd_keys(const cmd_args *a) {
    (void)a;
    buf path = BUF_INIT, out = BUF_INIT;
    err e = ERR_INIT;
    int rc = paths_config(&path, &e);
    if (rc == OK) rc = buf_puts(&path, "/keys.conf");
    if (rc == OK) rc = keymap_load(buf_cstr(&path), &e);
    if (rc == OK) {
        keymap_print(&out);
        cmd_put(buf_cstr(&out), out.len);
    }
    buf_release(&out);
    buf_release(&path);
    return rc == OK ? cmd_finish(EXIT_OK) : cmd_fail(&e);
}

/* What `tandemd --version` prints: the engine is another program and knows its own libraries. */
static int engine_version(buf *out, err *e) {
    buf path = BUF_INIT;
    int ends[2];
    int rc = launch_find_daemon(&path, e);
    if (rc == OK && pipe2(ends, O_CLOEXEC) != 0) rc = err_errno(e, "cannot make a pipe");
    if (rc != OK) {
        buf_release(&path);
        return rc;
    }
    pid_t pid = 0;
    char *argv[] = {path.data, (char *)"--version", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    errno = posix_spawn(&pid, path.data, &actions, NULL, argv, environ);
    if (errno != 0) rc = err_errno(e, "cannot run %s", path.data);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    char part[512];
    ssize_t n;
    while (rc == OK && out->len < VERSION_MAX_BYTES && (n = read(ends[0], part, sizeof part)) > 0) {
        buf_append(out, part, (size_t)n);
    }
    close(ends[0]);
    if (rc == OK) waitpid(pid, NULL, 0);
    buf_release(&path);
    return rc;
}

int cmd_version(const cmd_args *a) {
    buf engine = BUF_INIT;
    err e = ERR_INIT;
    bool has_engine = engine_version(&engine, &e) == OK && engine.len > 0;
    while (engine.len > 0 && engine.data[engine.len - 1] == '\n')
        buf_truncate(&engine, engine.len - 1);
    const char *line_editor =
#ifdef TANDEM_NO_READLINE
        "plain";
#else
        "readline";
#endif
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "version", TANDEM_VERSION);
        json_w_kstr(&w, "build", version_build_id());
        json_w_kstr(&w, "line_editor", line_editor);
        json_w_kstr(&w, "engine", has_engine ? buf_cstr(&engine) : NULL);
        cmd_put_json(&w);
        buf_release(&out);
    } else {
        cmd_printf("tandem %s, build %s, line editor %s\n", TANDEM_VERSION, version_build_id(),
            line_editor);
        if (has_engine) {
            cmd_put_text(buf_cstr(&engine), engine.len);
            cmd_puts("\n");
        } else {
            cmd_printf("engine: not found (%s)\n", e.msg);
        }
    }
    buf_release(&engine);
    return cmd_finish(EXIT_OK);
}
