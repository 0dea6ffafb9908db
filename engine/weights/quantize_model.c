#include "engine/weights/quantize.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/weights/quantize_matrix.h"
#include "engine/weights/quantize_plan.h"
#include "kernels/half.h"

#define WORK_FOLDER ".quantize"
enum { N_RATES = EXL3_MAX_K2 + 1, COPY_CHUNK = 1 << 20, NAME_CAP = 256, N_PARTS = 4 };
static const char *const part_names[N_PARTS] = {"trellis", "suh", "svh", "marker"};

typedef struct model_run {
    const quantize_options *o;
    const char *out_dir;
    char *work_dir;
    checkpoint *k;
    quantize_plan plan;
    pool *pool;
    quantize_rate *rates[N_RATES];
    quantize_progress progress;
    quantize_report report;
    uint64_t start_ns;
    uint64_t weights_computed; /* not resumed */
    uint64_t trellis_bits;
} model_run;

static uint64_t name_seed(const char *name) {
    uint64_t h = 1469598103934665603u;
    for (; *name != '\0'; name++) {
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    }
    return h;
}

static void work_path(const model_run *r, const plan_item *it, buf *out) {
    buf_reset(out);
    buf_printf(out, "%s/%s.safetensors", r->work_dir, it->name);
}

/* What a finished matrix depends on; a work file with another key is made again. */
static void work_key(const model_run *r, const plan_item *it, const float *w, char out[128]) {
    size_t n = (size_t)it->source.in * (size_t)it->source.out;
    snprintf(out, 128, "1 %d %d %d %d %08x %d", it->k2, (int)r->plan.codebook, it->source.in,
        it->source.out, crc32c(0, w, n * sizeof *w), r->o->hessian != NULL);
}

static void part_dims(
    const plan_item *it, int part, st_dtype *dtype, int *n_dims, uint64_t dims[3]) {
    uint64_t in = (uint64_t)plan_padded(it->source.in);
    uint64_t out = (uint64_t)plan_padded(it->source.out);
    *dtype = part == 0 ? ST_I16 : part == 3 ? ST_I32 : ST_F16;
    *n_dims = part == 0 ? 3 : part == 3 ? 0 : 1;
    dims[0] = part == 0 ? in / EXL3_TILE : part == 1 ? in : out;
    dims[1] = out / EXL3_TILE;
    dims[2] = 8 * (uint64_t)it->k2;
}

static int save_work(
    const model_run *r, const plan_item *it, const quantized_matrix *m, const char *key, err *e) {
    buf path = BUF_INIT;
    char number[64];
    const void *data[3] = {m->trellis, m->suh, m->svh};
    uint64_t bytes[3] = {
        exl3_trellis_bytes(m->in, m->out, m->k2), 2 * (uint64_t)m->in, 2 * (uint64_t)m->out};
    int rc = OK;
    work_path(r, it, &path);
    st_writer *w = st_writer_new(buf_cstr(&path));
    st_writer_metadata(w, "key", key);
    snprintf(number, sizeof number, "%.9g %.9g", m->proxy_error, m->square_error);
    st_writer_metadata(w, "errors", number);
    for (int i = 0; i < 3 && rc == OK; i++) {
        uint64_t dims[3];
        st_dtype dtype;
        int n_dims;
        part_dims(it, i, &dtype, &n_dims, dims);
        int id = st_writer_add(w, part_names[i], dtype, n_dims, dims, e);
        rc = id < 0 ? id : OK;
    }
    if (rc == OK) {
        rc = st_writer_begin(w, e);
    }
    for (int i = 0; i < 3 && rc == OK; i++) {
        rc = st_writer_put(w, i, 0, data[i], bytes[i], e);
    }
    if (rc == OK) {
        rc = st_writer_finish(w, e);
    }
    st_writer_free(w);
    buf_release(&path);
    return rc;
}

/* Whether an earlier run finished this matrix from the same weights with the same settings. */
static bool find_work(model_run *r, const plan_item *it, const char *key) {
    buf path = BUF_INIT;
    st_set *s = NULL;
    bool found = false;
    work_path(r, it, &path);
    if (!r->o->without_resume && file_exists(buf_cstr(&path)) &&
        st_open(buf_cstr(&path), ST_MAPPED, &s, NULL) == OK) {
        const char *have = st_metadata(s, 0, "key");
        const char *errors = st_metadata(s, 0, "errors");
        found = have != NULL && strcmp(have, key) == 0 && errors != NULL &&
                sscanf(errors, "%lf %lf", &r->progress.proxy_error, &r->progress.square_error) == 2;
    }
    st_close(s);
    buf_release(&path);
    return found;
}

static int compute(model_run *r, const plan_item *it, const float *w, const char *key, err *e) {
    quantize_matrix_args a = {.weight = w,
        .in = it->source.in,
        .out = it->source.out,
        .seed = name_seed(it->name),
        .cancel = r->o->cancel};
    quantized_matrix m = {0};
    float *sum = NULL;
    int rc = OK;
    if (r->rates[it->k2] == NULL) {
        rc = quantize_rate_new(r->plan.codebook, it->k2, r->pool, &r->rates[it->k2], e);
    }
    if (rc == OK && r->o->hessian != NULL) {
        sum = mem_try_alloc((size_t)a.in * (size_t)a.in * sizeof *sum);
        rc = sum == NULL
                 ? err_set(e, ERR_MEMORY, "no memory for the Hessian of %s", it->name)
                 : r->o->hessian(r->o->hessian_ctx, it->name, a.in, sum, &a.hessian_rows, e);
        a.hessian_sum = sum;
    }
    if (rc == OK) {
        rc = quantize_matrix(&a, r->rates[it->k2], r->pool, &m, e);
    }
    if (rc == OK) {
        r->progress.proxy_error = m.proxy_error;
        r->progress.square_error = m.square_error;
        r->weights_computed += (uint64_t)a.in * (uint64_t)a.out;
        rc = save_work(r, it, &m, key, e);
    }
    quantized_matrix_release(&m);
    mem_free(sum);
    return err_add(e, rc, "%s", it->name);
}

static void note_progress(model_run *r, const plan_item *it, bool was_resumed) {
    quantize_progress *p = &r->progress;
    uint64_t n = (uint64_t)it->source.in * (uint64_t)it->source.out;
    double seconds = (double)(clock_mono_ns() - r->start_ns) * 1e-9;
    p->n_done++;
    p->weights_done += n;
    p->name = it->name;
    p->bits = it->k2 / 2.0;
    p->was_resumed = was_resumed;
    p->weights_per_s =
        r->weights_computed > 0 && seconds > 0.0 ? (double)r->weights_computed / seconds : 0.0;
    p->eta_s = p->weights_per_s > 0.0
                   ? (double)(p->weights_total - p->weights_done) / p->weights_per_s
                   : -1.0;
    r->report.n_resumed += was_resumed;
    r->report.mean_proxy_error += p->proxy_error * (double)n;
    r->trellis_bits += n * (uint64_t)it->k2;
    if (p->proxy_error >= r->report.worst_proxy_error) {
        r->report.worst_proxy_error = p->proxy_error;
        snprintf(r->report.worst_name, sizeof r->report.worst_name, "%s", it->name);
    }
    if (r->o->progress != NULL) {
        r->o->progress(r->o->progress_ctx, p);
    }
}

static int quantize_item(model_run *r, const plan_item *it, err *e) {
    char key[128];
    size_t n = (size_t)it->source.in * (size_t)it->source.out;
    if (r->o->cancel != NULL && atomic_load(r->o->cancel))
        return err_set(e, ERR_CANCELLED, "stopped");
    float *w = mem_try_alloc(n * sizeof *w);
    if (w == NULL) return err_set(e, ERR_MEMORY, "no memory for %s", it->name);
    int rc = linear_source_floats(&it->source, w, e);
    if (rc == OK) {
        work_key(r, it, w, key);
        bool was_resumed = find_work(r, it, key);
        rc = was_resumed ? OK : compute(r, it, w, key, e);
        if (rc == OK) {
            note_progress(r, it, was_resumed);
        }
    }
    mem_free(w);
    return rc;
}

static int quantize_all(model_run *r, err *e) {
    int rc = OK;
    r->progress = (quantize_progress){
        .n_total = r->plan.n_matrices, .weights_total = r->plan.weights, .name = "", .eta_s = -1.0};
    if (r->o->progress != NULL) {
        r->o->progress(r->o->progress_ctx, &r->progress);
    }
    for (int i = 0; i < r->plan.n_items && rc == OK; i++) {
        if (r->plan.items[i].is_matrix) {
            rc = quantize_item(r, &r->plan.items[i], e);
        }
    }
    return rc;
}

static int declare_item(const model_run *r, st_writer *w, plan_item *it, err *e) {
    uint32_t value;
    const char *marker = quantize_marker(r->plan.codebook, &value);
    int id;
    if (!it->is_matrix) {
        id = st_writer_add(w, it->name, it->dtype, it->tensor->n_dims, it->tensor->dims, e);
        it->first_id = id;
        return id < 0 ? id : OK;
    }
    for (int i = 0; i < (marker != NULL ? N_PARTS : 3); i++) {
        char name[NAME_CAP];
        uint64_t dims[3];
        st_dtype dtype;
        int n_dims;
        part_dims(it, i, &dtype, &n_dims, dims);
        snprintf(name, sizeof name, "%s.%s", it->name, i == 3 ? marker : part_names[i]);
        id = st_writer_add(w, name, dtype, n_dims, dims, e);
        if (id < 0) return id;
        it->first_id = i == 0 ? id : it->first_id;
    }
    return OK;
}

static int put_matrix(const model_run *r, st_writer *w, const plan_item *it, err *e) {
    buf path = BUF_INIT;
    st_set *s = NULL;
    uint32_t value;
    work_path(r, it, &path);
    int rc = st_open(buf_cstr(&path), ST_MAPPED, &s, e);
    for (int i = 0; i < 3 && rc == OK; i++) {
        const st_tensor *t = st_find(s, part_names[i]);
        rc = t == NULL ? err_set(e, ERR_FORMAT, "%s: %s is missing; remove it and start again",
                             buf_cstr(&path), part_names[i])
                       : st_writer_put(w, it->first_id + i, 0, t->data, t->bytes, e);
    }
    if (rc == OK && quantize_marker(r->plan.codebook, &value) != NULL) {
        rc = st_writer_put(w, it->first_id + 3, 0, &value, sizeof value, e);
    }
    st_close(s);
    buf_release(&path);
    return rc;
}

static void floats_to(st_dtype dtype, const float *in, size_t n, void *out) {
    uint16_t *half = out;
    if (dtype == ST_F32) {
        memcpy(out, in, n * sizeof *in);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        half[i] = dtype == ST_F16 ? half_from_float(in[i]) : bf16_from_float(in[i]);
    }
}

/* Copies a tensor, converting between float kinds when the map asks for it. */
static int put_copy(st_writer *w, const plan_item *it, err *e) {
    const st_tensor *t = it->tensor;
    size_t from = st_dtype_bytes(t->dtype);
    size_t to = st_dtype_bytes(it->dtype);
    uint64_t n_all = st_elements(t);
    int rc = OK;
    float *values = mem_array(COPY_CHUNK, sizeof *values);
    void *out = mem_array(COPY_CHUNK, sizeof *values);
    for (uint64_t i = 0; i < n_all && rc == OK; i += COPY_CHUNK) {
        size_t n = n_all - i < COPY_CHUNK ? (size_t)(n_all - i) : COPY_CHUNK;
        const uint8_t *in = (const uint8_t *)t->data + i * from;
        if (t->dtype == it->dtype) {
            rc = st_writer_put(w, it->first_id, i * to, in, n * to, e);
            continue;
        }
        linear_source s = {
            .kind = LINEAR_FLOAT, .in = (int)n, .out = 1, .dtype = t->dtype, .weight = in};
        linear_source_rows(&s, 0, 1, values);
        floats_to(it->dtype, values, n, out);
        rc = st_writer_put(w, it->first_id, i * to, out, n * to, e);
    }
    mem_free(values);
    mem_free(out);
    return rc;
}

static int write_shard(model_run *r, int i_shard, err *e) {
    char name[64];
    buf path = BUF_INIT;
    quantize_shard_name(&r->plan, i_shard, name);
    path_join(&path, r->out_dir, name);
    st_writer *w = st_writer_new(buf_cstr(&path));
    int rc = OK;
    st_writer_metadata(w, "format", "pt");
    for (int i = 0; i < r->plan.n_items && rc == OK; i++) {
        if (r->plan.items[i].i_shard == i_shard) {
            rc = declare_item(r, w, &r->plan.items[i], e);
        }
    }
    if (rc == OK) {
        rc = st_writer_begin(w, e);
    }
    for (int i = 0; i < r->plan.n_items && rc == OK; i++) {
        const plan_item *it = &r->plan.items[i];
        if (it->i_shard != i_shard) continue;
        rc = it->is_matrix ? put_matrix(r, w, it, e) : put_copy(w, it, e);
    }
    if (rc == OK) {
        rc = st_writer_finish(w, e);
    }
    st_writer_free(w);
    buf_release(&path);
    return rc;
}

static void finish_report(model_run *r) {
    quantize_report *p = &r->report;
    p->n_matrices = r->plan.n_matrices;
    p->n_plain = r->plan.n_items - r->plan.n_matrices;
    p->weights = r->plan.weights;
    for (int i = 0; i < r->plan.n_items; i++) {
        p->bytes_out += plan_item_bytes(&r->plan.items[i]);
    }
    if (p->weights > 0) {
        p->mean_bits = (double)r->trellis_bits / 2.0 / (double)p->weights;
        p->mean_proxy_error /= (double)p->weights;
    }
    p->seconds = (double)(clock_mono_ns() - r->start_ns) * 1e-9;
}

/* The config comes last: a folder without it is no model. */
static int assemble(model_run *r, const char *in_dir, err *e) {
    int rc = OK;
    for (int i = 0; i < r->plan.n_shards && rc == OK; i++) {
        rc = write_shard(r, i, e);
    }
    if (rc == OK && r->plan.n_shards > 1) {
        rc = quantize_write_index(&r->plan, r->out_dir, e);
    }
    if (rc == OK) {
        rc = quantize_copy_texts(in_dir, r->out_dir, e);
    }
    finish_report(r);
    if (rc == OK) {
        rc = quantize_write_config(in_dir, r->out_dir, r->o, &r->report, e);
    }
    return rc == OK ? dir_remove_all(r->work_dir, e) : rc;
}

static int check_out_dir(model_run *r, err *e) {
    buf path = BUF_INIT;
    path_join(&path, r->out_dir, "config.json");
    bool is_taken = file_exists(buf_cstr(&path));
    path_join(&path, r->out_dir, WORK_FOLDER);
    r->work_dir = mem_strdup(buf_cstr(&path));
    buf_release(&path);
    if (is_taken) {
        return err_set(e, ERR_EXISTS,
            "%s holds a model already; give an empty folder, or remove it first", r->out_dir);
    }
    int rc = r->o->without_resume ? dir_remove_all(r->work_dir, e) : OK;
    return rc == OK ? dir_make_all(r->work_dir, 0755, e) : rc;
}

int quantize_model(const char *in_dir, const char *out_dir, const model_config *c,
    const quantize_options *o, quantize_report *report, err *e) {
    model_run r = {.o = o, .out_dir = out_dir, .start_ns = clock_mono_ns()};
    int rc = check_out_dir(&r, e);
    if (rc == OK) {
        rc = checkpoint_open(in_dir, c, NULL, &r.k, e);
    }
    if (rc == OK) {
        rc = quantize_plan_make(&r.plan, r.k, c, o, e);
    }
    if (rc == OK) {
        r.pool = pool_new(o->n_threads);
        rc = quantize_all(&r, e);
    }
    if (rc == OK) {
        rc = assemble(&r, in_dir, e);
    }
    for (int i = 0; i < N_RATES; i++) {
        quantize_rate_free(r.rates[i]);
    }
    pool_free(r.pool);
    quantize_plan_release(&r.plan);
    checkpoint_close(r.k);
    mem_free(r.work_dir);
    if (report != NULL) {
        *report = r.report;
    }
    return rc;
}
