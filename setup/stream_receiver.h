/* The receiver's parts. Lock: receiver.lock guards all that changes; the digest of a file belongs to
 * whoever has its turn. */
#ifndef SETUP_STREAM_RECEIVER_H
#define SETUP_STREAM_RECEIVER_H

#include <pthread.h>

#include "setup/stream_internal.h"

enum { RECEIVER_MAX_CONNECTIONS = 64, RECEIVER_VERIFIERS = 2 };

typedef enum received_state { IN_WORK, WHOLE, VERIFYING, SOUND, BROKEN } received_state;

/* A frame in memory that waits for its turn in the digest. */
typedef struct waiting_frame {
    uint64_t offset;
    size_t length;
    const void *data;
    bool
        *is_waiting; /* of its slot; set false, under the lock, when the buffer may be used again */
} waiting_frame;
enum { MAX_WAITING = 256 };

typedef struct received {
    const manifest_file *f;
    char *rel, *part, *journal;
    ranges r;                      /* flushed and in the journal */
    uint8_t *written;              /* [n_units] written, perhaps not yet flushed */
    uint64_t n_written, n_flushed; /* units */
    disk_file d;
    received_state state;
    store_digest *hash;
    uint64_t hashed;
    bool is_turn_taken;     /* somebody updates the digest */
    waiting_frame *waiting; /* [MAX_WAITING] */
    int n_waiting;
    bool is_hash_behind; /* the rest is read from the disk at the end */
} received;

typedef struct receiver receiver;

typedef struct connection {
    receiver *r;
    int fd;
    pthread_t thread;
    bool is_used, is_done;
} connection;

struct receiver {
    stream_setup s;
    manifest m;
    store st;
    received *files;
    size_t n_files;
    int out_fd, lock_fd;
    int listeners[STREAM_MAX_RAILS], n_listeners;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stop_rc;
    err stop_err;
    uint64_t written_bytes, verified_bytes, state_ms;
    uint64_t last_seen_ms; /* a connection was there */
    connection connections[RECEIVER_MAX_CONNECTIONS];
    int n_open;
    int by_index[STREAM_MAX_STREAMS]; /* descriptor of a stream, -1 */
};

/* stream_receive.c */
void receiver_stop(receiver *r, int rc, const err *e);
bool receiver_is_stopped(receiver *r);
/* A line for the head; a head that is gone stops the session. */
void receiver_say(receiver *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* stream_take.c: serves one connection. */
void *receiver_serve(void *connection);
/* Nothing of the file waits for the digest any more; the rest is read from the disk at the end. */
void receiver_hash_behind_locked(received *f);
/* stream_settle.c */
int receiver_prepare(receiver *r, err *e);
void receiver_release(receiver *r);
/* Part, space and journal of a file, once. */
int receiver_open_locked(receiver *r, received *f, err *e);
/* Flushes what was written and journals it; files that are whole go to the verifiers. */
int receiver_flush(receiver *r, err *e);
void *receiver_verify(void *receiver);
bool receiver_is_finished_locked(const receiver *r);

#endif
