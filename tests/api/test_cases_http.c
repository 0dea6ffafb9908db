/* Runs cases/http: requests and raw bytes against a server over a scripted source. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/api.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tests/harness/sse_message.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/vectors.h"
#include "tests/harness/wire.h"

#define PIECES_MAX 64
#define WIRES_MAX 300
#define PATIENCE_MS 120000
/* In which nothing more comes. */
#define QUIET_MS 3000
/* Long waits of the cases are shortened by this unless TANDEM_LONG is set; the server's keep-alive
 * is shortened alike. */
#define TIME_SCALE 20

typedef struct runner {
    vectors v;
    tokenizer *tokenizer;
    int scale;
    const char *id;
    const char *other; /* why the case counts as skipped */
    bool is_failed;
} runner;

/* Raw-wire cases whose answer is the HTTP library's own: not the one the case names, and safe. What
 * it has parsed away (a NUL, a line break, the size of a chunk before its bytes come) no callback
 * shows, and it has no hook for the bytes before. */
static const struct {
    const char *id, *why;
    int status; /* what comes instead; 0: nothing until the connection is idle for too long */
} other_answers[] = {
    {"http-033",
        "a chunk of that size is waited for, nothing is reserved, and the idle limit ends it", 0},
    {"http-048", "the value ends at the NUL byte and the rest of the line is dropped", 200},
    {"http-046", "the folded line is lost; where it would tell the length of a body it is refused",
        200},
};

static void bad(runner *r, const char *want, const char *got) {
    if (!r->is_failed) vectors_fail(&r->v, r->id, want, got);
    r->is_failed = true;
}

static void bad_int(runner *r, const char *what, long want, long got) {
    char a[96];
    char b[96];
    snprintf(a, sizeof a, "%s %ld", what, want);
    snprintf(b, sizeof b, "%s %ld", what, got);
    bad(r, a, b);
}

static void want_text(runner *r, const char *what, const json *want, const char *got) {
    const char *text = json_str(want) != NULL ? json_str(want) : "";
    char a[300];
    char b[300];
    if (want == NULL || strcmp(text, got) == 0) return;
    snprintf(a, sizeof a, "%s \"%s\"", what, text);
    snprintf(b, sizeof b, "%s \"%s\"", what, got);
    bad(r, a, b);
}

static bool number_is_in(const json *list, long got) {
    int64_t one = 0;
    if (json_i64(list, &one) == OK) return one == got;
    JSON_EACH(item, list) {
        if (json_i64(item, &one) == OK && one == got) return true;
    }
    return false;
}

/* ---- the server of one case ---- */

static const char *pieces[PIECES_MAX];
static token_list preferred;
static _Atomic int is_held;

/* Pieces that the sampler would choose: real tokens, so that a grammar can refuse them. */
static void prefer(runner *r, stub_script *script) {
    err e = ERR_INIT;
    token_list_reset(&preferred);
    for (int32_t i = 0; i < script->n_pieces; i++) {
        text_span span = {
            .text = script->pieces[i], .len = strlen(script->pieces[i]), .is_template = true};
        if (tokenizer_encode(r->tokenizer, span, &preferred, &e) != OK) bad(r, "tokens", e.msg);
    }
    script->preferred = preferred.ids;
    script->n_preferred = (int32_t)preferred.len;
}

static void script_of(runner *r, const json *c, stub_server_options *o) {
    const json *engine = json_get(c, "engine");
    const json *list = json_get(engine, "pieces");
    const json *repeat = json_get(list, "repeat");
    const char *end = json_str(json_get(engine, "end"));
    int64_t number = 0;
    memset(o, 0, sizeof *o);
    o->tokenizer = r->tokenizer;
    o->keep_alive_ms = 5000 / r->scale;
    json_bool(json_get(engine, "thinking"), &o->thinks_by_default);
    int n = 0;
    if (repeat != NULL) {
        pieces[n++] = json_str(json_at(repeat, 0));
        json_i64(json_at(repeat, 1), &number);
        o->script.n_times = (int32_t)number;
    }
    if (json_is_array(list)) {
        JSON_EACH(piece, list) {
            if (n < PIECES_MAX) pieces[n++] = json_str(piece);
        }
    }
    if (n == 0) pieces[n++] = "ok";
    o->script.pieces = pieces;
    o->script.n_pieces = n;
    if (json_get(engine, "preference") != NULL) prefer(r, &o->script);
    if (end != NULL && strcmp(end, "error") == 0) o->script.end = STUB_END_ERROR;
    if (end != NULL && strcmp(end, "peer_lost") == 0) o->script.end = STUB_END_PEER_LOST;
    if (json_i64(json_get(engine, "prefill_ms"), &number) == OK) {
        o->script.prefill_ms = (int32_t)number / r->scale;
    }
    /* As long as the case's silence is looked at the engine says nothing, however long that takes. */
    is_held = json_get(json_get(c, "expect"), "max_silence_ms") != NULL;
    o->script.is_held = &is_held;
    if (json_i64(json_get(engine, "delay_ms"), &number) == OK) o->script.delay_ms = (int32_t)number;
    const json *options = json_get(c, "server_options");
    if (json_i64(json_get(options, "max_context"), &number) == OK) o->script.max_context = number;
}

/* ---- values that are made here ---- */

static long count_tokens(const stub_server *s, const char *messages) {
    wire w;
    wire_answer a;
    json *v = NULL;
    int64_t n = -1;
    buf body = BUF_INIT;
    buf_printf(&body, "{\"messages\":%s}", messages);
    wire_open_unix(&w, s->socket_path);
    wire_request(&w, "POST", "/tokenize", "", buf_cstr(&body));
    wire_read(&w, &a, PATIENCE_MS);
    if (json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL) == OK) {
        json_i64(json_get(v, "count"), &n);
    }
    json_free(v);
    wire_answer_release(&a);
    wire_close(&w);
    buf_release(&body);
    return (long)n;
}

static void put_words(buf *out, long n_tokens, const stub_server *s, bool counts_prompt) {
    buf messages = BUF_INIT;
    size_t n = 1;
    for (;; n++) {
        buf_reset(&messages);
        buf_puts(&messages, "[{\"role\":\"user\",\"content\":\"");
        for (size_t i = 0; i < n; i++) {
            buf_puts(&messages, "a ");
        }
        buf_puts(&messages, "\"}]");
        long got = count_tokens(s, buf_cstr(&messages));
        if (got < 0 || got >= n_tokens) break;
        /* One word is at least one token, so a jump by half of what is missing can not
         * overshoot. */
        n += (size_t)(n_tokens - got) / 4;
    }
    if (!counts_prompt) n += 16;
    buf_putc(out, '"');
    for (size_t i = 0; i < n; i++) {
        buf_puts(out, "a ");
    }
    buf_putc(out, '"');
    buf_release(&messages);
}

static void put_nested_schema(buf *out) {
    enum { DEPTH = 5000 };
    for (int i = 0; i < DEPTH; i++) {
        buf_puts(out, "{\"type\":\"object\",\"properties\":{\"a\":");
    }
    buf_puts(out, "{}");
    for (int i = 0; i < DEPTH; i++) {
        buf_puts(out, "}}");
    }
}

static bool generate(const char *how, const stub_server *s, buf *out) {
    long window = (long)stub_source(s->source)->info.max_context;
    if (strcmp(how, "nested object schema, 5000 levels") == 0) {
        put_nested_schema(out);
    } else if (strcmp(how, "text of max_context + 1 tokens") == 0) {
        put_words(out, window + 1, s, false);
    } else if (strcmp(how, "text so that the prompt has max_context - 16 tokens") == 0) {
        put_words(out, window - 16, s, true);
    } else {
        return false;
    }
    return true;
}

static bool put_value(const json *v, const stub_server *s, buf *out) {
    const char *how = json_str(json_get(v, "$generate"));
    bool is_first = true;
    bool is_ok = true;
    if (how != NULL) return generate(how, s, out);
    if (!json_is_object(v) && !json_is_array(v)) return json_print(v, out) == OK;
    buf_putc(out, json_is_object(v) ? '{' : '[');
    JSON_EACH(item, v) {
        if (!is_first) buf_putc(out, ',');
        is_first = false;
        if (json_is_object(v)) {
            json_quote(out, json_key(item), strlen(json_key(item)));
            buf_putc(out, ':');
        }
        is_ok &= put_value(item, s, out);
    }
    buf_putc(out, json_is_object(v) ? '}' : ']');
    return is_ok;
}

/* ---- api cases ---- */

static const json *at_path(const json *v, const char *path) {
    char part[64];
    while (v != NULL && *path != '\0') {
        size_t n = strcspn(path, ".");
        uint64_t index = 0;
        str_copy(part, n + 1 < sizeof part ? n + 1 : sizeof part, path);
        v = parse_u64(part, &index) == OK ? json_at(v, (size_t)index) : json_get(v, part);
        path += n + (path[n] == '.');
    }
    return v;
}

/* a: the value of the rule as JSON, b: what is there. */
static bool holds(const json *rule, const json *got, const buf *a, const buf *b) {
    const char *op = json_str(json_get(rule, "op"));
    const json *want = json_get(rule, "value");
    const char *text = json_str(got), *part = json_str(want);
    bool is_there = part != NULL && text != NULL && strstr(text, part) != NULL;
    if (strcmp(op, "equals") == 0) return strcmp(buf_cstr(a), buf_cstr(b)) == 0;
    if (strcmp(op, "not_equals") == 0) return strcmp(buf_cstr(a), buf_cstr(b)) != 0;
    if (strcmp(op, "nonempty_string") == 0) return text != NULL && text[0] != '\0';
    if (strcmp(op, "contains") == 0) return is_there;
    if (strcmp(op, "not_contains") == 0) return text != NULL && !is_there;
    if (strcmp(op, "exists") == 0) return got != NULL;
    if (strcmp(op, "absent") == 0) return got == NULL;
    if (strcmp(op, "in") != 0) return false;
    JSON_EACH(item, want) {
        buf one = BUF_INIT;
        json_print(item, &one);
        bool is_it = strcmp(buf_cstr(&one), buf_cstr(b)) == 0;
        buf_release(&one);
        if (is_it) return true;
    }
    return false;
}

static void check_asserts(runner *r, const json *expect, const json *answer) {
    JSON_EACH(rule, json_get(expect, "assert")) {
        const char *path = json_str(json_get(rule, "path"));
        const char *op = json_str(json_get(rule, "op"));
        const json *got = at_path(answer, path);
        const json *want = json_get(rule, "value");
        buf a = BUF_INIT;
        buf b = BUF_INIT;
        json_print(want, &a);
        json_print(got, &b);
        if (!holds(rule, got, &a, &b)) {
            buf text = BUF_INIT;
            buf_printf(&text, "%s %s %s", path, op, buf_cstr(&a));
            bad(r, buf_cstr(&text), buf_cstr(&b));
            buf_release(&text);
        }
        buf_release(&a);
        buf_release(&b);
    }
}

static void check_calls(runner *r, const json *expect, const sse_message *m) {
    const json *want = json_get(expect, "tool_calls");
    int i = 0;
    if (want == NULL) return;
    if ((int)json_count(want) != m->n_calls)
        bad_int(r, "calls", (long)json_count(want), m->n_calls);
    JSON_EACH(call, want) {
        if (i >= m->n_calls) return;
        buf a = BUF_INIT;
        buf b = BUF_INIT;
        json *v = NULL;
        want_text(r, "call", json_get(call, "name"), buf_cstr(&m->calls[i].name));
        json_print(json_get(call, "arguments"), &a);
        const buf *args = &m->calls[i].arguments;
        if (json_parse(buf_cstr(args), args->len, NULL, &v, NULL) == OK) json_print(v, &b);
        if (strcmp(buf_cstr(&a), buf_cstr(&b)) != 0) bad(r, buf_cstr(&a), buf_cstr(&b));
        json_free(v);
        buf_release(&a);
        buf_release(&b);
        i++;
    }
}

/* The only schema of these cases: an object with one integer a. */
static void check_schema(runner *r, const json *expect, const sse_message *m) {
    json *v = NULL;
    int64_t a = 0;
    if (!json_is_true(json_get(expect, "content_matches_schema"))) return;
    bool is_ok = json_parse(buf_cstr(&m->content), m->content.len, NULL, &v, NULL) == OK &&
                 json_count(v) == 1 && json_i64(json_get(v, "a"), &a) == OK;
    if (!is_ok) bad(r, "an object that fits the schema", buf_cstr(&m->content));
    json_free(v);
}

static void check_message(runner *r, const json *expect, const sse_message *m) {
    want_text(r, "content", json_get(expect, "content"), buf_cstr(&m->content));
    want_text(r, "reasoning", json_get(expect, "reasoning_content"), buf_cstr(&m->reasoning));
    want_text(r, "finish_reason", json_get(expect, "finish_reason"), m->finish);
    want_text(r, "finish_reason", json_get(expect, "if_200_finish_reason"), m->finish);
    if (json_get(expect, "content_in") != NULL && m->content.len > 0) {
        bad(r, "no content", buf_cstr(&m->content));
    }
    check_calls(r, expect, m);
    check_schema(r, expect, m);
    JSON_EACH(rule, json_get(expect, "sse")) {
        const char *why;
        if (!sse_check_rule(m, json_str(rule), &why)) bad(r, json_str(rule), why);
    }
}

static void check_error(runner *r, const json *expect, const wire_answer *a, const json *answer) {
    const json *error = json_get(answer, "error");
    char type[64];
    wire_header(a, "Content-Type", type, sizeof type);
    if (error == NULL || strncmp(type, "application/json", 16) != 0) {
        bad(r, "an error object as application/json", buf_cstr(&a->body));
        return;
    }
    if (json_get(error, "param") == NULL || json_get(error, "code") == NULL) {
        bad(r, "param and code present", buf_cstr(&a->body));
    }
    const char *param = json_str(json_get(error, "param"));
    const char *code = json_str(json_get(error, "code"));
    want_text(r, "type", json_get(expect, "error_type"), json_str(json_get(error, "type")));
    want_text(r, "param", json_get(expect, "param"), param != NULL ? param : "");
    want_text(r, "code", json_get(expect, "code"), code != NULL ? code : "");
    want_text(r, "code", json_get(expect, "if_400_code"), code != NULL ? code : "");
    const char *part = json_str(json_get(expect, "if_400_message_contains"));
    const char *message = json_str(json_get(error, "message"));
    if (part != NULL && (message == NULL || strstr(message, part) == NULL)) bad(r, part, message);
}

static void check_then(runner *r, const stub_server *s, const json *then) {
    wire w;
    wire_answer a;
    int64_t want = 200;
    if (then == NULL) return;
    json_i64(json_get(then, "status"), &want);
    wire_open_unix(&w, s->socket_path);
    wire_request(
        &w, json_str(json_get(then, "method")), json_str(json_get(then, "path")), "", NULL);
    wire_read(&w, &a, PATIENCE_MS);
    if (a.status != want) bad_int(r, "status afterwards", (long)want, a.status);
    wire_answer_release(&a);
    wire_close(&w);
}

static void check_answer(runner *r, const json *expect, const wire_answer *a) {
    json *answer = NULL;
    sse_message m = {0};
    bool is_stream = strncmp(buf_cstr(&a->body), "data: ", 6) == 0 || buf_cstr(&a->body)[0] == ':';
    if (!is_stream && json_parse(buf_cstr(&a->body), a->body.len, NULL, &answer, NULL) != OK) {
        bad(r, "a JSON answer", buf_cstr(&a->body));
    }
    char type[64];
    wire_header(a, "Content-Type", type, sizeof type);
    const char *want_type = json_str(json_get(expect, "content_type"));
    if (want_type != NULL && !str_starts(type, want_type)) bad(r, want_type, type);
    const json *never = json_get(expect, "never_contains");
    const char *word = json_str(never);
    if (word != NULL && strstr(buf_cstr(&a->body), word) != NULL) bad(r, "without it", word);
    JSON_EACH(item, json_is_array(never) ? never : NULL) {
        word = json_str(item);
        if (word != NULL && strstr(buf_cstr(&a->body), word) != NULL) bad(r, "without it", word);
    }
    if (a->status >= 400) {
        check_error(r, expect, a, answer);
        check_asserts(r, expect, answer);
    } else {
        if (is_stream) {
            sse_read_stream(&a->body, &m);
        } else {
            sse_read_whole(answer, &m);
        }
        check_message(r, expect, &m);
        check_asserts(r, expect, answer);
    }
    sse_message_release(&m);
    json_free(answer);
}

/* The lines of a case's headers; without one the body is JSON. */
static void put_headers(const json *headers, buf *out) {
    bool has_type = false;
    JSON_EACH(line, headers) {
        has_type |= str_eq_nocase(json_key(line), "Content-Type");
        buf_printf(out, "%s: %s\r\n", json_key(line), json_str(line));
    }
    if (!has_type) buf_puts(out, "Content-Type: application/json\r\n");
}

static void run_api(runner *r, const json *c) {
    const json *request = json_get(c, "request");
    const json *expect = json_get(c, "expect");
    const char *raw = json_str(json_get(request, "raw_body"));
    stub_server_options o;
    stub_server s;
    wire w;
    wire_answer a;
    buf body = BUF_INIT, headers = BUF_INIT;
    script_of(r, c, &o);
    stub_server_start(&s, &o);
    put_headers(json_get(request, "headers"), &headers);
    if (raw != NULL) {
        buf_puts(&body, raw);
    } else if (json_get(request, "body") != NULL &&
               !put_value(json_get(request, "body"), &s, &body)) {
        bad(r, "a value this runner can make", "unknown $generate");
    }
    wire_open_unix(&w, s.socket_path);
    wire_request(&w, json_str(json_get(request, "method")), json_str(json_get(request, "path")),
        buf_cstr(&headers), body.len > 0 || raw != NULL ? buf_cstr(&body) : NULL);
    wire_read(&w, &a, PATIENCE_MS);
    if (!a.is_complete) bad(r, "a complete answer", "none");
    const json *status = json_get(expect, "status");
    if (status != NULL && !number_is_in(status, a.status)) {
        buf want = BUF_INIT;
        json_print(status, &want);
        bad(r, buf_cstr(&want), buf_cstr(&a.body));
        buf_release(&want);
    }
    if (!r->is_failed) check_answer(r, expect, &a);
    check_then(r, &s, json_get(expect, "then"));
    wire_answer_release(&a);
    wire_close(&w);
    buf_release(&body);
    buf_release(&headers);
    stub_server_stop(&s);
}

/* ---- wire cases ---- */

typedef struct wire_run {
    const stub_server *s;
    bool is_tcp;
    wire all[WIRES_MAX];
    int n, scale;
    wire *w;          /* the one that the case is about: the first, or that of a later GET */
    wire_answer post; /* of a step `read_until_end` or what stands at the end */
    bool has_read, is_closed_by_us, has_lines, is_each;
} wire_run;

/* The engine says nothing: the head is there and a line of comment comes again and again. The case
 * gives times for it; what is seen here does not hang on the speed of the machine. */
static bool read_silence(wire *w) {
    enum { N_LINES = 6 };
    bool has_lines = wire_await(w, "\n: ", N_LINES, PATIENCE_MS) &&
                     strstr(buf_cstr(&w->in), "HTTP/1.1 200") != NULL &&
                     strstr(buf_cstr(&w->in), "data: ") == NULL;
    is_held = 0;
    return has_lines;
}

static void open_wire(wire_run *x) {
    CHECK(x->n < WIRES_MAX);
    wire *w = &x->all[x->n++];
    if (x->is_tcp) {
        wire_open_tcp(w, x->s->port);
    } else {
        wire_open_unix(w, x->s->socket_path);
    }
    if (x->w == NULL) x->w = w;
}

/* One byte after the other on the first n connections, until the server has closed them. */
static void drip(wire_run *x, const char *text, int n, const json *every) {
    int64_t every_ms = 0;
    (void)json_i64(every, &every_ms);
    for (bool is_open = true; *text != '\0' && is_open; text++) {
        is_open = false;
        for (int i = 0; i < n; i++) {
            if (x->all[i].is_closed) continue;
            (void)wire_send(&x->all[i], text, 1);
            (void)wire_receive(&x->all[i], 0);
            is_open |= !x->all[i].is_closed;
        }
        sleep_ms((uint64_t)(every_ms / x->scale));
    }
}

/* Steps that speak about connections; false: it is none of them. */
static bool do_connection_step(const json *step, wire_run *x) {
    const char *text;
    int64_t n = 0;
    if (json_i64(json_get(step, "open"), &n) == OK) {
        while (n-- > 0)
            open_wire(x);
    } else if ((text = json_str(json_get(step, "drip"))) != NULL) {
        drip(x, text, 1, json_get(step, "every_ms"));
    } else if ((text = json_str(json_get(step, "drip_each"))) != NULL) {
        drip(x, text, x->n, json_get(step, "every_ms"));
    } else if ((text = json_str(json_get(step, "get"))) != NULL) {
        if (text[1] == 'm' && strstr(text, "-or-") != NULL)
            return true; /* the run itself is asked */
        open_wire(x);
        x->w = &x->all[x->n - 1];
        wire_request(x->w, "GET", text, "", NULL);
        x->is_closed_by_us = false;
    } else if (json_i64(json_get(step, "close_index"), &n) == OK && n < x->n) {
        wire_close(&x->all[n]);
        x->is_closed_by_us |= x->w == &x->all[n];
    } else if (json_get(step, "close") != NULL) {
        wire_close(x->w);
        x->is_closed_by_us = true;
    } else {
        return false;
    }
    return true;
}

static void do_step(runner *r, const json *step, wire_run *x) {
    const char *text;
    int64_t n = 0;
    buf raw = BUF_INIT;
    if (do_connection_step(step, x)) return;
    if ((text = json_str(json_get(step, "send"))) != NULL) {
        json_str_bytes(json_get(step, "send"), &raw);
        wire_send(x->w, raw.data, raw.len);
    } else if (json_get(step, "send_repeat") != NULL) {
        text = json_str(json_at(json_get(step, "send_repeat"), 0));
        json_i64(json_at(json_get(step, "send_repeat"), 1), &n);
        for (int64_t i = 0; i < n && wire_send(x->w, text, strlen(text)); i++) {
        }
    } else if ((text = json_str(json_get(step, "expect_bytes"))) != NULL) {
        /* Before anything else is sent: that is what the time of the case means. */
        if (!wire_await(x->w, text, 1, PATIENCE_MS)) bad(r, text, "it does not come");
    } else if (json_get(step, "post") != NULL || json_get(step, "post_each") != NULL) {
        text = json_str(json_get(step, "post"));
        int n_wires = text != NULL ? 1 : x->n;
        x->is_each = text == NULL;
        if (text == NULL) text = json_str(json_get(step, "post_each"));
        put_value(json_get(step, "body"), x->s, &raw);
        for (int i = 0; i < n_wires; i++) {
            wire *w = x->is_each ? &x->all[i] : x->w;
            wire_request(w, "POST", text, "Content-Type: application/json\r\n", buf_cstr(&raw));
        }
    } else if (json_i64(json_get(step, "read_events"), &n) == OK) {
        (void)wire_await(x->w, "data: ", (int)n, PATIENCE_MS);
    } else if (json_get(step, "read_until_end") != NULL) {
        if (is_held) x->has_lines = read_silence(x->w);
        wire_read(x->w, &x->post, PATIENCE_MS);
        x->has_read = true;
    } else if (json_i64(json_get(step, "sleep_ms"), &n) == OK) {
        sleep_ms((uint64_t)n);
    } else {
        bad(r, "a step that this runner knows", json_key(json_first(step)));
    }
    buf_release(&raw);
}

static void check_idle(runner *r, const stub_server *s) {
    run_stats stats;
    (void)stub_server_wait(s, 0);
    run_stats_get(s->run, &stats);
    if (stats.n_running + stats.n_waiting != 0) {
        bad_int(r, "requests still active", 0, stats.n_running + stats.n_waiting);
    }
    if (stats.pages_used != 0) bad_int(r, "pages still held", 0, stats.pages_used);
}

static void check_timed(runner *r, const json *expect, const wire_run *x) {
    sse_message m = {0};
    sse_read_stream(&x->post.body, &m);
    want_text(r, "content", json_get(expect, "content"), buf_cstr(&m.content));
    if (json_get(expect, "max_silence_ms") != NULL && !x->has_lines)
        bad(r, "a head and lines of comment while the engine says nothing", "none");
    if (json_is_true(json_get(expect, "comment_lines_only_before_first_data")) &&
        (m.n_comments_after_data > 0 || m.n_bad_lines > 0)) {
        bad(r, "only comments before the first data", "something else");
    }
    sse_message_release(&m);
}

/* A case with another answer gives exactly that one and is then named as skipped; later releases of
 * the library give the answer of the case, and then it counts as passed. */
static bool takes_other_answer(runner *r, const json *expect, wire_run *x) {
    for (size_t i = 0; i < sizeof other_answers / sizeof other_answers[0]; i++) {
        wire_answer a;
        if (strcmp(r->id, other_answers[i].id) != 0) continue;
        wire_read(x->w, &a, other_answers[i].status == 0 ? QUIET_MS : PATIENCE_MS);
        bool is_other = a.status == other_answers[i].status;
        if (!is_other && !number_is_in(json_get(expect, "status"), a.status))
            bad_int(r, "status", other_answers[i].status, a.status);
        wire_answer_release(&a);
        if (is_other) r->other = other_answers[i].why;
        return true;
    }
    return false;
}

static bool names_an_answer(const json *expect) {
    static const char *const names[] = {"status", "status_in", "statuses", "responses"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (json_get(expect, names[i]) != NULL) return true;
    }
    return false;
}

static void check_closes(runner *r, const json *expect, wire_run *x) {
    if (!json_is_true(json_get(expect, "closes"))) return;
    if (!wire_wait_closed(x->w, PATIENCE_MS)) bad(r, "the server closes", "it does not");
}

/* Answers in order: of one connection, or of each that was asked at once. */
static void check_statuses(runner *r, const json *expect, wire_run *x) {
    const json *list = json_get(expect, "statuses");
    int64_t want_answers = 0;
    int n_answers = 0;
    json_i64(json_get(expect, "responses"), &want_answers);
    for (;;) {
        wire_answer a;
        bool is_more = n_answers == 0 || list != NULL || n_answers < want_answers;
        wire *w = x->is_each && n_answers < x->n ? &x->all[n_answers] : x->w;
        wire_read(w, &a, is_more ? PATIENCE_MS : QUIET_MS);
        int status = a.status;
        const json *want =
            list != NULL ? json_at(list, (size_t)n_answers) : json_get(expect, "status");
        if (json_get(expect, "status_in") != NULL) want = json_get(expect, "status_in");
        if (n_answers == 0 && json_is_true(json_get(expect, "no_interim")) && a.n_interim > 0) {
            bad(r, "no interim response", "one came");
        }
        wire_answer_release(&a);
        if (status == 0) break;
        n_answers++;
        if (want != NULL && !number_is_in(want, status)) {
            buf text = BUF_INIT;
            json_print(want, &text);
            bad_int(r, buf_cstr(&text), 0, status);
            buf_release(&text);
        }
        if (list != NULL && n_answers == (int)json_count(list)) break;
        if (list == NULL && json_get(expect, "responses") == NULL) break;
    }
    if (n_answers == 0) bad(r, "an answer", x->w->is_closed ? "the connection was closed" : "none");
    if (json_get(expect, "responses") != NULL && n_answers != want_answers) {
        bad_int(r, "answers", (long)want_answers, n_answers);
    }
}

/* Of a case whose bytes come slowly: as the waits of the case are. */
static void with_short_times(api_options *o) {
    enum { HEAD_MS = 30000, BODY_MS = 60000, IDLE_MS = 75000 };
    int scale = getenv("TANDEM_LONG") != NULL ? 1 : TIME_SCALE;
    o->head_timeout_ms = HEAD_MS / scale;
    o->body_timeout_ms = BODY_MS / scale;
    o->idle_timeout_ms = IDLE_MS / scale;
}

static void run_wire(runner *r, const json *c, bool is_tcp) {
    const json *expect = json_get(c, "expect");
    stub_server_options o;
    stub_server s;
    wire_run *x = mem_alloc(sizeof *x);
    script_of(r, c, &o);
    JSON_EACH(step, json_get(c, "steps")) {
        if (json_get(step, "drip") != NULL || json_get(step, "drip_each") != NULL)
            o.adjust = with_short_times;
    }
    stub_server_start(&s, &o);
    x->s = &s;
    x->is_tcp = is_tcp;
    x->scale = r->scale;
    if (json_get(json_first(json_get(c, "steps")), "open") == NULL) open_wire(x);
    JSON_EACH(step, json_get(c, "steps")) {
        do_step(r, step, x);
    }
    if (json_get(expect, "active_requests") != NULL) check_idle(r, &s);
    if (x->has_read) check_timed(r, expect, x);
    if (!x->has_read && !x->is_closed_by_us && !takes_other_answer(r, expect, x)) {
        if (names_an_answer(expect)) check_statuses(r, expect, x);
        check_closes(r, expect, x);
    }
    wire_answer_release(&x->post);
    for (int i = 0; i < x->n; i++)
        wire_close(&x->all[i]);
    mem_free(x);
    stub_server_stop(&s);
}

/* ---- all ---- */

static int run_file(void *ctx, const char *name, err *e) {
    runner *r = ctx;
    (void)e;
    const char *only = getenv("ONLY");
    if (!str_ends(name, ".json") || (only != NULL && strstr(name, only) == NULL)) return OK;
    char dir[512];
    snprintf(dir, sizeof dir, "%s/http", vectors_cases_dir());
    json *c = vectors_load(dir, name);
    const char *kind = json_str(json_get(c, "kind"));
    r->id = json_str(json_get(c, "id"));
    r->is_failed = false;
    r->other = NULL;
    if (strcmp(kind, "api") == 0) {
        run_api(r, c);
    } else {
        run_wire(r, c, false);
        run_wire(r, c, true);
    }
    if (!r->is_failed && r->other != NULL) vectors_skip(&r->v, r->id, r->other);
    if (!r->is_failed && r->other == NULL) vectors_pass(&r->v);
    json_free(c);
    return OK;
}

int main(void) {
    runner r = {.scale = getenv("TANDEM_LONG") != NULL ? 1 : TIME_SCALE};
    char dir[512];
    err e = ERR_INIT;
    r.tokenizer = stub_tokenizer_open();
    if (r.tokenizer == NULL) {
        vectors_skip(
            &r.v, "cases/http", "no demo tokenizer here (templates/demo-model or DEMO_WEIGHTS)");
        return vectors_end(&r.v);
    }
    snprintf(dir, sizeof dir, "%s/http", vectors_cases_dir());
    if (dir_each(dir, run_file, &r, &e) != OK) {
        vectors_fail(&r.v, "cases/http", "a folder of cases", e.msg);
    }
    token_list_release(&preferred);
    tokenizer_close(r.tokenizer);
    return vectors_end(&r.v);
}
