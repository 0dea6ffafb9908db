/* One blocking HTTP request of tandem verify, with what it needs to judge an answer: status, body,
 * the events of a stream, times. Each call uses a connection of its own, so calls may run in
 * parallel threads. */
#ifndef SETUP_VERIFY_HTTP_H
#define SETUP_VERIFY_HTTP_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "setup/verify.h"

typedef struct verify_answer {
    int status;
    buf body;
    double first_ms, total_ms;
} verify_answer;

/* How to stop reading early. */
typedef struct verify_cut {
    size_t after_bytes; /* close the connection once this much of the body came; 0: never */
} verify_cut;

void verify_answer_release(verify_answer *a);
/* GET when body is NULL, else POST of JSON. ERR_NET, ERR_TIMEOUT; an HTTP error status is OK. */
int verify_http(const verify_options *o, const char *path, const char *body, const verify_cut *cut,
    verify_answer *out, err *e);

/* A chat reply put together from a whole answer or from the events of a stream. */
typedef struct verify_reply {
    buf content, reasoning, call_name, call_arguments;
    char finish[32];
    int64_t completion_tokens, prompt_tokens, cached_tokens; /* -1: not told */
    bool has_done;                                           /* stream: the end marker came */
    bool has_error;                                          /* stream: an error event came */
} verify_reply;

void verify_reply_init(verify_reply *r);
void verify_reply_release(verify_reply *r);
/* ERR_FORMAT names what is wrong with the answer. */
int verify_reply_whole(const verify_answer *a, verify_reply *r, err *e);
int verify_reply_stream(const verify_answer *a, verify_reply *r, err *e);
/* The message of an error answer, or its status in words, into text. */
void verify_error_text(const verify_answer *a, char *text, size_t cap);

#endif
