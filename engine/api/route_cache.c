/* GET and DELETE /tandem/v1/cache, DELETE /tandem/v1/cache/{id}: saved states of the prefix cache. */
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/entries.h"

#define ENTRIES_MAX 4096

static void put_entries(const run_entry *list, int32_t n, json_w *w) {
    json_w_key(w, "entries");
    json_w_array(w);
    for (int32_t i = 0; i < n; i++) {
        json_w_object(w);
        json_w_ku64(w, "id", list[i].id);
        json_w_ki64(w, "tokens", list[i].n_tokens);
        json_w_kbool(w, "in_memory", list[i].is_in_memory);
        json_w_kbool(w, "on_disk", list[i].is_on_disk);
        json_w_close(w);
    }
    json_w_close(w);
}

static void put_disk(const run_stats *s, json_w *w) {
    json_w_key(w, "disk");
    if (!s->has_disk) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    json_w_ku64(w, "bytes", s->disk.bytes);
    json_w_ku64(w, "records", s->disk.n_records);
    json_w_ku64(w, "errors", s->disk.n_errors);
    json_w_close(w);
}

/* A disk that takes long or refuses is no failure of the engine: its own words are told. */
static void fail(http_request *q, const err *why) {
    api_error e;
    if (why->code == ERR_TIMEOUT || why->code == ERR_IO) {
        api_set(&e, why->code == ERR_IO ? 500 : 503, "server_error", NULL, why->msg);
    } else {
        api_from_err(&e, why);
    }
    http_fail(q, &e);
}

void route_cache(http_request *q) {
    err why = ERR_INIT;
    int32_t n = 0;
    run_stats s;
    run_entry *list = mem_array(ENTRIES_MAX, sizeof *list);
    int rc = run_entries(q->api->options.run, list, ENTRIES_MAX, &n, &why);
    if (rc != OK) {
        fail(q, &why);
        mem_free(list);
        return;
    }
    buf body = BUF_INIT;
    json_w w;
    run_stats_get(q->api->options.run, &s);
    json_w_begin(&w, &body);
    json_w_object(&w);
    json_w_ki64(&w, "n_entries", n);
    put_entries(list, n < ENTRIES_MAX ? n : ENTRIES_MAX, &w);
    json_w_ki64(&w, "pages", s.pages_cached);
    json_w_ki64(&w, "pages_total", s.pages_total);
    put_disk(&s, &w);
    json_w_close(&w);
    json_w_end(&w);
    http_send_json(q, 200, &body);
    mem_free(list);
}

void route_cache_wipe(http_request *q) {
    err why = ERR_INIT;
    run_wiped x;
    if (run_entries_wipe(q->api->options.run, &x, &why) != OK) {
        fail(q, &why);
        return;
    }
    LOG(LOG_INFO, "cache", "wiped", "entries=%d kept=%d disk_bytes=%llu", x.n_entries, x.n_kept,
        (unsigned long long)x.disk_bytes);
    buf body = BUF_INIT;
    buf_printf(&body, "{\"ok\":true,\"entries\":%d,\"kept\":%d,\"disk_bytes\":%llu}", x.n_entries,
        x.n_kept, (unsigned long long)x.disk_bytes);
    http_send_json(q, 200, &body);
}

void route_cache_drop(http_request *q) {
    api_error e;
    err why = ERR_INIT;
    uint64_t id = 0;
    bool was_on_disk = false;
    int rc = parse_u64(q->path + strlen("/tandem/v1/cache/"), &id);
    if (rc != OK) {
        api_bad(&e, "id", NULL, "the id of an entry is a number");
        http_fail(q, &e);
        return;
    }
    rc = run_entry_drop(q->api->options.run, id, &was_on_disk, &why);
    if (rc == ERR_NOT_FOUND) {
        api_set(&e, 404, "invalid_request_error", NULL, why.msg);
        http_fail(q, &e);
        return;
    }
    if (rc != OK) {
        fail(q, &why);
        return;
    }
    buf body = BUF_INIT;
    buf_printf(&body, "{\"ok\":true,\"was_on_disk\":%s}", was_on_disk ? "true" : "false");
    http_send_json(q, 200, &body);
}
