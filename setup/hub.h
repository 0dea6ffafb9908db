/* Download of the files of a manifest from a hub or a mirror: bounded ranges over several
 * connections, a journal per file, digests while the bytes come in. hub_run blocks its thread and
 * starts others; every other function may be called from hub_run's callback or from any thread that
 * knows the hub is alive. Nothing is ever written under a final name that was not verified. */
#ifndef SETUP_HUB_H
#define SETUP_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/json.h"
#include "setup/hub_http.h"
#include "setup/manifest.h"

/* Seams to the disk, so that space and full disks can be tried out. NULL entries: the real thing. */
typedef struct hub_disk {
    uint64_t (*free_bytes)(void *ctx);
    int (*reserve)(void *ctx, int fd, uint64_t offset, uint64_t length, err *e);
    int (*write)(void *ctx, int fd, const void *data, size_t n, uint64_t offset, err *e);
    void *ctx;
} hub_disk;

typedef struct hub_options {
    const char *endpoint;    /* scheme and host, https unless loopback */
    const char *root;        /* data root */
    const hub_secret *token; /* may be NULL; borrowed while the hub lives */
    const char *token_host;  /* the only host the token may go to */
    int connections;         /* 1 to 32 */
    uint64_t unit_bytes;     /* 0: 128 MiB */
    uint64_t rate_limit;     /* bytes a second, 0: none */
    hub_limits limits;
    int64_t backoff_ms;        /* first pause after a failure, 0: 1 s; doubles up to 60 s */
    int64_t give_up_ms;        /* without any progress, 0: 15 min */
    const char *const *search; /* folders of others to look for finished files in; ends with NULL */
    hub_disk disk;
} hub_options;

typedef enum hub_file_state {
    HUB_WAITING,
    HUB_CHECKING, /* a file that was there is being hashed */
    HUB_LOADING,
    HUB_VERIFYING, /* all bytes are here, the digest is not */
    HUB_OK,
    HUB_FAILED,
    HUB_FILE_STATES
} hub_file_state;

typedef struct hub_file_progress {
    const manifest_file *file;
    hub_file_state state;
    uint64_t done_bytes, hashed_bytes, again_bytes;
    double rate; /* bytes a second over the last seconds */
    bool is_stalled;
} hub_file_progress;

typedef struct hub_progress {
    uint64_t total_bytes, done_bytes, fetched_bytes, again_bytes, verified_bytes, free_bytes;
    size_t n_files, n_ok;
    double rate_now, rate_minute, rate_mean; /* bytes a second */
    double eta_s;                            /* below 0: not known */
    int n_connections, n_busy;
    uint64_t n_requests, n_resolves, n_retries;
    int64_t resolves_left; /* -1: not said */
    int64_t wait_ms;       /* until the hub may be asked again, 0: now */
    char last_reason[256]; /* of the last retry, "" */
} hub_progress;

typedef struct hub hub;

/* Checks options and space and prepares the journals; asks no server. ERR_FULL: not enough space,
 * with both numbers. The manifest and the texts of the options are borrowed until hub_free. */
hub *hub_new(const manifest *m, const hub_options *options, err *e);
void hub_free(hub *h);

/* Called by hub_run about four times a second; a result other than OK ends the run in order (journals
 * written), and hub_run returns it. */
typedef int (*hub_tick)(void *ctx, hub *h);
/* OK: every required file is in place and verified. ERR_FULL and ERR_TIMEOUT (no progress for
 * give_up_ms) are pauses: run again later. Others name the file. */
int hub_run(hub *h, hub_tick tick, void *ctx, err *e);

void hub_progress_get(hub *h, hub_progress *out);
size_t hub_n_files(const hub *h);
void hub_file_progress_get(hub *h, size_t i, hub_file_progress *out);
/* Both while it runs. */
void hub_set_rate(hub *h, uint64_t bytes_per_s);
void hub_set_connections(hub *h, int n);
/* Members "total_bytes", "files" and so on of an open object. */
void hub_progress_json(hub *h, json_w *w);
const char *hub_file_state_name(hub_file_state s);

#endif
