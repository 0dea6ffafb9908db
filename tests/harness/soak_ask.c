#include "tests/harness/soak_ask.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"

enum { N_DOCUMENTS = 6, ANSWER_MS = 120000 };

static const char *const words[] = {"the", "dog", "house", "sea", "red", "big", "runs", "stone",
    "river", "and", "old", "night", "king", "bread", "falls", "of", "three", "blue", "tree",
    "sings"};
enum { N_WORDS = sizeof words / sizeof words[0] };

static const char *const questions[] = {"What is the capital of France?",
    "Tell me a story about a dog.", "Count from one to twenty.", "Who are you?",
    "What did I say first?", "Repeat the last sentence.", "List three colours.", "Why?",
    "Write a short poem about the sea.", "Is the house red or blue?"};
enum { N_QUESTIONS = sizeof questions / sizeof questions[0] };

static uint32_t below(rand_state *r, uint32_t n) {
    return rand_u32(r) % n;
}

static void put_message(buf *out, const char *role, const char *text) {
    buf_printf(out, "%s{\"role\":\"%s\",\"content\":", out->len > 0 ? "," : "", role);
    json_quote(out, text, strlen(text));
    buf_putc(out, '}');
}

/* Documents are few and long, so that many conversations share one; some stop in the middle. */
static void put_document(buf *out, rand_state *r) {
    rand_state text;
    uint32_t which = below(r, N_DOCUMENTS);
    uint32_t n = (which + 1) * 60;
    buf document = BUF_INIT;
    if (below(r, 4) == 0) n = 1 + below(r, n);
    rand_init(&text, 1000 + which, 1);
    for (uint32_t i = 0; i < n; i++) {
        buf_printf(&document, "%s%s", words[below(&text, N_WORDS)], i % 13 == 12 ? ". " : " ");
    }
    put_message(out, "system", buf_cstr(&document));
    buf_release(&document);
}

static void put_sampling(buf *out, rand_state *r) {
    buf_printf(out, ",\"max_tokens\":%u,\"temperature\":%s,\"seed\":%u",
        below(r, 5) == 0 ? 1 + below(r, 90) : 1 + below(r, 16), below(r, 2) == 0 ? "0" : "0.9",
        below(r, 1000));
    if (below(r, 4) == 0) buf_puts(out, ",\"top_p\":0.8");
    if (below(r, 5) == 0) buf_puts(out, ",\"stop\":[\"the\",\"\\n\\n\"]");
}

/* What only the chat and completions forms know. */
static void put_more_sampling(buf *out, rand_state *r) {
    if (below(r, 5) == 0) buf_puts(out, ",\"top_k\":20,\"min_p\":0.02");
    if (below(r, 5) == 0) buf_puts(out, ",\"presence_penalty\":0.7");
    if (below(r, 6) == 0) buf_puts(out, ",\"frequency_penalty\":0.4");
    if (below(r, 8) == 0) buf_puts(out, ",\"repetition_penalty\":1.2");
    if (below(r, 8) == 0) buf_puts(out, ",\"logit_bias\":{\"300\":-100,\"500\":2}");
    if (below(r, 4) == 0) buf_printf(out, ",\"cache_salt\":\"salt%u\"", below(r, 2));
    if (below(r, 6) == 0) buf_puts(out, ",\"priority\":\"background\"");
}

static void put_chat_forms(buf *out, rand_state *r, bool *is_single) {
    static const char schema[] =
        ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":"
        "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"},\"y\":{\"enum\":[\"a\","
        "\"b\"]}},\"required\":[\"x\",\"y\"],\"additionalProperties\":false}}}";
    static const char tools[] =
        ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"at\":{\"type\":\"string\",\"maxLength\":8}},\"required\":"
        "[\"at\"]}}}],\"tool_choice\":\"%s\"";
    switch (below(r, 10)) {
    case 0:
        buf_puts(out, schema);
        break;
    case 1:
        buf_printf(out, tools, below(r, 2) == 0 ? "required" : "auto");
        break;
    case 2:
        buf_puts(out, ",\"logprobs\":true,\"top_logprobs\":3");
        break;
    case 3:
        buf_puts(out, ",\"n\":2");
        *is_single = false;
        break;
    case 4:
        buf_puts(out, ",\"thinking\":{\"type\":\"enabled\"}");
        break;
    default:
        break;
    }
}

static void make_chat(soak_ask *a, rand_state *r) {
    a->path = "/v1/chat/completions";
    a->is_chat = true;
    buf_printf(&a->body, "{\"messages\":[%s]", buf_cstr(&a->messages));
    put_sampling(&a->body, r);
    put_more_sampling(&a->body, r);
    put_chat_forms(&a->body, r, &a->is_chat);
    buf_putc(&a->body, '}');
}

static void make_other(soak_ask *a, rand_state *r) {
    static const char *const texts[] = {"Once upon a time", "The king said: ", "1, 2, 3,"};
    uint32_t which = below(r, 3);
    if (which == 0) {
        a->path = "/v1/completions";
        buf_printf(&a->body, "{\"prompt\":\"%s\"", texts[below(r, 3)]);
        put_more_sampling(&a->body, r);
        put_sampling(&a->body, r);
    } else if (which == 1) {
        a->path = "/v1/messages";
        buf_printf(&a->body,
            "{\"model\":\"tandem-demo\",\"max_tokens\":%u,\"temperature\":0,\"messages\":[%s]",
            1 + below(r, 20), buf_cstr(&a->messages));
    } else {
        a->path = "/v1/responses";
        buf_printf(&a->body, "{\"max_output_tokens\":%u,\"temperature\":0,\"input\":[%s]",
            16 + below(r, 10), buf_cstr(&a->messages));
    }
    buf_putc(&a->body, '}');
}

void soak_ask_make(soak_ask *a, uint64_t seed, const soak_past *before, const char *fault_text) {
    rand_state r;
    rand_init(&r, seed, 7);
    *a = (soak_ask){.messages = BUF_INIT, .body = BUF_INIT};
    if (before != NULL) {
        buf_puts(&a->messages, buf_cstr(&before->ask->messages));
        put_message(&a->messages, "assistant", before->reply);
    }
    bool is_plain = before == NULL && below(&r, 6) == 0; /* no system message: other forms */
    if (before == NULL && !is_plain && below(&r, 3) > 0) put_document(&a->messages, &r);
    if (fault_text != NULL) {
        put_message(&a->messages, "user", fault_text);
    } else {
        put_message(&a->messages, "user", questions[below(&r, N_QUESTIONS)]);
    }
    if (is_plain) {
        make_other(a, &r);
    } else {
        make_chat(a, &r);
    }
}

void soak_ask_release(soak_ask *a) {
    buf_release(&a->messages);
    buf_release(&a->body);
}

/* ---- comparing ---- */

static bool is_ignored(const char *key) {
    static const char *const keys[] = {"id", "created", "created_at", "completed_at", "timings",
        "prompt_tokens_details", "input_tokens_details", "prompt_cache_hit_tokens",
        "prompt_cache_miss_tokens", "cache_read_input_tokens", "input_tokens", "call_id",
        "system_fingerprint", "signature"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(key, keys[i]) == 0) return true;
    }
    return false;
}

/* Depth is bounded by the parser. */
static bool same_value(const json *a, const json *b, char *why, size_t cap) {
    if (json_is_object(a) && json_is_object(b) && json_count(a) == json_count(b)) {
        JSON_EACH(x, a) {
            const json *y = json_get(b, json_key(x));
            if (is_ignored(json_key(x))) continue;
            if (y == NULL || !same_value(x, y, why, cap)) {
                if (why[0] == '\0') snprintf(why, cap, "%s", json_key(x));
                return false;
            }
        }
        return true;
    }
    if (json_is_array(a) && json_is_array(b) && json_count(a) == json_count(b)) {
        for (size_t i = 0; i < json_count(a); i++) {
            if (!same_value(json_at(a, i), json_at(b, i), why, cap)) return false;
        }
        return true;
    }
    buf x = BUF_INIT;
    buf y = BUF_INIT;
    json_print_compact(a, &x);
    json_print_compact(b, &y);
    bool is_same = x.len == y.len && memcmp(buf_cstr(&x), buf_cstr(&y), x.len) == 0;
    if (!is_same) snprintf(why, cap, "%.300s against %.300s", buf_cstr(&x), buf_cstr(&y));
    buf_release(&x);
    buf_release(&y);
    return is_same;
}

bool soak_same(const buf *a, const buf *b, char *why, size_t why_cap) {
    json *x = NULL;
    json *y = NULL;
    bool is_same = false;
    why[0] = '\0';
    if (json_parse(a->data, a->len, NULL, &x, NULL) == OK &&
        json_parse(b->data, b->len, NULL, &y, NULL) == OK) {
        is_same = same_value(x, y, why, why_cap);
    } else {
        snprintf(why, why_cap, "an answer is no JSON");
    }
    json_free(x);
    json_free(y);
    return is_same;
}

/* ---- bad requests ---- */

typedef struct bad_request {
    const char *method, *path, *body;
    int status; /* 0: any from 400 to 499, or the connection closed */
} bad_request;

static const bad_request bad_requests[SOAK_BAD_REQUESTS] = {
    {"POST", "/v1/chat/completions", "{", 400},
    {"POST", "/v1/chat/completions", "{\"messages\":[]}", 400},
    {"POST", "/v1/chat/completions", "{\"messages\":\"hello\"}", 400},
    {"POST", "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":99}", 400},
    {"POST", "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}", 400},
    {"POST", "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"response_format\":{\"type\":"
        "\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"type\":\"nothing\"}}}}",
        400},
    {"GET", "/v1/no/such/place", NULL, 404},
    {"DELETE", "/v1/chat/completions", NULL, 405},
    {"POST", "/v1/completions", "[1,2,3]", 400},
    {"POST", "/tandem/v1/cancel", "{\"id\":\"nobody\"}", 404},
    {"GO AWAY", "no path", NULL, 0},
    {"POST", "/v1/chat/completions", NULL, 0},
};

bool soak_send_bad(wire *w, int i, char *why, size_t why_cap) {
    const bad_request *b = &bad_requests[i];
    wire_answer a;
    wire_request(w, b->method, b->path, "", b->body);
    wire_read(w, &a, ANSWER_MS);
    bool is_refused = b->status != 0 ? a.status == b->status
                                     : (a.status >= 400 && a.status < 500) || w->is_closed;
    if (!is_refused) {
        snprintf(why, why_cap, "%s %s was answered with %d", b->method, b->path, a.status);
    }
    wire_answer_release(&a);
    return is_refused;
}
