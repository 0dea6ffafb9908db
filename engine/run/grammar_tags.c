/* The parameters of one call (chat.md 4.3): the same rules as an object, written as tags. */
#include <string.h>

#include "engine/run/grammar_internal.h"
#include "engine/run/grammar_trie.h"

/* Text of the phases that are plain text, and what comes behind it. */
static const char *phase_text(uint8_t phase) {
    switch (phase) {
    case TAGS_END:
        return " invoke>";
    case TAGS_NAME:
        return " parameter name=\"";
    case TAGS_ATTRIBUTE:
        return " string=\"";
    case TAGS_TRUE:
        return "true\">";
    case TAGS_FALSE:
        return "false\">";
    case TAGS_VALUE:
        return "</";
    case TAGS_VALUE_END:
        return " parameter>\n";
    default:
        return NULL;
    }
}

void tags_begin(grammar_state *s, uint32_t node, uint32_t parent, thread_list *l) {
    frame f = {.kind = FRAME_TAGS, .node = node, .parent = parent};
    object_init(s, &f);
    f.phase = TAGS_LINE;
    if (f.u.object.bits != 0) list_push(s, l, &f);
}

static void push_phase(grammar_state *s, const frame *f, uint8_t phase) {
    frame next = *f;
    next.phase = phase;
    next.space = 0;
    list_push(s, &s->out, &next);
}

/* The value of a parameter with string="true": each kind of string it may be. */
static void begin_texts(grammar_state *s, const frame *f) {
    const value_node *v = &s->g->values[f->u.object.child];
    uint32_t index = state_push(s, f);
    for (uint32_t i = 0; i < v->n_choices && index != 0; i++) {
        if (v->choices[i].kind != VALUE_STRING) continue;
        text_begin(s, v->choices[i].index, index, &s->out);
    }
}

static bool has_kind(const grammar_state *s, uint32_t value, bool is_string) {
    const value_node *v = &s->g->values[value];
    for (uint32_t i = 0; i < v->n_choices; i++) {
        if ((v->choices[i].kind == VALUE_STRING) == is_string) return true;
    }
    return false;
}

/* The text of a phase is complete. */
static void text_done(grammar_state *s, frame *f) {
    uint32_t index;
    switch (f->phase) {
    case TAGS_END:
        index = state_push(s, f);
        if (index != 0) frame_done(s, index, &s->out);
        break;
    case TAGS_NAME:
        f->space = 0;
        index = state_push(s, f);
        if (index != 0) object_begin_keys(s, index, &s->out);
        break;
    case TAGS_ATTRIBUTE:
        if (has_kind(s, f->u.object.child, true)) push_phase(s, f, TAGS_TRUE);
        if (has_kind(s, f->u.object.child, false)) push_phase(s, f, TAGS_FALSE);
        break;
    case TAGS_TRUE:
        begin_texts(s, f);
        break;
    case TAGS_FALSE: {
        index = state_push(s, f);
        frame v = {.kind = FRAME_VALUE,
            .node = f->u.object.child,
            .parent = index,
            .flags = FLAG_NO_STRINGS};
        if (index != 0) list_push(s, &s->out, &v);
        break;
    }
    case TAGS_VALUE:
        push_phase(s, f, TAGS_VALUE_MARK);
        break;
    default:
        push_phase(s, f, TAGS_LINE);
        break;
    }
}

static void phase_byte(grammar_state *s, frame *f, const char *text, uint8_t byte) {
    if ((uint8_t)text[f->space] != byte) return;
    f->space++;
    if (text[f->space] == 0) {
        text_done(s, f);
    } else {
        list_push(s, &s->out, f);
    }
}

/* Behind "<" comes another parameter, or the end of a call that has some: a tool without parameters
 * has only the empty line. */
static bool may_go_on(grammar_state *s, uint32_t index, const frame *f) {
    return object_may_add(s, index) || (f->u.object.n > 0 && object_may_close(s, f));
}

void tags_byte(grammar_state *s, uint32_t index, uint8_t byte) {
    frame f = *state_frame(s, index);
    const char *text = phase_text(f.phase);
    if (text != NULL) {
        phase_byte(s, &f, text, byte);
        return;
    }
    bool has_none = f.u.object.n == 0;
    switch (f.phase) {
    case TAGS_LINE:
        if (byte == '<' && may_go_on(s, index, &f)) push_phase(s, &f, TAGS_LESS);
        if (byte == '\n' && has_none && object_may_close(s, &f)) push_phase(s, &f, TAGS_EMPTY);
        break;
    case TAGS_LESS:
        if (byte == '/' && !has_none && object_may_close(s, &f)) push_phase(s, &f, TAGS_END_MARK);
        break;
    case TAGS_EMPTY:
        if (byte == '<') push_phase(s, &f, TAGS_EMPTY_LESS);
        break;
    case TAGS_EMPTY_LESS:
        if (byte == '/') push_phase(s, &f, TAGS_END_MARK);
        break;
    default:
        break;
    }
}

void tags_token(grammar_state *s, uint32_t index, int32_t token) {
    frame f = *state_frame(s, index);
    if (token != s->g->trie->dsml) return;
    if (f.phase == TAGS_LESS && object_may_add(s, index)) push_phase(s, &f, TAGS_NAME);
    if (f.phase == TAGS_END_MARK) push_phase(s, &f, TAGS_END);
    if (f.phase == TAGS_VALUE_MARK) push_phase(s, &f, TAGS_VALUE_END);
}
