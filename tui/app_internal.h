/*
 * Inside of the full screen (app.h): the one struct that the loop owns and the screens share.
 * Screens draw from it and change it on keys; only loop.c reads the clock, polls and talks to the
 * terminal outside of drawing. One thread.
 */
#ifndef TUI_APP_INTERNAL_H
#define TUI_APP_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tui/app.h"
#include "tui/canvas.h"
#include "tui/chat.h"
#include "tui/client.h"
#include "tui/dash_alerts.h"
#include "tui/draft.h"
#include "tui/gauges.h"
#include "tui/input.h"
#include "tui/keymap.h"
#include "tui/launch.h"
#include "tui/part_frame.h"
#include "tui/part_input.h"
#include "tui/session.h"
#include "tui/term.h"

typedef enum { SCREEN_HOME, SCREEN_CHAT, SCREEN_DASH, SCREEN_SETUP, N_SCREENS } app_screen;
typedef enum {
    OVERLAY_NONE,
    OVERLAY_HELP,
    OVERLAY_LEAVE,
    OVERLAY_CONFIRM,
    OVERLAY_TEXT,
    OVERLAY_LIST,
    OVERLAY_WELCOME
} app_overlay;

/* One line that is typed into the status row: the command line and searches. */
typedef struct app_prompt {
    bool is_open;
    char label; /* ':' or '/' */
    buf text;
    char hint[256]; /* completion candidates or an error */
} app_prompt;

/* Where the transcript stands. Rows are counted over all views. */
typedef struct app_scroll {
    int top;             /* first row shown */
    bool is_following;   /* the end stays in view */
    int n_rows, n_shown; /* of the last layout */
    int columns;
    uint32_t revision;
    /* the anchor: text at the top, for a change of width */
    int anchor_view, anchor_offset;
    size_t anchor_place;
    bool has_anchor_text;
    int selected; /* view */
    int skip;     /* columns that code is moved to the left */
} app_scroll;

typedef struct app {
    const app_options *options;
    terminal *term;
    const theme *look;
    canvas frame;
    input in;
    uint64_t now_ms; /* monotonic, set once per turn of the loop */
    int64_t wall_ms;
    int n_rows, n_columns;
    bool is_dirty, is_urgent; /* draw at the next frame; draw now */
    bool is_remote;           /* over ssh: fewer frames */
    double shown_rate;        /* of the status line: four times a second, to save bytes */
    int64_t shown_pieces;
    uint64_t shown_ms;

    app_screen screen, last_screen;
    app_overlay overlay;
    bool is_input_focused; /* Chat: the input has the keys, else the transcript */
    bool has_panel, is_raw;
    bool wants_mouse;
    app_prompt prompt;
    char hint[512]; /* one line for the user, until hint_until_ms */
    uint64_t hint_until_ms;
    bool is_hint_of_waiting; /* the hint says that a message waits for the engine */
    key_action confirm;      /* OVERLAY_CONFIRM: what a yes does */
    char confirm_text[256];
    buf overlay_text; /* OVERLAY_TEXT: lines */
    char overlay_title[64];
    int overlay_top, overlay_selected;
    bool is_help_over_welcome; /* closing the help shows the welcome again */
    char job_line[160];        /* of a download, copy or preparation that runs; "" none */
    uint64_t job_due_ms;
    buf help_filter;
    bool is_leaving, wants_suspend, wants_editor, wants_redraw;

    /* prefixes and double keys */
    int prefix; /* 'x' after Ctrl-X, 'y' after y; 0 none */
    uint64_t prefix_ms, esc_ms, stop_ms;

    client *engine;
    launch *start; /* NULL when nothing is being started */
    client_call *stats, *state_call;
    uint64_t state_due_ms;
    bool is_stop_wanted;    /* the user asked the engine to end */
    struct app_pair *pair;  /* tandem start, stop or restart of a pair at work; NULL: none */
    char pair_word[256];    /* why the last one failed, "" it did not */
    bool wants_start_again; /* a restart: start when the old one has gone */
    uint64_t probe_due_ms;
    gauges gauges;
    char socket_path[256];

    chat chat;
    part_input *input;
    app_scroll scroll;
    char session_dir[512];
    char draft_of[SESSION_NAME_BYTES]; /* session whose draft is in the input */
    uint64_t draft_due_ms;
    draft_keeper *drafts;
    buf draft_saved;
    char search[128];

    session_info *sessions; /* the list on Home */
    int n_sessions, selected_session;
    uint64_t sessions_due_ms;

    int window_s; /* Dash */
    bool is_paused;
    gauges paused;  /* what is drawn while paused */
    alerts alerts;  /* of both nodes, from every sample */
    int one_node;   /* shown alone; -1: both */
    bool has_parts; /* memory by parts instead of the other figures */
    double decode_scale, prefill_scale;

    struct wizard *wizard; /* Setup */
} app;

/* loop.c: runs until is_leaving; opens and closes everything around it. */
void app_hint(app *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void app_go(app *a, app_screen screen);
void app_ask(app *a, key_action what, const char *text);
void app_show_text(app *a, const char *title, const char *text);
const char *app_clock(const app *a, char out[16]);
const char *app_time_of(int64_t wall_ms, char out[16]);

/* app_engine.c: attaching to the engine, starting and stopping it. */
void app_start_engine(app *a, bool may_start);
void app_stop_engine(app *a, bool then_start);
/* app_cache.c: /cache, and its wipe after the yes. */
void app_cache_command(app *a, const char *args);
void app_wipe_cache(app *a);
/* What is due by now: steps a start, asks for the state, looks for an engine that came by itself.
 */
void app_engine_tick(app *a);
/* Milliseconds until app_engine_tick has something to do. */
int app_engine_wait_ms(const app *a);
bool app_engine_is_ready(const app *a);

/* app_pair.c: the verbs of two machines, each in a process of its own. */
typedef struct app_pair app_pair;
/* verb: start, stop or restart. False, with a hint, when another one is at work or it could not begin. */
bool app_pair_run(app *a, const char *verb);
void app_pair_step(app *a);
bool app_pair_is_at_work(const app *a);
/* Forgets the process; it goes on. */
void app_pair_close(app *a);

/* app_session.c: sessions, drafts, sending. */
void app_load_sessions(app *a);
/* Opens a session (NULL: new) in the Chat screen, its draft in the input. */
void app_open_session(app *a, const char *name);
/* The finished message of the input: a command, or sent, or queued until the engine is there. */
void app_submit(app *a);
/* Keeps the unsent text on disk, at most once a second unless is_now. */
void app_keep_draft(app *a, bool is_now);
void app_load_draft(app *a);
/* Ctrl-X Ctrl-E: the text in the user's editor, the terminal is his meanwhile. */
void app_run_editor(app *a);

/* keys.c */
void app_key(app *a, const input_event *ev);
int app_keys_where(const app *a);

/* app_command.c: a slash command or palette line. */
void app_command(app *a, const char *line, bool is_palette);
/* Completes the command at the end of text; the hint gets the candidates. True if text grew. */
bool app_complete(app *a, buf *text, bool is_palette);
void app_copy(app *a, const char *text, size_t n, const char *what);

/* screen_*.c: draw into the box; cursor stays as it is when the screen has no caret. */
void screen_home_draw(app *a, area box);
/* Looks, at most once a second, for work that goes on in the background. */
void screen_home_tick(app *a);
void screen_home_key(app *a, key_action action);
void screen_chat_draw(app *a, area box, int *cursor_row, int *cursor_column);
void screen_chat_action(app *a, key_action action);
void screen_dash_draw(app *a, area box);
void screen_dash_key(app *a, key_action action);

/* part_transcript.c */
void transcript_layout(app *a, int columns, int n_shown);
void transcript_draw(app *a, area box, bool is_focused);
void transcript_scroll(app *a, int rows);
void transcript_to_end(app *a);
/* The view that row i shows, and the first row of a view. */
int transcript_view_at(const app *a, int row);
int transcript_row_of(const app *a, int view);
void transcript_select(app *a, int view);
/* The next row (direction +1, -1) whose text contains the search, from the top row on; -1: none. */
int transcript_find(app *a, int direction);

/* part_side.c: the side panel of the Chat screen. */
void part_side_draw(app *a, area box);

/* part_overlay.c */
void part_overlay_draw(app *a, area box, int *cursor_row, int *cursor_column);
bool part_overlay_key(app *a, const input_event *ev);
/* The row of tabs at the top and the row at the foot. */
void part_tabs_draw(app *a, area row);

/* True if this many rows and columns are too few for frames; screens then draw one pane. */
bool app_is_small(const app *a);
#endif
