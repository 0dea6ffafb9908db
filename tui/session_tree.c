/* The tree of turns in memory, and what only looks at it. */
#include "tui/session_internal.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"

static const char *const ROLE_NAMES[] = {"system", "user", "assistant", "tool"};
static const char *const STATE_NAMES[] = {
    "done", "writing", "stopped", "cut", "failed", "interrupted"};
enum { N_ROLES = 4, N_STATES = 6 };

const char *session_role_name(session_role r) {
    return ROLE_NAMES[r];
}

const char *session_state_name(session_state s) {
    return STATE_NAMES[s];
}

bool session_role_parse(const char *name, session_role *out) {
    for (int i = 0; i < N_ROLES; i++) {
        if (!str_eq(name, ROLE_NAMES[i])) continue;
        *out = (session_role)i;
        return true;
    }
    return false;
}

bool session_state_parse(const char *name, session_state *out) {
    for (int i = 0; i < N_STATES; i++) {
        if (!str_eq(name, STATE_NAMES[i])) continue;
        *out = (session_state)i;
        return true;
    }
    return false;
}

void turn_set(char **slot, const char *text) {
    char *copy = text != NULL && text[0] != '\0' ? mem_strdup(text) : NULL;
    mem_free(*slot);
    *slot = copy;
}

void turn_release(session_turn *t) {
    mem_free(t->text);
    mem_free(t->think);
    mem_free(t->tool_calls);
    mem_free(t->settings);
    mem_free(t->stats);
    mem_free(t->error);
    *t = (session_turn){0};
}

session_turn *tree_turn(session *s, int id) {
    return id >= 1 && id <= s->n_turns ? &s->turns[id - 1] : NULL;
}

static session_turn *tree_slot(session *s) {
    if (s->n_turns == s->cap_turns) {
        s->cap_turns = s->cap_turns > 0 ? 2 * s->cap_turns : 16;
        s->turns = mem_realloc(s->turns, (size_t)s->cap_turns * sizeof *s->turns);
    }
    session_turn *t = &s->turns[s->n_turns++];
    *t = (session_turn){.id = s->n_turns};
    return t;
}

/* A turn whose record was damaged: its place in the tree stays, its text is gone, and it says so. */
static void fill_gap(session *s, int up_to, session_role role_after) {
    while (s->n_turns < up_to) {
        session_turn *t = tree_slot(s);
        bool is_odd = (up_to - t->id) % 2 != 0;
        bool after_is_reply = role_after == SESSION_ASSISTANT;
        t->role = after_is_reply != is_odd ? SESSION_USER : SESSION_ASSISTANT;
        t->parent = t->id - 1;
        t->state = SESSION_INTERRUPTED;
        t->text = mem_strdup("(this turn was damaged on disk)");
    }
}

int tree_add(session *s, const session_turn *t, err *e) {
    if (t->id <= s->n_turns || t->id > SESSION_MAX_TURNS || t->parent < 0 || t->parent >= t->id) {
        return err_set(
            e, ERR_FORMAT, "turn %d with parent %d does not fit the session", t->id, t->parent);
    }
    fill_gap(s, t->id - 1, t->role);
    session_turn *own = tree_slot(s);
    *own = *t;
    own->text = mem_strdup(t->text != NULL ? t->text : "");
    own->think = own->tool_calls = own->settings = own->stats = own->error = NULL;
    turn_set(&own->think, t->think);
    turn_set(&own->tool_calls, t->tool_calls);
    turn_set(&own->settings, t->settings);
    turn_set(&own->stats, t->stats);
    turn_set(&own->error, t->error);
    s->head = own->id;
    return OK;
}

static void point_at_open(session *s) {
    session_turn *t = tree_turn(s, s->open_id);
    t->text = s->text.data;
    t->think = s->think.len > 0 ? s->think.data : NULL;
}

void tree_open_reply(session *s, int id) {
    session_turn *t = tree_turn(s, id);
    CHECK(t != NULL && s->open_id == 0);
    s->text = (buf)BUF_MAX(SESSION_MAX_BYTES);
    s->think = (buf)BUF_MAX(SESSION_MAX_BYTES);
    int rc = buf_puts(&s->text, t->text);
    if (rc == OK && t->think != NULL) rc = buf_puts(&s->think, t->think);
    if (rc == OK) rc = buf_reserve(&s->text, 1); /* so that data is a text even when empty */
    CHECK(rc == OK);
    mem_free(t->text);
    mem_free(t->think);
    turn_set(&t->error, NULL);
    s->open_id = id;
    s->text_written = s->text.len;
    s->think_written = s->think.len;
    t->state = SESSION_WRITING;
    point_at_open(s);
}

int tree_append(session *s, bool is_think, const char *text, size_t len, err *e) {
    int rc = buf_append(is_think ? &s->think : &s->text, text, len);
    if (rc != OK) return err_set(e, rc, "the reply is too long to keep");
    point_at_open(s);
    return OK;
}

void tree_close_reply(session *s, session_state state, const char *stats, const char *error) {
    session_turn *t = tree_turn(s, s->open_id);
    CHECK(t != NULL);
    t->text = buf_take(&s->text);
    bool has_think = s->think.len > 0;
    t->think = has_think ? buf_take(&s->think) : NULL;
    buf_release(&s->think);
    t->state = state;
    if (stats != NULL) turn_set(&t->stats, stats);
    turn_set(&t->error, error);
    s->open_id = 0;
}

void tree_set_title(session *s, const char *title) {
    char *copy = mem_strdup(title);
    mem_free(s->title);
    s->title = copy;
}

void tree_release(session *s) {
    if (s->open_id != 0) tree_close_reply(s, SESSION_INTERRUPTED, NULL, NULL);
    for (int i = 0; i < s->n_turns; i++)
        turn_release(&s->turns[i]);
    mem_free(s->turns);
    mem_free(s->title);
    mem_free(s->note);
    mem_free(s->dir);
}

/* Looking. */

const char *session_name(const session *s) {
    return s->name;
}

const char *session_title(const session *s) {
    return s->title != NULL ? s->title : "(new session)";
}

const char *session_note(const session *s) {
    return s->note;
}

int session_n_turns(const session *s) {
    return s->n_turns;
}

const session_turn *session_turn_at(const session *s, int id) {
    return id >= 1 && id <= s->n_turns ? &s->turns[id - 1] : NULL;
}

int session_head(const session *s) {
    return s->head;
}

int session_path(const session *s, int *ids, int cap) {
    int n = 0;
    for (int id = s->head; id > 0; id = s->turns[id - 1].parent)
        n++;
    int i = n;
    for (int id = s->head; id > 0; id = s->turns[id - 1].parent) {
        i--;
        if (i < cap) ids[i] = id;
    }
    return n;
}

int session_siblings(const session *s, int id, int *ids, int cap) {
    const session_turn *t = session_turn_at(s, id);
    int n = 0;
    for (int i = 0; t != NULL && i < s->n_turns; i++) {
        const session_turn *o = &s->turns[i];
        if (o->parent != t->parent || o->role != t->role) continue;
        if (n < cap) ids[n] = o->id;
        n++;
    }
    return n;
}

/* The largest id below a turn is a leaf, because children have larger ids than their parent. */
int session_leaf(const session *s, int id) {
    for (int leaf = s->n_turns; leaf > id; leaf--) {
        int up = leaf;
        while (up > id)
            up = s->turns[up - 1].parent;
        if (up == id) return leaf;
    }
    return id;
}
