/* Shared by the session files only: the tree in memory and the journal on disk. */
#ifndef TUI_SESSION_INTERNAL_H
#define TUI_SESSION_INTERNAL_H

#include "engine/base/json.h"
#include "tui/session.h"
#include "tui/session_sync.h"

/* First 8 bytes of a journal, a blank, the version. */
#define JOURNAL_MAGIC "TNDMSESS"
#define JOURNAL_VERSION 1
#define JOURNAL_ENDING ".journal"
/* "LENGTH CRC32C " in front of the JSON of a record. */
#define JOURNAL_PREFIX 18

enum {
    SESSION_MAX_TURNS = 1 << 20,
    SESSION_MAX_BYTES = 256 << 20,
    SESSION_WRITE_MS = 1000,       /* most time an unwritten piece of a reply waits */
    SESSION_WRITE_BYTES = 64 << 10 /* and most bytes */
};

struct session {
    char *dir;
    char name[SESSION_NAME_BYTES];
    char *title; /* NULL: none yet */
    char *note;
    int fd;             /* -1: read only, or not on disk yet */
    session_sync *sync; /* made by the first flush */
    bool is_read_only;
    uint64_t end; /* length of the good part of the file */
    int64_t created_ms;
    session_turn *turns; /* turn id is at id - 1 */
    int n_turns, cap_turns, head;
    /* The open reply: its texts live in these buffers, the turn borrows them. */
    int open_id; /* 0: none */
    buf text, think;
    size_t text_written, think_written;
    int64_t written_ms;
    bool is_changed; /* tool calls of the open reply are not on disk yet */
};

/* The tree (session_tree.c). No disk. */

/* Adds a copy of t; its id must be the next one (gaps of a damaged file are filled before). */
int tree_add(session *s, const session_turn *t, err *e);
void tree_open_reply(session *s, int id);
int tree_append(session *s, bool is_think, const char *text, size_t len, err *e);
void tree_close_reply(session *s, session_state state, const char *stats, const char *error);
void tree_set_title(session *s, const char *title);
void tree_release(session *s);
session_turn *tree_turn(session *s, int id);
bool session_role_parse(const char *name, session_role *out);
bool session_state_parse(const char *name, session_state *out);
/* Copies a text into *slot (NULL and "" clear it). */
void turn_set(char **slot, const char *text);

/* Records (session_record.c). */

/* Writes a turn's fields into the open object; has_text false leaves the texts out. */
void record_put_turn(json_w *w, const session_turn *t);
/* Reads them back. Texts are owned by the caller (turn_release). */
int record_read_turn(const json *v, session_turn *t, err *e);
void turn_release(session_turn *t);
/* Applies one record of a journal to the tree. */
int record_apply(session *s, const json *v, err *e);

/* The file (session_journal.c). */

/* Appends one record; the first one makes the file. With sync its flush begins; session_close waits
 * for it and session_tick tells its failure. On failure the file is as it was before. */
int journal_append(session *s, const buf *record, bool sync, err *e);
/* Reads a journal into the tree. With repair the damaged tail is cut and kept aside. */
int journal_load(session *s, const char *path, bool repair, err *e);
/* One line of a journal at text[0..len): its JSON, or NULL when it is damaged. *used is the length
 * of the line with its line break. */
const char *journal_line(const char *text, size_t len, size_t *json_len, size_t *used);
/* Checks the first line. OK, ERR_FORMAT or ERR_UNSUPPORTED; *used as above. */
int journal_head(const char *text, size_t len, size_t *used, err *e);
void journal_path(buf *out, const char *dir, const char *name);
int journal_lock(int fd, err *e);
bool journal_is_locked(int fd);

#endif
