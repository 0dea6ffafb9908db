/*
 * An EXL3 matrix as one run of bytes in the order a back end's kernels read, so that it can be
 * written to a file once and used later where it was read to, without another copy:
 *
 *   cpu-1   [packed lanes, or fp16 values for codebooks other than mul1 | suh f32 | svh f32 | bias f32]
 *   gpu-1   [words of exl3_kernel_order.h | suh fp16 | svh fp16 | bias fp16]     mul1 only
 *
 * Each part begins at a multiple of EXL3_IMAGE_ALIGN from the start of the run and is padded with
 * zeros; bias is there only when has_bias. Little-endian. A change of the bytes gets a new name, so
 * that no file of the old form is taken for the new one. Plain host code without state; any thread.
 */
#ifndef KERNELS_EXL3_EXL3_IMAGE_H
#define KERNELS_EXL3_EXL3_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/exl3/exl3.h"

enum { EXL3_IMAGE_ALIGN = 256 };

typedef enum exl3_layout { EXL3_LAYOUT_CPU, EXL3_LAYOUT_GPU, EXL3_N_LAYOUTS } exl3_layout;

/* What the bytes are. Plain data. */
typedef struct exl3_image {
    exl3_layout layout;
    int in, out, k2;
    exl3_codebook codebook;
    bool has_bias;
} exl3_image;

/* Where the parts begin, in bytes from the start of the run. */
typedef struct exl3_image_parts {
    size_t weights, suh, svh, bias;
    size_t total; /* of the run, a multiple of EXL3_IMAGE_ALIGN */
} exl3_image_parts;

/* "cpu-1", "gpu-1". */
const char *exl3_layout_name(exl3_layout l);
/* ERR_NOT_FOUND. */
int exl3_layout_find(const char *name, exl3_layout *out);

/* The image of m in a layout. ERR_ARG: m is not valid; ERR_UNSUPPORTED: the layout has no form for
 * its codebook. */
int exl3_image_of(const exl3_matrix *m, exl3_layout layout, exl3_image *out, err *e);
/* Whether such an image can be: sizes, rate and codebook fit each other and the layout. */
bool exl3_image_ok(const exl3_image *image);
exl3_image_parts exl3_image_layout(const exl3_image *image);
/* Writes all exl3_image_layout(image).total bytes; out is aligned to 4 bytes or more. */
int exl3_image_write(const exl3_matrix *m, const exl3_image *image, void *out, err *e);

/* A linear of the CPU back end over the bytes of a cpu-1 image, aligned to 64, which must stay as
 * long as it lives. exl3_linear_free gives back what belongs to the linear alone. */
int exl3_linear_view(const exl3_image *image, const void *bytes, exl3_linear **out, err *e);

#endif
