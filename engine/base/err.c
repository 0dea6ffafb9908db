#include "engine/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"

int err_set(err *e, int code, const char *fmt, ...) {
    if (e == NULL) return code;
    e->code = code;
    e->node[0] = '\0';
    e->place[0] = '\0';
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return code;
}

int err_from_errno(int errnum) {
    switch (errnum) {
    case 0:
        return ERR_INTERNAL;
    case ENOENT:
    case ENOTDIR:
    case ENXIO:
        return ERR_NOT_FOUND;
    case EEXIST:
    case ENOTEMPTY:
        return ERR_EXISTS;
    case EACCES:
    case EPERM:
        return ERR_AUTH;
    case ENOMEM:
        return ERR_MEMORY;
    case ENOSPC:
    case EDQUOT:
        return ERR_FULL;
    case EBUSY:
    case EAGAIN:
    case EADDRINUSE:
    case ETXTBSY:
        return ERR_BUSY;
    case ETIMEDOUT:
        return ERR_TIMEOUT;
    case ECANCELED:
        return ERR_CANCELLED;
    case EINVAL:
    case ENAMETOOLONG:
        return ERR_ARG;
    case EFBIG:
    case EMFILE:
    case ENFILE:
        return ERR_LIMIT;
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
        return ERR_UNSUPPORTED;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EPIPE:
    case ENOTCONN:
        return ERR_NET;
    default:
        return ERR_IO;
    }
}

int err_errno(err *e, const char *fmt, ...) {
    int errnum = errno;
    int code = err_from_errno(errnum);
    if (e == NULL) return code;
    e->code = code;
    e->node[0] = '\0';
    e->place[0] = '\0';
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n;
    if (len >= sizeof e->msg) len = sizeof e->msg - 1;
    char text[128];
    /* The GNU form: returns the text, which may or may not be in the array. */
    (void)snprintf(
        e->msg + len, sizeof e->msg - len, ": %s", strerror_r(errnum, text, sizeof text));
    errno = errnum;
    return code;
}

int err_add(err *e, int rc, const char *fmt, ...) {
    if (rc == OK || e == NULL) return rc;
    char joined[sizeof e->msg];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(joined, sizeof joined, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n;
    /* The cause matters more than the context: keep room for at least half of the line. */
    if (len > sizeof joined / 2) len = sizeof joined / 2;
    if (e->code == OK && e->msg[0] == '\0') {
        (void)snprintf(joined + len, sizeof joined - len, ": %s", err_name(rc));
        e->code = rc;
    } else {
        (void)snprintf(joined + len, sizeof joined - len, ": %s", e->msg);
    }
    (void)str_copy(e->msg, sizeof e->msg, joined);
    return rc;
}

void err_place(err *e, const char *fmt, ...) {
    if (e == NULL) return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->place, sizeof e->place, fmt, ap);
    va_end(ap);
}

void err_node(err *e, const char *node) {
    if (e != NULL) (void)str_copy(e->node, sizeof e->node, node == NULL ? "" : node);
}

const char *err_name(int code) {
    static const char *const names[] = {"ok", "bad argument", "input/output error", "bad format",
        "out of memory", "over the limit", "not found", "busy", "timed out", "cancelled",
        "not supported", "network error", "peer failed", "device error", "full", "not permitted",
        "mismatch", "internal error", "already exists"};
    if (code > 0 || -code >= (int)(sizeof names / sizeof names[0])) return "unknown error";
    return names[-code];
}
