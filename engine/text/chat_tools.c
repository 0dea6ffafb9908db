/* Tool definitions and calls as the prompt shows them (chat.md 4.3, 4.4). */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/chat_internal.h"

#define DSML_OPEN "<" CHAT_DSML " "
#define DSML_CLOSE "</" CHAT_DSML " "

static const char tools_head[] =
    "\n\n## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by "
    "writing a \"" DSML_OPEN "calls>\" block like the following:\n\n" DSML_OPEN "calls>\n" DSML_OPEN
    "invoke name=\"$TOOL_NAME\">\n" DSML_OPEN
    "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE" DSML_CLOSE
    "parameter>\n"
    "...\n" DSML_CLOSE "invoke>\n" DSML_OPEN "invoke name=\"$TOOL_NAME2\">\n"
    "...\n" DSML_CLOSE "invoke>\n" DSML_CLOSE "calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
static const char tools_tail[] = "\n\nYou MUST strictly follow the above defined tool name and "
                                 "parameter schemas to invoke tool calls.\n";

/* --- names --- */

/* "ns" of a namespace given as text or as {name, description}. */
static const char *namespace_name(const json *v) {
    return json_is_object(v) ? json_str(json_get(v, "name")) : json_str(v);
}

static bool is_absent(const json *v) {
    return v == NULL || json_is_null(v) || str_eq(json_str(v), "");
}

/* The one beside the function beats the one inside. */
static const json *namespace_of(const json *tool, const json *function) {
    const json *v = json_get(tool, "namespace");
    if (is_absent(v)) v = json_get(function, "namespace");
    return is_absent(v) ? NULL : v;
}

static int name_error(err *e, const char *path, const char *field, const char *why) {
    int rc = err_set(e, ERR_ARG, "%s%s: %s", path, field, why);
    err_place(e, "%s%s", path, field);
    return rc;
}

int chat_tool_name(const json *tool, const char *path, buf *out, err *e) {
    const json *function = json_get(tool, "function");
    const char *field = function != NULL ? ".function.name" : ".name";
    if (function == NULL) function = tool;
    const char *name = json_str(json_get(function, "name"));
    if (name == NULL || name[0] == 0) {
        return name_error(e, path, field, "a tool needs a name (text, not empty)");
    }
    const char *colons = strstr(name, "::");
    if (colons != NULL && strstr(colons + 2, "::") != NULL) {
        return name_error(e, path, field, "the name has more than one '::'");
    }
    const json *given = namespace_of(tool, function);
    if (given == NULL) return buf_puts(out, name);
    const char *space = namespace_name(given);
    if (space == NULL || space[0] == 0 || strstr(space, "::") != NULL) {
        return name_error(e, path, ".namespace", "a namespace is a text without '::'");
    }
    if (colons == NULL) {
        return buf_printf(out, "%s::%s", space, name);
    }
    size_t len = (size_t)(colons - name);
    if (strlen(space) != len || memcmp(space, name, len) != 0) {
        return name_error(e, path, ".namespace", "the name already has another namespace");
    }
    return buf_puts(out, name);
}

/* --- definitions --- */

typedef struct definition {
    const json *function;
    const char *name;              /* printed */
    const char *space_description; /* NULL: none */
    bool is_flat;
} definition;

static int put_key(buf *out, const char *key) {
    int rc = buf_puts(out, out->len > 1 ? ", " : "");
    if (rc == OK) rc = json_quote(out, key, strlen(key));
    return rc == OK ? buf_puts(out, ": ") : rc;
}

/* The namespace's description, a line feed, the tool's own (which may be missing). */
static int put_description(buf *out, const definition *d, const json *own) {
    buf text = BUF_INIT;
    int rc = buf_printf(&text, "%s\n", d->space_description);
    if (rc == OK && json_is_string(own)) rc = buf_puts(&text, json_str(own));
    if (rc == OK) rc = json_quote(out, buf_cstr(&text), text.len);
    buf_release(&text);
    return rc;
}

static int put_member(buf *out, const definition *d, const json *member) {
    const char *key = json_key(member);
    if (strcmp(key, "namespace") == 0) return OK;
    if (d->is_flat && strcmp(key, "type") == 0) return OK;
    int rc = put_key(out, key);
    if (rc != OK) return rc;
    if (strcmp(key, "name") == 0) return json_quote(out, d->name, strlen(d->name));
    if (strcmp(key, "description") == 0 && d->space_description != NULL) {
        return put_description(out, d, member);
    }
    return json_print(member, out);
}

static int put_definition(buf *out, const definition *d) {
    int rc = buf_putc(out, '{');
    JSON_EACH(member, d->function) {
        if (rc == OK) rc = put_member(out, d, member);
    }
    if (rc == OK && d->space_description != NULL && json_get(d->function, "description") == NULL) {
        rc = put_key(out, "description");
        if (rc == OK) rc = put_description(out, d, NULL);
    }
    return rc == OK ? buf_putc(out, '}') : rc;
}

static int tool_text(const json *tool, const char *path, buf *out, err *e) {
    buf name = BUF_INIT;
    definition d = {.function = json_get(tool, "function")};
    d.is_flat = d.function == NULL;
    if (d.is_flat) d.function = tool;
    int rc = chat_tool_name(tool, path, &name, e);
    d.name = buf_cstr(&name);
    d.space_description = json_str(json_get(namespace_of(tool, d.function), "description"));
    if (str_eq(d.space_description, "")) d.space_description = NULL;
    if (rc == OK) rc = put_definition(out, &d);
    buf_release(&name);
    return rc;
}

bool tool_is_definition(const json *tool) {
    const char *type = json_str(json_get(tool, "type"));
    return type == NULL || strcmp(type, "function") == 0 || json_get(tool, "function") != NULL;
}

int render_tools(chat_prompt *out, const chat_source *s, err *e) {
    int rc = prompt_template(out, tools_head);
    buf text = BUF_INIT, path = BUF_INIT;
    bool has_one = false;
    size_t i = 0;
    JSON_EACH(tool, s->tools) {
        if (rc != OK) break;
        buf_reset(&text);
        buf_reset(&path);
        rc = buf_printf(&path, "tools[%zu]", i++);
        if (s->flat_tools && !tool_is_definition(tool)) continue;
        if (rc == OK) rc = tool_text(tool, buf_cstr(&path), &text, e);
        if (rc == OK && has_one) rc = prompt_template(out, "\n");
        if (rc == OK) rc = prompt_bytes(out, false, text.data, text.len);
        has_one = true;
    }
    buf_release(&text);
    buf_release(&path);
    return rc == OK ? prompt_template(out, tools_tail) : rc;
}

/* --- calls --- */

static int parameter(chat_prompt *p, const char *key, const json *value) {
    int rc = prompt_template(p, DSML_OPEN "parameter name=\"");
    if (rc == OK) rc = prompt_text(p, key);
    bool is_text = json_is_string(value);
    if (rc == OK) rc = prompt_template(p, is_text ? "\" string=\"true\">" : "\" string=\"false\">");
    if (rc == OK) rc = is_text ? prompt_text(p, json_str(value)) : prompt_json(p, value);
    return rc == OK ? prompt_template(p, DSML_CLOSE "parameter>") : rc;
}

static bool is_blank_text(const char *s) {
    return s[strspn(s, " \t\r\n\v\f")] == 0;
}

/* The arguments as an object: as given, or parsed out of text once or twice (*parsed is then the
 * caller's to free). NULL: no object, to be printed as one parameter. */
static const json *argument_object(const json *given, json **parsed) {
    if (json_is_object(given)) return given;
    for (int i = 0; i < 2 && json_is_string(given); i++) {
        buf text = BUF_INIT;
        json *inner = NULL;
        int rc = json_str_bytes(given, &text);
        if (rc == OK) rc = json_parse(buf_cstr(&text), text.len, NULL, &inner, NULL);
        buf_release(&text);
        if (rc != OK) return NULL;
        json_free(*parsed);
        *parsed = inner;
        given = inner;
    }
    return json_is_object(given) ? given : NULL;
}

static int arguments(chat_prompt *p, const conversation *c, const json *given) {
    bool is_serving = c->settings != NULL;
    if (given == NULL || (is_serving && json_is_null(given))) return OK;
    if (is_serving && json_is_string(given) && is_blank_text(json_str(given))) return OK;
    json *parsed = NULL;
    const json *object = argument_object(given, &parsed);
    int rc = OK;
    if (object == NULL) rc = parameter(p, "arguments", given);
    bool has_one = false;
    JSON_EACH(member, object) {
        if (rc == OK && has_one) rc = prompt_template(p, "\n");
        if (rc == OK) rc = parameter(p, json_key(member), member);
        has_one = true;
    }
    json_free(parsed);
    return rc;
}

/* The model's own text of a call: its tags are template, all between them is not. */
static int replayed(chat_prompt *p, const char *text, size_t len) {
    int rc = OK;
    while (len > 0 && rc == OK) {
        const char *tag = memmem(text, len, CHAT_DSML, strlen(CHAT_DSML));
        size_t plain = tag != NULL ? (size_t)(tag - text) : len;
        while (tag != NULL && plain > 0 && (text[plain - 1] == '<' || text[plain - 1] == '/'))
            plain--;
        rc = prompt_bytes(p, false, text, plain);
        size_t used = tag != NULL ? (size_t)(tag - text) + strlen(CHAT_DSML) : len;
        if (rc == OK) rc = prompt_bytes(p, true, text + plain, used - plain);
        text += used;
        len -= used;
    }
    return rc;
}

static int invoke(
    chat_prompt *p, const conversation *c, const json *call, const char *path, err *e) {
    const json *function = json_get(call, "function");
    if (function == NULL) function = call;
    const json *given = json_get(function, "arguments");
    const char *raw = NULL;
    size_t raw_len = 0;
    buf name = BUF_INIT;
    int rc = chat_tool_name(call, path, &name, e);
    if (rc == OK && c->settings != NULL && c->settings->replay != NULL) {
        chat_call_view view = {json_str(json_get(call, "id")), buf_cstr(&name), given};
        if (c->settings->replay(c->settings->replay_ctx, &view, &raw, &raw_len)) {
            buf_release(&name);
            return replayed(p, raw, raw_len);
        }
    }
    if (rc == OK) rc = prompt_template(p, DSML_OPEN "invoke name=\"");
    if (rc == OK) rc = prompt_text(p, buf_cstr(&name));
    if (rc == OK) rc = prompt_template(p, "\">\n");
    if (rc == OK) rc = arguments(p, c, given);
    buf_release(&name);
    return rc == OK ? prompt_template(p, "\n" DSML_CLOSE "invoke>") : rc;
}

int render_calls(chat_prompt *out, const conversation *c, const chat_source *s, err *e) {
    if (json_count(s->tool_calls) == 0 && s->single_call == NULL) return OK;
    int rc = prompt_template(out, "\n\n" DSML_OPEN "calls>\n");
    buf path = BUF_INIT;
    size_t i = 0;
    JSON_EACH(call, s->tool_calls) {
        buf_reset(&path);
        if (rc == OK) rc = buf_printf(&path, "messages[%zu].tool_calls[%zu]", s->i_given, i);
        if (rc == OK && i > 0) rc = prompt_template(out, "\n");
        if (rc == OK) rc = invoke(out, c, call, buf_cstr(&path), e);
        i++;
    }
    if (i == 0 && rc == OK) {
        rc = buf_printf(&path, "messages[%zu].function_call", s->i_given);
        if (rc == OK) rc = invoke(out, c, s->single_call, buf_cstr(&path), e);
    }
    buf_release(&path);
    return rc == OK ? prompt_template(out, "\n" DSML_CLOSE "calls>") : rc;
}
