/* Answers that go on when their connection ends (header tandem-detach: 1, Unix socket only). Each is
 * made by a thread of its own into a text that is kept until ten minutes after its end; connections
 * read that text from any byte on, the one that asked as well as later ones.
 * Threads: any. */
#ifndef TANDEM_API_REPLIES_H
#define TANDEM_API_REPLIES_H

#include "engine/api/http.h"

typedef struct replies replies;

replies *replies_new(void);
/* Waits for the threads, which must have seen that the server closes. NULL is fine. */
void replies_free(replies *r);

typedef struct reply_start {
    const char *id;   /* copied */
    const char *type; /* of the content; a constant */
    http_producer producer;
} reply_start;
/* Starts making an answer; takes the producer on success. ERR_FULL: too many run. q gives the shape
 * of errors. */
int replies_begin(replies *r, const http_request *q, const reply_start *s);
/* Answers q with the text from byte on as it comes, or with 404. */
void replies_send(replies *r, http_request *q, const char *id, uint64_t from);

#endif
