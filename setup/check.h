/* The checks of the machines before and between starts: a table of rows, each usable alone. A check
 * reads files first and asks tools second, changes nothing, and says in three sentences what it
 * found, why it matters and what to do. What could not be measured is UNKNOWN, never PASS. A context
 * belongs to one thread. */
#ifndef SETUP_CHECK_H
#define SETUP_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "setup/node_access.h"
#include "setup/settings.h"

typedef enum check_status {
    CHECK_STATUS_PASS,
    CHECK_STATUS_WARN,
    CHECK_STATUS_FAIL,
    CHECK_STATUS_SKIP,
    CHECK_STATUS_UNKNOWN
} check_status;

typedef struct check_result {
    const char *id;
    const char *node; /* "head", "worker" or "both" */
    check_status status;
    char fact[480], reason[320], remedy[640];
    bool has_value;
    double value; /* what a baseline keeps: bytes, degrees, a rate */
} check_result;

typedef enum check_scope {
    CHECK_EACH, /* on every machine */
    CHECK_HEAD, /* on the head only */
    CHECK_PAIR  /* compares two machines: one result */
} check_scope;

typedef struct check_context check_context;

typedef struct check_row {
    const char *id;
    check_scope scope;
    const char *title;
    const char *why;
    const char *source; /* where the row is specified */
    bool is_heavy;      /* makes load or traffic: runs only when named or when asked for */
    void (*run)(check_context *c, int i_node, check_result *r);
} check_row;

const check_row *check_rows(size_t *n);
/* In any case of letters; NULL if unknown. */
const check_row *check_find(const char *id);

/* What is known of a model's files on one machine. */
typedef struct check_files {
    size_t n_files, n_verified; /* n_verified: their digests were compared with the manifest */
    char wrong[256];            /* a file that is recorded with another digest, "" */
} check_files;

typedef struct check_options {
    node_access *node[2];   /* head, worker; NULL: not there. Borrowed. */
    const char *missing[2]; /* why it is not there, shown as UNKNOWN; NULL: not set up (SKIP) */
    const settings *settings;
    const char *baseline;   /* file of the baselines, NULL: none */
    const char *engine;     /* tandemd beside this program, NULL: none found */
    uint64_t need_bytes[2]; /* still missing on that machine's disk */
    bool has_need;          /* a model is chosen, so need_bytes means something */
    const char *need_text;  /* what the bytes are made of */
    bool is_heavy;          /* run heavy rows too */
    check_files files[2];   /* of the chosen model, with has_need */
} check_options;

/* settings are required. Copies what it needs except the node access. */
check_context *check_context_new(const check_options *o);
void check_context_free(check_context *c);

/* Receives each result as it is there. Not OK stops. */
typedef int (*check_sink)(void *ctx, const check_row *row, const check_result *r);
/* Runs one row (id) or all (NULL) on head (0), worker (1) or both (-1). worst gets the worst status
 * in the order PASS, SKIP, UNKNOWN, WARN, FAIL. ERR_NOT_FOUND for an unknown id. */
int check_run(check_context *c, const char *id, int i_node, check_sink sink, void *ctx,
    check_status *worst, err *e);

const char *check_status_name(check_status s);
check_status check_worse(check_status a, check_status b);
void check_write_json(json_w *w, const check_row *row, const check_result *r);

/* Baselines: one value per check and machine with its time, kept in one JSON file. Compared: within
 * a tenth PASS, to three tenths WARN, beyond FAIL, in the direction that is worse. */
typedef struct check_baseline {
    double value;
    uint64_t wall_ms;
    char text[80]; /* for values that are no number, such as a boot id */
} check_baseline;
int check_baseline_get(
    const char *path, const char *id, const char *node, check_baseline *out, err *e);
int check_baseline_put(
    const char *path, const char *id, const char *node, const check_baseline *b, err *e);
check_status check_judge_baseline(double now, double before, bool is_more_better);

#endif
