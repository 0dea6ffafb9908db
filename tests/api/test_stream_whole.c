/* What is streamed is what the whole answer says, in chat completions, responses and messages: over
 * all texts of golden/chat/parse-serving.json and over calls that are badly written, cut in two at
 * every byte and into single bytes, over schema replies behind thinking with a border of tokens at
 * every character, and over forced calls that the limit of tokens ends at every place. The whole chat
 * answer is compared with the vectors, too. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/vectors.h"
#include "tests/harness/wire.h"

#define M "\uFF5CDSML\uFF5C"
#define WRITE_CALL(path, lines)                                                                    \
    "<" M " invoke name=\"write\">\n<" M " parameter name=\"path\" string=\"true\">" path "</" M   \
    " parameter>\n<" M " parameter name=\"lines\" string=\"false\">" lines "</" M                  \
    " parameter>\n</" M " invoke>\n"
#define CALLS                                                                                      \
    "\n\n<" M " calls>\n" WRITE_CALL("a \"b\"\nc", "[1, 22]") WRITE_CALL("", "[]") "</" M " calls>"

/* Three ways to spoil a call: before, behind and between its arguments; and a sound one. */
#define INVOKE "<" M " invoke name=\"write\">\n"
#define BROKEN_EMPTY INVOKE "oops </" M " invoke>\n"
#define BROKEN_BODY INVOKE "{\"path\": \"a\"} oops </" M " invoke>\n"
#define BROKEN_VALUE INVOKE "<" M " parameter name=\"path\" string=\"true\">rm</" M " invoke>\n"
#define SOUND_BODY INVOKE "{\"path\": \"b\"}</" M " invoke>\n"
#define BLOCK(calls) "\n\n<" M " calls>\n" calls "</" M " calls>"

enum { CASES_MAX = 128, CALLS_MAX = 12, BYTES_CUT = 0 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CUT_STEP = 11 }; /* all of them would take half an hour */
#else
enum { CUT_STEP = 1 };
#endif

/* One reply in the words of no protocol. */
typedef struct said {
    buf reasoning, content;
    struct {
        buf name, arguments;
    } calls[CALLS_MAX];
    int n_calls;
    char finish[32]; /* in the words of chat completions */
} said;

typedef struct reply_case {
    const json *source; /* NULL: a schema reply or forced calls */
    char id[64];
    buf text;
    bool thinks, is_forced;
    int n_calls, n_broken; /* of a case with spoilt calls; 0: another case */
    /* [text.len + 1]: 0 single bytes, k in two at k; n 0: no such cut. Forced: 0 the tokens. */
    stub_list *cuts;
} reply_case;

typedef struct setting {
    vectors v;
    tokenizer *tokenizer;
    json *golden, *tools;
    reply_case cases[CASES_MAX];
    int n_cases;
    const char **pieces;
    int32_t n_pieces, cap_pieces, n_base;
    stub_server server;
    wire kept; /* one connection for twenty thousand requests; fd -1: none */
} setting;

/* ---- the script ---- */

static int32_t add_piece(setting *s, const char *text, size_t len) {
    if (s->n_pieces == s->cap_pieces) {
        s->cap_pieces = s->cap_pieces > 0 ? s->cap_pieces * 2 : 1024;
        s->pieces = mem_realloc(s->pieces, (size_t)s->cap_pieces * sizeof *s->pieces);
    }
    s->pieces[s->n_pieces] = mem_strndup(text, len);
    return s->n_base + s->n_pieces++;
}

static stub_list list_of(const int32_t *tokens, size_t n) {
    int32_t *copy = mem_array(n + 1, sizeof *copy);
    memcpy(copy, tokens, n * sizeof *copy);
    return (stub_list){copy, (int32_t)n};
}

static void cut_pieces(setting *s, reply_case *c) {
    const char *text = buf_cstr(&c->text);
    int32_t *bytes = mem_array(c->text.len + 1, sizeof *bytes);
    c->cuts = mem_array(c->text.len + 1, sizeof *c->cuts);
    for (size_t k = 0; k < c->text.len; k++)
        bytes[k] = add_piece(s, text + k, 1);
    c->cuts[BYTES_CUT] = list_of(bytes, c->text.len);
    for (size_t k = 1; k <= c->text.len; k++) {
        int32_t two[2] = {add_piece(s, text, k), 0};
        size_t n = 1;
        if (k < c->text.len) two[n++] = add_piece(s, text + k, c->text.len - k);
        c->cuts[k] = list_of(two, n);
    }
    mem_free(bytes);
}

static void encode(const setting *s, const char *text, size_t len, token_list *out) {
    text_span span = {.text = text, .len = len, .is_template = true};
    err e = ERR_INIT;
    if (tokenizer_encode(s->tokenizer, span, out, &e) != OK) {
        (void)fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
}

/* Real tokens with a border at each place that a token may end at. */
static void cut_tokens(setting *s, reply_case *c) {
    const char *text = buf_cstr(&c->text);
    const char *mark = strstr(text, "</think>");
    c->cuts = mem_array(c->text.len + 1, sizeof *c->cuts);
    for (size_t k = 0; k <= c->text.len; k++) {
        token_list list = {0};
        bool is_inside = k < c->text.len && ((unsigned char)text[k] & 0xC0) == 0x80;
        bool is_in_mark = mark != NULL && text + k > mark && text + k < mark + 8;
        if (is_inside || is_in_mark) continue;
        encode(s, text, k, &list);
        encode(s, text + k, c->text.len - k, &list);
        c->cuts[k] = list_of(list.ids, list.len);
        token_list_release(&list);
    }
}

static void add_golden(setting *s) {
    JSON_EACH(one, json_get(s->golden, "cases")) {
        reply_case *c = &s->cases[s->n_cases++];
        if (s->n_cases == CASES_MAX) exit(1);
        c->source = one;
        str_copy(c->id, sizeof c->id, json_str(json_get(one, "id")));
        json_str_bytes(json_get(one, "text"), &c->text);
        c->thinks = strcmp(json_str(json_get(one, "start")), "reasoning") == 0;
        if (c->text.len > 0) cut_pieces(s, c);
    }
}

static void add_schema(setting *s, const char *text, bool thinks) {
    reply_case *c = &s->cases[s->n_cases++];
    (void)snprintf(c->id, sizeof c->id, "schema, %s thinking", thinks ? "with" : "without");
    buf_puts(&c->text, text);
    c->thinks = thinks;
    cut_tokens(s, c);
}

/* Calls as the model writes them: all tokens in the place of the first cut. */
static void add_forced(setting *s, const char *text, bool thinks) {
    reply_case *c = &s->cases[s->n_cases++];
    token_list list = {0};
    (void)snprintf(c->id, sizeof c->id, "forced, %s thinking", thinks ? "with" : "without");
    buf_puts(&c->text, text);
    c->thinks = thinks;
    c->is_forced = true;
    c->cuts = mem_array(c->text.len + 1, sizeof *c->cuts);
    encode(s, text, c->text.len, &list);
    c->cuts[0] = list_of(list.ids, list.len);
    token_list_release(&list);
}

static void add_broken(setting *s, const char *text, int n_calls, int n_broken) {
    reply_case *c = &s->cases[s->n_cases++];
    (void)snprintf(c->id, sizeof c->id, "spoilt calls, %d of %d", n_broken, n_calls);
    buf_puts(&c->text, text);
    c->n_calls = n_calls;
    c->n_broken = n_broken;
    cut_pieces(s, c);
}

/* The user says which case and which cut. */
static stub_list choose(void *ctx, const int32_t *prompt, int32_t n_prompt) {
    const setting *s = ctx;
    buf text = BUF_INIT;
    tokenizer_decode(s->tokenizer, prompt, (size_t)n_prompt, &text);
    const char *at = strstr(buf_cstr(&text), "@case ");
    long i = at != NULL ? strtol(at + 6, NULL, 10) : 0;
    const char *cut = at != NULL ? strstr(at, "@cut ") : NULL;
    long k = cut != NULL ? strtol(cut + 5, NULL, 10) : 0;
    buf_release(&text);
    return s->cases[i].cuts[k];
}

/* ---- requests ---- */

typedef enum protocol { CHAT, MESSAGES, RESPONSES, N_PROTOCOLS } protocol;
static const char *const paths[] = {"/v1/chat/completions", "/v1/messages", "/v1/responses"};
static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},"
    "\"required\":[\"a\",\"b\"],\"additionalProperties\":false}";

static void put_tool(const json *tool, protocol p, buf *out) {
    const json *f = json_get(tool, "function");
    if (p == CHAT) {
        json_print_compact(tool, out);
        return;
    }
    buf_puts(out, p == RESPONSES ? "{\"type\":\"function\",\"name\":" : "{\"name\":");
    json_print_compact(json_get(f, "name"), out);
    buf_puts(out, p == RESPONSES ? ",\"parameters\":" : ",\"input_schema\":");
    if (json_is_object(json_get(f, "parameters"))) {
        json_print_compact(json_get(f, "parameters"), out);
    } else {
        buf_puts(out, "{\"type\":\"object\",\"properties\":{}}");
    }
    buf_putc(out, '}');
}

static void put_tools(const setting *s, const reply_case *c, protocol p, buf *out) {
    bool is_first = true;
    buf_puts(out, ",\"tools\":[");
    JSON_EACH(name, json_get(c->source, "tools")) {
        if (!is_first) buf_putc(out, ',');
        is_first = false;
        put_tool(json_get(s->tools, json_str(name)), p, out);
    }
    buf_putc(out, ']');
}

/* Both kinds of values: text that streams, and others that come when they are complete. */
static void put_writer(protocol p, bool is_forced, buf *out) {
    static const char *const tools[] = {
        ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"write\",\"parameters\":",
        ",\"tools\":[{\"name\":\"write\",\"input_schema\":",
        ",\"tools\":[{\"type\":\"function\",\"name\":\"write\",\"parameters\":"};
    static const char *const ends[] = {"}}]", "}]", "}]"};
    static const char *const choices[] = {",\"tool_choice\":\"required\"",
        ",\"tool_choice\":{\"type\":\"any\"}", ",\"tool_choice\":\"required\""};
    buf_printf(out, ",\"temperature\":0%s%s%s%s", tools[p],
        "{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"},"
        "\"lines\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}}}",
        ends[p], is_forced ? choices[p] : "");
}

static void put_format(protocol p, buf *out) {
    static const char *const heads[] = {
        ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"r\",\"schema\":",
        ",\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":",
        ",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"r\",\"schema\":"};
    buf_printf(out, "%s%s}}", heads[p], schema);
}

/* limit: 0 for the one that the case has. */
typedef struct cut {
    size_t k;
    int limit;
} cut;

static void make_body(const setting *s, int i, cut at, protocol p, buf *out) {
    static const char *const thinking[] = {",\"thinking\":true",
        ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":100000}",
        ",\"reasoning\":{\"effort\":\"high\"}"};
    static const char *const limits[] = {"max_tokens", "max_tokens", "max_output_tokens"};
    const reply_case *c = &s->cases[i];
    const char *stop = c->source != NULL ? json_str(json_get(c->source, "stop")) : "eos";
    buf_printf(out, "{\"%s\":[{\"role\":\"user\",\"content\":\"@case %d @cut %zu\"}]",
        p == RESPONSES ? "input" : "messages", i, at.k);
    int n = at.limit > 0 ? at.limit : strcmp(stop, "eos") == 0 ? 4000 : (int)c->cuts[at.k].n;
    buf_printf(out, ",\"%s\":%d", limits[p], n);
    if (c->thinks) buf_puts(out, thinking[p]);
    if (c->is_forced || c->n_calls > 0) {
        put_writer(p, c->is_forced, out);
    } else if (c->source == NULL) {
        put_format(p, out);
    }
    if (json_count(json_get(c->source, "tools")) > 0) put_tools(s, c, p, out);
}

static bool ask(setting *s, const char *path, const char *body, wire_answer *a) {
    wire *w = &s->kept;
    if (w->fd >= 0 && w->is_closed) wire_close(w);
    if (w->fd < 0) wire_open_unix(w, s->server.socket_path);
    wire_request(w, "POST", path, "", body);
    wire_read(w, a, 120000);
    return a->status == 200 && a->is_complete;
}

/* ---- reading ---- */

static const char *str_at(const json *v, const char *key) {
    const char *text = json_str(json_get(v, key));
    return text != NULL ? text : "";
}

static void said_release(said *r) {
    buf_release(&r->reasoning);
    buf_release(&r->content);
    for (int i = 0; i < CALLS_MAX; i++) {
        buf_release(&r->calls[i].name);
        buf_release(&r->calls[i].arguments);
    }
    *r = (said){0};
}

static int new_call(said *r, const json *name) {
    if (r->n_calls == CALLS_MAX) exit(1);
    json_str_bytes(name, &r->calls[r->n_calls].name);
    return r->n_calls++;
}

static void set_finish(said *r, const char *word) {
    static const char *const words[][2] = {{"end_turn", "stop"}, {"max_tokens", "length"},
        {"tool_use", "tool_calls"}, {"completed", "stop"}, {"incomplete", "length"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i][0]) == 0) word = words[i][1];
    }
    str_copy(r->finish, sizeof r->finish, word);
}

/* A chat message or delta. */
static void read_chat_part(said *r, const json *part, bool is_delta) {
    json_str_bytes(json_get(part, "reasoning_content"), &r->reasoning);
    json_str_bytes(json_get(part, "content"), &r->content);
    JSON_EACH(call, json_get(part, "tool_calls")) {
        const json *f = json_get(call, "function");
        int64_t i = r->n_calls;
        bool is_known = is_delta && json_i64(json_get(call, "index"), &i) == OK && i < r->n_calls;
        if (!is_known) i = new_call(r, json_get(f, "name"));
        json_str_bytes(json_get(f, "arguments"), &r->calls[i].arguments);
    }
}

static void read_chat_event(said *r, const json *event) {
    const json *choice = json_at(json_get(event, "choices"), 0);
    read_chat_part(r, json_get(choice, "delta"), true);
    if (json_is_string(json_get(choice, "finish_reason")))
        set_finish(r, str_at(choice, "finish_reason"));
}

static void read_chat(said *r, const json *answer) {
    const json *choice = json_at(json_get(answer, "choices"), 0);
    read_chat_part(r, json_get(choice, "message"), false);
    set_finish(r, str_at(choice, "finish_reason"));
}

static void read_block(said *r, const json *block) {
    json_str_bytes(json_get(block, "thinking"), &r->reasoning);
    json_str_bytes(json_get(block, "text"), &r->content);
    if (strcmp(str_at(block, "type"), "tool_use") != 0) return;
    int i = new_call(r, json_get(block, "name"));
    json_print(json_get(block, "input"), &r->calls[i].arguments);
}

static void read_messages_event(said *r, const json *event) {
    const char *type = str_at(event, "type");
    const json *delta = json_get(event, "delta");
    if (strcmp(type, "content_block_start") == 0) {
        const json *block = json_get(event, "content_block");
        if (strcmp(str_at(block, "type"), "tool_use") == 0) new_call(r, json_get(block, "name"));
    } else if (strcmp(type, "content_block_delta") == 0) {
        json_str_bytes(json_get(delta, "thinking"), &r->reasoning);
        json_str_bytes(json_get(delta, "text"), &r->content);
        if (json_get(delta, "partial_json") != NULL)
            json_str_bytes(json_get(delta, "partial_json"), &r->calls[r->n_calls - 1].arguments);
    } else if (strcmp(type, "message_delta") == 0) {
        set_finish(r, str_at(delta, "stop_reason"));
    }
}

static void read_messages(said *r, const json *answer) {
    JSON_EACH(block, json_get(answer, "content")) {
        read_block(r, block);
    }
    set_finish(r, str_at(answer, "stop_reason"));
}

static void read_item(said *r, const json *item) {
    const json *text = json_get(json_at(json_get(item, "content"), 0), "text");
    if (strcmp(str_at(item, "type"), "reasoning") == 0) json_str_bytes(text, &r->reasoning);
    if (strcmp(str_at(item, "type"), "message") == 0) json_str_bytes(text, &r->content);
    if (strcmp(str_at(item, "type"), "function_call") != 0) return;
    int i = new_call(r, json_get(item, "name"));
    json_str_bytes(json_get(item, "arguments"), &r->calls[i].arguments);
}

static void read_responses_event(said *r, const json *event) {
    const char *type = str_at(event, "type");
    const json *delta = json_get(event, "delta");
    const json *item = json_get(event, "item");
    if (strcmp(type, "response.output_item.added") == 0) {
        if (strcmp(str_at(item, "type"), "function_call") == 0) new_call(r, json_get(item, "name"));
    } else if (strcmp(type, "response.reasoning_text.delta") == 0) {
        json_str_bytes(delta, &r->reasoning);
    } else if (strcmp(type, "response.output_text.delta") == 0) {
        json_str_bytes(delta, &r->content);
    } else if (strcmp(type, "response.function_call_arguments.delta") == 0) {
        json_str_bytes(delta, &r->calls[r->n_calls - 1].arguments);
    } else if (json_is_object(json_get(event, "response"))) {
        set_finish(r, str_at(json_get(event, "response"), "status"));
    }
}

static void read_responses(said *r, const json *answer) {
    JSON_EACH(item, json_get(answer, "output")) {
        read_item(r, item);
    }
    set_finish(r, str_at(answer, "status"));
}

static bool read_stream(const buf *body, void (*take)(said *r, const json *event), said *r) {
    for (const char *p = buf_cstr(body); (p = strstr(p, "data: ")) != NULL;) {
        const char *end = strstr(p, "\n\n");
        json *v = NULL;
        if (end == NULL) return false;
        if (strncmp(p, "data: [DONE]", 12) != 0) {
            if (json_parse(p + 6, (size_t)(end - p - 6), NULL, &v, NULL) != OK) return false;
            take(r, v);
            json_free(v);
        }
        p = end;
    }
    return true;
}

static void (*const event_readers[])(said *r, const json *event) = {
    read_chat_event, read_messages_event, read_responses_event};
static void (*const whole_readers[])(said *r, const json *answer) = {
    read_chat, read_messages, read_responses};

/* ---- comparing ---- */

/* A call that cannot be run. */
static bool is_broken(const buf *arguments) {
    json *v = NULL;
    if (json_parse(buf_cstr(arguments), arguments->len, NULL, &v, NULL) != OK) return true;
    bool is_object = json_is_object(v);
    json_free(v);
    return !is_object;
}

/* JSON printed anew: what messages gives as an object in the whole answer comes as text in a
 * stream. */
static void print_anew(const buf *arguments, buf *out) {
    json *v = NULL;
    if (json_parse(buf_cstr(arguments), arguments->len, NULL, &v, NULL) == OK) json_print(v, out);
    json_free(v);
}

/* PRINT_FIT: without broken calls, which the vectors leave out when they were badly written (not when
 * they were cut). */
typedef enum print_how { PRINT_ALL, PRINT_FIT, PRINT_ANEW } print_how;

static print_how how_of(protocol p) {
    return p == MESSAGES ? PRINT_ANEW : PRINT_ALL;
}

static void print_said(const said *r, print_how how, buf *out) {
    buf_printf(out, "reasoning '%s' content '%s'", buf_cstr(&r->reasoning), buf_cstr(&r->content));
    for (int i = 0; i < r->n_calls; i++) {
        const buf *arguments = &r->calls[i].arguments;
        if (how == PRINT_FIT && is_broken(arguments)) continue;
        buf_printf(out, " call %s ", buf_cstr(&r->calls[i].name));
        if (how == PRINT_ANEW) {
            print_anew(arguments, out);
        } else {
            buf_append(out, buf_cstr(arguments), arguments->len);
        }
    }
    buf_printf(out, " finish %s", r->finish);
}

static void expect_same(setting *s, const char *id, const buf *want, const buf *got) {
    if (strcmp(buf_cstr(want), buf_cstr(got)) == 0) {
        vectors_pass(&s->v);
    } else {
        vectors_fail(&s->v, id, buf_cstr(want), buf_cstr(got));
    }
}

static void compare_golden(setting *s, const reply_case *c, const said *whole) {
    const json *expect = json_get(c->source, "expect");
    said want = {0};
    buf a = BUF_INIT, b = BUF_INIT;
    if (expect == NULL || json_count(json_get(c->source, "tools")) == 0) return;
    json_str_bytes(json_get(expect, "reasoning_content"), &want.reasoning);
    json_str_bytes(json_get(expect, "content"), &want.content);
    JSON_EACH(call, json_get(expect, "tool_calls")) {
        int i = new_call(&want, json_get(call, "name"));
        json_str_bytes(json_get(call, "arguments"), &want.calls[i].arguments);
    }
    set_finish(&want, str_at(expect, "finish_reason"));
    print_said(&want, PRINT_ALL, &a);
    print_said(whole, whole->n_calls > want.n_calls ? PRINT_FIT : PRINT_ALL, &b);
    expect_same(s, c->id, &a, &b);
    buf_release(&a);
    buf_release(&b);
    said_release(&want);
}

static bool read_whole(setting *s, int i, cut at, protocol p, said *out) {
    buf body = BUF_INIT;
    wire_answer a;
    json *v = NULL;
    make_body(s, i, at, p, &body);
    buf_putc(&body, '}');
    bool is_fine = ask(s, paths[p], buf_cstr(&body), &a) &&
                   json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL) == OK;
    if (is_fine) whole_readers[p](out, v);
    if (!is_fine) vectors_fail(&s->v, s->cases[i].id, "a whole answer", buf_cstr(&a.body));
    json_free(v);
    wire_answer_release(&a);
    buf_release(&body);
    return is_fine;
}

static void compare_cut(setting *s, int i, cut at, protocol p, const buf *want) {
    buf body = BUF_INIT, got = BUF_INIT;
    wire_answer a;
    said streamed = {0};
    char id[128];
    (void)snprintf(
        id, sizeof id, "%s, %s, cut %zu limit %d", paths[p], s->cases[i].id, at.k, at.limit);
    make_body(s, i, at, p, &body);
    buf_puts(&body, ",\"stream\":true}");
    if (ask(s, paths[p], buf_cstr(&body), &a) &&
        read_stream(&a.body, event_readers[p], &streamed)) {
        print_said(&streamed, how_of(p), &got);
    } else {
        buf_puts(&got, buf_cstr(&a.body));
    }
    expect_same(s, id, want, &got);
    said_release(&streamed);
    wire_answer_release(&a);
    buf_release(&body);
    buf_release(&got);
}

/* A spoilt call is there and cannot be run; where a call is an object it is not there. Those beside it
 * stand. */
static void check_broken(setting *s, const reply_case *c, protocol p, const said *whole) {
    buf want = BUF_INIT, got = BUF_INIT;
    int n_shown = p == MESSAGES ? 0 : c->n_broken;
    int n_sound = c->n_calls - c->n_broken;
    int n_broken = 0;
    for (int i = 0; i < whole->n_calls; i++)
        n_broken += is_broken(&whole->calls[i].arguments);
    buf_printf(&want, "%d calls, %d broken, %s", n_sound + n_shown, n_shown,
        p == RESPONSES || n_sound == 0 ? "stop" : "tool_calls");
    buf_printf(&got, "%d calls, %d broken, %s", whole->n_calls, n_broken, whole->finish);
    expect_same(s, c->id, &want, &got);
    buf_release(&want);
    buf_release(&got);
}

static void run_case(setting *s, int i, protocol p) {
    const reply_case *c = &s->cases[i];
    said whole = {0};
    buf want = BUF_INIT;
    if (c->cuts == NULL) return;
    if (read_whole(s, i, (cut){.k = c->text.len}, p, &whole)) {
        if (p == CHAT) compare_golden(s, c, &whole);
        if (c->n_calls > 0) check_broken(s, c, p, &whole);
        print_said(&whole, how_of(p), &want);
        for (size_t k = 0; k <= c->text.len; k += CUT_STEP) {
            if (c->cuts[k].n > 0) compare_cut(s, i, (cut){.k = k}, p, &want);
        }
    }
    said_release(&whole);
    buf_release(&want);
}

/* No call of a whole messages answer is broken: its input is an object, which could be run. */
static void check_inputs(setting *s, const said *whole, const char *id) {
    for (int i = 0; i < whole->n_calls; i++) {
        if (!is_broken(&whole->calls[i].arguments)) continue;
        vectors_fail(&s->v, id, "whole input", buf_cstr(&whole->calls[i].arguments));
    }
}

static void run_forced(setting *s, int i, protocol p) {
    const reply_case *c = &s->cases[i];
    for (int n = 1; n <= c->cuts[0].n + 1; n++) {
        said whole = {0};
        buf want = BUF_INIT;
        if (read_whole(s, i, (cut){.limit = n}, p, &whole)) {
            if (p == MESSAGES) check_inputs(s, &whole, c->id);
            print_said(&whole, how_of(p), &want);
            compare_cut(s, i, (cut){.limit = n}, p, &want);
        }
        said_release(&whole);
        buf_release(&want);
    }
}

static void release(setting *s) {
    for (int i = 0; i < s->n_cases; i++) {
        for (size_t k = 0; k <= s->cases[i].text.len && s->cases[i].cuts != NULL; k++)
            mem_free((void *)(uintptr_t)s->cases[i].cuts[k].tokens);
        mem_free(s->cases[i].cuts);
        buf_release(&s->cases[i].text);
    }
    for (int32_t i = 0; i < s->n_pieces; i++)
        mem_free((void *)(uintptr_t)s->pieces[i]);
    mem_free(s->pieces);
    json_free(s->golden);
    json_free(s->tools);
    tokenizer_close(s->tokenizer);
}

int main(void) {
    static setting s = {.kept.fd = -1};
    (void)signal(SIGPIPE, SIG_IGN);
    s.tokenizer = stub_tokenizer_open();
    if (s.tokenizer == NULL) {
        (void)printf("skipped: no demo tokenizer here\n");
        return 77;
    }
    s.n_base = tokenizer_size(s.tokenizer);
    s.golden = vectors_load(vectors_golden_dir(), "chat/parse-serving.json");
    s.tools = vectors_load(vectors_golden_dir(), "chat/tools.json");
    add_golden(&s);
    add_schema(&s, "{\"a\": 12, \"b\": \"x \\\" \xE2\x82\xAC y\"}", false);
    add_schema(&s, "Let me \xE2\x82\xAC see.</think>{\"a\": -3, \"b\": \"ok\"}", true);
    add_forced(&s, CALLS, false);
    add_forced(&s, "Both files.</think>" CALLS, true);
    add_broken(&s, BLOCK(BROKEN_EMPTY), 1, 1);
    add_broken(&s, BLOCK(BROKEN_BODY), 1, 1);
    add_broken(&s, BLOCK(BROKEN_VALUE), 1, 1);
    add_broken(&s, "Two." BLOCK(BROKEN_VALUE SOUND_BODY BROKEN_EMPTY), 3, 2);
    stub_server_options o = {.tokenizer = s.tokenizer,
        .script = {.choose = choose,
            .choose_ctx = &s,
            .pieces = s.pieces,
            .n_pieces = s.n_pieces,
            .max_rows = 512}};
    stub_server_start(&s.server, &o);
    for (int i = 0; i < s.n_cases; i++) {
        for (protocol p = CHAT; p < N_PROTOCOLS; p++)
            s.cases[i].is_forced ? run_forced(&s, i, p) : run_case(&s, i, p);
    }
    wire_close(&s.kept);
    stub_server_stop(&s.server);
    release(&s);
    return vectors_end(&s.v);
}
