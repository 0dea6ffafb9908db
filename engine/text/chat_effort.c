/* Thinking and effort of a request (chat.md 6.1, 6.2). The one place of the effort table. */
#include <string.h>

#include "engine/base/str.h"
#include "engine/text/chat_internal.h"

typedef enum toggle { TOGGLE_ABSENT, TOGGLE_OFF, TOGGLE_ON } toggle;

int chat_effort_budget(const char *value) {
    static const struct {
        const char *name;
        int budget;
    } table[] = {
        {"none", 0},
        {"off", 0},
        {"minimal", 50},
        {"low", 50},
        {"medium", 75},
        {"high", 75},
        {"xhigh", 75},
        {"max", 100},
        {"ultra", 100},
    };
    char word[16];
    size_t from = strspn(value, " \t\r\n"), len = strlen(value);
    while (len > from && strchr(" \t\r\n", value[len - 1]) != NULL)
        len--;
    if (len - from == 0 || len - from >= sizeof word) return -1;
    memcpy(word, value + from, len - from);
    word[len - from] = 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (str_eq_nocase(word, table[i].name)) return table[i].budget;
    }
    uint64_t number = 0;
    bool is_number = parse_u64(word, &number) == OK && number >= 1 && number <= 100;
    return is_number ? (int)number : -1;
}

static int refuse(err *e, const char *param, const char *why) {
    int rc = err_set(e, ERR_ARG, "%s: %s", param, why);
    err_place(e, "%s", param);
    return rc;
}

/* A switch that is a bool. */
static int read_bool(const json *v, const char *param, toggle *out, err *e) {
    if (v == NULL || json_is_null(v)) return OK;
    if (!json_is_bool(v)) return refuse(e, param, "must be true or false");
    *out = json_is_true(v) ? TOGGLE_ON : TOGGLE_OFF;
    return OK;
}

/* A switch that is a bool or {"type": "enabled" | "adaptive" | "disabled"}. */
static int read_thinking(const json *v, const char *param, toggle *out, err *e) {
    if (!json_is_object(v)) {
        if (v == NULL || json_is_null(v) || json_is_bool(v)) return read_bool(v, param, out, e);
        return refuse(e, param, "must be true, false or an object with a type");
    }
    const char *type = json_str(json_get(v, "type"));
    if (str_eq(type, "enabled") || str_eq(type, "adaptive"))
        *out = TOGGLE_ON;
    else if (str_eq(type, "disabled"))
        *out = TOGGLE_OFF;
    else
        return refuse(e, param, "type must be enabled, adaptive or disabled");
    return OK;
}

static int read_object(const json *body, const char *param, const json **out, err *e) {
    *out = json_get(body, param);
    if (*out == NULL || json_is_null(*out) || json_is_object(*out)) return OK;
    return refuse(e, param, "must be an object");
}

static int read_switch(const json *body, toggle *out, err *e) {
    const json *kwargs = NULL, *reasoning = NULL;
    int rc = read_object(body, "chat_template_kwargs", &kwargs, e);
    if (rc == OK) rc = read_object(body, "reasoning", &reasoning, e);
    if (rc == OK) rc = read_thinking(json_get(body, "thinking"), "thinking", out, e);
    if (rc == OK && *out == TOGGLE_ABSENT) {
        rc = read_bool(
            json_get(kwargs, "enable_thinking"), "chat_template_kwargs.enable_thinking", out, e);
    }
    if (rc == OK && *out == TOGGLE_ABSENT) {
        rc = read_thinking(json_get(kwargs, "thinking"), "chat_template_kwargs.thinking", out, e);
    }
    if (rc == OK && *out == TOGGLE_ABSENT) {
        rc = read_bool(json_get(reasoning, "enabled"), "reasoning.enabled", out, e);
    }
    if (rc == OK && *out == TOGGLE_ABSENT) {
        rc = read_bool(json_get(body, "enable_thinking"), "enable_thinking", out, e);
    }
    return rc;
}

static const json *find_effort(const json *body) {
    const json *found[] = {
        json_get(body, "reasoning_effort"),
        json_get(json_get(body, "reasoning"), "effort"),
        json_get(json_get(body, "chat_template_kwargs"), "reasoning_effort"),
    };
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++) {
        if (found[i] != NULL && !json_is_null(found[i])) return found[i];
    }
    return NULL;
}

/* -1 without an effort. */
static int read_effort(const json *body, int *budget, err *e) {
    const json *v = find_effort(body);
    *budget = -1;
    if (v == NULL) return OK;
    int64_t number = 0;
    if (json_is_string(v))
        *budget = chat_effort_budget(json_str(v));
    else if (json_i64(v, &number) == OK && number >= 1 && number <= 100)
        *budget = (int)number;
    if (*budget >= 0) return OK;
    return refuse(e, "reasoning_effort",
        "must be none, minimal, low, medium, high, xhigh, max, ultra or a number from 1 to 100");
}

int chat_thinking_of(
    const json *body, const chat_settings *settings, bool *is_thinking, int *budget, err *e) {
    toggle given = TOGGLE_ABSENT;
    int effort = -1;
    int rc = read_switch(body, &given, e);
    if (rc == OK) rc = read_effort(body, &effort, e);
    if (rc != OK) return rc;
    if (given != TOGGLE_ABSENT)
        *is_thinking = given == TOGGLE_ON;
    else if (effort >= 0)
        *is_thinking = effort > 0;
    else
        *is_thinking = settings != NULL && settings->thinks_by_default;
    *budget = !*is_thinking ? 0 : effort > 0 ? effort : CHAT_DEFAULT_BUDGET;
    return OK;
}
