/* From a Responses body to a chat body (api.md 5). Pure; any thread. */
#ifndef TANDEM_API_BODY_RESPONSES_H
#define TANDEM_API_BODY_RESPONSES_H

#include <stdbool.h>

#include "engine/api/body_write.h"
#include "engine/api/warning.h"
#include "engine/base/json.h"

/* Whether a call of this id is still known, so that an output without its call may stand. */
typedef struct known_calls {
    bool (*knows)(void *ctx, const char *id);
    void *ctx;
} known_calls;

/* The caller frees *out and releases *places, which say where its parts stood. On failure e names the
 * place in the body that was sent. */
int responses_to_chat(
    const json *body, const known_calls *known, body_places *places, json **out, api_error *e);

/* Names what is left out: tools that are not offered, formats that are not enforced. */
void responses_warn(const json *body, char warning[WARNING_CAP]);

/* Kind of the tool that a call names, by the tools of the body. */
typedef enum tool_kind { TOOL_FUNCTION, TOOL_CUSTOM, TOOL_SHELL } tool_kind;
tool_kind responses_tool_kind(const json *body, const char *name);

#define RESPONSES_SECRET_PREFIX "tandem1."

#endif
