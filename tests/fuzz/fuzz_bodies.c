/* Bodies of the other protocols: whatever comes, the translation refuses or gives a chat body that
 * the chat rules read without a fault. */
#include <stdint.h>
#include <stdlib.h>

#include "engine/api/body_messages.h"
#include "engine/api/body_responses.h"
#include "engine/text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void render(json *chat) {
    chat_prompt prompt = CHAT_PROMPT_INIT;
    err e = ERR_INIT;
    (void)chat_render_body(chat, NULL, &prompt, &e);
    chat_prompt_release(&prompt);
    json_free(chat);
}

/* A refusal is told in the words of the client's own body. */
static void judge(int rc, json *chat, body_places *places, api_error *e) {
    if (rc == OK) {
        render(chat);
    } else if (e->status != 400) {
        abort();
    } else {
        body_places_rename(places, e);
    }
    body_places_release(places);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const messages_options o = {.needs_limit = true};
    json *body = NULL;
    json *chat = NULL;
    api_error e;
    if (json_parse((const char *)data, size, NULL, &body, NULL) != OK) return 0;
    if (json_is_object(body)) {
        body_places places = {0};
        int rc = messages_to_chat(body, &o, &places, &chat, &e);
        judge(rc, chat, &places, &e);
        places = (body_places){0};
        rc = responses_to_chat(body, NULL, &places, &chat, &e);
        judge(rc, chat, &places, &e);
    }
    json_free(body);
    return 0;
}
