/* The keeper of one rank: a small process on each node (tandem-node keep) that starts the rank with
 * the start's secret, watches its phases, ends it, and starts it again within a budget. The two
 * keepers of a pair are joined by a connection over rail A: no rank is started before it stands, the
 * head's keeper decides when both go, and when it is lost both end their ranks. So neither side ever
 * runs alone, whatever is killed.
 *
 * Orders come as one JSON line over a Unix socket (RUNTIME/keeper.sock, mode 0600); the state is
 * written to STATE/keeper/status.json at each change and stays there when the keeper has ended, so
 * the first error of a start is kept. The secret is only ever in memory and in the pipe to the rank.
 *
 * Threads: a keeper belongs to the thread that calls keeper_run; a second thread of its own waits
 * on the connection to the other keeper. */
#ifndef SETUP_KEEPER_H
#define SETUP_KEEPER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/base/sha256.h"

enum { KEEPER_WORDS_MAX = 96, KEEPER_ORDER_MAX = 64 << 10, KEEPER_ENV_MAX = 16 };

/* What a keeper is told. Texts are owned by the order. */
typedef struct keeper_order {
    int rank;                     /* 0 on the head, 1 on the worker */
    uint8_t secret[SHA256_BYTES]; /* of this start */
    uint64_t start_id;            /* random, never reused */
    char settings[SHA256_HEX];    /* digest of the shared settings; must be equal on both */
    char *link_host;              /* the head's address on rail A */
    int link_port;                /* where the head's keeper listens */
    char
        *words[KEEPER_WORDS_MAX]; /* the rank's program and its arguments; "{status}" is replaced */
    int n_words;
    char *env[KEEPER_ENV_MAX]; /* NAME=VALUE for the rank; inherited NCCL_ variables are dropped */
    int n_env;
    char *evict_dir;   /* files whose page cache is dropped before loading; NULL: none */
    char *log_dir;     /* NULL: STATE/logs */
    int64_t gate_mib;  /* available memory to wait for before loading; 0: none */
    int64_t gate_s;    /* how long to wait for it */
    int64_t peer_s;    /* how long to wait for the other keeper */
    int64_t hang_s;    /* loading without progress for so long is a hang */
    int64_t ready_s;   /* whole time until ready */
    int64_t stop_s;    /* for running replies at a stop */
    int64_t restarts;  /* new starts within six hours, after it was ready once */
    int64_t guard_mib; /* below so much available memory for guard_s: stop; 0: no guard */
    int64_t guard_s;
    int64_t log_keep; /* logs of earlier starts that stay */
} keeper_order;

void keeper_order_init(keeper_order *o);
/* Wipes the secret. */
void keeper_order_release(keeper_order *o);
/* Appends the JSON form, secret included: only for a socket or standard input. */
int keeper_order_print(const keeper_order *o, buf *out);
/* ERR_FORMAT names what is wrong. */
int keeper_order_parse(keeper_order *o, const json *v, err *e);

typedef enum keeper_state {
    KEEPER_IDLE,      /* no order */
    KEEPER_LINKING,   /* waits for the other keeper */
    KEEPER_PREPARING, /* drops page cache, waits for memory */
    KEEPER_PREPARED,  /* waits for the other side's word */
    KEEPER_LOADING,   /* the rank runs and is not ready */
    KEEPER_READY,
    KEEPER_ENDING,  /* the rank is told to end */
    KEEPER_DOWN,    /* the rank has ended; the head decides */
    KEEPER_FAILED,  /* for good: see reason */
    KEEPER_STOPPED, /* as asked */
    KEEPER_STATES
} keeper_state;
const char *keeper_state_name(keeper_state s);
/* KEEPER_STATES when the word is none. */
keeper_state keeper_state_of(const char *name);

typedef struct keeper_options {
    bool stays; /* goes on after a start has ended (a unit); else ends with it */
    int idle_s; /* without an order for so long it ends; 0: never */
} keeper_options;

/* The whole process: takes the lock and the socket, follows orders until told to quit. ERR_BUSY when
 * a keeper runs already. SIGTERM ends the rank first. */
int keeper_run(const keeper_options *o, err *e);

/* The other side of the socket. Sends {"do": verb, "order": ...} and gives the reply, an object; the
 * caller frees it. ERR_NOT_FOUND: no keeper listens. A refusal by the keeper is the error it names. */
int keeper_call(const char *verb, const keeper_order *o, json **reply, err *e);
/* As text: request is one JSON object (one line), reply too. */
int keeper_call_text(const char *request, size_t len, buf *reply, err *e);
/* The state as JSON: of the running keeper, else what it left (with "running": false), else an object
 * with state idle. */
int keeper_status_text(buf *out, err *e);

#endif
