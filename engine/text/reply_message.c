#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/reply.h"

static reply_call *call_by_id(reply_message *m, const char *id) {
    for (size_t i = m->n_calls; i-- > 0;) {
        if (strcmp(m->calls[i].id, id) == 0) return &m->calls[i];
    }
    return NULL;
}

static void add_call(reply_message *m, const reply_event *ev) {
    if (m->n_calls == m->calls_cap) {
        m->calls_cap = m->calls_cap < 4 ? 4 : m->calls_cap * 2;
        m->calls = mem_realloc(m->calls, m->calls_cap * sizeof *m->calls);
    }
    m->calls[m->n_calls++] = (reply_call){.id = mem_strdup(ev->id),
        .name = mem_strndup(ev->text, ev->len),
        .arguments = BUF_INIT,
        .raw = BUF_INIT};
}

static void release_call(reply_call *c) {
    mem_free(c->id);
    mem_free(c->name);
    buf_release(&c->arguments);
    buf_release(&c->raw);
}

static void drop_call(reply_message *m, const char *id) {
    reply_call *c = call_by_id(m, id);
    if (c == NULL) return;
    release_call(c);
    size_t after = m->n_calls - (size_t)(c - m->calls) - 1;
    memmove(c, c + 1, after * sizeof *c);
    m->n_calls--;
}

int reply_message_take(void *message, const reply_event *ev) {
    reply_message *m = message;
    reply_call *c = NULL;
    switch (ev->kind) {
    case REPLY_EVENT_REASONING:
        return buf_append(&m->reasoning, ev->text, ev->len);
    case REPLY_EVENT_CONTENT:
        return buf_append(&m->content, ev->text, ev->len);
    case REPLY_EVENT_CALL:
        add_call(m, ev);
        return OK;
    case REPLY_EVENT_ARGUMENTS:
        c = call_by_id(m, ev->id);
        return c != NULL ? buf_append(&c->arguments, ev->text, ev->len) : OK;
    case REPLY_EVENT_CALL_END:
        c = call_by_id(m, ev->id);
        return c != NULL ? buf_append(&c->raw, ev->text, ev->len) : OK;
    case REPLY_EVENT_CALL_DROP:
        drop_call(m, ev->id);
        return OK;
    }
    return OK;
}

void reply_message_release(reply_message *m) {
    buf_release(&m->reasoning);
    buf_release(&m->content);
    for (size_t i = 0; i < m->n_calls; i++)
        release_call(&m->calls[i]);
    mem_free(m->calls);
    *m = (reply_message){0};
}
