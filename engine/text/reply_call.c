/* Tool calls of the serving parser (chat.md 8). */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/chat.h"
#include "engine/text/reply_internal.h"

void reply_call_release(call_state *c) {
    buf_release(&c->name);
    buf_release(&c->key);
    buf_release(&c->value);
    buf_release(&c->raw);
    mem_free(c->keys);
    c->keys = NULL;
}

/* Events of calls, unless calls are to be swallowed. */
static int send(reply_parser *p, reply_event_kind kind, const char *text, size_t len) {
    return p->o.drops_calls ? OK : reply_send(p, kind, text, len);
}

static int send_argument_text(reply_parser *p, const char *text, size_t len) {
    return len > 0 ? send(p, REPLY_EVENT_ARGUMENTS, text, len) : OK;
}

static int send_arguments(reply_parser *p, const buf *b) {
    return send_argument_text(p, b->data, b->len);
}

/* Takes n bytes of the call from the head. */
static int take(reply_parser *p, size_t n) {
    int rc = reply_outer(&p->call.raw, p->in.data + p->head, n);
    p->head += n;
    return rc;
}

/* --- headers: name="N"> and name="K" string="V"> --- */

typedef struct header {
    size_t len; /* of the whole tag */
    const char *name;
    size_t name_len;
    const char *attribute; /* NULL without one */
    size_t attribute_len;
} header;

typedef enum header_result { HEADER_PARTIAL, HEADER_BROKEN, HEADER_OK } header_result;

/* Last '" string="' inside [b, b+n): the key may contain nearly anything. */
static void split_attribute(header *h) {
    static const char word[] = "string=\"";
    const size_t word_len = sizeof word - 1;
    for (size_t i = h->name_len; i-- > 0;) {
        if (h->name[i] != '"') continue;
        size_t at = i + 1;
        while (at < h->name_len && h->name[at] == ' ')
            at++;
        if (at == i + 1 || h->name_len - at < word_len) continue;
        if (memcmp(h->name + at, word, word_len) != 0) continue;
        h->attribute = h->name + at + word_len;
        h->attribute_len = h->name_len - at - word_len;
        h->name_len = i;
        return;
    }
}

/* b[0..n) begins with the tag up to its word (tag_len bytes). */
static header_result read_header(const char *b, size_t n, size_t tag_len, header *h) {
    size_t at = tag_len;
    while (at < n && b[at] == ' ')
        at++;
    int fit = reply_word(b + at, n - at, "name=\"");
    if (fit == 0 || at > REPLY_HEADER_MAX) return HEADER_BROKEN;
    if (fit == 1) return HEADER_PARTIAL;
    at += 6;
    for (size_t i = at; i < n && i < REPLY_HEADER_MAX; i++) {
        if (b[i] == REPLY_MARK) return HEADER_BROKEN;
        if (b[i] != '"' || i + 1 >= n || b[i + 1] != '>') continue;
        *h = (header){.len = i + 2, .name = b + at, .name_len = i - at};
        return HEADER_OK;
    }
    return n < REPLY_HEADER_MAX ? HEADER_PARTIAL : HEADER_BROKEN;
}

/* --- the called tool --- */

static const json *find_properties(const json *tools, const char *name) {
    const json *found = NULL;
    buf printed = BUF_INIT;
    JSON_EACH(tool, tools) {
        const json *function = json_get(tool, "function");
        if (function == NULL) function = tool;
        buf_reset(&printed);
        if (chat_tool_name(tool, "tools", &printed, NULL) != OK) continue;
        if (strcmp(buf_cstr(&printed), name) == 0) {
            found = json_get(json_get(function, "parameters"), "properties");
            break;
        }
    }
    buf_release(&printed);
    return found;
}

static void counter_id(void *ctx, char id[64]) {
    reply_parser *p = ctx;
    (void)snprintf(id, 64, "call_%024d", p->call.n_begun);
}

static int begin_call(reply_parser *p, const header *h) {
    call_state *c = &p->call;
    buf_reset(&c->name);
    int rc = reply_outer(&c->name, h->name, h->name_len);
    if (rc != OK) return rc;
    c->properties = find_properties(p->o.tools, buf_cstr(&c->name));
    c->has_parameter = c->has_body = false;
    c->keys_len = 0;
    if (p->o.new_id != NULL)
        p->o.new_id(p->o.id_ctx, c->id);
    else
        counter_id(p, c->id);
    c->id[63] = 0;
    c->is_begun = true;
    if (!p->o.drops_calls) {
        c->n_begun++;
        c->n_standing++;
    }
    c->phase = CALL_INSIDE;
    return send(p, REPLY_EVENT_CALL, buf_cstr(&c->name), c->name.len);
}

/* is_closed: the call has its own closing tag. */
static int end_call(reply_parser *p, bool is_closed) {
    call_state *c = &p->call;
    int rc = OK;
    c->phase = CALL_BETWEEN;
    if (!c->is_begun) return OK;
    c->is_begun = false;
    bool is_empty = !c->has_body && !c->has_parameter;
    rc = is_empty ? send_argument_text(p, "{}", 2) : send_argument_text(p, "}", 1);
    size_t raw_len = is_closed ? c->raw.len : 0;
    return rc == OK ? send(p, REPLY_EVENT_CALL_END, c->raw.data, raw_len) : rc;
}

/* What has been sent of a call stays unterminated, and is not empty, which some would run as {}. */
static int leave_open(reply_parser *p) {
    call_state *c = &p->call;
    c->is_begun = false;
    return c->has_parameter || c->has_body ? OK : send_argument_text(p, "{", 1);
}

/* The call is not usable: forgotten, and skipped up to its end. */
static int break_call(reply_parser *p) {
    call_state *c = &p->call;
    c->phase = CALL_BROKEN;
    if (!c->is_begun) return OK;
    int rc = leave_open(p);
    if (rc != OK || p->o.drops_calls) return rc;
    c->n_standing--;
    return send(p, REPLY_EVENT_CALL_DROP, NULL, 0);
}

static void end_block(reply_parser *p) {
    call_state *c = &p->call;
    c->phase = CALL_BETWEEN;
    if (c->saw_invoke) {
        c->is_block_closed = true;
        p->state = REPLY_DONE;
    } else {
        p->state = REPLY_CONTENT;
    }
}

static void begin_header(reply_parser *p) {
    p->call.saw_invoke = true;
    p->call.phase = CALL_HEADER;
    buf_reset(&p->call.raw);
}

/* --- values --- */

static value_rule choose_rule(call_state *c, const header *h) {
    const json *declared = json_get(json_get(c->properties, buf_cstr(&c->key)), "type");
    const char *type = json_str(declared);
    static const char *const typed[] = {"integer", "number", "boolean", "array", "object", "null"};
    bool says_string = h->attribute != NULL && h->attribute_len == 4;
    c->declared[0] = 0;
    if (!says_string) {
        return type != NULL && strcmp(type, "string") == 0 ? VALUE_JSON_STRING : VALUE_ANY_JSON;
    }
    for (size_t i = 0; type != NULL && i < sizeof typed / sizeof typed[0]; i++) {
        if (strcmp(type, typed[i]) != 0) continue;
        (void)snprintf(c->declared, sizeof c->declared, "%s", type);
        return VALUE_TYPED;
    }
    return VALUE_STREAM;
}

static bool seen_key(call_state *c) {
    const char *key = buf_cstr(&c->key);
    size_t len = strlen(key) + 1;
    for (size_t at = 0; at < c->keys_len; at += strlen(c->keys + at) + 1) {
        if (strcmp(c->keys + at, key) == 0) return true;
    }
    if (c->keys_len + len > c->keys_cap) {
        c->keys_cap = (c->keys_len + len) * 2;
        c->keys = mem_realloc(c->keys, c->keys_cap);
    }
    memcpy(c->keys + c->keys_len, key, len);
    c->keys_len += len;
    return false;
}

static bool attribute_is_legal(const header *h) {
    if (h->attribute == NULL) return true;
    return (h->attribute_len == 4 && memcmp(h->attribute, "true", 4) == 0) ||
           (h->attribute_len == 5 && memcmp(h->attribute, "false", 5) == 0);
}

static int begin_value(reply_parser *p, header *h) {
    call_state *c = &p->call;
    split_attribute(h);
    if (!attribute_is_legal(h)) return break_call(p);
    buf_reset(&c->key);
    buf_reset(&c->value);
    int rc = reply_outer(&c->key, h->name, h->name_len);
    if (rc != OK) return rc;
    c->rule = choose_rule(c, h);
    c->skips_value = seen_key(c);
    c->phase = CALL_VALUE;
    if (c->skips_value) return OK;
    buf text = BUF_INIT;
    rc = buf_puts(&text, c->has_parameter ? ", " : "{");
    if (rc == OK) rc = json_quote(&text, c->key.data, c->key.len);
    if (rc == OK) rc = buf_puts(&text, c->rule == VALUE_STREAM ? ": \"" : ": ");
    c->has_parameter = true;
    if (rc == OK) rc = send_arguments(p, &text);
    buf_release(&text);
    return rc;
}

/* n bytes of value text at the head. */
static int value_text(reply_parser *p, size_t n) {
    call_state *c = &p->call;
    if (n == 0) return OK;
    const char *b = p->in.data + p->head;
    int rc = OK;
    if (!c->skips_value && c->rule != VALUE_STREAM) {
        rc = reply_outer(&c->value, b, n);
    } else if (!c->skips_value) {
        buf text = BUF_INIT;
        buf_reset(&c->value);
        rc = reply_outer(&c->value, b, n);
        if (rc == OK) rc = json_quote(&text, c->value.data, c->value.len);
        if (rc == OK) rc = send_argument_text(p, text.data + 1, text.len - 2);
        buf_release(&text);
    }
    return rc == OK ? take(p, n) : rc;
}

static bool has_type(const json *v, const char *type) {
    if (strcmp(type, "integer") == 0) return json_is_integer(v);
    return strcmp(json_kind(v), type) == 0;
}

/* May the collected text stand in the arguments as it is? */
static bool value_is_raw(const call_state *c) {
    json *v = NULL;
    if (json_parse(buf_cstr(&c->value), c->value.len, NULL, &v, NULL) != OK) return false;
    bool fits = c->rule == VALUE_ANY_JSON || (c->rule == VALUE_JSON_STRING && json_is_string(v)) ||
                (c->rule == VALUE_TYPED && has_type(v, c->declared));
    json_free(v);
    return fits;
}

static int end_value(reply_parser *p) {
    call_state *c = &p->call;
    c->phase = CALL_INSIDE;
    if (c->skips_value) return OK;
    if (c->rule == VALUE_STREAM) return send_argument_text(p, "\"", 1);
    if (value_is_raw(c)) return send_arguments(p, &c->value);
    buf text = BUF_INIT;
    int rc = json_quote(&text, buf_cstr(&c->value), c->value.len);
    if (rc == OK) rc = send_arguments(p, &text);
    buf_release(&text);
    return rc;
}

/* What stands at "<" inside a value. A value runs to the next closing mark; the opening of another
 * parameter or call in it (tag, blank, name=) shows that the closing tag was forgotten. */
static tag_kind value_mark(const char *b, size_t n, size_t *len) {
    tag_kind kind = reply_tag(b, n, len);
    if (kind == TAG_OPEN_BLOCK) return TAG_NONE;
    if (kind != TAG_INVOKE && kind != TAG_PARAMETER) return kind;
    int fit = reply_word(b + *len, n - *len, " name=\"");
    return fit == 2 ? kind : fit == 1 ? TAG_PARTIAL : TAG_NONE;
}

/* Each step function takes what it can from the head; *waits: more text is needed. */
static int step_value(reply_parser *p, bool *waits) {
    size_t n = p->in.len - p->head, len = 0;
    const char *b = p->in.data + p->head;
    const char *lt = memchr(b, '<', n);
    size_t k = lt != NULL ? (size_t)(lt - b) : n;
    tag_kind kind = lt != NULL ? value_mark(lt, n - k, &len) : TAG_PARTIAL;
    if (kind == TAG_NONE) return value_text(p, k + 1);
    int rc = value_text(p, k);
    if (rc != OK) return rc;
    if (kind == TAG_PARTIAL) {
        *waits = true;
        return OK;
    }
    if (kind != TAG_CLOSE_PARAMETER) return break_call(p);
    rc = take(p, len);
    return rc == OK ? end_value(p) : rc;
}

/* --- a JSON object in place of parameters --- */

/* The collected body without white space around it, if it is a JSON object. */
static bool body_object(const call_state *c, const char **text, size_t *len) {
    const char *b = buf_cstr(&c->value);
    size_t n = c->value.len, from = 0;
    while (from < n && strchr(" \t\r\n", b[from]) != NULL)
        from++;
    while (n > from && strchr(" \t\r\n", b[n - 1]) != NULL)
        n--;
    json *v = NULL;
    if (json_parse(b + from, n - from, NULL, &v, NULL) != OK) return false;
    bool is_object = json_is_object(v);
    json_free(v);
    *text = b + from;
    *len = n - from;
    return is_object;
}

static int end_body(reply_parser *p) {
    const char *text;
    size_t len;
    if (!body_object(&p->call, &text, &len)) return break_call(p);
    p->call.has_body = true;
    p->call.phase = CALL_INSIDE;
    return send_argument_text(p, text, len - 1); /* the last brace comes when the call ends well */
}

static int step_body(reply_parser *p, bool *waits) {
    size_t n = p->in.len - p->head, len = 0;
    const char *b = p->in.data + p->head;
    const char *lt = memchr(b, '<', n);
    size_t k = lt != NULL ? (size_t)(lt - b) : n;
    tag_kind kind = lt != NULL ? reply_tag(lt, n - k, &len) : TAG_PARTIAL;
    if (kind == TAG_NONE) k++;
    int rc = reply_outer(&p->call.value, b, k);
    if (rc == OK) rc = take(p, k);
    if (rc != OK || kind == TAG_NONE) return rc;
    if (kind != TAG_PARTIAL) return end_body(p);
    *waits = true;
    return OK;
}

/* --- between tags --- */

static int step_header(reply_parser *p, bool *waits) {
    size_t n = p->in.len - p->head, tag_len = 0;
    const char *b = p->in.data + p->head;
    bool is_parameter = p->call.phase == CALL_PARAMETER_HEADER;
    header h;
    (void)reply_tag(b, n, &tag_len);
    switch (read_header(b, n, tag_len, &h)) {
    case HEADER_PARTIAL:
        *waits = true;
        return OK;
    case HEADER_BROKEN:
        p->head += tag_len;
        return break_call(p);
    case HEADER_OK:
        break;
    }
    if (!is_parameter && memchr(h.name, '"', h.name_len) != NULL) {
        p->head += h.len;
        return break_call(p);
    }
    int rc = is_parameter ? begin_value(p, &h) : begin_call(p, &h);
    return rc == OK ? take(p, h.len) : rc;
}

static int inside_tag(reply_parser *p, tag_kind kind, size_t len) {
    int rc = OK;
    switch (kind) {
    case TAG_PARAMETER:
        if (p->call.has_body) return break_call(p);
        p->call.phase = CALL_PARAMETER_HEADER;
        return OK;
    case TAG_CLOSE_INVOKE:
        rc = take(p, len);
        return rc == OK ? end_call(p, true) : rc;
    case TAG_INVOKE:
        rc = end_call(p, false);
        begin_header(p);
        return rc;
    case TAG_CLOSE_BLOCK:
        rc = end_call(p, false);
        p->head += len;
        end_block(p);
        return rc;
    case TAG_OPEN_BLOCK:
    case TAG_CLOSE_PARAMETER:
        return take(p, len);
    default:
        return break_call(p);
    }
}

static int step_inside(reply_parser *p, bool *waits) {
    size_t n = p->in.len - p->head, len = 0, k = 0;
    const char *b = p->in.data + p->head;
    while (k < n && (b[k] == ' ' || b[k] == '\n' || b[k] == '\t' || b[k] == '\r'))
        k++;
    int rc = take(p, k);
    if (rc != OK || k == n) {
        *waits = true;
        return rc;
    }
    b += k;
    if (b[0] == '{' && !p->call.has_parameter && !p->call.has_body) {
        buf_reset(&p->call.value);
        p->call.phase = CALL_BODY;
        return OK;
    }
    tag_kind kind = b[0] == '<' ? reply_tag(b, n - k, &len) : TAG_NONE;
    if (kind != TAG_PARTIAL) return inside_tag(p, kind, len);
    *waits = true;
    return OK;
}

/* Between calls, and in a broken one: everything but the tags that end it is skipped. */
static int step_between(reply_parser *p, bool *waits) {
    size_t n = p->in.len - p->head, len = 0;
    const char *b = p->in.data + p->head;
    const char *lt = memchr(b, '<', n);
    p->head = lt != NULL ? p->head + (size_t)(lt - b) : p->in.len;
    if (lt == NULL) {
        *waits = true;
        return OK;
    }
    tag_kind kind = reply_tag(lt, n - (size_t)(lt - b), &len);
    switch (kind) {
    case TAG_PARTIAL:
        *waits = true;
        break;
    case TAG_NONE:
        p->head++;
        break;
    case TAG_INVOKE:
        begin_header(p);
        break;
    case TAG_CLOSE_BLOCK:
        p->head += len;
        end_block(p);
        break;
    case TAG_CLOSE_INVOKE:
        p->call.phase = CALL_BETWEEN;
        p->head += len;
        break;
    default:
        p->head += len;
        break;
    }
    return OK;
}

int reply_parse_calls(reply_parser *p) {
    int rc = OK;
    bool waits = false;
    while (rc == OK && !waits && p->state == REPLY_CALLS && p->head < p->in.len) {
        switch (p->call.phase) {
        case CALL_BETWEEN:
        case CALL_BROKEN:
            rc = step_between(p, &waits);
            break;
        case CALL_HEADER:
        case CALL_PARAMETER_HEADER:
            rc = step_header(p, &waits);
            break;
        case CALL_INSIDE:
            rc = step_inside(p, &waits);
            break;
        case CALL_VALUE:
            rc = step_value(p, &waits);
            break;
        case CALL_BODY:
            rc = step_body(p, &waits);
            break;
        }
    }
    return rc;
}

/* Is what is left the beginning of a closing tag? */
static bool begins_closing(const char *b, size_t n) {
    if (n < 3 || b[0] != '<' || b[1] != '/') return false;
    return b[2] == REPLY_MARK || memcmp(b + 2, REPLY_BAR, n < 5 ? n - 2 : 3) == 0;
}

/* By EOS open tags are closed, except an open value or an opening tag that is cut off: those
 * arguments stay unterminated, so that no half command can run. By length nothing is closed. */
int reply_end_calls(reply_parser *p, reply_end how) {
    call_state *c = &p->call;
    size_t n = p->in.len - p->head;
    bool is_cut = n > 0 && !begins_closing(p->in.data + p->head, n);
    p->head = p->in.len;
    if (!c->is_begun) return OK;
    if (how == REPLY_END_EOS && c->phase == CALL_INSIDE && !is_cut) return end_call(p, false);
    if (how == REPLY_END_EOS && c->phase == CALL_BODY && !is_cut) {
        const char *text;
        size_t len;
        if (body_object(c, &text, &len)) {
            int rc = end_body(p);
            return rc == OK ? end_call(p, false) : rc;
        }
    }
    return leave_open(p);
}
