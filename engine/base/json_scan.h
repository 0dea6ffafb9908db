#ifndef TANDEM_BASE_JSON_SCAN_H
#define TANDEM_BASE_JSON_SCAN_H
/* The strict scanner behind json_parse; internal to engine/base. One pass, no recursion. */
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"

#define JSON_MAX_DEPTH 512

/* What cJSON is given instead of the original text: every number is replaced by 0 (cJSON cuts
 * numbers at 63 characters and reads them as doubles) and \u0000 in strings by C0 80. The numbers
 * stand one after another, each with a NUL, in document order. */
typedef struct json_scan {
    buf text;
    buf numbers;
} json_scan;

/* OK, or ERR_FORMAT / ERR_LIMIT with line and column. The caller releases both buffers. */
int json_scan_text(const char *text, size_t len, const json_limits *limits, json_scan *out, err *e);

#endif
