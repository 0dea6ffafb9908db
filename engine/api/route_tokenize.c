/* Text to token ids and back, exactly as the generating routes do it. */
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/fields.h"
#include "engine/text/chat.h"

static int tokens_of_prompt(const api *a, const json *body, token_list *out, api_error *e) {
    const char *prompt = NULL;
    bool adds_special = true;
    err why = ERR_INIT;
    int rc = field_str(body, "prompt", &prompt, e);
    if (rc == OK) rc = field_bool(body, "add_special_tokens", &adds_special, e);
    if (rc != OK) return rc;
    if (prompt == NULL) return api_bad(e, "prompt", NULL, "give prompt or messages");
    if (adds_special && a->controls.bos >= 0) token_list_push(out, a->controls.bos);
    buf text = BUF_INIT;
    json_str_bytes(field_get(body, "prompt"), &text);
    text_span span = {.text = buf_cstr(&text), .len = text.len, .is_template = true};
    rc = tokenizer_encode(a->options.tokenizer, span, out, &why);
    buf_release(&text);
    return rc == OK ? OK : api_from_err(e, &why);
}

static int tokens_of_messages(const api *a, const json *body, token_list *out, api_error *e) {
    chat_settings settings = {.thinks_by_default = a->options.thinks_by_default,
        .replay = replay_find,
        .replay_ctx = a->replay};
    chat_prompt prompt = CHAT_PROMPT_INIT;
    err why = ERR_INIT;
    replay_lock(a->replay);
    int rc = chat_render_body(body, &settings, &prompt, &why);
    replay_unlock(a->replay);
    if (rc == OK) rc = chat_prompt_encode(&prompt, a->options.tokenizer, false, out, &why);
    chat_prompt_release(&prompt);
    return rc == OK ? OK : api_from_err(e, &why);
}

static void put_token_strings(const api *a, const token_list *tokens, json_w *w) {
    buf raw = BUF_INIT;
    json_w_key(w, "token_strs");
    json_w_array(w);
    for (size_t i = 0; i < tokens->len; i++) {
        buf_reset(&raw);
        tokenizer_raw(a->options.tokenizer, tokens->ids[i], &raw);
        json_w_strn(w, buf_cstr(&raw), raw.len);
    }
    json_w_close(w);
    buf_release(&raw);
}

static void send_tokens(http_request *q, const token_list *tokens, bool has_strings) {
    buf body = BUF_INIT;
    json_w w;
    json_w_begin(&w, &body);
    json_w_object(&w);
    json_w_ku64(&w, "count", tokens->len);
    json_w_ki64(&w, "max_model_len", q->api->options.max_context);
    json_w_key(&w, "tokens");
    json_w_array(&w);
    for (size_t i = 0; i < tokens->len; i++) {
        json_w_i64(&w, tokens->ids[i]);
    }
    json_w_close(&w);
    if (has_strings) put_token_strings(q->api, tokens, &w);
    json_w_close(&w);
    json_w_end(&w);
    http_send_json(q, 200, &body);
}

void route_tokenize(http_request *q) {
    api_error e;
    json *body = NULL;
    token_list tokens = {0};
    bool has_strings = false;
    int rc = http_body_json(q, &body, &e);
    if (rc == OK) rc = field_bool(body, "return_token_strs", &has_strings, &e);
    if (rc == OK) {
        rc = field_get(body, "messages") != NULL ? tokens_of_messages(q->api, body, &tokens, &e)
                                                 : tokens_of_prompt(q->api, body, &tokens, &e);
    }
    if (rc == OK) {
        send_tokens(q, &tokens, has_strings);
    } else {
        http_fail(q, &e);
    }
    token_list_release(&tokens);
    json_free(body);
}

static int read_ids(const api *a, const json *list, token_list *out, api_error *e) {
    if (!json_is_array(list))
        return api_bad(e, "tokens", NULL, "tokens must be an array of token ids");
    JSON_EACH(item, list) {
        int64_t id = -1;
        if (json_i64(item, &id) != OK || id < 0 || id >= a->n_base) {
            return api_bad(
                e, "tokens", NULL, "tokens holds something that is no id below %d", a->n_base);
        }
        token_list_push(out, (int32_t)id);
    }
    return OK;
}

void route_detokenize(http_request *q) {
    api_error e;
    json *body = NULL;
    token_list tokens = {0};
    buf text = BUF_INIT;
    buf answer = BUF_INIT;
    int rc = http_body_json(q, &body, &e);
    if (rc == OK) rc = read_ids(q->api, field_get(body, "tokens"), &tokens, &e);
    if (rc == OK) {
        tokenizer_decode(q->api->options.tokenizer, tokens.ids, tokens.len, &text);
        buf_puts(&answer, "{\"prompt\":");
        json_quote(&answer, buf_cstr(&text), text.len);
        buf_putc(&answer, '}');
        http_send_json(q, 200, &answer);
    } else {
        http_fail(q, &e);
    }
    buf_release(&text);
    token_list_release(&tokens);
    json_free(body);
}
