/* Files of the disk cache: a good segment with its manifest, changed by the input as a list of edits
 * (which file, where, what), lines sealed anew when it says so, so that what stands behind the checksums
 * is reached. Whatever is found there: nothing is read outside, and a record whose tokens are the right
 * ones holds the right bytes. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/disk_internal.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { PAGE = 8, PAGE_BYTES = 96, SNAPSHOT_BYTES = 40, N_PAGES = 5, FILE_MAX = 8192 };

typedef struct image {
    char name[400];
    unsigned char bytes[FILE_MAX];
    size_t n;
} image;

static char top[64], folder[300];
static image files[2]; /* segment, manifest */

static void no_wake(void *ctx) {
    (void)ctx;
}

static disk_cache *open_cache(void) {
    disk_cache *d = NULL;
    disk_options o = {.dir = top,
        .budget_bytes = 1 << 20,
        .page_tokens = PAGE,
        .page_bytes = PAGE_BYTES,
        .snapshot_bytes = SNAPSHOT_BYTES,
        .wake = no_wake};
    return disk_open(&o, &d, NULL) == OK ? d : NULL;
}

/* Token i of page k, byte i of its content or of the state behind it. */
static int32_t token_of(int k, int i) {
    return (int32_t)(rand_keyed(1, (uint64_t)k, (uint64_t)i) % 1000);
}

static unsigned char byte_of(int k, int kind, int i) {
    return (unsigned char)rand_keyed(2 + (uint64_t)kind, (uint64_t)k, (uint64_t)i);
}

/* Pages 0 .. N_PAGES - 1 after each other; behind each its state; a tail of three tokens at the end. */
static disk_name name_of(int k, int32_t type) {
    static const uint8_t salt[PREFIX_SALT_BYTES];
    prefix_hash h = {0};
    prefix_hash parent = {0};
    int32_t tokens[PAGE];
    for (int i = 0; i <= k; i++) {
        int32_t n = type == DISK_TAIL && i == k ? 3 : PAGE;
        for (int t = 0; t < n; t++) {
            tokens[t] = token_of(i, t);
        }
        parent = h;
        h = prefix_hash_of(&parent, salt, tokens, n);
    }
    if (type == DISK_MARK) return (disk_name){DISK_MARK, 0, h, h, 0};
    return (disk_name){type, type == DISK_TAIL ? 3 : PAGE, h, parent, 0};
}

static void put(disk_cache *d, int k, int32_t type) {
    disk_place place;
    disk_name name = name_of(k, type);
    for (int i = 0; i < 2000 && !disk_take_place(d, type, &place); i++) {
        usleep(500);
        disk_poll(d);
    }
    for (int i = 0; i < name.n_tokens; i++) {
        place.tokens[i] = token_of(k, i);
    }
    for (int i = 0; place.page != NULL && i < PAGE_BYTES; i++) {
        ((unsigned char *)place.page)[i] = byte_of(k, 0, i);
    }
    for (int i = 0; place.snapshot != NULL && i < SNAPSHOT_BYTES; i++) {
        ((unsigned char *)place.snapshot)[i] = byte_of(k, 1, i);
    }
    disk_give(d, &place, &name, true);
}

static int keep_file(void *ctx, const char *name, err *e) {
    buf b = BUF_INIT;
    (void)ctx;
    (void)e;
    int i = strncmp(name, "segment-", 8) == 0 ? 0 : strncmp(name, "manifest-", 9) == 0 ? 1 : -1;
    if (i < 0) return OK;
    snprintf(files[i].name, sizeof files[i].name, "%s/%.80s", folder, name);
    if (file_read(files[i].name, &b, FILE_MAX, NULL) == OK) {
        files[i].n = b.len;
        memcpy(files[i].bytes, b.data, b.len);
    }
    buf_release(&b);
    return OK;
}

static void remove_top(void) {
    (void)dir_remove_all(top, NULL);
}

static void make_good_files(void) {
    log_open(&(log_options){.fd = -1, .level = LOG_ERROR});
    snprintf(top, sizeof top, "/tmp/tandem-fuzz-disk-XXXXXX");
    CHECK(mkdtemp(top) != NULL);
    atexit(remove_top);
    disk_cache *d = open_cache();
    CHECK(d != NULL);
    for (int k = 0; k < N_PAGES; k++) {
        put(d, k, DISK_PAGE);
        put(d, k, DISK_MARK);
    }
    put(d, N_PAGES, DISK_TAIL);
    snprintf(folder, sizeof folder, "%s", d->dir);
    disk_close(d);
    CHECK(dir_each(folder, keep_file, NULL, NULL) == OK);
    CHECK(files[0].n > sizeof(disk_head) && files[1].n > sizeof(disk_head));
}

/* Lines of the manifest whose magic still stands get right checksums, as a careless writer's would. */
static void seal(image *manifest) {
    disk_line line;
    for (size_t at = sizeof(disk_head); at + sizeof line <= manifest->n; at += sizeof line) {
        memcpy(&line, manifest->bytes + at, sizeof line);
        disk_line_seal(&line);
        memcpy(manifest->bytes + at, &line, sizeof line);
    }
}

static void write_files(const image *changed) {
    for (int i = 0; i < 2; i++) {
        int fd = open(changed[i].name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        CHECK(fd >= 0 && write(fd, changed[i].bytes, changed[i].n) == (ssize_t)changed[i].n);
        close(fd);
    }
}

static void check_record(disk_cache *d, int k, int32_t type) {
    disk_name name = name_of(k, type);
    disk_record record;
    err e = ERR_INIT;
    if (disk_read(d, &name, &record, &e) != OK) {
        CHECK(!disk_has(d, &name));
        return;
    }
    for (int i = 0; i < name.n_tokens; i++) {
        if (record.tokens[i] != token_of(k, i)) return; /* whoever asks compares them */
    }
    for (int i = 0; type != DISK_MARK && i < PAGE_BYTES; i++) {
        CHECK(((const unsigned char *)record.page)[i] == byte_of(k, 0, i));
    }
    /* A state has no tokens of its own: its bytes are only known to be some that were written. */
    CHECK(type == DISK_PAGE || record.snapshot != NULL);
}

static bool count_tail(void *ctx, const disk_name *name) {
    *(int *)ctx += name->n_tokens;
    return true;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    static image changed[2];
    if (top[0] == '\0') make_good_files();
    memcpy(changed, files, sizeof changed);
    for (; n >= 4; data += 4, n -= 4) {
        image *f = &changed[data[0] & 1];
        size_t at = ((size_t)data[1] << 8 | data[2]) % (f->n + 1);
        if (data[0] & 2) {
            f->n = at; /* cut */
        } else if (at < f->n) {
            f->bytes[at] = data[0] & 4 ? (unsigned char)(f->bytes[at] ^ data[3]) : data[3];
        }
        if (data[0] & 8) seal(&changed[1]);
    }
    write_files(changed);
    disk_cache *d = open_cache();
    CHECK(d != NULL);
    for (int k = 0; k < N_PAGES; k++) {
        check_record(d, k, DISK_PAGE);
        check_record(d, k, DISK_MARK);
    }
    check_record(d, N_PAGES, DISK_TAIL);
    int n_tail = 0;
    disk_name last = name_of(N_PAGES - 1, DISK_PAGE);
    disk_each_tail(d, &last.self, count_tail, &n_tail);
    CHECK(n_tail >= 0 && n_tail <= PAGE * 16);
    disk_close(d);
    return 0;
}
