/* What the files hub_*.c share. Lock order: hub_file.journal_lock before hub.lock. */
#ifndef SETUP_HUB_INTERNAL_H
#define SETUP_HUB_INTERNAL_H

#include <pthread.h>

#include "setup/hub.h"
#include "setup/hub_ranges.h"
#include "setup/hub_store.h"

enum { HUB_MAX_WORKERS = 32, HUB_HASHERS = 2, HUB_RATE_SAMPLES = 256 };
#define HUB_DEFAULT_UNIT ((uint64_t)128 << 20)
#define HUB_RESERVE_BYTES ((uint64_t)5000000000)
#define HUB_SMALL_REST ((uint64_t)64 << 20) /* may go into the reserve */
#define HUB_SEQUENTIAL_MAX                                                                         \
    ((uint64_t)50000000000) /* larger files are never asked for in one piece */

/* One file. Guarded by hub.lock except where said. */
typedef struct hub_file {
    const manifest_file *f;
    char *rel;      /* final name under the root */
    char *part;     /* rel.part */
    char *journal;  /* rel.ranges */
    char *location; /* signed URL, or where the hub's own redirect led; NULL: ask the hub */
    unsigned location_serial; /* grows with every change of location */
    hub_file_state state;
    ranges r;
    uint8_t *taken;     /* [n_units] a worker has the unit */
    int fd;             /* of part, -1 */
    bool is_reserved;   /* space was taken */
    bool is_sequential; /* the server does not do ranges */
    bool is_anonymous;  /* its token was refused once */
    /* digest; only the hasher that set is_hashing touches hash */
    store_digest *hash;
    uint64_t hashed;
    bool is_hashing;
    hub_file_state picked; /* the state when the hasher took it; the hasher's own */
    bool is_reread;        /* the second reading after a mismatch */
    char *check_path;      /* CHECKING: what is being hashed; own file when equal to rel */
    size_t i_candidate;    /* next outside place to look at */
    int n_mismatch, n_range_faults, n_total_faults, n_fails, n_auth_fails, n_page_faults;
    uint64_t not_before_ms;
    uint64_t fresh_bytes; /* received in this run, for the rate */
    uint64_t last_fresh, last_ms;
    double rate;
    uint64_t again_bytes;
    uint64_t unmarked_bytes;      /* written, not yet flushed and marked */
    pthread_mutex_t journal_lock; /* orders writes of the journal file */
} hub_file;

/* A range in work; belongs to its worker. */
typedef struct hub_claim {
    hub_file *f;
    uint64_t start, end;
    uint64_t pos;    /* next byte to write */
    uint64_t marked; /* flushed and journalled up to here */
    uint64_t skip;   /* bytes of the body in front of pos */
    bool is_sequential;
    bool is_far;     /* the request goes to another host than the hub */
    unsigned serial; /* of the location that was asked */
    int fault;       /* why accept or take ended the request: hub_fault */
} hub_claim;

typedef enum hub_fault {
    FAULT_NONE,
    FAULT_RANGE,   /* range ignored or wrong */
    FAULT_TOTAL,   /* the file has another size there */
    FAULT_PAGE,    /* a web page instead of the file */
    FAULT_ENCODED, /* compressed in spite of identity */
    FAULT_COMMIT,  /* another commit */
    FAULT_DISK
} hub_fault;

struct hub {
    const manifest *m;
    hub_options o;
    store s;
    hub_file *files;
    size_t n_files;
    size_t *order; /* large files first */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stop_rc; /* not OK: everybody leaves */
    err stop_err;
    int n_allowed, n_busy;
    uint64_t wait_until_ms; /* nobody asks before */
    uint64_t last_progress_ms, begun_ms;
    hub_progress p; /* counters; the rest is computed on asking */
    uint64_t rate_limit, bucket_ms;
    double bucket;
    struct {
        uint64_t ms, bytes;
    } samples[HUB_RATE_SAMPLES];
    size_t n_samples;
    uint64_t grown_ms;
    double grown_rate;
};

typedef struct hub_worker {
    hub *h;
    int index;
    hub_http *http;
    hub_claim claim;
    hub_reply reply;
} hub_worker;

/* hub_queue.c: what is to be done next. */
/* Waits for a range to load; false when the worker should leave. */
bool hub_claim_take(hub *h, int index, hub_claim *c);
/* Gives the rest of a range back and wakes the others. */
void hub_claim_give(hub *h, hub_claim *c);
/* Flushes what arrived, marks it and writes the journal. */
int hub_claim_mark(hub *h, hub_claim *c, err *e);
int hub_journal_write(hub *h, hub_file *f, err *e);
void hub_stop(hub *h, int rc, const err *e);
/* Ends one file; a required one ends everything. */
void hub_file_fail(hub *h, hub_file *f, int rc, const err *e);
/* Nothing of the file counts any more. */
void hub_file_discard_locked(hub *h, hub_file *f);
/* Opens the part and takes its space, once. */
int hub_file_open(hub *h, hub_file *f, err *e);
bool hub_is_finished_locked(const hub *h);

/* hub_load.c */
void *hub_load_main(void *worker);
/* hub_words.c: replies in words. */
int hub_words(hub *h, const hub_file *f, const hub_reply *r, bool is_far, err *e);
void hub_page_title(const hub_reply *r, char *out, size_t cap);
/* hub_hash.c */
void *hub_hash_main(void *hub);
/* hub_adopt.c: the next outside file that may be this one; mem_free, NULL when there is none. */
char *hub_candidate(const hub *h, hub_file *f);
/* hub_rate.c */
void hub_throttle(hub *h, size_t n);
void hub_count_bytes(hub *h, hub_file *f, size_t n);
void hub_rate_tick_locked(hub *h);
void hub_note_retry(hub *h, const char *reason);

#endif
