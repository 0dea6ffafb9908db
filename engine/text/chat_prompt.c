#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/chat_internal.h"

void chat_prompt_release(chat_prompt *p) {
    buf_release(&p->text);
    mem_free(p->segments);
    mem_free(p->images);
    *p = (chat_prompt)CHAT_PROMPT_INIT;
}

int prompt_bytes(chat_prompt *p, bool is_template, const char *text, size_t len) {
    if (len == 0) return OK;
    size_t start = p->text.len;
    int rc = buf_append(&p->text, text, len);
    if (rc != OK) return rc;
    chat_segment *last = p->n_segments > 0 ? &p->segments[p->n_segments - 1] : NULL;
    if (last != NULL && last->is_template == is_template) {
        last->len += len;
        return OK;
    }
    if (p->n_segments == p->segments_cap) {
        p->segments_cap = p->segments_cap < 16 ? 16 : p->segments_cap * 2;
        p->segments = mem_realloc(p->segments, p->segments_cap * sizeof *p->segments);
    }
    p->segments[p->n_segments++] = (chat_segment){start, len, is_template};
    return OK;
}

int prompt_template(chat_prompt *p, const char *text) {
    return prompt_bytes(p, true, text, strlen(text));
}

int prompt_text(chat_prompt *p, const char *json_text) {
    int rc = OK;
    for (const char *nul; rc == OK && (nul = strstr(json_text, "\xC0\x80")) != NULL;) {
        rc = prompt_bytes(p, false, json_text, (size_t)(nul - json_text));
        if (rc == OK) rc = prompt_bytes(p, false, "", 1);
        json_text = nul + 2;
    }
    return rc == OK ? prompt_bytes(p, false, json_text, strlen(json_text)) : rc;
}

int prompt_json(chat_prompt *p, const json *v) {
    buf text = BUF_INIT;
    int rc = json_print(v, &text);
    if (rc == OK) rc = prompt_bytes(p, false, text.data, text.len);
    buf_release(&text);
    return rc;
}

int chat_prompt_encode(
    const chat_prompt *p, const tokenizer *t, bool trusts_all, token_list *out, err *e) {
    text_span *spans = mem_array(p->n_segments + 1, sizeof *spans);
    for (size_t i = 0; i < p->n_segments; i++) {
        const chat_segment *s = &p->segments[i];
        spans[i] = (text_span){p->text.data + s->start, s->len, trusts_all || s->is_template};
    }
    int rc = tokenizer_encode_spans(t, spans, p->n_segments, out, e);
    mem_free(spans);
    return rc;
}
