#include "engine/api/items.h"

#include "engine/base/mem.h"
#include "engine/base/str.h"

void items_release(items *l) {
    for (int i = 0; i < l->n; i++) {
        buf_release(&l->list[i].text);
        buf_release(&l->list[i].name);
        buf_release(&l->list[i].logprobs);
    }
    mem_free(l->list);
    *l = (items){0};
}

static item *add(items *l, item_kind kind) {
    if (l->n == l->cap) {
        l->cap = l->cap > 0 ? l->cap * 2 : 4;
        l->list = mem_realloc(l->list, (size_t)l->cap * sizeof *l->list);
    }
    item *it = &l->list[l->n++];
    *it = (item){
        .kind = kind, .text = BUF_INIT, .name = BUF_INIT, .logprobs = BUF_INIT, .i_call = -1};
    return it;
}

static item *find_call(items *l, int i_call) {
    for (int i = l->n; i-- > 0;) {
        if (l->list[i].kind == ITEM_CALL && l->list[i].i_call == i_call) return &l->list[i];
    }
    return NULL;
}

static item *take_text(items *l, item_kind kind, const gen_event *event, bool *is_new) {
    item *it = l->n > 0 && l->list[l->n - 1].kind == kind ? &l->list[l->n - 1] : NULL;
    *is_new = it == NULL;
    if (it == NULL) it = add(l, kind);
    buf_append(&it->text, event->text, event->len);
    return it;
}

static item *begin_call(items *l, const gen_event *event) {
    item *it = add(l, ITEM_CALL);
    it->i_call = event->i_call;
    str_copy(it->call_id, sizeof it->call_id, event->call_id);
    buf_append(&it->name, event->text, event->len);
    return it;
}

item *items_take(items *l, const gen_event *event, bool *is_new) {
    item *it = NULL;
    *is_new = false;
    switch (event->kind) {
    case GEN_REASONING:
        return take_text(l, ITEM_REASONING, event, is_new);
    case GEN_CONTENT:
        return take_text(l, ITEM_TEXT, event, is_new);
    case GEN_CALL:
        *is_new = true;
        return begin_call(l, event);
    case GEN_ARGUMENTS:
        it = find_call(l, event->i_call);
        if (it != NULL) buf_append(&it->text, event->text, event->len);
        return it;
    case GEN_CALL_END:
        it = find_call(l, event->i_call);
        if (it != NULL) it->is_ended = true;
        return it;
    case GEN_CALL_DROP:
        it = find_call(l, event->i_call);
        if (it != NULL) it->is_dropped = true;
        return it;
    default:
        return NULL;
    }
}

bool item_is_whole(const item *it) {
    json *v = NULL;
    if (it->kind != ITEM_CALL) return true;
    if (!it->is_ended || it->is_dropped) return false;
    if (json_parse(buf_cstr(&it->text), it->text.len, NULL, &v, NULL) != OK) return false;
    bool is_object = json_is_object(v);
    json_free(v);
    return is_object;
}

int items_calls(const items *l) {
    int n = 0;
    for (int i = 0; i < l->n; i++) {
        n += l->list[i].kind == ITEM_CALL;
    }
    return n;
}

void items_join(const items *l, item_kind kind, buf *out) {
    for (int i = 0; i < l->n; i++) {
        if (l->list[i].kind == kind)
            buf_append(out, buf_cstr(&l->list[i].text), l->list[i].text.len);
    }
}
