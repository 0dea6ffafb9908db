/* What every kind of exchange for devices has in common: a control exchange behind it, shown by a kind of
 * which only the host's part works. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/dist/exchange_internal.h"

/* Longer than any test may take: who waits so long was not woken. */
enum { WAIT_MS = 3600000, LOOK_MS = 120000 };

static int host_gather(exchange *x, const void *mine, size_t bytes, void *all, err *e) {
    return x->control->ops->gather(x->control, mine, bytes, all, e);
}

static void close_both(exchange *x) {
    exchange_close(x->control);
    exchange_release(x);
    mem_free(x);
}

/* Rank 0 of two; the other's end is a plain socket. */
static exchange *open_device(int *other_fd) {
    static const exchange_ops ops = {.gather = host_gather, .close = close_both};
    int pair[2], fds[EXCHANGE_MAX_WORLD];
    exchange *x = mem_alloc(sizeof(*x));
    err e = ERR_INIT;
    for (int i = 0; i < EXCHANGE_MAX_WORLD; i++) {
        fds[i] = -1;
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    fds[1] = pair[0];
    *other_fd = pair[1];
    exchange_tcp_options o = {.rank = 0, .world = 2, .timeout_ms = WAIT_MS};
    assert_int_equal(exchange_init(x, &ops, (int[2]){0, 2}, 0, &e), OK);
    assert_int_equal(exchange_tcp_adopt(&o, fds, &x->control, &e), OK);
    return x;
}

typedef struct asking {
    exchange *x;
    int rc;
    err why;
} asking;

static void *ask(void *arg) {
    asking *a = arg;
    a->rc = exchange_check(a->x, 7, "a plan", &a->why);
    return NULL;
}

/* The other rank stands still with its connection open: the step thread waits for its answer on the
 * host, where no device can wake it. */
static void an_abort_ends_the_wait_on_the_host(void **state) {
    (void)state;
    int fd;
    pthread_t t;
    char piece[64];
    err lost = ERR_INIT;
    asking a = {.x = open_device(&fd)};
    ssize_t n = 1;
    assert_int_equal(pthread_create(&t, NULL, ask, &a), 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, LOOK_MS), 1); /* its question is there: it waits, or soon will */
    err_set(&lost, ERR_PEER, "rank 1 is silent");
    exchange_abort(a.x, &lost);
    while (n > 0) { /* to the end of the connection, which only the abort brings */
        assert_int_equal(poll(&p, 1, LOOK_MS), 1);
        n = read(fd, piece, sizeof piece);
    }
    assert_int_equal(n, 0);
    pthread_join(t, NULL);
    assert_int_equal(a.rc, ERR_PEER);
    assert_string_equal(a.why.msg, "rank 1 is silent");
    assert_int_equal(exchange_check(a.x, 8, "a plan", &a.why), ERR_PEER);
    close(fd);
    exchange_close(a.x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_abort_ends_the_wait_on_the_host)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
