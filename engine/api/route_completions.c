/* POST /v1/completions: the raw interface. */
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/constraint.h"
#include "engine/api/fields.h"
#include "engine/api/job.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"

#define PROMPTS_MAX 128
#define MAX_TOKENS_DEFAULT 16

typedef struct prompt_reader {
    job *j;
    bool adds_bos;
    const json *suffix; /* NULL: none */
    api_error *e;
} prompt_reader;

static token_list *add_prompt(job *j) {
    return &j->prompts[j->n_prompts++];
}

static int encode_part(prompt_reader *r, const char *text, size_t len, token_list *out) {
    err why = ERR_INIT;
    text_span span = {.text = text, .len = len, .is_template = true};
    int rc = tokenizer_encode(r->j->a->options.tokenizer, span, out, &why);
    return rc == OK ? OK : api_from_err(r->e, &why);
}

static int encode_string(prompt_reader *r, const json *v, token_list *out) {
    buf text = BUF_INIT;
    json_str_bytes(v, &text);
    int rc = encode_part(r, buf_cstr(&text), text.len, out);
    buf_release(&text);
    return rc;
}

/* Fill-in-the-middle: a mark, the prefix, a mark, the suffix, a mark. */
static int encode_middle(prompt_reader *r, const json *prefix, token_list *out) {
    static const char *const marks[] = {"<\uFF5Cfim\u2581begin\uFF5C>",
        "<\uFF5Cfim\u2581hole\uFF5C>", "<\uFF5Cfim\u2581end\uFF5C>"};
    int32_t ids[3];
    for (int i = 0; i < 3; i++) {
        ids[i] = tokenizer_added(r->j->a->options.tokenizer, marks[i]);
        if (ids[i] < 0) {
            return api_bad(
                r->e, "suffix", NULL, "this model has no marks for filling in the middle");
        }
    }
    token_list_push(out, ids[0]);
    int rc = encode_string(r, prefix, out);
    token_list_push(out, ids[1]);
    if (rc == OK) rc = encode_string(r, r->suffix, out);
    token_list_push(out, ids[2]);
    return rc;
}

static int read_text(prompt_reader *r, const json *v) {
    token_list *out = add_prompt(r->j);
    int32_t bos = r->j->a->controls.bos;
    if ((r->adds_bos || r->suffix != NULL) && bos >= 0) token_list_push(out, bos);
    int rc = r->suffix != NULL ? encode_middle(r, v, out) : encode_string(r, v, out);
    if (rc == OK && out->len == 0) return api_bad(r->e, "prompt", NULL, "the prompt is empty");
    return rc;
}

static int read_ids(prompt_reader *r, const json *list) {
    token_list *out = add_prompt(r->j);
    JSON_EACH(id_value, list) {
        int64_t id = -1;
        if (json_i64(id_value, &id) != OK || id < 0 || id >= r->j->a->n_base) {
            return api_bad(r->e, "prompt", NULL,
                "prompt holds something that is no token id below %d", r->j->a->n_base);
        }
        token_list_push(out, (int32_t)id);
    }
    return out->len > 0 ? OK : api_bad(r->e, "prompt", NULL, "prompt holds an empty list of ids");
}

static int read_prompts(prompt_reader *r, const json *prompt) {
    const json *first = json_first(prompt);
    size_t n = json_is_array(prompt) && !json_is_number(first) ? json_count(prompt) : 1;
    if (n > PROMPTS_MAX) {
        return api_bad(r->e, "prompt", NULL, "more than %d prompts", PROMPTS_MAX);
    }
    r->j->prompts = mem_array(n + 1, sizeof *r->j->prompts);
    if (json_is_string(prompt)) return read_text(r, prompt);
    if (!json_is_array(prompt) || first == NULL) {
        return api_bad(r->e, "prompt", NULL,
            "prompt must be a string, a list of strings, token ids, or lists of token ids");
    }
    if (json_is_number(first)) return read_ids(r, prompt);
    JSON_EACH(one, prompt) {
        int rc = json_is_string(one) ? read_text(r, one)
                 : json_is_array(one)
                     ? read_ids(r, one)
                     : api_bad(r->e, "prompt", NULL, "prompt holds a JSON %s", json_kind(one));
        if (rc != OK) return rc;
    }
    return OK;
}

/* logprobs is a number here; max_tokens has a default; best_of is n or nothing. */
static int read_own_fields(job *j, api_error *e) {
    gen_params *p = &j->params;
    int64_t top = -1;
    int64_t best_of = -1;
    int rc = field_int(j->body, "logprobs", (int_range){0, SAMPLER_TOP_MAX}, &top, e);
    if (rc == OK) rc = field_int(j->body, "best_of", (int_range){1, PARAMS_N_MAX}, &best_of, e);
    if (rc == OK) rc = field_bool(j->body, "echo", &p->has_echo, e);
    if (rc != OK) return rc;
    p->has_logprobs = top >= 0;
    p->sampling.n_top = (int32_t)top;
    if (best_of > 0 && best_of != p->n) {
        return api_bad(e, "best_of", NULL, "best_of is %lld; only the value of n (%lld) is served",
            (long long)best_of, (long long)p->n);
    }
    if (p->scores_only && (!p->has_echo || !p->has_logprobs)) {
        return api_bad(e, "max_tokens", NULL,
            "max_tokens is 0: that scores the prompt and needs echo and logprobs");
    }
    p->scores_prompt = p->has_echo && p->has_logprobs;
    if (p->scores_prompt) rand_secret(p->salt, sizeof p->salt); /* cached rows have no scores */
    if (p->scores_only) p->max_tokens = 1;
    if (p->max_tokens == 0) p->max_tokens = MAX_TOKENS_DEFAULT;
    if (p->max_tokens_field == NULL) {
        p->max_tokens_field = "max_tokens";
        p->clips_to_window = true; /* the default is nobody's demand */
    }
    p->prompt_field = "prompt";
    return OK;
}

static int prepare(job *j, http_request *q, api_error *e) {
    prompt_reader r = {.j = j, .adds_bos = true, .e = e};
    const json *prompt = field_get(j->body, "prompt");
    int rc = params_read_text(j->a, j->body, &j->params, e);
    if (rc == OK) rc = read_own_fields(j, e);
    if (rc == OK) rc = job_check_model(j, e);
    if (rc == OK) rc = field_bool(j->body, "add_special_tokens", &r.adds_bos, e);
    if (rc != OK) return rc;
    r.suffix = field_get(j->body, "suffix");
    if (r.suffix != NULL && !json_is_string(r.suffix)) {
        return api_bad(
            e, "suffix", NULL, "suffix must be a string, not a JSON %s", json_kind(r.suffix));
    }
    if (r.suffix != NULL && json_str(r.suffix)[0] == '\0') r.suffix = NULL;
    if (prompt == NULL) return api_bad(e, "prompt", NULL, "prompt is missing");
    rc = read_prompts(&r, prompt);
    if (rc != OK) return rc;
    params_default(j->a, &j->params, false);
    j->max_tokens = INT32_MAX;
    for (int i = 0; i < j->n_prompts && rc == OK; i++) {
        int32_t limit = 0;
        rc = api_check_window(j->a, j->prompts[i].len, &j->params, &limit, e);
        if (rc == OK) rc = http_check_limits(q, j->prompts[i].len, &limit, e);
        if (limit < j->max_tokens) j->max_tokens = limit;
    }
    return rc == OK ? params_compile(j->a, &j->params, false, e) : rc;
}

void route_completions(http_request *q) {
    api_error e;
    job *j = job_new(q->api, &form_text);
    j->is_raw = true;
    int rc = http_body_json(q, &j->body, &e);
    if (rc == OK) rc = prepare(j, q, &e);
    if (rc == OK) {
        job_run(j, q);
    } else {
        job_refuse(j, q, &e);
    }
}
