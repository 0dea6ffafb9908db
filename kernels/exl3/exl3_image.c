#include "kernels/exl3/exl3_image.h"

#include <string.h>

#include "engine/base/mem.h"
#include "kernels/exl3/exl3_internal.h"
#include "kernels/exl3/exl3_kernel_order.h"

static const char *const layout_names[EXL3_N_LAYOUTS] = {"cpu-1", "gpu-1"};

const char *exl3_layout_name(exl3_layout l) {
    return layout_names[l];
}

int exl3_layout_find(const char *name, exl3_layout *out) {
    for (int i = 0; i < EXL3_N_LAYOUTS; i++) {
        if (strcmp(name, layout_names[i]) == 0) {
            *out = (exl3_layout)i;
            return OK;
        }
    }
    return ERR_NOT_FOUND;
}

bool exl3_image_ok(const exl3_image *i) {
    bool is_size = i->in > 0 && i->in <= EXL3_MAX_IN && i->in % EXL3_BLOCK == 0 && i->out > 0 &&
                   i->out % EXL3_BLOCK == 0 && i->out <= 1 << 24;
    bool is_layout = i->layout == EXL3_LAYOUT_CPU || i->layout == EXL3_LAYOUT_GPU;
    if (!is_size || !is_layout || !exl3_rate_ok(i->codebook, i->k2)) return false;
    return i->layout == EXL3_LAYOUT_CPU || i->codebook == EXL3_MUL1;
}

int exl3_image_of(const exl3_matrix *m, exl3_layout layout, exl3_image *out, err *e) {
    int rc = exl3_matrix_check(m, e);
    if (rc != OK) return rc;
    *out = (exl3_image){layout, m->in, m->out, m->k2, m->codebook, m->bias != NULL};
    if (layout == EXL3_LAYOUT_GPU && m->codebook != EXL3_MUL1) {
        return err_set(e, ERR_UNSUPPORTED,
            "the GPU engine reads EXL3 weights of the mul1 codebook only; this matrix (%d x %d) "
            "has another one: use weights made with mul1, or prepare for the CPU engine",
            m->in, m->out);
    }
    return OK;
}

static size_t padded(size_t n) {
    return (n + EXL3_IMAGE_ALIGN - 1) / EXL3_IMAGE_ALIGN * EXL3_IMAGE_ALIGN;
}

static size_t weights_bytes(const exl3_image *i) {
    return i->layout == EXL3_LAYOUT_GPU ? exl3_trellis_bytes(i->in, i->out, i->k2)
                                        : exl3_packed_bytes(i->in, i->out, i->k2, i->codebook);
}

exl3_image_parts exl3_image_layout(const exl3_image *i) {
    size_t value = i->layout == EXL3_LAYOUT_GPU ? sizeof(uint16_t) : sizeof(float);
    exl3_image_parts p = {.weights = 0};
    p.suh = padded(weights_bytes(i));
    p.svh = p.suh + padded((size_t)i->in * value);
    p.bias = p.svh + padded((size_t)i->out * value);
    p.total = p.bias + (i->has_bias ? padded((size_t)i->out * value) : 0);
    return p;
}

static void put_vector(const exl3_image *i, const void *halves, int n, char *to) {
    if (i->layout == EXL3_LAYOUT_GPU) {
        memcpy(to, halves, (size_t)n * sizeof(uint16_t));
    } else {
        exl3_unpack_halves(halves, n, (float *)(void *)to);
    }
}

int exl3_image_write(const exl3_matrix *m, const exl3_image *image, void *out, err *e) {
    exl3_image_parts at = exl3_image_layout(image);
    char *to = out;
    int rc = exl3_matrix_check(m, e);
    if (rc != OK) return rc;
    CHECK(m->in == image->in && m->out == image->out && m->k2 == image->k2 &&
          m->codebook == image->codebook && (m->bias != NULL) == image->has_bias);
    memset(to, 0, at.total);
    if (image->layout == EXL3_LAYOUT_GPU) {
        rc = exl3_kernel_order_pack(m, out, e);
    } else {
        exl3_pack_weights(m, out);
    }
    put_vector(image, m->suh, m->in, to + at.suh);
    put_vector(image, m->svh, m->out, to + at.svh);
    if (m->bias != NULL) put_vector(image, m->bias, m->out, to + at.bias);
    return rc;
}

int exl3_linear_view(const exl3_image *image, const void *bytes, exl3_linear **out, err *e) {
    *out = NULL;
    if (!exl3_image_ok(image) || image->layout != EXL3_LAYOUT_CPU)
        return err_set(e, ERR_ARG, "a matrix of %d x %d in layout %d is not the CPU engine's",
            image->in, image->out, (int)image->layout);
    exl3_image_parts at = exl3_image_layout(image);
    const char *base = bytes;
    exl3_linear *l = mem_aligned(64, sizeof *l);
    if (l == NULL) return err_set(e, ERR_MEMORY, "no memory for an EXL3 matrix");
    *l = (exl3_linear){.in = image->in,
        .out = image->out,
        .k2 = image->k2,
        .n_words = exl3_lane_words(image->k2),
        .codebook = image->codebook,
        .suh = (const float *)(const void *)(base + at.suh),
        .svh = (const float *)(const void *)(base + at.svh),
        .bias = image->has_bias ? (const float *)(const void *)(base + at.bias) : NULL};
    if (image->codebook == EXL3_MUL1) {
        l->packed = bytes;
    } else {
        l->values = bytes;
    }
    *out = l;
    return OK;
}
