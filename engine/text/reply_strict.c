/* The strict parser (chat.md 7): one shape, no tolerance. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/chat_internal.h"
#include "engine/text/reply.h"

#define OPEN_CALLS "\n\n<" CHAT_DSML " calls"
#define CLOSE_CALLS "</" CHAT_DSML " calls>"
#define OPEN_INVOKE "<" CHAT_DSML " invoke"
#define CLOSE_INVOKE "</" CHAT_DSML " invoke"
#define OPEN_PARAMETER "<" CHAT_DSML " parameter"
#define CLOSE_PARAMETER "/" CHAT_DSML " parameter"

typedef struct cursor {
    const char *text;
    size_t len, at;
    err *e;
} cursor;

typedef struct slice {
    const char *p;
    size_t len;
} slice;

static int wrong(const cursor *c, const char *what) {
    return err_set(
        c->e, ERR_FORMAT, "reply is not in the strict form at byte %zu: %s", c->at, what);
}

/* Reads up to the first of two stops (the second may be NULL) and past it. Returns which: 0, 1, or
 * -1 when neither occurs; then everything is read. */
static int read_until(cursor *c, const char *first, const char *second, slice *out) {
    const char *from = c->text + c->at;
    size_t left = c->len - c->at;
    const char *a = memmem(from, left, first, strlen(first));
    const char *b = second != NULL ? memmem(from, left, second, strlen(second)) : NULL;
    int which = a == NULL && b == NULL ? -1 : b == NULL || (a != NULL && a <= b) ? 0 : 1;
    const char *stop = which == 0 ? a : which == 1 ? b : from + left;
    *out = (slice){from, (size_t)(stop - from)};
    c->at = (size_t)(stop - c->text);
    if (which >= 0) c->at += strlen(which == 0 ? first : second);
    return which;
}

static bool is_text(slice s, const char *text) {
    return s.len == strlen(text) && memcmp(s.p, text, s.len) == 0;
}

static bool cut_front(slice *s, const char *text) {
    size_t n = strlen(text);
    if (s->len < n || memcmp(s->p, text, n) != 0) return false;
    s->p += n;
    s->len -= n;
    return true;
}

static bool cut_back(slice *s, const char *text) {
    size_t n = strlen(text);
    if (s->len < n || memcmp(s->p + s->len - n, text, n) != 0) return false;
    s->len -= n;
    return true;
}

static bool holds_control(slice s) {
    static const char *const controls[] = {
        CHAT_BOS, CHAT_EOS, CHAT_THINK_OPEN, CHAT_THINK_CLOSE, CHAT_DSML};
    for (size_t i = 0; i < sizeof controls / sizeof controls[0]; i++) {
        if (memmem(s.p, s.len, controls[i], strlen(controls[i])) != NULL) return true;
    }
    return false;
}

/* ns::name into its parts. */
static bool set_name(strict_call *call, slice name) {
    const char *colons = memmem(name.p, name.len, "::", 2);
    if (colons != NULL) {
        size_t space = (size_t)(colons - name.p);
        call->name_space = mem_strndup(name.p, space);
        name.p += space + 2;
        name.len -= space + 2;
    }
    call->name = mem_strndup(name.p, name.len);
    return memmem(name.p, name.len, "::", 2) == NULL;
}

static strict_call *add_call(strict_message *m) {
    m->calls = mem_realloc(m->calls, (m->n_calls + 1) * sizeof *m->calls);
    strict_call *call = &m->calls[m->n_calls++];
    *call = (strict_call){.arguments = BUF_INIT};
    return call;
}

/* ' name="K" string="true|false">V<' into its three parts. */
static bool split_parameter(slice s, slice *key, bool *is_string, slice *value) {
    static const char true_mark[] = "\" string=\"true\">", false_mark[] = "\" string=\"false\">";
    if (!cut_front(&s, " name=\"") || !cut_back(&s, "<")) return false;
    const char *t = memmem(s.p, s.len, true_mark, sizeof true_mark - 1);
    const char *f = memmem(s.p, s.len, false_mark, sizeof false_mark - 1);
    if (t == NULL && f == NULL) return false;
    *is_string = f == NULL || (t != NULL && t < f);
    const char *mark = *is_string ? t : f;
    *key = (slice){s.p, (size_t)(mark - s.p)};
    size_t skip = key->len + (*is_string ? sizeof true_mark : sizeof false_mark) - 1;
    *value = (slice){s.p + skip, s.len - skip};
    return true;
}

typedef struct key_list {
    slice *keys;
    size_t n;
} key_list;

static bool is_repeated(key_list *l, slice key) {
    for (size_t i = 0; i < l->n; i++) {
        if (l->keys[i].len == key.len && memcmp(l->keys[i].p, key.p, key.len) == 0) return true;
    }
    l->keys = mem_realloc(l->keys, (l->n + 1) * sizeof *l->keys);
    l->keys[l->n++] = key;
    return false;
}

static int read_parameter(cursor *c, strict_call *call, key_list *seen, bool *goes_on) {
    slice raw, key, value, gap;
    bool is_string = false;
    if (read_until(c, CLOSE_PARAMETER, NULL, &raw) < 0) return wrong(c, "a parameter has no end");
    if (!split_parameter(raw, &key, &is_string, &value)) return wrong(c, "a bad parameter tag");
    if (is_repeated(seen, key)) return wrong(c, "a parameter is repeated");
    int rc = buf_puts(&call->arguments, seen->n > 1 ? ", " : "{");
    if (rc == OK) rc = json_quote(&call->arguments, key.p, key.len);
    if (rc == OK) rc = buf_puts(&call->arguments, ": ");
    if (rc == OK && is_string) rc = json_quote(&call->arguments, value.p, value.len);
    if (rc == OK && !is_string) rc = buf_append(&call->arguments, value.p, value.len);
    if (rc != OK) return err_set(c->e, rc, "the reply is too long");
    int stop = read_until(c, OPEN_PARAMETER, CLOSE_INVOKE, &gap);
    if (stop < 0 || !is_text(gap, ">\n")) return wrong(c, "text after a parameter");
    *goes_on = stop == 0;
    return OK;
}

static int read_invoke(cursor *c, strict_message *m) {
    slice head;
    int stop = read_until(c, OPEN_PARAMETER, CLOSE_INVOKE, &head);
    while (head.len > 0 && memchr(" \t\n\v\f\r", head.p[0], 6) != NULL) {
        head.p++;
        head.len--;
    }
    /* A call without parameters has an empty line, which may be missing. */
    bool fits = stop >= 0 && cut_front(&head, "name=\"") &&
                (cut_back(&head, "\">\n\n") || cut_back(&head, "\">\n"));
    if (!fits) return wrong(c, "a bad invoke tag");
    strict_call *call = add_call(m);
    if (!set_name(call, head)) return wrong(c, "a name with more than one '::'");
    key_list seen = {0};
    bool goes_on = stop == 0;
    int rc = OK;
    while (rc == OK && goes_on)
        rc = read_parameter(c, call, &seen, &goes_on);
    mem_free(seen.keys);
    if (rc != OK) return rc;
    rc = buf_puts(&call->arguments, seen.n > 0 ? "}" : "{}");
    return rc == OK ? OK : err_set(c->e, rc, "the reply is too long");
}

static int read_calls(cursor *c, strict_message *m) {
    slice gap;
    for (;;) {
        int stop = read_until(c, OPEN_INVOKE, CLOSE_CALLS, &gap);
        if (stop < 0) return wrong(c, "the call block has no end");
        if (!is_text(gap, ">\n")) return wrong(c, "text between calls");
        if (stop == 1) return OK;
        int rc = read_invoke(c, m);
        if (rc != OK) return rc;
    }
}

static int read_all(cursor *c, bool is_thinking, strict_message *out) {
    slice reasoning = {"", 0}, content, rest = {"", 0};
    if (is_thinking && read_until(c, CHAT_THINK_CLOSE, OPEN_CALLS, &reasoning) != 0) {
        return wrong(c, "the reasoning is not closed");
    }
    int stop = read_until(c, CHAT_EOS, OPEN_CALLS, &content);
    if (stop < 0) return wrong(c, "the end token is missing");
    if (stop == 1) {
        int rc = read_calls(c, out);
        if (rc != OK) return rc;
        (void)read_until(c, CHAT_EOS, NULL, &rest);
    }
    if (rest.len > 0 || c->at != c->len) return wrong(c, "text after the end");
    if (holds_control(reasoning) || holds_control(content)) {
        return wrong(c, "a control string in the text");
    }
    int rc = buf_append(&out->reasoning, reasoning.p, reasoning.len);
    if (rc == OK) rc = buf_append(&out->content, content.p, content.len);
    return rc == OK ? OK : err_set(c->e, rc, "the reply is too long");
}

int reply_parse_strict(
    const char *text, size_t len, bool is_thinking, strict_message *out, err *e) {
    cursor c = {.text = text, .len = len, .e = e};
    *out = (strict_message){.reasoning = BUF_INIT, .content = BUF_INIT};
    int rc = read_all(&c, is_thinking, out);
    if (rc != OK) strict_message_release(out);
    return rc;
}

void strict_message_release(strict_message *m) {
    for (size_t i = 0; i < m->n_calls; i++) {
        mem_free(m->calls[i].name);
        mem_free(m->calls[i].name_space);
        buf_release(&m->calls[i].arguments);
    }
    mem_free(m->calls);
    buf_release(&m->reasoning);
    buf_release(&m->content);
    *m = (strict_message){0};
}
