#include "engine/api/body_messages.h"

#include <stdio.h>
#include <string.h>

#include "engine/api/body_write.h"
#include "engine/api/fields.h"

typedef struct writer {
    body_writer b;
    const messages_options *o;
} writer;

static void put_text_part(writer *t, const json *text) {
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "type", "text");
    json_w_key(&t->b.w, "text");
    json_w_value(&t->b.w, text);
    json_w_close(&t->b.w);
}

static int put_image(writer *t, const json *block) {
    const json *source = json_get(block, "source");
    const char *data = json_str(json_get(source, "data"));
    const char *type = json_str(json_get(source, "media_type"));
    const char *url = json_str(json_get(source, "url"));
    buf text = BUF_INIT;
    if (url != NULL) {
        buf_puts(&text, url);
    } else if (data != NULL && type != NULL) {
        buf_printf(&text, "data:%s;base64,", type);
        buf_puts(&text, data);
    } else {
        return body_refuse(
            &t->b, ".content", "an image needs a source with url, or media_type and data");
    }
    body_image(&t->b.w, buf_cstr(&text), text.len);
    buf_release(&text);
    return OK;
}

/* text, image or document of text, as a part of a content list. */
static int put_part(writer *t, const json *block) {
    if (body_type_is(block, "text")) {
        if (!json_is_string(json_get(block, "text")))
            return body_refuse(&t->b, ".content", "a text block has no text");
        put_text_part(t, json_get(block, "text"));
        return OK;
    }
    if (body_type_is(block, "image")) return put_image(t, block);
    if (body_type_is(block, "document")) {
        const json *source = json_get(block, "source");
        if (!body_type_is(source, "text") || !json_is_string(json_get(source, "data"))) {
            return body_refuse(&t->b, ".content", "a document must have a source of type text");
        }
        put_text_part(t, json_get(source, "data"));
        return OK;
    }
    return body_refuse(&t->b, ".content",
        "blocks may be text, image, document, tool_use, tool_result, thinking or redacted_thinking");
}

static void from_here(writer *t) {
    body_message_from(&t->b, (body_place){t->b.i_item, -1, ".content"});
}

static int put_result(writer *t, const json *block) {
    const json *content = field_get(block, "content");
    const json *id = json_get(block, "tool_use_id");
    int rc = OK;
    if (!json_is_string(id))
        return body_refuse(&t->b, ".content", "a tool_result has no tool_use_id");
    from_here(t);
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "role", "tool");
    json_w_key(&t->b.w, "tool_call_id");
    json_w_value(&t->b.w, id);
    json_w_key(&t->b.w, "content");
    if (json_is_array(content)) {
        json_w_array(&t->b.w);
        JSON_EACH(part, content) {
            if (rc == OK) rc = put_part(t, part);
        }
        json_w_close(&t->b.w);
    } else if (content == NULL || json_is_string(content)) {
        bool is_bare_error = content == NULL && json_is_true(json_get(block, "is_error"));
        if (content != NULL) {
            json_w_value(&t->b.w, content);
        } else {
            json_w_str(&t->b.w, is_bare_error ? "The tool failed without a message." : "");
        }
    } else {
        json_w_str(&t->b.w, "");
        rc = body_refuse(
            &t->b, ".content", "the content of a tool_result must be text or a list of blocks");
    }
    json_w_close(&t->b.w);
    return rc;
}

/* Runs of parts become messages, results messages of their own, all in the order given. */
static int put_user_blocks(writer *t, const char *role, const json *content) {
    bool is_open = false;
    int rc = OK;
    JSON_EACH(block, content) {
        bool is_result = body_type_is(block, "tool_result");
        if (is_open && is_result) {
            json_w_close(&t->b.w);
            json_w_close(&t->b.w);
            is_open = false;
        }
        if (is_result) {
            rc = put_result(t, block);
        } else {
            if (!is_open) {
                from_here(t);
                json_w_object(&t->b.w);
                json_w_kstr(&t->b.w, "role", role);
                json_w_key(&t->b.w, "content");
                json_w_array(&t->b.w);
                is_open = true;
            }
            rc = put_part(t, block);
        }
        if (rc != OK) break;
    }
    if (is_open) {
        json_w_close(&t->b.w);
        json_w_close(&t->b.w);
    }
    return rc;
}

static int check_use(writer *t, const json *block) {
    const json *input = field_get(block, "input");
    if (!json_is_string(json_get(block, "id")))
        return body_refuse(&t->b, ".content", "a tool_use has no id");
    if (!json_is_string(json_get(block, "name")))
        return body_refuse(&t->b, ".content", "a tool_use has no name");
    if (input != NULL && !json_is_object(input))
        return body_refuse(&t->b, ".content", "the input of a tool_use must be an object");
    return OK;
}

static void put_use(writer *t, const json *block) {
    json_w_object(&t->b.w);
    json_w_key(&t->b.w, "id");
    json_w_value(&t->b.w, json_get(block, "id"));
    json_w_kstr(&t->b.w, "type", "function");
    json_w_key(&t->b.w, "function");
    json_w_object(&t->b.w);
    json_w_key(&t->b.w, "name");
    json_w_value(&t->b.w, json_get(block, "name"));
    json_w_key(&t->b.w, "arguments");
    if (field_get(block, "input") != NULL) {
        json_w_value(&t->b.w, json_get(block, "input"));
    } else {
        json_w_raw(&t->b.w, "{}", 2);
    }
    json_w_close(&t->b.w);
    json_w_close(&t->b.w);
}

typedef struct assistant_parts {
    buf thinking;
    int n_text, n_use;
} assistant_parts;

static int look_at_assistant(writer *t, const json *content, assistant_parts *a) {
    int rc = OK;
    JSON_EACH(block, content) {
        if (body_type_is(block, "thinking")) {
            json_str_bytes(json_get(block, "thinking"), &a->thinking);
        } else if (body_type_is(block, "tool_use")) {
            a->n_use++;
            rc = check_use(t, block);
        } else if (body_type_is(block, "text")) {
            a->n_text++;
        } else if (!body_type_is(block, "redacted_thinking")) {
            rc = body_refuse(&t->b, ".content",
                "blocks of the assistant may be text, tool_use, thinking or redacted_thinking");
        }
        if (rc != OK) return rc;
    }
    return OK;
}

static int put_assistant(writer *t, const json *content) {
    assistant_parts a = {.thinking = BUF_INIT};
    int rc = look_at_assistant(t, content, &a);
    from_here(t);
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "role", "assistant");
    if (a.thinking.len > 0) {
        json_w_key(&t->b.w, "reasoning_content");
        json_w_strn(&t->b.w, a.thinking.data, a.thinking.len);
    }
    json_w_key(&t->b.w, "content");
    json_w_array(&t->b.w);
    JSON_EACH(block, content) {
        if (rc == OK && body_type_is(block, "text")) rc = put_part(t, block);
    }
    json_w_close(&t->b.w);
    if (a.n_use > 0 && rc == OK) {
        json_w_key(&t->b.w, "tool_calls");
        json_w_array(&t->b.w);
        JSON_EACH(block, content) {
            if (body_type_is(block, "tool_use")) put_use(t, block);
        }
        json_w_close(&t->b.w);
    }
    json_w_close(&t->b.w);
    buf_release(&a.thinking);
    return rc;
}

static int put_message(writer *t, const json *message) {
    const char *role = json_str(json_get(message, "role"));
    const json *content = field_get(message, "content");
    bool is_assistant = role != NULL && strcmp(role, "assistant") == 0;
    bool is_known = is_assistant ||
                    (role != NULL && (strcmp(role, "user") == 0 || strcmp(role, "system") == 0));
    if (!is_known) return body_refuse(&t->b, ".role", "the role must be user or assistant");
    if (json_is_array(content)) {
        return is_assistant ? put_assistant(t, content) : put_user_blocks(t, role, content);
    }
    if (!json_is_string(content)) {
        return body_refuse(&t->b, ".content", "content must be text or a list of blocks");
    }
    from_here(t);
    body_message(&t->b.w, role, content);
    return OK;
}

static int put_system(writer *t, const json *system) {
    int rc = OK;
    if (system == NULL) return OK;
    if (!json_is_string(system) && !json_is_array(system)) {
        return api_bad(t->b.e, "system", NULL, "system must be text or a list of text blocks");
    }
    body_message_from(&t->b, (body_place){-1, -1, "system"});
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "role", "system");
    json_w_key(&t->b.w, "content");
    if (json_is_string(system)) {
        json_w_value(&t->b.w, system);
    } else {
        json_w_array(&t->b.w);
        JSON_EACH(block, system) {
            if (!body_type_is(block, "text") || !json_is_string(json_get(block, "text"))) {
                rc = api_bad(t->b.e, "system", NULL, "system takes text blocks only");
                break;
            }
            put_text_part(t, json_get(block, "text"));
        }
        json_w_close(&t->b.w);
    }
    json_w_close(&t->b.w);
    return rc;
}

static int put_messages(writer *t, const json *body) {
    const json *messages = field_get(body, "messages");
    if (!json_is_array(messages) || json_count(messages) == 0) {
        return api_bad(
            t->b.e, "messages", NULL, "messages must be a list with at least one message");
    }
    json_w_key(&t->b.w, "messages");
    json_w_array(&t->b.w);
    int rc = put_system(t, field_get(body, "system"));
    t->b.i_item = 0;
    JSON_EACH(message, messages) {
        if (rc == OK) rc = put_message(t, message);
        t->b.i_item++;
    }
    json_w_close(&t->b.w);
    if (rc != OK) return rc;
    const json *last = json_at(messages, json_count(messages) - 1);
    const char *role = json_str(json_get(last, "role"));
    if (strcmp(role, "assistant") == 0) json_w_kbool(&t->b.w, "continue_final_message", true);
    return OK;
}

/* ---- tools ---- */

/* Tools that run at Anthropic have a type of their own and cannot be offered. */
static bool is_offered(const json *tool) {
    return field_get(tool, "type") == NULL || body_type_is(tool, "custom");
}

void messages_warn(const json *body, char warning[WARNING_CAP]) {
    warning_tools(warning, field_get(body, "tools"), is_offered);
}

static void put_tool(writer *t, const json *tool) {
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "type", "function");
    json_w_key(&t->b.w, "function");
    json_w_object(&t->b.w);
    json_w_key(&t->b.w, "name");
    json_w_value(&t->b.w, json_get(tool, "name"));
    if (field_get(tool, "description") != NULL) {
        json_w_key(&t->b.w, "description");
        json_w_value(&t->b.w, json_get(tool, "description"));
    }
    json_w_key(&t->b.w, "parameters");
    json_w_value(&t->b.w, field_get(tool, "input_schema"));
    if (json_is_true(json_get(tool, "strict"))) json_w_kbool(&t->b.w, "strict", true);
    json_w_close(&t->b.w);
    json_w_close(&t->b.w);
}

static int put_tools(writer *t, const json *tools, int *n_offered) {
    if (tools == NULL) return OK;
    if (!json_is_array(tools)) return api_bad(t->b.e, "tools", NULL, "tools must be a list");
    int i = 0;
    json_w_key(&t->b.w, "tools");
    json_w_array(&t->b.w);
    JSON_EACH(tool, tools) {
        if (json_is_object(tool) && is_offered(tool)) {
            const json *schema = field_get(tool, "input_schema");
            char param[48];
            snprintf(param, sizeof param, "tools[%d].input_schema", i);
            if (!json_is_object(schema))
                return api_bad(t->b.e, param, NULL, "%s must be a JSON schema", param);
            body_tool_from(&t->b, (body_place){i, -1, NULL});
            put_tool(t, tool);
            (*n_offered)++;
        }
        i++;
    }
    json_w_close(&t->b.w);
    return OK;
}

static int put_choice(writer *t, const json *choice, int n_offered) {
    const char *type = json_str(json_get(choice, "type"));
    if (choice == NULL) return OK;
    if (type == NULL) return api_bad(t->b.e, "tool_choice", NULL, "tool_choice needs a type");
    bool is_single = false;
    int rc = field_bool_in(choice, "tool_choice", "disable_parallel_tool_use", &is_single, t->b.e);
    if (rc != OK) return rc;
    if (is_single) {
        json_w_kbool(&t->b.w, "parallel_tool_calls", false);
    }
    bool is_any = strcmp(type, "any") == 0;
    if (is_any || strcmp(type, "auto") == 0 || strcmp(type, "none") == 0) {
        if (n_offered > 0 || is_any) {
            json_w_kstr(&t->b.w, "tool_choice", is_any ? "required" : type);
        }
        return OK;
    }
    const char *name = json_str(json_get(choice, "name"));
    if (strcmp(type, "tool") != 0 || name == NULL) {
        return api_bad(t->b.e, "tool_choice", NULL,
            "tool_choice must be auto, any, none, or tool with a name");
    }
    json_w_key(&t->b.w, "tool_choice");
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "type", "function");
    json_w_key(&t->b.w, "function");
    json_w_object(&t->b.w);
    json_w_kstr(&t->b.w, "name", name);
    json_w_close(&t->b.w);
    json_w_close(&t->b.w);
    return OK;
}

/* ---- the rest ---- */

static int put_thinking(writer *t, const json *body) {
    const json *thinking = field_get(body, "thinking");
    const json *output = NULL;
    int64_t budget = -1;
    int rc = field_object(body, "output_config", &output, t->b.e);
    if (rc != OK) return rc;
    const json *format = field_get(output, "format");
    if (thinking != NULL) {
        const char *type = json_str(json_get(thinking, "type"));
        bool is_on = type != NULL && strcmp(type, "disabled") != 0;
        if (type == NULL ||
            (is_on && strcmp(type, "enabled") != 0 && strcmp(type, "adaptive") != 0)) {
            return api_bad(t->b.e, "thinking.type", NULL,
                "thinking.type must be enabled, adaptive or disabled");
        }
        rc = field_int(thinking, "budget_tokens", (int_range){1, INT64_MAX}, &budget, t->b.e);
        if (rc != OK) return rc;
        json_w_kbool(&t->b.w, "thinking", is_on);
        if (is_on && budget > 0) json_w_ki64(&t->b.w, "thinking_budget", budget);
    } else if (!t->o->thinks_by_default) {
        json_w_kbool(&t->b.w, "thinking", false);
    }
    if (field_get(output, "effort") != NULL) {
        json_w_key(&t->b.w, "reasoning_effort");
        json_w_value(&t->b.w, json_get(output, "effort"));
    }
    if (format == NULL) format = field_get(body, "output_format");
    if (format == NULL) return OK;
    body_format(&t->b.w, &(body_schema){.name = "output", .format = format});
    return OK;
}

static int put_fields(writer *t, const json *body) {
    static const char *const same[] = {
        "model", "stream", "temperature", "top_p", "top_k", "seed", "cache_salt", "priority"};
    int64_t limit = 0;
    int rc = field_int(body, "max_tokens", (int_range){1, INT64_MAX}, &limit, t->b.e);
    if (rc != OK) return rc;
    if (limit == 0 && t->o->needs_limit) {
        return api_bad(t->b.e, "max_tokens", NULL, "max_tokens is missing");
    }
    if (limit > 0) json_w_ki64(&t->b.w, "max_tokens", limit);
    body_copy(&t->b.w, body, same, sizeof same / sizeof same[0]);
    if (field_get(body, "stop_sequences") != NULL) {
        if (!json_is_array(json_get(body, "stop_sequences"))) {
            return api_bad(
                t->b.e, "stop_sequences", NULL, "stop_sequences must be a list of strings");
        }
        json_w_key(&t->b.w, "stop");
        json_w_value(&t->b.w, json_get(body, "stop_sequences"));
    }
    return OK;
}

int messages_to_chat(
    const json *body, const messages_options *o, body_places *places, json **out, api_error *e) {
    static const char *const fields[][2] = {{"stop", "stop_sequences"},
        {"reasoning_effort", "output_config.effort"}, {"thinking_budget", "thinking.budget_tokens"},
        {"response_format.json_schema.schema", "output_config.format.schema"},
        {"response_format.json_schema.strict", "output_config.format.strict"},
        {"response_format", "output_config.format"}};
    static const body_words words = {.list = "messages",
        .schema = "input_schema",
        .fields = fields,
        .n_fields = sizeof fields / sizeof fields[0]};
    writer t = {.o = o};
    int n_offered = 0;
    body_begin(&t.b, &words, places, e);
    int rc = put_fields(&t, body);
    if (rc == OK) rc = put_messages(&t, body);
    if (rc == OK) rc = put_tools(&t, field_get(body, "tools"), &n_offered);
    if (rc == OK) rc = put_choice(&t, field_get(body, "tool_choice"), n_offered);
    if (rc == OK) rc = put_thinking(&t, body);
    if (rc == OK) rc = body_finish(&t.b, out);
    body_drop(&t.b);
    return rc;
}
