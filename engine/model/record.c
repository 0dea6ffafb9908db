#include "engine/model/record.h"

#include "engine/model/model_internal.h"

enum { RECORD_ROWS = 8 };
static const int64_t record_bounds[] = {2048, 8192, 32768};

/* n rows of slot 0 from position first on, all with logits. */
static void fill(model *m, int n, int first) {
    row_lists *l = &m->step_rows;
    for (int i = 0; i < n; i++) {
        l->token[i] = 0;
        l->slot[i] = 0;
        l->pos[i] = first + i;
        l->span_row[i] = 0;
        l->span_pos[i] = first;
        l->span_len[i] = n;
        l->logit_row[i] = i;
    }
    l->rows.n = n;
    row_lists_close(l);
    row_lists_send(m, l);
}

static bool is_recording(const model *m) {
    bool has_host_exchange = m->world > 1 && !exchange_is_device(m->x);
    return m->ops->graph_begin != NULL && !has_host_exchange;
}

int model_record_steps(model *m, err *e) {
    int most = m->options.max_rows < m->options.max_logit_rows ? m->options.max_rows
                                                               : m->options.max_logit_rows;
    if (!is_recording(m)) {
        return OK;
    }
    m->k.rc = OK;
    for (int t = 0; t < m->config.n_engram; t++) {
        m->tickets[t] = -1;
    }
    /* An odd number of rows closes one group more when it begins at an odd position. */
    for (int n = 1; n <= RECORD_ROWS && n <= most; n++) {
        for (int first = 0; first <= n % 2; first++) {
            fill(m, n, first);
            for (size_t b = 0; b < sizeof(record_bounds) / sizeof(*record_bounds); b++) {
                if (b > 0 && record_bounds[b] > m->options.max_context) continue;
                m->step_rows.rows.pos_bound = record_bounds[b] < m->options.max_context
                                                  ? record_bounds[b]
                                                  : m->options.max_context;
                pass_record(m, n);
            }
        }
    }
    m->step_rows.rows.n = 0;
    m->ops->wait(&m->k);
    if (m->k.rc == OK) {
        return OK;
    }
    if (e != NULL) {
        *e = m->k.error;
    }
    return err_add(e, m->k.rc, "recording steps");
}
