/* The last requests, and a file of them if one is wanted: JSON lines without prompts unless asked.
 * Threads: any. */
#ifndef TANDEM_API_REQUEST_LOG_H
#define TANDEM_API_REQUEST_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

typedef struct request_log request_log;

typedef struct request_record {
    const char *id, *method, *path, *key; /* key: its label; NULL: none */
    int status;
    const char *finish; /* NULL: none */
    int64_t n_prompt, n_cached, n_completion, n_bytes;
    double ms;
    const char *text; /* the body, when prompts are to be logged; NULL: not */
    size_t text_len;
} request_record;

/* path NULL: no file. The file has mode 0600 and is renamed to path.1 at 16 MiB. */
int request_log_open(const char *path, request_log **out, err *e);
void request_log_free(request_log *l);
void request_log_add(request_log *l, const request_record *r);
/* Appends the records newer than number since as a JSON array, oldest first, and gives the newest
 * number. */
uint64_t request_log_print(request_log *l, uint64_t since, buf *out);

#endif
