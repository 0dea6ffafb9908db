/* tandem config list, get, set, unset, path. */
#include <ctype.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "setup/settings.h"
#include "tui/cmd_internal.h"

static void put_object(json_w *w, const settings *s, const setting_key *k) {
    const char *value = settings_get(s, k->name);
    json_w_object(w);
    json_w_kstr(w, "key", k->name);
    json_w_kstr(w, "value", value[0] != '\0' ? value : NULL);
    json_w_kstr(w, "origin", settings_origin_name(settings_origin(s, k->name)));
    json_w_kstr(w, "place", settings_place(s, k->name));
    json_w_kstr(w, "builtin", k->builtin);
    json_w_kstr(w, "help", k->help);
    json_w_close(w);
}

static void put_text(const cmd_args *a, const settings *s, const setting_key *k, bool with_name) {
    const char *value = settings_get(s, k->name), *place = settings_place(s, k->name);
    if (with_name) cmd_printf("%s=", k->name);
    cmd_put_text(value, strlen(value));
    if (cmd_has(a, "verbose")) {
        cmd_printf("    # %s%s%s; %s", settings_origin_name(settings_origin(s, k->name)),
            place[0] != '\0' ? ", " : "", place, k->help);
    }
    cmd_puts("\n");
}

int cmd_config_list(const cmd_args *a) {
    settings *s = settings_new();
    err e = ERR_INIT;
    size_t n = 0;
    int code = EXIT_OK;
    const setting_key *keys = settings_keys(&n);
    if (settings_load(s, &e) != OK) {
        code = cmd_fail(&e);
    } else if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_key(&w, "settings");
        json_w_array(&w);
        for (size_t i = 0; i < n; i++)
            put_object(&w, s, &keys[i]);
        json_w_close(&w);
        cmd_put_json(&w);
        buf_release(&out);
    } else {
        for (size_t i = 0; i < n; i++)
            put_text(a, s, &keys[i], true);
    }
    settings_free(s);
    return cmd_finish(code);
}

static int unknown(const char *name, err *e) {
    char upper[64];
    size_t n = 0;
    for (; name[n] != '\0' && n + 1 < sizeof upper; n++)
        upper[n] = (char)toupper((unsigned char)name[n]);
    upper[n] = '\0';
    const char *near = settings_nearest(upper);
    return err_set(e, ERR_ARG, "there is no setting %.60s%s%s%s", name,
        near != NULL ? "; did you mean " : "; `tandem config list` shows all",
        near != NULL ? near : "", near != NULL ? "?" : "");
}

/* The key of a name in any case, NULL with a sentence. */
static const setting_key *key_of(const char *name, err *e) {
    size_t n = 0;
    const setting_key *keys = settings_keys(&n);
    for (size_t i = 0; i < n; i++) {
        if (str_eq_nocase(keys[i].name, name)) return &keys[i];
    }
    unknown(name, e);
    return NULL;
}

int cmd_config_get(const cmd_args *a) {
    settings *s = settings_new();
    err e = ERR_INIT;
    int code = EXIT_OK;
    const setting_key *k = key_of(a->args[0], &e);
    if (k == NULL) {
        code = cmd_fail_usage(&e);
    } else if (settings_load(s, &e) != OK) {
        code = cmd_fail(&e);
    } else if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_key(&w, "setting");
        put_object(&w, s, k);
        cmd_put_json(&w);
        buf_release(&out);
    } else {
        put_text(a, s, k, false);
    }
    settings_free(s);
    return cmd_finish(code);
}

/* A folder that is not there is a mistyped one; other files may come later, which is only said. */
static int look_at_path(const setting_key *k, const char *value, err *e) {
    settings *s = settings_new();
    buf config = BUF_INIT;
    int rc = settings_set(s, k->name, value, SETTING_FILE, e);
    const char *path = rc == OK ? settings_get(s, k->name) : "";
    bool is_model = str_eq(k->name, "MODEL_DIR");
    bool is_file = str_eq(k->name, "WORKER_KEY") || str_eq(k->name, "HF_TOKEN_FILE") ||
                   str_eq(k->name, "API_TLS_CERT") || str_eq(k->name, "API_TLS_KEY") ||
                   str_eq(k->name, "NOTIFY");
    if (rc == OK && is_model && !dir_exists(path)) {
        rc = err_set(e, ERR_NOT_FOUND,
            "there is no folder %s, so MODEL_DIR stays as it is; it names a folder with a model "
            "(config.json, tokenizer.json and the weights)",
            path);
    } else if (rc == OK && is_model) {
        path_join(&config, path, "config.json");
        if (!file_exists(buf_cstr(&config)))
            cmd_note("%s has no config.json, so no engine can start with it yet", path);
    } else if (rc == OK && is_file && !file_exists(path)) {
        cmd_note("%s is not there yet", path);
    }
    buf_release(&config);
    settings_free(s);
    return rc;
}

static int change(const char *name, const char *value) {
    buf path = BUF_INIT;
    err e = ERR_INIT;
    int rc = OK;
    const setting_key *k = key_of(name, &e);
    if (k == NULL) return cmd_fail_usage(&e);
    if (value != NULL && settings_check(k, value, &e) != OK) return cmd_fail_usage(&e);
    if (value != NULL && k->kind == SETTING_PATH) rc = look_at_path(k, value, &e);
    if (rc == OK) rc = paths_settings_file(&path, &e);
    if (rc == OK) rc = settings_file_set(buf_cstr(&path), k->name, value, &e);
    settings *s = settings_new();
    if (rc == OK && settings_load(s, NULL) == OK &&
        settings_origin(s, k->name) == SETTING_ENVIRONMENT) {
        cmd_note(
            "%s is set in the environment, which wins over the file", settings_place(s, k->name));
    }
    settings_free(s);
    buf_release(&path);
    return rc == OK ? EXIT_OK : cmd_fail(&e);
}

int cmd_config_set(const cmd_args *a) {
    return change(a->args[0], a->args[1]);
}

int cmd_config_unset(const cmd_args *a) {
    return change(a->args[0], NULL);
}

int cmd_config_sample(const cmd_args *a) {
    (void)a;
    buf out = BUF_INIT;
    settings_sample(&out);
    cmd_put(buf_cstr(&out), out.len);
    buf_release(&out);
    return cmd_finish(EXIT_OK);
}

int cmd_config_path(const cmd_args *a) {
    (void)a;
    buf path = BUF_INIT;
    err e = ERR_INIT;
    if (paths_settings_file(&path, &e) != OK) return cmd_fail(&e);
    cmd_printf("%s\n", buf_cstr(&path));
    buf_release(&path);
    return cmd_finish(EXIT_OK);
}
