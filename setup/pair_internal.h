/* Shared by the files of the pair. */
#ifndef SETUP_PAIR_INTERNAL_H
#define SETUP_PAIR_INTERNAL_H

#include "setup/keeper.h"
#include "setup/pair.h"

enum { PAIR_CALL_MS = 15000, PAIR_LOOK_MS = 250 };

typedef struct pair_run {
    const pair_options *o;
    pair_sink sink;
    void *ctx;
    int lock_fd;
    char program[PAIR_NODES][512]; /* tandem-node there */
    char daemon[PAIR_NODES][512];
    char start_id[20];
    uint64_t start_number;
    char settings[65];
    char socket[256];
    keeper_order order[PAIR_NODES];
    bool holds_secret;
} pair_run;

/* pair_lock.c */
/* Takes STATE/pair/lock for a verb. ERR_BUSY names process, verb and since when. What a holder that
 * was killed left is told to the sink. */
int pair_lock_take(pair_run *p, const char *verb, err *e);
void pair_lock_note(pair_run *p, const char *verb, const char *phase);
void pair_lock_drop(pair_run *p);
/* "tandem start (process 12) since ...", "" when nobody holds it. */
void pair_lock_holder(char *out, size_t cap);
int pair_mark_stopped(bool is_stopped, err *e);
bool pair_is_marked_stopped(char boot_id[64]);

void pair_say(pair_run *p, pair_event_kind kind, int node, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
const char *pair_node_name(int node);

/* pair_place.c */
/* Finds the programs here, brings them to the worker (by digest), remembers where they are. */
int pair_place(pair_run *p, err *e);
/* Where they would be; nothing is copied. */
int pair_find_programs(pair_run *p, err *e);
/* A keeper that takes orders runs there afterwards. */
int pair_keeper_up(pair_run *p, int node, err *e);
/* Runs `tandem-node keeper VERB` there and parses its answer; input may be NULL. */
int pair_keeper_ask(
    const pair_run *p, int node, const char *verb, const buf *input, json **out, err *e);
/* Sends what must not be copied into a log: the order of that node. */
int pair_keeper_order(pair_run *p, int node, err *e);

/* pair_order.c */
/* Fills both orders from the settings. */
int pair_orders(pair_run *p, err *e);
/* The folder of the model on a machine; empty: the built-in one beside the engine. */
int pair_model_dir(const pair_options *o, int node, buf *out, err *e);
bool pair_is_demo(const settings *s);
void pair_run_release(pair_run *p);

#endif
