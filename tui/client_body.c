/* The JSON body of a chat request. */
#include "tui/client.h"

#include <string.h>

#include "engine/base/json.h"

static void put_message(json_w *w, const chat_message *m) {
    json_w_object(w);
    json_w_kstr(w, "role", m->role);
    json_w_kstr(w, "content", m->content != NULL ? m->content : "");
    if (m->reasoning != NULL && m->reasoning[0] != '\0') {
        json_w_kstr(w, "reasoning_content", m->reasoning);
    }
    if (m->tool_calls_json != NULL) {
        json_w_key(w, "tool_calls");
        json_w_raw(w, m->tool_calls_json, strlen(m->tool_calls_json));
    }
    if (m->tool_call_id != NULL) json_w_kstr(w, "tool_call_id", m->tool_call_id);
    json_w_close(w);
}

static void put_sampling(json_w *w, const chat_options *o) {
    if (o->set & CHAT_TEMPERATURE) json_w_kdouble(w, "temperature", o->temperature);
    if (o->set & CHAT_TOP_P) json_w_kdouble(w, "top_p", o->top_p);
    if (o->set & CHAT_TOP_K) json_w_ki64(w, "top_k", o->top_k);
    if (o->set & CHAT_MIN_P) json_w_kdouble(w, "min_p", o->min_p);
    if (o->set & CHAT_REPETITION_PENALTY) {
        json_w_kdouble(w, "repetition_penalty", o->repetition_penalty);
    }
    if (o->set & CHAT_SEED) json_w_ki64(w, "seed", o->seed);
    if (o->set & CHAT_MAX_TOKENS) json_w_ki64(w, "max_tokens", o->max_tokens);
    if (o->set & CHAT_THINKING_BUDGET) json_w_ki64(w, "thinking_budget", o->thinking_budget);
    if (o->n_stops > 0) {
        json_w_key(w, "stop");
        json_w_array(w);
        for (int i = 0; i < o->n_stops; i++)
            json_w_str(w, o->stops[i]);
        json_w_close(w);
    }
}

int client_chat_body(const chat_request *r, buf *out, err *e) {
    const chat_options *o = &r->options;
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_kstr(&w, "model", "tandem");
    json_w_key(&w, "messages");
    json_w_array(&w);
    for (int i = 0; i < r->n_messages; i++)
        put_message(&w, &r->messages[i]);
    json_w_close(&w);
    json_w_kbool(&w, "stream", true);
    json_w_key(&w, "stream_options");
    json_w_object(&w);
    json_w_kbool(&w, "include_usage", true);
    json_w_close(&w);
    put_sampling(&w, o);
    if (o->thinking != CHAT_THINKING_DEFAULT) {
        json_w_key(&w, "chat_template_kwargs");
        json_w_object(&w);
        json_w_kbool(&w, "enable_thinking", o->thinking == CHAT_THINKING_ON);
        json_w_close(&w);
    }
    if (o->effort[0] != '\0') json_w_kstr(&w, "reasoning_effort", o->effort);
    if (o->tools_json != NULL) {
        json_w_key(&w, "tools");
        json_w_raw(&w, o->tools_json, strlen(o->tools_json));
    }
    if (o->is_continuation) json_w_kbool(&w, "continue_final_message", true);
    json_w_close(&w);
    int rc = json_w_end(&w);
    return rc == OK ? OK : err_set(e, rc, "the conversation is too long to send");
}
