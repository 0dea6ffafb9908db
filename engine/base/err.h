#ifndef TANDEM_BASE_ERR_H
#define TANDEM_BASE_ERR_H
/* The one way a function reports failure: a negative code returned and, for people, an err filled
 * in by the lowest level that knows what went wrong. Plain data owned by the caller; not shared
 * between threads. Upper levels add context with err_add and never replace the text. */

enum {
    OK = 0,
    ERR_ARG = -1,       /* the caller asked for something that makes no sense */
    ERR_IO = -2,        /* the operating system refused a read, write or open */
    ERR_FORMAT = -3,    /* bytes from outside do not have the promised form */
    ERR_MEMORY = -4,    /* no memory for a size that came from outside */
    ERR_LIMIT = -5,     /* a stated limit would be passed */
    ERR_NOT_FOUND = -6, /* the named thing does not exist */
    ERR_BUSY = -7,      /* taken by someone else, try again */
    ERR_TIMEOUT = -8,   /* did not happen in the given time */
    ERR_CANCELLED = -9, /* given up on request, or the other side is closed */
    ERR_UNSUPPORTED = -10,
    ERR_NET = -11,
    ERR_PEER = -12,   /* the other rank failed or disagrees */
    ERR_DEVICE = -13, /* the accelerator or its driver failed */
    ERR_FULL = -14,   /* no space left: disk, queue or pool */
    ERR_AUTH = -15,
    ERR_MISMATCH = -16, /* two things that must be equal are not */
    ERR_INTERNAL = -17,
    ERR_EXISTS = -18,
};

typedef struct err {
    int code;
    char node[64];  /* machine it happened on, empty for this one */
    char place[96]; /* file, tensor, option or route it is about, may be empty */
    char msg[640];  /* one sentence with the values in it */
} err;
#define ERR_INIT                                                                                   \
    { 0 }

/* Fills e (which may be NULL) and returns code, so that `return err_set(...)` works. A message that
 * is too long is cut. Clears node and place. */
int err_set(err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same from errno: appends ": " and the system's text, maps errno to a code, returns it. */
int err_errno(err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* If rc is not OK, puts "context: " before the message (cutting the tail if there is no room).
 * Returns rc unchanged, so it can stand at the end of a function whether it failed or not. */
int err_add(err *e, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Names the file, tensor, option or route that the error is about. Does nothing when e is NULL. */
void err_place(err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Names the machine. Does nothing when e is NULL. */
void err_node(err *e, const char *node);
/* A short name such as "not found"; never NULL. */
const char *err_name(int code);
/* The code that belongs to an errno value. */
int err_from_errno(int errnum);

#endif
