/* The release's rendering: messages in its own form (chat.md 4). */
#include <string.h>

#include "engine/base/str.h"
#include "engine/text/chat_internal.h"

static bool names_source(const json *v) {
    const char *text = json_str(v);
    return json_is_object(v) ? json_count(v) > 0 : text != NULL && text[0] != 0;
}

bool part_is_image(const json *part, bool *has_source) {
    const char *type = json_str(json_get(part, "type"));
    const json *source = NULL;
    if (str_eq(type, "image_url") || str_eq(type, "input_image")) {
        source = json_get(part, "image_url");
        if (json_is_object(source)) source = json_get(source, "url");
    } else if (str_eq(type, "image")) {
        static const char *const keys[] = {"source", "url", "data"};
        for (size_t i = 0; i < 3 && !names_source(source); i++)
            source = json_get(part, keys[i]);
    } else {
        return false;
    }
    *has_source = names_source(source);
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

static int read_text_block(chat_source *s, const json *block, err *e) {
    const char *text = json_str(json_get(block, "text"));
    if (has_placeholder(text)) {
        return refuse(e, s->i_given, "content", "the image placeholder is typed in a text");
    }
    source_add_part(s, (chat_part){.kind = PART_TEXT, .text = text != NULL ? text : ""});
    return OK;
}

/* Any block but a tool result. Blocks that have no text show up in what becomes a user turn only,
 * and there not in the list of a tool message. */
static int read_block(chat_source *s, const json *block, bool shows_others, err *e) {
    bool has_source = false;
    const char *type = json_str(json_get(block, "type"));
    if (part_is_image(block, &has_source) && !str_eq(type, "input_image")) {
        if (!has_source) return refuse(e, s->i_given, "content", "an image has no valid source");
        source_add_part(s, (chat_part){.kind = PART_IMAGE, .image = block});
        return OK;
    }
    if (str_eq(type, "text")) return read_text_block(s, block, e);
    if (!shows_others) return OK;
    if (!json_is_object(block)) return refuse(e, s->i_given, "content", "a block is no object");
    source_add_part(s, (chat_part){.kind = PART_UNSUPPORTED, .text = type != NULL ? type : "None"});
    return OK;
}

static int read_blocks(chat_source *s, const json *list, bool shows_others, err *e) {
    int rc = OK;
    JSON_EACH(block, list) {
        if (rc == OK) rc = read_block(s, block, shows_others, e);
    }
    return rc;
}

/* The next stretch of the user message that was added last. */
static chat_source *add_stretch(conversation *c, chat_role role) {
    size_t i = c->sources[c->n_sources - 1].i_given;
    chat_source *s = conversation_add(c, role);
    s->i_given = i;
    s->continues = true;
    return s;
}

static void add_text(chat_source *s, const char *text) {
    source_add_part(s, (chat_part){.kind = PART_TEXT, .text = text});
}

/* A result among the blocks of a user message. */
static int read_result(conversation *c, const json *block, err *e) {
    chat_source *s = add_stretch(c, ROLE_TOOL);
    const char *id = json_str(json_get(block, "tool_use_id"));
    const json *content = json_get(block, "content");
    if (id != NULL) s->tool_call_id = id;
    if (json_is_array(content)) return read_blocks(s, content, true, e);
    if (json_is_string(content)) add_text(s, json_str(content));
    return OK;
}

/* Blocks of a user message: its results are stretches of their own. */
static int read_user_blocks(conversation *c, const json *list, err *e) {
    int rc = OK;
    bool after_result = false;
    JSON_EACH(block, list) {
        bool is_result = str_eq(json_str(json_get(block, "type")), "tool_result");
        if (rc == OK && is_result) rc = read_result(c, block, e);
        if (rc == OK && !is_result) {
            chat_source *s =
                after_result ? add_stretch(c, ROLE_USER) : &c->sources[c->n_sources - 1];
            rc = read_block(s, block, true, e);
        }
        after_result = is_result;
    }
    return rc;
}

static int read_content(chat_source *s, const json *content, err *e) {
    const char *text = json_str(content);
    if (has_placeholder(text)) {
        return refuse(e, s->i_given, "content", "the image placeholder is typed in a text");
    }
    if (json_is_array(content)) return read_blocks(s, content, false, e);
    /* Python's word for a null, where the release prints whatever it is given. */
    bool prints_null = s->role == ROLE_TOOL || s->role == ROLE_REMINDER;
    bool is_null = content != NULL && json_is_null(content);
    add_text(s, text != NULL ? text : is_null && prints_null ? "None" : "");
    return OK;
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

/* What Python takes for false is not printed. */
static const json *unless_empty(const json *v) {
    bool has_members = json_is_object(v) || json_is_array(v);
    if (present(v) == NULL || (has_members && json_count(v) == 0)) return NULL;
    if (json_is_bool(v) && !json_is_true(v)) return NULL;
    return str_eq(json_str(v), "") ? NULL : v;
}

static int read_message(conversation *c, const json *given, size_t i, err *e) {
    chat_source *s = conversation_add(c, read_role(json_str(json_get(given, "role"))));
    s->i_given = i;
    s->reasoning = json_str(json_get(given, "reasoning_content"));
    s->tool_calls = s->role == ROLE_ASSISTANT ? present(json_get(given, "tool_calls")) : NULL;
    s->tools = present(json_get(given, "tools"));
    s->format = unless_empty(json_get(given, "response_format"));
    s->task = json_str(json_get(given, "task"));
    s->omits_eos = json_is_true(json_get(given, "wo_eos"));
    const char *id = json_str(json_get(given, "tool_call_id"));
    if (id != NULL) s->tool_call_id = id;
    if (has_placeholder(s->reasoning)) {
        return refuse(e, i, "reasoning_content", "the image placeholder is typed in a text");
    }
    const json *content = json_get(given, "content");
    bool has_blocks = s->role == ROLE_USER && json_is_array(content);
    return has_blocks ? read_user_blocks(c, content, e) : read_content(s, content, e);
}

static int read_effort(const chat_reference *r, int *budget, err *e) {
    const json *v = present(r->effort);
    int64_t number = 0;
    *budget = CHAT_DEFAULT_BUDGET;
    if (v == NULL) return OK;
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
    size_t n_context, i = 0;
    int rc = read_effort(r, &c.budget, e);
    JSON_EACH(given, r->context) {
        if (rc == OK) rc = read_message(&c, given, i++, e);
    }
    n_context = c.n_sources;
    i = 0;
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
