#include "setup/manifest.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

static const char *const ROLE_NAMES[MANIFEST_ROLES] = {
    "weights", "engram", "tokenizer", "config", "template", "doc"};

void manifest_init(manifest *m) {
    memset(m, 0, sizeof *m);
}

void manifest_release(manifest *m) {
    for (size_t i = 0; i < m->n_files; i++) {
        mem_free(m->files[i].repo);
        mem_free(m->files[i].path);
    }
    for (size_t i = 0; i < m->n_denied; i++)
        mem_free(m->denied[i].why);
    for (size_t i = 0; i < m->n_licences; i++) {
        mem_free(m->licences[i].repo);
        mem_free(m->licences[i].name);
    }
    mem_free(m->licences);
    mem_free(m->files);
    mem_free(m->denied);
    mem_free(m->profile);
    manifest_init(m);
}

const char *manifest_role_name(manifest_role role) {
    CHECK(role < MANIFEST_ROLES);
    return ROLE_NAMES[role];
}

/* Checks. */

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == '+' || c == '@' || c == '=' || c == ',';
}

static bool is_plain_name(const char *s, size_t n) {
    if (n == 0 || s[0] == '.' || s[0] == '-') return false;
    for (size_t i = 0; i < n; i++) {
        if (!is_name_char(s[i])) return false;
    }
    return true;
}

/* Control bytes must not reach the message, and through it a terminal. */
static void shown(const char *s, char out[81]) {
    size_t n = 0;
    for (; s[n] != '\0' && n < 80; n++) {
        unsigned char c = (unsigned char)s[n];
        out[n] = c < 32 || c >= 127 ? '?' : s[n];
    }
    out[n] = '\0';
}

int manifest_path_check(const char *path, err *e) {
    char text[81];
    shown(path, text);
    size_t len = strlen(path);
    if (len == 0 || len > MANIFEST_PATH_MAX)
        return err_set(e, ERR_FORMAT, "the file name \"%s\" is empty or too long", text);
    for (const char *at = path;;) {
        size_t n = strcspn(at, "/");
        if (!is_plain_name(at, n))
            return err_set(e, ERR_FORMAT, "the file name \"%s\" is not safe to write", text);
        if (at[n] == '\0') return OK;
        at += n + 1;
    }
}

int manifest_repo_check(const char *repo, err *e) {
    char text[81];
    shown(repo, text);
    const char *slash = strchr(repo, '/');
    if (slash != NULL && strlen(repo) <= 200 && is_plain_name(repo, (size_t)(slash - repo)) &&
        is_plain_name(slash + 1, strlen(slash + 1)))
        return OK;
    return err_set(e, ERR_FORMAT, "\"%s\" is no repository name; it must be OWNER/NAME", text);
}

static bool is_hex(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f'))) return false;
    }
    return s[n] == '\0';
}

static int check_file(const manifest *m, const manifest_file *f, err *e) {
    int rc = manifest_repo_check(f->repo, e);
    if (rc == OK) rc = manifest_path_check(f->path, e);
    if (rc != OK) return rc;
    if (str_ends(f->path, ".part") || str_ends(f->path, ".ranges") || str_ends(f->path, ".ok"))
        return err_set(e, ERR_FORMAT, "%s has a name that the download keeps for itself", f->path);
    size_t digits = f->kind == MANIFEST_SHA256 ? 64 : f->kind == MANIFEST_GITBLOB ? 40 : 0;
    if (strnlen(f->digest, 65) != digits || !is_hex(f->digest, digits))
        return err_set(e, ERR_FORMAT, "%s has no valid digest", f->path);
    if (strnlen(f->commit, 41) != 40 || !is_hex(f->commit, 40))
        return err_set(e, ERR_FORMAT, "%s has no commit of 40 hexadecimal digits", f->path);
    if (f->size > (uint64_t)INT64_MAX / 4)
        return err_set(e, ERR_FORMAT, "%s has an impossible size", f->path);
    for (size_t i = 0; i < m->n_files; i++) {
        bool same_folder = (m->files[i].role == MANIFEST_ENGRAM) == (f->role == MANIFEST_ENGRAM);
        if (same_folder && str_eq_nocase(m->files[i].path, f->path))
            return err_set(e, ERR_FORMAT, "%s is listed twice", f->path);
    }
    return OK;
}

int manifest_add(manifest *m, const char *profile, const manifest_file *f, err *e) {
    if (!is_plain_name(profile, strlen(profile)) || strlen(profile) > 64)
        return err_set(e, ERR_FORMAT, "the profile name is not plain");
    if (m->profile != NULL && !str_eq(m->profile, profile))
        return err_set(e, ERR_FORMAT, "files of two profiles: %s and %s", m->profile, profile);
    if (m->n_files == MANIFEST_MAX_FILES)
        return err_set(e, ERR_LIMIT, "more than %d files", MANIFEST_MAX_FILES);
    int rc = check_file(m, f, e);
    if (rc != OK) return rc;
    if (m->profile == NULL) m->profile = mem_strdup(profile);
    m->files = mem_realloc(m->files, (m->n_files + 1) * sizeof *m->files);
    manifest_file *copy = &m->files[m->n_files++];
    *copy = *f;
    copy->repo = mem_strdup(f->repo);
    copy->path = mem_strdup(f->path);
    return OK;
}

int manifest_add_deny(manifest *m, const char *digest, const char *why, err *e) {
    if (strlen(digest) != 64 || !is_hex(digest, 64))
        return err_set(e, ERR_FORMAT, "a deny line needs a SHA-256 in lower case");
    if (m->n_denied == 64) return err_set(e, ERR_LIMIT, "more than 64 deny lines");
    m->denied = mem_realloc(m->denied, (m->n_denied + 1) * sizeof *m->denied);
    manifest_deny *d = &m->denied[m->n_denied++];
    str_copy(d->digest, sizeof d->digest, digest);
    d->why = mem_strdup(why);
    return OK;
}

static bool is_plain_text(const char *s) {
    for (; *s != '\0'; s++) {
        if ((unsigned char)*s < ' ' || (unsigned char)*s > '~') return false;
    }
    return true;
}

int manifest_add_licence(manifest *m, const char *repo, const char *name, err *e) {
    int rc = manifest_repo_check(repo, e);
    if (rc != OK) return rc;
    if (name[0] == '\0' || strlen(name) > 200 || !is_plain_text(name))
        return err_set(e, ERR_FORMAT, "a licence line needs a short name");
    if (m->n_licences == 64) return err_set(e, ERR_LIMIT, "more than 64 licence lines");
    if (manifest_licence_of(m, repo) != NULL)
        return err_set(e, ERR_FORMAT, "two licences of %s", repo);
    m->licences = mem_realloc(m->licences, (m->n_licences + 1) * sizeof *m->licences);
    m->licences[m->n_licences++] = (manifest_licence){mem_strdup(repo), mem_strdup(name)};
    return OK;
}

const char *manifest_licence_of(const manifest *m, const char *repo) {
    for (size_t i = 0; i < m->n_licences; i++) {
        if (str_eq(m->licences[i].repo, repo)) return m->licences[i].name;
    }
    return NULL;
}

static const char *part_of(const manifest *m, const char *repo) {
    bool has_weights = false, has_tables = false;
    for (size_t i = 0; i < m->n_files; i++) {
        if (!str_eq(m->files[i].repo, repo)) continue;
        has_weights = has_weights || m->files[i].role == MANIFEST_WEIGHTS;
        has_tables = has_tables || m->files[i].role == MANIFEST_ENGRAM;
    }
    if (has_weights) return has_tables ? "model and tables" : "model";
    return has_tables ? "tables" : "other files";
}

size_t manifest_terms_of(const manifest *m, manifest_terms out[MANIFEST_TERMS]) {
    size_t n = 0;
    for (size_t i = 0; m != NULL && i < m->n_files && n < MANIFEST_TERMS - 1; i++) {
        const char *repo = m->files[i].repo;
        bool is_new = true;
        for (size_t k = 0; k < n && is_new; k++)
            is_new = !str_eq(out[k].repo, repo);
        if (is_new)
            out[n++] = (manifest_terms){part_of(m, repo), repo, manifest_licence_of(m, repo)};
    }
    /* No template file is run: the prompt is written by code of this program. */
    out[n++] = (manifest_terms){"template", "tandem",
        "Apache-2.0, part of this program; it writes DeepSeek's prompt encoding (MIT)"};
    return n;
}

/* Text. */

enum { MAX_WORDS = 11 };

/* Cuts a line at single blanks; the last word takes the rest when max words are there. */
static int split(char *line, char **words, int max) {
    int n = 0;
    while (*line != '\0' && n < max) {
        words[n++] = line;
        if (n == max) break;
        line += strcspn(line, " ");
        if (*line == ' ') *line++ = '\0';
    }
    return n;
}

static int parse_kind(const char *word, manifest_digest *out) {
    if (str_eq(word, "sha256")) {
        *out = MANIFEST_SHA256;
    } else if (str_eq(word, "gitblob")) {
        *out = MANIFEST_GITBLOB;
    } else {
        return ERR_FORMAT;
    }
    return OK;
}

static int parse_role(const char *word, manifest_role *out) {
    for (int i = 0; i < MANIFEST_ROLES; i++) {
        if (!str_eq(word, ROLE_NAMES[i])) continue;
        *out = (manifest_role)i;
        return OK;
    }
    return ERR_FORMAT;
}

static int parse_file_line(manifest *m, char *line, err *e) {
    char *w[MAX_WORDS];
    if (split(line, w, MAX_WORDS) != MAX_WORDS || strchr(w[10], ' ') != NULL)
        return err_set(e, ERR_FORMAT, "a file line has 10 fields");
    manifest_file f = {.repo = w[2], .path = w[4]};
    if (strlen(w[3]) != 40 || str_copy(f.commit, sizeof f.commit, w[3]) != 40)
        return err_set(e, ERR_FORMAT, "the commit must have 40 hexadecimal digits");
    if (parse_u64(w[5], &f.size) != OK) return err_set(e, ERR_FORMAT, "the size is no number");
    if (parse_kind(w[6], &f.kind) != OK)
        return err_set(e, ERR_FORMAT, "the kind of digest must be sha256 or gitblob");
    if (strlen(w[7]) > 64) return err_set(e, ERR_FORMAT, "the digest is too long");
    str_copy(f.digest, sizeof f.digest, w[7]);
    if (parse_role(w[8], &f.role) != OK) return err_set(e, ERR_FORMAT, "unknown role");
    f.is_head_only = str_eq(w[9], "head");
    if (!f.is_head_only && !str_eq(w[9], "both"))
        return err_set(e, ERR_FORMAT, "the nodes must be both or head");
    f.is_required = str_eq(w[10], "1");
    if (!f.is_required && !str_eq(w[10], "0"))
        return err_set(e, ERR_FORMAT, "required must be 0 or 1");
    return manifest_add(m, w[1], &f, e);
}

static int parse_end_line(const manifest *m, char *line, bool *is_ended, err *e) {
    char *w[4];
    uint64_t files = 0, bytes = 0;
    if (split(line, w, 4) != 3 || parse_u64(w[1], &files) != OK || parse_u64(w[2], &bytes) != OK)
        return err_set(e, ERR_FORMAT, "the end line must be: end FILES BYTES");
    if (files != m->n_files || bytes != manifest_bytes(m))
        return err_set(e, ERR_FORMAT,
            "the end line says %llu files and %llu bytes, there are %zu "
            "and %llu",
            (unsigned long long)files, (unsigned long long)bytes, m->n_files,
            (unsigned long long)manifest_bytes(m));
    *is_ended = true;
    return OK;
}

static int parse_line(manifest *m, char *line, bool *is_ended, err *e) {
    if (line[0] == '\0' || line[0] == '#') return OK;
    if (*is_ended) return err_set(e, ERR_FORMAT, "there is something after the end line");
    if (str_starts(line, "file ")) return parse_file_line(m, line, e);
    if (str_starts(line, "end ")) return parse_end_line(m, line, is_ended, e);
    char *w[3];
    if (str_starts(line, "deny ") && split(line, w, 3) == 3)
        return manifest_add_deny(m, w[1], w[2], e);
    if (str_starts(line, "licence ") && split(line, w, 3) == 3)
        return manifest_add_licence(m, w[1], w[2], e);
    return err_set(e, ERR_FORMAT, "unknown line");
}

static int parse_text(manifest *m, char *text, err *e) {
    bool is_ended = false;
    int n = 0;
    for (char *at = text; *at != '\0';) {
        char *line = at;
        at += strcspn(at, "\n");
        if (*at == '\n') *at++ = '\0';
        n++;
        if (n == 1 && !str_eq(line, "tandem-manifest 1"))
            return err_set(e, ERR_FORMAT, "this is no manifest of version 1");
        if (n == 1) continue;
        int rc = parse_line(m, line, &is_ended, e);
        if (rc != OK) return err_add(e, rc, "line %d", n);
    }
    if (!is_ended) return err_set(e, ERR_FORMAT, "the end line is missing: the file is cut off");
    if (m->n_files == 0) return err_set(e, ERR_FORMAT, "no file is listed");
    return OK;
}

int manifest_parse(manifest *m, const char *text, size_t len, err *e) {
    manifest_init(m);
    if (len > MANIFEST_MAX_BYTES) return err_set(e, ERR_LIMIT, "the manifest is too long");
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 32 && c != '\n') || c >= 127)
            return err_set(e, ERR_FORMAT, "the manifest has a byte that is no plain text");
    }
    char *copy = mem_strndup(text, len);
    int rc = parse_text(m, copy, e);
    mem_free(copy);
    if (rc != OK) manifest_release(m);
    return rc;
}

int manifest_load(manifest *m, const char *path, err *e) {
    buf text = BUF_INIT;
    manifest_init(m);
    int rc = file_read(path, &text, MANIFEST_MAX_BYTES, e);
    if (rc == OK) rc = manifest_parse(m, buf_cstr(&text), text.len, e);
    buf_release(&text);
    return err_add(e, rc, "manifest %s", path);
}

int manifest_print(const manifest *m, buf *out, err *e) {
    int rc = buf_puts(out, "tandem-manifest 1\n");
    for (size_t i = 0; rc == OK && i < m->n_denied; i++)
        rc = buf_printf(out, "deny %s %s\n", m->denied[i].digest, m->denied[i].why);
    for (size_t i = 0; rc == OK && i < m->n_licences; i++)
        rc = buf_printf(out, "licence %s %s\n", m->licences[i].repo, m->licences[i].name);
    for (size_t i = 0; rc == OK && i < m->n_files; i++) {
        const manifest_file *f = &m->files[i];
        if (f->kind == MANIFEST_SIZE_ONLY)
            return err_set(e, ERR_ARG, "%s has no digest and cannot be written down", f->path);
        rc = buf_printf(out, "file %s %s %s %s %llu %s %s %s %s %d\n", m->profile, f->repo,
            f->commit, f->path, (unsigned long long)f->size,
            f->kind == MANIFEST_SHA256 ? "sha256" : "gitblob", f->digest,
            manifest_role_name(f->role), f->is_head_only ? "head" : "both", f->is_required ? 1 : 0);
    }
    if (rc == OK)
        rc = buf_printf(out, "end %zu %llu\n", m->n_files, (unsigned long long)manifest_bytes(m));
    return rc == OK ? OK : err_set(e, rc, "the manifest is too long");
}

/* Look-ups. */

uint64_t manifest_bytes(const manifest *m) {
    uint64_t sum = 0;
    for (size_t i = 0; i < m->n_files; i++)
        sum += m->files[i].size;
    return sum;
}

int manifest_place(const manifest *m, const manifest_file *f, buf *out) {
    buf_reset(out);
    return buf_printf(
        out, "%s/%s/%s", f->role == MANIFEST_ENGRAM ? "engram" : "models", m->profile, f->path);
}

const char *manifest_denied(const manifest *m, const char *digest) {
    for (size_t i = 0; i < m->n_denied; i++) {
        if (str_eq(m->denied[i].digest, digest)) return m->denied[i].why;
    }
    return NULL;
}

int manifest_templates(buf *out, err *e) {
    /* Installed or in a bundle; in the source tree; there for a sanitizer build. */
    static const char *const places[] = {"../share/tandem/templates/manifests",
        "../templates/manifests", "../../templates/manifests", "templates/manifests"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return err_errno(e, "finding this program");
    self[n] = '\0';
    buf dir = BUF_INIT;
    int rc = ERR_NOT_FOUND;
    path_dir(&dir, self);
    for (size_t i = 0; rc != OK && i < sizeof places / sizeof places[0]; i++) {
        path_join(out, buf_cstr(&dir), places[i]);
        if (dir_exists(buf_cstr(out))) rc = OK;
    }
    buf_release(&dir);
    path_real(out);
    if (rc != OK) err_set(e, rc, "the folder templates/manifests is not beside the program");
    return rc;
}

static int add_name(void *ctx, const char *name, err *e) {
    (void)e;
    size_t n = strlen(name);
    if (str_ends(name, ".manifest")) buf_printf(ctx, " %.*s", (int)(n - 9), name);
    return OK;
}

int manifest_find(manifest *m, const char *name, const char *own_dir, err *e) {
    buf dir = BUF_INIT, path = BUF_INIT, file = BUF_INIT, known = BUF_INIT;
    manifest_init(m);
    int rc = OK;
    if (!is_plain_name(name, strlen(name)) || strlen(name) > 64)
        rc = err_set(e, ERR_ARG, "the profile name is not plain");
    if (rc == OK) rc = manifest_templates(&dir, e);
    if (rc != OK) goto out;
    buf_printf(&file, "%s.manifest", name);
    if (own_dir != NULL) path_join(&path, own_dir, buf_cstr(&file));
    if (own_dir == NULL || !file_exists(buf_cstr(&path)))
        path_join(&path, buf_cstr(&dir), buf_cstr(&file));
    if (file_exists(buf_cstr(&path))) {
        rc = manifest_load(m, buf_cstr(&path), e);
        goto out;
    }
    dir_each(buf_cstr(&dir), add_name, &known, NULL);
    if (own_dir != NULL && dir_exists(own_dir)) dir_each(own_dir, add_name, &known, NULL);
    rc = err_set(e, ERR_NOT_FOUND, "there is no manifest \"%s\"; known:%s", name, buf_cstr(&known));
out:
    buf_release(&dir);
    buf_release(&path);
    buf_release(&file);
    buf_release(&known);
    return rc;
}
