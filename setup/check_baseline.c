/* One JSON file of what was measured when all was well. */
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/check.h"

#define WARN_SHARE 0.10
#define FAIL_SHARE 0.30

static const json *find(const json *all, const char *id, const char *node) {
    JSON_EACH(x, json_get(all, "baselines")) {
        if (str_eq(json_str(json_get(x, "id")), id) &&
            str_eq(json_str(json_get(x, "node")), node)) {
            return x;
        }
    }
    return NULL;
}

int check_baseline_get(
    const char *path, const char *id, const char *node, check_baseline *out, err *e) {
    json *all = NULL;
    *out = (check_baseline){0};
    int rc = json_parse_file(path, NULL, &all, e);
    const json *x = rc == OK ? find(all, id, node) : NULL;
    if (rc == OK && x == NULL) rc = err_set(e, ERR_NOT_FOUND, "no baseline of %s on %s", id, node);
    if (rc == OK) {
        const char *text = json_str(json_get(x, "text"));
        if (json_double(json_get(x, "value"), &out->value) != OK ||
            json_u64(json_get(x, "time_ms"), &out->wall_ms) != OK) {
            rc = err_set(e, ERR_FORMAT, "%s holds a broken baseline of %s", path, id);
        }
        if (text != NULL) str_copy(out->text, sizeof out->text, text);
    }
    json_free(all);
    return rc;
}

static void write_one(json_w *w, const char *id, const char *node, const check_baseline *b) {
    json_w_object(w);
    json_w_kstr(w, "id", id);
    json_w_kstr(w, "node", node);
    json_w_kdouble(w, "value", b->value);
    json_w_ku64(w, "time_ms", b->wall_ms);
    json_w_kstr(w, "text", b->text);
    json_w_close(w);
}

int check_baseline_put(
    const char *path, const char *id, const char *node, const check_baseline *b, err *e) {
    json *all = NULL;
    buf out = BUF_INIT;
    json_w w;
    int rc = file_exists(path) ? json_parse_file(path, NULL, &all, e) : OK;
    if (rc != OK) return rc;
    json_w_begin(&w, &out);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    json_w_key(&w, "baselines");
    json_w_array(&w);
    const json *old = find(all, id, node);
    JSON_EACH(x, json_get(all, "baselines")) {
        if (x != old) json_w_value(&w, x);
    }
    write_one(&w, id, node, b);
    json_w_close(&w);
    json_w_close(&w);
    rc = json_w_end(&w);
    if (rc == OK) rc = buf_putc(&out, '\n');
    if (rc == OK) rc = file_write_atomic(path, buf_cstr(&out), out.len, 0600, e);
    json_free(all);
    buf_release(&out);
    return rc;
}

check_status check_judge_baseline(double now, double before, bool is_more_better) {
    if (!(before > 0) || !(now >= 0)) return CHECK_STATUS_UNKNOWN;
    double loss = is_more_better ? 1.0 - now / before : now / before - 1.0;
    return loss > FAIL_SHARE   ? CHECK_STATUS_FAIL
           : loss > WARN_SHARE ? CHECK_STATUS_WARN
                               : CHECK_STATUS_PASS;
}
