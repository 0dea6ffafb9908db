/* Puts a chat answer together, from its stream of events or from its whole JSON, and checks the
 * rules of a stream by name. For tests; one thread. */
#ifndef TESTS_HARNESS_SSE_MESSAGE_H
#define TESTS_HARNESS_SSE_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/json.h"

#define SSE_CALLS_MAX 16

typedef struct sse_call {
    char id[64];
    buf name, arguments;
    int n_identity; /* deltas that carried id, type or name */
    bool has_index; /* on every delta */
} sse_call;

typedef struct sse_message {
    buf reasoning, content;
    sse_call calls[SSE_CALLS_MAX];
    int n_calls;
    char finish[32]; /* "" if none came */
    json **chunks;   /* streamed: each data line that was JSON */
    int n_chunks, n_bad_lines, n_finish, n_comments_after_data;
    bool has_done, has_error, is_done_last;
} sse_message;

void sse_message_release(sse_message *m);
/* Fills m (zeroed) from the body of a stream. */
void sse_read_stream(const buf *body, sse_message *m);
/* Fills m (zeroed) from a whole answer. */
void sse_read_whole(const json *answer, sse_message *m);
/* Checks one rule; false and why (borrowed literal) if it is broken or not known. */
bool sse_check_rule(const sse_message *m, const char *rule, const char **why);
/* True if text, reasoning, calls and reason agree; else why says what differs. */
bool sse_message_equal(const sse_message *a, const sse_message *b, const char **why);

#endif
