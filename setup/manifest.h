/* A manifest: the exact files of one model profile, each with repository, commit, size and digest.
 * Text, one file a line, so that people can read and compare it; the program carries the pinned ones
 * in templates/manifests, others are made by `tandem model lock`. A manifest is the only source of
 * sizes and digests: mirrors, hubs and the other machine are trusted for bytes alone.
 *
 *     tandem-manifest 1
 *     file PROFILE REPO COMMIT PATH SIZE sha256|gitblob DIGEST ROLE both|head 0|1
 *     deny SHA256 why these bytes must not be taken
 *     licence REPO what the repository says about itself
 *     end FILES BYTES
 *
 * Lines that begin with # are comments. Owned by one thread while it is read or filled; afterwards
 * any thread may read it. */
#ifndef SETUP_MANIFEST_H
#define SETUP_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

#define MANIFEST_MAX_BYTES ((size_t)8 << 20)
#define MANIFEST_MAX_FILES 4096
#define MANIFEST_PATH_MAX 255

typedef enum manifest_digest {
    MANIFEST_SIZE_ONLY, /* only in memory, for tests of range arithmetic; never read or written */
    MANIFEST_SHA256,
    MANIFEST_GITBLOB /* SHA-1 over "blob SIZE\0" and the content */
} manifest_digest;

typedef enum manifest_role {
    MANIFEST_WEIGHTS,
    MANIFEST_ENGRAM,
    MANIFEST_TOKENIZER,
    MANIFEST_CONFIG,
    MANIFEST_TEMPLATE,
    MANIFEST_DOC,
    MANIFEST_ROLES
} manifest_role;

typedef struct manifest_file {
    char *repo;      /* OWNER/NAME */
    char commit[41]; /* lower-case hexadecimal */
    char *path;      /* relative, safe (manifest_path_check) */
    uint64_t size;   /* bytes */
    char digest[65]; /* lower-case hexadecimal, 64 or 40 digits */
    manifest_digest kind;
    manifest_role role;
    bool is_head_only; /* not copied to the worker */
    bool is_required;
} manifest_file;

typedef struct manifest_deny {
    char digest[65];
    char *why;
} manifest_deny;

typedef struct manifest_licence {
    char *repo, *name; /* "MIT" */
} manifest_licence;

typedef struct manifest {
    char *profile;
    manifest_file *files;
    size_t n_files;
    manifest_deny *denied;
    size_t n_denied;
    manifest_licence *licences;
    size_t n_licences;
} manifest;

void manifest_init(manifest *m);
void manifest_release(manifest *m);

/* Reads a manifest text. ERR_FORMAT names the line. Refused: unknown words, files of two profiles,
 * a path twice in one folder, unsafe paths, sizes that do not add up to the end line. */
int manifest_parse(manifest *m, const char *text, size_t len, err *e);
int manifest_load(manifest *m, const char *path, err *e);
/* The text form, which manifest_parse reads back to the same manifest. */
int manifest_print(const manifest *m, buf *out, err *e);

/* Adds a copy of f (its texts are copied) after checking it. The first file fixes nothing but the
 * profile given here. */
int manifest_add(manifest *m, const char *profile, const manifest_file *f, err *e);
int manifest_add_deny(manifest *m, const char *digest, const char *why, err *e);
/* At most one a repository. */
int manifest_add_licence(manifest *m, const char *repo, const char *name, err *e);
/* NULL when none is recorded. */
const char *manifest_licence_of(const manifest *m, const char *repo);

enum { MANIFEST_TERMS = 8 };
typedef struct manifest_terms {
    const char *part;    /* "model", "tables", "model and tables", "other files", "template" */
    const char *repo;    /* "tandem" for the template, which is part of the program */
    const char *licence; /* NULL: the repository said none when the manifest was made */
} manifest_terms;
/* Under which terms the parts of a profile come: one entry a repository, the template last. m may be
 * NULL (no profile): the template alone. Returns how many; texts are borrowed from m. */
size_t manifest_terms_of(const manifest *m, manifest_terms out[MANIFEST_TERMS]);

/* A relative path of printable ASCII parts without "", "." or "..", no leading dash or dot, no
 * backslash, blank or ':', at most MANIFEST_PATH_MAX bytes. */
int manifest_path_check(const char *path, err *e);
/* OWNER/NAME of letters, digits, '.', '_' and '-'. */
int manifest_repo_check(const char *repo, err *e);

uint64_t manifest_bytes(const manifest *m);
const char *manifest_role_name(manifest_role role);
/* Where a file lives under a data root: models/PROFILE/PATH or engram/PROFILE/PATH. */
int manifest_place(const manifest *m, const manifest_file *f, buf *out);
/* The reason when these bytes must not be taken for this profile, else NULL. */
const char *manifest_denied(const manifest *m, const char *digest);

/* NAME.manifest in the folder of the owner (may be NULL), else in that of the program. ERR_NOT_FOUND
 * lists what there is. */
int manifest_find(manifest *m, const char *name, const char *own_dir, err *e);
/* The folder templates/manifests beside the program. */
int manifest_templates(buf *out, err *e);

#endif
