#include "tests/harness/sse_message.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"

void sse_message_release(sse_message *m) {
    buf_release(&m->reasoning);
    buf_release(&m->content);
    for (int i = 0; i < SSE_CALLS_MAX; i++) {
        buf_release(&m->calls[i].name);
        buf_release(&m->calls[i].arguments);
    }
    for (int i = 0; i < m->n_chunks; i++) {
        json_free(m->chunks[i]);
    }
    mem_free(m->chunks);
}

static void add_text(buf *out, const json *v) {
    if (json_is_string(v)) json_str_bytes(v, out);
}

static void add_call(sse_message *m, const json *delta, int i_plain) {
    int64_t index = i_plain;
    const json *function = json_get(delta, "function");
    bool has_index = json_i64(json_get(delta, "index"), &index) == OK;
    if (index < 0 || index >= SSE_CALLS_MAX) return;
    sse_call *c = &m->calls[index];
    if (index >= m->n_calls) {
        m->n_calls = (int)index + 1;
        c->has_index = true;
    }
    c->has_index &= has_index;
    const json *id = json_get(delta, "id");
    if (id != NULL) str_copy(c->id, sizeof c->id, json_str(id) != NULL ? json_str(id) : "");
    if (id != NULL || json_get(delta, "type") != NULL || json_get(function, "name") != NULL) {
        c->n_identity++;
    }
    add_text(&c->name, json_get(function, "name"));
    add_text(&c->arguments, json_get(function, "arguments"));
}

static void add_message(sse_message *m, const json *part) {
    int i = 0;
    add_text(&m->reasoning, json_get(part, "reasoning_content"));
    add_text(&m->content, json_get(part, "content"));
    JSON_EACH(call, json_get(part, "tool_calls")) {
        add_call(m, call, i++);
    }
}

static void set_finish(sse_message *m, const json *choice) {
    const char *reason = json_str(json_get(choice, "finish_reason"));
    if (reason == NULL) return;
    m->n_finish++;
    str_copy(m->finish, sizeof m->finish, reason);
}

static void add_data(sse_message *m, const char *text, size_t len) {
    json *v = NULL;
    m->is_done_last = false;
    if (len == 6 && memcmp(text, "[DONE]", 6) == 0) {
        m->has_done = true;
        m->is_done_last = true;
        return;
    }
    if (json_parse(text, len, NULL, &v, NULL) != OK) {
        m->n_bad_lines++;
        return;
    }
    m->chunks = mem_realloc(m->chunks, (size_t)(m->n_chunks + 1) * sizeof *m->chunks);
    m->chunks[m->n_chunks++] = v;
    if (json_get(v, "error") != NULL) m->has_error = true;
    const json *choice = json_at(json_get(v, "choices"), 0);
    if (choice == NULL) return;
    add_message(m, json_get(choice, "delta"));
    set_finish(m, choice);
}

void sse_read_stream(const buf *body, sse_message *m) {
    const char *p = buf_cstr(body);
    while (*p != '\0') {
        size_t n = strcspn(p, "\n");
        if (strncmp(p, "data: ", 6) == 0) {
            add_data(m, p + 6, n - 6);
        } else if (p[0] == ':') {
            m->n_comments_after_data += m->n_chunks > 0;
        } else if (n > 0) {
            m->n_bad_lines++;
        }
        p += n + (p[n] == '\n');
    }
}

void sse_read_whole(const json *answer, sse_message *m) {
    const json *choice = json_at(json_get(answer, "choices"), 0);
    add_message(m, json_get(choice, "message"));
    set_finish(m, choice);
}

static bool usage_is_null(const json *chunk) {
    const json *u = json_get(chunk, "usage");
    return u == NULL || json_is_null(u);
}

static bool has_usage_only_at_end(const sse_message *m, bool is_wanted) {
    for (int i = 0; i < m->n_chunks; i++) {
        bool is_last = i == m->n_chunks - 1;
        if (!usage_is_null(m->chunks[i]) != (is_last && is_wanted)) return false;
    }
    if (!is_wanted) return true;
    const json *last = m->n_chunks > 0 ? m->chunks[m->n_chunks - 1] : NULL;
    return json_is_array(json_get(last, "choices")) && json_count(json_get(last, "choices")) == 0;
}

static bool every_chunk_has_one_choice(const sse_message *m) {
    for (int i = 0; i < m->n_chunks; i++) {
        if (json_count(json_get(m->chunks[i], "choices")) != 1) return false;
    }
    return m->n_chunks > 0;
}

static bool calls_are_sound(const sse_message *m, const char *rule) {
    for (int i = 0; i < m->n_calls; i++) {
        const sse_call *c = &m->calls[i];
        json *v = NULL;
        if (strcmp(rule, "tool_identity_once_per_index") == 0 && c->n_identity != 1) return false;
        if (strcmp(rule, "index_always_present") == 0 && !c->has_index) return false;
        if (strcmp(rule, "arguments_fragments_join_to_json") == 0) {
            if (json_parse(buf_cstr(&c->arguments), c->arguments.len, NULL, &v, NULL) != OK)
                return false;
            bool is_object = json_is_object(v);
            json_free(v);
            if (!is_object) return false;
        }
        if (strcmp(rule, "ids_nonempty_unique") != 0) continue;
        if (c->id[0] == '\0') return false;
        for (int j = 0; j < i; j++) {
            if (strcmp(m->calls[j].id, c->id) == 0) return false;
        }
    }
    return m->n_calls > 0;
}

static bool has_no_internals(const sse_message *m) {
    static const char *const words[] = {".c:", "0x", "rank", "errno", "/tmp", "/home", "assert"};
    for (int i = 0; i < m->n_chunks; i++) {
        const char *text = json_str(json_get(json_get(m->chunks[i], "error"), "message"));
        for (size_t k = 0; text != NULL && k < sizeof words / sizeof words[0]; k++) {
            if (strstr(text, words[k]) != NULL) return false;
        }
    }
    return true;
}

bool sse_check_rule(const sse_message *m, const char *rule, const char **why) {
    bool is_ok = false;
    *why = "the rule is broken";
    if (strcmp(rule, "every_chunk_has_one_choice") == 0) {
        is_ok = every_chunk_has_one_choice(m);
    } else if (strcmp(rule, "no_usage_field_or_null") == 0) {
        is_ok = has_usage_only_at_end(m, false);
    } else if (strcmp(rule, "usage_chunk_after_finish_with_empty_choices") == 0 ||
               strcmp(rule, "usage_null_or_absent_elsewhere") == 0) {
        is_ok = has_usage_only_at_end(m, true);
    } else if (strcmp(rule, "one_finish_reason") == 0) {
        is_ok = m->n_finish == 1;
    } else if (strcmp(rule, "ends_with_done") == 0) {
        is_ok = m->is_done_last && m->n_bad_lines == 0;
    } else if (strcmp(rule, "every_data_line_is_json_or_done") == 0) {
        is_ok = m->n_bad_lines == 0;
    } else if (strcmp(rule, "has_error_event") == 0) {
        is_ok = m->has_error && !m->has_done;
    } else if (strcmp(rule, "no_internal_details") == 0) {
        is_ok = has_no_internals(m);
    } else if (strcmp(rule, "no_finish_reason_stop_after_error") == 0) {
        is_ok = m->n_finish == 0;
    } else if (strstr(rule, "index") != NULL || strstr(rule, "arguments_") == rule ||
               strcmp(rule, "ids_nonempty_unique") == 0) {
        is_ok = calls_are_sound(m, rule);
    } else {
        *why = "the rule is not known to this runner";
    }
    return is_ok;
}

static bool same(const buf *a, const buf *b) {
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

bool sse_message_equal(const sse_message *a, const sse_message *b, const char **why) {
    *why = "reasoning";
    if (!same(&a->reasoning, &b->reasoning)) return false;
    *why = "content";
    if (!same(&a->content, &b->content)) return false;
    *why = "finish_reason";
    if (strcmp(a->finish, b->finish) != 0) return false;
    *why = "number of calls";
    if (a->n_calls != b->n_calls) return false;
    *why = "a call";
    for (int i = 0; i < a->n_calls; i++) {
        if (!same(&a->calls[i].name, &b->calls[i].name)) return false;
        if (!same(&a->calls[i].arguments, &b->calls[i].arguments)) return false;
    }
    return true;
}
