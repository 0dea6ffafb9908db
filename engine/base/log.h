#ifndef TANDEM_BASE_LOG_H
#define TANDEM_BASE_LOG_H
/* One line per event, whole by itself: time, level, node, rank, request, module, what happened and
 * key=value pairs. Any thread. Lines of one place in the code are limited to LOG_BURST a second; the
 * next line that passes says how many were left out. Registered secrets and anything that looks
 * like a key or token are replaced by *** before the line is written. A line break or control
 * character inside a value is escaped, so nobody can forge a line.
 *
 *     LOG(LOG_WARN, "run", "queue full", "depth=%d request=%s", depth, id);
 *
 * Before log_open nothing is written; libraries may log at any time. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;
#define LOG_BURST 20
#define LOG_LINE_MAX 2048

/* Receives each finished line (with its line break). Must not log. */
typedef void (*log_sink)(void *ctx, log_level level, const char *line, size_t len);

typedef struct log_options {
    int fd;           /* where lines go, -1 for nowhere; stays the caller's */
    log_level level;  /* lines above this are dropped */
    const char *node; /* shown when not NULL or empty; copied */
    int rank;         /* shown when >= 0 */
    log_sink sink;    /* gets every line as well, may be NULL */
    void *sink_ctx;
} log_options;

/* Starts or changes logging. */
void log_open(const log_options *options);
/* Back to writing nothing. */
void log_close(void);
void log_set_level(log_level level);
bool log_on(log_level level);
/* "error", "warn", "info", "debug" -> level; OK or ERR_ARG. */
int log_level_parse(const char *name, log_level *out);
const char *log_level_name(log_level level);
/* Every later line hides this text (6 to 255 characters, at most 32 texts). Only its length and a sum of
 * it are kept, so that the caller can wipe it. */
void log_hide(const char *secret);
/* Request id shown on this thread's lines until it is set to NULL; copied, cut at 63 characters. */
void log_request(const char *id);
/* Replaces secrets in a text of len bytes in place by '*' of the same length. */
void log_redact(char *text, size_t len);

typedef struct log_place {
    uint64_t second; /* both fields are used atomically */
    uint64_t n_second;
} log_place;
void log_write(log_place *place, log_level level, const char *module, const char *what,
    const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#define LOG(level, module, what, ...)                                                              \
    do {                                                                                           \
        static log_place log_place_here;                                                           \
        if (log_on(level)) {                                                                       \
            log_write(&log_place_here, level, module, what, " " __VA_ARGS__);                      \
        }                                                                                          \
    } while (0)

#endif
