/* Copy of a manifest's files from the head to the worker over several TCP connections on both rails.
 * The receiver is started on the worker through ssh; what it must know (secret, folders, addresses,
 * manifest) goes to its standard input and nothing of it is on a command line. It answers with lines
 * on standard output. Data goes over connections of our own: each opens with a proof under the secret
 * in both directions, then frames with a CRC-32C each; the receiver checks each finished file against
 * the manifest itself. Only files of the manifest are touched, nothing is deleted.
 *
 * Input of the receiver:           Lines of the receiver:
 *     tandem-stream 1                  tandem-stream 1
 *     secret 64 HEX DIGITS             have FILE ok | have FILE JOURNAL IN HEX
 *     root FOLDER                      port ADDRESS PORT
 *     listen ADDRESS    (1 to 4)       ready
 *     peer ADDRESS      (1 to 4)       state WRITTEN VERIFIED BYTES
 *     frame BYTES                      done FILE | bad FILE
 *     reserve BYTES                    full NEEDED FREE
 *     idle_ms N                        fail SENTENCE
 *     manifest                         end
 *     ... the manifest's text
 */
#ifndef SETUP_STREAM_H
#define SETUP_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "setup/manifest.h"

enum {
    STREAM_MAX_RAILS = 4,
    STREAM_MAX_STREAMS = 32,
    STREAM_SECRET_BYTES = 32,
    STREAM_FRAME_BYTES = 8 << 20,
    STREAM_FRAME_MAX = 64 << 20,
    STREAM_ADDRESS_MAX = 64
};

typedef struct stream_setup {
    uint8_t secret[STREAM_SECRET_BYTES];
    char root[1024];
    char listen[STREAM_MAX_RAILS][STREAM_ADDRESS_MAX]; /* of the receiver, one a rail */
    char peer[STREAM_MAX_RAILS][STREAM_ADDRESS_MAX];   /* of the sender, the same order */
    int n_listen, n_peer;
    uint32_t frame_bytes; /* a multiple of 4096 */
    uint64_t reserve_bytes;
    int64_t idle_ms; /* the receiver ends after so long without a connection */
} stream_setup;

/* Defaults and a fresh secret. */
void stream_setup_init(stream_setup *s);
/* Text for the receiver's standard input. Holds the secret: wipe it after use. */
int stream_setup_print(const stream_setup *s, const manifest *m, buf *out, err *e);
int stream_setup_parse(stream_setup *s, manifest *m, const char *text, size_t len, err *e);

typedef struct stream_progress {
    uint64_t total_bytes;                   /* of all files */
    uint64_t had_bytes;                     /* were there before */
    uint64_t sent_bytes;                    /* acknowledged in this session */
    uint64_t written_bytes, verified_bytes; /* as the receiver says */
    size_t n_files, n_ok;
    int n_streams, n_connected, n_reconnects;
    double read_rate, send_rate; /* bytes a second of one stream while it reads, while it sends */
    const char *bottleneck;      /* "reading", "network or writing", "" */
} stream_progress;

/* About four times a second, in the caller's thread; not OK ends the session with that code. */
typedef int (*stream_tick)(void *ctx, const stream_progress *p);

typedef struct stream_send_options {
    const char *root; /* data root of the head */
    int n_streams;
    int lines_fd;       /* the receiver's lines come from here; borrowed */
    int64_t give_up_ms; /* without any acknowledged byte, 0: 60 s */
    stream_tick tick;
    void *tick_ctx;
} stream_send_options;

/* Sends what is missing there, in one session. OK: every file is verified there. ERR_FULL: the
 * worker's disk is full. ERR_NET, ERR_PEER: start a receiver again and call again; it goes on where
 * it was. ERR_MISMATCH: a file arrived but is not what the manifest says. */
int stream_send(const stream_setup *s, const manifest *m, const stream_send_options *o, err *e);

/* The receiver: reads all of in_fd, serves one session, writes lines to out_fd. */
int stream_receive(int in_fd, int out_fd, err *e);

#endif
