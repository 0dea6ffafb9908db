/* What a rank says about itself and its machine: plain data that travels as it is with the
 * heartbeats, is read by the metrics page, the stats stream and, through them, the dashboard.
 * Numbers below 0 are unknown, never 0. */
#ifndef TANDEM_ENGINE_DIST_FIGURES_H
#define TANDEM_ENGINE_DIST_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

/* A start goes through these in order; all before READY are parts of starting. */
typedef enum rank_phase {
    RANK_STARTING, /* options, files */
    RANK_MEETING,
    RANK_PROBING, /* the exchange */
    RANK_LOADING,
    RANK_CANARY,
    RANK_READY,
    RANK_LEAVING, /* asked to stop: replies end */
    RANK_FAILED,
    RANK_STOPPED,
    RANK_N_PHASES
} rank_phase;

enum { FIGURES_RAILS = 2, FIGURES_NAME = 24 };

/* Bytes that a link carried since it came up. */
typedef struct rank_rail {
    char name[FIGURES_NAME];
    int32_t is_rdma; /* else TCP of the exchange */
    int32_t reserved;
    double bytes;
} rank_rail;

typedef struct rank_figures {
    int32_t phase; /* rank_phase */
    int32_t pid;
    uint64_t layout;  /* of pages and snapshots; 0: not loaded yet */
    uint64_t time_ms; /* clock_wall_ms of the sample */
    double loaded;    /* share of the weights, 0 to 1 */
    double n_steps, step_ms, step_ms_p95;
    double exchange_ms, exchange_wait_s, probe_us; /* of a step; since the start; one round trip */
    double process_bytes, cpu_percent;
    double machine_used_bytes, machine_total_bytes, machine_available_bytes;
    double pressure;                                            /* memory, full avg10, percent */
    double weight_bytes, cache_bytes, work_bytes, engram_bytes; /* by the memory plan */
    double gpu_percent, gpu_mhz, gpu_watt, gpu_celsius;
    double gpu_throttles; /* 1: heat or power brake slows it down; 0: no */
    double engram_rows, engram_errors;
    int32_t n_rails, reserved;
    rank_rail rails[FIGURES_RAILS];
} rank_figures;

/* Everything unknown. */
void rank_figures_init(rank_figures *f);
/* What came from outside cannot harm its readers: counts and phases in range, names ended. */
void rank_figures_check(rank_figures *f);
/* "loading"; a constant. */
const char *rank_phase_name(int phase);
/* How far a start is, 0 to 1, by phase and the share of the weights that is loaded. */
double rank_phase_progress(int phase, double loaded);

#endif
