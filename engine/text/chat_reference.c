/* The release's rendering: messages in its own form (chat.md 4). */
#include <string.h>

#include "engine/base/str.h"
#include "engine/text/chat_internal.h"

bool part_is_image(const json *part, bool *has_source) {
    const char *type = json_str(json_get(part, "type"));
    const json *source = NULL;
    if (str_eq(type, "image_url") || str_eq(type, "input_image")) {
        source = json_get(part, "image_url");
        if (json_is_object(source)) source = json_get(source, "url");
    } else if (str_eq(type, "image")) {
        static const char *const keys[] = {"source", "url", "data"};
        for (size_t i = 0; i < 3 && (source == NULL || json_is_null(source)); i++) {
            source = json_get(part, keys[i]);
        }
    } else {
        return false;
    }
    const char *text = json_str(source);
    *has_source = json_is_object(source) ? json_count(source) > 0 : text != NULL && text[0] != 0;
    return true;
}

static int refuse(err *e, size_t i, const char *field, const char *why) {
    int rc = err_set(e, ERR_ARG, "messages[%zu].%s: %s", i, field, why);
    err_place(e, "messages[%zu].%s", i, field);
    return rc;
}

static bool has_placeholder(const char *text) {
    return text != NULL && strstr(text, CHAT_IMAGE) != NULL;
}

static int read_part(chat_source *s, const json *part, err *e) {
    bool has_source = false;
    const char *type = json_str(json_get(part, "type"));
    if (part_is_image(part, &has_source)) {
        if (!has_source) return refuse(e, s->i_given, "content", "an image has no valid source");
        source_add_part(s, (chat_part){.kind = PART_IMAGE, .image = part});
        return OK;
    }
    if (!str_eq(type, "text")) {
        source_add_part(
            s, (chat_part){.kind = PART_UNSUPPORTED, .text = type != NULL ? type : "None"});
        return OK;
    }
    const char *text = json_str(json_get(part, "text"));
    if (has_placeholder(text)) {
        return refuse(e, s->i_given, "content", "the image placeholder is typed in a text");
    }
    source_add_part(s, (chat_part){.kind = PART_TEXT, .text = text != NULL ? text : ""});
    return OK;
}

static int read_content(chat_source *s, const json *content, err *e) {
    const char *text = json_str(content);
    if (has_placeholder(text)) {
        return refuse(e, s->i_given, "content", "the image placeholder is typed in a text");
    }
    if (text != NULL) {
        source_add_part(s, (chat_part){.kind = PART_TEXT, .text = text});
        return OK;
    }
    int rc = OK;
    JSON_EACH(part, content) {
        if (rc == OK) rc = read_part(s, part, e);
    }
    return rc;
}

static chat_role read_role(const char *name) {
    static const struct {
        const char *name;
        chat_role role;
    } roles[] = {
        {"system", ROLE_SYSTEM},
        {"user", ROLE_USER},
        {"assistant", ROLE_ASSISTANT},
        {"tool", ROLE_TOOL},
        {"latest_reminder", ROLE_REMINDER},
        {"direct_search_results", ROLE_SEARCH_RESULTS},
    };
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (str_eq(name, roles[i].name)) return roles[i].role;
    }
    return ROLE_OTHER;
}

static const json *present(const json *v) {
    return v == NULL || json_is_null(v) ? NULL : v;
}

static int read_message(conversation *c, const json *given, size_t i, err *e) {
    chat_source *s = conversation_add(c, read_role(json_str(json_get(given, "role"))));
    s->i_given = i;
    s->reasoning = json_str(json_get(given, "reasoning_content"));
    s->tool_calls = s->role == ROLE_ASSISTANT ? present(json_get(given, "tool_calls")) : NULL;
    s->tools = present(json_get(given, "tools"));
    s->format = present(json_get(given, "response_format"));
    s->task = json_str(json_get(given, "task"));
    s->omits_eos = json_is_true(json_get(given, "wo_eos"));
    const char *id = json_str(json_get(given, "tool_call_id"));
    if (id != NULL) s->tool_call_id = id;
    if (has_placeholder(s->reasoning)) {
        return refuse(e, i, "reasoning_content", "the image placeholder is typed in a text");
    }
    return read_content(s, json_get(given, "content"), e);
}

static int read_effort(const chat_reference *r, int *budget, err *e) {
    const json *v = present(r->effort);
    int64_t number = 0;
    *budget = CHAT_DEFAULT_BUDGET;
    if (v == NULL || !r->is_thinking) return OK;
    if (str_eq(json_str(v), "low"))
        *budget = 50;
    else if (str_eq(json_str(v), "high"))
        *budget = 75;
    else if (str_eq(json_str(v), "max"))
        *budget = 100;
    else if (json_i64(v, &number) == OK && number >= 1 && number <= 100)
        *budget = (int)number;
    else {
        int rc = err_set(e, ERR_ARG, "reasoning effort must be low, high, max or 1 to 100");
        err_place(e, "reasoning_effort");
        return rc;
    }
    return OK;
}

int chat_render_reference(const chat_reference *r, chat_prompt *out, err *e) {
    conversation c = {.is_thinking = r->is_thinking,
        .drops_reasoning = !r->keeps_reasoning,
        .omits_bos = r->omits_bos};
    size_t n_context = 0, i = 0;
    int rc = read_effort(r, &c.budget, e);
    JSON_EACH(given, r->context) {
        if (rc == OK) rc = read_message(&c, given, n_context++, e);
    }
    JSON_EACH(given, r->messages) {
        if (rc == OK) rc = read_message(&c, given, i++, e);
    }
    if (rc == OK) {
        conversation_prepare(&c, n_context);
        rc = conversation_render(&c, out, e);
    }
    conversation_release(&c);
    return rc;
}
