/* The journal of what set-up changed on either machine, and the way back. One JSON line a change,
 * written and flushed before the change is made, so that a killed program leaves no change without a
 * line; a second line says that it was taken back. Undoing looks first: what was changed since by
 * somebody else is left alone and said. One thread at a time; any number of programs may append. */
#ifndef SETUP_UNDO_H
#define SETUP_UNDO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "setup/link.h"
#include "setup/node_access.h"

typedef enum undo_kind {
    UNDO_FILE,       /* a file of ours: path, digest of its text, before (NULL: was not there) */
    UNDO_LINE,       /* a line added to a file: path, text that only this line holds */
    UNDO_KNOWN_HOST, /* an entry of known hosts: path, text "HOST PORT TYPE KEY" */
    UNDO_NETPLAN,    /* a script on that machine that goes back: path */
    UNDO_SETTING,    /* a key of the settings file: path, text KEY, before (NULL: was not set) */
    UNDO_FOLDER,     /* a folder we made: taken away when only our marker is left in it */
    UNDO_DATA,       /* a folder of model files: taken away only when asked for */
    UNDO_COMMAND,    /* one of our own commands: text holds its words, separated by blanks */
    UNDO_KINDS
} undo_kind;

/* Texts are owned by the list. */
typedef struct undo_entry {
    int64_t id; /* 1, 2, ... */
    uint64_t time_ms;
    undo_kind kind;
    bool is_worker;
    bool is_undone;
    char *step; /* "trust" */
    char *what; /* one sentence: what was changed */
    char *path, *text;
    char *before;    /* may be NULL */
    char digest[65]; /* of what we wrote, "" unknown */
} undo_entry;

typedef struct undo_list {
    undo_entry *entries; /* oldest first */
    size_t n;
} undo_list;

/* STATE/setup/undo.jsonl */
int undo_journal_path(buf *out, err *e);
/* A missing journal is an empty one; a last line that was cut off is ignored. */
int undo_load(undo_list *l, const char *path, err *e);
void undo_list_release(undo_list *l);
/* Appends a change before it is made; x's texts are only read, its id is set. A change that stands
 * there already and is not undone (same kind, machine, path, text) is not written again. */
int undo_add(const char *path, undo_entry *x, err *e);
/* The digest of a text as undo_entry keeps it. */
void undo_digest(const void *data, size_t len, char out[65]);

typedef struct undo_with {
    const char *journal;
    node_access *node[2]; /* head, worker; NULL: not there */
    const char *missing;  /* why the worker is not there, may be NULL */
    const node_sudo *sudo;
    /* Runs one of our own commands; a code other than 0 is a failure. */
    int (*command)(void *ctx, const char *words, err *e);
    void *ctx;
    bool is_forced; /* also what was changed since */
} undo_with;

/* Takes one change back and writes that down. ERR_EXISTS: changed since by somebody else, left
 * alone; ERR_NET: its machine is not there. said gets one line for people. */
int undo_apply(const undo_entry *x, const undo_with *w, buf *said, err *e);
const char *undo_kind_name(undo_kind k);

#endif
