/* What the two translations of request bodies into chat bodies share: a writer that knows the place
 * it reads, refusals that name it, and the parts that look the same. One thread. */
#ifndef TANDEM_API_BODY_WRITE_H
#define TANDEM_API_BODY_WRITE_H

#include <stdbool.h>

#include "engine/api/api_error.h"
#include "engine/base/json.h"

typedef struct body_writer {
    json_w w;
    buf text; /* owned; what w writes */
    api_error *e;
    const char *list; /* name of the list that is read: "messages", "input" */
    int i_item;       /* place in it */
} body_writer;

/* Begins the object. body_finish or body_drop ends the writer. */
void body_begin(body_writer *b, const char *list, api_error *e);
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
