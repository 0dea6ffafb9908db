/* What the files stream_*.c share: frames, connections, aligned file access. */
#ifndef SETUP_STREAM_INTERNAL_H
#define SETUP_STREAM_INTERNAL_H

#include "setup/hub_ranges.h"
#include "setup/hub_store.h"
#include "setup/stream.h"

/* stream_frame.c: no input or output. */

enum {
    FRAME_HEAD_BYTES = 36,
    FRAME_ACK_BYTES = 16,
    FRAME_HELLO_BYTES = 80,
    FRAME_NONCE_BYTES = 32
};
typedef enum frame_kind { FRAME_DATA = 1, FRAME_BYE = 2 } frame_kind;
typedef enum ack_state { ACK_OK = 1, ACK_BAD = 2, ACK_FULL = 3, ACK_FAILED = 4 } ack_state;

typedef struct frame {
    frame_kind kind;
    uint32_t file, length, crc, sequence;
    uint64_t offset;
} frame;

void frame_encode(const frame *f, uint8_t out[FRAME_HEAD_BYTES]);
/* ERR_FORMAT: not a frame, or damaged. Says nothing about files and sizes. */
int frame_decode(frame *f, const uint8_t in[FRAME_HEAD_BYTES], err *e);
/* The frame must be exactly one unit of its file. */
int frame_check(const frame *f, const ranges *r, err *e);
void ack_encode(uint32_t sequence, ack_state state, uint8_t out[FRAME_ACK_BYTES]);
int ack_decode(const uint8_t in[FRAME_ACK_BYTES], uint32_t *sequence, ack_state *state, err *e);

/* stream_net.c: a connection with deadlines. The receiver sends a nonce, the sender a nonce of its
 * own, the number of the stream and a proof, the receiver its proof. */

int stream_listen(const char *address, int *fd, uint16_t *port, err *e);
int stream_connect(
    const char *from, const char *to, uint16_t port, int timeout_ms, int *fd, err *e);
/* Source address of a connection as text. */
void stream_source(int fd, char out[STREAM_ADDRESS_MAX]);
int stream_greet_sender(int fd, const uint8_t *secret, uint32_t index, err *e);
int stream_greet_receiver(int fd, const uint8_t *secret, uint32_t *index, err *e);
/* Limits for data: sends and receives fail when nothing moves for timeout_ms. */
void stream_tune(int fd, int timeout_ms);
int stream_send_all(int fd, const void *data, size_t n, err *e);
int stream_send_two(int fd, const void *a, size_t na, const void *b, size_t nb, err *e);
int stream_recv_all(int fd, void *data, size_t n, err *e);

/* stream_disk.c: past the page cache where the file system allows it. */

/* Room for one frame, aligned to pages and zero, in large pages where there are any; NULL without
 * memory. Freed with the same n. */
void *disk_buffer_new(size_t n);
void disk_buffer_free(void *buffer, size_t n);

typedef struct disk_file {
    int fd;
    bool is_direct;
} disk_file;
/* flags as of open; falls back to the page cache. */
int disk_open(const store *s, const char *rel, int flags, disk_file *f, err *e);
void disk_close(disk_file *f);
/* buffer and offset aligned to 4096; n is rounded up for the transfer. */
int disk_read(const disk_file *f, void *buffer, size_t n, uint64_t offset, err *e);
int disk_write(const disk_file *f, void *buffer, size_t n, uint64_t offset, err *e);

/* Writes that go on while the next bytes are received: by io_uring, else at once. One thread. */
typedef struct disk_queue disk_queue;
disk_queue *disk_queue_new(void);
void disk_queue_free(disk_queue *q);
/* Starts a write; the buffer stays the queue's until disk_queue_wait says tag. */
int disk_queue_write(
    disk_queue *q, const disk_file *f, void *buffer, size_t n, uint64_t offset, int tag, err *e);
/* Waits for one write; *tag and its result. ERR_NOT_FOUND when none is under way. */
int disk_queue_wait(disk_queue *q, int *tag, err *e);

#endif
