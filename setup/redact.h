/* Takes out of a text what must not leave the owner's machines: tokens and keys, passwords, the home
 * folder, host names, public addresses, the tails of hardware addresses, prompts and replies in JSON
 * (setup.md 13.5). Works on text of any kind, line by line; what it takes out is named by what it was,
 * so that a log stays readable. Pure function of its inputs; any thread. */
#ifndef SETUP_REDACT_H
#define SETUP_REDACT_H

#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum { REDACT_MAX_NAMES = 16 };

typedef struct redact_names {
    const char *home; /* home folder, shown as ~; NULL: none */
    /* Words and what they become, for instance a host name and "head". Whole words only. */
    struct {
        const char *word, *shown;
    } name[REDACT_MAX_NAMES];
    int n_names;
} redact_names;

typedef struct redact_counts {
    int secrets, addresses, names, texts;
} redact_counts;

/* Appends the cleaned text to out. counts is added to; may be NULL. ERR_LIMIT when out is full. */
int redact_text(
    const redact_names *names, const char *text, size_t len, buf *out, redact_counts *counts);

#endif
