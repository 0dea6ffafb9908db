#include "setup/engine_args.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/paths.h"

int engine_args_key_file(const settings *s, buf *out, err *e) {
    if (settings_is_set(s, "API_KEY_FILE")) return buf_puts(out, settings_get(s, "API_KEY_FILE"));
    int rc = paths_config(out, e);
    return rc == OK ? buf_puts(out, "/api-keys") : rc;
}

static bool is_own(const settings *s, const char *key) {
    return settings_is_set(s, key) && settings_origin(s, key) != SETTING_BUILTIN;
}

typedef struct passed_setting {
    const char *key, *option;
} passed_setting;

static void put_list(
    const settings *s, const passed_setting *list, size_t n, const engine_args_sink *out) {
    for (size_t i = 0; i < n; i++) {
        if (is_own(s, list[i].key))
            out->add(out->ctx, list[i].option, settings_get(s, list[i].key));
    }
}

/* Under the data root of this machine, when the owner asked for one. */
static void put_cache(const settings *s, const engine_args_sink *out) {
    buf dir = BUF_INIT;
    char mib[32];
    const char *data = settings_get(s, "HEAD_DATA");
    bool is_wanted =
        data[0] != '\0' && is_own(s, "CACHE_DISK_GIB") && settings_int(s, "CACHE_DISK_GIB") > 0;
    if (!is_wanted) return;
    buf_printf(&dir, "%s/cache", data);
    snprintf(mib, sizeof mib, "%lld", (long long)settings_int(s, "CACHE_DISK_GIB") * 1024);
    out->add(out->ctx, "--cache-dir", buf_cstr(&dir));
    out->add(out->ctx, "--cache-disk", mib);
    out->add(out->ctx, "--cache-age", settings_get(s, "CACHE_AGE_HOURS"));
    buf_release(&dir);
}

/* A file the owner named must be there; the usual one counts from when it is, so that the first key
 * needs no restart. */
static void put_keys(const settings *s, const engine_args_sink *out) {
    buf path = BUF_INIT;
    bool is_named = settings_is_set(s, "API_KEY_FILE");
    if (engine_args_key_file(s, &path, NULL) == OK)
        out->add(out->ctx, is_named ? "--keys" : "--usual-keys", buf_cstr(&path));
    buf_release(&path);
}

static void put_request_log(const settings *s, const engine_args_sink *out) {
    buf path = BUF_INIT;
    if (!settings_is_on(s, "API_LOG_BODIES")) return;
    if (paths_logs(&path, NULL) == OK && buf_puts(&path, "/requests.jsonl") == OK) {
        out->add(out->ctx, "--request-log", buf_cstr(&path));
        out->add(out->ctx, "--log-prompts", NULL);
    }
    buf_release(&path);
}

void engine_args_put(const settings *s, const engine_args_sink *out) {
    static const passed_setting list[] = {{"CONTEXT", "--context"}, {"PARALLEL", "--slots"},
        {"QUEUE_MAX", "--queue"}, {"THINKING", "--thinking"}, {"STOP_TIMEOUT", "--drain"},
        {"TEMPERATURE", "--temperature"}, {"TOP_P", "--top-p"}, {"MAX_GAP_MS", "--gap"},
        {"API_TLS_CERT", "--tls-certificate"}, {"API_TLS_KEY", "--tls-key"},
        {"CACHE_PER_KEY", "--cache-per-key"}};
    put_list(s, list, sizeof list / sizeof list[0], out);
    put_keys(s, out);
    put_cache(s, out);
    put_request_log(s, out);
}

void engine_args_put_model(const settings *s, const char *model_dir, const engine_args_sink *out) {
    const char *model = model_dir != NULL ? model_dir : settings_get(s, "MODEL_DIR");
    if (model[0] == '\0') return;
    char *full = realpath(model, NULL);
    out->add(out->ctx, "--model", full != NULL ? full : model);
    free(full);
}

void engine_args_put_endpoint(const settings *s, const engine_args_sink *out) {
    buf place = BUF_INIT;
    const char *address = settings_get(s, "API_BIND");
    if (!settings_is_on(s, "API")) return;
    buf_printf(&place, "%s:%s", address, settings_get(s, "API_PORT"));
    out->add(out->ctx, "--listen", buf_cstr(&place));
    /* Never on its own word: the owner typed this very address once. */
    if (settings_is_set(s, "API_CONFIRMED"))
        out->add(out->ctx, "--confirm-remote", settings_get(s, "API_CONFIRMED"));
    buf_release(&place);
}
