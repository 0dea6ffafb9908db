/* A raw HTTP client for tests: sends bytes as told and reads answers without any help from a
 * library, so that odd requests can be made and odd answers seen. One thread. */
#ifndef TESTS_HARNESS_WIRE_H
#define TESTS_HARNESS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

typedef struct wire {
    int fd;
    buf in;         /* received and not yet used */
    bool is_closed; /* the server closed */
    bool is_reset;  /* and what was on its way is lost */
    /* Set by the caller who does not know what was asked (HEAD): an answer may say a length and have
     * no body. */
    bool may_lack_body;
    uint64_t last_byte_ms, max_silence_ms;
} wire;

typedef struct wire_answer {
    int status; /* 0: none came */
    int n_interim;
    bool is_complete, is_chunked;
    buf head, body;
    uint64_t head_ms; /* from the call to the end of the head */
} wire_answer;

/* fd -1 on failure. */
void wire_open_unix(wire *w, const char *path);
void wire_open_tcp(wire *w, int port);
void wire_close(wire *w);
/* False once the server does not take bytes any more. */
bool wire_send(wire *w, const char *data, size_t n);
/* A request with a body (NULL: none) and Content-Length. headers: whole lines or "". */
bool wire_request(
    wire *w, const char *method, const char *path, const char *headers, const char *body);
/* Reads one answer; interim ones are counted and skipped. */
void wire_read(wire *w, wire_answer *a, int timeout_ms);
void wire_answer_release(wire_answer *a);
/* Reads whatever comes for a time; true if anything was added to in. */
bool wire_receive(wire *w, int timeout_ms);
/* Receives until the text stands so often in what came; false after the time or at the end. */
bool wire_await(wire *w, const char *text, int n, int timeout_ms);
/* True if the server closes within the time; bytes that still come are dropped. */
bool wire_wait_closed(wire *w, int timeout_ms);
/* Value of a header copied to out ("" if absent). */
void wire_header(const wire_answer *a, const char *name, char *out, size_t cap);

#endif
