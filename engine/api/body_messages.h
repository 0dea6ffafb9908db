/* From an Anthropic Messages body to a chat body (api.md 5). Pure; any thread. */
#ifndef TANDEM_API_BODY_MESSAGES_H
#define TANDEM_API_BODY_MESSAGES_H

#include <stdbool.h>

#include "engine/api/body_write.h"
#include "engine/api/warning.h"
#include "engine/base/json.h"

typedef struct messages_options {
    bool needs_limit;       /* max_tokens must be there */
    bool thinks_by_default; /* of the server */
} messages_options;

/* The caller frees *out and releases *places, which say where its parts stood. On failure e names the
 * place in the body that was sent. */
int messages_to_chat(
    const json *body, const messages_options *o, body_places *places, json **out, api_error *e);
/* Names the tools that are not offered. */
void messages_warn(const json *body, char warning[WARNING_CAP]);

#endif
