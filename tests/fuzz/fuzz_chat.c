/* A chat body of any JSON: refused with the field's path, or rendered; typed text never becomes
 * template text. The same messages go through the release's rendering. */
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/text/chat.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void check_segments(const chat_prompt *p) {
    size_t at = 0;
    for (size_t i = 0; i < p->n_segments; i++) {
        CHECK(p->segments[i].start == at && p->segments[i].len > 0);
        CHECK(i == 0 || p->segments[i].is_template != p->segments[i - 1].is_template);
        at += p->segments[i].len;
    }
    CHECK(at == p->text.len);
    CHECK(p->is_thinking ? p->budget >= 1 && p->budget <= 100 : p->budget == 0);
}

static void try_body(const json *body, const chat_settings *settings) {
    chat_prompt p = CHAT_PROMPT_INIT;
    err e = ERR_INIT;
    int rc = chat_render_body(body, settings, &p, &e);
    if (rc == OK)
        check_segments(&p);
    else
        CHECK(e.code == rc && e.msg[0] != 0);
    chat_prompt_release(&p);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    json *body = NULL;
    if (json_parse((const char *)data, n, NULL, &body, NULL) != OK) return 0;
    chat_settings all = {.thinks_by_default = true, .has_vision = true, .allows_tasks = true};
    try_body(body, NULL);
    try_body(body, &all);
    chat_reference r = {.messages = json_get(body, "messages"),
        .context = json_get(body, "context"),
        .effort = json_get(body, "reasoning_effort"),
        .is_thinking = json_is_true(json_get(body, "thinking"))};
    chat_prompt p = CHAT_PROMPT_INIT;
    err e = ERR_INIT;
    int rc = chat_render_reference(&r, &p, &e);
    CHECK(rc == OK || e.msg[0] != 0);
    chat_prompt_release(&p);
    json_free(body);
    return 0;
}
