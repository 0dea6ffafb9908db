/* What the parts of the safetensors reader share. */
#ifndef TANDEM_ENGINE_WEIGHTS_SAFETENSORS_INTERNAL_H
#define TANDEM_ENGINE_WEIGHTS_SAFETENSORS_INTERNAL_H

#include "engine/weights/header_scan.h"
#include "engine/weights/safetensors.h"

typedef struct st_pair {
    const char *key;
    const char *value;
} st_pair;

/* A parsed header: owns names (one block) and the lists. */
typedef struct st_header {
    char *names;
    size_t names_len, names_cap;
    st_tensor *tensors; /* offsets count from the start of the data; sorted by offset */
    size_t n_tensors, cap_tensors;
    st_pair *pairs;
    size_t n_pairs, cap_pairs;
} st_header;

typedef struct st_file {
    char *path;
    int fd;       /* for st_read in direct mode, else -1 */
    int fd_plain; /* buffered descriptor for unaligned tails, direct mode only */
    bool is_direct;
    void *map;
    uint64_t bytes;
    uint64_t data_start;
    st_header header;
} st_file;

/* Parses and checks all of a header text. data_bytes is the length of what follows it. */
int st_header_parse(
    st_header *h, const char *text, size_t len, uint64_t data_bytes, const char *path, err *e);
void st_header_release(st_header *h);

int st_file_open(st_file *f, const char *path, st_mode mode, err *e);
void st_file_close(st_file *f);
int st_file_read(const st_file *f, uint64_t offset, void *dst, uint64_t len, err *e);

uint64_t st_name_hash(const char *name);

#endif
