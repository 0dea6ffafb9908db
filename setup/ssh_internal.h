/* What the files of the ssh session share. */
#ifndef SETUP_SSH_INTERNAL_H
#define SETUP_SSH_INTERNAL_H

#include <libssh/libssh.h>
#include <stdint.h>

#include "setup/ssh.h"

#define REMOTE_CONNECT_MS 10000

typedef struct remote_target {
    char user[64], host[256];
    int port;
} remote_target;

typedef struct remote_jump remote_jump;

struct remote {
    ssh_session session;
    remote_target target;
    char *target_text, *jump_text, *key_file, *known_hosts, *node;
    char fingerprint[64];
    char key_type[40];
    char *key; /* base64 of the server's key */
    remote_jump *jump;
    bool only_key_file;
    int connect_ms;
    uint64_t last_traffic_ms;
};

/* A target's parts; user "" when not named. */
int remote_target_parse(const char *text, remote_target *out, err *e);
/* A connected socket whose other side greeted as an ssh server, within ms in all. */
int remote_tcp_connect(
    const remote_target *t, int ms, const char *node, remote_fault *fault, err *e);
/* The same wait on a descriptor that is connected already. */
int remote_wait_greeting(
    int fd, uint64_t deadline_ms, const char *node, remote_fault *fault, err *e);
/* Logs in by agent, keys, and passwords if allowed. */
int remote_authenticate(remote *r, const remote_options *o, remote_fault *fault, err *e);

/* A way through another machine: one end of a pair of sockets, fed by a thread that owns the jump
 * session. Closing ends the thread. */
int remote_jump_open(remote *through, const remote_target *to, remote_jump **out, int *fd, err *e);
void remote_jump_close(remote_jump *j);

/* Source of a command's data, so that the reader can be tried without a server. read gives bytes,
 * 0 or SSH_AGAIN for none now, SSH_EOF at the end, SSH_ERROR. */
typedef struct remote_source {
    void *ctx;
    int (*read)(void *ctx, bool is_error, void *p, size_t n);
    bool (*is_open)(void *ctx);
} remote_source;
typedef enum remote_step { REMOTE_STEP_DATA, REMOTE_STEP_WAIT, REMOTE_STEP_END } remote_step;
/* Takes what is there of both streams. END only when both are at their end or the channel is closed
 * and empty: an empty read of an open channel is no end. */
typedef struct remote_reader {
    remote_source source;
    bool is_ended[2];
} remote_reader;
int remote_reader_step(
    remote_reader *r, const remote_command *c, remote_result *out, remote_step *step, err *e);

#endif
