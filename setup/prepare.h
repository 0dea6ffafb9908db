/* Preparing: the rank packs of both nodes (engine/weights/pack.h) and the prompt self-test, before
 * anything is served. The head's pack is made here, the worker's by `tandem-node prepare` there,
 * started through ssh; its lines on standard output:
 *
 *     tandem-prepare 1
 *     progress PHASE DONE TOTAL HAD      about twice a second
 *     done BYTES MENDED KEPT SOURCE ROOT PATH
 *     fail SENTENCE
 *
 * When its output is gone (the session ended) it stops, and what is written stays. */
#ifndef SETUP_PREPARE_H
#define SETUP_PREPARE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/text/self_test.h"
#include "kernels/exl3/exl3_image.h"
#include "setup/node_access.h"
#include "setup/settings.h"

enum { PREPARE_MAX_RANKS = 16 };

/* One rank's pack. The texts are borrowed. */
typedef struct prepare_rank {
    const char *node; /* shown: "head", "worker" */
    const char *model_dir, *out_dir;
    int rank, world;
    exl3_layout layout;
    bool without_drafts, checks;
    int n_threads;
    uint64_t block_bytes; /* 0: as usual */
} prepare_rank;

typedef enum prepare_state {
    PREPARE_WAITING,
    PREPARE_WRITING,
    PREPARE_VERIFYING,
    PREPARE_DONE,
    PREPARE_FAILED
} prepare_state;

/* How far one rank is. Written by the thread that makes it, read by another through
 * prepare_task_get. */
typedef struct prepare_progress {
    prepare_state state;
    uint64_t done_bytes, total_bytes; /* written; had_bytes of them were there before */
    uint64_t had_bytes, read_bytes;   /* read_bytes: compared after writing */
    uint64_t n_mended;
    bool is_kept;
    char source[65], root[65]; /* digests, once done */
    char path[1024];
    err error; /* of PREPARE_FAILED */
} prepare_progress;

/* The work of one rank in a thread of its own. */
typedef struct prepare_task prepare_task;
/* On this machine. NULL after an error. */
prepare_task *prepare_task_start(const prepare_rank *r, err *e);
/* On the worker: the session is used by the task's thread alone until prepare_task_free; program is
 * the path of tandem-node there. */
prepare_task *prepare_task_start_worker(
    const prepare_rank *r, node_access *worker, const char *program, err *e);
void prepare_task_get(prepare_task *t, prepare_progress *out);
void prepare_task_stop(prepare_task *t);
/* Waits for the thread. */
void prepare_task_free(prepare_task *t);

const char *prepare_state_name(prepare_state s);
/* A line of `tandem-node prepare`. False: nothing known; the progress is as it was. */
bool prepare_line_parse(const char *line, prepare_progress *p);

/* Where things are on a node by the settings: DATA/models/PROFILE and DATA/prepared/PROFILE. profile
 * NULL: the setting. ERR_ARG names the setting that is missing. */
typedef struct prepare_place {
    buf model_dir, out_dir;
} prepare_place;
int prepare_place_find(
    prepare_place *p, const settings *s, const char *profile, bool is_worker, err *e);
void prepare_place_release(prepare_place *p);
/* The same for the profile of the settings. */
int prepare_places(const settings *s, bool is_worker, buf *model_dir, buf *out_dir, err *e);
/* The layout for the engine beside this program, from what `tandemd --version` says. */
int prepare_layout(const char *daemon, exl3_layout *out, err *e);

/* STATE/prepared.json: what was made last (for status and for starts), one JSON object:
 * {"v":1,"time_ms":..,"profile":..,"renderer":HEX,"packs":[{"node","rank","ranks","layout","path",
 * "bytes","source","root"}]} */
int prepare_record_path(buf *out, err *e);

/* The prompt self-test of setup.md 9 over the cases that come with this program, with the tokenizer
 * of a model folder. Less than a second. ERR_MISMATCH: prompts would be wrong, do not start. */
int prepare_self_test(const char *model_dir, self_test_result *out, err *e);

#endif
