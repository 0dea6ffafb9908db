/* What a request asked for that was left out without refusing it: told in the header
 * x-tandem-warning of the answer. Pure functions; any thread. */
#ifndef TANDEM_API_WARNING_H
#define TANDEM_API_WARNING_H

#include <stdbool.h>

#include "engine/base/json.h"

#define WARNING_CAP 240

/* Adds a sentence, in characters that a header may hold; what does not fit is cut. */
__attribute__((format(printf, 2, 3))) void warning_add(char out[WARNING_CAP], const char *fmt, ...);
/* Names the tools of a list that are not offered, by name or type. */
void warning_tools(char out[WARNING_CAP], const json *tools, bool (*is_offered)(const json *tool));
/* OpenAI's own rules of strict schemas: every property required, no others allowed. A breach is
 * enforced as the schema says, and told. what: whose schema. */
void warning_strict(char out[WARNING_CAP], const json *schema, const char *what);
/* Names the first property of a tool's parameters whose type JSON Schema does not know: such a type
 * allows every value. what: whose schema. */
void warning_types(char out[WARNING_CAP], const json *schema, const char *what);

#endif
