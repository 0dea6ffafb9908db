#include "engine/base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

uint64_t clock_mono_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t clock_mono_ms(void) {
    return clock_mono_ns() / 1000000u;
}

uint64_t clock_thread_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

uint64_t clock_wall_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

void sleep_ms(uint64_t ms) {
    uint64_t until = clock_mono_ns() + ms * 1000000u;
    struct timespec t = {
        .tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

void clock_format_utc(uint64_t wall_ms, char out[32]) {
    time_t seconds = (time_t)(wall_ms / 1000u);
    struct tm tm;
    if (gmtime_r(&seconds, &tm) == NULL) seconds = 0;
    if (seconds == 0) (void)gmtime_r(&seconds, &tm);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(out + n, 32 - n, ".%03uZ", (unsigned)(wall_ms % 1000u));
}
