#include "engine/text/reply.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/reply_internal.h"

#define LEAD_MAX 1024 /* white space held back before a possible think tag */

reply_parser *reply_parser_new(const reply_options *o) {
    reply_parser *p = mem_alloc(sizeof *p);
    p->o = *o;
    p->state = o->starts_in_reasoning ? REPLY_REASONING : REPLY_CONTENT;
    p->at_start = true;
    buf *all[] = {
        &p->literal, &p->in, &p->text, &p->call.name, &p->call.key, &p->call.value, &p->call.raw};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        *all[i] = (buf)BUF_INIT;
    return p;
}

void reply_parser_free(reply_parser *p) {
    if (p == NULL) return;
    buf_release(&p->literal);
    buf_release(&p->in);
    buf_release(&p->text);
    reply_call_release(&p->call);
    mem_free(p);
}

reply_state reply_parser_state(const reply_parser *p) {
    return p->state;
}

int reply_parser_calls(const reply_parser *p) {
    return p->call.n_standing;
}

int reply_outer(buf *out, const char *p, size_t n) {
    int rc = OK;
    while (n > 0 && rc == OK) {
        const char *mark = memchr(p, REPLY_MARK, n);
        size_t plain = mark != NULL ? (size_t)(mark - p) : n;
        rc = buf_append(out, p, plain);
        if (mark != NULL && rc == OK) rc = buf_puts(out, REPLY_DSML);
        plain += mark != NULL ? 1 : 0;
        p += plain;
        n -= plain;
    }
    return rc;
}

int reply_send(reply_parser *p, reply_event_kind kind, const char *text, size_t len) {
    reply_event ev = {.kind = kind,
        .text = text != NULL ? text : "",
        .len = len,
        .i_call = p->call.n_begun - 1,
        .id = p->call.id};
    return p->o.sink != NULL ? p->o.sink(p->o.sink_ctx, &ev) : OK;
}

/* --- reasoning and content --- */

static int flush_text(reply_parser *p) {
    if (p->text.len == 0) return OK;
    reply_event_kind kind =
        p->state == REPLY_REASONING ? REPLY_EVENT_REASONING : REPLY_EVENT_CONTENT;
    int rc = reply_send(p, kind, p->text.data, p->text.len);
    buf_reset(&p->text);
    return rc;
}

/* Takes n bytes of plain text from the head. */
static int take_text(reply_parser *p, size_t n) {
    if (n == 0) return OK;
    if (p->state == REPLY_CONTENT) p->has_content = true;
    p->at_start = false;
    int rc = reply_outer(&p->text, p->in.data + p->head, n);
    p->head += n;
    return rc;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool all_blank(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!is_blank(p[i])) return false;
    }
    return true;
}

/* Nothing but white space in the content so far, b[0..n) included? */
static bool is_lead(const reply_parser *p, const char *b, size_t n) {
    return p->state == REPLY_CONTENT && !p->has_content && n <= LEAD_MAX && all_blank(b, n);
}

static size_t newlines_before(const char *b, size_t n) {
    size_t newlines = 0;
    while (newlines < 2 && newlines < n && b[n - 1 - newlines] == '\n')
        newlines++;
    return newlines;
}

/* How many bytes before the end of b[0..n) belong to what follows, if that is markup. */
static size_t held_before(const reply_parser *p, const char *b, size_t n) {
    return is_lead(p, b, n) ? n : newlines_before(b, n);
}

/* is_first: nothing came before it. In reasoning only then is <think> markup. */
static tag_kind text_tag(
    const reply_parser *p, const char *b, size_t n, bool is_first, size_t *len) {
    tag_kind think = reply_think_tag(b, n, len);
    if (p->state == REPLY_REASONING && !is_first) {
        if (think == TAG_THINK_OPEN) return TAG_NONE;
        if (think == TAG_PARTIAL && n > 1 && b[1] != '/') return TAG_NONE;
    }
    if (think != TAG_NONE && think != TAG_PARTIAL) return think;
    tag_kind kind = reply_tag(b, n, len);
    if (kind == TAG_NONE) return think;
    return kind == TAG_PARAMETER ? TAG_NONE : kind;
}

/* <think> or </think> after k bytes of text. */
static int think_tag(reply_parser *p, tag_kind kind, size_t k, size_t len) {
    const char *b = p->in.data + p->head;
    if (p->state == REPLY_CONTENT && kind == TAG_THINK_OPEN && is_lead(p, b, k)) {
        p->head += k + len;
        p->state = REPLY_REASONING;
        return OK;
    }
    int rc = take_text(p, k);
    p->head += len;
    if (rc != OK || p->state != REPLY_REASONING || kind == TAG_THINK_OPEN) return rc;
    rc = flush_text(p);
    p->state = REPLY_CONTENT;
    return rc;
}

/* A tag after k bytes of text that is not partial and not plain. */
static int take_tag(reply_parser *p, tag_kind kind, size_t k, size_t len) {
    if (kind == TAG_THINK_OPEN || kind == TAG_THINK_CLOSE) return think_tag(p, kind, k, len);
    bool opens = kind == TAG_OPEN_BLOCK || kind == TAG_INVOKE;
    size_t newlines = opens ? newlines_before(p->in.data + p->head, k) : 0;
    int rc = take_text(p, k - newlines);
    p->head += newlines + (kind == TAG_INVOKE ? 0 : len);
    if (rc != OK || !opens) return rc;
    rc = flush_text(p);
    p->state = REPLY_CALLS;
    p->call.phase = CALL_BETWEEN;
    p->call.saw_invoke = false;
    return rc;
}

/* Until more text is needed or a call begins. */
static int parse_text(reply_parser *p) {
    int rc = OK;
    while (rc == OK && (p->state == REPLY_REASONING || p->state == REPLY_CONTENT)) {
        size_t n = p->in.len - p->head, len = 0;
        if (n == 0) break;
        const char *b = p->in.data + p->head;
        const char *lt = memchr(b, '<', n);
        size_t k = lt != NULL ? (size_t)(lt - b) : n;
        tag_kind kind =
            lt != NULL ? text_tag(p, lt, n - k, p->at_start && k == 0, &len) : TAG_PARTIAL;
        if (kind == TAG_PARTIAL) {
            rc = take_text(p, k - held_before(p, b, k));
            break;
        }
        rc = kind == TAG_NONE ? take_text(p, k + 1) : take_tag(p, kind, k, len);
    }
    return rc == OK ? flush_text(p) : rc;
}

static int parse(reply_parser *p) {
    int rc = OK;
    bool goes_on = true;
    while (rc == OK && goes_on) {
        reply_state before = p->state;
        if (p->state == REPLY_CALLS)
            rc = reply_parse_calls(p);
        else if (p->state == REPLY_DONE)
            p->head = p->in.len;
        else
            rc = parse_text(p);
        goes_on = p->state != before;
    }
    buf_consume(&p->in, p->head);
    p->head = 0;
    return rc;
}

/* --- feeding --- */

static int add_mark(reply_parser *p) {
    int rc = utf8_stream_end(&p->utf8, &p->in);
    return rc == OK ? buf_putc(&p->in, REPLY_MARK) : rc;
}

int reply_feed_token(reply_parser *p, const char *bytes, size_t len, bool is_dsml) {
    int rc = is_dsml ? add_mark(p) : utf8_stream_feed(&p->utf8, bytes, len, &p->in);
    return rc == OK ? parse(p) : rc;
}

/* Moves what is decided from p->literal to p->in. */
static int find_marks(reply_parser *p, bool is_end) {
    size_t at = 0, n = p->literal.len;
    const char *b = p->literal.data;
    int rc = OK;
    while (at < n && rc == OK) {
        const char *bar = memchr(b + at, REPLY_BAR[0], n - at);
        size_t k = bar != NULL ? (size_t)(bar - b) : n;
        rc = utf8_stream_feed(&p->utf8, b + at, k - at, &p->in);
        at = k;
        if (bar == NULL || rc != OK) break;
        int fit = reply_word(bar, n - k, REPLY_DSML);
        if (fit == 1 && !is_end) break;
        if (fit == 2)
            rc = add_mark(p);
        else
            rc = utf8_stream_feed(&p->utf8, bar, 1, &p->in);
        at += fit == 2 ? strlen(REPLY_DSML) : 1;
    }
    buf_consume(&p->literal, at);
    return rc;
}

int reply_feed(reply_parser *p, const char *bytes, size_t len) {
    int rc = buf_append(&p->literal, bytes, len);
    if (rc == OK) rc = find_marks(p, false);
    return rc == OK ? parse(p) : rc;
}

/* --- end --- */

/* Held-back text goes out, except that a cut by length drops the beginning of an opener. */
static int end_text(reply_parser *p, reply_end how, bool cuts_marker) {
    size_t n = p->in.len - p->head;
    const char *b = p->in.data + p->head;
    const char *lt = n > 0 ? memchr(b, '<', n) : NULL;
    if (how == REPLY_END_LENGTH && cuts_marker && lt != NULL) {
        size_t k = (size_t)(lt - b);
        n = k - newlines_before(b, k);
    }
    int rc = take_text(p, n);
    p->head = p->in.len;
    return rc == OK ? flush_text(p) : rc;
}

/* Is the held-back text, marker bytes included, "<" or "</" and the beginning of a bar? */
static bool holds_marker_start(const reply_parser *p) {
    size_t n = p->in.len - p->head;
    const char *b = n > 0 ? p->in.data + p->head : NULL;
    const char *lt = n > 0 ? memchr(b, '<', n) : NULL;
    if (lt == NULL) return false;
    size_t k = (size_t)(lt - b) + 1;
    if (k < n && b[k] == '/') k++;
    bool has_bar = reply_word(b + k, n - k, REPLY_BAR) == 2;
    if (has_bar) k += strlen(REPLY_BAR);
    if (k < n && b[k] == REPLY_MARK) return true;
    if (k < n) return has_bar && p->literal.len == 0;
    if (has_bar || p->literal.len > 0) return true;
    return p->utf8.n_pending > 0 && p->utf8.pending[0] == REPLY_BAR[0];
}

int reply_end_of_text(reply_parser *p, reply_end how, reply_finish *finish) {
    bool cuts_marker = holds_marker_start(p);
    int rc = OK;
    if (how == REPLY_END_LENGTH && cuts_marker) {
        buf_reset(&p->literal);
        p->utf8.n_pending = 0;
    } else {
        rc = find_marks(p, true);
        if (rc == OK) rc = utf8_stream_end(&p->utf8, &p->in);
        if (rc == OK) rc = parse(p);
    }
    if (rc == OK && p->state == REPLY_CALLS)
        rc = reply_end_calls(p, how);
    else if (rc == OK && p->state != REPLY_DONE)
        rc = end_text(p, how, cuts_marker);
    if (finish == NULL) return rc;
    bool is_whole = p->call.is_block_closed || how == REPLY_END_EOS;
    if (p->call.n_standing > 0 && is_whole)
        *finish = REPLY_TOOL_CALLS;
    else
        *finish = how == REPLY_END_EOS ? REPLY_STOP : REPLY_LENGTH;
    return rc;
}
