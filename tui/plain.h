/* Plain mode: the chat line by line, for screen readers, simple terminals and pipes. Never moves the
 * cursor, never sends an escape sequence; each line starts with who speaks. Main thread; reads
 * standard input, writes standard output. */
#ifndef TUI_PLAIN_H
#define TUI_PLAIN_H

#include <stdbool.h>

#include "tui/cmd_table.h"

/* How much of a reply is printed at once. */
typedef enum plain_chunk { PLAIN_BY_SENTENCE, PLAIN_BY_WORD, PLAIN_BY_REPLY } plain_chunk;

typedef struct plain_options {
    const cmd_args *args;
    const char *reason;  /* what chose plain mode, said in the first line */
    const char *session; /* session to go on with, or NULL */
    bool continue_last;
    bool shows_thinking;
    plain_chunk chunk;
} plain_options;

bool plain_chunk_parse(const char *word, plain_chunk *out);

/* Runs until the end of the input or /quit; returns an exit code. */
int plain_run(const plain_options *o);

#endif
