#include "engine/api/warning.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/run/grammar.h"

#define NODES_MAX 512 /* of a schema, looked at */

void warning_add(char out[WARNING_CAP], const char *fmt, ...) {
    char text[WARNING_CAP];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    for (char *c = text; *c != '\0'; c++) {
        if (*c < 0x20 || *c > 0x7e) *c = '?';
    }
    size_t n = strlen(out);
    (void)snprintf(out + n, WARNING_CAP - n, "%s%s", n > 0 ? "; " : "", text);
}

void warning_tools(char out[WARNING_CAP], const json *tools, bool (*is_offered)(const json *tool)) {
    JSON_EACH(tool, tools) {
        const char *name = json_str(json_get(tool, "name"));
        const char *type = json_str(json_get(tool, "type"));
        if (is_offered(tool)) continue;
        if (name == NULL) name = type;
        warning_add(out, "tool %.60s is not offered here", name != NULL ? name : "without a name");
    }
}

/* ---- strict schemas ---- */

typedef struct node_list {
    const json *at[NODES_MAX];
    int n;
} node_list;

static void push(node_list *l, const json *v) {
    if (json_is_object(v) && l->n < NODES_MAX) l->at[l->n++] = v;
}

static void push_all(node_list *l, const json *list) {
    JSON_EACH(v, list) {
        push(l, v);
    }
}

static bool has_string(const json *list, const char *text) {
    JSON_EACH(v, list) {
        const char *s = json_str(v);
        if (s != NULL && strcmp(s, text) == 0) return true;
    }
    return false;
}

static bool is_kept_by(const json *schema) {
    const json *properties = json_get(schema, "properties");
    bool may_have_others = false;
    if (!json_is_object(properties)) return true;
    if (json_bool(json_get(schema, "additionalProperties"), &may_have_others) != 0 ||
        may_have_others) {
        return false;
    }
    JSON_EACH(property, properties) {
        if (!has_string(json_get(schema, "required"), json_key(property))) return false;
    }
    return true;
}

void warning_strict(char out[WARNING_CAP], const json *schema, const char *what) {
    static const char *const maps[] = {"properties", "$defs", "definitions"};
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    node_list l = {.n = 0};
    push(&l, schema);
    for (int i = 0; i < l.n; i++) {
        if (!is_kept_by(l.at[i])) {
            warning_add(out,
                "%.60s is strict, but not all of its properties are required, or others are allowed",
                what);
            return;
        }
        for (int k = 0; k < 3; k++) {
            push_all(&l, json_get(l.at[i], maps[k]));
            push_all(&l, json_get(l.at[i], lists[k]));
        }
        push(&l, json_get(l.at[i], "items"));
    }
}

void warning_types(char out[WARNING_CAP], const json *schema, const char *what) {
    JSON_EACH(property, json_get(schema, "properties")) {
        const json *type = json_get(property, "type");
        if (type == NULL || json_is_null(type) || grammar_knows_type(type)) continue;
        const char *name = json_str(type);
        warning_add(out,
            "%.60s: the type %.40s of %.40s is none of JSON Schema, so any value may come", what,
            name != NULL ? name : "given", json_key(property));
        return;
    }
}
