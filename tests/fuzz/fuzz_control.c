/* What a rank hears from the others: the first byte says whether the rest are the bytes of the
 * control connection, a list of calls with good heads, or heartbeats. Whatever comes ends in an
 * error or in the end of the engine; nothing waits, nothing is read or written outside. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/dist/pulse.h"
#include "engine/run/control.h"
#include "engine/run/control_wire.h"
#include "tests/harness/paged_toy.h"

enum { MAX_BYTES = 48 << 10, PULSE_WAIT_MS = 2000 };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static paged_toy *toy;
static exchange *alone;

static void open_once(void) {
    static const paged_toy_options o = {.n_slots = 3,
        .n_pages = 20,
        .page_tokens = 4,
        .max_rows = 12,
        .max_context = 64,
        .has_drafts = true};
    if (toy != NULL) return;
    toy = paged_toy_new(&o);
    CHECK(exchange_local_open(1, 1024, 100, &alone, NULL) == OK);
}

static void pair_with(const void *bytes, size_t n, int fd[2]) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0);
    CHECK(send(fd[0], bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
    shutdown(fd[0], SHUT_WR);
}

static void follow(const void *bytes, size_t n) {
    int fd[2];
    err e = ERR_INIT;
    pair_with(bytes, n, fd);
    control_follow_options o = {
        .source = paged_toy_source(toy), .exchange = alone, .fd = fd[1], .stop_fd = -1};
    int rc = control_follow(&o, &e);
    CHECK(rc == OK || (e.code == rc && e.msg[0] != '\0'));
    close(fd[0]);
    close(fd[1]);
}

/* Each item: kind, bytes behind the numbers (times 4), the numbers as bytes, then the rest. */
static void follow_calls(const unsigned char *data, size_t n) {
    static uint8_t out[MAX_BYTES];
    size_t at = 0, n_out = 0;
    uint64_t number = 0;
    while (at + 4 <= n) {
        uint32_t kind = data[at] % (CALL_SETTINGS + 1);
        size_t rest = data[at + 1] * 4u;
        int64_t numbers[2] = {(int8_t)data[at + 2], (int8_t)data[at + 3]};
        at += 4;
        if (rest > n - at) rest = n - at;
        call_head head = {CALL_MAGIC, kind, sizeof numbers + rest, ++number};
        if (n_out + sizeof head + sizeof numbers + rest > sizeof out) break;
        memcpy(out + n_out, &head, sizeof head);
        n_out += sizeof head;
        memcpy(out + n_out, numbers, sizeof numbers);
        n_out += sizeof numbers;
        memcpy(out + n_out, data + at, rest);
        n_out += rest;
        at += rest;
    }
    follow(out, n_out);
}

static void on_lost(void *ctx, int rank, const err *why) {
    CHECK(rank == 1 && why->code != OK && strlen(why->msg) < sizeof why->msg);
    atomic_fetch_add((_Atomic int *)ctx, 1);
}

static void on_bye(void *ctx, int rank) {
    CHECK(rank == 1);
    atomic_fetch_add((_Atomic int *)ctx, 1);
}

static void hear(const void *bytes, size_t n) {
    int fd[2], fds[2] = {-1, -1};
    _Atomic int n_ends = 0;
    pulse *p = NULL;
    rank_figures report;
    pair_with(bytes, n, fd);
    fds[1] = fd[1];
    pulse_options o = {
        .rank = 0, .world = 2, .fds = fds, .on_lost = on_lost, .on_bye = on_bye, .ctx = &n_ends};
    CHECK(pulse_open(&o, &p, NULL) == OK);
    for (int i = 0; i < PULSE_WAIT_MS * 10 && atomic_load(&n_ends) == 0; i++) {
        usleep(100);
    }
    (void)pulse_peer(p, 1, &report, NULL);
    pulse_close(p);
    CHECK(atomic_load(&n_ends) == 1);
    close(fd[0]);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    if (n == 0 || n > MAX_BYTES) return 0;
    open_once();
    switch (data[0] % 8) {
    case 0:
        follow(data + 1, n - 1);
        break;
    case 1:
        hear(data + 1, n - 1);
        break;
    default:
        follow_calls(data + 1, n - 1);
        break;
    }
    return 0;
}
