/* One engine out of several ranks. Rank 0 decides: its calls of a run_source go out to every other
 * rank in order and are then made on its own model; the other ranks make the same calls on theirs
 * and decide nothing. Bytes that are written into the model travel with the call, and what a call reads
 * (slot_save, page_read) is compared before it is used, so a cached prefix is the same on all ranks:
 * there is one cache, rank 0's, and a hit in it is a hit for all.
 *
 * Both sides hash the stream of calls and their results; before every call that uses the exchange,
 * and after every one that reads, the hashes are compared through the exchange, so ranks that lost step stop at the same place with
 * ERR_MISMATCH. An error that the other ranks cannot have seen is given as ERR_DEVICE, which ends
 * the service of the engine.
 *
 * Threads: the step thread makes the calls; control_abort from any. */
#ifndef TANDEM_RUN_CONTROL_H
#define TANDEM_RUN_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/dist/exchange.h"
#include "engine/run/source.h"

/* What rank 0 tells the others before they load: the part of model_options that must be equal. */
typedef struct control_settings {
    int32_t n_slots, n_pages, page_tokens, max_rows, max_logit_rows, max_rollback;
    int32_t without_drafts, reserved;
    int64_t max_context;
} control_settings;

/* Sends the settings to n ranks; takes them on another rank. stop_fd readable: ERR_CANCELLED. */
int control_send_settings(const int *fds, int n, const control_settings *s, err *e);
int control_take_settings(int fd, int stop_fd, control_settings *out, err *e);

typedef struct control control;

typedef struct control_options {
    const run_source *source; /* of this rank's model; borrowed */
    exchange *exchange;       /* borrowed */
    const int *fds;           /* rank 0: connections to ranks 1 .. world - 1, in order; taken */
    int world;
    int timeout_ms;  /* of a send; 0: 10000 */
    int check_every; /* compare the whole state of the ranks after so many steps; 0: never */
} control_options;

/* Rank 0: out becomes a source whose calls go to all ranks; valid until control_close. */
int control_open(const control_options *options, control **c, run_source *out, err *e);
/* Time of the exchanges of a step, mean over the last ones; below 0: no step yet. Any thread. */
double control_exchange_ms(const control *c);
/* Ends waits of the step thread in control and exchange with this error. Any thread. */
void control_abort(control *c, const err *why);
/* Tells the other ranks that the engine ends on purpose, closes. NULL allowed. */
void control_close(control *c);

typedef struct control_follow_options {
    const run_source *source; /* of this rank's model */
    exchange *exchange;
    int fd;      /* connection to rank 0; borrowed */
    int stop_fd; /* readable: on_stop is called once and the rank goes on until rank 0 ends; -1 */
    void (*on_stop)(void *ctx);
    /* After each step: its time and that of its exchanges. NULL: nobody wants them. */
    void (*on_step)(void *ctx, uint64_t step_ns, uint64_t exchange_ns);
    void *ctx;
} control_follow_options;

/* The other ranks: makes rank 0's calls until it ends (OK) or something breaks. */
int control_follow(const control_follow_options *o, err *e);

#endif
