/* One ssh session to another machine, by libssh. Every wait has a deadline, host keys are never
 * accepted silently, nothing secret is put on a command line. A remote belongs to one thread; for
 * bulk work beside control work open a second one (remote_again). The ssh configuration files of the
 * user are not read: what is used is what the options say. */
#ifndef SETUP_SSH_H
#define SETUP_SSH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "setup/ssh_secret.h"

/* Why a session could not be opened. The sentence for people is in the err. */
typedef enum remote_fault {
    REMOTE_FINE,
    REMOTE_BAD_TARGET,
    REMOTE_NO_NAME,     /* the host name has no address */
    REMOTE_UNREACHABLE, /* no answer or no route */
    REMOTE_REFUSED,     /* the machine answers, no server on this port */
    REMOTE_BANNER,      /* the port opens, no greeting: the mark of a machine out of memory */
    REMOTE_NOT_SSH,     /* something else answers */
    REMOTE_HOST_UNKNOWN,
    REMOTE_HOST_CHANGED,
    REMOTE_HOST_REVOKED,
    REMOTE_HOST_FILE,  /* the known hosts cannot be read */
    REMOTE_PERMISSION, /* no key or password was taken */
    REMOTE_PASSPHRASE, /* the key is protected and nobody can be asked */
    REMOTE_PROTOCOL,
    REMOTE_JUMP /* the jump host, not the machine itself */
} remote_fault;

typedef struct remote_host_key {
    const char *host;
    int port;
    const char *type;        /* "ssh-ed25519" */
    const char *key;         /* base64 */
    const char *fingerprint; /* "SHA256:..." */
    const char *picture;     /* eleven lines */
} remote_host_key;

/* Questions for the person. Any member may be NULL: nobody is there to be asked. */
typedef struct remote_ask {
    void *ctx;
    /* An unknown host. True only when the person confirmed this very key: what was typed must pass
     * remote_key_confirmed. */
    bool (*host_key)(void *ctx, const remote_host_key *key);
    /* Password or passphrase for prompt into out; false gives up. */
    bool (*secret)(void *ctx, const char *prompt, ssh_secret *out);
} remote_ask;

typedef struct remote_options {
    const char *target;      /* [user@]host[:port] */
    const char *jump;        /* the same form, or NULL */
    const char *key_file;    /* tried before the usual ones, or NULL */
    const char *known_hosts; /* NULL: ~/.ssh/known_hosts; the system's file is read as well */
    const char *node;        /* name in messages, NULL: the host */
    const remote_ask *ask;   /* NULL: nobody */
    bool may_use_password;   /* first contact only */
    bool only_key_file;      /* neither agent nor the usual keys */
    int connect_ms;          /* 0: 10 s */
} remote_options;

typedef struct remote remote;

/* Connects, checks the host key, logs in. fault may be NULL. Texts of the options are copied; ask is
 * borrowed for this call only. */
int remote_open(const remote_options *o, remote **out, remote_fault *fault, err *e);
/* A second session to the same machine for bulk work. The host key must be the very same. */
int remote_again(const remote *r, remote **out, err *e);
void remote_close(remote *r);
/* Reads the host key of a target without logging in or deciding anything: for comparing what a
 * machine shows on several addresses. type (40 bytes) and key (base64) are replaced. */
int remote_host_key_of(const remote_options *o, char type[40], buf *key, err *e);

/* The texts of the session: user, host as given, key of the server. */
const char *remote_user(const remote *r);
const char *remote_host(const remote *r);
const char *remote_fingerprint(const remote *r);
/* "SHA256:..." of a key in base64; "" when it is none. */
void remote_fingerprint_of(const char *key, char out[64]);

/* True when typed is "accept" or the last six characters of the fingerprint. */
bool remote_key_confirmed(const char *fingerprint, const char *typed);
/* "refused", "banner timeout", ... for JSON. */
const char *remote_fault_name(remote_fault f);

typedef int (*remote_sink)(void *ctx, bool is_error, const void *data, size_t n);

typedef struct remote_command {
    const char *line;  /* run by the login shell there: build it with remote_quote */
    const void *input; /* sent on standard input, may hold secrets; then end of file */
    size_t n_input;
    int timeout_ms;   /* whole command, 0: 30 s, < 0: none */
    size_t max_out;   /* of each stream, 0: 4 MiB; more is ERR_LIMIT */
    remote_sink sink; /* gets data as it comes instead of the buffers; not OK ends the command */
    void *sink_ctx;
    const atomic_bool *stop; /* ERR_CANCELLED once true; may be NULL */
} remote_command;

typedef struct remote_result {
    int exit_code;   /* -1 when a signal ended it */
    char signal[16]; /* "KILL" */
    buf out, err;
} remote_result;
void remote_result_init(remote_result *r);
void remote_result_release(remote_result *r);

/* Runs one command. OK means it ran to its end, whatever its exit code. ERR_TIMEOUT, ERR_LIMIT,
 * ERR_CANCELLED close the channel; ERR_NET means the session is gone. */
int remote_run(remote *r, const remote_command *c, remote_result *out, err *e);
/* A round trip within 5 s. ERR_NET or ERR_TIMEOUT: open a new session. */
int remote_alive(remote *r, err *e);
/* Appends a word so that any POSIX shell reads it as exactly this one word. */
int remote_quote(buf *out, const char *word);

/* Makes an ed25519 key of our own at path (0600) and path.pub, if it is not there. */
int remote_key_make(const char *path, const char *comment, err *e);
/* Adds path.pub to authorized_keys there, if absent, with the modes sshd wants. from (may be NULL)
 * restricts it to these addresses. Only public data travels. */
int remote_key_install(remote *r, const char *path, const char *from, bool *was_there, err *e);

#endif
