/* Rank packs of a model (engine/weights/pack.h): making one from a model folder, and what one must
 * be to be used with it. Whoever makes a pack needs no other rank, no device and little memory: three
 * blocks of 64 MiB beside the mapped checkpoint. Any thread. */
#ifndef TANDEM_ENGINE_MODEL_RANK_PACK_H
#define TANDEM_ENGINE_MODEL_RANK_PACK_H

#include "engine/model/model.h"
#include "engine/weights/pack.h"

typedef struct rank_pack_options {
    const char *model_dir; /* config.json and safetensors */
    const char *out_dir;   /* the file is pack_path of it */
    int rank, world;       /* world 0 means 1 */
    exl3_layout layout;
    bool without_drafts;
    bool checks; /* read a finished file back, make damaged blocks anew */
    const char *build;
    uint64_t block_bytes; /* 0: PACK_BLOCK_BYTES */
    int n_threads;        /* 0: one per core */
    /* About ten times a second; not OK stops, and a later call goes on there. NULL: nobody. */
    int (*progress)(void *ctx, const pack_make_progress *p);
    void *ctx;
} rank_pack_options;

/* Makes the pack of one rank, see pack_make. The page cache of the checkpoint is given back on the
 * way. path (may be NULL) gets the file's name, also after an error. */
int rank_pack_make(const rank_pack_options *o, buf *path, pack_make_progress *progress, err *e);
/* Bytes the file has or will have, from the headers of the checkpoint. */
int rank_pack_size(const rank_pack_options *o, uint64_t *bytes, err *e);

/* What a pack for this folder and rank must say. source is all zero when the folder holds no shards
 * (a node with a pack needs none). */
int rank_pack_identity(const rank_pack_options *o, pack_identity *out, err *e);
/* Where --pack PLACE leads: the file itself, or the file of this rank in the folder. */
int rank_pack_place(
    buf *out, const char *place, exl3_layout layout, const int rank_world[2], err *e);
/* The first eight bytes of what the pack of this place was made from: equal for all ranks. */
int rank_pack_source(
    const char *place, const char *backend, const int rank_world[2], uint64_t *out, err *e);

#endif
