#include "engine/run/entries.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/run/run_internal.h"

#define ANSWER_MS 10000
#define WAIT_STEP_MS 2

struct entries_ask {
    bool is_wipe;
    int32_t n_gone; /* marks that a wipe took */
    run_entry *out; /* NULL: drop id */
    int32_t cap, n;
    uint64_t id;
    bool is_on_disk; /* something was */
    int rc;
    int done_fd; /* readable once it is answered */
};

/* One row of numbers for what is in memory and what is on disk alone. */
static uint64_t id_in_memory(uint64_t serial) {
    return 2 * serial;
}

static uint64_t id_on_disk(uint64_t serial) {
    return 2 * serial + 1;
}

static void put_entry(entries_ask *a, run_entry entry) {
    if (a->n++ < a->cap) a->out[a->n - 1] = entry;
}

/* Those in memory, then those that lie on disk alone: of an earlier start, or given up in memory. */
static void list_entries(run *r, entries_ask *a) {
    prefix_view v;
    disk_state s;
    if (r->prefixes == NULL) return;
    if (r->disk != NULL) disk_look(r->disk);
    for (int32_t i = 0; (i = prefix_next_mark(r->prefixes, i)) > 0;) {
        prefix_look(r->prefixes, i, &v);
        put_entry(a, (run_entry){.id = id_in_memory(v.serial),
                         .n_tokens = v.depth * r->info.page_tokens + v.n_tokens,
                         .is_in_memory = true,
                         .is_on_disk = store_has_mark(r, i)});
    }
    for (int32_t i = -1; r->disk != NULL && (i = disk_next_state(r->disk, i, &s)) >= 0;) {
        put_entry(a,
            (run_entry){.id = id_on_disk(s.serial), .n_tokens = s.name.n_all, .is_on_disk = true});
    }
}

/* A node without a mark and its forefathers, as far as nobody else needs them. */
static void drop_chain(run *r, int32_t node, entries_ask *a) {
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
    if (r->disk != NULL) a->is_on_disk |= disk_forget_pages(r->disk, chain, n);
    mem_free(chain);
}

/* A state without its mark, and what came behind it and has no mark either. */
static void drop_pages(run *r, int32_t base, entries_ask *a) {
    for (int32_t i = 0; (i = prefix_next_spare(r->prefixes, i, base)) > 0;) {
        drop_chain(r, i, a);
    }
}

static void drop_mark(run *r, int32_t node, entries_ask *a) {
    prefix_view v;
    prefix_look(r->prefixes, node, &v);
    bool is_tail = v.n_tokens < r->info.page_tokens && v.parent != PREFIX_ROOT;
    a->rc = OK;
    a->is_on_disk = store_forget_mark(r, node);
    prefix_unmark(r->prefixes, node);
    drop_pages(r, is_tail ? v.parent : node, a);
}

/* What memory does not know goes page by page, up to what another state needs, or memory knows. */
static void drop_stored(run *r, const disk_name *name, entries_ask *a) {
    prefix_hash at = name->parent;
    int32_t node = 0;
    a->rc = OK;
    a->is_on_disk = disk_forget(r->disk, name, false);
    while ((at.a != 0 || at.b != 0) && node == 0) {
        node = prefix_node_of(r->prefixes, &at);
        if (node == 0 && !disk_forget_page(r->disk, &at, &at)) return;
    }
    if (node != 0) drop_pages(r, node, a);
}

/* The mark of an entry, also of one that was on disk alone when it was listed; 0: none. */
static int32_t find_mark(const run *r, uint64_t id, const disk_name *name) {
    prefix_view v;
    for (int32_t i = 0; (i = prefix_next_mark(r->prefixes, i)) > 0;) {
        prefix_look(r->prefixes, i, &v);
        if (id_in_memory(v.serial) == id) return i;
        if (name == NULL) continue;
        disk_name other = store_mark_name(r, i);
        if (other.type == name->type && other.n_tokens == name->n_tokens &&
            memcmp(&other.self, &name->self, sizeof other.self) == 0 &&
            memcmp(&other.parent, &name->parent, sizeof other.parent) == 0)
            return i;
    }
    return 0;
}

static void drop_entry(run *r, entries_ask *a) {
    disk_state s;
    int32_t at = -1;
    a->rc = ERR_NOT_FOUND;
    if (r->prefixes == NULL) return;
    if (r->disk != NULL && !disk_can_forget(r->disk, r->pages_cap + 2)) {
        a->rc = ERR_TIMEOUT;
        return;
    }
    if (r->disk != NULL) disk_look(r->disk);
    while (r->disk != NULL && (at = disk_next_state(r->disk, at, &s)) >= 0) {
        if (id_on_disk(s.serial) == a->id) break;
    }
    int32_t node = find_mark(r, a->id, at >= 0 ? &s.name : NULL);
    if (node > 0) {
        drop_mark(r, node, a);
    } else if (at >= 0) {
        drop_stored(r, &s.name, a);
    }
    if (r->disk != NULL) disk_forget_end(r->disk);
}

static void wipe_entries(run *r, entries_ask *a) {
    if (r->prefixes == NULL) return;
    a->n_gone = prefix_clear(r->prefixes);
    if (r->disk != NULL && !disk_wipe(r->disk)) a->rc = ERR_TIMEOUT;
    list_entries(r, a); /* counts those that are left */
}

bool run_has_entries_asked(run *r) {
    return atomic_load(&r->ask) != NULL;
}

void run_answer_entries(run *r) {
    entries_ask *a = atomic_exchange(&r->ask, NULL);
    uint64_t one = 1;
    if (a == NULL) return;
    if (r->disk != NULL) disk_poll(r->disk);
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

/* Until what is forgotten is gone from the disk, too. */
static int wait_for_disk(run *r, err *e) {
    uint64_t end = clock_mono_ms() + ANSWER_MS;
    while (r->disk != NULL && !disk_is_quiet(r->disk)) {
        if (clock_mono_ms() >= end)
            return err_set(e, ERR_TIMEOUT,
                "the disk takes long, and what was forgotten may be there still; ask again");
        sleep_ms(WAIT_STEP_MS);
    }
    int32_t n_left = r->disk != NULL ? disk_left(r->disk) : 0;
    if (n_left == 0) return OK;
    return err_set(e, ERR_IO,
        "the disk refuses: %d records that were forgotten are on it still, and a restart may bring "
        "them back; the log tells why; mend the disk and ask again",
        n_left);
}

static int busy(err *e) {
    return err_set(e, ERR_TIMEOUT, "the disk is behind with what was forgotten before; ask again");
}

int run_entries_wipe(run *r, run_wiped *out, err *e) {
    entries_ask a = {.is_wipe = true};
    disk_counts before = {0};
    if (r->disk != NULL) disk_count(r->disk, &before);
    int rc = ask(r, &a, e);
    *out = (run_wiped){a.n_gone, a.n, before.bytes};
    if (rc == ERR_TIMEOUT && a.rc == ERR_TIMEOUT) return busy(e);
    return rc == OK ? wait_for_disk(r, e) : rc;
}

int run_entry_drop(run *r, uint64_t id, bool *was_on_disk, err *e) {
    entries_ask a = {.id = id};
    int rc = ask(r, &a, e);
    *was_on_disk = a.is_on_disk;
    if (rc == ERR_TIMEOUT && a.rc == ERR_TIMEOUT) return busy(e);
    if (rc != OK && rc != ERR_NOT_FOUND) return rc;
    int waited = wait_for_disk(r, e); /* also when it is asked for again */
    if (waited != OK || rc == OK) return waited;
    return err_set(e, rc, "no entry of this id is in the cache");
}
