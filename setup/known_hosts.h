/* Files of known host keys in the form of OpenSSH, read and extended by us because nothing may be
 * accepted silently: revoked keys, authority lines, negated patterns and unreadable files all count.
 * Plain functions without state; any thread. */
#ifndef SETUP_KNOWN_HOSTS_H
#define SETUP_KNOWN_HOSTS_H

#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

typedef enum known_state {
    KNOWN_OK,
    KNOWN_UNKNOWN,
    KNOWN_CHANGED,    /* this type is known with another key */
    KNOWN_OTHER_TYPE, /* only keys of other types are known: to be treated like a changed one */
    KNOWN_REVOKED,
    KNOWN_ERROR /* a file is there but cannot be read: nothing is known about the host */
} known_state;

typedef struct known_query {
    const char *host;
    int port;
    const char *type; /* "ssh-ed25519" */
    const char *key;  /* the public key in base64 */
} known_query;

typedef struct known_answer {
    known_state state;
    int line; /* of the entry that decided, 0 if none */
    char path[256];
    char old_type[40];
    char old_fingerprint[64]; /* of the entry with another key */
} known_answer;

/* Looks in n files; a missing file is an empty one. e is filled for every state but KNOWN_OK, with
 * a sentence for people. A name with a port other than 22 is looked up as [host]:port only. */
known_state known_hosts_look(
    const char *const *files, size_t n, const known_query *q, known_answer *a, err *e);
/* The key types known for a host, separated by commas, so that a server with several keys shows one
 * that can be compared. */
int known_hosts_types(const char *const *files, size_t n, const known_query *q, buf *out);
/* Appends a hashed entry; makes folder (0700) and file (0600). */
int known_hosts_add(const char *path, const known_query *q, err *e);
/* The exact command that removes a host's entries from a file. */
int known_hosts_removal(const char *path, const char *host, int port, buf *out);

/* "SHA256:..." as ssh-keygen prints it. ERR_FORMAT when key is no base64. */
int known_hosts_fingerprint(const char *key, char out[64]);
/* Eleven lines of a picture of the key as ssh-keygen draws it. */
int known_hosts_picture(const char *type, const char *key, buf *out);
const char *known_hosts_state_name(known_state s);

#endif
