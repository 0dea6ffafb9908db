/* What the two translations of request bodies into chat bodies share: a writer that knows the place
 * it reads, refusals that name it, and the parts that look the same. One thread. */
#ifndef TANDEM_API_BODY_WRITE_H
#define TANDEM_API_BODY_WRITE_H

#include <stdbool.h>

#include "engine/api/api_error.h"
#include "engine/base/json.h"

/* What a protocol calls the things of a chat body. */
typedef struct body_words {
    const char *list;               /* messages */
    const char *schema;             /* the schema of a tool */
    const char *const (*fields)[2]; /* the chat name and the own one */
    size_t n_fields;
} body_words;

/* Where something of the chat body stood in the one that was sent. */
typedef struct body_place {
    int outer;           /* place in the list; -1: a field of its own */
    int inner;           /* of a tool in a group; -1: none */
    const char *content; /* of a message: what became its content, or the field; a literal */
} body_place;

/* For refusals of the chat body, which must name what the client sent. {0} is empty;
 * body_places_release. */
typedef struct body_places {
    const body_words *words; /* NULL: nothing was translated */
    body_place *messages, *tools;
    int n_messages, n_tools, cap_messages, cap_tools;
} body_places;
void body_places_release(body_places *p);
/* Turns the parameter of a refusal, and its name in the message, into the client's. */
void body_places_rename(const body_places *p, api_error *e);

typedef struct body_writer {
    json_w w;
    buf text; /* owned; what w writes */
    api_error *e;
    body_places *places; /* borrowed; filled */
    int i_item;          /* place in the list of messages that is read */
} body_writer;

/* Begins the object. body_finish or body_drop ends the writer. */
void body_begin(body_writer *b, const body_words *words, body_places *places, api_error *e);
/* The next message, or tool, of the chat body came from here. */
void body_message_from(body_writer *b, body_place from);
void body_tool_from(body_writer *b, body_place from);
/* Ends the object and parses it: the caller frees *out. */
int body_finish(body_writer *b, json **out);
void body_drop(body_writer *b);

/* 400 at LIST[i]WHAT. */
int body_refuse(body_writer *b, const char *what, const char *why);
/* The member type of v is this word. */
bool body_type_is(const json *v, const char *type);
/* Copies members of these names that are there and not null. */
void body_copy(json_w *w, const json *from, const char *const *names, size_t n);
/* {"role","content"} with content as it is; NULL: null. */
void body_message(json_w *w, const char *role, const json *content);
/* A part {"type":"image_url","image_url":{"url"}}. */
void body_image(json_w *w, const char *url, size_t len);
/* {"type":"json_schema","json_schema":{...}} under response_format, with these members. */
typedef struct body_schema {
    const char *name; /* used when format has none; NULL: none */
    const json *format;
} body_schema;
void body_format(json_w *w, const body_schema *s);

#endif
