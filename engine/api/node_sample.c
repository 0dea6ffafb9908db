#include "engine/api/node_sample.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/gpu_sample.h"
#include "engine/api/process.h"
#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

enum { TEXT_MAX = 4096 };

struct node_sampler {
    pthread_mutex_t lock; /* guards what follows */
    process_sampler process;
    gpu_sampler *gpu;
    char *sys;
    uint64_t taken_ms; /* monotonic; 0: never */
    rank_figures last;
};

node_sampler *node_sampler_new(const char *sys) {
    node_sampler *s = mem_alloc(sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    process_sampler_init(&s->process);
    s->gpu = gpu_sampler_open(NULL, 0);
    s->sys = mem_strdup(sys);
    return s;
}

void node_sampler_free(node_sampler *s) {
    if (s == NULL) return;
    gpu_sampler_close(s->gpu);
    pthread_mutex_destroy(&s->lock);
    mem_free(s->sys);
    mem_free(s);
}

/* ---- RDMA ports ---- */

static bool read_text(const buf *dir, const char *name, buf *out) {
    buf path = BUF_INIT;
    path_join(&path, buf_cstr(dir), name);
    buf_reset(out);
    bool has = file_read(buf_cstr(&path), out, TEXT_MAX, NULL) == OK;
    buf_release(&path);
    return has;
}

/* Counters of a port count words of four bytes. */
static double words(const buf *port, const char *name) {
    buf text = BUF_INIT;
    double bytes = -1.0;
    if (read_text(port, name, &text)) bytes = 4.0 * (double)strtoull(buf_cstr(&text), NULL, 10);
    buf_release(&text);
    return bytes;
}

/* The first ports in the order of their names. */
static int add_device(void *ctx, const char *name, err *e) {
    node_sampler *s = ctx;
    rank_figures *f = &s->last;
    buf port = BUF_INIT, text = BUF_INIT;
    (void)e;
    buf_printf(&port, "%s/class/infiniband/%s/ports/1", s->sys, name);
    bool is_active = read_text(&port, "state", &text) && strstr(buf_cstr(&text), "ACTIVE") != NULL;
    double sent = is_active ? words(&port, "counters/port_xmit_data") : -1.0;
    double received = is_active ? words(&port, "counters/port_rcv_data") : -1.0;
    if (sent >= 0.0 && received >= 0.0) {
        rank_rail rail = {.is_rdma = 1, .bytes = sent + received};
        int at = f->n_rails < FIGURES_RAILS ? f->n_rails++ : FIGURES_RAILS;
        str_copy(rail.name, sizeof rail.name, name);
        while (at > 0 && strcmp(f->rails[at - 1].name, rail.name) > 0) {
            if (at < FIGURES_RAILS) f->rails[at] = f->rails[at - 1];
            at--;
        }
        if (at < FIGURES_RAILS) f->rails[at] = rail;
    }
    buf_release(&port);
    buf_release(&text);
    return OK;
}

static void take_rails(node_sampler *s) {
    buf dir = BUF_INIT;
    s->last.n_rails = 0;
    buf_printf(&dir, "%s/class/infiniband", s->sys);
    (void)dir_each(buf_cstr(&dir), add_device, s, NULL);
    buf_release(&dir);
}

/* ---- the rest ---- */

static double pressure_of_memory(void) {
    buf text = BUF_INIT;
    double value = -1.0;
    if (file_read("/proc/pressure/memory", &text, TEXT_MAX, NULL) == OK) {
        const char *full = strstr(buf_cstr(&text), "full avg10=");
        if (full != NULL) value = strtod(full + strlen("full avg10="), NULL);
    }
    buf_release(&text);
    return value;
}

static void take_sample_locked(node_sampler *s) {
    process_sample p;
    rank_figures *f = &s->last;
    rank_figures_init(f);
    process_sampler_take(&s->process, &p);
    f->pid = (int32_t)process_id();
    f->time_ms = clock_wall_ms();
    f->process_bytes = p.process_bytes;
    f->cpu_percent = p.cpu_percent;
    f->machine_used_bytes = p.machine_used_bytes;
    f->machine_total_bytes = p.machine_total_bytes;
    if (p.machine_used_bytes >= 0.0 && p.machine_total_bytes >= 0.0)
        f->machine_available_bytes = p.machine_total_bytes - p.machine_used_bytes;
    f->pressure = pressure_of_memory();
    gpu_sampler_take(s->gpu, f);
    take_rails(s);
}

void node_sampler_take(node_sampler *s, rank_figures *out) {
    pthread_mutex_lock(&s->lock);
    uint64_t now = clock_mono_ms();
    if (s->taken_ms == 0 || now - s->taken_ms >= NODE_SAMPLE_MS) {
        take_sample_locked(s);
        s->taken_ms = now;
    }
    const rank_figures *f = &s->last;
    out->pid = f->pid;
    out->time_ms = f->time_ms;
    out->process_bytes = f->process_bytes;
    out->cpu_percent = f->cpu_percent;
    out->machine_used_bytes = f->machine_used_bytes;
    out->machine_total_bytes = f->machine_total_bytes;
    out->machine_available_bytes = f->machine_available_bytes;
    out->pressure = f->pressure;
    out->gpu_percent = f->gpu_percent;
    out->gpu_mhz = f->gpu_mhz;
    out->gpu_watt = f->gpu_watt;
    out->gpu_celsius = f->gpu_celsius;
    out->gpu_throttles = f->gpu_throttles;
    out->n_rails = f->n_rails;
    memcpy(out->rails, f->rails, sizeof out->rails);
    pthread_mutex_unlock(&s->lock);
}
