/* The serving rules: an OpenAI chat body read into a conversation (chat.md 6). */
#include <string.h>

#include "engine/base/str.h"
#include "engine/text/chat_internal.h"

#define BILLING_PREFIX "x-anthropic-billing-header:"

typedef struct reader {
    conversation c;
    const json *body;
    const json *tools;  /* to print, NULL: none */
    const json *format; /* schema to print, NULL: none */
    size_t n_given;
    bool has_assistant;
    err *e;
} reader;

static int refuse(err *e, size_t i, const char *field, const char *why) {
    int rc = err_set(e, ERR_ARG, "messages[%zu]%s: %s", i, field, why);
    err_place(e, "messages[%zu]%s", i, field);
    return rc;
}

static int refuse_param(err *e, const char *param, const char *why) {
    int rc = err_set(e, ERR_ARG, "%s: %s", param, why);
    err_place(e, "%s", param);
    return rc;
}

static const json *present(const json *v) {
    return v == NULL || json_is_null(v) ? NULL : v;
}

/* --- content --- */

static bool may_hold_images(const reader *r, const chat_source *s) {
    return (s->role == ROLE_USER || s->role == ROLE_TOOL) && r->c.settings->has_vision;
}

static int read_text_part(chat_source *s, const char *text) {
    bool is_billing = s->role == ROLE_SYSTEM && str_starts(text, BILLING_PREFIX);
    if (!is_billing) source_add_part(s, (chat_part){.kind = PART_TEXT, .text = text});
    return OK;
}

static int read_part(reader *r, chat_source *s, const json *part) {
    bool has_source = false;
    if (json_is_string(part)) return read_text_part(s, json_str(part));
    if (part_is_image(part, &has_source)) {
        if (!may_hold_images(r, s)) {
            return refuse(r->e, s->i_given, ".content",
                r->c.settings->has_vision ? "images may stand in user and tool messages only"
                                          : "this server has no vision part for images");
        }
        if (!has_source) return refuse(r->e, s->i_given, ".content", "an image has no source");
        source_add_part(s, (chat_part){.kind = PART_IMAGE, .image = part});
        return OK;
    }
    static const char *const types[] = {"text", "input_text", "output_text", "refusal"};
    const char *type = json_str(json_get(part, "type"));
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (!str_eq(type, types[i])) continue;
        const char *text = json_str(json_get(part, i == 3 ? "refusal" : "text"));
        if (text == NULL) return refuse(r->e, s->i_given, ".content", "a text part has no text");
        return read_text_part(s, text);
    }
    return refuse(r->e, s->i_given, ".content",
        "parts may be text, input_text, output_text, refusal or an image");
}

static int read_content(reader *r, chat_source *s, const json *content) {
    if (present(content) == NULL || json_is_string(content)) {
        const char *text = json_is_string(content) ? json_str(content) : "";
        source_add_part(s, (chat_part){.kind = PART_TEXT, .text = text});
        return OK;
    }
    if (!json_is_array(content)) {
        return refuse(r->e, s->i_given, ".content", "must be text, null or a list of parts");
    }
    int rc = OK;
    JSON_EACH(part, content) {
        if (rc == OK) rc = read_part(r, s, part);
    }
    return rc;
}

/* --- messages --- */

static int read_role(reader *r, const json *given, chat_role *out) {
    static const struct {
        const char *name;
        chat_role role;
    } roles[] = {
        {"system", ROLE_SYSTEM},
        {"developer", ROLE_SYSTEM},
        {"user", ROLE_USER},
        {"assistant", ROLE_ASSISTANT},
        {"tool", ROLE_TOOL},
        {"function", ROLE_TOOL},
        {"latest_reminder", ROLE_REMINDER},
    };
    const char *name = json_str(json_get(given, "role"));
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (!str_eq(name, roles[i].name)) continue;
        *out = roles[i].role;
        return OK;
    }
    return refuse(
        r->e, r->n_given, ".role", "must be system, developer, user, assistant, tool or function");
}

static int read_reasoning(reader *r, chat_source *s, const json *given) {
    static const char *const keys[] = {"reasoning_content", "reasoning"};
    for (size_t i = 0; i < 2; i++) {
        const json *v = present(json_get(given, keys[i]));
        if (v == NULL) continue;
        if (!json_is_string(v)) {
            return refuse(r->e, s->i_given, i == 0 ? ".reasoning_content" : ".reasoning",
                "must be text or null");
        }
        s->reasoning = json_str(v);
        return OK;
    }
    return OK;
}

static int read_calls(reader *r, chat_source *s, const json *given) {
    const json *calls = present(json_get(given, "tool_calls"));
    if (calls != NULL && !json_is_array(calls)) {
        return refuse(r->e, s->i_given, ".tool_calls", "must be a list of calls");
    }
    JSON_EACH(call, calls) {
        if (!json_is_object(call)) {
            return refuse(r->e, s->i_given, ".tool_calls", "every call must be an object");
        }
    }
    s->tool_calls = json_count(calls) > 0 ? calls : NULL;
    if (s->tool_calls != NULL) return OK;
    s->single_call = present(json_get(given, "function_call"));
    if (s->single_call != NULL && !json_is_object(s->single_call)) {
        return refuse(r->e, s->i_given, ".function_call", "must be an object");
    }
    return OK;
}

static int read_task(reader *r, chat_source *s, const json *given) {
    const json *task = present(json_get(given, "task"));
    if (task == NULL) return OK;
    if (!r->c.settings->allows_tasks) {
        return refuse(r->e, s->i_given, ".task", "quick tasks are switched off on this server");
    }
    if (!json_is_string(task)) return refuse(r->e, s->i_given, ".task", "must be text");
    if (json_next(given) != NULL) {
        return refuse(r->e, s->i_given, ".task", "only the last message may have a task");
    }
    s->task = json_str(task);
    return OK;
}

static int read_message(reader *r, const json *given) {
    chat_role role = ROLE_OTHER;
    if (!json_is_object(given)) return refuse(r->e, r->n_given, "", "must be an object");
    int rc = read_role(r, given, &role);
    if (rc != OK) return rc;
    if (role == ROLE_TOOL && !r->has_assistant) {
        return refuse(
            r->e, r->n_given, ".role", "a tool result needs an assistant message before it");
    }
    chat_source *s = conversation_add(&r->c, role);
    s->i_given = r->n_given++;
    const char *id = json_str(json_get(given, "tool_call_id"));
    if (id != NULL) s->tool_call_id = id;
    rc = read_content(r, s, json_get(given, "content"));
    if (rc == OK) rc = read_task(r, s, given);
    if (rc != OK || role != ROLE_ASSISTANT) return rc;
    r->has_assistant = true;
    rc = read_reasoning(r, s, given);
    return rc == OK ? read_calls(r, s, given) : rc;
}

/* --- tools and format --- */

static int read_tools(reader *r) {
    const json *tools = present(json_get(r->body, "tools"));
    const json *choice = json_get(r->body, "tool_choice");
    const char *param = "tools";
    if (tools == NULL) {
        tools = present(json_get(r->body, "functions"));
        choice = json_get(r->body, "function_call");
        param = "functions";
    }
    if (tools != NULL && !json_is_array(tools)) {
        return refuse_param(r->e, param, "must be a list of definitions");
    }
    JSON_EACH(tool, tools) {
        if (!json_is_object(tool)) {
            return refuse_param(r->e, param, "every definition must be an object");
        }
    }
    bool has_any = false;
    JSON_EACH(tool, tools) {
        has_any |= tool_is_definition(tool);
    }
    if (has_any && !str_eq(json_str(choice), "none")) r->tools = tools;
    return OK;
}

static int read_format(reader *r) {
    const json *format = present(json_get(r->body, "response_format"));
    if (format == NULL) return OK;
    const char *type = json_str(json_get(format, "type"));
    if (str_eq(type, "text") || str_eq(type, "json_object")) return OK;
    if (!str_eq(type, "json_schema")) {
        return refuse_param(
            r->e, "response_format.type", "must be text, json_object or json_schema");
    }
    const json *schema = json_get(json_get(format, "json_schema"), "schema");
    if (!json_is_object(schema) && !json_is_bool(schema)) {
        return refuse_param(r->e, "response_format.json_schema.schema", "must be a JSON schema");
    }
    r->format = schema;
    return OK;
}

static int read_flag(reader *r, const json *from, const char *key, bool *out) {
    const json *v = present(json_get(from, key));
    if (v == NULL) return OK;
    if (!json_is_bool(v)) return refuse_param(r->e, key, "must be true or false");
    *out = json_is_true(v);
    return OK;
}

/* --- the whole --- */

/* Tools and format belong to message 0 if it is a system message, else to an empty one before. */
static void place_tools(reader *r, const json *first) {
    if (r->tools == NULL && r->format == NULL) return;
    const char *role = json_str(json_get(first, "role"));
    if (!str_eq(role, "system") && !str_eq(role, "developer")) {
        (void)conversation_add(&r->c, ROLE_SYSTEM);
    }
}

static int read_messages(reader *r) {
    const json *messages = json_get(r->body, "messages");
    if (!json_is_array(messages) || json_count(messages) == 0) {
        return refuse_param(r->e, "messages", "must be a list with at least one message");
    }
    place_tools(r, json_first(messages));
    int rc = OK;
    JSON_EACH(given, messages) {
        if (rc == OK) rc = read_message(r, given);
    }
    if (rc != OK) return rc;
    if (r->tools != NULL || r->format != NULL) {
        r->c.sources[0].tools = r->tools;
        r->c.sources[0].format = r->format;
        r->c.sources[0].flat_tools = true;
    }
    return OK;
}

/* continue_final_message, prefix and add_generation_prompt. */
static int read_ending(reader *r) {
    conversation *c = &r->c;
    bool continues = false, opens = true;
    const json *last = NULL;
    JSON_EACH(given, json_get(r->body, "messages")) last = given;
    int rc = read_flag(r, r->body, "continue_final_message", &continues);
    if (rc == OK) rc = read_flag(r, r->body, "add_generation_prompt", &opens);
    bool is_assistant = c->sources[c->n_sources - 1].role == ROLE_ASSISTANT;
    if (is_assistant && json_is_true(json_get(last, "prefix"))) continues = true;
    if (rc != OK) return rc;
    if (continues && !is_assistant) {
        return refuse_param(
            r->e, "messages", "only a last message of the assistant can be continued");
    }
    c->continues_last = continues;
    c->always_opens = true;
    c->never_opens = !opens;
    return OK;
}

int chat_render_body(const json *body, const chat_settings *settings, chat_prompt *out, err *e) {
    static const chat_settings plain = {0};
    reader r = {.body = body, .e = e};
    r.c.settings = settings != NULL ? settings : &plain;
    if (!json_is_object(body)) return err_set(e, ERR_ARG, "the body must be a JSON object");
    int rc = chat_thinking_of(body, r.c.settings, &r.c.is_thinking, &r.c.budget, e);
    bool drops = true;
    const json *kwargs = json_get(body, "chat_template_kwargs");
    if (rc == OK) rc = read_flag(&r, kwargs, "drop_thinking", &drops);
    r.c.drops_reasoning = drops;
    if (rc == OK) rc = read_tools(&r);
    if (rc == OK) rc = read_format(&r);
    if (rc == OK) rc = read_messages(&r);
    if (rc == OK) rc = read_ending(&r);
    if (rc == OK) {
        conversation_prepare(&r.c, 0);
        rc = conversation_render(&r.c, out, e);
    }
    conversation_release(&r.c);
    return rc;
}
