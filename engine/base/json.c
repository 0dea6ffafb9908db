#include "engine/base/json.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json_scan.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

/* Walks a tree in document order without recursion. */
typedef struct walk {
    cJSON *stack[JSON_MAX_DEPTH + 1];
    int depth;
} walk;

static cJSON *walk_next(walk *w, cJSON *v) {
    if (v->child != NULL) {
        CHECK(w->depth < JSON_MAX_DEPTH);
        w->stack[w->depth++] = v;
        return v->child;
    }
    while (v->next == NULL) {
        if (w->depth == 0) return NULL;
        v = w->stack[--w->depth];
    }
    /* The root has no parent on the stack and no sibling that counts. */
    return w->depth == 0 ? NULL : v->next;
}

/* A number node carries its digits in valuestring, which cJSON frees with the node. */
static int attach_numbers(cJSON *root, const buf *numbers) {
    walk w = {.depth = 0};
    size_t at = 0;
    for (cJSON *v = root; v != NULL; v = walk_next(&w, v)) {
        if ((v->type & 0xFF) != cJSON_Number) continue;
        CHECK(at < numbers->len);
        size_t n = strlen(numbers->data + at) + 1;
        v->valuestring = cJSON_malloc(n);
        if (v->valuestring == NULL) return ERR_MEMORY;
        memcpy(v->valuestring, numbers->data + at, n);
        at += n;
    }
    CHECK(at == numbers->len);
    return OK;
}

static uint64_t key_hash(const char *key) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *key != '\0'; key++)
        h = (h ^ (unsigned char)*key) * 0x100000001b3u;
    return h ^ h >> 29;
}

/* The later value takes the place of the earlier one. */
static void member_replace(cJSON *object, cJSON *first, cJSON *later) {
    (void)cJSON_DetachItemViaPointer(object, later);
    (void)cJSON_ReplaceItemViaPointer(object, first, later);
}

/* A table of n_slots (a power of two) member pointers, linear probing. */
static void drop_repeated_keys_in(cJSON *object, cJSON **slots, size_t n_slots) {
    cJSON *next;
    for (cJSON *v = object->child; v != NULL; v = next) {
        next = v->next;
        size_t i = (size_t)key_hash(v->string) & (n_slots - 1);
        while (slots[i] != NULL && strcmp(slots[i]->string, v->string) != 0) {
            i = (i + 1) & (n_slots - 1);
        }
        if (slots[i] != NULL) member_replace(object, slots[i], v);
        slots[i] = v;
    }
}

static int drop_repeated_keys(cJSON *root) {
    walk w = {.depth = 0};
    for (cJSON *v = root; v != NULL; v = walk_next(&w, v)) {
        if ((v->type & 0xFF) != cJSON_Object || v->child == NULL || v->child->next == NULL)
            continue;
        size_t n_slots = 16;
        size_t n = json_count(v);
        while (n_slots < 2 * n)
            n_slots *= 2;
        cJSON *small[16] = {NULL};
        cJSON **slots = n_slots == 16 ? small : mem_try_alloc(n_slots * sizeof *slots);
        if (slots == NULL) return ERR_MEMORY;
        drop_repeated_keys_in(v, slots, n_slots);
        if (slots != small) mem_free(slots);
    }
    return OK;
}

int json_parse(const char *text, size_t len, const json_limits *limits, json **out, err *e) {
    json_scan scan = {BUF_INIT, BUF_INIT};
    cJSON *root = NULL;
    *out = NULL;
    int rc = json_scan_text(text, len, limits, &scan, e);
    if (rc != OK) goto out;
    root = cJSON_ParseWithLength(buf_cstr(&scan.text), scan.text.len);
    rc = root == NULL ? ERR_MEMORY : attach_numbers(root, &scan.numbers);
    if (rc == OK) rc = drop_repeated_keys(root);
    if (rc != OK) {
        rc = err_set(e, rc, "no memory for JSON of %zu bytes", len);
        goto out;
    }
    *out = root;
    root = NULL;
out:
    cJSON_Delete(root);
    buf_release(&scan.text);
    buf_release(&scan.numbers);
    return rc;
}

int json_parse_file(const char *path, const json_limits *limits, json **out, err *e) {
    buf text = BUF_INIT;
    size_t max = limits == NULL || limits->max_bytes == 0 ? BUF_DEFAULT_MAX : limits->max_bytes;
    *out = NULL;
    int rc = file_read(path, &text, max, e);
    if (rc == OK) {
        rc = json_parse(buf_cstr(&text), text.len, limits, out, e);
        if (rc != OK) err_place(e, "%s", path);
        rc = err_add(e, rc, "%s", path);
    }
    buf_release(&text);
    return rc;
}

void json_free(json *v) {
    cJSON_Delete(v);
}

static int kind(const json *v) {
    return v == NULL ? cJSON_Invalid : v->type & 0xFF;
}

bool json_is_null(const json *v) {
    return kind(v) == cJSON_NULL;
}

bool json_is_bool(const json *v) {
    return (kind(v) & (cJSON_True | cJSON_False)) != 0;
}

bool json_is_true(const json *v) {
    return kind(v) == cJSON_True;
}

bool json_is_number(const json *v) {
    return kind(v) == cJSON_Number;
}

bool json_is_integer(const json *v) {
    return json_is_number(v) && strpbrk(v->valuestring, ".eE") == NULL;
}

bool json_is_string(const json *v) {
    return kind(v) == cJSON_String;
}

bool json_is_array(const json *v) {
    return kind(v) == cJSON_Array;
}

bool json_is_object(const json *v) {
    return kind(v) == cJSON_Object;
}

const char *json_kind(const json *v) {
    switch (kind(v)) {
    case cJSON_NULL:
        return "null";
    case cJSON_True:
    case cJSON_False:
        return "boolean";
    case cJSON_Number:
        return "number";
    case cJSON_String:
        return "string";
    case cJSON_Array:
        return "array";
    case cJSON_Object:
        return "object";
    default:
        return "nothing";
    }
}

const json *json_get(const json *v, const char *key) {
    if (!json_is_object(v)) return NULL;
    JSON_EACH(member, v) {
        if (strcmp(member->string, key) == 0) return member;
    }
    return NULL;
}

const json *json_at(const json *v, size_t i) {
    if (!json_is_array(v)) return NULL;
    JSON_EACH(item, v) {
        if (i-- == 0) return item;
    }
    return NULL;
}

size_t json_count(const json *v) {
    size_t n = 0;
    JSON_EACH(item, v) n++;
    return n;
}

const json *json_first(const json *v) {
    return json_is_array(v) || json_is_object(v) ? v->child : NULL;
}

const json *json_next(const json *v) {
    return v->next;
}

const char *json_key(const json *member) {
    return member == NULL ? NULL : member->string;
}

const char *json_str(const json *v) {
    return json_is_string(v) ? v->valuestring : NULL;
}

int json_str_bytes(const json *v, buf *out) {
    const char *s = json_str(v);
    if (s == NULL) return ERR_FORMAT;
    for (;;) {
        const char *nul = strstr(s, "\xC0\x80");
        int rc = buf_append(out, s, nul == NULL ? strlen(s) : (size_t)(nul - s));
        if (rc == OK && nul != NULL) rc = buf_putc(out, '\0');
        if (rc != OK || nul == NULL) return rc;
        s = nul + 2;
    }
}

int json_bool(const json *v, bool *out) {
    if (!json_is_bool(v)) return ERR_FORMAT;
    *out = json_is_true(v);
    return OK;
}

int json_i64(const json *v, int64_t *out) {
    return json_is_integer(v) ? parse_i64(v->valuestring, out) : ERR_FORMAT;
}

int json_u64(const json *v, uint64_t *out) {
    if (!json_is_integer(v)) return ERR_FORMAT;
    if (v->valuestring[0] != '-') return parse_u64(v->valuestring, out);
    if (strcmp(v->valuestring, "-0") != 0) return ERR_LIMIT;
    *out = 0;
    return OK;
}

int json_double(const json *v, double *out) {
    return json_is_number(v) ? parse_double(v->valuestring, out) : ERR_FORMAT;
}

const char *json_number_text(const json *v) {
    return json_is_number(v) ? v->valuestring : NULL;
}
