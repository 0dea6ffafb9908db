#include "engine/api/request_log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

#define KEPT 256
#define FILE_MAX_BYTES ((off_t)16 << 20)

struct request_log {
    pthread_mutex_t lock;
    char *lines[KEPT]; /* number n stands at n % KEPT */
    uint64_t n_added;
    char *path; /* NULL: no file */
    int fd;
};

static int open_file(const char *path, err *e) {
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) err_errno(e, "opening the request log %s", path);
    return fd;
}

int request_log_open(const char *path, request_log **out, err *e) {
    request_log *l = mem_alloc(sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
    l->fd = -1;
    *out = l;
    if (path == NULL) return OK;
    l->path = mem_strdup(path);
    l->fd = open_file(path, e);
    if (l->fd >= 0 && fchmod(l->fd, 0600) == 0) return OK;
    request_log_free(l);
    *out = NULL;
    return ERR_IO;
}

void request_log_free(request_log *l) {
    if (l == NULL) return;
    for (int i = 0; i < KEPT; i++) {
        mem_free(l->lines[i]);
    }
    if (l->fd >= 0) close(l->fd);
    pthread_mutex_destroy(&l->lock);
    mem_free(l->path);
    mem_free(l);
}

static void put_record(const request_record *r, uint64_t number, json_w *w) {
    json_w_object(w);
    json_w_ku64(w, "number", number);
    json_w_ku64(w, "time_ms", clock_wall_ms());
    json_w_kstr(w, "id", r->id);
    json_w_kstr(w, "key", r->key);
    json_w_kstr(w, "method", r->method);
    json_w_kstr(w, "path", r->path);
    json_w_ki64(w, "status", r->status);
    json_w_kstr(w, "finish_reason", r->finish);
    json_w_ki64(w, "prompt_tokens", r->n_prompt);
    json_w_ki64(w, "cached_tokens", r->n_cached);
    json_w_ki64(w, "completion_tokens", r->n_completion);
    json_w_ki64(w, "request_bytes", r->n_bytes);
    json_w_key(w, "ms");
    json_w_fixed(w, r->ms, 1);
}

static void rotate_locked(request_log *l) {
    struct stat st;
    buf old = BUF_INIT;
    if (fstat(l->fd, &st) != 0 || st.st_size < FILE_MAX_BYTES) return;
    buf_printf(&old, "%s.1", l->path);
    if (rename(l->path, buf_cstr(&old)) == 0) {
        int fd = open_file(l->path, NULL);
        if (fd >= 0) {
            close(l->fd);
            l->fd = fd;
        }
    }
    buf_release(&old);
}

static void write_locked(request_log *l, const buf *line) {
    size_t done = 0;
    rotate_locked(l);
    while (done < line->len) {
        ssize_t n = write(l->fd, line->data + done, line->len - done);
        if (n <= 0) return; /* a full disk must not stop the service */
        done += (size_t)n;
    }
}

void request_log_add(request_log *l, const request_record *r) {
    buf line = BUF_INIT;
    json_w w;
    pthread_mutex_lock(&l->lock);
    uint64_t number = ++l->n_added;
    json_w_begin(&w, &line);
    put_record(r, number, &w);
    json_w_close(&w);
    if (json_w_end(&w) == OK) {
        mem_free(l->lines[number % KEPT]);
        l->lines[number % KEPT] = mem_strdup(buf_cstr(&line));
    }
    if (l->fd >= 0) {
        if (r->text != NULL) {
            buf_reset(&line);
            json_w_begin(&w, &line);
            put_record(r, number, &w);
            json_w_key(&w, "body");
            json_w_strn(&w, r->text, r->text_len);
            json_w_close(&w);
            json_w_end(&w);
        }
        buf_putc(&line, '\n');
        log_redact(line.data, line.len);
        write_locked(l, &line);
    }
    pthread_mutex_unlock(&l->lock);
    buf_release(&line);
}

uint64_t request_log_print(request_log *l, uint64_t since, buf *out) {
    pthread_mutex_lock(&l->lock);
    uint64_t newest = l->n_added;
    uint64_t first = newest > KEPT ? newest - KEPT + 1 : 1;
    bool is_first = true;
    if (since + 1 > first) first = since + 1;
    buf_putc(out, '[');
    for (uint64_t i = first; i <= newest; i++) {
        const char *line = l->lines[i % KEPT];
        if (line == NULL) continue;
        if (!is_first) buf_putc(out, ',');
        is_first = false;
        buf_puts(out, line);
    }
    buf_putc(out, ']');
    pthread_mutex_unlock(&l->lock);
    return newest;
}
