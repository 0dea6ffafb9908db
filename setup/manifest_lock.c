#include "setup/manifest_lock.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/hub_store.h"

enum { MAX_PAGES = 100, MAX_REDIRECTS = 5, CONFIG_MAX = 4 << 20, PAGE_MAX = 32 << 20 };

/* From the specification of the set-up; the repositories of this profile are not known for certain,
 * so they have no default. */
static const lock_rules RULES[] = {{
    .profile = "1017-libertai-2.9bpw",
    .weights_min = 195000000000u,
    .weights_max = 230000000000u,
    .n_engram = 2,
    .engram_min = 101000000000u,
    .engram_max = 102000000000u,
    .tokenizer_bytes = 6367257,
    .model_type = "deepseek_v41",
    .bits_min = 2.8,
    .bits_max = 3.0,
    .deny = {"824db4881320407ac340736d14dcee5ecd748c27d0f5836b8127ecc2e3781b0f",
        "976330f4954338e1ad8b508c32aa912032c7ad908959fd53c8307650fe4520ed"},
    .deny_why =
        "these are the Engram tables of the September release; the October weights need the "
        "October tables",
}};

const lock_rules *lock_rules_find(const char *profile) {
    for (size_t i = 0; i < sizeof RULES / sizeof RULES[0]; i++) {
        if (str_eq(RULES[i].profile, profile)) return &RULES[i];
    }
    return NULL;
}

/* Asking. */

typedef struct text_sink {
    buf *out;
} text_sink;

static int accept_text(void *ctx, const hub_reply *r) {
    (void)ctx;
    return r->status == 200 && r->encoding[0] == '\0' ? OK : 1;
}

static int take_text(void *ctx, const void *data, size_t n) {
    return buf_append(((text_sink *)ctx)->out, data, n);
}

static int status_words(const hub_reply *r, const char *what, err *e) {
    if (r->status == 401 || r->status == 403)
        return err_set(e, ERR_AUTH, "%s: the hub asks for a token with access (%s)", what,
            r->error_code[0] != '\0' ? r->error_code : "no reason given");
    if (r->status == 404)
        return err_set(e, ERR_NOT_FOUND, "%s: the hub does not have it (or it is private)", what);
    if (r->status == 429)
        return err_set(e, ERR_BUSY, "%s: the hub allows no more questions for %lld s", what,
            (long long)(r->retry_after_ms > 0 ? r->retry_after_ms / 1000 : 300));
    return err_set(e, ERR_NET, "%s: the hub answered %ld", what, r->status);
}

/* A text from the hub, over redirects; the token stays with the hub's host. */
static int get_text(const lock_options *o, const char *first, const char *what, buf *out,
    char next_page[2048], err *e) {
    hub_http *http = hub_http_new(&o->limits);
    hub_reply *r = mem_alloc(sizeof *r);
    char *url = mem_strdup(first);
    text_sink sink = {out};
    int rc = OK;
    for (int n = 0;; n++) {
        buf_reset(out);
        hub_get g = {.url = url,
            .token = hub_url_same_host(url, o->endpoint) ? o->token : NULL,
            .accept = accept_text,
            .take = take_text,
            .ctx = &sink};
        rc = hub_http_get(http, &g, r, e);
        if (rc != OK || r->status == 200 || r->location[0] == '\0') break;
        char *to = n < MAX_REDIRECTS ? hub_url_join(url, r->location) : NULL;
        mem_free(url);
        url = to;
        bool is_fine = to != NULL && (hub_url_is_https(to) || hub_url_is_loopback(o->endpoint));
        if (!is_fine) {
            rc = err_set(e, ERR_NET, "%s: the hub redirects to no good address", what);
            break;
        }
    }
    if (rc == ERR_LIMIT || rc == ERR_MEMORY) err_set(e, rc, "%s: the answer is too long", what);
    if (rc == OK && r->status != 200) rc = status_words(r, what, e);
    if (next_page != NULL) str_copy(next_page, 2048, r->next_page);
    mem_free(url);
    mem_free(r);
    hub_http_free(http);
    return rc;
}

/* Commit of a revision. */

static void find_licence(const json *v, char out[64]) {
    const char *said = json_str(json_get(json_get(v, "cardData"), "license"));
    if (said == NULL) {
        JSON_EACH(tag, json_get(v, "tags")) {
            const char *t = json_str(tag);
            if (t != NULL && str_starts(t, "license:")) said = t + 8;
        }
    }
    out[0] = '\0';
    size_t n = 0;
    for (; said != NULL && said[n] > 32 && said[n] < 127 && n < 63; n++)
        out[n] = said[n];
    out[n] = '\0';
}

static int resolve(const lock_options *o, const lock_source *s, char commit[41], char date[40],
    char licence[64], err *e) {
    buf url = BUF_INIT, text = BUF_MAX(CONFIG_MAX);
    json *v = NULL;
    const char *revision = s->revision != NULL && s->revision[0] != '\0' ? s->revision : "main";
    int rc = manifest_repo_check(s->repo, e);
    if (rc == OK) rc = manifest_path_check(revision, e);
    buf_printf(&url, "%s/api/models/%s/revision/%s", o->endpoint, s->repo, revision);
    if (rc == OK) rc = get_text(o, buf_cstr(&url), s->repo, &text, NULL, e);
    if (rc == OK) rc = json_parse(buf_cstr(&text), text.len, NULL, &v, e);
    const char *sha = json_str(json_get(v, "sha"));
    const char *when = json_str(json_get(v, "lastModified"));
    if (rc == OK && (sha == NULL || strlen(sha) != 40 || strspn(sha, "0123456789abcdef") != 40))
        rc = err_set(e, ERR_FORMAT, "%s: the hub names no commit", s->repo);
    if (rc == OK) {
        str_copy(commit, 41, sha);
        date[0] = '\0';
        if (when != NULL && strspn(when, "0123456789-:.TZ") == strlen(when))
            str_copy(date, 40, when);
        find_licence(v, licence);
    }
    json_free(v);
    buf_release(&url);
    buf_release(&text);
    return rc;
}

/* Listing. */

static manifest_role role_of(const char *path, bool is_engram) {
    if (is_engram) return MANIFEST_ENGRAM;
    if (str_ends(path, ".safetensors")) return MANIFEST_WEIGHTS;
    if (str_starts(path, "tokenizer")) return MANIFEST_TOKENIZER;
    if (str_ends(path, ".jinja") || str_starts(path, "encoding/")) return MANIFEST_TEMPLATE;
    return str_ends(path, ".json") ? MANIFEST_CONFIG : MANIFEST_DOC;
}

/* Of the tables' repository only what the tables need is loaded. */
static bool is_wanted(const lock_rules *rules, const char *path, uint64_t size, bool is_engram) {
    if (str_eq(path, ".gitattributes") || str_eq(path, ".gitignore")) return false;
    if (!is_engram) return true;
    if (str_eq(path, "config.json") || str_eq(path, "model.safetensors.index.json")) return true;
    return str_ends(path, ".safetensors") && size >= rules->engram_min && size <= rules->engram_max;
}

static int add_entry(manifest *m, const lock_rules *rules, const manifest_file *like,
    bool is_engram, const json *entry, err *e) {
    const char *type = json_str(json_get(entry, "type")), *path = json_str(json_get(entry, "path"));
    const json *lfs = json_get(entry, "lfs");
    uint64_t size = 0;
    if (str_eq(type, "directory")) return OK;
    if (!str_eq(type, "file") || path == NULL || json_u64(json_get(entry, "size"), &size) != OK)
        return err_set(e, ERR_FORMAT, "the hub's listing has an entry of another form");
    if (!is_wanted(rules, path, size, is_engram)) return OK;
    manifest_file f = *like;
    f.path = (char *)path;
    f.size = size;
    f.kind = json_is_object(lfs) ? MANIFEST_SHA256 : MANIFEST_GITBLOB;
    const char *digest = json_str(json_get(json_is_object(lfs) ? lfs : entry, "oid"));
    /* The listing writes the digest of large files with or without its name in front. */
    if (digest != NULL && str_starts(digest, "sha256:")) digest += 7;
    if (digest == NULL || strlen(digest) != (f.kind == MANIFEST_SHA256 ? 64u : 40u)) {
        int rc = manifest_path_check(path, e);
        return rc != OK ? rc
                        : err_set(e, ERR_FORMAT, "the hub's listing has no digest of %s", path);
    }
    str_copy(f.digest, sizeof f.digest, digest);
    f.role = role_of(path, is_engram);
    f.is_head_only = f.role == MANIFEST_DOC && !str_eq(path, "LICENSE");
    f.is_required = f.role != MANIFEST_DOC || str_eq(path, "LICENSE");
    const char *why = manifest_denied(m, f.digest);
    if (why != NULL) return err_set(e, ERR_MISMATCH, "%s: %s", path, why);
    return manifest_add(m, rules->profile, &f, e);
}

int manifest_lock_tree(manifest *m, const lock_rules *rules, const manifest_file *like,
    bool is_engram, const char *text, size_t len, err *e) {
    json *v = NULL;
    int rc = json_parse(text, len, NULL, &v, e);
    if (rc == OK && !json_is_array(v)) rc = err_set(e, ERR_FORMAT, "the hub's listing is no array");
    if (rc == OK) {
        JSON_EACH(entry, v) {
            rc = add_entry(m, rules, like, is_engram, entry, e);
            if (rc != OK) break;
        }
    }
    json_free(v);
    return rc;
}

static int list(const lock_options *o, const lock_rules *rules, manifest *m, const lock_source *s,
    const char commit[41], bool is_engram, err *e) {
    buf text = BUF_MAX(PAGE_MAX), first = BUF_INIT;
    char next[2048];
    manifest_file like = {.repo = (char *)s->repo};
    str_copy(like.commit, sizeof like.commit, commit);
    buf_printf(&first, "%s/api/models/%s/tree/%s?recursive=true", o->endpoint, s->repo, commit);
    char *url = mem_strdup(buf_cstr(&first));
    int rc = OK;
    for (int n = 0; rc == OK && url != NULL; n++) {
        if (n == MAX_PAGES) rc = err_set(e, ERR_LIMIT, "%s: the listing has no end", s->repo);
        if (rc == OK) rc = get_text(o, url, s->repo, &text, next, e);
        if (rc == OK)
            rc = manifest_lock_tree(m, rules, &like, is_engram, buf_cstr(&text), text.len, e);
        char *following = rc == OK && next[0] != '\0' ? hub_url_join(url, next) : NULL;
        if (following != NULL && !hub_url_same_host(following, o->endpoint)) {
            rc = err_set(e, ERR_NET, "%s: the listing goes on at another host", s->repo);
            mem_free(following);
            following = NULL;
        }
        mem_free(url);
        url = following;
    }
    mem_free(url);
    buf_release(&text);
    buf_release(&first);
    return err_add(e, rc, "listing %s", s->repo);
}

/* Checking. */

static void warn(lock_report *r, const char *text) {
    size_t n = strlen(r->warnings);
    snprintf(r->warnings + n, sizeof r->warnings - n, "%s%s", n > 0 ? " " : "", text);
}

static const manifest_file *find(const manifest *m, const char *path, bool is_engram) {
    for (size_t i = 0; i < m->n_files; i++) {
        if ((m->files[i].role == MANIFEST_ENGRAM) == is_engram && str_eq(m->files[i].path, path))
            return &m->files[i];
    }
    return NULL;
}

static int check_sizes(const manifest *m, const lock_rules *rules, lock_report *report, err *e) {
    uint64_t weights = 0;
    int n_tables = 0;
    for (size_t i = 0; i < m->n_files; i++) {
        const manifest_file *f = &m->files[i];
        if (f->role == MANIFEST_WEIGHTS) weights += f->size;
        n_tables += f->role == MANIFEST_ENGRAM && str_ends(f->path, ".safetensors");
    }
    if (weights < rules->weights_min || weights > rules->weights_max)
        return err_set(e, ERR_MISMATCH,
            "the weights of this repository are %.1f GB; those of %s must "
            "have %.0f to %.0f GB",
            (double)weights / 1e9, rules->profile, (double)rules->weights_min / 1e9,
            (double)rules->weights_max / 1e9);
    if (n_tables != rules->n_engram)
        return err_set(e, ERR_MISMATCH,
            "the repository of the Engram tables has %d files of %.0f to "
            "%.0f GB, there must be %d",
            n_tables, (double)rules->engram_min / 1e9, (double)rules->engram_max / 1e9,
            rules->n_engram);
    const manifest_file *tokenizer = find(m, "tokenizer.json", false);
    if (tokenizer == NULL)
        return err_set(e, ERR_MISMATCH, "tokenizer.json is missing in the weights' repository");
    if (tokenizer->size != rules->tokenizer_bytes)
        warn(report, "tokenizer.json has another size than that of the September release.");
    return OK;
}

static int check_config_text(
    const manifest *m, const lock_rules *rules, const buf *text, lock_report *report, err *e) {
    json *v = NULL;
    double bits = 0;
    int rc = json_parse(buf_cstr(text), text->len, NULL, &v, e);
    if (rc != OK) return rc;
    const char *type = json_str(json_get(v, "model_type"));
    const json *q = json_get(v, "quantization_config");
    const char *method = json_str(json_get(q, "quant_method"));
    if (!str_eq(type, rules->model_type)) {
        rc = err_set(e, ERR_MISMATCH, "config.json names the architecture \"%.40s\", not %s",
            type != NULL ? type : "", rules->model_type);
    } else if (method != NULL ? !str_eq_nocase(method, "exl3")
                              : find(m, "quantization_config.json", false) == NULL) {
        rc = err_set(e, ERR_MISMATCH, "config.json does not say that the weights are EXL3");
    } else if (json_double(json_get(q, "bits"), &bits) != OK) {
        warn(report, "config.json does not say how many bits a weight has.");
    } else if (bits < rules->bits_min || bits > rules->bits_max) {
        rc = err_set(e, ERR_MISMATCH, "the weights have %.2f bits, expected about 2.9", bits);
    }
    json_free(v);
    return rc;
}

static int check_config(const lock_options *o, const lock_rules *rules, const manifest *m,
    lock_report *report, err *e) {
    buf url = BUF_INIT, text = BUF_MAX(CONFIG_MAX);
    char hex[65];
    const manifest_file *f = find(m, "config.json", false);
    if (f == NULL) return err_set(e, ERR_MISMATCH, "config.json is missing");
    buf_printf(&url, "%s/%s/resolve/%s/config.json", o->endpoint, f->repo, f->commit);
    int rc = get_text(o, buf_cstr(&url), "config.json", &text, NULL, e);
    if (rc == OK) {
        store_digest *d = store_digest_new(f->kind, f->size);
        store_digest_update(d, buf_cstr(&text), text.len);
        store_digest_finish(d, hex);
        store_digest_free(d);
        if (!str_eq(hex, f->digest))
            rc = err_set(e, ERR_MISMATCH, "config.json is not the one that the hub listed");
    }
    if (rc == OK) rc = check_config_text(m, rules, &text, report, e);
    buf_release(&url);
    buf_release(&text);
    return rc;
}

static int check_options(const lock_options *o, const lock_rules *rules, err *e) {
    bool is_official = str_eq(o->endpoint, "https://huggingface.co");
    if (!is_official && !hub_url_is_loopback(o->endpoint))
        return err_set(e, ERR_ARG,
            "digests come from the official hub only; %s is good for the bytes, "
            "set HF_ENDPOINT after locking",
            o->endpoint);
    if (o->weights.repo == NULL || o->weights.repo[0] == '\0')
        return err_set(e, ERR_ARG,
            "the repository of the weights of %s is not known for certain: name "
            "it with --weights OWNER/NAME",
            rules->profile);
    if (o->engram.repo == NULL || o->engram.repo[0] == '\0')
        return err_set(e, ERR_ARG,
            "the repository of the Engram tables of %s is not known for "
            "certain: name it with --engram OWNER/NAME",
            rules->profile);
    return OK;
}

/* What the repositories say about themselves is kept with the digests. */
static int record_licences(const lock_options *o, manifest *m, const lock_report *report, err *e) {
    int rc = OK;
    if (report->weights_licence[0] != '\0')
        rc = manifest_add_licence(m, o->weights.repo, report->weights_licence, e);
    if (rc == OK && report->engram_licence[0] != '\0' &&
        manifest_licence_of(m, o->engram.repo) == NULL)
        rc = manifest_add_licence(m, o->engram.repo, report->engram_licence, e);
    return rc;
}

int manifest_lock(
    const lock_options *o, const lock_rules *rules, manifest *m, lock_report *report, err *e) {
    manifest_init(m);
    memset(report, 0, sizeof *report);
    int rc = check_options(o, rules, e);
    for (int i = 0; rc == OK && i < 2; i++) {
        if (rules->deny[i] != NULL) rc = manifest_add_deny(m, rules->deny[i], rules->deny_why, e);
    }
    if (rc == OK)
        rc = resolve(o, &o->weights, report->weights_commit, report->weights_date,
            report->weights_licence, e);
    if (rc == OK)
        rc = resolve(
            o, &o->engram, report->engram_commit, report->engram_date, report->engram_licence, e);
    if (rc == OK) rc = record_licences(o, m, report, e);
    if (rc == OK) rc = list(o, rules, m, &o->weights, report->weights_commit, false, e);
    if (rc == OK) rc = list(o, rules, m, &o->engram, report->engram_commit, true, e);
    if (rc == OK) rc = check_sizes(m, rules, report, e);
    if (rc == OK) rc = check_config(o, rules, m, report, e);
    if (rc != OK) manifest_release(m);
    return rc;
}
