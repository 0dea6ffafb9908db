/* A model of the released geometry without its weights, for measuring: a folder whose weight file
 * declares every tensor but holds data for the small plain ones only (sparse file), a CUDA back end
 * that takes packed matrices from a pool of random bits in device memory, an exchange that exchanges
 * nothing (one rank of a world alone), and an Engram store of made-up records. Host code. */
#ifndef TESTS_GPU_SYNTHETIC_MODEL_H
#define TESTS_GPU_SYNTHETIC_MODEL_H

#include "engine/dist/exchange.h"
#include "engine/model/engram_store.h"
#include "kernels/kernels.h"

enum { SYNTHETIC_TOKENS = 4096 }; /* token ids below this have an embedding */

/* Writes config.json and model.safetensors into dir. ERR_IO, ERR_MEMORY. */
int synthetic_folder_make(const char *dir, err *e);
/* The table "cuda-synthetic", with pool_bytes of device memory for packed matrices; they share it
 * when they need more. NULL: no memory. */
const kernels *synthetic_kernels(size_t pool_bytes);
/* Rank 0 of world; sums leave the rows as they are. */
exchange *synthetic_exchange(int world);
engram_store *synthetic_store(int n_tables, int d);

/* Times of the operators of the table: between start and stop every operator is timed by events on
 * the device; stop prints the total of each and how often it ran. */
void synthetic_profile_start(void);
void synthetic_profile_stop(const char *title);

#endif
