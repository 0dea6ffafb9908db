#include "engine/api/body_responses.h"

#include <stdio.h>
#include <string.h>

#include "engine/api/body_write.h"
#include "engine/api/fields.h"
#include "engine/base/str.h"

/* The assistant's items between two others are one message; it is collected here. */
typedef struct turn {
    bool is_open;
    int i_first;          /* of the items */
    buf reasoning, calls; /* calls: JSON objects, comma separated */
    buf parts;            /* content parts, comma separated */
} turn;

typedef struct writer {
    body_writer b;
    const known_calls *known;
    const json *input;
    turn turn;
} writer;

static bool is_str(const json *v, const char *text) {
    const char *s = json_str(v);
    return s != NULL && strcmp(s, text) == 0;
}

static void open_turn(writer *t) {
    if (!t->turn.is_open) t->turn.i_first = t->b.i_item;
    t->turn.is_open = true;
}

static void flush_turn(writer *t) {
    turn *a = &t->turn;
    if (!a->is_open) return;
    body_message_from(&t->b, (body_place){a->i_first, -1, ".content"});
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "role", "assistant");
    json_w_key(&t->b.w, "content");
    buf list = BUF_MAX((size_t)256 << 20);
    buf_putc(&list, '[');
    buf_append(&list, buf_cstr(&a->parts), a->parts.len);
    buf_putc(&list, ']');
    json_w_raw(&t->b.w, list.data, list.len);
    if (a->reasoning.len > 0) {
        json_w_key(&t->b.w, "reasoning_content");
        json_w_strn(&t->b.w, a->reasoning.data, a->reasoning.len);
    }
    if (a->calls.len > 0) {
        buf_reset(&list);
        buf_putc(&list, '[');
        buf_append(&list, a->calls.data, a->calls.len);
        buf_putc(&list, ']');
        json_w_key(&t->b.w, "tool_calls");
        json_w_raw(&t->b.w, list.data, list.len);
    }
    json_w_close(&t->b.w);
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
    buf text = BUF_INIT;
    json_str_bytes(url, &text);
    body_image(w, buf_cstr(&text), text.len);
    buf_release(&text);
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
    if (role == NULL) return body_refuse(&t->b, ".role", "a message needs a role");
    if (content != NULL && !json_is_string(content) && !json_is_array(content)) {
        return body_refuse(&t->b, ".content", "content must be text or a list of parts");
    }
    if (strcmp(role, "assistant") == 0) {
        open_turn(t);
        add_parts(content, &t->turn.parts);
        return OK;
    }
    flush_turn(t);
    body_message_from(&t->b, (body_place){t->b.i_item, -1, ".content"});
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "role", role);
    json_w_key(&t->b.w, "content");
    if (json_is_array(content)) {
        json_w_array(&t->b.w);
        JSON_EACH(part, content) {
            put_part(part, &t->b.w);
        }
        json_w_close(&t->b.w);
    } else {
        json_w_value(&t->b.w, content);
    }
    json_w_close(&t->b.w);
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
    open_turn(t);
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
    open_turn(t);
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
        return body_refuse(&t->b, "", "a function_call needs call_id and name");
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
        return body_refuse(&t->b, "", "a custom_tool_call needs call_id and name");
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
        return body_refuse(&t->b, "", "a local_shell_call needs a call_id");
    }
    begin_call(t, &w, json_get(item, "call_id"), "local_shell");
    json_w_object(&w);
    body_copy(&w, action, names, 3);
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
    if (id == NULL) return body_refuse(&t->b, ".call_id", "an output needs a call_id");
    if (!has_call(t, id))
        return body_refuse(&t->b, ".call_id", "no call of this id is in the input");
    flush_turn(t);
    body_message_from(&t->b, (body_place){t->b.i_item, -1, ".output"});
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "role", "tool");
    json_w_kstr(&t->b.w, "tool_call_id", id);
    json_w_key(&t->b.w, "content");
    if (json_is_array(output)) {
        json_w_array(&t->b.w);
        JSON_EACH(part, output) {
            put_part(part, &t->b.w);
        }
        json_w_close(&t->b.w);
    } else if (output == NULL || json_is_string(output)) {
        json_w_value(&t->b.w, output);
    } else {
        buf text = BUF_INIT;
        json_print_compact(output, &text);
        json_w_strn(&t->b.w, buf_cstr(&text), text.len);
        buf_release(&text);
    }
    json_w_close(&t->b.w);
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
    if (!json_is_object(item)) return body_refuse(&t->b, "", "items must be objects");
    if (type == NULL) return put_message(t, item);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(type, kinds[i].type) == 0) return kinds[i].put(t, item);
    }
    char why[160];
    snprintf(
        why, sizeof why, "items of type %.60s are not kept here; send the items themselves", type);
    return body_refuse(&t->b, ".type", why);
}

static int put_input(writer *t, const json *body) {
    const json *instructions = field_get(body, "instructions");
    int rc = OK;
    if (instructions != NULL && !json_is_string(instructions)) {
        return api_bad(t->b.e, "instructions", NULL, "instructions must be a string");
    }
    t->input = field_get(body, "input");
    json_w_key(&t->b.w, "messages");
    json_w_array(&t->b.w);
    if (instructions != NULL) {
        body_message_from(&t->b, (body_place){-1, -1, "instructions"});
        body_message(&t->b.w, "system", instructions);
    }
    if (json_is_string(t->input)) {
        body_message_from(&t->b, (body_place){-1, -1, "input"});
        body_message(&t->b.w, "user", t->input);
    } else if (json_is_array(t->input) && json_count(t->input) > 0) {
        JSON_EACH(item, t->input) {
            if (rc == OK) rc = put_item(t, item);
            t->b.i_item++;
        }
        flush_turn(t);
    } else {
        rc = api_bad(t->b.e, "input", NULL, "input must be text or a list of items");
    }
    json_w_close(&t->b.w);
    return rc;
}

/* ---- tools ---- */

static void begin_tool(writer *t, const json *name) {
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "type", "function");
    json_w_key(&t->b.w, "function");
    json_w_object(&t->b.w);
    json_w_key(&t->b.w, "name");
    json_w_value(&t->b.w, name);
}

static void put_function(writer *t, const json *tool, const json *space) {
    static const char *const names[] = {"description", "parameters", "strict"};
    begin_tool(t, json_get(tool, "name"));
    body_copy(&t->b.w, tool, names, 3);
    if (space != NULL) {
        json_w_key(&t->b.w, "namespace");
        json_w_object(&t->b.w);
        json_w_key(&t->b.w, "name");
        json_w_value(&t->b.w, json_get(space, "name"));
        if (field_get(space, "description") != NULL) {
            json_w_key(&t->b.w, "description");
            json_w_value(&t->b.w, json_get(space, "description"));
        }
        json_w_close(&t->b.w);
    }
    json_w_close(&t->b.w);
    json_w_close(&t->b.w);
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
    json_w_key(&t->b.w, "description");
    json_w_strn(&t->b.w, buf_cstr(&text), text.len);
    json_w_key(&t->b.w, "parameters");
    json_w_raw(&t->b.w, schema, sizeof schema - 1);
    json_w_close(&t->b.w);
    json_w_close(&t->b.w);
    buf_release(&text);
}

static void put_shell(writer *t) {
    static const char tool[] =
        "{\"type\":\"function\",\"function\":{\"name\":\"local_shell\",\"description\":"
        "\"Runs a command on the user's machine.\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"command\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
        "\"working_directory\":{\"type\":\"string\"},\"timeout_ms\":{\"type\":\"integer\"}},"
        "\"required\":[\"command\"],\"additionalProperties\":false}}}";
    json_w_raw(&t->b.w, tool, sizeof tool - 1);
}

static bool is_offered(const json *tool) {
    static const char *const types[] = {"function", "custom", "local_shell", "namespace"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (is_str(json_get(tool, "type"), types[i])) return true;
    }
    return false;
}

static void put_group(writer *t, const json *group, int i_group) {
    int i = 0;
    JSON_EACH(inner, json_get(group, "tools")) {
        body_tool_from(&t->b, (body_place){i_group, i++, NULL});
        put_function(t, inner, group);
    }
}

static int put_tools(writer *t, const json *tools) {
    int i = 0;
    if (tools == NULL) return OK;
    if (!json_is_array(tools)) return api_bad(t->b.e, "tools", NULL, "tools must be a list");
    json_w_key(&t->b.w, "tools");
    json_w_array(&t->b.w);
    JSON_EACH(tool, tools) {
        const json *type = json_get(tool, "type");
        if (is_offered(tool) && !is_str(type, "namespace"))
            body_tool_from(&t->b, (body_place){i, -1, NULL});
        if (is_str(type, "function")) put_function(t, tool, NULL);
        if (is_str(type, "custom")) put_custom(t, tool);
        if (is_str(type, "local_shell")) put_shell(t);
        if (is_str(type, "namespace")) put_group(t, tool, i);
        i++;
    }
    json_w_close(&t->b.w);
    return OK;
}

/* What a format of a custom tool, and a field that only another server could follow, came to. */
void responses_warn(const json *body, char warning[WARNING_CAP]) {
    static const char *const left_out[] = {"prompt", "max_tool_calls"};
    warning_tools(warning, field_get(body, "tools"), is_offered);
    JSON_EACH(tool, field_get(body, "tools")) {
        const char *name = json_str(json_get(tool, "name"));
        const json *format = field_get(tool, "format");
        if (!body_type_is(tool, "custom") || format == NULL || body_type_is(format, "text"))
            continue;
        warning_add(warning, "the format of tool %.60s is told to the model, not enforced",
            name != NULL ? name : "");
    }
    if (json_is_true(json_get(body, "background")))
        warning_add(warning, "background is not offered here: this answer is waited for");
    if (is_str(json_get(body, "truncation"), "auto"))
        warning_add(warning, "truncation is not offered here");
    for (size_t i = 0; i < sizeof left_out / sizeof left_out[0]; i++) {
        if (field_get(body, left_out[i]) != NULL)
            warning_add(warning, "%s is not offered here", left_out[i]);
    }
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
        json_w_key(&t->b.w, "response_format");
        json_w_value(&t->b.w, format);
        return;
    }
    body_format(&t->b.w, &(body_schema){.format = format});
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
    const json *reasoning = NULL, *text = NULL;
    int64_t limit = 0;
    int rc = field_int(body, "max_output_tokens", (int_range){1, INT64_MAX}, &limit, t->b.e);
    if (rc == OK) rc = field_object(body, "reasoning", &reasoning, t->b.e);
    if (rc == OK) rc = field_object(body, "text", &text, t->b.e);
    if (rc != OK) return rc;
    if (limit > 0) json_w_ki64(&t->b.w, "max_tokens", limit);
    body_copy(&t->b.w, body, same, sizeof same / sizeof same[0]);
    if (wants_logprobs(body)) json_w_kbool(&t->b.w, "logprobs", true);
    const json *effort = field_get(reasoning, "effort");
    if (effort != NULL) {
        json_w_key(&t->b.w, "reasoning_effort");
        json_w_value(&t->b.w, effort);
    }
    const json *format = field_get(text, "format");
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

int responses_to_chat(
    const json *body, const known_calls *known, body_places *places, json **out, api_error *e) {
    static const char *const fields[][2] = {{"max_tokens", "max_output_tokens"},
        {"reasoning_effort", "reasoning.effort"},
        {"response_format.json_schema.schema", "text.format.schema"},
        {"response_format.json_schema.strict", "text.format.strict"},
        {"response_format", "text.format"}, {"response_format.type", "text.format.type"}};
    static const body_words words = {.list = "input",
        .schema = "parameters",
        .fields = fields,
        .n_fields = sizeof fields / sizeof fields[0]};
    writer t = {.known = known};
    t.turn.reasoning = t.turn.calls = t.turn.parts = (buf)BUF_MAX((size_t)128 << 20);
    body_begin(&t.b, &words, places, e);
    int rc = refuse_stored(body, e);
    if (rc == OK) rc = put_fields(&t, body);
    if (rc == OK) rc = put_input(&t, body);
    if (rc == OK) rc = put_tools(&t, field_get(body, "tools"));
    if (rc == OK) rc = body_finish(&t.b, out);
    buf_release(&t.turn.reasoning);
    buf_release(&t.turn.calls);
    buf_release(&t.turn.parts);
    body_drop(&t.b);
    return rc;
}
