/* One turn of a chat for the commands: asks, streams the reply to a printer and keeps it in the
 * session, until it is complete or stopped. Blocking; main thread. */
#ifndef TUI_TURN_H
#define TUI_TURN_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tui/chat_settings.h"
#include "tui/client.h"
#include "tui/session.h"

typedef enum turn_part { TURN_WAITING, TURN_THINKING, TURN_TEXT, TURN_CALL } turn_part;

/* Gets the reply piece by piece; TURN_WAITING carries no text, done and total are prompt tokens. */
typedef struct turn_printer {
    void (*on_part)(void *ctx, turn_part part, const char *text, size_t len);
    void (*on_progress)(void *ctx, int64_t done, int64_t total); /* may be NULL */
    bool (*is_closed)(void *ctx); /* nobody reads any more: the reply is stopped; may be NULL */
    void *ctx;
} turn_printer;

typedef struct turn_request {
    client *client;
    session *session; /* the question is its head, or the reply that is gone on with */
    const chat_settings *settings;
    int continue_id; /* 0, or the reply to go on with */
    int stop_fd;     /* readable: stop the reply */
    turn_printer printer;
} turn_request;

typedef struct turn_result {
    session_state state;
    chat_usage usage;
    char finish[32];
    char reply_id[64];
    double first_s;   /* send to first text of any kind; negative: none came */
    double content_s; /* send to first text of the answer; negative: none came */
    double total_s;
    double last_s; /* send to last text */
    int n_calls;
    err error; /* of SESSION_FAILED */
    err kept;  /* not OK: the reply could not be kept on disk, and why */
} turn_result;

/* Runs the turn. OK also when the reply failed or was stopped (result tells); an error only when it
 * could not begin: then the session has no reply. */
int turn_run(const turn_request *r, turn_result *out, err *e);

/* Counts and times as a JSON object, for the journal and for --json. */
void turn_stats_json(const turn_result *r, buf *out);
/* One line for people: "212 tokens, 38.4 t/s, first 0.41 s". */
void turn_stats_line(const turn_result *r, buf *out);

/* The messages of the path to the head; the caller frees them with mem_free, the texts are the
 * session's. */
int turn_messages(const session *s, chat_message **out, int *n);

#endif
