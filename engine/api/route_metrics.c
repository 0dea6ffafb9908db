/* The metrics page (names: api.md 5): what the HTTP side counted, then what the scheduler, the store
 * of Engram rows and the ranks say at this moment. Reading costs the readers, not the step. */
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"

enum { LABELS = 96 };

static void begin(buf *out, const char *name, const char *kind, const char *help) {
    buf_printf(out, "# HELP tandem_%s %s\n# TYPE tandem_%s %s\n", name, help, name, kind);
}

/* A line of a family; what is unknown has none. labels may be "". */
static void line(buf *out, const char *name, const char *labels, double value) {
    if (value < 0.0) return;
    const char *open = labels[0] != '\0' ? "{" : "", *close = labels[0] != '\0' ? "}" : "";
    buf_printf(out, "tandem_%s%s%s%s %.17g\n", name, open, labels, close, value);
}

typedef struct plain_value {
    const char *name, *kind, *help;
    double value;
} plain_value;

static void put_values(buf *out, const plain_value *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        begin(out, values[i].name, values[i].kind, values[i].help);
        line(out, values[i].name, "", values[i].value);
    }
}

static void put_counts(const api *a, const run_stats *s, buf *out) {
    double total = s->pages_total, used = s->pages_used;
    double start = (double)a->started_ms / 1e3;
    const plain_value values[] = {
        {"requests_running", "gauge", "Requests in a slot.", s->n_running},
        {"requests_waiting", "gauge", "Requests in the queue.", s->n_waiting},
        {"prompt_tokens_total", "counter", "Prompt tokens computed.", (double)s->n_prompt_tokens},
        {"prompt_tokens_cached_total", "counter", "Prompt tokens taken from the cache.",
            (double)s->n_cached_tokens},
        {"generation_tokens_total", "counter", "Tokens generated.", (double)s->n_generated},
        {"draft_tokens_total", "counter", "Draft tokens verified.", (double)s->n_drafted},
        {"draft_tokens_accepted_total", "counter", "Draft tokens kept.", (double)s->n_accepted},
        {"steps_total", "counter", "Forward steps.", (double)s->n_steps},
        {"kv_pages", "gauge", "Pages of the KV pool.", total},
        {"kv_pages_used", "gauge", "Pages that running streams hold.", used},
        {"kv_pages_cached", "gauge", "Pages that only the prefix cache holds.", s->pages_kept},
        {"kv_cache_usage_ratio", "gauge", "Share of the pages in use.",
            total > 0.0 ? used / total : 0.0},
        {"kv_cache_evictions_total", "counter", "Cached pages given up for others.",
            (double)s->n_evicted},
        {"process_start_time_seconds", "gauge", "Start of the server, Unix time.", start},
    };
    put_values(out, values, sizeof values / sizeof values[0]);
}

static void put_steps(const run_stats *s, buf *out) {
    begin(out, "step_seconds", "histogram", "Time of a forward step.");
    histogram_print(&s->step_seconds, &RUN_STEP_SECONDS, "tandem_step_seconds", NULL, out);
    begin(out, "step_rows", "histogram", "Rows of a forward step.");
    histogram_print(&s->step_rows, &RUN_STEP_ROWS, "tandem_step_rows", NULL, out);
}

static void put_positions(const run_stats *s, buf *out) {
    static const char verified[] = "draft_tokens_by_position_total";
    static const char kept[] = "draft_tokens_accepted_by_position_total";
    char label[32];
    begin(out, verified, "counter", "Draft tokens verified, by place in the block.");
    for (int i = 0; i < RUN_DRAFT_MAX && s->drafted_at[i] > 0; i++) {
        snprintf(label, sizeof label, "position=\"%d\"", i + 1);
        line(out, verified, label, (double)s->drafted_at[i]);
    }
    begin(out, kept, "counter", "Draft tokens kept, by place in the block.");
    for (int i = 0; i < RUN_DRAFT_MAX && s->drafted_at[i] > 0; i++) {
        snprintf(label, sizeof label, "position=\"%d\"", i + 1);
        line(out, kept, label, (double)s->accepted_at[i]);
    }
}

static void put_cache(const run_stats *s, buf *out) {
    double disk = (double)s->n_disk_tokens, all = (double)s->n_cached_tokens;
    begin(out, "prefix_cache_hit_tokens_total", "counter",
        "Prompt tokens taken from the cache, by where they lay.");
    line(out, "prefix_cache_hit_tokens_total", "tier=\"ram\"", all > disk ? all - disk : 0.0);
    line(out, "prefix_cache_hit_tokens_total", "tier=\"disk\"", disk);
    begin(out, "disk_cache_bytes", "gauge", "Bytes of the prefix cache on disk.");
    line(out, "disk_cache_bytes", "", s->has_disk ? (double)s->disk.bytes : -1.0);
    begin(out, "disk_cache_errors_total", "counter",
        "Records of the disk cache that were damaged, or could not be read or written.");
    line(out, "disk_cache_errors_total", "kind=\"damaged\"",
        s->has_disk ? (double)s->disk.n_dropped : -1.0);
    line(out, "disk_cache_errors_total", "kind=\"io\"",
        s->has_disk ? (double)s->disk.n_errors : -1.0);
}

/* ---- ranks ---- */

typedef struct rank_list {
    const api_rank *ranks;
    int n;
} rank_list;

static void put_rank_values(
    const rank_list *l, buf *out, const plain_value *what, double (*value)(const api_rank *r)) {
    char label[32];
    begin(out, what->name, what->kind, what->help);
    for (int i = 0; i < l->n; i++) {
        snprintf(label, sizeof label, "rank=\"%d\"", l->ranks[i].rank);
        line(out, what->name, label, value(&l->ranks[i]));
    }
}

static double is_up(const api_rank *r) {
    return strcmp(r->state, "up") == 0 ? 1.0 : 0.0;
}

static double available(const api_rank *r) {
    return r->f.machine_available_bytes;
}

static void put_memory(const rank_list *l, buf *out) {
    static const char name[] = "rank_memory_bytes";
    static const char *const parts[] = {"weights", "cache", "work", "engram", "process"};
    char label[LABELS];
    begin(out, name, "gauge", "Memory of a rank: parts of its plan, and what its process holds.");
    for (int i = 0; i < l->n; i++) {
        const rank_figures *f = &l->ranks[i].f;
        const double values[] = {
            f->weight_bytes, f->cache_bytes, f->work_bytes, f->engram_bytes, f->process_bytes};
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
            snprintf(label, sizeof label, "rank=\"%d\",part=\"%s\"", l->ranks[i].rank, parts[k]);
            line(out, name, label, values[k]);
        }
    }
}

static void put_links(const rank_list *l, buf *out) {
    begin(out, "link_bytes_total", "counter",
        "Bytes between the ranks, both ways, by link and kind (rdma, tcp).");
    for (int i = 0; i < l->n; i++) {
        const rank_figures *f = &l->ranks[i].f;
        for (int k = 0; k < f->n_rails; k++) {
            buf labels = BUF_INIT;
            buf_printf(&labels, "rank=\"%d\"", l->ranks[i].rank);
            metric_label(&labels, "rail", f->rails[k].name);
            metric_label(&labels, "kind", f->rails[k].is_rdma ? "rdma" : "tcp");
            line(out, "link_bytes_total", buf_cstr(&labels), f->rails[k].bytes);
            buf_release(&labels);
        }
    }
}

static double engram_rows(const rank_list *l) {
    double sum = 0.0;
    for (int i = 0; i < l->n; i++) {
        if (l->ranks[i].f.engram_rows > 0.0) sum += l->ranks[i].f.engram_rows;
    }
    return sum;
}

static void put_ranks(const rank_list *l, buf *out) {
    const plain_value up = {"rank_up", "gauge", "1: the rank runs and answers.", 0.0};
    const plain_value memory = {
        "node_memory_available_bytes", "gauge", "Memory that the rank's machine has left.", 0.0};
    const plain_value wait = {"exchange_wait_seconds_total", "counter",
        "Time that rank 0 has spent in exchanges with the others.", l->ranks[0].f.exchange_wait_s};
    put_rank_values(l, out, &up, is_up);
    put_rank_values(l, out, &memory, available);
    put_memory(l, out);
    put_links(l, out);
    put_values(out, &wait, 1);
}

static void put_engram(const api *a, const rank_list *l, buf *out) {
    const plain_value rows = {"engram_rows_total", "counter",
        "Engram rows that steps were given, over all ranks.", engram_rows(l)};
    engram_store_stats s = {0};
    put_values(out, &rows, 1);
    if (a->options.engram != NULL) a->options.engram(a->options.ranks_ctx, &s);
    begin(out, "engram_read_seconds", "histogram",
        "Time of a request for Engram rows, from its begin to its last row; rank 0.");
    histogram_print(&s.read_seconds, &ENGRAM_READ_SECONDS, "tandem_engram_read_seconds", NULL, out);
}

static void put_build(const api *a, buf *out) {
    buf labels = BUF_INIT;
    metric_label(&labels, "version", a->options.build);
    begin(out, "build_info", "gauge", "The build.");
    line(out, "build_info", buf_cstr(&labels), 1.0);
    buf_release(&labels);
}

void route_metrics(http_request *q) {
    api *a = q->api;
    api_rank ranks[API_MAX_RANKS];
    run_stats s;
    buf body = BUF_INIT;
    api_stats(a, &s);
    rank_list list = {ranks, api_ranks(a, &s, ranks)};
    metrics_print(a->metrics.all, &body);
    put_counts(a, &s, &body);
    put_steps(&s, &body);
    put_positions(&s, &body);
    put_cache(&s, &body);
    put_engram(a, &list, &body);
    put_ranks(&list, &body);
    put_build(a, &body);
    http_send(q, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

/* ---- shared with the control paths ---- */

int api_ranks(api *a, const run_stats *s, api_rank out[API_MAX_RANKS]) {
    int n = 0;
    if (a->options.ranks != NULL) n = a->options.ranks(a->options.ranks_ctx, out, API_MAX_RANKS);
    if (n < 1) {
        n = 1;
        out[0] = (api_rank){.state = atomic_load(&a->is_loaded) ? "up" : "loading", .age_s = 0.0};
        rank_figures_init(&out[0].f);
        out[0].f.phase = atomic_load(&a->is_loaded) ? RANK_READY : RANK_LOADING;
        node_sampler_take(a->node, &out[0].f);
    }
    out[0].f.n_steps = (double)s->n_steps;
    out[0].f.step_ms = s->step_ms;
    out[0].f.step_ms_p95 = s->step_ms_p95;
    return n;
}

void api_start_get(api *a, api_start *out) {
    *out = (api_start){.phase = atomic_load(&a->is_loaded) ? RANK_READY : RANK_LOADING};
    if (a->options.start != NULL) a->options.start(a->options.ranks_ctx, out);
    if (a->options.start == NULL) out->progress = rank_phase_progress(out->phase, -1.0);
}
