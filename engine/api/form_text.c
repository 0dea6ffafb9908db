/* The words of text completions, the raw interface (api.md 5). */
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/form_openai.h"
#include "engine/base/mem.h"

/* Log probabilities in the old shape: four arrays and a running offset. Picks of the reply stand in
 * the choice's logprobs, those of the prompt in its reasoning_logprobs, as they came. */
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

/* The arrays while they are made; kinds are separated. */
typedef struct text_arrays {
    buf parts[4];
    int64_t *offset;
} text_arrays;

/* One token as an element of each. Without a pick: the first token, which nothing foretold. */
static void put_entry(const job *j, int32_t token, const sample_pick *pick, text_arrays *t) {
    size_t len = 0;
    bool is_literal = false;
    const char *bytes = api_token_bytes(j->a, token, &len, &is_literal);
    for (int i = 0; i < 4 && t->parts[0].len > 0; i++)
        buf_putc(&t->parts[i], ',');
    put_token_text(j->a, token, &t->parts[0]);
    buf_printf(&t->parts[3], "%lld", (long long)*t->offset);
    *t->offset += count_characters(bytes, len);
    if (pick == NULL) {
        buf_puts(&t->parts[1], "null");
        buf_puts(&t->parts[2], "null");
        return;
    }
    buf_printf(&t->parts[1], "%.6f", (double)pick->logprob);
    buf_putc(&t->parts[2], '{');
    for (int32_t i = 0; i < pick->n_top; i++) {
        if (i > 0) buf_putc(&t->parts[2], ',');
        put_token_text(j->a, pick->top_token[i], &t->parts[2]);
        buf_printf(&t->parts[2], ":%.6f", (double)pick->top_logprob[i]);
    }
    buf_putc(&t->parts[2], '}');
}

static void put_arrays(text_arrays *t, buf *out) {
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    for (int i = 0; i < 4; i++) {
        buf_printf(out, i > 0 ? ",\"%s\":[" : "{\"%s\":[", names[i]);
        buf_append(out, buf_cstr(&t->parts[i]), t->parts[i].len);
        buf_putc(out, ']');
        buf_release(&t->parts[i]);
    }
    buf_putc(out, '}');
}

static void put_picks(const job *j, const buf *list, text_arrays *t) {
    for (size_t i = 0; i + sizeof(gen_logprob) <= list->len; i += sizeof(gen_logprob)) {
        gen_logprob one;
        memcpy(&one, list->data + i, sizeof one);
        put_entry(j, one.pick.token, &one.pick, t);
    }
}

static const token_list *prompt_of(const job *j, int i_choice) {
    return &j->prompts[i_choice / (int)j->params.n];
}

static bool has_bos(const job *j, const token_list *prompt) {
    return prompt->len > 0 && prompt->ids[0] == j->a->controls.bos;
}

/* The prompt's tokens as far as they are shown, then the reply's. */
static void put_logprobs(job *j, int i_choice, bool has_prompt, buf *out) {
    job_choice *c = &j->choices[i_choice];
    text_arrays t = {.offset = &own_of(c)->offset};
    const token_list *prompt = prompt_of(j, i_choice);
    for (int i = 0; i < 4; i++)
        t.parts[i].max = (size_t)1 << 40; /* bounded by the window */
    if (has_prompt) {
        if (!has_bos(j, prompt)) put_entry(j, prompt->ids[0], NULL, &t);
        put_picks(j, &c->reasoning_logprobs, &t);
        buf_reset(&c->reasoning_logprobs);
    }
    put_picks(j, &c->logprobs, &t);
    buf_reset(&c->logprobs);
    put_arrays(&t, out);
}

/* The prompt in front of the text, when echo asks for it. */
static void put_echo(const job *j, int i_choice, buf *out) {
    const token_list *prompt = prompt_of(j, i_choice);
    size_t skip = has_bos(j, prompt);
    tokenizer_decode(j->a->options.tokenizer, prompt->ids + skip, prompt->len - skip, out);
}

/* Keeps the picks of an event. */
static void keep_picks(job *j, const gen_event *event) {
    job_choice *c = &j->choices[event->i_choice];
    buf *list = event->kind == GEN_SCORE ? &c->reasoning_logprobs : &c->logprobs;
    list->max = (size_t)1 << 40;
    buf_append(list, (const char *)event->logprobs, event->n_logprobs * sizeof *event->logprobs);
}

/* ---- whole ---- */

static void take(job *j, const gen_event *event) {
    bool is_new = false;
    items_take(&j->choices[event->i_choice].said, event, &is_new);
    keep_picks(j, event);
}

static void put_choice(job *j, int i, const gen_result *result, buf *out) {
    job_choice *c = &j->choices[i];
    buf text = BUF_INIT;
    text.max = out->max;
    if (j->params.has_echo) put_echo(j, i, &text);
    if (!j->params.scores_prompt) own_of(c)->offset = count_characters(buf_cstr(&text), text.len);
    items_join(&c->said, ITEM_TEXT, &text);
    buf_printf(out, "{\"index\":%d,\"text\":", i);
    json_quote(out, buf_cstr(&text), text.len);
    buf_puts(out, ",\"logprobs\":");
    if (j->params.has_logprobs) {
        put_logprobs(j, i, j->params.scores_prompt, out);
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"finish_reason\":\"%s\"}", result->finish_reason);
    buf_release(&text);
}

static void print(job *j, buf *out) {
    openai_print(
        j, &(openai_answer){.object = "text_completion", .tail = "", .put = put_choice}, out);
}

/* ---- streamed ---- */

static void begin(job *j) {
    openai_begin(j, "text_completion");
}

static void put_chunk(job *j, const gen_event *event, const buf *text, const char *reason) {
    const job_choice *c = &j->choices[event->i_choice];
    bool has_prompt = event->kind == GEN_STARTED && j->params.scores_prompt;
    buf_append(j->out, j->head.data, j->head.len);
    buf_printf(j->out, "{\"index\":%d,\"text\":", event->i_choice);
    json_quote(j->out, buf_cstr(text), text->len);
    buf_puts(j->out, ",\"logprobs\":");
    if (has_prompt || c->logprobs.len > 0) {
        put_logprobs(j, event->i_choice, has_prompt, j->out);
    } else {
        buf_puts(j->out, "null");
    }
    buf_printf(j->out, reason != NULL ? ",\"finish_reason\":\"%s\"}]" : ",\"finish_reason\":null}]",
        reason);
    openai_running_usage(j);
    buf_puts(j->out, "}\n\n");
}

static void event(job *j, const gen_event *event) {
    buf text = BUF_INIT;
    keep_picks(j, event);
    if (event->kind == GEN_SCORE) return;
    if (event->kind != GEN_STARTED) {
        buf_append(&text, event->text, event->len);
        put_chunk(j, event, &text, NULL);
    } else if (j->params.has_echo) {
        put_echo(j, event->i_choice, &text);
        int64_t n = count_characters(buf_cstr(&text), text.len);
        if (!j->params.scores_prompt) own_of(&j->choices[event->i_choice])->offset = n;
        put_chunk(j, event, &text, NULL);
    }
    buf_release(&text);
}

static void finish(job *j, int i_choice) {
    gen_result result;
    buf nothing = BUF_INIT;
    gen_event event = {.kind = GEN_LOGPROBS, .i_choice = i_choice};
    generation_result(j->choices[i_choice].gen, &result);
    put_chunk(j, &event, &nothing, result.finish_reason);
}

static void end(job *j) {
    openai_end(j, "");
}

const job_form form_text = {.id_prefix = "cmpl-",
    .begin = begin,
    .event = event,
    .take = take,
    .finish = finish,
    .end = end,
    .fail = openai_fail,
    .wait = job_wait_comment,
    .print = print};
