#include "engine/api/replay.h"

#include <pthread.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

#define SLOTS 8192
#define BYTES_MAX ((size_t)64 << 20)
#define NONE (-1)

typedef struct entry {
    char *id, *name, *arguments, *text; /* owned; id NULL: free */
    size_t arguments_len, text_len;
    int next; /* of the same bucket */
} entry;

/* A ring of entries, oldest first, and a hash table of chains over it. */
struct replay {
    pthread_mutex_t lock;
    entry entries[SLOTS];
    int buckets[SLOTS];
    int oldest, n;
    size_t n_bytes;
};

static unsigned bucket_of(const char *id) {
    unsigned h = 2166136261u;
    for (; *id != '\0'; id++) {
        h = (h ^ (unsigned char)*id) * 16777619u;
    }
    return h % SLOTS;
}

replay *replay_new(void) {
    replay *r = mem_alloc(sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    for (int i = 0; i < SLOTS; i++) {
        r->buckets[i] = NONE;
    }
    return r;
}

static size_t size_of(const entry *x) {
    return strlen(x->id) + strlen(x->name) + x->arguments_len + x->text_len;
}

static void drop_oldest_locked(replay *r) {
    entry *x = &r->entries[r->oldest];
    int *link = &r->buckets[bucket_of(x->id)];
    while (*link != r->oldest) {
        link = &r->entries[*link].next;
    }
    *link = x->next;
    r->n_bytes -= size_of(x);
    mem_free(x->id);
    mem_free(x->name);
    mem_free(x->arguments);
    mem_free(x->text);
    *x = (entry){0};
    r->oldest = (r->oldest + 1) % SLOTS;
    r->n--;
}

void replay_free(replay *r) {
    if (r == NULL) return;
    while (r->n > 0) {
        drop_oldest_locked(r);
    }
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static entry *find_locked(replay *r, const char *id) {
    for (int i = r->buckets[bucket_of(id)]; i != NONE; i = r->entries[i].next) {
        if (strcmp(r->entries[i].id, id) == 0) return &r->entries[i];
    }
    return NULL;
}

void replay_keep(replay *r, const replay_call *call) {
    size_t size = strlen(call->id) + strlen(call->name) + call->arguments->len + call->len;
    if (size > BYTES_MAX / 4) return;
    pthread_mutex_lock(&r->lock);
    if (find_locked(r, call->id) == NULL) {
        while (r->n == SLOTS || (r->n > 0 && r->n_bytes + size > BYTES_MAX)) {
            drop_oldest_locked(r);
        }
        int at = (r->oldest + r->n) % SLOTS;
        unsigned bucket = bucket_of(call->id);
        r->entries[at] = (entry){.id = mem_strdup(call->id),
            .name = mem_strdup(call->name),
            .arguments = mem_strndup(buf_cstr(call->arguments), call->arguments->len),
            .arguments_len = call->arguments->len,
            .text = mem_strndup(call->text, call->len),
            .text_len = call->len,
            .next = r->buckets[bucket]};
        r->buckets[bucket] = at;
        r->n_bytes += size;
        r->n++;
    }
    pthread_mutex_unlock(&r->lock);
}

void replay_lock(replay *r) {
    pthread_mutex_lock(&r->lock);
}

void replay_unlock(replay *r) {
    pthread_mutex_unlock(&r->lock);
}

/* Arguments as printed anew, so that white space does not count. */
static bool print_arguments(const json *given, buf *out) {
    json *parsed = NULL;
    bool is_ok = true;
    if (json_is_string(given)) {
        buf text = BUF_INIT;
        is_ok = json_str_bytes(given, &text) == OK &&
                json_parse(buf_cstr(&text), text.len, NULL, &parsed, NULL) == OK;
        buf_release(&text);
        given = parsed;
    }
    if (is_ok && given != NULL) is_ok = json_print_compact(given, out) == OK;
    json_free(parsed);
    return is_ok;
}

static bool has_same_arguments(const entry *x, const json *given) {
    buf a = BUF_INIT;
    buf b = BUF_INIT;
    json *kept = NULL;
    bool is_same = json_is_string(given) && strcmp(json_str(given), x->arguments) == 0;
    if (!is_same && json_parse(x->arguments, x->arguments_len, NULL, &kept, NULL) == OK) {
        is_same = json_print_compact(kept, &a) == OK && print_arguments(given, &b) &&
                  a.len == b.len && memcmp(buf_cstr(&a), buf_cstr(&b), a.len) == 0;
    }
    json_free(kept);
    buf_release(&a);
    buf_release(&b);
    return is_same;
}

bool replay_find(void *ctx, const chat_call_view *call, const char **text, size_t *len) {
    replay *r = ctx;
    if (call->id == NULL) return false;
    const entry *x = find_locked(r, call->id);
    if (x == NULL || strcmp(x->name, call->name) != 0) return false;
    if (!has_same_arguments(x, call->arguments)) return false;
    *text = x->text;
    *len = x->text_len;
    return true;
}

bool replay_knows(replay *r, const char *id) {
    pthread_mutex_lock(&r->lock);
    bool is_known = find_locked(r, id) != NULL;
    pthread_mutex_unlock(&r->lock);
    return is_known;
}
