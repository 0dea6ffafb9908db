#include "engine/api/body_responses.h"

#include <stdio.h>
#include <string.h>

#include "engine/api/fields.h"
#include "engine/base/str.h"

/* The assistant's items between two others are one message; it is collected here. */
typedef struct turn {
    bool is_open;
    buf reasoning, calls; /* calls: JSON objects, comma separated */
    buf parts;            /* content parts, comma separated */
} turn;

typedef struct writer {
    json_w w;
    api_error *e;
    const known_calls *known;
    const json *input;
    int i_item;
    turn turn;
} writer;

static int refuse(writer *t, const char *what, const char *why) {
    char param[64];
    snprintf(param, sizeof param, "input[%d]%s", t->i_item, what);
    return api_bad(t->e, param, NULL, "%s: %s", param, why);
}

static bool is_str(const json *v, const char *text) {
    const char *s = json_str(v);
    return s != NULL && strcmp(s, text) == 0;
}

static void flush_turn(writer *t) {
    turn *a = &t->turn;
    if (!a->is_open) return;
    json_w_object(&t->w);
    json_w_kstr(&t->w, "role", "assistant");
    json_w_key(&t->w, "content");
    buf list = BUF_MAX((size_t)256 << 20);
    buf_putc(&list, '[');
    buf_append(&list, buf_cstr(&a->parts), a->parts.len);
    buf_putc(&list, ']');
    json_w_raw(&t->w, list.data, list.len);
    if (a->reasoning.len > 0) {
        json_w_key(&t->w, "reasoning_content");
        json_w_strn(&t->w, a->reasoning.data, a->reasoning.len);
    }
    if (a->calls.len > 0) {
        buf_reset(&list);
        buf_putc(&list, '[');
        buf_append(&list, a->calls.data, a->calls.len);
        buf_putc(&list, ']');
        json_w_key(&t->w, "tool_calls");
        json_w_raw(&t->w, list.data, list.len);
    }
    json_w_close(&t->w);
    buf_release(&list);
    buf_reset(&a->reasoning);
    buf_reset(&a->calls);
    buf_reset(&a->parts);
    a->is_open = false;
}

/* ---- messages ---- */

static void put_part(const json *part, json_w *w) {
    const json *url = json_get(part, "image_url");
    if (!is_str(json_get(part, "type"), "input_image") || !json_is_string(url)) {
        json_w_value(w, part);
        return;
    }
    json_w_object(w);
    json_w_kstr(w, "type", "image_url");
    json_w_key(w, "image_url");
    json_w_object(w);
    json_w_key(w, "url");
    json_w_value(w, url);
    json_w_close(w);
    json_w_close(w);
}

static void add_parts(const json *content, buf *out) {
    if (json_is_string(content)) {
        if (out->len > 0) buf_putc(out, ',');
        json_print_compact(content, out);
        return;
    }
    JSON_EACH(part, content) {
        if (out->len > 0) buf_putc(out, ',');
        json_print_compact(part, out);
    }
}

static int put_message(writer *t, const json *item) {
    const char *role = json_str(json_get(item, "role"));
    const json *content = field_get(item, "content");
    if (role == NULL) return refuse(t, ".role", "a message needs a role");
    if (content != NULL && !json_is_string(content) && !json_is_array(content)) {
        return refuse(t, ".content", "content must be text or a list of parts");
    }
    if (strcmp(role, "assistant") == 0) {
        t->turn.is_open = true;
        add_parts(content, &t->turn.parts);
        return OK;
    }
    flush_turn(t);
    json_w_object(&t->w);
    json_w_kstr(&t->w, "role", role);
    json_w_key(&t->w, "content");
    if (json_is_array(content)) {
        json_w_array(&t->w);
        JSON_EACH(part, content) {
            put_part(part, &t->w);
        }
        json_w_close(&t->w);
    } else {
        json_w_value(&t->w, content);
    }
    json_w_close(&t->w);
    return OK;
}

/* ---- reasoning ---- */

static bool add_texts(const json *list, buf *out) {
    bool has_any = false;
    JSON_EACH(part, list) {
        if (!json_is_string(json_get(part, "text"))) continue;
        json_str_bytes(json_get(part, "text"), out);
        has_any = true;
    }
    return has_any;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* What form_responses wrote; anything else is not ours and says nothing to us. */
static void add_secret(const char *text, buf *out) {
    size_t n = strlen(RESPONSES_SECRET_PREFIX);
    if (text == NULL || strncmp(text, RESPONSES_SECRET_PREFIX, n) != 0) return;
    for (text += n; text[0] != '\0' && text[1] != '\0'; text += 2) {
        int high = hex_digit(text[0]);
        int low = hex_digit(text[1]);
        if (high < 0 || low < 0) return;
        buf_putc(out, (char)(high * 16 + low));
    }
}

static int put_reasoning(writer *t, const json *item) {
    buf text = BUF_INIT;
    t->turn.is_open = true;
    if (!add_texts(json_get(item, "content"), &text)) {
        add_secret(json_str(json_get(item, "encrypted_content")), &text);
        if (text.len == 0) add_texts(json_get(item, "summary"), &text);
    }
    if (utf8_valid(buf_cstr(&text), text.len)) {
        buf_append(&t->turn.reasoning, buf_cstr(&text), text.len);
    }
    buf_release(&text);
    return OK;
}

/* ---- calls and results ---- */

static void begin_call(writer *t, json_w *w, const json *id, const char *name) {
    t->turn.is_open = true;
    if (t->turn.calls.len > 0) buf_putc(&t->turn.calls, ',');
    json_w_begin(w, &t->turn.calls);
    json_w_object(w);
    json_w_key(w, "id");
    json_w_value(w, id);
    json_w_kstr(w, "type", "function");
    json_w_key(w, "function");
    json_w_object(w);
    json_w_kstr(w, "name", name);
    json_w_key(w, "arguments");
}

static void end_call(json_w *w) {
    json_w_close(w);
    json_w_close(w);
    json_w_end(w);
}

static int put_call(writer *t, const json *item) {
    const char *name = json_str(json_get(item, "name"));
    const char *space = json_str(json_get(item, "namespace"));
    const json *id = json_get(item, "call_id");
    json_w w;
    if (name == NULL || !json_is_string(id)) {
        return refuse(t, "", "a function_call needs call_id and name");
    }
    buf full = BUF_INIT;
    if (space != NULL && strstr(name, "::") == NULL) buf_printf(&full, "%s::", space);
    buf_puts(&full, name);
    begin_call(t, &w, id, buf_cstr(&full));
    json_w_value(&w, field_get(item, "arguments"));
    end_call(&w);
    buf_release(&full);
    return OK;
}

static int put_custom_call(writer *t, const json *item) {
    const char *name = json_str(json_get(item, "name"));
    json_w w;
    if (name == NULL || !json_is_string(json_get(item, "call_id"))) {
        return refuse(t, "", "a custom_tool_call needs call_id and name");
    }
    begin_call(t, &w, json_get(item, "call_id"), name);
    json_w_object(&w);
    json_w_key(&w, "input");
    json_w_value(&w, field_get(item, "input"));
    json_w_close(&w);
    end_call(&w);
    return OK;
}

static int put_shell_call(writer *t, const json *item) {
    static const char *const names[] = {"command", "working_directory", "timeout_ms"};
    const json *action = json_get(item, "action");
    json_w w;
    if (!json_is_string(json_get(item, "call_id"))) {
        return refuse(t, "", "a local_shell_call needs a call_id");
    }
    begin_call(t, &w, json_get(item, "call_id"), "local_shell");
    json_w_object(&w);
    for (size_t i = 0; i < 3; i++) {
        if (field_get(action, names[i]) == NULL) continue;
        json_w_key(&w, names[i]);
        json_w_value(&w, json_get(action, names[i]));
    }
    json_w_close(&w);
    end_call(&w);
    return OK;
}

static bool has_call(const writer *t, const char *id) {
    JSON_EACH(item, t->input) {
        const char *type = json_str(json_get(item, "type"));
        if (type == NULL || !str_ends(type, "_call")) continue;
        if (is_str(json_get(item, "call_id"), id)) return true;
    }
    return t->known != NULL && t->known->knows(t->known->ctx, id);
}

static int put_result(writer *t, const json *item) {
    const char *id = json_str(json_get(item, "call_id"));
    const json *output = field_get(item, "output");
    if (id == NULL) id = json_str(json_get(item, "id")); /* local_shell_call_output */
    if (id == NULL) return refuse(t, ".call_id", "an output needs a call_id");
    if (!has_call(t, id)) return refuse(t, ".call_id", "no call of this id is in the input");
    flush_turn(t);
    json_w_object(&t->w);
    json_w_kstr(&t->w, "role", "tool");
    json_w_kstr(&t->w, "tool_call_id", id);
    json_w_key(&t->w, "content");
    if (json_is_array(output)) {
        json_w_array(&t->w);
        JSON_EACH(part, output) {
            put_part(part, &t->w);
        }
        json_w_close(&t->w);
    } else if (output == NULL || json_is_string(output)) {
        json_w_value(&t->w, output);
    } else {
        buf text = BUF_INIT;
        json_print_compact(output, &text);
        json_w_strn(&t->w, buf_cstr(&text), text.len);
        buf_release(&text);
    }
    json_w_close(&t->w);
    return OK;
}

static int put_item(writer *t, const json *item) {
    static const struct {
        const char *type;
        int (*put)(writer *t, const json *item);
    } kinds[] = {{"message", put_message}, {"reasoning", put_reasoning},
        {"function_call", put_call}, {"custom_tool_call", put_custom_call},
        {"local_shell_call", put_shell_call}, {"function_call_output", put_result},
        {"custom_tool_call_output", put_result}, {"local_shell_call_output", put_result}};
    const char *type = json_str(json_get(item, "type"));
    if (!json_is_object(item)) return refuse(t, "", "items must be objects");
    if (type == NULL) return put_message(t, item);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(type, kinds[i].type) == 0) return kinds[i].put(t, item);
    }
    char why[160];
    snprintf(
        why, sizeof why, "items of type %.60s are not kept here; send the items themselves", type);
    return refuse(t, ".type", why);
}

static void put_text_message(writer *t, const char *role, const json *text) {
    json_w_object(&t->w);
    json_w_kstr(&t->w, "role", role);
    json_w_key(&t->w, "content");
    json_w_value(&t->w, text);
    json_w_close(&t->w);
}

static int put_input(writer *t, const json *body) {
    const json *instructions = field_get(body, "instructions");
    int rc = OK;
    if (instructions != NULL && !json_is_string(instructions)) {
        return api_bad(t->e, "instructions", NULL, "instructions must be a string");
    }
    t->input = field_get(body, "input");
    json_w_key(&t->w, "messages");
    json_w_array(&t->w);
    if (instructions != NULL) put_text_message(t, "system", instructions);
    if (json_is_string(t->input)) {
        put_text_message(t, "user", t->input);
    } else if (json_is_array(t->input) && json_count(t->input) > 0) {
        JSON_EACH(item, t->input) {
            if (rc == OK) rc = put_item(t, item);
            t->i_item++;
        }
        flush_turn(t);
    } else {
        rc = api_bad(t->e, "input", NULL, "input must be text or a list of items");
    }
    json_w_close(&t->w);
    return rc;
}

/* ---- tools ---- */

static void begin_tool(writer *t, const json *name) {
    json_w_object(&t->w);
    json_w_kstr(&t->w, "type", "function");
    json_w_key(&t->w, "function");
    json_w_object(&t->w);
    json_w_key(&t->w, "name");
    json_w_value(&t->w, name);
}

static void put_function(writer *t, const json *tool, const json *space) {
    static const char *const names[] = {"description", "parameters", "strict"};
    begin_tool(t, json_get(tool, "name"));
    for (size_t i = 0; i < 3; i++) {
        if (field_get(tool, names[i]) == NULL) continue;
        json_w_key(&t->w, names[i]);
        json_w_value(&t->w, json_get(tool, names[i]));
    }
    if (space != NULL) {
        json_w_key(&t->w, "namespace");
        json_w_object(&t->w);
        json_w_key(&t->w, "name");
        json_w_value(&t->w, json_get(space, "name"));
        if (field_get(space, "description") != NULL) {
            json_w_key(&t->w, "description");
            json_w_value(&t->w, json_get(space, "description"));
        }
        json_w_close(&t->w);
    }
    json_w_close(&t->w);
    json_w_close(&t->w);
}

/* One text goes in; a format that the client checks is told in the description. */
static void put_custom(writer *t, const json *tool) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"}},"
        "\"required\":[\"input\"],\"additionalProperties\":false}";
    const json *definition = json_get(json_get(tool, "format"), "definition");
    buf text = BUF_INIT;
    json_str_bytes(json_get(tool, "description"), &text);
    if (json_is_string(definition)) {
        buf_puts(&text, text.len > 0 ? "\n\nFormat of the input:\n" : "Format of the input:\n");
        json_str_bytes(definition, &text);
    }
    begin_tool(t, json_get(tool, "name"));
    json_w_key(&t->w, "description");
    json_w_strn(&t->w, buf_cstr(&text), text.len);
    json_w_key(&t->w, "parameters");
    json_w_raw(&t->w, schema, sizeof schema - 1);
    json_w_close(&t->w);
    json_w_close(&t->w);
    buf_release(&text);
}

static void put_shell(writer *t) {
    static const char tool[] =
        "{\"type\":\"function\",\"function\":{\"name\":\"local_shell\",\"description\":"
        "\"Runs a command on the user's machine.\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"command\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
        "\"working_directory\":{\"type\":\"string\"},\"timeout_ms\":{\"type\":\"integer\"}},"
        "\"required\":[\"command\"],\"additionalProperties\":false}}}";
    json_w_raw(&t->w, tool, sizeof tool - 1);
}

static int put_tools(writer *t, const json *tools) {
    if (tools == NULL) return OK;
    if (!json_is_array(tools)) return api_bad(t->e, "tools", NULL, "tools must be a list");
    json_w_key(&t->w, "tools");
    json_w_array(&t->w);
    JSON_EACH(tool, tools) {
        const json *type = json_get(tool, "type");
        if (is_str(type, "function")) put_function(t, tool, NULL);
        if (is_str(type, "custom")) put_custom(t, tool);
        if (is_str(type, "local_shell")) put_shell(t);
        if (!is_str(type, "namespace")) continue;
        JSON_EACH(inner, json_get(tool, "tools")) {
            put_function(t, inner, tool);
        }
    }
    json_w_close(&t->w);
    return OK;
}

static bool is_offered(const json *tool) {
    static const char *const types[] = {"function", "custom", "local_shell", "namespace"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (is_str(json_get(tool, "type"), types[i])) return true;
    }
    return false;
}

void responses_warn(const json *body, char warning[WARNING_CAP]) {
    warning_tools(warning, field_get(body, "tools"), is_offered);
}

tool_kind responses_tool_kind(const json *body, const char *name) {
    JSON_EACH(tool, json_get(body, "tools")) {
        const json *type = json_get(tool, "type");
        if (is_str(type, "custom") && is_str(json_get(tool, "name"), name)) return TOOL_CUSTOM;
        if (is_str(type, "local_shell") && strcmp(name, "local_shell") == 0) return TOOL_SHELL;
    }
    return TOOL_FUNCTION;
}

/* ---- the rest ---- */

static void put_format(writer *t, const json *format) {
    if (!is_str(json_get(format, "type"), "json_schema")) {
        json_w_key(&t->w, "response_format");
        json_w_value(&t->w, format);
        return;
    }
    static const char *const names[] = {"name", "schema", "strict"};
    json_w_key(&t->w, "response_format");
    json_w_object(&t->w);
    json_w_kstr(&t->w, "type", "json_schema");
    json_w_key(&t->w, "json_schema");
    json_w_object(&t->w);
    for (size_t i = 0; i < 3; i++) {
        if (field_get(format, names[i]) == NULL) continue;
        json_w_key(&t->w, names[i]);
        json_w_value(&t->w, json_get(format, names[i]));
    }
    json_w_close(&t->w);
    json_w_close(&t->w);
}

static bool wants_logprobs(const json *body) {
    JSON_EACH(word, field_get(body, "include")) {
        if (is_str(word, "message.output_text.logprobs")) return true;
    }
    return field_get(body, "top_logprobs") != NULL;
}

static int put_fields(writer *t, const json *body) {
    static const char *const same[] = {"model", "stream", "temperature", "top_p", "top_logprobs",
        "tool_choice", "parallel_tool_calls", "prompt_cache_key", "seed", "thinking_budget",
        "thinking", "priority", "cache_salt"};
    int64_t limit = 0;
    int rc = field_int(body, "max_output_tokens", (int_range){1, INT32_MAX}, &limit, t->e);
    if (rc != OK) return rc;
    if (limit > 0) json_w_ki64(&t->w, "max_tokens", limit);
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (field_get(body, same[i]) == NULL) continue;
        json_w_key(&t->w, same[i]);
        json_w_value(&t->w, json_get(body, same[i]));
    }
    if (wants_logprobs(body)) json_w_kbool(&t->w, "logprobs", true);
    const json *effort = field_get(field_get(body, "reasoning"), "effort");
    if (effort != NULL) {
        json_w_key(&t->w, "reasoning_effort");
        json_w_value(&t->w, effort);
    }
    const json *format = field_get(field_get(body, "text"), "format");
    if (format != NULL) put_format(t, format);
    return OK;
}

/* What only a server that keeps answers could do. */
static int refuse_stored(const json *body, api_error *e) {
    static const char *const names[] = {"previous_response_id", "conversation"};
    for (size_t i = 0; i < 2; i++) {
        if (field_get(body, names[i]) == NULL) continue;
        return api_bad(e, names[i], NULL,
            "answers are not kept here, so %s cannot be used; send the whole input again",
            names[i]);
    }
    return OK;
}

int responses_to_chat(const json *body, const known_calls *known, json **out, api_error *e) {
    buf text = BUF_MAX((size_t)256 << 20);
    writer t = {.e = e, .known = known};
    err why = ERR_INIT;
    t.turn.reasoning = t.turn.calls = t.turn.parts = (buf)BUF_MAX((size_t)128 << 20);
    json_w_begin(&t.w, &text);
    json_w_object(&t.w);
    int rc = refuse_stored(body, e);
    if (rc == OK) rc = put_fields(&t, body);
    if (rc == OK) rc = put_input(&t, body);
    if (rc == OK) rc = put_tools(&t, field_get(body, "tools"));
    if (rc == OK) {
        json_w_close(&t.w);
        const json_limits limits = {.max_bytes = text.max};
        rc = json_w_end(&t.w);
        if (rc == OK) rc = json_parse(text.data, text.len, &limits, out, &why);
        if (rc != OK) rc = api_bad(e, NULL, NULL, "the body is too large or too deep");
    }
    buf_release(&t.turn.reasoning);
    buf_release(&t.turn.calls);
    buf_release(&t.turn.parts);
    buf_release(&text);
    return rc;
}
