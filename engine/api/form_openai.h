/* What OpenAI's two older forms share: the head of an answer and of every chunk, usage and timings,
 * the end of a stream. Threads: the connection's. */
#ifndef TANDEM_API_FORM_OPENAI_H
#define TANDEM_API_FORM_OPENAI_H

#include "engine/api/job.h"

/* A whole answer: the choices by put, tail (members, each behind a comma) before the last brace. */
typedef struct openai_answer {
    const char *object, *tail;
    void (*put)(job *j, int i_choice, const gen_result *result, buf *out);
} openai_answer;
void openai_print(job *j, const openai_answer *a, buf *out);

/* Streamed: fills j->head, which ends in an open list of choices. */
void openai_begin(job *j, const char *object);
/* The usage of a chunk that is not the last, when usage was asked for. */
void openai_running_usage(job *j);
/* The usage chunk, when it was asked for, and the mark of the end. */
void openai_end(job *j, const char *tail);
void openai_fail(job *j, const api_error *e);

#endif
