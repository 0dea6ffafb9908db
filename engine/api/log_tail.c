#include "engine/api/log_tail.h"

#include <pthread.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"

#define LINES 1024
#define LINE_BYTES 600

typedef struct kept_line {
    log_level level;
    size_t len;
    char text[LINE_BYTES];
} kept_line;

struct log_tail {
    pthread_mutex_t lock;
    uint64_t n_taken; /* line n lies at n % LINES; numbers begin with 1 */
    kept_line lines[LINES];
};

log_tail *log_tail_new(void) {
    log_tail *t = mem_alloc(sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void log_tail_free(log_tail *t) {
    if (t == NULL) return;
    pthread_mutex_destroy(&t->lock);
    mem_free(t);
}

void log_tail_take(void *ctx, log_level level, const char *line, size_t len) {
    log_tail *t = ctx;
    while (len > 0 && line[len - 1] == '\n')
        len--;
    if (len > LINE_BYTES) len = LINE_BYTES;
    pthread_mutex_lock(&t->lock);
    kept_line *l = &t->lines[++t->n_taken % LINES];
    l->level = level;
    l->len = len;
    memcpy(l->text, line, len);
    pthread_mutex_unlock(&t->lock);
}

uint64_t log_tail_print(log_tail *t, uint64_t since, log_level level, buf *out) {
    pthread_mutex_lock(&t->lock);
    uint64_t newest = t->n_taken;
    uint64_t i = newest >= LINES ? newest - LINES + 1 : 1;
    if (i <= since) i = since + 1;
    for (; i <= newest; i++) {
        const kept_line *l = &t->lines[i % LINES];
        if (l->level > level) continue;
        buf_printf(out, "data: {\"number\":%llu,\"level\":\"%s\",\"line\":", (unsigned long long)i,
            log_level_name(l->level));
        json_quote(out, l->text, l->len); /* replaces what a cut has left of a character */
        buf_puts(out, "}\n\n");
    }
    pthread_mutex_unlock(&t->lock);
    return newest > since ? newest : since;
}
