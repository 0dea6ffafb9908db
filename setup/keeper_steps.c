/* The states of a keeper. Both keepers run the same steps; only the head decides about a new start. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/secret.h"
#include "engine/base/str.h"
#include "setup/keeper_internal.h"

enum {
    CODE_USAGE = 2,
    CODE_REFUSED = 20,
    CODE_PEER = 40,
    CODE_TOLD = 143,      /* told to end before it was ready */
    OTHER_ENDS_MS = 4000, /* a rank sees the other's end by itself; after this it is told */
    TERM_TO_KILL_MS = 10000,
    STOP_EXTRA_MS = 5000,
    ROTATE_LOOK_MS = 60000,
    BACKOFF_MS = 1000,
    BACKOFF_MAX_MS = 60000
};

static void say_state(keeper *k) {
    keeper_message m = {.word = KEEPER_WORD_STATE,
        .state = k->state,
        .generation = k->generation,
        .code = k->last_code,
        .is_hang = k->is_hang};
    str_copy(m.text, sizeof m.text, k->last_error);
    keeper_link_say(k->link, &m);
}

static void say_word(keeper *k, keeper_word word, const char *text) {
    keeper_message m = {.word = word, .state = k->state, .generation = k->generation};
    str_copy(m.text, sizeof m.text, text != NULL ? text : "");
    keeper_link_say(k->link, &m);
}

static void enter(keeper *k, keeper_state s) {
    if (k->state != s)
        LOG(LOG_INFO, "keeper", "state", "state=%s generation=%d", keeper_state_name(s),
            k->generation);
    k->state = s;
    k->since_ms = clock_wall_ms();
    k->state_ms = clock_mono_ms();
    if (s == KEEPER_READY) k->ready_wall_ms = k->since_ms;
    keeper_state_write(k);
    say_state(k);
}

/* The first error of a start is kept; later ones often only follow from it. */
static void note_error(keeper *k, int code, const char *text) {
    str_copy(k->last_error, sizeof k->last_error, text);
    k->last_code = code;
    k->last_end_ms = clock_wall_ms();
    if (k->first_error_ms != 0) return;
    str_copy(k->first_error, sizeof k->first_error, text);
    k->first_code = code;
    k->first_error_ms = k->last_end_ms;
}

static void close_parts(keeper *k) {
    keeper_link_close(k->link);
    k->link = NULL;
    keeper_guard_free(k->guard);
    k->guard = NULL;
    explicit_bzero(k->order.secret, sizeof k->order.secret);
    if (k->holds_secret) secret_drop();
    k->holds_secret = false;
    k->idle_from_ms = clock_mono_ms();
}

/* The end of this start. The rank has ended before. */
static void fail_for_good(keeper *k, const char *why) {
    str_copy(k->reason, sizeof k->reason, why);
    LOG(LOG_ERROR, "keeper", "failed", "message=\"%s\"", why);
    say_word(k, KEEPER_WORD_FAIL, why);
    enter(k, KEEPER_FAILED);
    close_parts(k);
}

static void stop_for_good(keeper *k) {
    k->reason[0] = '\0';
    enter(k, KEEPER_STOPPED);
    close_parts(k);
}

static const char *own_name(const keeper *k) {
    return k->order.rank == 0 ? "head" : "worker";
}

static const char *other_name(const keeper *k) {
    return k->order.rank == 0 ? "worker" : "head";
}

bool keeper_is_over(const keeper *k) {
    return k->state == KEEPER_IDLE || k->state == KEEPER_FAILED || k->state == KEEPER_STOPPED;
}

static bool has_rank(const keeper *k) {
    return k->rank.pid != 0;
}

/* ---- ending the rank ---- */

static void end_rank(keeper *k) {
    if (!has_rank(k)) return;
    if (k->state == KEEPER_ENDING) return;
    keeper_rank_signal(&k->rank, SIGTERM);
    k->end_asked_ms = clock_mono_ms();
    enter(k, KEEPER_ENDING);
}

static void keep_stacks(keeper *k) {
    buf text = BUF_INIT, path = BUF_INIT;
    keeper_rank_stacks(&k->rank, &text);
    buf_puts(&path, k->rank.log_path);
    if (path.len > 4) buf_truncate(&path, path.len - 4);
    buf_puts(&path, ".stacks");
    err e = ERR_INIT;
    if (text.len > 0 && file_write_atomic(buf_cstr(&path), text.data, text.len, 0600, &e) != OK)
        LOG(LOG_WARN, "keeper", "stacks not written", "message=\"%s\"", e.msg);
    buf_release(&text);
    buf_release(&path);
}

static void end_hung(keeper *k, const char *why) {
    k->is_hang = true;
    keep_stacks(k);
    note_error(k, CODE_PEER, why);
    /* What hangs may not hear a polite word. */
    keeper_rank_signal(&k->rank, SIGTERM);
    k->end_asked_ms = clock_mono_ms();
    enter(k, KEEPER_ENDING);
}

void keeper_ask_stop(keeper *k) {
    if (!k->wants_stop) say_word(k, KEEPER_WORD_STOP, NULL);
    k->wants_stop = true;
    k->go_at_ms = 0;
    if (k->end_asked_ms == 0) k->end_asked_ms = clock_mono_ms();
    if (keeper_is_over(k)) return;
    if (!has_rank(k)) {
        stop_for_good(k);
        return;
    }
    /* Rank 0 lets replies end and takes rank 1 along; alone, a rank is told itself. */
    if (k->order.rank == 0 || !keeper_link_is_up(k->link)) end_rank(k);
}

/* ---- messages ---- */

static void take_message(keeper *k, const keeper_message *m) {
    switch (m->word) {
    case KEEPER_WORD_STATE:
        k->peer_state = m->state;
        k->peer_generation = m->generation;
        k->peer_code = m->code;
        if (m->text[0] != '\0') str_copy(k->peer_reason, sizeof k->peer_reason, m->text);
        if (m->is_hang && has_rank(k) && !k->is_hang) keep_stacks(k);
        return;
    case KEEPER_WORD_GO:
        if (k->order.rank == 0 || k->state != KEEPER_DOWN) return;
        k->generation = m->generation;
        k->go_at_ms = clock_mono_ms();
        return;
    case KEEPER_WORD_STOP:
        keeper_ask_stop(k);
        return;
    case KEEPER_WORD_FAIL:
        str_copy(k->reason, sizeof k->reason, m->text);
        if (!has_rank(k)) {
            enter(k, KEEPER_FAILED);
            close_parts(k);
        } else {
            end_rank(k);
        }
        return;
    default:
        return;
    }
}

/* ---- the connection ---- */

static void open_link(keeper *k) {
    keeper_link_close(k->link);
    k->link = keeper_link_open(&k->order, k->wake_fd);
    k->peer_state = KEEPER_IDLE;
    k->link_deadline_ms = 0;
}

/* The other keeper is gone. A start that was never ready is over; a pair that served waits for it to
 * come back, without a rank. */
static void link_lost(keeper *k, const err *why) {
    char text[640];
    if (k->wants_stop) {
        keeper_link_close(k->link);
        k->link = NULL;
        if (has_rank(k)) end_rank(k);
        return;
    }
    bool has_met = k->link_deadline_ms != 0;
    snprintf(text, sizeof text,
        has_met ? "the %s lost the keeper of the %s: %.400s"
                : "the keepers of the two machines did not meet (%s looked for the %s): %.400s",
        own_name(k), other_name(k), why->msg);
    note_error(k, CODE_PEER, text);
    keeper_link_close(k->link);
    k->link = NULL;
    k->peer_state = KEEPER_IDLE;
    if (has_rank(k)) {
        end_rank(k);
    } else if (!has_met || !k->was_ready) {
        fail_for_good(k, text);
    } else {
        /* Between two starts: wait for the other one again, then the head decides anew. */
        k->go_at_ms = 0;
        enter(k, KEEPER_DOWN);
        open_link(k);
    }
}

static void watch_link(keeper *k) {
    err why = ERR_INIT;
    keeper_message m;
    while (keeper_link_take(k->link, &m))
        take_message(k, &m);
    if (k->link != NULL && keeper_link_has_failed(k->link, &why)) {
        link_lost(k, &why);
        return;
    }
    if (keeper_link_is_up(k->link) && k->link_deadline_ms == 0) {
        k->link_deadline_ms = clock_mono_ms();
        say_state(k);
    }
}

/* ---- the rank ---- */

static void rank_ended(keeper *k) {
    char why[640] = "";
    keeper_rank *r = &k->rank;
    r->has_ended = false;
    keeper_rank_reason(r, why, sizeof why);
    LOG(LOG_WARN, "keeper", "rank ended", "rank=%d code=%d message=\"%s\"", k->order.rank, r->code,
        why);
    if (k->is_hang || k->state == KEEPER_ENDING) {
        /* Ended by us: its own last words say nothing new. */
        if (k->last_end_ms == 0 || !k->is_hang) k->last_code = r->code;
        bool is_told = r->code == 0 || r->code == CODE_TOLD || k->wants_stop;
        if (k->first_error_ms == 0 && !is_told) note_error(k, r->code, why);
    } else if (r->code == 0) {
        k->last_code = 0;
        k->last_error[0] = '\0';
    } else {
        note_error(k, r->code, why);
    }
    if (k->wants_stop) {
        stop_for_good(k);
    } else if (k->reason[0] != '\0') {
        fail_for_good(k, k->reason);
    } else {
        enter(k, KEEPER_DOWN);
        if (k->link == NULL && k->was_ready) open_link(k);
    }
}

static bool is_refusal(int code) {
    return code == CODE_USAGE || code == CODE_REFUSED;
}

/* Both errors in one sentence, the cause first: a rank that only lost the other comes second. */
static void both_reasons(const keeper *k, char *out, size_t cap) {
    bool is_other_first =
        k->last_code == CODE_PEER || k->last_code == CODE_TOLD || k->last_code == 0;
    const char *own = k->last_error[0] != '\0' ? k->last_error : "ended with the other";
    const char *other = k->peer_reason[0] != '\0' ? k->peer_reason : "ended with the other";
    int own_rank = k->order.rank, other_rank = 1 - own_rank;
    if (is_other_first && k->peer_code != 0) {
        snprintf(out, cap, "rank %d (%s): %.280s; rank %d (%s): %.280s", other_rank, other_name(k),
            other, own_rank, own_name(k), own);
    } else {
        snprintf(out, cap, "rank %d (%s): %.280s; rank %d (%s): %.280s", own_rank, own_name(k), own,
            other_rank, other_name(k), other);
    }
}

/* One more start within six hours? */
static bool take_restart(keeper *k) {
    uint64_t now = clock_wall_ms();
    int kept = 0;
    for (int i = 0; i < k->n_restarts; i++) {
        if (now - k->restarts_wall_ms[i] < KEEPER_WINDOW_MS)
            k->restarts_wall_ms[kept++] = k->restarts_wall_ms[i];
    }
    k->n_restarts = kept;
    if (kept >= k->order.restarts || kept >= KEEPER_RESTARTS_MAX) return false;
    k->restarts_wall_ms[k->n_restarts++] = now;
    return true;
}

/* Head, both ranks down: again, or over? */
static void decide(keeper *k) {
    char why[640];
    both_reasons(k, why, sizeof why);
    if (k->last_code == 0 && k->peer_code == 0 && k->was_ready && k->last_error[0] == '\0') {
        k->wants_stop = true; /* somebody ended the engine through its own door */
        say_word(k, KEEPER_WORD_STOP, NULL);
        stop_for_good(k);
        return;
    }
    if (!k->was_ready || is_refusal(k->last_code) || is_refusal(k->peer_code)) {
        fail_for_good(k, why);
        return;
    }
    if (!take_restart(k)) {
        char text[640];
        snprintf(text, sizeof text,
            "%lld new starts within six hours are used up, so it stays down; the last end: %.480s",
            (long long)k->order.restarts, why);
        fail_for_good(k, text);
        return;
    }
    uint64_t wait_ms = (uint64_t)BACKOFF_MS << (k->n_restarts < 6 ? k->n_restarts - 1 : 6);
    if (wait_ms > BACKOFF_MAX_MS) wait_ms = BACKOFF_MAX_MS;
    LOG(LOG_WARN, "keeper", "starts again", "try=%d wait_ms=%llu message=\"%s\"", k->n_restarts,
        (unsigned long long)wait_ms, why);
    k->go_at_ms = clock_mono_ms() + wait_ms;
}

/* ---- the states ---- */

static void step_linking(keeper *k) {
    if (!keeper_link_is_up(k->link)) return;
    k->gate_deadline_ms = 0;
    enter(k, KEEPER_PREPARING);
}

static void step_preparing(keeper *k) {
    uint64_t now = clock_mono_ms(), need = (uint64_t)k->order.gate_mib << 20;
    if (k->gate_deadline_ms == 0) {
        k->gate_deadline_ms = now + (uint64_t)k->order.gate_s * 1000;
        keeper_evict(k->order.evict_dir);
    }
    uint64_t there = keeper_available();
    if (need == 0 || there >= need) {
        enter(k, KEEPER_PREPARED);
        return;
    }
    if (now < k->gate_deadline_ms) return;
    char why[320];
    snprintf(why, sizeof why,
        "the %s has %llu MiB of memory available and needs %lld before loading; close other "
        "programs (tandem check M1), or restart that machine if nothing is listed",
        own_name(k), (unsigned long long)(there >> 20), (long long)k->order.gate_mib);
    note_error(k, CODE_REFUSED, why);
    fail_for_good(k, why);
}

static void step_prepared(keeper *k) {
    bool is_other_there = k->peer_generation == k->generation &&
                          (k->peer_state == KEEPER_PREPARED || k->peer_state == KEEPER_LOADING ||
                              k->peer_state == KEEPER_READY);
    if (!is_other_there || !keeper_link_is_up(k->link)) return;
    err e = ERR_INIT;
    k->is_hang = false;
    k->end_asked_ms = 0;
    if (keeper_rank_start(&k->rank, &k->order, k->generation, &e) == OK) {
        enter(k, KEEPER_LOADING);
        return;
    }
    note_error(k, CODE_REFUSED, e.msg);
    if (has_rank(k)) {
        str_copy(k->reason, sizeof k->reason, e.msg);
        end_rank(k);
    } else {
        fail_for_good(k, e.msg);
    }
}

/* True when the other side's rank of this start has gone and ours should follow. */
static bool is_other_down(const keeper *k) {
    return k->peer_generation == k->generation &&
           (k->peer_state == KEEPER_DOWN || k->peer_state == KEEPER_FAILED ||
               k->peer_state == KEEPER_ENDING);
}

static void follow_other(keeper *k) {
    uint64_t now = clock_mono_ms();
    if (!is_other_down(k)) {
        if (!k->wants_stop) k->end_asked_ms = 0;
        return;
    }
    if (k->end_asked_ms == 0) k->end_asked_ms = now;
    uint64_t wait =
        k->wants_stop ? (uint64_t)k->order.stop_s * 1000 + STOP_EXTRA_MS : OTHER_ENDS_MS;
    if (now - k->end_asked_ms >= wait) end_rank(k);
}

static void step_loading(keeper *k) {
    uint64_t now = clock_mono_ms();
    char why[320];
    if (k->rank.is_ready) {
        enter(k, KEEPER_READY);
        return;
    }
    if (now - k->rank.moved_ms >= (uint64_t)k->order.hang_s * 1000) {
        snprintf(why, sizeof why,
            "rank %d on the %s made no progress for %lld s in phase %s; what its threads waited in "
            "is in the .stacks file beside its log",
            k->order.rank, own_name(k), (long long)k->order.hang_s,
            k->rank.phase[0] != '\0' ? k->rank.phase : "start");
        end_hung(k, why);
        return;
    }
    if (now - k->rank.started_ms >= (uint64_t)k->order.ready_s * 1000) {
        snprintf(why, sizeof why, "rank %d on the %s was not ready within %lld s (phase %s)",
            k->order.rank, own_name(k), (long long)k->order.ready_s, k->rank.phase);
        end_hung(k, why);
        return;
    }
    follow_other(k);
}

static void step_ready(keeper *k) {
    char why[640];
    if (k->peer_state == KEEPER_READY && k->peer_generation == k->generation && !k->was_ready) {
        k->was_ready = true; /* both: only now is it a pair that may be started again */
        keeper_state_write(k);
    }
    if (clock_mono_ms() - k->rotated_ms >= ROTATE_LOOK_MS) {
        k->rotated_ms = clock_mono_ms();
        keeper_logs_rotate(k->rank.log_path);
    }
    if (k->guard == NULL && k->order.guard_mib > 0)
        k->guard = keeper_guard_new(k->order.guard_mib, k->order.guard_s);
    if (k->guard != NULL && keeper_guard_look(k->guard, why, sizeof why)) {
        snprintf(k->reason, sizeof k->reason, "the %s stopped the pair: %.560s", own_name(k), why);
        note_error(k, CODE_REFUSED, k->reason);
        say_word(k, KEEPER_WORD_FAIL, k->reason);
        end_rank(k);
        return;
    }
    if (k->wants_stop && k->order.rank == 1) {
        uint64_t limit = (uint64_t)k->order.stop_s * 1000 + STOP_EXTRA_MS;
        if (clock_mono_ms() - k->end_asked_ms >= limit) end_rank(k);
        return;
    }
    follow_other(k);
}

static void step_ending(keeper *k) {
    uint64_t wait = TERM_TO_KILL_MS;
    if (k->wants_stop) wait += (uint64_t)k->order.stop_s * 1000;
    if (clock_mono_ms() - k->end_asked_ms >= wait) keeper_rank_signal(&k->rank, SIGKILL);
}

static void step_down(keeper *k) {
    uint64_t now = clock_mono_ms();
    if (k->go_at_ms != 0) {
        if (now < k->go_at_ms) return;
        k->go_at_ms = 0;
        if (k->order.rank == 0) {
            k->generation++;
            say_word(k, KEEPER_WORD_GO, NULL);
        }
        k->gate_deadline_ms = 0;
        k->peer_reason[0] = '\0';
        enter(k, KEEPER_PREPARING);
        return;
    }
    if (k->link == NULL) {
        fail_for_good(k, k->last_error);
        return;
    }
    /* A word of ours may have been lost with the connection: then the other is one start behind. */
    bool is_other_there = k->peer_state == KEEPER_DOWN && k->peer_generation <= k->generation;
    if (k->order.rank == 0 && is_other_there && keeper_link_is_up(k->link)) decide(k);
}

void keeper_step(keeper *k) {
    if (keeper_is_over(k)) return;
    watch_link(k);
    if (keeper_is_over(k)) return;
    if (keeper_rank_look(&k->rank)) {
        if (k->rank.has_ended) {
            rank_ended(k);
        } else {
            keeper_state_write(k);
        }
    }
    static void (*const steps[KEEPER_STATES])(keeper *) = {[KEEPER_LINKING] = step_linking,
        [KEEPER_PREPARING] = step_preparing,
        [KEEPER_PREPARED] = step_prepared,
        [KEEPER_LOADING] = step_loading,
        [KEEPER_READY] = step_ready,
        [KEEPER_ENDING] = step_ending,
        [KEEPER_DOWN] = step_down};
    if (steps[k->state] != NULL) steps[k->state](k);
}

int keeper_take_order(keeper *k, keeper_order *o, err *e) {
    if (!keeper_is_over(k))
        return err_set(e, ERR_BUSY, "the keeper has a start in hand (%s, start id %016llx)",
            keeper_state_name(k->state), (unsigned long long)k->order.start_id);
    keeper_order_release(&k->order);
    k->order = *o;
    keeper_order_init(o);
    k->has_order = true;
    k->wants_stop = k->was_ready = k->is_hang = false;
    k->rank = (keeper_rank){0};
    k->generation = k->peer_generation = k->peer_code = k->n_restarts = 0;
    k->last_code = -1;
    k->first_code = 0;
    k->first_error_ms = k->last_end_ms = k->ready_wall_ms = 0;
    k->end_asked_ms = k->go_at_ms = k->gate_deadline_ms = 0;
    k->reason[0] = k->first_error[0] = k->last_error[0] = k->peer_reason[0] = '\0';
    k->ordered_ms = clock_mono_ms();
    if (!k->holds_secret) secret_hold();
    k->holds_secret = true;
    open_link(k);
    enter(k, KEEPER_LINKING);
    return OK;
}
