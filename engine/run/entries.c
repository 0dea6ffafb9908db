#include "engine/run/entries.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/run/run_internal.h"

#define ANSWER_MS 10000

struct entries_ask {
    bool is_wipe;
    int32_t n_gone;   /* marks that a wipe took */
    uint64_t n_wipes; /* of the disk, to wait for */
    run_entry *out;   /* NULL: drop id */
    int32_t cap, n;
    uint64_t id;
    bool is_on_disk;
    int rc;
    int done_fd; /* readable once it is answered */
};

static void list_entries(run *r, entries_ask *a) {
    prefix_view v;
    for (int32_t i = 0; r->prefixes != NULL && (i = prefix_next_mark(r->prefixes, i)) > 0;) {
        prefix_look(r->prefixes, i, &v);
        if (a->n++ >= a->cap) continue;
        bool is_whole = v.n_tokens == r->info.page_tokens;
        a->out[a->n - 1] = (run_entry){.id = v.serial,
            .n_tokens = v.depth * r->info.page_tokens + v.n_tokens,
            .is_on_disk = (is_whole ? v.mark_stored : v.stored) != 0};
    }
}

/* A node without a mark and its forefathers, as far as nobody else needs them. */
static void drop_chain(run *r, int32_t node) {
    prefix_view v;
    int32_t n = 0;
    prefix_look(r->prefixes, node, &v);
    disk_link *chain = mem_array((size_t)v.depth + 2, sizeof *chain);
    for (int32_t i = node; i != PREFIX_ROOT;) {
        prefix_look(r->prefixes, i, &v);
        int32_t parent = prefix_drop_spare(r->prefixes, i);
        if (parent < 0) break;
        bool is_page = v.n_tokens == r->info.page_tokens;
        if (is_page) chain[n++] = (disk_link){v.hash, v.stored != 0};
        prefix_look(r->prefixes, parent, &v);
        chain[n] = (disk_link){.hash = v.hash};
        i = parent;
    }
    if (r->disk != NULL) disk_forget_pages(r->disk, chain, n);
    mem_free(chain);
}

/* A state without its mark, and what came behind it and has no mark either. */
static void drop_pages(run *r, int32_t node) {
    prefix_view v;
    prefix_look(r->prefixes, node, &v);
    bool is_tail = v.n_tokens < r->info.page_tokens && v.parent != PREFIX_ROOT;
    int32_t base = is_tail ? v.parent : node;
    for (int32_t i = 0; (i = prefix_next_spare(r->prefixes, i, base)) > 0;) {
        drop_chain(r, i);
    }
}

static void drop_entry(run *r, entries_ask *a) {
    prefix_view v;
    a->rc = ERR_NOT_FOUND;
    for (int32_t i = 0; r->prefixes != NULL && (i = prefix_next_mark(r->prefixes, i)) > 0;) {
        prefix_look(r->prefixes, i, &v);
        if (v.serial != a->id) continue;
        a->is_on_disk = v.stored != 0 || v.mark_stored != 0;
        a->rc = OK;
        store_forget_mark(r, i);
        prefix_unmark(r->prefixes, i);
        drop_pages(r, i);
        return;
    }
}

static void wipe_entries(run *r, entries_ask *a) {
    if (r->prefixes == NULL) return;
    a->n_gone = prefix_clear(r->prefixes);
    list_entries(r, a); /* counts those that are left */
    if (r->disk != NULL) a->n_wipes = disk_wipe(r->disk);
}

bool run_has_entries_asked(run *r) {
    return atomic_load(&r->ask) != NULL;
}

void run_answer_entries(run *r) {
    entries_ask *a = atomic_exchange(&r->ask, NULL);
    uint64_t one = 1;
    if (a == NULL) return;
    if (a->is_wipe) {
        wipe_entries(r, a);
    } else if (a->out != NULL) {
        list_entries(r, a);
    } else {
        drop_entry(r, a);
    }
    ssize_t n = write(a->done_fd, &one, sizeof one);
    (void)n; /* an eventfd with room takes it; a is the caller's again from here */
}

static int ask(run *r, entries_ask *a, err *e) {
    a->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->done_fd < 0) return err_errno(e, "asking the step thread");
    pthread_mutex_lock(&r->ask_lock);
    struct pollfd p = {.fd = a->done_fd, .events = POLLIN};
    entries_ask *mine = a;
    atomic_store(&r->ask, a);
    run_wake(r);
    int found = poll(&p, 1, ANSWER_MS);
    /* Taken back, unless the step thread has it already: then its answer is near. */
    bool is_back = found <= 0 && atomic_compare_exchange_strong(&r->ask, &mine, NULL);
    if (found <= 0 && !is_back) {
        while (poll(&p, 1, -1) <= 0) {
        }
    }
    pthread_mutex_unlock(&r->ask_lock);
    uint64_t count;
    ssize_t n = read(a->done_fd, &count, sizeof count);
    (void)n; /* there is nothing to read when the question was taken back */
    close(a->done_fd);
    return is_back ? err_set(e, ERR_TIMEOUT, "the engine is busy with a long step") : a->rc;
}

int run_entries(run *r, run_entry *out, int32_t cap, int32_t *n, err *e) {
    entries_ask a = {.out = out, .cap = cap};
    int rc = ask(r, &a, e);
    *n = a.n;
    return rc;
}

int run_entries_wipe(run *r, run_wiped *out, err *e) {
    entries_ask a = {.is_wipe = true};
    disk_counts before = {0};
    if (r->disk != NULL) disk_count(r->disk, &before);
    int rc = ask(r, &a, e);
    *out = (run_wiped){a.n_gone, a.n, before.bytes};
    uint64_t end = clock_mono_ms() + ANSWER_MS;
    while (rc == OK && r->disk != NULL && disk_wiped(r->disk) < a.n_wipes) {
        if (clock_mono_ms() >= end)
            return err_set(
                e, ERR_TIMEOUT, "the disk takes long, and its files may be there still; ask again");
        sleep_ms(5);
    }
    return rc;
}

int run_entry_drop(run *r, uint64_t id, bool *was_on_disk, err *e) {
    entries_ask a = {.id = id};
    int rc = ask(r, &a, e);
    *was_on_disk = a.is_on_disk;
    return rc == ERR_NOT_FOUND ? err_set(e, rc, "no entry of this id is in the cache") : rc;
}
