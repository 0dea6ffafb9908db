/*
 * The full screen. app_run owns the terminal from the call to its return: it opens it, runs the one
 * loop over keys, engine events and timers, and restores it, also when a fatal signal ends the
 * process. Called once, by the main thread; nothing else may use the terminal, curses or readline
 * meanwhile.
 */
#ifndef TUI_APP_H
#define TUI_APP_H

#include <stdbool.h>

#include "engine/base/err.h"

/* All strings are borrowed for the length of app_run; NULL means not given. */
typedef struct app_options {
    const char *screen;      /* home, chat, dash or setup; NULL: chat */
    const char *session;     /* session to open (exact name, as session_find gives it) */
    bool continue_last;      /* open the newest session */
    bool ascii;              /* --ascii: no glyph outside ASCII in frames and plots */
    const char *color;       /* --color: none, 8, 256 or auto */
    const char *mouse;       /* off (default), wheel or on */
    const char *socket_path; /* Unix socket of tandemd; NULL: the usual place */
    const char *model_dir;   /* model to start the engine with; NULL: the setting, else the demo */
    bool may_start;          /* start the engine at once when none runs */
    bool is_pair;            /* two machines are set up: start and stop mean both */
    bool is_first_run;       /* offer what can be done before anything starts */
    const char *head_root, *worker_root; /* Setup: stored trees in place of the machines */
} app_options;

/*
 * Runs the full screen until the user leaves it and returns an exit code of cmd_table.h. EXIT_OK
 * when left by the user or by TERM or HUP (the draft is kept on disk). EXIT_REFUSED with one
 * sentence in e that names the remedy when standard input or output is no terminal, TERM is unset
 * or unknown, or the screen cannot be opened: then nothing was written to the terminal.
 */
int app_run(const app_options *o, err *e);

#endif
