/* Shared by the files of plain mode. */
#ifndef TUI_PLAIN_INTERNAL_H
#define TUI_PLAIN_INTERNAL_H

#include "engine/base/buf.h"
#include "tui/chat_settings.h"
#include "tui/client.h"
#include "tui/plain.h"
#include "tui/session.h"
#include "tui/turn.h"
#include "tui/width.h"

typedef struct plain {
    const plain_options *options;
    client *client;
    session *session;
    char *dir; /* of the sessions */
    chat_settings settings;
    buf system;    /* system prompt of the next new session */
    int redo_head; /* head before the last undo, 0: none */
    bool is_over;
    bool has_result;
    turn_result result; /* of the last reply */
    /* Input. */
    buf input; /* bytes read, not yet used */
    bool is_tty, input_ended;
} plain;

/* Output of a reply (plain_print.c). */
typedef struct plain_printer {
    plain_chunk chunk;
    bool shows_thinking;
    buf pending;       /* not printed yet */
    bool has_thinking; /* a thinking line is open or was printed */
    bool has_text;     /* "Assistant:" was printed */
    bool in_code;      /* inside a code fence */
    bool ends_line;
    uint64_t think_from_ms, said_ms;
    int said_percent;
    width_cleaner cleaner;
} plain_printer;

void plain_printer_init(plain_printer *p, plain_chunk chunk, bool shows_thinking);
void plain_printer_part(void *ctx, turn_part part, const char *text, size_t len);
void plain_printer_progress(void *ctx, int64_t done, int64_t total);
void plain_printer_end(plain_printer *p);
void plain_printer_release(plain_printer *p);

/* "Status: ..." */
void plain_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Runs a slash command line. */
void plain_command(plain *p, const char *line);
/* Asks for a reply to the head of the session, or goes on with a reply. */
void plain_reply(plain *p, int continue_id, const chat_settings *settings);
/* Closes the session and opens another (name) or none (NULL). */
int plain_open(plain *p, const char *name, err *e);

#endif
