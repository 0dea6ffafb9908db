/* From what the model wrote to a message (chat.md 7 and 8). The serving parser is fed pieces of any
 * size and gives events; the events joined do not depend on how the text was cut. The strict parser
 * takes a whole text and is for tests and for checking our own rendering. One thread at a time per
 * parser. Text handed to the sink is borrowed for the call and always whole UTF-8. */
#ifndef ENGINE_TEXT_REPLY_H
#define ENGINE_TEXT_REPLY_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"

typedef enum reply_state {
    REPLY_REASONING,
    REPLY_CONTENT,
    REPLY_CALLS,
    REPLY_DONE, /* the call block is closed; later text is dropped */
} reply_state;

typedef enum reply_end {
    REPLY_END_EOS,    /* the end token, or a stop string */
    REPLY_END_LENGTH, /* cut by a limit, or cancelled */
} reply_end;

typedef enum reply_finish { REPLY_STOP, REPLY_LENGTH, REPLY_TOOL_CALLS } reply_finish;

typedef enum reply_event_kind {
    REPLY_EVENT_REASONING, /* text */
    REPLY_EVENT_CONTENT,   /* text */
    REPLY_EVENT_CALL,      /* a call begins: i_call, id, name (in text) */
    REPLY_EVENT_ARGUMENTS, /* text: the next part of the arguments of call i_call */
    REPLY_EVENT_CALL_END,  /* the arguments are complete; text: the exact text of the call as the
                              model wrote it, empty when it left its closing tag out */
    REPLY_EVENT_CALL_DROP, /* call i_call turned out broken: it must not be used. A stream that has
                              sent its beginning cannot take it back: the arguments that came are
                              no JSON, so that nobody can run a part of it, nor {} */
} reply_event_kind;

typedef struct reply_event {
    reply_event_kind kind;
    const char *text;
    size_t len;
    int i_call;     /* counts the calls that began, dropped ones too */
    const char *id; /* of the call; NUL-terminated */
} reply_event;

/* Takes one event; a code other than OK stops the feeding call, which returns it. */
typedef int (*reply_sink)(void *ctx, const reply_event *ev);

typedef struct reply_options {
    bool starts_in_reasoning;
    bool drops_calls;  /* no tools were offered, or the choice is none: swallow calls */
    const json *tools; /* definitions of the request (types of parameters); may be NULL; borrowed */
    /* Writes a fresh id of at most 63 characters and a NUL; NULL: call_ and 24 characters of a
     * counter, for tests. */
    void (*new_id)(void *ctx, char id[64]);
    void *id_ctx;
    reply_sink sink;
    void *sink_ctx;
} reply_options;

typedef struct reply_parser reply_parser;

reply_parser *reply_parser_new(const reply_options *o);
void reply_parser_free(reply_parser *p);
/* Bytes of one sampled token; end tokens are not fed. is_dsml: these bytes are the one token U+FF5C
 * DSML U+FF5C. Only such bytes can open or close a tag (a model that quotes the markup in plain
 * tokens opens nothing). */
int reply_feed_token(reply_parser *p, const char *bytes, size_t len, bool is_dsml);
/* Text whose tokens are not known: every literal marker counts as the token. */
int reply_feed(reply_parser *p, const char *bytes, size_t len);
/* End of the reply. Must be called once. *finish may be NULL. */
int reply_end_of_text(reply_parser *p, reply_end how, reply_finish *finish);
/* The state after what was fed: grammar and bans depend on it. Held-back text is undecided. */
reply_state reply_parser_state(const reply_parser *p);
/* Calls that stand (begun and not dropped). */
int reply_parser_calls(const reply_parser *p);

/* A whole message, collected from events. {0} is empty; reply_message_release. */
typedef struct reply_call {
    char *id, *name;
    buf arguments;
    buf raw; /* exact text of the call, empty while it is not complete */
} reply_call;
typedef struct reply_message {
    buf reasoning, content;
    reply_call *calls;
    size_t n_calls, calls_cap;
    reply_finish finish;
} reply_message;
/* A sink that fills a reply_message (ctx). */
int reply_message_take(void *message, const reply_event *ev);
void reply_message_release(reply_message *m);

/* The strict parser of chat.md 7. text includes the end token. A call named ns::f gives name "f"
 * and namespace "ns". Any departure is ERR_FORMAT with the byte offset. */
typedef struct strict_call {
    char *name;
    char *name_space; /* NULL without one */
    buf arguments;
} strict_call;
typedef struct strict_message {
    buf reasoning, content;
    strict_call *calls;
    size_t n_calls;
} strict_message;
int reply_parse_strict(const char *text, size_t len, bool is_thinking, strict_message *out, err *e);
void strict_message_release(strict_message *m);

#endif
