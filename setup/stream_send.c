/* The sender's session: one thread a stream, frames handed out in order, what was not acknowledged
 * goes again. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/thread.h"
#include "setup/stream_internal.h"

enum {
    WINDOW = 3, /* frames of a stream that are not acknowledged yet */
    CONNECT_MS = 3000,
    DATA_TIMEOUT_MS = 10000,
    RETRY_MS = 300,
    TICK_MS = 250,
    LINE_MAX_BYTES = (int)RANGES_MAX_BYTES * 2 + 256
};

typedef enum unit_state { UNIT_OPEN, UNIT_TAKEN, UNIT_DONE } unit_state;

typedef struct sent_file {
    const manifest_file *f;
    char *rel;
    ranges r; /* what the receiver had */
    uint8_t *units;
    size_t n_done;
    disk_file d;
    struct timespec mtime; /* when it was opened: a change during the copy is an error */
    bool is_known, is_sound;
} sent_file;

typedef struct sender {
    const stream_setup *s;
    const stream_send_options *o;
    store st;
    sent_file *files;
    size_t n_files;
    uint16_t ports[STREAM_MAX_RAILS];
    int n_ports;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stop_rc;
    err stop_err;
    bool is_over; /* every file is sound there, or the session failed */
    bool is_ready;
    uint64_t last_progress_ms;
    stream_progress p;
    double read_s, send_s;
    uint64_t moved_bytes;
    err last; /* of a broken connection */
    buf line; /* unfinished line of the receiver */
} sender;

typedef struct flight {
    uint32_t sequence, file;
    size_t unit;
} flight;

typedef struct sending {
    sender *s;
    int index, fd, rail;
    void *buffer;
    flight flights[WINDOW];
    int n_flights;
    uint32_t sequence;
} sending;

static void stop(sender *s, int rc, const err *e) {
    pthread_mutex_lock(&s->lock);
    if (s->stop_rc == OK) {
        s->stop_rc = rc;
        s->stop_err = *e;
    }
    s->is_over = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static bool is_over(sender *s) {
    pthread_mutex_lock(&s->lock);
    bool is = s->is_over;
    pthread_mutex_unlock(&s->lock);
    return is;
}

/* Handing out. */

static bool claim_locked(sender *s, uint32_t *file, size_t *unit, bool *is_all_done) {
    *is_all_done = true;
    for (size_t i = 0; i < s->n_files; i++) {
        sent_file *f = &s->files[i];
        if (f->is_sound || f->n_done == f->r.n_units) continue;
        *is_all_done = false;
        for (size_t u = 0; u < f->r.n_units; u++) {
            if (f->units[u] != UNIT_OPEN) continue;
            f->units[u] = UNIT_TAKEN;
            *file = (uint32_t)i;
            *unit = u;
            return true;
        }
    }
    return false;
}

/* 1 a frame, 0 nothing now, -1 the stream may leave. */
static int claim(sender *s, uint32_t *file, size_t *unit) {
    bool is_all_done = false;
    pthread_mutex_lock(&s->lock);
    int got = !s->is_over && claim_locked(s, file, unit, &is_all_done) ? 1 : 0;
    if (got == 0 && (is_all_done || s->is_over)) got = -1;
    pthread_mutex_unlock(&s->lock);
    return got;
}

static void settle(sender *s, const flight *f, bool is_done) {
    sent_file *file = &s->files[f->file];
    pthread_mutex_lock(&s->lock);
    if (is_done && file->units[f->unit] != UNIT_DONE) {
        file->units[f->unit] = UNIT_DONE;
        file->n_done++;
        s->p.sent_bytes += ranges_unit_bytes(&file->r, f->unit);
        s->last_progress_ms = clock_mono_ms();
    } else if (!is_done && file->units[f->unit] == UNIT_TAKEN) {
        file->units[f->unit] = UNIT_OPEN;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Acknowledgements. */

static int take_ack(sending *t, err *e) {
    uint8_t in[FRAME_ACK_BYTES];
    uint32_t sequence = 0;
    ack_state state = ACK_OK;
    int rc = stream_recv_all(t->fd, in, sizeof in, e);
    if (rc == OK) rc = ack_decode(in, &sequence, &state, e);
    if (rc != OK) return rc;
    for (int i = 0; i < t->n_flights; i++) {
        if (t->flights[i].sequence != sequence) continue;
        flight f = t->flights[i];
        t->flights[i] = t->flights[--t->n_flights];
        settle(t->s, &f, state == ACK_OK);
        if (state == ACK_FULL) {
            err_set(e, ERR_FULL,
                "the worker's disk is full; make space there and start the copy "
                "again, it goes on where it was");
            stop(t->s, ERR_FULL, e);
            return ERR_FULL;
        }
        return state == ACK_FAILED ? err_set(e, ERR_PEER, "the worker could not write") : OK;
    }
    return err_set(e, ERR_FORMAT, "an acknowledgement of a frame that was not sent");
}

static bool is_readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* Sending. */

static int open_locked(sender *s, sent_file *f, err *e) {
    struct stat st;
    if (f->d.fd >= 0) return OK;
    int rc = disk_open(&s->st, f->rel, O_RDONLY, &f->d, e);
    if (rc == OK && fstat(f->d.fd, &st) != 0) rc = err_errno(e, "looking at %s", f->rel);
    if (rc == OK && (uint64_t)st.st_size != f->f->size)
        rc =
            err_set(e, ERR_MISMATCH, "%s on this machine has not the size of the manifest", f->rel);
    if (rc == OK) f->mtime = st.st_mtim;
    return rc;
}

static int check_unchanged(const sent_file *f, err *e) {
    struct stat st;
    if (fstat(f->d.fd, &st) == 0 && (uint64_t)st.st_size == f->f->size &&
        st.st_mtim.tv_sec == f->mtime.tv_sec && st.st_mtim.tv_nsec == f->mtime.tv_nsec)
        return OK;
    return err_set(e, ERR_MISMATCH, "%s was changed while it was copied", f->rel);
}

static int read_unit(sending *t, sent_file *f, size_t unit, err *e) {
    pthread_mutex_lock(&t->s->lock);
    int rc = open_locked(t->s, f, e);
    pthread_mutex_unlock(&t->s->lock);
    if (rc == OK)
        rc = disk_read(&f->d, t->buffer, (size_t)ranges_unit_bytes(&f->r, unit),
            (uint64_t)unit * f->r.unit, e);
    if (rc == OK && unit + 1 == f->r.n_units) rc = check_unchanged(f, e);
    if (rc != OK) stop(t->s, rc, e); /* the head's own disk: no use to go on */
    return rc;
}

static int send_unit(sending *t, uint32_t i_file, size_t unit, err *e) {
    sender *s = t->s;
    sent_file *f = &s->files[i_file];
    uint64_t begun = clock_mono_ns();
    t->flights[t->n_flights++] = (flight){++t->sequence, i_file, unit};
    int rc = read_unit(t, f, unit, e);
    if (rc != OK) return rc;
    uint64_t read_ns = clock_mono_ns() - begun;
    size_t n = (size_t)ranges_unit_bytes(&f->r, unit);
    uint8_t head[FRAME_HEAD_BYTES];
    frame_encode(&(frame){.kind = FRAME_DATA,
                     .file = i_file,
                     .length = (uint32_t)n,
                     .crc = crc32c(0, t->buffer, n),
                     .sequence = t->sequence,
                     .offset = (uint64_t)unit * f->r.unit},
        head);
    begun = clock_mono_ns();
    rc = stream_send_two(t->fd, head, sizeof head, t->buffer, n, e);
    pthread_mutex_lock(&s->lock);
    s->read_s += (double)read_ns / 1e9;
    s->send_s += (double)(clock_mono_ns() - begun) / 1e9;
    s->moved_bytes += n;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static void wait_changed(sender *s) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) until.tv_nsec -= 1000000000L, until.tv_sec++;
    pthread_mutex_lock(&s->lock);
    if (!s->is_over) pthread_cond_timedwait(&s->changed, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
}

/* Works over an open connection until it breaks or all is done. */
static int work(sending *t, err *e) {
    int rc = OK;
    while (rc == OK) {
        uint32_t file = 0;
        size_t unit = 0;
        while (rc == OK && t->n_flights > 0 && (t->n_flights == WINDOW || is_readable(t->fd)))
            rc = take_ack(t, e);
        if (rc != OK) return rc;
        int got = claim(t->s, &file, &unit);
        if (got > 0) {
            rc = send_unit(t, file, unit, e);
        } else if (t->n_flights > 0) {
            rc = take_ack(t, e);
        } else if (got < 0) {
            uint8_t head[FRAME_HEAD_BYTES];
            frame_encode(&(frame){.kind = FRAME_BYE}, head);
            return stream_send_all(t->fd, head, sizeof head, e);
        } else {
            wait_changed(t->s); /* what others have in flight may come back */
        }
    }
    return rc;
}

static void give_back(sending *t) {
    for (int i = 0; i < t->n_flights; i++)
        settle(t->s, &t->flights[i], false);
    t->n_flights = 0;
}

static int connect_stream(sending *t, err *e) {
    const stream_setup *s = t->s->s;
    int rail = t->rail % t->s->n_ports;
    int rc =
        stream_connect(s->peer[rail], s->listen[rail], t->s->ports[rail], CONNECT_MS, &t->fd, e);
    if (rc == OK) rc = stream_greet_sender(t->fd, s->secret, (uint32_t)t->index, e);
    if (rc == OK) stream_tune(t->fd, DATA_TIMEOUT_MS);
    return rc;
}

static void note_connection(sender *s, int change, const err *why) {
    pthread_mutex_lock(&s->lock);
    s->p.n_connected += change;
    if (why != NULL) {
        s->p.n_reconnects++;
        s->last = *why;
    }
    pthread_mutex_unlock(&s->lock);
}

static void *run_stream(void *arg) {
    sending *t = arg;
    thread_set_name("stream-out");
    for (bool goes_on = true; goes_on && !is_over(t->s);) {
        err e = ERR_INIT;
        t->fd = -1;
        int rc = connect_stream(t, &e);
        if (rc == OK) {
            note_connection(t->s, 1, NULL);
            rc = work(t, &e);
            note_connection(t->s, -1, NULL);
        }
        if (t->fd >= 0) close(t->fd);
        give_back(t);
        goes_on = rc != OK;
        if (rc == OK) break;
        if (rc == ERR_AUTH) stop(t->s, rc, &e);
        LOG(LOG_WARN, "stream", "connection lost", "stream=%d rail=%d reason=%s", t->index,
            t->rail % t->s->n_ports, e.msg);
        note_connection(t->s, 0, &e);
        t->rail++; /* the other rail may be alive */
        for (int i = 0; i < RETRY_MS / 50 && !is_over(t->s); i++)
            sleep_ms(50);
    }
    return NULL;
}

/* The receiver's lines. */

static sent_file *file_of(sender *s, const char *text, const char **rest) {
    uint64_t i = 0;
    char number[24];
    size_t n = strspn(text, "0123456789");
    if (n == 0 || n >= sizeof number) return NULL;
    memcpy(number, text, n);
    number[n] = '\0';
    *rest = text[n] == ' ' ? text + n + 1 : text + n;
    return parse_u64(number, &i) == OK && i < s->n_files ? &s->files[i] : NULL;
}

static int from_hex(const char *hex, buf *out) {
    static const char digits[] = "0123456789abcdef";
    for (; hex[0] != '\0' && hex[1] != '\0'; hex += 2) {
        const char *a = strchr(digits, hex[0]), *b = strchr(digits, hex[1]);
        if (a == NULL || b == NULL) return ERR_FORMAT;
        int rc = buf_putc(out, (char)(uint8_t)((a - digits) << 4 | (b - digits)));
        if (rc != OK) return rc;
    }
    return hex[0] == '\0' ? OK : ERR_FORMAT;
}

static void mark_had(sender *s, sent_file *f) {
    for (size_t u = 0; u < f->r.n_units; u++) {
        if (f->r.done[u] != ranges_unit_bytes(&f->r, u)) continue;
        f->units[u] = UNIT_DONE;
        f->n_done++;
        s->p.had_bytes += f->r.done[u];
    }
}

static int line_have(sender *s, const char *text, err *e) {
    const char *rest = NULL;
    sent_file *f = file_of(s, text, &rest);
    buf journal = BUF_MAX(RANGES_MAX_BYTES);
    if (f == NULL || f->is_known) return err_set(e, ERR_FORMAT, "unknown file");
    f->is_known = true;
    if (str_eq(rest, "ok")) {
        f->is_sound = true;
        s->p.n_ok++;
        s->p.had_bytes += f->f->size;
        return OK;
    }
    int rc = from_hex(rest, &journal);
    if (rc == OK) rc = ranges_decode(&f->r, journal.data, journal.len, e);
    if (rc == OK) mark_had(s, f);
    buf_release(&journal);
    return rc == OK ? OK : err_add(e, rc, "journal");
}

static int line_done(sender *s, const char *text, err *e) {
    const char *rest = NULL;
    sent_file *f = file_of(s, text, &rest);
    if (f == NULL) return err_set(e, ERR_FORMAT, "unknown file");
    pthread_mutex_lock(&s->lock);
    if (!f->is_sound) s->p.n_ok++;
    f->is_sound = true;
    s->last_progress_ms = clock_mono_ms();
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return OK;
}

static int line_port(sender *s, const char *text, err *e) {
    const char *blank = strchr(text, ' ');
    uint64_t port = 0;
    if (s->n_ports >= s->s->n_listen || blank == NULL ||
        strncmp(text, s->s->listen[s->n_ports], (size_t)(blank - text)) != 0 ||
        parse_u64(blank + 1, &port) != OK || port == 0 || port > 65535)
        return err_set(e, ERR_FORMAT, "a port that was not asked for");
    s->ports[s->n_ports++] = (uint16_t)port;
    return OK;
}

static int line_state(sender *s, const char *text, err *e) {
    unsigned long long written = 0, verified = 0;
    if (sscanf(text, "%20llu %20llu", &written, &verified) != 2)
        return err_set(e, ERR_FORMAT, "a state line of another form");
    pthread_mutex_lock(&s->lock);
    if (written > s->p.written_bytes || verified > s->p.verified_bytes)
        s->last_progress_ms = clock_mono_ms();
    s->p.written_bytes = written;
    s->p.verified_bytes = verified;
    pthread_mutex_unlock(&s->lock);
    return OK;
}

static int line_full(const char *text, err *e) {
    unsigned long long need = 0, have = 0;
    if (sscanf(text, "%20llu %20llu", &need, &have) == 2 && need > 0)
        return err_set(e, ERR_FULL, "the worker has not enough space: needs %.3f GB, free %.3f GB",
            (double)need / 1e9, (double)have / 1e9);
    return err_set(e, ERR_FULL,
        "the worker's disk is full (free %.3f GB); make space there and start "
        "the copy again, it goes on where it was",
        (double)have / 1e9);
}

static int take_line(sender *s, const char *line, err *e) {
    if (str_eq(line, "tandem-stream 1")) return OK;
    if (str_starts(line, "have ")) return line_have(s, line + 5, e);
    if (str_starts(line, "port ")) return line_port(s, line + 5, e);
    if (str_starts(line, "state ")) return line_state(s, line + 6, e);
    if (str_starts(line, "done ")) return line_done(s, line + 5, e);
    if (str_starts(line, "bad "))
        return err_set(e, ERR_MISMATCH,
            "a file arrived on the worker, but its digest is not the "
            "manifest's: the head's file was changed, or a disk or memory is faulty");
    if (str_starts(line, "full ")) return line_full(line + 5, e);
    if (str_starts(line, "fail ")) return err_set(e, ERR_PEER, "worker: %.500s", line + 5);
    if (str_eq(line, "ready")) {
        s->is_ready = true;
        return OK;
    }
    if (str_eq(line, "end")) {
        pthread_mutex_lock(&s->lock);
        s->is_over = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        return OK;
    }
    /* A shell's greeting may come before the program's first line. */
    return s->is_ready ? err_set(e, ERR_FORMAT, "the receiver says something unknown") : OK;
}

/* Reads what is there, waiting at most ms. ERR_PEER when the receiver is gone. */
static int read_lines(sender *s, int ms, err *e) {
    struct pollfd p = {.fd = s->o->lines_fd, .events = POLLIN};
    char piece[65536];
    if (poll(&p, 1, ms) <= 0) return OK;
    ssize_t n = read(s->o->lines_fd, piece, sizeof piece);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return OK;
    if (n < 0) return err_errno(e, "reading the receiver's answer");
    if (n == 0) return err_set(e, ERR_PEER, "the receiver on the worker ended without a word");
    if (buf_append(&s->line, piece, (size_t)n) != OK)
        return err_set(e, ERR_LIMIT, "the receiver's line is too long");
    size_t at = 0;
    int rc = OK;
    while (rc == OK) {
        char *end = memchr(s->line.data + at, '\n', s->line.len - at);
        if (end == NULL) break;
        *end = '\0';
        rc = take_line(s, s->line.data + at, e);
        at = (size_t)(end - s->line.data) + 1;
    }
    buf_consume(&s->line, at);
    return rc;
}

/* The session. */

static int prepare(sender *s, const manifest *m, err *e) {
    int rc = store_open(&s->st, s->o->root, e);
    s->files = mem_array(m->n_files + 1, sizeof *s->files);
    for (size_t i = 0; rc == OK && i < m->n_files; i++) {
        uint8_t id[RANGES_ID_BYTES];
        buf rel = BUF_INIT;
        if (m->files[i].is_head_only) continue;
        sent_file *f = &s->files[s->n_files++];
        f->f = &m->files[i];
        f->d.fd = -1;
        manifest_place(m, f->f, &rel);
        f->rel = buf_take(&rel);
        store_content_id(f->f, id);
        rc = ranges_init(&f->r, f->f->size, s->s->frame_bytes, id, e);
        if (rc == OK) f->units = mem_alloc(f->r.n_units + 1);
        s->p.total_bytes += f->f->size;
    }
    s->p.n_files = s->n_files;
    s->p.n_streams = s->o->n_streams;
    return rc;
}

static int tick(sender *s) {
    if (s->o->tick == NULL) return OK;
    pthread_mutex_lock(&s->lock);
    stream_progress p = s->p;
    double moved = (double)s->moved_bytes;
    p.read_rate = s->read_s > 0 ? moved / s->read_s : 0;
    p.send_rate = s->send_s > 0 ? moved / s->send_s : 0;
    p.bottleneck = s->moved_bytes == 0     ? ""
                   : s->read_s > s->send_s ? "reading"
                                           : "network or writing";
    pthread_mutex_unlock(&s->lock);
    return s->o->tick(s->o->tick_ctx, &p);
}

static int check_progress(sender *s, err *e) {
    int64_t limit = s->o->give_up_ms > 0 ? s->o->give_up_ms : 60000;
    pthread_mutex_lock(&s->lock);
    bool is_stuck = clock_mono_ms() - s->last_progress_ms > (uint64_t)limit;
    char last[200];
    str_copy(last, sizeof last, s->last.msg);
    pthread_mutex_unlock(&s->lock);
    if (!is_stuck) return OK;
    return err_set(e, ERR_NET, "nothing reached the worker for %lld s%s%s", (long long)limit / 1000,
        last[0] != '\0' ? "; last: " : "", last);
}

/* Until the session is over: lines, progress, stops. */
static int attend(sender *s, err *e) {
    int rc = OK;
    uint64_t next = 0;
    while (rc == OK && !is_over(s)) {
        rc = read_lines(s, 50, e);
        if (rc == OK) rc = check_progress(s, e);
        if (rc == OK && clock_mono_ms() >= next) {
            next = clock_mono_ms() + TICK_MS;
            int told = tick(s);
            if (told != OK) rc = err_set(e, told, "stopped on request; what arrived is kept");
        }
    }
    return rc;
}

static int run(sender *s, err *e) {
    pthread_t threads[STREAM_MAX_STREAMS];
    sending *all = mem_array(STREAM_MAX_STREAMS, sizeof *all);
    int n = 0, rc = OK;
    for (; rc == OK && n < s->o->n_streams; n++) {
        all[n] = (sending){.s = s, .index = n, .rail = n, .fd = -1};
        all[n].buffer = disk_buffer_new(s->s->frame_bytes);
        if (all[n].buffer == NULL || pthread_create(&threads[n], NULL, run_stream, &all[n]) != 0) {
            disk_buffer_free(all[n].buffer, s->s->frame_bytes);
            rc = err_set(e, ERR_MEMORY, "no memory for another stream");
            break;
        }
    }
    if (rc == OK) rc = attend(s, e);
    if (rc != OK) stop(s, rc, e);
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        disk_buffer_free(all[i].buffer, s->s->frame_bytes);
    }
    mem_free(all);
    if (rc == OK && s->stop_rc != OK) {
        rc = s->stop_rc;
        if (e != NULL) *e = s->stop_err;
    }
    tick(s);
    return rc;
}

static void release(sender *s) {
    for (size_t i = 0; i < s->n_files; i++) {
        mem_free(s->files[i].rel);
        mem_free(s->files[i].units);
        ranges_release(&s->files[i].r);
        disk_close(&s->files[i].d);
    }
    mem_free(s->files);
    buf_release(&s->line);
    store_close(&s->st);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
}

int stream_send(
    const stream_setup *setup, const manifest *m, const stream_send_options *o, err *e) {
    if (o->n_streams < 1 || o->n_streams > STREAM_MAX_STREAMS || setup->n_peer != setup->n_listen ||
        setup->n_peer < 1)
        return err_set(e, ERR_ARG, "streams must be 1 to %d and each rail needs both addresses",
            STREAM_MAX_STREAMS);
    sender *s = mem_alloc(sizeof *s);
    *s = (sender){.s = setup, .o = o, .st = {.fd = -1}, .line = BUF_MAX(LINE_MAX_BYTES)};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->last_progress_ms = clock_mono_ms();
    int rc = prepare(s, m, e);
    while (rc == OK && !s->is_ready) {
        rc = read_lines(s, TICK_MS, e);
        /* The receiver may have to hash files it already has. */
        int told = tick(s);
        if (rc == OK && told != OK) rc = err_set(e, told, "stopped on request");
    }
    if (rc == OK && s->n_ports != setup->n_listen)
        rc = err_set(e, ERR_FORMAT, "the receiver does not listen on every rail");
    s->last_progress_ms = clock_mono_ms();
    if (rc == OK) rc = run(s, e);
    release(s);
    mem_free(s);
    return rc;
}
