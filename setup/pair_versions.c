/* What both machines run: system, driver, CUDA, NCCL, firmware, our build; and where the model comes
 * from, under which licences. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/manifest.h"
#include "setup/pair_internal.h"
#include "setup/paths.h"

enum { TEXT_MAX = 200, RDMA_MAX = 8, LICENCE_MAX = 64 << 10 };

typedef struct versions {
    char os[TEXT_MAX], dgx[TEXT_MAX], kernel[TEXT_MAX], boot_id[TEXT_MAX], machine[TEXT_MAX];
    char product[TEXT_MAX], bios[TEXT_MAX], driver[TEXT_MAX], cuda[TEXT_MAX], nccl[TEXT_MAX];
    char engine[TEXT_MAX], build[TEXT_MAX];
    char firmware[RDMA_MAX][TEXT_MAX];
    int n_firmware;
} versions;

static const char PATTERNS[] =
    "/etc/os-release /etc/dgx-release /proc/sys/kernel/osrelease /proc/sys/kernel/random/boot_id "
    "/proc/sys/kernel/hostname /sys/class/dmi/id/product_name /sys/class/dmi/id/bios_version "
    "/sys/module/nvidia/version /sys/class/infiniband/*/fw_ver";

static void read_line(node_access *n, const char *path, char out[TEXT_MAX]) {
    buf text = BUF_INIT;
    if (node_read_line(n, path, &text, NULL) == OK) str_copy(out, TEXT_MAX, buf_cstr(&text));
    out[strcspn(out, "\n")] = '\0';
    buf_release(&text);
}

/* The value of KEY=VALUE, without its quotes. */
static void read_key(node_access *n, const char *path, const char *key, char out[TEXT_MAX]) {
    buf text = BUF_INIT;
    size_t len = strlen(key);
    if (node_read(n, path, 64 << 10, &text, NULL) == OK) {
        const char *at = buf_cstr(&text);
        while (at != NULL && !(strncmp(at, key, len) == 0 && at[len] == '=')) {
            at = strchr(at, '\n');
            if (at != NULL) at++;
        }
        if (at != NULL) {
            at += len + 1;
            size_t n_value = strcspn(at, "\n");
            if (n_value >= 2 && at[0] == '"') {
                at++;
                n_value -= 2;
            }
            str_copy(out, n_value < TEXT_MAX ? n_value + 1 : TEXT_MAX, at);
        }
    }
    buf_release(&text);
}

static void read_firmware(node_access *n, versions *v) {
    buf names = BUF_INIT, path = BUF_INIT;
    if (node_list(n, "/sys/class/infiniband", &names, NULL) != OK) {
        buf_release(&names);
        return;
    }
    const char *at = buf_cstr(&names);
    while (*at != '\0' && v->n_firmware < RDMA_MAX) {
        size_t len = strcspn(at, "\n");
        char value[TEXT_MAX] = "";
        buf_reset(&path);
        buf_printf(&path, "/sys/class/infiniband/%.*s/fw_ver", (int)len, at);
        read_line(n, buf_cstr(&path), value);
        if (value[0] != '\0')
            snprintf(v->firmware[v->n_firmware++], TEXT_MAX, "%.*s %.150s",
                len < 40 ? (int)len : 40, at, value);
        at += len + (at[len] == '\n');
    }
    buf_release(&names);
    buf_release(&path);
}

/* "NAME: VALUE" of what the engine says about itself. */
static void take_word(const char *text, const char *name, char out[TEXT_MAX]) {
    const char *at = strstr(text, name);
    if (at == NULL) return;
    at += strlen(name);
    size_t n = strcspn(at, "\n");
    str_copy(out, n < TEXT_MAX ? n + 1 : TEXT_MAX, at);
}

static void read_engine(node_access *n, const char *daemon, versions *v) {
    buf text = BUF_INIT;
    if (node_tool(n, &text, NULL, daemon, "--version", NULL) == OK) {
        const char *all = buf_cstr(&text), *open = strchr(all, '(');
        take_word(all, "engine: ", v->engine);
        take_word(all, "CUDA: ", v->cuda);
        take_word(all, "NCCL: ", v->nccl);
        size_t len = open != NULL ? strcspn(open + 1, ")\n") : 0;
        if (open != NULL) str_copy(v->build, len < TEXT_MAX ? len + 1 : TEXT_MAX, open + 1);
    }
    buf_release(&text);
}

static void read_versions(node_access *n, const char *daemon, versions *v) {
    *v = (versions){0};
    (void)node_fetch(n, PATTERNS, NULL);
    read_key(n, "/etc/os-release", "PRETTY_NAME", v->os);
    read_key(n, "/etc/dgx-release", "DGX_SWBUILD_VERSION", v->dgx);
    read_line(n, "/proc/sys/kernel/osrelease", v->kernel);
    read_line(n, "/proc/sys/kernel/random/boot_id", v->boot_id);
    read_line(n, "/proc/sys/kernel/hostname", v->machine);
    read_line(n, "/sys/class/dmi/id/product_name", v->product);
    read_line(n, "/sys/class/dmi/id/bios_version", v->bios);
    read_line(n, "/sys/module/nvidia/version", v->driver);
    read_firmware(n, v);
    read_engine(n, daemon, v);
    node_forget(n);
}

static void put(json_w *w, const char *key, const char *value) {
    json_w_kstr(w, key, value[0] != '\0' && !str_eq(value, "absent") ? value : NULL);
}

static void write_versions(json_w *w, int node, const versions *v) {
    json_w_object(w);
    json_w_kstr(w, "node", pair_node_name(node));
    put(w, "host", v->machine);
    put(w, "product", v->product);
    put(w, "os", v->os);
    put(w, "dgx_os", v->dgx);
    put(w, "kernel", v->kernel);
    put(w, "boot_id", v->boot_id);
    put(w, "bios", v->bios);
    put(w, "driver", v->driver);
    put(w, "engine", v->engine);
    put(w, "cuda", v->cuda);
    put(w, "nccl", v->nccl);
    put(w, "build", v->build);
    json_w_key(w, "firmware");
    json_w_array(w);
    for (int i = 0; i < v->n_firmware; i++)
        json_w_str(w, v->firmware[i]);
    json_w_close(w);
    json_w_ku64(w, "time_ms", clock_wall_ms());
    json_w_kbool(w, "is_now", true);
    json_w_close(w);
}

/* ---- kept ---- */

static json *kept(void) {
    buf path = BUF_INIT;
    json *v = NULL;
    if (pair_file("versions.json", &path, NULL) == OK && file_exists(buf_cstr(&path)))
        (void)json_parse_file(buf_cstr(&path), NULL, &v, NULL);
    buf_release(&path);
    return v;
}

/* What was seen last time, marked as such. */
static void write_kept(json_w *w, int node, const json *old) {
    const json *found = NULL;
    JSON_EACH(item, json_get(old, "versions")) {
        if (str_eq(json_str(json_get(item, "node")), pair_node_name(node))) found = item;
    }
    json_w_object(w);
    if (found == NULL) json_w_kstr(w, "node", pair_node_name(node));
    JSON_EACH(item, found) {
        if (str_eq(json_key(item), "is_now")) continue;
        json_w_key(w, json_key(item));
        json_w_value(w, item);
    }
    json_w_kbool(w, "is_now", false);
    json_w_close(w);
}

static void write_machines(const pair_options *o, json_w *w) {
    pair_run p = {.o = o, .lock_fd = -1};
    json *old = kept();
    bool has_programs = pair_find_programs(&p, NULL) == OK;
    json_w_key(w, "versions");
    json_w_array(w);
    for (int i = 0; i < PAIR_NODES; i++) {
        if (o->node[i] == NULL || !has_programs) {
            write_kept(w, i, old);
            continue;
        }
        versions v;
        read_versions(o->node[i], p.daemon[i], &v);
        write_versions(w, i, &v);
    }
    json_w_close(w);
    json_free(old);
}

/* ---- provenance ---- */

/* The licence file that came with the model: its first line that is not blank. */
static void licence_line(const char *path, char out[TEXT_MAX]) {
    buf text = BUF_INIT;
    out[0] = '\0';
    if (file_exists(path) && file_read(path, &text, LICENCE_MAX, NULL) == OK) {
        const char *at = buf_cstr(&text) + strspn(buf_cstr(&text), " \t\r\n");
        size_t n = strcspn(at, "\r\n");
        str_copy(out, n < TEXT_MAX ? n + 1 : TEXT_MAX, at);
    }
    buf_release(&text);
}

/* One entry for each repository and commit, with what comes from it. */
static void write_sources(const manifest *m, json_w *w) {
    json_w_key(w, "sources");
    json_w_array(w);
    for (size_t i = 0; i < m->n_files; i++) {
        bool is_first = true;
        for (size_t k = 0; k < i && is_first; k++)
            is_first = !(str_eq(m->files[k].repo, m->files[i].repo) &&
                         str_eq(m->files[k].commit, m->files[i].commit));
        if (!is_first) continue;
        uint64_t bytes = 0, n = 0;
        for (size_t k = i; k < m->n_files; k++) {
            if (!str_eq(m->files[k].repo, m->files[i].repo) ||
                !str_eq(m->files[k].commit, m->files[i].commit))
                continue;
            bytes += m->files[k].size;
            n++;
        }
        json_w_object(w);
        json_w_kstr(w, "repository", m->files[i].repo);
        json_w_kstr(w, "commit", m->files[i].commit);
        json_w_kstr(w, "licence", manifest_licence_of(m, m->files[i].repo));
        json_w_kstr(w, "role", manifest_role_name(m->files[i].role));
        json_w_ku64(w, "files", n);
        json_w_ku64(w, "bytes", bytes);
        json_w_close(w);
    }
    json_w_close(w);
}

/* Digests of what decides what the model says: tokenizer, configuration and template. */
static void write_digests(const manifest *m, json_w *w) {
    json_w_key(w, "digests");
    json_w_object(w);
    for (size_t i = 0; i < m->n_files; i++) {
        const manifest_file *f = &m->files[i];
        bool is_named = f->role == MANIFEST_TOKENIZER || f->role == MANIFEST_CONFIG ||
                        f->role == MANIFEST_TEMPLATE;
        if (is_named) json_w_kstr(w, f->path, f->digest);
    }
    json_w_close(w);
}

/* The licence file that came from a repository; NULL: none is in the manifest. */
static const manifest_file *licence_file(const manifest *m, const char *repo) {
    for (size_t i = 0; m != NULL && i < m->n_files; i++) {
        const manifest_file *f = &m->files[i];
        if (str_eq(f->repo, repo) && str_eq(path_base(f->path), "LICENSE")) return f;
    }
    return NULL;
}

/* One part: what was recorded when the commits were fixed, else the first line of its file. */
static void write_terms(const manifest *m, const manifest_terms *t, const settings *s, json_w *w) {
    const manifest_file *f = licence_file(m, t->repo);
    buf place = BUF_INIT, path = BUF_INIT;
    char line[TEXT_MAX] = "";
    if (f != NULL && manifest_place(m, f, &place) == OK &&
        path_join(&path, settings_get(s, "HEAD_DATA"), buf_cstr(&place)) == OK)
        licence_line(buf_cstr(&path), line);
    json_w_object(w);
    json_w_kstr(w, "part", t->part);
    json_w_kstr(w, "of", t->repo);
    json_w_kstr(w, "licence", t->licence != NULL ? t->licence : line[0] != '\0' ? line : NULL);
    json_w_kstr(w, "file", f != NULL ? buf_cstr(&path) : NULL);
    json_w_kstr(w, "digest", f != NULL ? f->digest : NULL);
    json_w_close(w);
    buf_release(&place);
    buf_release(&path);
}

/* m NULL: no profile. The demo's texts come from two works whose notices lie beside the model. */
static void write_licences(const manifest *m, const settings *s, json_w *w) {
    static const manifest_terms demo[] = {{"model", "tandem", "Apache-2.0, part of this program"},
        {"model", "WordNet 3.1", "WordNet licence: templates/demo-model/WORDNET-LICENSE"},
        {"model", "SCOWL", "SCOWL notices: templates/demo-model/SCOWL-NOTICE"}};
    manifest_terms terms[MANIFEST_TERMS];
    size_t n = manifest_terms_of(m, terms);
    json_w_key(w, "licences");
    json_w_array(w);
    for (size_t i = 0; m == NULL && pair_is_demo(s) && i < sizeof demo / sizeof *demo; i++)
        write_terms(NULL, &demo[i], s, w);
    for (size_t i = 0; i < n; i++)
        write_terms(m, &terms[i], s, w);
    json_w_close(w);
}

static void write_profile(const settings *s, json_w *w) {
    buf config = BUF_INIT, own = BUF_INIT, text = BUF_INIT;
    manifest m;
    manifest_init(&m);
    bool is_known = paths_config(&config, NULL) == OK &&
                    path_join(&own, buf_cstr(&config), "manifests") == OK &&
                    manifest_find(&m, settings_get(s, "PROFILE"), buf_cstr(&own), NULL) == OK &&
                    manifest_print(&m, &text, NULL) == OK;
    json_w_kstr(w, "profile", settings_get(s, "PROFILE"));
    if (is_known) {
        uint8_t raw[SHA256_BYTES];
        char hex[SHA256_HEX];
        sha256_of(text.data, text.len, raw);
        sha256_hex(raw, hex);
        json_w_kstr(w, "manifest", hex);
        write_sources(&m, w);
        write_digests(&m, w);
        write_licences(&m, s, w);
    } else {
        json_w_knull(w, "manifest");
    }
    manifest_release(&m);
    buf_release(&config);
    buf_release(&own);
    buf_release(&text);
}

static void write_provenance(const pair_options *o, json_w *w) {
    const settings *s = o->settings;
    char hex[65];
    settings_digest(s, hex);
    json_w_key(w, "provenance");
    json_w_object(w);
    json_w_kstr(w, "tandem", version_build_id());
    json_w_kstr(w, "settings", hex);
    if (settings_is_set(s, "PROFILE")) {
        write_profile(s, w);
    } else {
        json_w_kstr(w, "profile", pair_is_demo(s) ? "demo" : NULL);
        json_w_kstr(w, "model_dir", pair_is_demo(s) ? NULL : settings_get(s, "MODEL_DIR"));
        json_w_kstr(w, "licence", pair_is_demo(s) ? "Apache-2.0 (part of this program)" : NULL);
        write_licences(NULL, s, w);
    }
    json_w_close(w);
}

void pair_versions_write(const pair_options *o, json_w *w) {
    write_machines(o, w);
    write_provenance(o, w);
}

void pair_versions_keep(const pair_options *o) {
    buf path = BUF_INIT, text = BUF_INIT;
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    json_w_ki64(&w, "v", 1);
    pair_versions_write(o, &w);
    json_w_close(&w);
    if (json_w_end(&w) == OK && pair_file("versions.json", &path, NULL) == OK)
        (void)file_write_atomic(buf_cstr(&path), text.data, text.len, 0600, NULL);
    buf_release(&path);
    buf_release(&text);
}

/* ---- the same as before ---- */

/* A figure of the head or worker as it was at the last good start. */
static void kept_figure(const json *old, const char *node, const char *key, char out[TEXT_MAX]) {
    out[0] = '\0';
    JSON_EACH(item, json_get(old, "versions")) {
        const char *value = json_str(json_get(item, key));
        if (str_eq(json_str(json_get(item, "node")), node) && value != NULL)
            str_copy(out, TEXT_MAX, value);
    }
}

static int compare_figure(
    const pair_options *o, int node, const json *old, const char *path, const char *key, err *e) {
    char before[TEXT_MAX];
    buf now = BUF_INIT;
    int rc = OK;
    kept_figure(old, pair_node_name(node), key, before);
    bool is_known = o->node[node] != NULL && before[0] != '\0' &&
                    node_read_line(o->node[node], path, &now, NULL) == OK;
    if (is_known && !str_eq(buf_cstr(&now), before))
        rc = err_set(e, ERR_CANCELLED,
            "the %s of the %s changed since the last good start (%s, now %.80s); start it once "
            "yourself: tandem start",
            key, pair_node_name(node), before, buf_cstr(&now));
    buf_release(&now);
    return rc;
}

int pair_versions_same(const pair_options *o, err *e) {
    json *old = kept();
    int rc = OK;
    for (int i = 0; i < PAIR_NODES && rc == OK; i++) {
        rc = compare_figure(o, i, old, "/proc/sys/kernel/osrelease", "kernel", e);
        if (rc == OK) rc = compare_figure(o, i, old, "/sys/module/nvidia/version", "driver", e);
    }
    json_free(old);
    return rc;
}
