#include "engine/api/form_openai.h"

#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/base/mem.h"

static void put_head(const job *j, const char *object, buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":", j->id, object,
        (unsigned long long)j->created_s);
    json_quote(out, j->a->options.model_id, strlen(j->a->options.model_id));
    buf_puts(out, ",\"system_fingerprint\":");
    json_quote(out, j->a->fingerprint, strlen(j->a->fingerprint));
    buf_puts(out, ",\"choices\":[");
}

void openai_print(job *j, const openai_answer *a, buf *out) {
    gen_result *results = mem_array((size_t)j->n_choices, sizeof *results);
    job_results(j, results);
    put_head(j, a->object, out);
    for (int i = 0; i < j->n_choices; i++) {
        if (i > 0) buf_putc(out, ',');
        a->put(j, i, &results[i], out);
    }
    buf_puts(out, "],\"usage\":");
    usage_print(j, out);
    buf_puts(out, ",\"timings\":");
    timings_print(&results[0], out);
    buf_puts(out, a->tail);
    buf_putc(out, '}');
    mem_free(results);
}

void openai_begin(job *j, const char *object) {
    buf_puts(&j->head, "data: ");
    put_head(j, object, &j->head);
}

void openai_running_usage(job *j) {
    if (!j->params.has_usage_chunk) return;
    buf_puts(j->out, ",\"usage\":");
    if (j->params.has_continuous_usage) {
        usage_print(j, j->out);
    } else {
        buf_puts(j->out, "null");
    }
}

void openai_end(job *j, const char *tail) {
    if (j->params.has_usage_chunk) {
        buf_append(j->out, j->head.data, j->head.len);
        buf_puts(j->out, "],\"usage\":");
        usage_print(j, j->out);
        buf_printf(j->out, "%s}\n\n", tail);
    }
    buf_puts(j->out, "data: [DONE]\n\n");
}

void openai_fail(job *j, const api_error *e) {
    buf_puts(j->out, "data: ");
    api_error_print(e, API_SHAPE_OPENAI, NULL, j->out);
    buf_puts(j->out, "\n\n");
}
