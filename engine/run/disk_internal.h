/* Shared by the files of the disk cache. */
#ifndef TANDEM_RUN_DISK_INTERNAL_H
#define TANDEM_RUN_DISK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/base/buf.h"
#include "engine/base/ring.h"
#include "engine/run/disk.h"

#define DISK_SLOTS 8
#define DISK_GROUP 64 /* records that go to the manifest together at most */
#define DISK_SEGMENTS 256
/* Records on their way to being forgotten: more than the longest prefix has pages. */
#define DISK_FORGETS 16384
/* Of these places so many are for wipes and ends alone. */
#define DISK_WIPES 16
/* Records that may be given and not be in the index yet. */
#define DISK_NEWS 512
#define DISK_PENDING (DISK_GROUP + DISK_SLOTS + DISK_NEWS)
/* In a manifest, behind the line of a record: it counts no longer. Its type stands in `extra`. */
#define DISK_FORGOTTEN 4
#define DISK_PATH 4096

/* First bytes of a segment and of the manifest. Little endian, as every machine this runs on. */
typedef struct disk_head {
    char magic[8];
    uint32_t version, crc; /* of all bytes before crc and behind it */
    uint64_t number;       /* of the segment */
    uint8_t identity[DISK_IDENTITY_BYTES];
    uint64_t reserved;
} disk_head;

/* In front of each record, and one per record in the manifest of the segment. */
typedef struct disk_line {
    uint32_t magic, type;
    uint64_t segment, offset, len; /* of the content behind this head */
    prefix_hash self, parent;
    uint32_t n_tokens, content_crc;
    uint32_t extra; /* tokens of the sequence, for lists; 0: not known */
    uint32_t crc;   /* of all bytes before crc */
} disk_line;

typedef struct disk_entry {
    disk_line line; /* type 0: free */
    int32_t next;
    int32_t next_child; /* of a page: the next one in the bucket of its parent */
    uint32_t look;      /* number of the look that passed it */
    uint64_t serial;
} disk_entry;

/* Segments are named by their place here in entries' lookups; the step thread opens and closes
 * descriptors, the writer fills `bytes`. */
typedef struct disk_segment {
    _Atomic uint64_t number; /* 0: free */
    _Atomic uint64_t last_used_s;
    _Atomic uint64_t bytes, manifest_bytes;
    _Atomic uint64_t hole_bytes; /* of bytes: given back to the file system */
    _Atomic int fd;              /* -1: none */
    int32_t n_live, n_gone;      /* writer: lines of its manifest that count, and that do not */
} disk_segment;

enum { DISK_NEWS_SLOT, DISK_NEWS_ENTRY, DISK_NEWS_FAILED, DISK_NEWS_DROPPED };
typedef struct disk_news {
    int32_t kind, i_slot;
    disk_line line; /* DROPPED: segment */
} disk_news;

/* A record that was on its way to the disk when it was to be forgotten. */
typedef struct disk_doom {
    disk_name name;
    uint64_t number; /* it is among the first so many that were given; 0: none */
} disk_doom;

enum { DISK_JOB_FORGET = -1, DISK_JOB_WIPE = -2, DISK_JOB_TIDY = -3 };
typedef struct disk_job {
    int32_t i_slot; /* DISK_JOB_FORGET: the line; DISK_JOB_WIPE, DISK_JOB_TIDY */
    int32_t ends_group;
    disk_line line;
} disk_job;

struct disk_cache {
    disk_options o;
    char dir[DISK_PATH]; /* of this identity */
    uint8_t identity[DISK_IDENTITY_BYTES];
    int lock_fd;
    size_t tokens_bytes, slot_bytes;
    uint64_t segment_max;
    disk_segment segments[DISK_SEGMENTS];
    _Atomic int n_loading;

    /* Step thread. */
    disk_entry *entries; /* [entries_cap] */
    int32_t entries_cap, first_free;
    int32_t *buckets;
    int32_t *children; /* pages by their parents */
    uint32_t n_buckets;
    uint64_t n_serials;
    uint32_t n_looks;
    char *read_buffer; /* [sizeof(disk_line) + slot_bytes] */
    int32_t free_slots[DISK_SLOTS], n_free_slots;
    uint32_t epoch;
    uint64_t paused_until_ms;
    bool is_alone;      /* there is no writer yet, or no more */
    bool has_forgotten; /* since the last end */
    uint64_t n_given;   /* records, to the writer */
    uint64_t n_arrived; /* of these: in the index, or lost; n_settled of the last poll */
    disk_doom doomed[DISK_PENDING];

    /* Between. */
    char *slots; /* [DISK_SLOTS][sizeof(disk_line) + slot_bytes] */
    spsc *jobs, *news;
    pthread_t thread;
    _Atomic int is_closing;
    _Atomic int32_t n_forgets;  /* in jobs or at work, wipes and ends too */
    _Atomic int32_t n_doomed;   /* of doomed, in use */
    _Atomic int32_t n_left;     /* that were to go and are there still, as of the last tidying */
    _Atomic uint64_t n_settled; /* of those given: in the index, or lost */

    /* Writer. */
    uint64_t n_taken; /* of those given */
    int manifest_fd;  /* of the current segment */
    uint64_t next_number;
    int32_t i_current; /* segment being written; -1: none */
    disk_line group[DISK_GROUP];
    int32_t n_group;
    uint64_t group_ms;    /* when it began */
    uint64_t group_start; /* size of the current segment when the group began */
    bool has_failed;      /* the rest of the group is not written */
    uint64_t cleaned_s;
    buf left; /* disk_line: records of which nothing could be taken away yet */

    _Atomic uint64_t n_written, n_read, n_records, n_dropped, n_errors;
};

size_t disk_content_bytes(const disk_cache *d, const disk_line *line);
char *disk_slot(const disk_cache *d, int32_t i);
void disk_head_fill(const disk_cache *d, disk_head *h, const char *magic, uint64_t number);
bool disk_head_fits(const disk_cache *d, const disk_head *h, const char *magic, uint64_t number);
void disk_line_seal(disk_line *line);
bool disk_line_fits(const disk_cache *d, const disk_line *line);
void disk_manifest_path(const disk_cache *d, uint64_t number, buf *out);
void disk_segment_path(const disk_cache *d, uint64_t number, buf *out);
/* What it and its manifest take. */
uint64_t disk_segment_size(const disk_segment *s);
void disk_dropped(disk_cache *d, const char *why, const char *what);
/* Index of the step thread. False when it is full. */
bool disk_index_add(disk_cache *d, const disk_line *line);
/* The entry of the name, -1: none. */
int32_t disk_index_find(const disk_cache *d, const disk_name *name);
void disk_index_remove(disk_cache *d, int32_t i);
void disk_index_clear(disk_cache *d);
/* The page that ends in this hash, -1: none. */
int32_t disk_index_page(const disk_cache *d, const prefix_hash *self);
/* A page behind that hash, or the next one behind page i; -1: none. */
int32_t disk_index_child(const disk_cache *d, const prefix_hash *parent);
int32_t disk_index_sibling(const disk_cache *d, int32_t i);
/* A state or a page goes on from this hash. */
bool disk_index_needs(const disk_cache *d, const prefix_hash *self);

/* disk_forget.c: what came into the index; all before n_settled did or is lost. */
void disk_forget_doomed(disk_cache *d, const disk_line *line);
void disk_forget_settle(disk_cache *d, uint64_t n_settled);
/* True if the line takes a record away that was in the index. */
bool disk_forget_line(disk_cache *d, const disk_line *line);
/* When it is opened: pages that no state needs, as a killed process leaves them. */
void disk_forget_orphans(disk_cache *d);

/* disk_tidy.c: the writer's part of forgetting, or of disk_close when it has ended. What fails is tried
 * again by each disk_tidy. */
int disk_forget_now(disk_cache *d, const disk_line *line, err *e);
void disk_tidy(disk_cache *d);

/* disk_manifest.c */
void disk_segment_measure(disk_segment *s);
int disk_manifest_open(disk_cache *d, err *e);

/* disk_writer.c */
void *disk_writer(void *arg);
int disk_flush_group(disk_cache *d, err *e);
/* Nothing is written to the current segment any more. */
void disk_end_segment(disk_cache *d);
/* False: a file of it is there still. */
bool disk_drop_segment(disk_cache *d, int32_t i, const char *why);

#endif
