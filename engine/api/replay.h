/* The exact texts of calls that replies have made, by call id: a client replays a call as a name
 * and a JSON object, from which neither white space nor the order of its tags comes back. With the
 * text kept, the same history gives the same tokens and hits the prefix cache. Bounded; the oldest
 * calls are forgotten. Threads: any; replay_find only between replay_lock and replay_unlock. */
#ifndef TANDEM_API_REPLAY_H
#define TANDEM_API_REPLAY_H

#include "engine/base/buf.h"
#include "engine/text/chat.h"

typedef struct replay replay;

typedef struct replay_call {
    const char *id, *name;
    const buf *arguments; /* as sent to the client */
    const char *text;     /* the call as the model wrote it */
    size_t len;
} replay_call;

replay *replay_new(void);
void replay_free(replay *r);
void replay_keep(replay *r, const replay_call *call);
void replay_lock(replay *r);
void replay_unlock(replay *r);
/* A chat_replay_fn; ctx is the store. Knows a call by its id, and gives its text only when name and
 * arguments are still the same ones (as JSON values). */
bool replay_find(void *ctx, const chat_call_view *call, const char **text, size_t *len);
/* Whether a call of this id is kept. */
bool replay_knows(replay *r, const char *id);

#endif
