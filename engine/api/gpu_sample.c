#include "engine/api/gpu_sample.h"

#include <dlfcn.h>
#include <string.h>

#include "engine/base/mem.h"

enum { CLOCK_SM = 1, TEMPERATURE_GPU = 0 };
/* Heat and power brake; not the limits that a full load runs into by design. */
#define THROTTLE_REASONS (0x08ull | 0x20ull | 0x40ull | 0x80ull)

struct gpu_sampler {
    gpu_functions f;
    void *library, *device;
};

/* Puts the address of a symbol where a function pointer is kept. */
static bool find(void *library, const char *name, void *function) {
    void *p = dlsym(library, name);
    memcpy(function, &p, sizeof p);
    return p != NULL;
}

static bool load(gpu_sampler *s) {
    gpu_functions *f = &s->f;
    s->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    return s->library != NULL && find(s->library, "nvmlInit_v2", &f->init) &&
           find(s->library, "nvmlShutdown", &f->end) &&
           find(s->library, "nvmlDeviceGetHandleByIndex_v2", &f->device) &&
           find(s->library, "nvmlDeviceGetUtilizationRates", &f->use) &&
           find(s->library, "nvmlDeviceGetClockInfo", &f->clock) &&
           find(s->library, "nvmlDeviceGetPowerUsage", &f->power) &&
           find(s->library, "nvmlDeviceGetTemperature", &f->temperature) &&
           find(s->library, "nvmlDeviceGetCurrentClocksThrottleReasons", &f->throttle);
}

gpu_sampler *gpu_sampler_open(const gpu_functions *functions, unsigned index) {
    gpu_sampler *s = mem_alloc(sizeof *s);
    if (functions != NULL) s->f = *functions;
    bool is_there = (functions != NULL || load(s)) && s->f.init() == 0;
    if (is_there && s->f.device(index, &s->device) == 0) return s;
    if (is_there) (void)s->f.end();
    if (s->library != NULL) (void)dlclose(s->library);
    mem_free(s);
    return NULL;
}

void gpu_sampler_close(gpu_sampler *s) {
    if (s == NULL) return;
    (void)s->f.end();
    if (s->library != NULL) (void)dlclose(s->library);
    mem_free(s);
}

void gpu_sampler_take(gpu_sampler *s, rank_figures *out) {
    unsigned use[2], value = 0;
    unsigned long long reasons = 0;
    out->gpu_percent = out->gpu_mhz = out->gpu_watt = out->gpu_celsius = out->gpu_throttles = -1.0;
    if (s == NULL) return;
    if (s->f.use(s->device, use) == 0) out->gpu_percent = use[0];
    if (s->f.clock(s->device, CLOCK_SM, &value) == 0) out->gpu_mhz = value;
    if (s->f.power(s->device, &value) == 0) out->gpu_watt = value / 1e3;
    if (s->f.temperature(s->device, TEMPERATURE_GPU, &value) == 0) out->gpu_celsius = value;
    if (s->f.throttle(s->device, &reasons) == 0)
        out->gpu_throttles = (reasons & THROTTLE_REASONS) != 0 ? 1.0 : 0.0;
}
