#include "engine/api/params.h"

#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/constraint.h"
#include "engine/api/fields.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/text/chat.h"

#define TOP_P_THINKING 0.95f
#define TOOL_NAME_MAX 128

static int read_sampling(const json *body, gen_params *p, api_error *e) {
    sample_params *s = &p->sampling;
    int64_t top_k = 0;
    int rc = field_double(body, "temperature", (double_range){0, 2, false}, &s->temperature, e);
    if (rc == OK) rc = field_double(body, "top_p", (double_range){0, 1, false}, &s->top_p, e);
    if (rc == OK) rc = field_double(body, "min_p", (double_range){0, 1, false}, &s->min_p, e);
    if (rc == OK) rc = field_int(body, "top_k", (int_range){INT64_MIN, INT64_MAX}, &top_k, e);
    const double_range penalty = {-2, 2, false};
    if (rc == OK) rc = field_double(body, "presence_penalty", penalty, &s->presence_penalty, e);
    if (rc == OK) rc = field_double(body, "frequency_penalty", penalty, &s->frequency_penalty, e);
    const double_range repetition = {0, 2, true};
    if (rc == OK) {
        rc = field_double(body, "repetition_penalty", repetition, &s->repetition_penalty, e);
    }
    if (rc == OK) rc = field_seed(body, "seed", &s->seed, &p->has_seed, e);
    s->top_k = (int32_t)(top_k > INT32_MAX ? INT32_MAX : top_k < 0 ? 0 : top_k);
    p->has_temperature = field_get(body, "temperature") != NULL;
    p->has_top_p = field_get(body, "top_p") != NULL;
    return rc;
}

static int read_limits(const json *body, gen_params *p, api_error *e) {
    const int_range limit = {1, INT64_MAX};
    const int_range older = {p->takes_zero ? 0 : 1, INT64_MAX};
    int rc = field_int(body, "max_tokens", older, &p->max_tokens, e);
    if (rc == OK && field_get(body, "max_tokens") != NULL) {
        p->max_tokens_field = "max_tokens";
        p->scores_only = p->max_tokens == 0;
    }
    int64_t newer = 0;
    if (rc == OK) rc = field_int(body, "max_completion_tokens", limit, &newer, e);
    if (rc == OK && newer > 0) {
        p->max_tokens = newer;
        p->scores_only = false;
        p->max_tokens_field = "max_completion_tokens";
    }
    if (rc == OK) rc = field_int(body, "n", (int_range){1, PARAMS_N_MAX}, &p->n, e);
    const int_range budget = {0, INT64_MAX};
    if (rc == OK) rc = field_int(body, "thinking_budget", budget, &p->thinking_budget, e);
    if (rc == OK) rc = field_bool(body, "loop_guard", &p->guards_loops, e);
    if (rc == OK) rc = field_bool(body, "return_token_ids", &p->returns_ids, e);
    if (rc == OK) rc = field_bool(body, "keep_answer_room", &p->keeps_room, e);
    return rc;
}

static int read_stream(const json *body, gen_params *p, api_error *e) {
    int rc = field_bool(body, "stream", &p->is_stream, e);
    static const char field[] = "stream_options";
    const json *options = NULL;
    if (rc != OK || !p->is_stream) return rc;
    rc = field_object(body, field, &options, e);
    if (rc == OK) rc = field_bool_in(options, field, "include_usage", &p->has_usage_chunk, e);
    if (rc != OK) return rc;
    return field_bool_in(options, field, "continuous_usage_stats", &p->has_continuous_usage, e);
}

static int add_stop(const json *v, gen_params *p, api_error *e) {
    const char *s = json_str(v);
    if (s == NULL) {
        return api_bad(e, "stop", NULL,
            "stop must be a string or an array of strings, not a JSON %s", json_kind(v));
    }
    if (s[0] == '\0') return OK;
    if (p->n_stops == PARAMS_STOPS_MAX) {
        return api_bad(e, "stop", NULL, "stop has more than %d strings", PARAMS_STOPS_MAX);
    }
    p->stops[p->n_stops++] = s;
    return OK;
}

static int read_stops(const api *a, const json *body, gen_params *p, api_error *e) {
    const json *stop = field_get(body, "stop");
    int rc = OK;
    if (stop != NULL && !json_is_array(stop)) {
        rc = add_stop(stop, p, e);
    }
    if (json_is_array(stop)) {
        JSON_EACH(item, stop) {
            rc = add_stop(item, p, e);
            if (rc != OK) return rc;
        }
    }
    if (rc == OK) rc = field_bool(body, "ignore_eos", &p->ignores_eos, e);
    if (rc != OK) return rc;
    const json *ids = field_get(body, "stop_token_ids");
    if (ids != NULL && !json_is_array(ids)) {
        return api_bad(e, "stop_token_ids", NULL, "stop_token_ids must be an array of token ids");
    }
    JSON_EACH(item, ids) {
        int64_t id = -1;
        if (field_whole(item, &id) != OK || id < 0 || id >= a->n_base) {
            return api_bad(
                e, "stop_token_ids", NULL, "stop_token_ids holds something that is no token id");
        }
        if (p->n_stop_ids == RUN_STOP_MAX - 2) {
            return api_bad(
                e, "stop_token_ids", NULL, "more than %d stop token ids", RUN_STOP_MAX - 2);
        }
        p->stop_ids[p->n_stop_ids++] = (int32_t)id;
    }
    return OK;
}

static int read_bias(const api *a, const json *body, gen_params *p, api_error *e) {
    const json *map = field_get(body, "logit_bias");
    if (map == NULL) return OK;
    if (!json_is_object(map)) {
        return api_bad(
            e, "logit_bias", NULL, "logit_bias must be an object, not a JSON %s", json_kind(map));
    }
    p->bias = mem_try_alloc((json_count(map) + 1) * sizeof *p->bias);
    if (p->bias == NULL) return api_bad(e, "logit_bias", NULL, "logit_bias is too large");
    JSON_EACH(item, map) {
        int64_t id = -1;
        double value = 0.0;
        if (parse_i64(json_key(item), &id) != OK || id < 0 || id >= a->n_base) {
            return api_bad(e, "logit_bias", NULL,
                "logit_bias has the key '%.40s'; keys are token ids below %d", json_key(item),
                a->n_base);
        }
        if (field_number(item, &value) != OK || value < -100.0 || value > 100.0) {
            return api_bad(e, "logit_bias", NULL,
                "the logit_bias of %lld must be a number from -100 to 100", (long long)id);
        }
        p->bias[p->sampling.n_bias++] = (sample_bias){.token = (int32_t)id, .bias = (float)value};
    }
    p->sampling.bias = p->bias;
    return OK;
}

static int read_logprobs(const json *body, gen_params *p, api_error *e) {
    int64_t top = -1;
    int rc = field_bool(body, "logprobs", &p->has_logprobs, e);
    if (rc == OK) rc = field_int(body, "top_logprobs", (int_range){0, SAMPLER_TOP_MAX}, &top, e);
    if (rc != OK) return rc;
    if (top >= 0 && !p->has_logprobs) {
        return api_bad(e, "top_logprobs", NULL, "top_logprobs needs logprobs: true");
    }
    p->sampling.n_top = !p->has_logprobs ? -1 : top > 0 ? (int32_t)top : 0;
    return OK;
}

static bool is_tool_name(const char *name) {
    size_t n = 0;
    for (; *name != '\0'; name++) {
        if ((unsigned char)*name < 0x20 || *name == '"' || *name == 0x7f) return false;
        n += ((unsigned char)*name & 0xC0) != 0x80;
    }
    return n >= 1 && n <= TOOL_NAME_MAX;
}

/* A built-in tool of another vendor: it has no definition that could be offered. */
static bool is_foreign_tool(const json *tool) {
    const char *type = json_str(json_get(tool, "type"));
    return type != NULL && strcmp(type, "function") != 0 && strcmp(type, "custom") != 0 &&
           json_get(tool, "function") == NULL;
}

/* A custom tool has a free text in place of arguments: Responses has them, chat does not. */
static int check_type(const json *tool, const char *path, api_error *e) {
    const json *type = field_get(tool, "type");
    const char *word = json_str(type);
    bool is_custom =
        word != NULL && strcmp(word, "custom") == 0 && json_get(tool, "function") == NULL;
    if (!json_is_object(tool)) {
        return api_bad(e, path, NULL, "%s must be an object, not a JSON %s", path, json_kind(tool));
    }
    if (type == NULL || (word != NULL && !is_custom)) return OK;
    char param[64];
    snprintf(param, sizeof param, "%s.type", path);
    return api_bad(e, param, NULL, "%s must be function%s", param,
        is_custom ? "; custom tools are offered by /v1/responses" : "");
}

/* An empty list is how some languages write an empty object. */
static int check_definition(const json *tool, const char *path, api_error *e) {
    const json *inner = json_get(tool, "function");
    const json *f = json_is_object(inner) ? inner : tool;
    const json *schema = field_get(f, "parameters");
    char place[64];
    bool is_strict = false;
    (void)snprintf(place, sizeof place, "%s%s", path, f == inner ? ".function" : "");
    int rc = field_bool_in(f, place, "strict", &is_strict, e);
    bool is_schema = schema == NULL || json_is_object(schema) || json_is_bool(schema) ||
                     (json_is_array(schema) && json_count(schema) == 0);
    if (rc != OK || is_schema) return rc;
    str_copy(place + strlen(place), sizeof place - strlen(place), ".parameters");
    return api_bad(
        e, place, NULL, "%s must be a JSON schema, not a JSON %s", place, json_kind(schema));
}

/* Checks the names of the tools; those that chat.h renders. */
static int check_tools(const json *tools, const char *field, api_error *e) {
    buf names = BUF_INIT;
    buf name = BUF_INIT;
    int i = 0;
    int rc = OK;
    JSON_EACH(tool, tools) {
        err why = ERR_INIT;
        char path[48];
        snprintf(path, sizeof path, "%s[%d]", field, i++);
        if (is_foreign_tool(tool)) continue;
        rc = check_type(tool, path, e);
        if (rc != OK) break;
        buf_reset(&name);
        buf_putc(&name, '\n');
        rc = chat_tool_name(tool, path, &name, &why);
        if (rc != OK) {
            rc = api_from_err(e, &why);
            break;
        }
        if (!is_tool_name(buf_cstr(&name) + 1)) {
            rc = api_bad(e, path, NULL,
                "a tool name has 1 to %d characters without quotes and control"
                " characters",
                TOOL_NAME_MAX);
            break;
        }
        rc = check_definition(tool, path, e);
        if (rc != OK) break;
        buf_putc(&name, '\n');
        if (strstr(buf_cstr(&names), buf_cstr(&name)) != NULL) {
            rc = api_bad(
                e, path, NULL, "two tools are called %.*s", (int)name.len - 2, name.data + 1);
            break;
        }
        buf_append(&names, name.data, name.len);
    }
    buf_release(&names);
    buf_release(&name);
    return rc;
}

static bool has_tool(const json *tools, const char *name) {
    JSON_EACH(tool, tools) {
        err why = ERR_INIT;
        buf text = BUF_INIT;
        bool is_it = !is_foreign_tool(tool) && chat_tool_name(tool, "tools", &text, &why) == OK &&
                     strcmp(buf_cstr(&text), name) == 0;
        buf_release(&text);
        if (is_it) return true;
    }
    return false;
}

/* The name in a choice: {"function": {"name"}}, {"custom": {"name"}} or flat. */
static const char *chosen_name(const json *choice) {
    const json *inner = json_get(choice, "function");
    if (inner == NULL) inner = json_get(choice, "custom");
    return json_str(json_get(inner != NULL ? inner : choice, "name"));
}

static int add_callable(const json *choice, const char *field, gen_params *p, api_error *e) {
    const char *name = chosen_name(choice);
    if (name == NULL) return api_bad(e, field, NULL, "%s names no function", field);
    if (!has_tool(p->tools, name)) {
        return api_bad(
            e, field, NULL, "%s names %.128s, which is not among the tools", field, name);
    }
    if (p->n_callable == PARAMS_CALLABLE_MAX) {
        return api_bad(e, field, NULL, "%s names more than %d tools", field, PARAMS_CALLABLE_MAX);
    }
    p->callable[p->n_callable++] = name;
    return OK;
}

/* {"type":"allowed_tools","allowed_tools":{"mode","tools"}}, or mode and tools at once. */
static int read_allowed(const json *choice, const char *field, gen_params *p, api_error *e) {
    const json *inner = json_get(choice, "allowed_tools");
    if (inner == NULL) inner = choice;
    const char *mode = json_str(json_get(inner, "mode"));
    const json *list = json_get(inner, "tools");
    if (mode == NULL || (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0)) {
        return api_bad(e, field, NULL, "the mode of allowed_tools must be auto or required");
    }
    if (!json_is_array(list) || json_count(list) == 0) {
        return api_bad(e, field, NULL, "allowed_tools needs a list of tools");
    }
    p->must_call = strcmp(mode, "required") == 0;
    JSON_EACH(item, list) {
        int rc = add_callable(item, field, p, e);
        if (rc != OK) return rc;
    }
    return OK;
}

static int read_choice_word(
    const char *word, const char *field, bool *is_none, gen_params *p, api_error *e) {
    if (strcmp(word, "auto") == 0) return OK;
    if (strcmp(word, "none") == 0) {
        *is_none = true;
        return OK;
    }
    if (strcmp(word, "required") != 0) {
        return api_bad(e, field, NULL,
            "%s is '%.40s'; it must be none, auto, required or an object", field, word);
    }
    p->must_call = true;
    return OK;
}

static bool has_own_tool(const json *tools) {
    JSON_EACH(tool, tools) {
        if (!is_foreign_tool(tool)) return true;
    }
    return false;
}

static int read_tool_choice(
    const json *choice, const char *field, bool *is_none, gen_params *p, api_error *e) {
    const char *word = json_str(choice);
    bool has_tools = has_own_tool(p->tools);
    int rc = OK;
    *is_none = false;
    if (choice != NULL && word == NULL && !json_is_object(choice)) {
        return api_bad(e, field, NULL, "%s must be a string or an object, not a JSON %s", field,
            json_kind(choice));
    }
    if (word != NULL) rc = read_choice_word(word, field, is_none, p, e);
    if (rc == OK && (p->must_call || json_is_object(choice)) && !has_tools) {
        return api_bad(e, field, NULL, "%s demands a call, but no tools are given", field);
    }
    if (rc == OK && json_is_object(choice)) {
        const char *type = json_str(json_get(choice, "type"));
        if (type != NULL && strcmp(type, "allowed_tools") == 0) {
            rc = read_allowed(choice, field, p, e);
        } else {
            p->must_call = true;
            rc = add_callable(choice, field, p, e);
        }
    }
    *is_none |= !has_tools;
    return rc;
}

static bool is_own_tool(const json *tool) {
    return !is_foreign_tool(tool);
}

static void warn_tools(const json *tools, gen_params *p) {
    warning_tools(p->warning, tools, is_own_tool);
    JSON_EACH(tool, tools) {
        const json *inner = json_get(tool, "function");
        const json *f = inner != NULL ? inner : tool;
        const json *schema = json_get(f, "parameters");
        const char *name = json_str(json_get(f, "name"));
        if (name == NULL) name = "tools";
        if (json_is_true(json_get(f, "strict"))) {
            warning_strict(p->warning, schema, name);
        } else if (is_own_tool(tool)) {
            warning_types(p->warning, schema, name);
        }
    }
}

static int read_tools(const json *body, gen_params *p, api_error *e) {
    const json *tools = field_get(body, "tools");
    const char *field = "tools";
    const char *choice = "tool_choice";
    bool is_none = false;
    bool is_parallel = true;
    if (tools == NULL && field_get(body, "functions") != NULL) {
        p->is_legacy = true;
        tools = field_get(body, "functions");
        field = "functions";
        choice = "function_call";
    }
    if (tools != NULL && !json_is_array(tools)) {
        return api_bad(
            e, field, NULL, "%s must be an array, not a JSON %s", field, json_kind(tools));
    }
    if (json_count(tools) > PARAMS_TOOLS_MAX) {
        return api_bad(e, field, NULL, "more than %d tools", PARAMS_TOOLS_MAX);
    }
    p->tools = tools;
    int rc = check_tools(tools, field, e);
    if (rc == OK) rc = read_tool_choice(field_get(body, choice), choice, &is_none, p, e);
    if (rc == OK) rc = field_bool(body, "parallel_tool_calls", &is_parallel, e);
    if (rc == OK) warn_tools(tools, p);
    if (is_none) p->tools = NULL;
    p->is_single_call = !is_parallel || p->is_legacy;
    return rc;
}

static int read_modalities(const json *body, api_error *e) {
    const json *list = field_get(body, "modalities");
    JSON_EACH(item, list) {
        const char *word = json_str(item);
        if (word == NULL || strcmp(word, "text") != 0) {
            return api_bad(e, "modalities", NULL, "only text can be given back");
        }
    }
    if (field_get(body, "audio") != NULL)
        return api_bad(e, "audio", NULL, "audio can not be given back");
    return OK;
}

static void params_init(const api *a, gen_params *p) {
    memset(p, 0, sizeof *p);
    sample_params_init(&p->sampling);
    p->n = 1;
    p->thinking_budget = -1;
    p->guards_loops = a->options.guards_loops;
    p->keeps_room = a->options.keeps_room;
}

/* What separates prefix-cache entries; nothing given: shared by all. */
static int read_salt(const json *body, gen_params *p, api_error *e) {
    static const char *const names[] = {"cache_salt", "prompt_cache_key"};
    uint8_t digest[SHA256_BYTES];
    bool has_any = false;
    buf text = BUF_INIT;
    for (size_t i = 0; i < 2; i++) {
        const char *value = NULL;
        int rc = field_str(body, names[i], &value, e);
        if (rc != OK) {
            buf_release(&text);
            return rc;
        }
        if (value == NULL) continue;
        has_any = true;
        buf_append(&text, names[i], strlen(names[i]) + 1);
        buf_append(&text, value, strlen(value) + 1);
    }
    if (has_any) {
        sha256_of(text.data, text.len, digest);
        memcpy(p->salt, digest, sizeof p->salt);
    }
    buf_release(&text);
    return OK;
}

void params_separate(gen_params *p, const char *label) {
    uint8_t digest[SHA256_BYTES];
    buf text = BUF_INIT;
    buf_append(&text, p->salt, sizeof p->salt);
    buf_puts(&text, label);
    sha256_of(text.data, text.len, digest);
    memcpy(p->salt, digest, sizeof p->salt);
    buf_release(&text);
}

static int read_shared(const api *a, const json *body, gen_params *p, api_error *e) {
    const char *priority = NULL;
    int rc = read_stream(body, p, e);
    if (rc == OK) rc = read_limits(body, p, e);
    if (rc == OK) rc = read_sampling(body, p, e);
    if (rc == OK) rc = read_stops(a, body, p, e);
    if (rc == OK) rc = read_bias(a, body, p, e);
    if (rc == OK) rc = read_salt(body, p, e);
    if (rc == OK && json_is_string(field_get(body, "priority"))) {
        rc = field_str(body, "priority", &priority, e);
    }
    if (priority != NULL && strcmp(priority, "background") == 0) {
        p->priority = RUN_PRIORITY_BACKGROUND;
    }
    return rc;
}

int params_read(const api *a, const json *body, gen_params *out, api_error *e) {
    params_init(a, out);
    int rc = read_shared(a, body, out, e);
    if (rc == OK) rc = read_logprobs(body, out, e);
    if (rc == OK) rc = read_tools(body, out, e);
    if (rc == OK) rc = constraint_read(body, out, e);
    if (rc == OK) rc = read_modalities(body, e);
    return rc;
}

int params_read_text(const api *a, const json *body, gen_params *out, api_error *e) {
    params_init(a, out);
    out->takes_zero = true;
    int rc = read_shared(a, body, out, e);
    return rc == OK ? constraint_read(body, out, e) : rc;
}

void params_release(gen_params *p) {
    mem_free(p->bias);
    p->bias = NULL;
    grammar_put(p->value);
    grammar_put(p->calls);
    p->value = p->calls = NULL;
}

void params_default(const api *a, gen_params *p, bool is_thinking) {
    if (!p->has_temperature && a->options.default_temperature >= 0.0f) {
        p->sampling.temperature = a->options.default_temperature;
    }
    if (!p->has_top_p && is_thinking) {
        p->sampling.top_p = TOP_P_THINKING;
    }
    if (!p->has_top_p && a->options.default_top_p >= 0.0f) {
        p->sampling.top_p = a->options.default_top_p;
    }
    if (!p->has_seed) {
        rand_secret(&p->sampling.seed, sizeof p->sampling.seed);
    }
}
