/* What a reply has said so far, as a list of items in order: thinking, text, calls. Kept for whole
 * answers of every protocol and for streams whose end repeats the items. Plain data, one thread.
 * {0} is empty; items_release. */
#ifndef TANDEM_API_ITEMS_H
#define TANDEM_API_ITEMS_H

#include <stdbool.h>

#include "engine/api/generation.h"

typedef enum item_kind { ITEM_REASONING, ITEM_TEXT, ITEM_CALL } item_kind;

typedef struct item {
    item_kind kind;
    buf text;     /* of a call: its arguments */
    buf name;     /* of a call */
    buf logprobs; /* of a text: JSON objects, comma separated, where the protocol keeps them here */
    char call_id[64];
    int i_call;
    char id[64];     /* set by protocols that name their items */
    bool is_dropped; /* a call that must not be used */
    bool is_ended;   /* a call that is complete */
} item;

typedef struct items {
    item *list;
    int n, cap;
} items;

void items_release(items *l);
/* Adds what an event says. Returns the item it belongs to, NULL for events without text; *is_new
 * when the event has begun it. The pointer is good until the next call. */
item *items_take(items *l, const gen_event *event, bool *is_new);
/* False for a call that was cut or turned out broken: its text must not be half used. */
bool item_is_whole(const item *it);
/* Calls that began, those that were cut or turned out broken too: a stream has shown them. */
int items_calls(const items *l);
/* The texts of all items of a kind joined. */
void items_join(const items *l, item_kind kind, buf *out);

#endif
