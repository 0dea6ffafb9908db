#include "engine/api/body_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/fields.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

#define BODY_MAX_BYTES ((size_t)256 << 20)

void body_places_release(body_places *p) {
    mem_free(p->messages);
    mem_free(p->tools);
    *p = (body_places){0};
}

static void add_place(body_place **list, int *n, int *cap, body_place from) {
    if (*n == *cap) {
        *cap = *cap > 0 ? *cap * 2 : 16;
        *list = mem_realloc(*list, (size_t)*cap * sizeof **list);
    }
    (*list)[(*n)++] = from;
}

void body_message_from(body_writer *b, body_place from) {
    body_places *p = b->places;
    add_place(&p->messages, &p->n_messages, &p->cap_messages, from);
}

void body_tool_from(body_writer *b, body_place from) {
    body_places *p = b->places;
    add_place(&p->tools, &p->n_tools, &p->cap_tools, from);
}

/* NAME[i]REST: i and REST. */
static bool read_index(const char *param, const char *name, long *i, const char **rest) {
    size_t n = strlen(name);
    char *end = NULL;
    if (strncmp(param, name, n) != 0 || param[n] != '[') return false;
    *i = strtol(param + n + 1, &end, 10);
    if (*end != ']') return false;
    *rest = end + 1;
    return true;
}

static void rename_message(const body_places *p, const body_place *at, const char *rest, buf *out) {
    if (at->outer < 0) {
        buf_puts(out, at->content);
        return;
    }
    buf_printf(out, "%s[%d]", p->words->list, at->outer);
    if (str_starts(rest, ".content")) {
        buf_printf(out, "%s%s", at->content, rest + strlen(".content"));
    } else if (strcmp(rest, ".role") == 0) {
        buf_puts(out, rest);
    }
}

static void rename_tool(const body_places *p, const body_place *at, const char *rest, buf *out) {
    static const char function[] = ".function", schema[] = ".parameters";
    buf_printf(out, "tools[%d]", at->outer);
    if (at->inner >= 0) buf_printf(out, ".tools[%d]", at->inner);
    if (str_starts(rest, function)) rest += sizeof function - 1;
    if (str_starts(rest, schema)) {
        buf_printf(out, ".%s", p->words->schema);
        rest += sizeof schema - 1;
    }
    buf_puts(out, rest);
}

/* Nothing is written when the parameter has the same name in both. */
static void rename_param(const body_places *p, const char *param, buf *out) {
    const char *rest = NULL;
    long i = 0;
    if (read_index(param, "messages", &i, &rest)) {
        if (i >= 0 && i < p->n_messages) rename_message(p, &p->messages[i], rest, out);
        return;
    }
    if (read_index(param, "tools", &i, &rest)) {
        if (i >= 0 && i < p->n_tools) rename_tool(p, &p->tools[i], rest, out);
        return;
    }
    for (size_t k = 0; k < p->words->n_fields; k++) {
        if (strcmp(param, p->words->fields[k][0]) == 0) buf_puts(out, p->words->fields[k][1]);
    }
    if (out->len == 0 && strcmp(param, "messages") == 0) buf_puts(out, p->words->list);
}

static void replace_first(api_error *e, const char *from, const char *to) {
    buf text = BUF_INIT;
    const char *at = strstr(e->message, from);
    if (at == NULL) return;
    buf_append(&text, e->message, (size_t)(at - e->message));
    buf_puts(&text, to);
    buf_puts(&text, at + strlen(from));
    str_copy(e->message, sizeof e->message, buf_cstr(&text));
    buf_release(&text);
}

/* A pointer into a schema stays; the message begins with the field that holds the schema. */
static void rename_head(const body_places *p, api_error *e) {
    for (size_t k = 0; k < p->words->n_fields; k++) {
        const char *from = p->words->fields[k][0];
        if (!str_starts(e->message, from) || e->message[strlen(from)] != ':') continue;
        replace_first(e, from, p->words->fields[k][1]);
        return;
    }
}

void body_places_rename(const body_places *p, api_error *e) {
    buf name = BUF_INIT;
    if (p->words == NULL || e->param[0] == '\0') return;
    rename_param(p, e->param, &name);
    if (e->param[0] == '/') rename_head(p, e);
    if (name.len > 0) {
        replace_first(e, e->param, buf_cstr(&name));
        str_copy(e->param, sizeof e->param, buf_cstr(&name));
    }
    buf_release(&name);
}

void body_begin(body_writer *b, const body_words *words, body_places *places, api_error *e) {
    b->text = (buf)BUF_MAX(BODY_MAX_BYTES);
    b->places = places;
    places->words = words;
    b->i_item = 0;
    b->e = e;
    json_w_begin(&b->w, &b->text);
    json_w_object(&b->w);
}

int body_finish(body_writer *b, json **out) {
    const json_limits limits = {.max_bytes = b->text.max};
    json_w_close(&b->w);
    int rc = json_w_end(&b->w);
    if (rc == OK) rc = json_parse(b->text.data, b->text.len, &limits, out, NULL);
    return rc == OK ? OK : api_bad(b->e, NULL, NULL, "the body is too large or too deep");
}

void body_drop(body_writer *b) {
    buf_release(&b->text);
}

int body_refuse(body_writer *b, const char *what, const char *why) {
    char param[64];
    snprintf(param, sizeof param, "%s[%d]%s", b->places->words->list, b->i_item, what);
    return api_bad(b->e, param, NULL, "%s: %s", param, why);
}

bool body_type_is(const json *v, const char *type) {
    const char *given = json_str(json_get(v, "type"));
    return given != NULL && strcmp(given, type) == 0;
}

void body_copy(json_w *w, const json *from, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const json *v = field_get(from, names[i]);
        if (v == NULL) continue;
        json_w_key(w, names[i]);
        json_w_value(w, v);
    }
}

void body_message(json_w *w, const char *role, const json *content) {
    json_w_object(w);
    json_w_kstr(w, "role", role);
    json_w_key(w, "content");
    json_w_value(w, content);
    json_w_close(w);
}

void body_image(json_w *w, const char *url, size_t len) {
    json_w_object(w);
    json_w_kstr(w, "type", "image_url");
    json_w_key(w, "image_url");
    json_w_object(w);
    json_w_key(w, "url");
    json_w_strn(w, url, len);
    json_w_close(w);
    json_w_close(w);
}

void body_format(json_w *w, const body_schema *s) {
    static const char *const names[] = {"schema", "strict"};
    const char *name = json_str(json_get(s->format, "name"));
    if (name == NULL) name = s->name;
    json_w_key(w, "response_format");
    json_w_object(w);
    json_w_kstr(w, "type", "json_schema");
    json_w_key(w, "json_schema");
    json_w_object(w);
    if (name != NULL) json_w_kstr(w, "name", name);
    body_copy(w, s->format, names, 2);
    json_w_close(w);
    json_w_close(w);
}
