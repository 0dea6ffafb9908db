/* A whole server over a scripted source, in this process, for tests: Unix socket in a folder of its
 * own and a TCP port. */
#ifndef TESTS_HARNESS_STUB_SERVER_H
#define TESTS_HARNESS_STUB_SERVER_H

#include "engine/api/api.h"
#include "tests/harness/stub_source.h"

typedef struct stub_server {
    char dir[64], socket_path[96];
    int port;
    stub *source;
    run *run;
    api *api;
    api_pieces pieces;
} stub_server;

typedef struct stub_server_options {
    const tokenizer *tokenizer;
    stub_script script; /* n_base and eos_id are filled in */
    bool thinks_by_default;
    int32_t keep_alive_ms;
    size_t max_body_bytes;
    int32_t queue_cap;
    void (*adjust)(api_options *o); /* NULL: as it is */
    bool starts_loading;            /* without the run until stub_server_attach */
} stub_server_options;

/* A tokenizer with the chat protocol's tokens: the demo model's. NULL if there is none here. */
tokenizer *stub_tokenizer_open(void);
/* The same; without one the program ends as skipped. */
tokenizer *stub_tokenizer_need(void);
/* Ends the program with a message if it can not start. */
void stub_server_start(stub_server *s, const stub_server_options *o);
void stub_server_attach(stub_server *s, const stub_server_options *o);
/* Waits until so many requests run or wait; false if that does not come in a generous time. */
bool stub_server_wait(const stub_server *s, int n_requests);
/* The same for those that have left the queue. */
bool stub_server_wait_running(const stub_server *s, int n_requests);
void stub_server_stop(stub_server *s);

#endif
