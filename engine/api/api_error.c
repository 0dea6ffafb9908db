#include "engine/api/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/str.h"

#define RETRY_AFTER_QUEUE_S 1
#define RETRY_AFTER_DOWN_S 5

int api_bad(api_error *e, const char *param, const char *code, const char *fmt, ...) {
    va_list ap;
    *e = (api_error){.status = 400, .type = "invalid_request_error", .code = code};
    str_copy(e->param, sizeof e->param, param != NULL ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return ERR_ARG;
}

int api_set(api_error *e, int status, const char *type, const char *code, const char *message) {
    *e = (api_error){.status = status, .type = type, .code = code};
    str_copy(e->message, sizeof e->message, message);
    return ERR_ARG;
}

int api_from_err(api_error *e, const err *cause) {
    switch (cause->code) {
    case ERR_FULL:
        api_set(e, 429, "rate_limit_error", "queue_full", cause->msg);
        e->retry_after_s = RETRY_AFTER_QUEUE_S;
        return ERR_ARG;
    case ERR_CANCELLED:
        api_set(e, 503, "server_error", "shutting_down", cause->msg);
        e->retry_after_s = RETRY_AFTER_DOWN_S;
        return ERR_ARG;
    case ERR_DEVICE:
    case ERR_PEER:
    case ERR_NET:
    case ERR_TIMEOUT:
    case ERR_MISMATCH:
        api_set(e, 503, "server_error", "engine_failed", "the engine has failed; see its log");
        e->retry_after_s = RETRY_AFTER_DOWN_S;
        return ERR_ARG;
    case ERR_ARG:
    case ERR_UNSUPPORTED:
    case ERR_FORMAT:
        return api_bad(e, cause->place, NULL, "%s", cause->msg);
    case ERR_LIMIT:
        return api_bad(e, cause->place[0] != '\0' ? cause->place : "messages",
            "context_length_exceeded", "%s", cause->msg);
    default:
        return api_set(e, 500, "server_error", "internal_error", "the server made an error");
    }
}

int api_error_status(const api_error *e, api_shape shape) {
    return shape == API_SHAPE_ANTHROPIC && e->status == 503 ? 529 : e->status;
}

static const char *anthropic_type(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static void print_anthropic(const api_error *e, const char *request_id, json_w *w) {
    json_w_object(w);
    json_w_kstr(w, "type", "error");
    json_w_key(w, "error");
    json_w_object(w);
    json_w_kstr(w, "type", anthropic_type(e->status));
    json_w_kstr(w, "message", e->message);
    json_w_close(w);
    json_w_kstr(w, "request_id", request_id);
    json_w_close(w);
}

int api_error_print(const api_error *e, api_shape shape, const char *request_id, buf *out) {
    json_w w;
    json_w_begin(&w, out);
    if (shape == API_SHAPE_ANTHROPIC) {
        print_anthropic(e, request_id, &w);
        return json_w_end(&w);
    }
    json_w_object(&w);
    json_w_key(&w, "error");
    json_w_object(&w);
    json_w_kstr(&w, "message", e->message);
    json_w_kstr(&w, "type", e->type);
    json_w_kstr(&w, "param", e->param[0] != '\0' ? e->param : NULL);
    json_w_kstr(&w, "code", e->code);
    json_w_close(&w);
    json_w_close(&w);
    return json_w_end(&w);
}
