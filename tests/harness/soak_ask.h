/* Random requests for the soak, each a function of its seed: conversations over shared documents that
 * branch, go on and repeat, with every kind of sampling, in all forms of the API; bad ones too. And
 * whether two answers to the same request are the same. Any thread. */
#ifndef TESTS_HARNESS_SOAK_ASK_H
#define TESTS_HARNESS_SOAK_ASK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "tests/harness/wire.h"

enum { SOAK_BAD_REQUESTS = 12 };

typedef struct soak_ask {
    const char *path;
    buf messages; /* the conversation as members of a JSON array */
    buf body;     /* a JSON object that does not say "stream" */
    bool is_chat; /* one choice of the chat form: may be streamed and gone on with */
} soak_ask;

/* before: the conversation this one goes on with, and the reply it got; NULL: a new one. fault_text: a
 * text that makes rows go wrong; NULL: none. */
typedef struct soak_past {
    const soak_ask *ask;
    const char *reply;
} soak_past;
void soak_ask_make(soak_ask *a, uint64_t seed, const soak_past *before, const char *fault_text);
void soak_ask_release(soak_ask *a);

/* True if both answers, whole JSON, say the same: everything but names, times and what came from the
 * cache. Else where they differ goes to why. */
bool soak_same(const buf *a, const buf *b, char *why, size_t why_cap);

/* Sends bad request i < SOAK_BAD_REQUESTS; true if it was refused as it must be. */
bool soak_send_bad(wire *w, int i, char *why, size_t why_cap);

#endif
