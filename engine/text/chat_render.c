/* Rendering of prepared messages (chat.md 4.2). */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/chat_internal.h"

typedef struct render {
    const conversation *c;
    chat_prompt *out;
    ptrdiff_t last_user; /* index L, -1 none */
    err *e;
} render;

static ptrdiff_t find_last_user(const conversation *c) {
    for (size_t i = c->n_messages; i-- > 0;) {
        chat_role role = c->messages[i].role;
        if (role == ROLE_USER || (role == ROLE_SYSTEM && i > 0)) return (ptrdiff_t)i;
    }
    return -1;
}

static void note_image(chat_prompt *p, const json *image) {
    if (p->n_images == p->images_cap) {
        p->images_cap = p->images_cap < 4 ? 4 : p->images_cap * 2;
        p->images = mem_realloc(p->images, p->images_cap * sizeof *p->images);
    }
    p->images[p->n_images++] = image;
}

static int part(chat_prompt *p, const chat_part *x) {
    int rc;
    switch (x->kind) {
    case PART_TEXT:
        return prompt_text(p, x->text);
    case PART_IMAGE:
        note_image(p, x->image);
        return prompt_template(p, CHAT_IMAGE);
    case PART_UNSUPPORTED:
        rc = prompt_template(p, "[Unsupported ");
        if (rc == OK) rc = prompt_text(p, x->text);
        return rc == OK ? prompt_template(p, "]") : rc;
    }
    return OK;
}

/* joiner_is_template: user turns and results are joined by the template, other content is one. */
static int parts(chat_prompt *p, const chat_source *s, bool joiner_is_template) {
    int rc = OK;
    for (size_t i = 0; i < s->n_parts && rc == OK; i++) {
        if (i > 0) rc = prompt_bytes(p, joiner_is_template, "\n\n", 2);
        if (rc == OK) rc = part(p, &s->parts[i]);
    }
    return rc;
}

static int user_turn(render *r, const chat_message *m) {
    chat_prompt *p = r->out;
    int rc = prompt_template(p, CHAT_USER);
    for (size_t i = 0; i < m->n_blocks && rc == OK; i++) {
        const chat_block *b = &m->blocks[i];
        if (i > 0) rc = prompt_template(p, "\n\n");
        if (rc == OK && b->is_result) rc = prompt_template(p, "<tool_result>");
        if (rc == OK) rc = parts(p, b->from, true);
        if (rc == OK && b->is_result) rc = prompt_template(p, "</tool_result>");
    }
    return rc;
}

static int system_turn(render *r, const chat_source *s, size_t i) {
    chat_prompt *p = r->out;
    int rc = i > 0 ? prompt_template(p, CHAT_SYSTEM) : OK;
    if (rc == OK) rc = parts(p, s, false);
    if (rc == OK && json_count(s->tools) > 0) rc = render_tools(p, s, r->e);
    if (rc == OK && s->format != NULL) {
        rc = prompt_template(p,
            "\n\n## Response Format:\n\nYou MUST strictly adhere to the following "
            "schema to reply:\n");
        if (rc == OK) rc = prompt_json(p, s->format);
    }
    return rc;
}

static bool is_empty(const chat_source *s) {
    for (size_t i = 0; i < s->n_parts; i++) {
        if (s->parts[i].kind != PART_TEXT || s->parts[i].text[0] != 0) return false;
    }
    return true;
}

static int assistant_turn(render *r, const chat_message *m, size_t i) {
    const conversation *c = r->c;
    const chat_source *s = m->source;
    chat_prompt *p = r->out;
    bool is_open = c->continues_last && i + 1 == c->n_messages;
    bool after_task = i > 0 && c->messages[i - 1].has_task;
    int rc = OK;
    if (c->is_thinking && !after_task && (!c->drops_reasoning || (ptrdiff_t)i > r->last_user)) {
        const char *reasoning = m->loses_reasoning || s->reasoning == NULL ? "" : s->reasoning;
        rc = prompt_text(p, reasoning);
        bool only_reasons = is_open && reasoning[0] != 0 && is_empty(s) && s->tool_calls == NULL &&
                            s->single_call == NULL;
        if (only_reasons) {
            p->starts_in_reasoning = true;
            return rc;
        }
        if (rc == OK) rc = prompt_template(p, CHAT_THINK_CLOSE);
    }
    if (rc == OK) rc = parts(p, s, false);
    if (rc == OK) rc = render_calls(p, c, s, r->e);
    if (rc != OK || is_open || s->omits_eos) return rc;
    return prompt_template(p, CHAT_EOS);
}

static int think_token(render *r, bool opens) {
    r->out->starts_in_reasoning = opens;
    return prompt_template(r->out, opens ? CHAT_THINK_OPEN : CHAT_THINK_CLOSE);
}

static int task_tokens(render *r, const char *task) {
    static const char *const names[] = {
        "action", "query", "authority", "domain", "title", "read_url"};
    chat_prompt *p = r->out;
    int rc = OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(task, names[i]) != 0) continue;
        if (i == 0) {
            rc = prompt_template(p, CHAT_ASSISTANT);
            if (rc == OK) rc = think_token(r, r->c->is_thinking);
        }
        p->starts_in_reasoning = false;
        if (rc == OK) rc = prompt_template(p, "<" CHAT_BAR);
        if (rc == OK) rc = prompt_template(p, task);
        return rc == OK ? prompt_template(p, CHAT_BAR ">") : rc;
    }
    rc = err_set(r->e, ERR_ARG, "task '%.40s' is unknown", task);
    err_place(r->e, "messages");
    return rc;
}

/* What comes after message i: a task token, the assistant's header, or nothing. */
static int after_message(render *r, const chat_message *m, size_t i) {
    const conversation *c = r->c;
    bool is_last = i + 1 == c->n_messages;
    if (!is_last) {
        chat_role next = c->messages[i + 1].role;
        if (next != ROLE_ASSISTANT && next != ROLE_REMINDER) return OK;
    } else if (c->never_opens || c->continues_last) {
        return OK;
    }
    if (m->has_task) return task_tokens(r, m->source->task);
    bool opens = m->role == ROLE_USER || (m->role == ROLE_SYSTEM && i > 0);
    bool is_asked = is_last && c->always_opens && m->role != ROLE_REMINDER;
    if (!opens && !is_asked) return OK;
    bool thinks = c->is_thinking &&
                  (!c->drops_reasoning || (ptrdiff_t)i >= r->last_user || (is_asked && !opens));
    int rc = prompt_template(r->out, CHAT_ASSISTANT);
    return rc == OK ? think_token(r, thinks) : rc;
}

static int before_first(render *r, const chat_message *m) {
    const conversation *c = r->c;
    if (m->role != ROLE_SYSTEM && !c->is_thinking) return OK;
    int rc = prompt_template(r->out, CHAT_SYSTEM);
    if (rc != OK || !c->is_thinking) return rc;
    buf line = BUF_INIT;
    rc = buf_printf(&line,
        "Reasoning Effort: %d (range 1-100, the higher the value, the more "
        "thorough the reasoning)\n\n",
        c->budget);
    if (rc == OK) rc = prompt_template(r->out, buf_cstr(&line));
    buf_release(&line);
    return rc;
}

static int message(render *r, size_t i) {
    const chat_message *m = &r->c->messages[i];
    int rc = i == 0 ? before_first(r, m) : OK;
    if (rc != OK) return rc;
    /* What the header before it opened ends here; only a reminder stands inside it. */
    if (m->role != ROLE_REMINDER) r->out->starts_in_reasoning = false;
    switch (m->role) {
    case ROLE_SYSTEM:
        rc = system_turn(r, m->source, i);
        break;
    case ROLE_USER:
        rc = user_turn(r, m);
        break;
    case ROLE_ASSISTANT:
        rc = assistant_turn(r, m, i);
        break;
    case ROLE_REMINDER:
        rc = prompt_template(r->out, CHAT_REMINDER);
        if (rc == OK) rc = parts(r->out, m->source, false);
        break;
    default:
        rc = err_set(r->e, ERR_ARG, "messages[%zu] has a role that has no place in a prompt",
            m->source->i_given);
        err_place(r->e, "messages[%zu].role", m->source->i_given);
        return rc;
    }
    return rc == OK ? after_message(r, m, i) : rc;
}

int conversation_render(const conversation *c, chat_prompt *out, err *e) {
    render r = {.c = c, .out = out, .last_user = find_last_user(c), .e = e};
    out->is_thinking = c->is_thinking;
    out->budget = c->is_thinking ? c->budget : 0;
    int rc = c->omits_bos || c->n_context > 0 ? OK : prompt_template(out, CHAT_BOS);
    for (size_t i = c->n_context; i < c->n_messages && rc == OK; i++)
        rc = message(&r, i);
    for (size_t i = 0; i < c->n_sources; i++) {
        if (c->sources[i].role == ROLE_SYSTEM && json_count(c->sources[i].tools) > 0) {
            out->has_tools = true;
        }
    }
    if (rc == ERR_LIMIT && e != NULL && e->code == 0) {
        return err_set(e, rc, "the prompt is longer than %zu bytes", out->text.max);
    }
    return rc;
}
