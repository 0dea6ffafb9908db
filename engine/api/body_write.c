#include "engine/api/body_write.h"

#include <stdio.h>
#include <string.h>

#include "engine/api/fields.h"

#define BODY_MAX_BYTES ((size_t)256 << 20)

void body_begin(body_writer *b, const char *list, api_error *e) {
    b->text = (buf)BUF_MAX(BODY_MAX_BYTES);
    b->list = list;
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
    snprintf(param, sizeof param, "%s[%d]%s", b->list, b->i_item, what);
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
