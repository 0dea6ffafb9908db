/* Readings of the GPU from NVIDIA's management library, which is loaded when it is there: the
 * program runs without it. Memory is not among them: on machines where the GPU shares the memory it
 * has none of its own, and the machine's own figures tell. One thread at a time. */
#ifndef TANDEM_API_GPU_SAMPLE_H
#define TANDEM_API_GPU_SAMPLE_H

#include "engine/dist/figures.h"

/* The functions of the library that are used; a test gives its own. 0 is success. */
typedef struct gpu_functions {
    int (*init)(void);
    int (*end)(void);
    int (*device)(unsigned index, void **device);
    int (*use)(void *device, unsigned percent[2]);       /* of the GPU, of its memory */
    int (*clock)(void *device, int kind, unsigned *mhz); /* kind 1: SM */
    int (*power)(void *device, unsigned *milliwatt);
    int (*temperature)(void *device, int kind, unsigned *celsius);
    int (*throttle)(void *device, unsigned long long *reasons);
} gpu_functions;

typedef struct gpu_sampler gpu_sampler;

/* NULL where there is no library or no such GPU. functions NULL: the library's. */
gpu_sampler *gpu_sampler_open(const gpu_functions *functions, unsigned index);
void gpu_sampler_close(gpu_sampler *s);
/* Fills the gpu_ fields; what cannot be read becomes unknown. s may be NULL. */
void gpu_sampler_take(gpu_sampler *s, rank_figures *out);

#endif
