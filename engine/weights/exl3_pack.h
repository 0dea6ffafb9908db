/* EXL3 modules inside a safetensors set: finding one by its prefix, checking what its tensors must
 * be, and turning it into the exl3_matrix that kernels/exl3 reads. Any thread; the set stays open
 * as long as a module is used. */
#ifndef TANDEM_ENGINE_WEIGHTS_EXL3_PACK_H
#define TANDEM_ENGINE_WEIGHTS_EXL3_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/weights/safetensors.h"
#include "kernels/exl3/exl3_codec.h"

/* A module. The matrix borrows from the mapped set, or from the owned vectors when the file keeps
 * legacy sign fields or a float bias. */
typedef struct exl3_module {
    exl3_matrix matrix; /* pointers are NULL when the set is not mapped */
    const st_tensor *trellis;
    const st_tensor *suh, *svh; /* or the legacy su, sv */
    const st_tensor *bias;      /* NULL: none */
    uint16_t *owned_suh, *owned_svh, *owned_bias;
} exl3_module;

/* True when the set holds prefix.trellis. An empty prefix means plain names: trellis, suh, .. */
bool exl3_module_exists(const st_set *s, const char *prefix);
/* Finds and checks the module (exl3.md 9). ERR_NOT_FOUND when a part is missing, ERR_FORMAT when a
 * part is not what it must be; the message names tensor, file and what was expected. The caller
 * releases it. */
int exl3_module_find(const st_set *s, const char *prefix, exl3_module *out, err *e);
void exl3_module_release(exl3_module *m);
/* Checks every EXL3 module of a set, also those of unknown names, and that no part stands alone. */
int exl3_pack_check(const st_set *s, err *e);
/* ERR_UNSUPPORTED when cutting size into ways equal parts does not fall on blocks of 128. */
int exl3_split_check(const char *name, int size, int ways, err *e);

#endif
