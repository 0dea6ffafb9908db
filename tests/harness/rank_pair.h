/* tandemd as one or several processes, and requests to it over its Unix socket, for tests of ranks
 * that are lost, stopped, drained and started again. A thing that does not happen ends the test with
 * the daemon's log. One test thread; everything lies in one folder that goes at the end. */
#ifndef TESTS_HARNESS_RANK_PAIR_H
#define TESTS_HARNESS_RANK_PAIR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "tests/harness/two_nets.h"
#include "tests/harness/wire.h"

#define PAIR_SECRET                                                                                \
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff 0123456789abcdef\n"

enum { PAIR_READY_MS = 240000, PAIR_END_MS = 240000 };

/* Finds the program and the built-in model, makes the folder. False: not here (exit 77). */
bool pair_init(void);
void pair_end(void);
/* Kills what a test left behind; a teardown of cmocka. */
int pair_kill_rest(void **state);

/* The folder, the socket, the log of all processes, the model; the model may be changed. */
const char *pair_dir(void);
const char *pair_socket(void);
const char *pair_model(void);
void pair_use_model(const char *dir);

/* Starts words (execvp) with line on standard input; NULL: nothing there. */
pid_t pair_start_words(const char *const *words, const char *line);
/* tandemd ROLE (NULL: none) with the common options and extra ones up to NULL. */
pid_t pair_start_role(const char *role, const char *line, const char *const *extra);
/* The same inside a namespace of nets. */
pid_t pair_start_in(const two_nets *nets, int side, const char *const *extra);
/* tandemd pair on a fresh log. */
pid_t pair_start(const char *const *extra);
/* Asks it to stop and expects exit 0. */
void pair_stop(pid_t pid);
/* Exit code, or minus the signal. */
int pair_wait_exit(pid_t pid, int timeout_ms);
/* The process ids of the ranks of start number i_start of the log. */
void pair_find_ranks(int i_start, int pid[2]);
/* Those of the newest start, and its number: on a machine that let a rank stand still for as long as a
 * lost one is waited for it is not the first. */
int pair_newest_ranks(int pid[2]);
const char *pair_log(void);
void pair_clear_log(void);
void pair_await_log(const char *text);

/* Status of GET path, 0 when nobody answers; body may be NULL. */
int pair_get(const char *path, buf *body);
void pair_wait_ready(void);
/* Waits until the engine is not ready; how many ms that took. */
int pair_wait_not_ready(int limit_ms);
/* The greedy answer to a question. */
void pair_reply(const char *question, buf *out);
/* Sends a streamed request that goes on for long. */
void pair_ask_long(wire *w, int max_tokens);
/* Sends a request with a prompt of about n_words words. */
void pair_ask_prompt(wire *w, int n_words, int max_tokens);
/* What comes until the end of the connection or the time. */
void pair_read_to_end(wire *w, buf *out);
/* The next answer: its status, a space, its body. */
void pair_read_one(wire *w, buf *out);
/* The value of a metric line that begins with name; -1: there is none. */
double pair_metric(const char *name);

#endif
