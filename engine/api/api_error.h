/* A refusal as a client sees it: status, type, code, parameter and a sentence (api.md 1). Plain
 * data; no internals in the message. */
#ifndef TANDEM_API_ERROR_H
#define TANDEM_API_ERROR_H

#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

typedef struct api_error {
    int status;
    const char *type; /* a literal */
    const char *code; /* a literal; NULL is null */
    char param[160];  /* "" is null */
    char message[640];
    int retry_after_s; /* 0: no header */
} api_error;

/* Fills a 400 invalid_request_error. Returns ERR_ARG. param and code may be NULL. */
int api_bad(api_error *e, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Fills from an engine error: ERR_FULL is 429, ERR_CANCELLED 503 shutting_down, ERR_DEVICE and
 * ERR_PEER 503 engine_failed, ERR_ARG, ERR_UNSUPPORTED and ERR_FORMAT 400 with err.place as the
 * parameter, ERR_LIMIT 400 context_length_exceeded, anything else 500. Returns ERR_ARG. */
int api_from_err(api_error *e, const err *cause);
/* Fills with the parts given. Returns ERR_ARG. */
int api_set(api_error *e, int status, const char *type, const char *code, const char *message);
/* The shapes of the two families of clients. */
typedef enum api_shape { API_SHAPE_OPENAI, API_SHAPE_ANTHROPIC } api_shape;
/* Appends {"error": {...}}, or {"type": "error", ...} with the request's id. */
int api_error_print(const api_error *e, api_shape shape, const char *request_id, buf *out);
/* The status as a client of the shape expects it. */
int api_error_status(const api_error *e, api_shape shape);

#endif
