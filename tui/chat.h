/*
 * The chat behind the Chat screen: an open session with its branch as message views, the reply that
 * is being written, the queue of messages, and the settings. It talks to the engine through the
 * client and keeps everything in the session; it draws nothing. The screen's thread only. Owns all
 * it holds.
 */
#ifndef TUI_CHAT_H
#define TUI_CHAT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tui/chat_settings.h"
#include "tui/client.h"
#include "tui/md.h"
#include "tui/session.h"
#include "tui/turn.h"
#include "tui/width.h"

#define CHAT_QUEUE_MAX 8
#define CHAT_RATE_SLOTS 512

/* One turn of the branch as it is shown. */
typedef struct chat_message_view {
    int id;
    session_role role;
    session_state state;
    int64_t time_ms;
    md *text, *think; /* think NULL: none */
    width_cleaner clean_text, clean_think;
    bool is_think_open, is_folded;
    char error[256];
    int64_t tokens, think_tokens;           /* -1: not known */
    double seconds, rate, first_s, think_s; /* NAN: not known */
    int i_sibling, n_siblings;              /* from 1 */
    /* the last layout */
    int columns, think_rows, text_rows, n_rows;
    bool is_laid;
} chat_message_view;

typedef enum {
    CHAT_IDLE,
    CHAT_WAITING, /* sent, no answer yet */
    CHAT_READING, /* the prompt is being read */
    CHAT_THINKING_NOW,
    CHAT_WRITING
} chat_phase;

typedef struct chat {
    client *engine;
    char *dir;     /* folder of the sessions */
    session *open; /* never NULL after chat_open */
    chat_settings settings;
    chat_message_view *views;
    int n_views, views_cap;
    uint32_t revision; /* changes when views are rebuilt */
    /* the reply being written */
    chat_phase phase;
    client_call *call;
    turn_result result; /* of the present or the last reply */
    uint64_t sent_ms, first_ms, content_ms, last_ms, think_end_ms, now_ms;
    int64_t read_done, read_total;
    int64_t n_pieces, n_think_pieces;
    uint64_t piece_ms[CHAT_RATE_SLOTS];
    bool is_stopping, send_queued_after_stop;
    char last_line[192]; /* status of the last reply, empty when there was none */
    /* messages that wait */
    char *queue[CHAT_QUEUE_MAX];
    int n_queue;
    int edit_parent; /* the next message becomes a sibling under this turn; -1: none */
    int redo[64], n_redo;
    int64_t context_used; /* tokens after the last reply, -1 */
    char notice[512];     /* one sentence for the user; taken by the screen */
} chat;

int chat_open(chat *c, client *engine, const char *session_dir, err *e);
/* Ends the reply as it is (the session keeps it), closes the session. */
void chat_close(chat *c);

/* Opens a session by exact name, a new one for NULL. The old one is kept when this fails. */
int chat_load(chat *c, const char *name, err *e);
/* Sends a message, or queues it while a reply is written. ERR_FULL: the queue is full. */
int chat_send(chat *c, const char *text, uint64_t now_ms, err *e);
/* Puts a message into the queue. ERR_FULL when it is full. */
int chat_queue(chat *c, const char *text, err *e);
/* Sends what is queued if nothing is being written. Called when a reply ends or the engine is
 * ready. */
void chat_send_queued(chat *c, uint64_t now_ms);
/* Answers the last question again (a sibling), or goes on with a reply that was cut short. */
int chat_again(chat *c, uint64_t now_ms, err *e);
int chat_continue(chat *c, uint64_t now_ms, err *e);
void chat_stop(chat *c);
bool chat_is_busy(const chat *c);
/* Pieces a second over the last two seconds. */
double chat_rate(const chat *c, uint64_t now_ms);
/* Writes open text to disk at most once a second. */
void chat_tick(chat *c, uint64_t now_ms);

/* Moves to another branch: the sibling of view i in a direction, the turn before (undo), back
 * (redo). */
int chat_sibling(chat *c, int i, int direction, err *e);
int chat_undo(chat *c, err *e);
int chat_redo(chat *c, err *e);
/* Prepares an edit of view i (a question): its text goes to out, the next message becomes a
 * sibling. */
int chat_edit(chat *c, int i, buf *out, err *e);
/* Sets the system prompt: a branch at the root. */
int chat_set_system(chat *c, const char *text, err *e);
/* Builds the views anew from the session. */
void chat_rebuild(chat *c);
/* The sentence for the user, or NULL; valid until the next call that leaves one. */
const char *chat_take_notice(chat *c);
void chat_notice(chat *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
