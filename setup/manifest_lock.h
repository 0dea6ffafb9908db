/* `lock`: makes the manifest of a profile whose commits are not pinned by the program. The hub is
 * asked once for commit, files, sizes and digests; what is known about the profile is checked, and
 * what is not known must be named by the owner. From then on the manifest alone counts. */
#ifndef SETUP_MANIFEST_LOCK_H
#define SETUP_MANIFEST_LOCK_H

#include <stdint.h>

#include "engine/base/err.h"
#include "setup/hub_http.h"
#include "setup/manifest.h"

/* One repository: OWNER/NAME and branch, tag or commit. */
typedef struct lock_source {
    const char *repo;     /* NULL or "": not named */
    const char *revision; /* NULL: main */
} lock_source;

typedef struct lock_options {
    const char
        *endpoint; /* the official hub, or a loopback test: a mirror is not asked for digests */
    const hub_secret *token;
    const char *profile;
    lock_source weights, engram;
    hub_limits limits;
} lock_options;

/* What is known of a profile. Texts are constant. */
typedef struct lock_rules {
    const char *profile;
    uint64_t weights_min, weights_max; /* sum of the weight shards */
    int n_engram;
    uint64_t engram_min, engram_max; /* each table shard */
    uint64_t tokenizer_bytes;        /* another size is a warning */
    const char *model_type;
    double bits_min, bits_max;
    const char *deny[2]; /* digests of the wrong tables */
    const char *deny_why;
} lock_rules;
/* NULL for a profile that cannot be locked. */
const lock_rules *lock_rules_find(const char *profile);

typedef struct lock_report {
    char weights_commit[41], engram_commit[41];
    char weights_date[40], engram_date[40];
    char weights_licence[64], engram_licence[64]; /* "" when not said */
    char warnings[512];                           /* sentences, "" for none */
} lock_report;

/* Fills m, which the caller releases. rules may be those of a test. */
int manifest_lock(
    const lock_options *o, const lock_rules *rules, manifest *m, lock_report *report, err *e);

/* The tree listing of a hub (one page) added to m with the repository's role. For fuzzing too. */
int manifest_lock_tree(manifest *m, const lock_rules *rules, const manifest_file *like,
    bool is_engram, const char *text, size_t len, err *e);

#endif
