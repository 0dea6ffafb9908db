/* Preparation of a conversation (chat.md 4.1): tool results become parts of user turns and are put
 * in the order of the calls; old reasoning is dropped. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/chat_internal.h"

void conversation_release(conversation *c) {
    for (size_t i = 0; i < c->n_sources; i++)
        mem_free(c->sources[i].parts);
    for (size_t i = 0; i < c->n_messages; i++)
        mem_free(c->messages[i].blocks);
    mem_free(c->sources);
    mem_free(c->messages);
    *c = (conversation){0};
}

chat_source *conversation_add(conversation *c, chat_role role) {
    if (c->n_sources == c->sources_cap) {
        c->sources_cap = c->sources_cap < 16 ? 16 : c->sources_cap * 2;
        c->sources = mem_realloc(c->sources, c->sources_cap * sizeof *c->sources);
    }
    chat_source *s = &c->sources[c->n_sources++];
    *s = (chat_source){.role = role, .tool_call_id = ""};
    return s;
}

void source_add_part(chat_source *s, chat_part part) {
    if (s->n_parts == s->parts_cap) {
        s->parts_cap = s->parts_cap < 1 ? 1 : s->parts_cap * 2;
        s->parts = mem_realloc(s->parts, s->parts_cap * sizeof *s->parts);
    }
    s->parts[s->n_parts++] = part;
}

/* --- merging --- */

static chat_message *add_message(conversation *c, const chat_source *s, chat_role role) {
    if (c->n_messages == c->messages_cap) {
        c->messages_cap = c->messages_cap < 16 ? 16 : c->messages_cap * 2;
        c->messages = mem_realloc(c->messages, c->messages_cap * sizeof *c->messages);
    }
    chat_message *m = &c->messages[c->n_messages++];
    *m = (chat_message){.source = s, .role = role, .has_task = s->task != NULL};
    return m;
}

static void add_block(chat_message *m, const chat_source *s, bool is_result) {
    if (m->n_blocks == m->blocks_cap) {
        m->blocks_cap = m->blocks_cap < 2 ? 2 : m->blocks_cap * 2;
        m->blocks = mem_realloc(m->blocks, m->blocks_cap * sizeof *m->blocks);
    }
    m->blocks[m->n_blocks++] = (chat_block){s, is_result};
}

/* A message of the context is never merged with one after it: both lists are merged alone. */
static void merge(conversation *c, size_t from, size_t to) {
    size_t first = c->n_messages;
    for (size_t i = from; i < to; i++) {
        const chat_source *s = &c->sources[i];
        chat_message *last = c->n_messages > first ? &c->messages[c->n_messages - 1] : NULL;
        bool after_user = last != NULL && last->role == ROLE_USER;
        if (s->continues) {
            add_block(last, s, s->role == ROLE_TOOL);
        } else if (s->role == ROLE_TOOL) {
            if (!after_user) {
                last = add_message(c, s, ROLE_USER);
                last->has_task = false;
            }
            add_block(last, s, true);
        } else if (s->role == ROLE_USER) {
            if (!after_user || last->has_task) last = add_message(c, s, ROLE_USER);
            if (s->n_parts > 0) add_block(last, s, false);
        } else {
            (void)add_message(c, s, s->role);
        }
    }
}

/* --- order of results --- */

typedef struct ranked {
    const char *id;
    const chat_source *result;
    size_t rank, order;
} ranked;

static int by_id(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    int d = strcmp(x->id, y->id);
    return d != 0 ? d : (x->rank > y->rank) - (x->rank < y->rank);
}

static int by_rank(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Ids of the calls, sorted; of equal ids the last counts. */
static size_t list_calls(const json *calls, ranked **out) {
    ranked *list = mem_array(json_count(calls) + 1, sizeof *list);
    size_t n = 0, rank = 0;
    JSON_EACH(call, calls) {
        const char *id = json_str(json_get(call, "id"));
        if (id == NULL || id[0] == 0) id = json_str(json_get(json_get(call, "function"), "id"));
        if (id != NULL && id[0] != 0) list[n++] = (ranked){.id = id, .rank = rank};
        rank++;
    }
    if (n > 1) qsort(list, n, sizeof *list, by_id);
    *out = list;
    return n;
}

static size_t rank_of(const ranked *calls, size_t n, const char *id) {
    size_t low = 0, high = n; /* first entry above id */
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (strcmp(calls[mid].id, id) <= 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 && strcmp(calls[low - 1].id, id) == 0 ? calls[low - 1].rank : 0;
}

static void sort_results(chat_message *m, const ranked *calls, size_t n_calls) {
    ranked *results = mem_array(m->n_blocks + 1, sizeof *results);
    size_t n = 0;
    for (size_t i = 0; i < m->n_blocks; i++) {
        if (!m->blocks[i].is_result) continue;
        const chat_source *s = m->blocks[i].from;
        results[n] = (ranked){.result = s, .order = n};
        results[n].rank = rank_of(calls, n_calls, s->tool_call_id);
        n++;
    }
    if (n > 1) qsort(results, n, sizeof *results, by_rank);
    for (size_t i = 0, k = 0; i < m->n_blocks; i++) {
        if (m->blocks[i].is_result) m->blocks[i].from = results[k++].result;
    }
    mem_free(results);
}

static void order_results(conversation *c) {
    ranked *calls = NULL;
    size_t n_calls = 0;
    for (size_t i = 0; i < c->n_messages; i++) {
        chat_message *m = &c->messages[i];
        if (m->role == ROLE_ASSISTANT && json_count(m->source->tool_calls) > 0) {
            mem_free(calls);
            n_calls = list_calls(m->source->tool_calls, &calls);
        } else if (m->role == ROLE_USER && m->n_blocks > 1 && n_calls > 0) {
            sort_results(m, calls, n_calls);
        }
    }
    mem_free(calls);
}

/* --- dropping --- */

/* Last user message, or system message that is not the first, of n messages. n: none. */
static size_t last_user(const chat_message *m, size_t n) {
    for (size_t i = n; i-- > 0;) {
        if (m[i].role == ROLE_USER || (m[i].role == ROLE_SYSTEM && i > 0)) return i;
    }
    return n;
}

static bool stays(const chat_message *m, size_t i, size_t last) {
    return m->role != ROLE_OTHER || i >= last;
}

static void drop_old(conversation *c) {
    size_t context_last = last_user(c->messages, c->n_context);
    size_t dropped = 0;
    for (size_t i = 0; i < c->n_context; i++) {
        if (context_last < c->n_context && !stays(&c->messages[i], i, context_last)) dropped++;
    }
    size_t last = last_user(c->messages, c->n_messages), n = 0;
    bool has_last = last < c->n_messages;
    for (size_t i = 0; i < c->n_messages; i++) {
        chat_message *m = &c->messages[i];
        if (has_last && !stays(m, i, last)) {
            mem_free(m->blocks);
            continue;
        }
        if (has_last && i < last && m->role == ROLE_ASSISTANT) m->loses_reasoning = true;
        c->messages[n++] = *m;
    }
    c->n_messages = n;
    c->n_context -= dropped;
}

void conversation_prepare(conversation *c, size_t n_given) {
    merge(c, 0, n_given);
    c->n_context = c->n_messages;
    merge(c, n_given, c->n_sources);
    order_results(c);
    for (size_t i = 0; i < c->n_messages; i++) {
        const chat_source *s = c->messages[i].source;
        if (s->role != ROLE_TOOL && json_count(s->tools) > 0) c->drops_reasoning = false;
    }
    if (c->is_thinking && c->drops_reasoning) drop_old(c);
}
