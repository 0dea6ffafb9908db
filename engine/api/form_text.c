/* The words of text completions, the raw interface (api.md 5). */
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/job.h"
#include "engine/base/mem.h"

/* Log probabilities in the old shape: four arrays and a running offset. Freed with mem_free, so the
 * buffers stand in the choice: logprobs holds tokens, the others follow here. */
typedef struct text_own {
    int64_t offset; /* characters so far */
} text_own;

static text_own *own_of(job_choice *c) {
    if (c->own == NULL) c->own = mem_alloc(sizeof(text_own));
    return c->own;
}

static int64_t count_characters(const char *text, size_t len) {
    int64_t n = 0;
    for (size_t i = 0; i < len; i++) {
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return n;
}

static void put_token_text(const api *a, int32_t id, buf *out) {
    size_t len = 0;
    bool is_literal = false;
    const char *bytes = api_token_bytes(a, id, &len, &is_literal);
    json_quote(out, bytes, len);
}

/* One token as an array element of each kind; kinds are separated while they are collected. */
static void put_entry(const job *j, const sample_pick *pick, int64_t *offset, buf parts[4]) {
    size_t len = 0;
    bool is_literal = false;
    const char *bytes = api_token_bytes(j->a, pick->token, &len, &is_literal);
    for (int i = 0; i < 4; i++) {
        if (parts[i].len > 0) buf_putc(&parts[i], ',');
    }
    put_token_text(j->a, pick->token, &parts[0]);
    buf_printf(&parts[1], "%.6f", (double)pick->logprob);
    buf_putc(&parts[2], '{');
    for (int32_t i = 0; i < pick->n_top; i++) {
        if (i > 0) buf_putc(&parts[2], ',');
        put_token_text(j->a, pick->top_token[i], &parts[2]);
        buf_printf(&parts[2], ":%.6f", (double)pick->top_logprob[i]);
    }
    buf_putc(&parts[2], '}');
    buf_printf(&parts[3], "%lld", (long long)*offset);
    *offset += count_characters(bytes, len);
}

static void put_arrays(buf parts[4], buf *out) {
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    for (int i = 0; i < 4; i++) {
        buf_printf(out, i > 0 ? ",\"%s\":[" : "{\"%s\":[", names[i]);
        buf_append(out, buf_cstr(&parts[i]), parts[i].len);
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

static void put_logprobs(job *j, int i_choice, const gen_logprob *list, size_t n, buf *out) {
    buf parts[4] = {BUF_INIT, BUF_INIT, BUF_INIT, BUF_INIT};
    text_own *own = own_of(&j->choices[i_choice]);
    for (size_t i = 0; i < n; i++) {
        put_entry(j, &list[i].pick, &own->offset, parts);
    }
    put_arrays(parts, out);
    for (int i = 0; i < 4; i++) {
        buf_release(&parts[i]);
    }
}

static void put_head(const job *j, buf *out) {
    buf_printf(out,
        "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%llu,\"model\":", j->id,
        (unsigned long long)j->created_s);
    json_quote(out, j->a->options.model_id, strlen(j->a->options.model_id));
    buf_puts(out, ",\"system_fingerprint\":");
    json_quote(out, j->a->fingerprint, strlen(j->a->fingerprint));
}

/* The prompt in front of the text, when echo asks for it. */
static void put_echo(const job *j, int i_choice, buf *out) {
    const token_list *prompt = &j->prompts[i_choice / (int)j->params.n];
    size_t skip = prompt->len > 0 && prompt->ids[0] == j->a->controls.bos;
    tokenizer_decode(j->a->options.tokenizer, prompt->ids + skip, prompt->len - skip, out);
}

/* ---- whole ---- */

/* Picks are kept as they came: the old shape needs all of them at once. */
static void take(job *j, const gen_event *event) {
    job_choice *c = &j->choices[event->i_choice];
    bool is_new = false;
    items_take(&c->said, event, &is_new);
    buf_append(&c->logprobs, event->logprobs, event->n_logprobs * sizeof *event->logprobs);
}

static void put_choice(job *j, int i, const gen_result *result, buf *out) {
    job_choice *c = &j->choices[i];
    buf text = BUF_INIT;
    text.max = out->max;
    if (j->params.has_echo) put_echo(j, i, &text);
    own_of(c)->offset = count_characters(buf_cstr(&text), text.len);
    items_join(&c->said, ITEM_TEXT, &text);
    buf_printf(out, "{\"index\":%d,\"text\":", i);
    json_quote(out, buf_cstr(&text), text.len);
    buf_puts(out, ",\"logprobs\":");
    if (j->params.has_logprobs) {
        size_t n = c->logprobs.len / sizeof(gen_logprob);
        gen_logprob *list = mem_array(n + 1, sizeof *list);
        if (n > 0) memcpy(list, c->logprobs.data, n * sizeof *list);
        put_logprobs(j, i, list, n, out);
        mem_free(list);
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"finish_reason\":\"%s\"}", result->finish_reason);
    buf_release(&text);
}

static void print(job *j, buf *out) {
    gen_result *results = mem_array((size_t)j->n_choices, sizeof *results);
    job_results(j, results);
    put_head(j, out);
    buf_puts(out, ",\"choices\":[");
    for (int i = 0; i < j->n_choices; i++) {
        if (i > 0) buf_putc(out, ',');
        put_choice(j, i, &results[i], out);
    }
    buf_puts(out, "],\"usage\":");
    usage_print(j, out);
    buf_puts(out, ",\"timings\":");
    timings_print(&results[0], out);
    buf_putc(out, '}');
    mem_free(results);
}

/* ---- streamed ---- */

static void begin(job *j) {
    buf_puts(&j->head, "data: ");
    put_head(j, &j->head);
    buf_puts(&j->head, ",\"choices\":[");
}

static void put_chunk(job *j, const gen_event *event, const buf *text, const char *reason) {
    buf_append(j->out, j->head.data, j->head.len);
    buf_printf(j->out, "{\"index\":%d,\"text\":", event->i_choice);
    json_quote(j->out, buf_cstr(text), text->len);
    buf_puts(j->out, ",\"logprobs\":");
    if (j->params.has_logprobs && event->n_logprobs > 0) {
        put_logprobs(j, event->i_choice, event->logprobs, event->n_logprobs, j->out);
    } else {
        buf_puts(j->out, "null");
    }
    buf_printf(j->out, reason != NULL ? ",\"finish_reason\":\"%s\"}]" : ",\"finish_reason\":null}]",
        reason);
    if (j->params.has_usage_chunk) {
        buf_puts(j->out, ",\"usage\":");
        if (j->params.has_continuous_usage) {
            usage_print(j, j->out);
        } else {
            buf_puts(j->out, "null");
        }
    }
    buf_puts(j->out, "}\n\n");
}

static void event(job *j, const gen_event *event) {
    buf text = BUF_INIT;
    if (event->kind == GEN_STARTED) {
        if (j->params.has_echo) {
            put_echo(j, event->i_choice, &text);
            own_of(&j->choices[event->i_choice])->offset =
                count_characters(buf_cstr(&text), text.len);
            put_chunk(j, event, &text, NULL);
        }
    } else {
        buf_append(&text, event->text, event->len);
        put_chunk(j, event, &text, NULL);
    }
    buf_release(&text);
}

static void finish(job *j, int i_choice) {
    gen_result result;
    buf nothing = BUF_INIT;
    gen_event event = {.i_choice = i_choice};
    generation_result(j->choices[i_choice].gen, &result);
    put_chunk(j, &event, &nothing, result.finish_reason);
}

static void end(job *j) {
    if (j->params.has_usage_chunk) {
        buf_append(j->out, j->head.data, j->head.len);
        buf_puts(j->out, "],\"usage\":");
        usage_print(j, j->out);
        buf_puts(j->out, "}\n\n");
    }
    buf_puts(j->out, "data: [DONE]\n\n");
}

static void fail(job *j, const api_error *e) {
    buf_puts(j->out, "data: ");
    api_error_print(e, API_SHAPE_OPENAI, NULL, j->out);
    buf_puts(j->out, "\n\n");
}

const job_form form_text = {.id_prefix = "cmpl-",
    .begin = begin,
    .event = event,
    .take = take,
    .finish = finish,
    .end = end,
    .fail = fail,
    .wait = job_wait_comment,
    .print = print};
