/* tandem model list, show, quantize. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/model/config.h"
#include "engine/weights/quantize.h"
#include "setup/settings.h"
#include "tui/cmd_internal.h"

/* Models on this machine. */

typedef struct model_list {
    json_w *w; /* NULL: print lines */
    int n;
} model_list;

typedef struct folder_walk {
    const char *dir;
    uint64_t bytes;
} folder_walk;

static int weigh_one(void *ctx, const char *name, err *e) {
    folder_walk *f = ctx;
    (void)e;
    buf path = BUF_INIT;
    path_join(&path, f->dir, name);
    uint64_t size = 0;
    if (!dir_exists(buf_cstr(&path)) && file_size(buf_cstr(&path), &size, NULL) == OK)
        f->bytes += size;
    buf_release(&path);
    return OK;
}

static void list_one(model_list *l, const char *name, const char *dir) {
    model_config *c = mem_alloc(sizeof *c);
    folder_walk f = {.dir = dir};
    char size[32];
    err e = ERR_INIT;
    bool is_fine = model_config_load(dir, c, &e) == OK;
    dir_each(dir, weigh_one, &f, NULL);
    l->n++;
    if (l->w != NULL) {
        json_w_object(l->w);
        json_w_kstr(l->w, "name", name);
        json_w_kstr(l->w, "dir", dir);
        json_w_ku64(l->w, "bytes", f.bytes);
        json_w_kbool(l->w, "usable", is_fine);
        json_w_kstr(l->w, "error", is_fine ? NULL : e.msg);
        json_w_close(l->w);
    } else {
        cmd_printf("%-24s %10s  %s\n", name, cmd_bytes_text((double)f.bytes, size), dir);
        if (!is_fine) cmd_printf("%-24s %10s  not usable: %s\n", "", "", e.msg);
    }
    mem_free(c);
}

typedef struct data_walk {
    model_list *list;
    const char *dir;
} data_walk;

static int list_data(void *ctx, const char *name, err *e) {
    data_walk *d = ctx;
    (void)e;
    buf path = BUF_INIT;
    path_join(&path, d->dir, name);
    if (dir_exists(buf_cstr(&path))) list_one(d->list, name, buf_cstr(&path));
    buf_release(&path);
    return OK;
}

/* The demo model beside the program: installed, or in the source tree. */
static bool find_demo(buf *out) {
    static const char *const places[] = {"../share/tandem/templates/demo-model",
        "../templates/demo-model", "../../templates/demo-model"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return false;
    self[n] = '\0';
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        buf dir = BUF_INIT;
        path_dir(&dir, self);
        path_join(out, buf_cstr(&dir), places[i]);
        buf_release(&dir);
        if (!dir_exists(buf_cstr(out))) continue;
        path_real(out);
        return true;
    }
    return false;
}

static int list_models(model_list *l, err *e) {
    settings *s = settings_new();
    buf path = BUF_INIT;
    int rc = settings_load(s, e);
    if (rc == OK) {
        if (find_demo(&path)) list_one(l, "tandem-demo", buf_cstr(&path));
        if (settings_is_set(s, "MODEL_DIR"))
            list_one(l, "(MODEL_DIR)", settings_get(s, "MODEL_DIR"));
        if (settings_is_set(s, "HEAD_DATA")) {
            path_join(&path, settings_get(s, "HEAD_DATA"), "models");
            data_walk d = {l, buf_cstr(&path)};
            if (dir_exists(d.dir)) rc = dir_each(d.dir, list_data, &d, e);
        }
    }
    buf_release(&path);
    settings_free(s);
    return rc;
}

int cmd_model_list(const cmd_args *a) {
    buf out = BUF_INIT;
    json_w w;
    err e = ERR_INIT;
    bool is_json = cmd_has(a, "json");
    model_list l = {.w = is_json ? &w : NULL};
    if (is_json) {
        cmd_begin_json(&w, &out);
        json_w_key(&w, "models");
        json_w_array(&w);
    }
    int code = list_models(&l, &e) == OK ? EXIT_OK : cmd_fail(&e);
    if (is_json && code == EXIT_OK) {
        json_w_close(&w);
        cmd_put_json(&w);
    }
    if (!is_json && code == EXIT_OK && l.n == 0) cmd_note("there is no model on this machine");
    buf_release(&out);
    return cmd_finish(code);
}

/* One model. */

typedef struct fact {
    const char *key, *label;
    int64_t value;
} fact;

static void show_config(const cmd_args *a, const char *dir, const model_config *c) {
    const fact facts[] = {{"layers", "layers", c->n_layers},
        {"draft_stages", "draft stages", c->n_stages}, {"draft_block", "draft block", c->block},
        {"embedding", "embedding", c->n_embd}, {"vocabulary", "vocabulary", c->n_vocab},
        {"heads", "heads", c->n_heads}, {"experts", "experts", c->n_experts},
        {"experts_used", "experts used", c->n_experts_used},
        {"engram_layers", "Engram layers", c->n_engram}, {"window", "sliding window", c->window},
        {"index_topk", "selected rows", c->index_topk},
        {"max_context", "longest context", c->max_context}};
    buf out = BUF_INIT;
    json_w w;
    bool is_json = cmd_has(a, "json");
    if (is_json) {
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "dir", dir);
        json_w_kstr(&w, "architecture", c->architecture);
        json_w_kstr(&w, "quantization", c->quant_method[0] != '\0' ? c->quant_method : NULL);
    } else {
        cmd_printf("%-16s %s\n%-16s %s\n%-16s %s\n", "folder", dir, "architecture", c->architecture,
            "quantization", c->quant_method[0] != '\0' ? c->quant_method : "none");
    }
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        if (is_json) {
            json_w_ki64(&w, facts[i].key, facts[i].value);
        } else {
            cmd_printf("%-16s %lld\n", facts[i].label, (long long)facts[i].value);
        }
    }
    if (is_json) cmd_put_json(&w);
    buf_release(&out);
}

int cmd_model_show(const cmd_args *a) {
    settings *s = settings_new();
    buf dir = BUF_INIT;
    model_config *c = mem_alloc(sizeof *c);
    err e = ERR_INIT;
    int code = EXIT_OK;
    int rc = settings_load(s, &e);
    if (rc == OK && a->n_args > 0) {
        rc = buf_puts(&dir, a->args[0]);
    } else if (rc == OK && settings_is_set(s, "MODEL_DIR")) {
        rc = buf_puts(&dir, settings_get(s, "MODEL_DIR"));
    } else if (rc == OK && !find_demo(&dir)) {
        rc = err_set(
            &e, ERR_NOT_FOUND, "no model is set and the demo model is not there; name a folder");
    }
    if (rc == OK) rc = model_config_load(buf_cstr(&dir), c, &e);
    if (rc == OK) {
        show_config(a, buf_cstr(&dir), c);
    } else {
        code = cmd_fail(&e);
    }
    mem_free(c);
    buf_release(&dir);
    settings_free(s);
    return cmd_finish(code);
}

/* Quantizing. */

typedef struct quantize_show {
    bool is_tty;
    int said_tenth;
    size_t last_len; /* of the line on the terminal, to wipe it */
} quantize_show;

static void on_progress(void *ctx, const quantize_progress *p) {
    quantize_show *q = ctx;
    double share = p->weights_total > 0 ? (double)p->weights_done / (double)p->weights_total : 0;
    int tenth = (int)(share * 10);
    char left[32] = "-";
    if (p->eta_s >= 0) cmd_time_text(p->eta_s, left);
    if (!q->is_tty && tenth <= q->said_tenth) return;
    q->said_tenth = tenth;
    buf line = BUF_INIT;
    buf_printf(&line, "%3.0f %%  %d of %d matrices  %.0f k weights/s  left %s  %s", 100 * share,
        p->n_done, p->n_total, p->weights_per_s / 1e3, left, p->name);
    if (q->is_tty) {
        size_t pad = q->last_len > line.len ? q->last_len - line.len : 0;
        fprintf(stderr, "\r%s%*s", buf_cstr(&line), (int)pad, "");
        q->last_len = line.len;
    } else {
        fprintf(stderr, "%s\n", buf_cstr(&line));
    }
    fflush(stderr);
    buf_release(&line);
}

static void put_report(const cmd_args *a, const quantize_report *r) {
    char time[32], size[32];
    if (!cmd_has(a, "json")) {
        cmd_printf("%s: %d matrices at %.2f bits on average, %d plain tensors, %s, %s\n",
            a->args[1], r->n_matrices, r->mean_bits, r->n_plain,
            cmd_bytes_text((double)r->bytes_out, size), cmd_time_text(r->seconds, time));
        cmd_printf("proxy error %.5f on average, worst %.5f at %s\n", r->mean_proxy_error,
            r->worst_proxy_error, r->worst_name[0] != '\0' ? r->worst_name : "-");
        return;
    }
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "dir", a->args[1]);
    json_w_ki64(&w, "matrices", r->n_matrices);
    json_w_ki64(&w, "resumed", r->n_resumed);
    json_w_ki64(&w, "plain", r->n_plain);
    json_w_ku64(&w, "weights", r->weights);
    json_w_ku64(&w, "bytes", r->bytes_out);
    json_w_kdouble(&w, "mean_bits", r->mean_bits);
    json_w_kdouble(&w, "mean_proxy_error", r->mean_proxy_error);
    json_w_kdouble(&w, "worst_proxy_error", r->worst_proxy_error);
    json_w_kstr(&w, "worst", r->worst_name);
    json_w_kdouble(&w, "seconds", r->seconds);
    cmd_put_json(&w);
    buf_release(&out);
}

static int quantize(const cmd_args *a, const quantize_map *map, int64_t n_threads, err *e) {
    model_config *c = mem_alloc(sizeof *c);
    quantize_show q = {.is_tty = isatty(2) != 0, .said_tenth = -1};
    quantize_report r = {0};
    quantize_options o = {.map = map,
        .n_threads = (int)n_threads,
        .without_resume = cmd_has(a, "restart"),
        .progress = on_progress,
        .progress_ctx = &q,
        .cancel = cmd_stop_flag()};
    cmd_stop_fd();
    int rc = model_config_load(a->args[0], c, e);
    if (rc == OK) rc = quantize_model(a->args[0], a->args[1], c, &o, &r, e);
    if (q.is_tty && q.last_len > 0) fputc('\n', stderr);
    if (rc == OK) put_report(a, &r);
    mem_free(c);
    return rc;
}

int cmd_model_quantize(const cmd_args *a) {
    quantize_map *map = NULL;
    const char *bits = cmd_value(a, "bits");
    int64_t n_threads = 0;
    err e = ERR_INIT;
    if (bits == NULL) {
        err_set(&e, ERR_ARG, "which bits? for example: --bits '*=3' or --bits demo");
        return cmd_fail_usage(&e);
    }
    int rc = cmd_int_option(a, "threads", (cmd_range){1, 1024, 0}, &n_threads, &e);
    if (rc == OK) rc = quantize_map_parse(bits, &map, &e);
    if (rc != OK) return cmd_fail_usage(&e);
    rc = quantize(a, map, n_threads, &e);
    int code = rc == OK ? EXIT_OK : cmd_fail(&e);
    if (rc == ERR_CANCELLED)
        cmd_note("finished matrices are kept; the same command goes on with them");
    quantize_map_free(map);
    return cmd_finish(code);
}
