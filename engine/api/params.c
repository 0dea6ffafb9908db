#include "engine/api/params.h"

#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/fields.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
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
    if (rc == OK) rc = field_int(body, "top_k", (int_range){-1, INT32_MAX}, &top_k, e);
    const double_range penalty = {-2, 2, false};
    if (rc == OK) rc = field_double(body, "presence_penalty", penalty, &s->presence_penalty, e);
    if (rc == OK) rc = field_double(body, "frequency_penalty", penalty, &s->frequency_penalty, e);
    const double_range repetition = {0, 2, true};
    if (rc == OK) {
        rc = field_double(body, "repetition_penalty", repetition, &s->repetition_penalty, e);
    }
    if (rc == OK) rc = field_seed(body, "seed", &s->seed, &p->has_seed, e);
    s->top_k = (int32_t)top_k;
    p->has_temperature = field_get(body, "temperature") != NULL;
    p->has_top_p = field_get(body, "top_p") != NULL;
    return rc;
}

static int read_limits(const json *body, gen_params *p, api_error *e) {
    const int_range limit = {1, INT32_MAX};
    int rc = field_int(body, "max_tokens", limit, &p->max_tokens, e);
    if (rc == OK && p->max_tokens > 0) {
        p->max_tokens_field = "max_tokens";
    }
    int64_t newer = 0;
    if (rc == OK) rc = field_int(body, "max_completion_tokens", limit, &newer, e);
    if (rc == OK && newer > 0) {
        p->max_tokens = newer;
        p->max_tokens_field = "max_completion_tokens";
    }
    if (rc == OK) rc = field_int(body, "n", (int_range){1, PARAMS_N_MAX}, &p->n, e);
    const int_range budget = {0, INT32_MAX};
    if (rc == OK) rc = field_int(body, "thinking_budget", budget, &p->thinking_budget, e);
    return rc;
}

static int read_stream(const json *body, gen_params *p, api_error *e) {
    int rc = field_bool(body, "stream", &p->is_stream, e);
    const json *options = field_get(body, "stream_options");
    if (rc != OK || options == NULL || !p->is_stream) return rc;
    if (!json_is_object(options)) {
        return api_bad(e, "stream_options", NULL, "stream_options must be an object, not a JSON %s",
            json_kind(options));
    }
    rc = field_bool(options, "include_usage", &p->has_usage_chunk, e);
    if (rc == OK) {
        rc = field_bool(options, "continuous_usage_stats", &p->has_continuous_usage, e);
    }
    return rc;
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
        if (json_i64(item, &id) != OK || id < 0 || id >= a->n_base) {
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
        if (json_double(item, &value) != OK || value < -100.0 || value > 100.0) {
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
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == '"' || name[i] == 0x7f) return false;
    }
    return n >= 1 && n <= TOOL_NAME_MAX;
}

/* Checks the names of the tools; those that chat.h renders. */
static int check_tools(const json *tools, api_error *e) {
    buf names = BUF_INIT;
    buf name = BUF_INIT;
    int i = 0;
    int rc = OK;
    JSON_EACH(tool, tools) {
        err why = ERR_INIT;
        char path[48];
        snprintf(path, sizeof path, "tools[%d]", i++);
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

static int read_tool_choice(const json *choice, bool has_tools, bool *is_none, api_error *e) {
    const char *word = json_str(choice);
    *is_none = !has_tools;
    if (choice == NULL || (word != NULL && strcmp(word, "auto") == 0)) return OK;
    if (word != NULL && strcmp(word, "none") == 0) {
        *is_none = true;
        return OK;
    }
    if (word != NULL && strcmp(word, "required") != 0) {
        return api_bad(e, "tool_choice", NULL,
            "tool_choice is '%.40s'; it must be none, auto, required or an"
            " object",
            word);
    }
    if (word == NULL && !json_is_object(choice)) {
        return api_bad(e, "tool_choice", NULL,
            "tool_choice must be a string or an object, not a JSON %s", json_kind(choice));
    }
    if (!has_tools)
        return api_bad(e, "tool_choice", NULL, "a call is demanded but no tools are given");
    return api_bad(e, "tool_choice", "unsupported_parameter",
        "forced tool calls are not served by this build; use auto");
}

static int read_tools(const json *body, gen_params *p, api_error *e) {
    const json *tools = field_get(body, "tools");
    bool is_none = false;
    if (tools != NULL && !json_is_array(tools)) {
        return api_bad(e, "tools", NULL, "tools must be an array, not a JSON %s", json_kind(tools));
    }
    if (json_count(tools) > PARAMS_TOOLS_MAX) {
        return api_bad(e, "tools", NULL, "more than %d tools", PARAMS_TOOLS_MAX);
    }
    int rc = check_tools(tools, e);
    if (rc == OK) {
        rc = read_tool_choice(field_get(body, "tool_choice"), json_count(tools) > 0, &is_none, e);
    }
    p->tools = is_none ? NULL : tools;
    return rc;
}

/* Fields whose meaning is a promise about the answer: refused while nothing enforces them. */
static int refuse_constraints(const json *body, api_error *e) {
    static const char *const names[] = {"structured_outputs", "guided_json", "guided_regex",
        "guided_choice", "guided_grammar", "functions", "function_call"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (field_get(body, names[i]) != NULL) {
            return api_bad(
                e, names[i], "unsupported_parameter", "%s is not served by this build", names[i]);
        }
    }
    const json *format = field_get(body, "response_format");
    if (format == NULL) return OK;
    const char *type = json_str(json_get(format, "type"));
    if (type != NULL && strcmp(type, "text") == 0) return OK;
    if (type != NULL && (strcmp(type, "json_object") == 0 || strcmp(type, "json_schema") == 0)) {
        return api_bad(e, "response_format", "unsupported_parameter",
            "response_format %s is not enforced by this build, so it is refused", type);
    }
    return api_bad(e, "response_format", NULL,
        "response_format must be an object with type text, json_object or json_schema");
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

int params_read(const api *a, const json *body, gen_params *out, api_error *e) {
    const char *priority = NULL;
    memset(out, 0, sizeof *out);
    sample_params_init(&out->sampling);
    out->n = 1;
    out->thinking_budget = -1;
    int rc = read_stream(body, out, e);
    if (rc == OK) rc = read_limits(body, out, e);
    if (rc == OK) rc = read_sampling(body, out, e);
    if (rc == OK) rc = read_stops(a, body, out, e);
    if (rc == OK) rc = read_bias(a, body, out, e);
    if (rc == OK) rc = read_logprobs(body, out, e);
    if (rc == OK) rc = read_tools(body, out, e);
    if (rc == OK) rc = refuse_constraints(body, e);
    if (rc == OK) rc = read_modalities(body, e);
    if (rc == OK && json_is_string(field_get(body, "priority"))) {
        rc = field_str(body, "priority", &priority, e);
    }
    if (priority != NULL && strcmp(priority, "background") == 0) {
        out->priority = RUN_PRIORITY_BACKGROUND;
    }
    return rc;
}

void params_release(gen_params *p) {
    mem_free(p->bias);
    p->bias = NULL;
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
