#include "engine/dist/figures.h"

#include <math.h>
#include <string.h>

void rank_figures_init(rank_figures *f) {
    memset(f, 0, sizeof *f);
    f->loaded = f->n_steps = f->step_ms = f->step_ms_p95 = -1.0;
    f->exchange_ms = f->exchange_wait_s = f->probe_us = -1.0;
    f->process_bytes = f->cpu_percent = f->pressure = -1.0;
    f->machine_used_bytes = f->machine_total_bytes = f->machine_available_bytes = -1.0;
    f->weight_bytes = f->cache_bytes = f->work_bytes = f->engram_bytes = -1.0;
    f->gpu_percent = f->gpu_mhz = f->gpu_watt = f->gpu_celsius = f->gpu_throttles = -1.0;
    f->engram_rows = f->engram_errors = -1.0;
}

void rank_figures_check(rank_figures *f) {
    double *const values[] = {&f->loaded, &f->n_steps, &f->step_ms, &f->step_ms_p95,
        &f->exchange_ms, &f->exchange_wait_s, &f->probe_us, &f->process_bytes, &f->cpu_percent,
        &f->machine_used_bytes, &f->machine_total_bytes, &f->machine_available_bytes, &f->pressure,
        &f->weight_bytes, &f->cache_bytes, &f->work_bytes, &f->engram_bytes, &f->gpu_percent,
        &f->gpu_mhz, &f->gpu_watt, &f->gpu_celsius, &f->gpu_throttles, &f->engram_rows,
        &f->engram_errors};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (!isfinite(*values[i])) *values[i] = -1.0;
    }
    if (f->phase < 0 || f->phase >= RANK_N_PHASES) f->phase = RANK_STARTING;
    if (f->n_rails < 0 || f->n_rails > FIGURES_RAILS) f->n_rails = 0;
    for (int i = 0; i < FIGURES_RAILS; i++) {
        f->rails[i].name[FIGURES_NAME - 1] = '\0';
        if (!isfinite(f->rails[i].bytes)) f->rails[i].bytes = -1.0;
    }
}

const char *rank_phase_name(int phase) {
    static const char *const names[RANK_N_PHASES] = {"starting", "meeting", "probing", "loading",
        "canary", "ready", "leaving", "failed", "stopped"};
    return phase >= 0 && phase < RANK_N_PHASES ? names[phase] : "starting";
}

double rank_phase_progress(int phase, double loaded) {
    /* Loading takes nearly all of a start. */
    static const double begins[RANK_N_PHASES] = {0.0, 0.01, 0.03, 0.04, 0.95, 1.0, 1.0, 0.0, 0.0};
    if (phase < 0 || phase >= RANK_N_PHASES) return 0.0;
    if (phase != RANK_LOADING || !(loaded > 0.0)) return begins[phase];
    double share = loaded < 1.0 ? loaded : 1.0;
    return begins[RANK_LOADING] + share * (begins[RANK_CANARY] - begins[RANK_LOADING]);
}
