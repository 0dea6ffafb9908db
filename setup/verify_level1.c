/* The six lines of level 1. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "setup/verify_internal.h"

const char VERIFY_SUM_BODY[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 17 + 19?\"}],"
    "\"temperature\":0,\"max_tokens\":64,\"reasoning_effort\":\"none\"}";

static const char THINKING_BODY[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"I have 95 apples and give away 75. How many apples do I have?\"}],"
    "\"temperature\":0,\"max_tokens\":2000,\"reasoning_effort\":\"medium\",\"stream\":true,"
    "\"stream_options\":{\"include_usage\":true}}";

static const char TOOL_BODY[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"What is the weather in Oslo for the next 3 days?\"}],"
    "\"temperature\":0,\"max_tokens\":400,\"reasoning_effort\":\"none\",\"tools\":[{\"type\":\"function\",\"function\":{"
    "\"name\":\"get_weather\",\"description\":\"Weather of a city\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\",\"maxLength\":40},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14}},"
    "\"required\":[\"city\",\"days\"],\"additionalProperties\":false}}}],"
    "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}}";

static const char SCHEMA_BODY[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Anna is 31 years old and lives in Oslo. Return JSON.\"}],"
    "\"temperature\":0,\"max_tokens\":400,\"reasoning_effort\":\"none\",\"response_format\":{\"type\":\"json_schema\","
    "\"json_schema\":{\"name\":\"person\",\"strict\":true,\"schema\":{\"type\":\"object\",\"properties\":{"
    "\"name\":{\"type\":\"string\",\"maxLength\":30},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},"
    "\"home\":{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"town\",\"village\",\"farm\"]}},"
    "\"required\":[\"kind\"],\"additionalProperties\":false}},\"required\":[\"name\",\"age\",\"home\"],"
    "\"additionalProperties\":false}}}}";

static void check_chat(verify_run_state *s, verify_line *l) {
    verify_reply r;
    if (verify_chat(s, VERIFY_SUM_BODY, false, l, &r) == OK) {
        const char *content = buf_cstr(&r.content);
        if (strstr(content, "36") == NULL) {
            verify_judge(l, VERIFY_FAIL, "36 is not in the answer");
        } else if (strcmp(r.finish, "stop") != 0) {
            verify_judge(l, VERIFY_FAIL, "finish_reason is not stop");
        } else if (r.reasoning.len > 0) {
            verify_judge(l, VERIFY_FAIL, "there is reasoning although thinking is off");
        } else if (r.completion_tokens < 1 || r.prompt_tokens < 1) {
            verify_judge(l, VERIFY_FAIL, "usage is missing");
        } else {
            verify_judge(l, VERIFY_PASS, NULL);
            buf_append(&s->first_text, r.content.data, r.content.len);
        }
    }
    verify_reply_release(&r);
}

static void check_thinking(verify_run_state *s, verify_line *l) {
    verify_reply r;
    if (verify_chat(s, THINKING_BODY, true, l, &r) == OK) {
        if (r.has_error) {
            verify_judge(l, VERIFY_FAIL, "the stream carries an error event");
        } else if (!r.has_done) {
            verify_judge(l, VERIFY_FAIL, "the stream has no [DONE]");
        } else if (r.reasoning.len == 0) {
            verify_judge(l, VERIFY_FAIL, "reasoning_content is empty");
        } else if (r.content.len == 0) {
            verify_judge(l, VERIFY_FAIL, "content is empty");
        } else if (r.completion_tokens < 1) {
            verify_judge(l, VERIFY_FAIL, "the stream has no usage");
        } else {
            verify_judge(l, VERIFY_PASS, NULL);
        }
    }
    verify_reply_release(&r);
}

/* NULL when the arguments are as asked. */
static const char *wrong_arguments(const verify_reply *r) {
    json *v = NULL;
    int64_t days = 0;
    const char *wrong = NULL;
    if (json_parse(r->call_arguments.data, r->call_arguments.len, NULL, &v, NULL) != OK ||
        !json_is_object(v)) {
        wrong = "the arguments are no JSON object";
    } else if (!json_is_string(json_get(v, "city"))) {
        wrong = "the argument city is missing or no string";
    } else if (json_i64(json_get(v, "days"), &days) != OK || days < 1 || days > 14) {
        wrong = "the argument days is missing or not between 1 and 14";
    } else if (json_count(v) != 2) {
        wrong = "there are arguments that were not asked for";
    }
    json_free(v);
    return wrong;
}

static void check_tool(verify_run_state *s, verify_line *l) {
    verify_reply r;
    if (verify_chat(s, TOOL_BODY, false, l, &r) == OK) {
        const char *wrong = NULL;
        if (strcmp(r.finish, "tool_calls") != 0) {
            wrong = "finish_reason is not tool_calls";
        } else if (strcmp(buf_cstr(&r.call_name), "get_weather") != 0) {
            wrong = "the call is not get_weather";
        } else {
            wrong = wrong_arguments(&r);
        }
        verify_judge(l, wrong == NULL ? VERIFY_PASS : VERIFY_FAIL, wrong);
    }
    verify_reply_release(&r);
}

static void check_schema(verify_run_state *s, verify_line *l) {
    verify_reply r;
    json *v = NULL;
    if (verify_chat(s, SCHEMA_BODY, false, l, &r) == OK) {
        int64_t age = -1;
        const char *wrong = NULL, *kind = NULL;
        if (json_parse(r.content.data, r.content.len, NULL, &v, NULL) != OK || !json_is_object(v)) {
            wrong = "the content is no JSON object, or has text around it";
        } else if (!json_is_string(json_get(v, "name")) || json_count(v) != 3) {
            wrong = "name is missing or there are keys that were not asked for";
        } else if (json_i64(json_get(v, "age"), &age) != OK || age < 0 || age > 150) {
            wrong = "age is no integer between 0 and 150";
        } else if ((kind = json_str(json_get(json_get(v, "home"), "kind"))) == NULL ||
                   (strcmp(kind, "town") != 0 && strcmp(kind, "village") != 0 &&
                       strcmp(kind, "farm") != 0)) {
            wrong = "home.kind is none of town, village, farm";
        }
        verify_judge(l, wrong == NULL ? VERIFY_PASS : VERIFY_FAIL, wrong);
    }
    json_free(v);
    verify_reply_release(&r);
}

typedef struct beside {
    const verify_run_state *state;
    verify_line line;
    verify_reply reply;
    int rc;
} beside;

static void *run_beside(void *arg) {
    beside *b = arg;
    b->rc = verify_chat(b->state, VERIFY_SUM_BODY, false, &b->line, &b->reply);
    return NULL;
}

/* NULL when every bad request got a 400 with an error object. */
static const char *wrong_refusal(const verify_run_state *s, verify_line *l) {
    static const char *const bad[] = {
        "{\"messages\":[{\"role\":\"nobody\",\"content\":\"x\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":-1}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1000000000}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        verify_answer a;
        err e = ERR_INIT;
        json *v = NULL;
        const char *wrong = NULL;
        if (verify_http(s->options, "/v1/chat/completions", bad[i], NULL, &a, &e) != OK) {
            wrong = "a bad request was not answered";
        } else if (a.status != 400) {
            wrong = "a bad request did not get status 400";
        } else if (json_parse(a.body.data, a.body.len, NULL, &v, NULL) != OK ||
                   !json_is_string(json_get(json_get(v, "error"), "message"))) {
            wrong = "a bad request did not get an error object";
        }
        if (wrong != NULL) {
            char text[200];
            verify_error_text(&a, text, sizeof text);
            verify_got(l, text);
        }
        json_free(v);
        verify_answer_release(&a);
        if (wrong != NULL) return wrong;
    }
    return NULL;
}

static void check_isolation(verify_run_state *s, verify_line *l) {
    beside b = {.state = s, .line = *l};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_beside, &b) != 0) {
        verify_judge(l, VERIFY_FAIL, "no thread for the request beside");
        return;
    }
    const char *wrong = wrong_refusal(s, l);
    pthread_join(thread, NULL);
    verify_answer health;
    err e = ERR_INIT;
    int rc = verify_http(s->options, "/health", NULL, NULL, &health, &e);
    if (wrong == NULL && b.rc != OK) wrong = b.line.reason;
    if (wrong == NULL && s->first_text.len == 0)
        wrong = "the first line did not pass, so there is nothing to compare with";
    if (wrong == NULL &&
        (b.reply.content.len != s->first_text.len ||
            memcmp(b.reply.content.data, s->first_text.data, s->first_text.len) != 0))
        wrong = "the request beside the bad ones gave another text";
    if (wrong == NULL && (rc != OK || health.status != 200))
        wrong = "/health is not well afterwards";
    if (l->got[0] == '\0') verify_got(l, buf_cstr(&b.reply.content));
    verify_judge(l, wrong == NULL ? VERIFY_PASS : VERIFY_FAIL, wrong);
    verify_answer_release(&health);
    verify_reply_release(&b.reply);
}

static void check_tokenize(verify_run_state *s, verify_line *l) {
    verify_answer a, back;
    err e = ERR_INIT;
    json *v = NULL, *w = NULL;
    buf body = BUF_INIT;
    const char *text = "Tandem counts 1, 2, 3.", *wrong = NULL;
    back = (verify_answer){.body = BUF_INIT};
    if (verify_http(s->options, "/tokenize",
            "{\"prompt\":\"Tandem counts 1, 2, 3.\",\"add_special_tokens\":false}", NULL, &a,
            &e) != OK) {
        wrong = e.msg;
    } else if (a.status != 200 || json_parse(a.body.data, a.body.len, NULL, &v, NULL) != OK) {
        wrong = "/tokenize gave no tokens";
    } else {
        buf_puts(&body, "{\"tokens\":");
        json_print_compact(json_get(v, "tokens"), &body);
        buf_puts(&body, "}");
        if (verify_http(s->options, "/detokenize", buf_cstr(&body), NULL, &back, &e) != OK ||
            back.status != 200 || json_parse(back.body.data, back.body.len, NULL, &w, NULL) != OK) {
            wrong = "/detokenize gave no text";
        } else {
            const char *got = json_str(json_get(w, "prompt"));
            verify_got(l, got != NULL ? got : "");
            if (got == NULL || strcmp(got, text) != 0)
                wrong = "the text did not come back as it was sent";
        }
    }
    verify_judge(l, wrong == NULL ? VERIFY_PASS : VERIFY_FAIL, wrong);
    json_free(v);
    json_free(w);
    buf_release(&body);
    verify_answer_release(&a);
    verify_answer_release(&back);
}

const verify_check *verify_level_1(size_t *n) {
    static const verify_check checks[] = {
        {"chat", "17 + 19, temperature 0, thinking off",
            "36 in the text, finish stop, usage, no reasoning", check_chat},
        {"thinking", "a small puzzle, effort medium, streamed",
            "reasoning and content, usage, [DONE]", check_thinking},
        {"tool", "a forced call with a string and an integer",
            "finish tool_calls, arguments as declared", check_tool},
        {"schema", "a JSON schema with nesting, enum and range", "valid JSON and nothing around it",
            check_schema},
        {"isolation", "three bad requests beside the first one",
            "each 400; the other gives the same text", check_isolation},
        {"tokenize", "a sentence to tokens and back", "the same sentence", check_tokenize},
    };
    *n = sizeof checks / sizeof *checks;
    return checks;
}
