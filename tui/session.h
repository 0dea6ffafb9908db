/* Chat sessions on disk: a tree of turns in an append-only journal, one file per session under
 * $XDG_STATE_HOME/tandem/sessions. One thread owns an open session; one process at a time may have
 * it open for writing (lock on the file), any number may read it.
 *
 * The file starts with a line of magic and version; every record is one line
 * "LENGTH CRC32C JSON" (both numbers 8 hex digits). A turn is in the file before the function that
 * adds it returns, so what is shown as sent outlives this program; a thread of the session flushes
 * it to the disk at once ("synced"), so that nobody waits for a disk. A reply is written as it
 * streams: session_reply_append keeps the text, session_tick writes it at most once a second,
 * session_flush at once. A reply without its end record was interrupted; its text up to the last
 * write is kept. A damaged tail is cut when the session is opened for writing and kept beside it
 * under NAME.damaged-TIME; damaged lines in the middle are skipped; session_note says what was
 * found. */
#ifndef TUI_SESSION_H
#define TUI_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

#define SESSION_TITLE_CHARS 60
#define SESSION_NAME_BYTES 64

typedef struct session session;

typedef enum session_role {
    SESSION_SYSTEM,
    SESSION_USER,
    SESSION_ASSISTANT,
    SESSION_TOOL
} session_role;

typedef enum session_state {
    SESSION_DONE,       /* complete */
    SESSION_WRITING,    /* a reply of this process, still open */
    SESSION_STOPPED,    /* the user stopped it */
    SESSION_CUT,        /* ended by the length limit */
    SESSION_FAILED,     /* the engine or the connection ended; error says why */
    SESSION_INTERRUPTED /* found without an end: a program died while it was written */
} session_state;

/* One node of the tree. Ids start at 1 and grow by 1; parent 0 is the root. All text is owned by the
 * session and valid until the next call that changes it. Optional texts are NULL when absent. */
typedef struct session_turn {
    int id, parent;
    session_role role;
    session_state state;
    char *text; /* never NULL */
    char *think;
    char *tool_calls; /* JSON array */
    char *settings;   /* JSON object: what was asked for */
    char *stats;      /* JSON object: counts and times of the reply */
    char *error;      /* SESSION_FAILED: the sentence */
    int64_t time_ms;  /* wall clock, when it was added */
} session_turn;

/* One row of the list. */
typedef struct session_info {
    char name[SESSION_NAME_BYTES]; /* file name without ending: the stable id */
    char title[4 * SESSION_TITLE_CHARS + 4];
    int64_t created_ms, changed_ms;
    int n_turns; /* questions; a question and its reply are one turn for people */
    int n_branches;
    bool is_damaged, is_locked; /* locked: open for writing in some process */
} session_info;

/* Name of a role or a state as it is written and printed. */
const char *session_role_name(session_role r);
const char *session_state_name(session_state s);

/* Puts the folder of the sessions into out and makes it (mode 0700). */
int session_dir(buf *out, err *e);

/* Lists the sessions of a folder, newest change first. The caller frees the rows with mem_free.
 * A file that cannot be read at all is a row with is_damaged and no turns. */
int session_list(const char *dir, session_info **rows, int *n_rows, err *e);

/* Finds a session by name, by the start of its name, or by title (whole, or a start that only one
 * has). ERR_NOT_FOUND, or ERR_ARG naming the candidates when it is ambiguous. */
int session_find(const char *dir, const char *wanted, char name[SESSION_NAME_BYTES], err *e);

/* Makes a session. Its file appears with the first record, so an unused session leaves nothing. */
int session_new(const char *dir, session **out, err *e);
/* Opens by exact name. ERR_BUSY when another process has it open for writing. */
int session_open(const char *dir, const char *name, session **out, err *e);
/* Opens for reading only: no lock, no repair; functions that write return ERR_ARG. */
int session_open_read(const char *dir, const char *name, session **out, err *e);
/* Flushes what is unwritten, leaves an open reply as it is, unlocks and frees. NULL is allowed. */
void session_close(session *s);

const char *session_name(const session *s);
const char *session_title(const session *s);
/* What was repaired or skipped when it was opened, or NULL. */
const char *session_note(const session *s);

/* Messages of all roles and branches; their ids are 1 to this. */
int session_n_turns(const session *s);
const session_turn *session_turn_at(const session *s, int id); /* NULL when there is none */
int session_head(const session *s);                            /* 0 when empty */
/* Ids from the root to the head. Returns how many there are; at most cap are stored. */
int session_path(const session *s, int *ids, int cap);
/* Siblings of a turn (children of its parent with the same role), oldest first, itself included. */
int session_siblings(const session *s, int id, int *ids, int cap);
/* Newest leaf under a turn: where switching to that branch puts the head. */
int session_leaf(const session *s, int id);

/* Adds a finished turn under the head (or under parent when >= 0) and moves the head to it. Synced.
 * The first user turn gives the title. */
int session_add(session *s, session_role role, const char *text, int parent, int *id, err *e);
/* Begins a reply under the head. settings: JSON object or NULL. Synced. */
int session_reply_begin(session *s, const char *settings, int *id, err *e);
/* Goes on with a stopped, cut, failed or interrupted reply at the head: it is open again. */
int session_reply_reopen(session *s, int id, err *e);
/* Adds text to the open reply, in memory. NULL for what has none. */
int session_reply_append(session *s, const char *text, size_t len, bool is_think, err *e);
/* Sets the tool calls of the open reply (JSON array). */
int session_reply_tool_calls(session *s, const char *json, err *e);
/* Ends the open reply; stats and error may be NULL. Synced. */
int session_reply_end(
    session *s, session_state state, const char *stats, const char *error, err *e);

/* Writes unwritten reply text if a second has passed since the last write; cheap otherwise. Tells
 * once when a flush since the last call has failed. Never waits for the disk. */
int session_tick(session *s, int64_t now_ms, err *e);
int session_flush(session *s, err *e);

/* Moves the head (undo, branch); 0 is before the first turn. Nothing is deleted. */
int session_set_head(session *s, int id, err *e);
int session_rename(session *s, const char *title, err *e);
/* Copies the path to the head into a new session. */
int session_fork(session *s, const char *dir, session **out, err *e);

/* Deletes a session's file and its damaged leftovers. ERR_BUSY while it is open elsewhere. */
int session_delete(const char *dir, const char *name, err *e);

typedef enum session_format { SESSION_MD, SESSION_JSON, SESSION_TXT } session_format;
/* md and txt: the path to the head. json: the whole tree, lossless. */
int session_export(const session *s, session_format format, buf *out, err *e);
/* Makes a session from a JSON export. */
int session_import(const char *dir, const char *json_text, size_t len, session **out, err *e);

/* The unsent text of the input line, kept in one small file per session name ("" = none open yet).
 * save writes atomically, an empty text removes it. */
int session_draft_save(const char *dir, const char *name, const char *text, size_t len, err *e);
int session_draft_load(const char *dir, const char *name, buf *out, err *e);

#endif
