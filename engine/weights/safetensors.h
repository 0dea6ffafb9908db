/* Safetensors checkpoints: one file, or a folder of shards with or without an index, opened as one
 * set of named tensors. Headers are checked completely before anything else happens, so a tensor
 * that is handed out lies inside its file, has the size its shape says and overlaps nothing.
 *
 * A set is opened and closed by one thread; lookups and st_read may be made by any number of
 * threads at once. The set owns everything it hands out; tensors, names and mapped data are valid
 * until st_close. Mapped data has the file's own alignment: only the byte alignment is promised.
 * Who shortens a file while it is mapped gets SIGBUS, as always with mappings. */
#ifndef TANDEM_ENGINE_WEIGHTS_SAFETENSORS_H
#define TANDEM_ENGINE_WEIGHTS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

enum { ST_MAX_DIMS = 8, ST_MAX_FILES = 4096 };
/* Headers above this are refused; the real checkpoint's largest is about 1.5 MB. */
#define ST_MAX_HEADER_BYTES ((uint64_t)100 << 20)

typedef enum st_dtype {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_F8_E8M0,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_I64,
    ST_U64,
    ST_F64,
    ST_N_DTYPES
} st_dtype;

typedef enum st_mode {
    ST_MAPPED, /* data is mapped read-only; st_tensor.data is set */
    /* data is read with O_DIRECT past the page cache (plain reads where the file system refuses);
     * st_tensor.data is NULL */
    ST_DIRECT
} st_mode;

typedef struct st_tensor {
    const char *name;
    st_dtype dtype;
    int n_dims; /* 0: a scalar */
    uint64_t dims[ST_MAX_DIMS];
    uint64_t offset; /* first byte in the file */
    uint64_t bytes;
    const void *data; /* mapped bytes or NULL, see st_mode; a valid pointer also when bytes is 0 */
    int i_file;
} st_tensor;

typedef struct st_set st_set;

/* Opens a .safetensors file, or a folder: its model.safetensors.index.json with the shards it
 * names, else every *.safetensors in it. Errors name the file and what is wrong with it. What is
 * odd but harmless becomes a warning (st_warnings). The caller closes with st_close. */
int st_open(const char *path, st_mode mode, st_set **out, err *e);
/* A folder that may hold only some of the shards, or none: those that are there. For the Engram
 * tables, which are two shards of a release. */
int st_open_part(const char *path, st_mode mode, st_set **out, err *e);
void st_close(st_set *s);
size_t st_count(const st_set *s);
/* Tensors by number, in no promised order. */
const st_tensor *st_at(const st_set *s, size_t i);
/* NULL when there is none of this name. */
const st_tensor *st_find(const st_set *s, const char *name);
/* Path of a file of the set; i_file from a tensor. */
const char *st_path(const st_set *s, int i_file);
int st_n_files(const st_set *s);
/* Lines of text separated by newlines, "" when there are none. */
const char *st_warnings(const st_set *s);
/* Value of a __metadata__ key of file i_file, or NULL. */
const char *st_metadata(const st_set *s, int i_file, const char *key);
/* Copies len bytes from position at inside the tensor. Works in both modes. ERR_ARG outside the
 * tensor, ERR_IO. */
int st_read(const st_set *s, const st_tensor *t, uint64_t at, void *dst, uint64_t len, err *e);
/* Asks the system to read ahead [at, at + len) of a mapped tensor; a hint, no effect in direct
 * mode. */
void st_prefetch(const st_tensor *t, uint64_t at, uint64_t len);

/* Name as in the header ("F8_E4M3") and bytes of one element. */
const char *st_dtype_name(st_dtype d);
size_t st_dtype_bytes(st_dtype d);
/* "F16 [128, 256]" into out, for messages; always terminated. */
void st_describe(const st_tensor *t, char *out, size_t cap);
/* Product of the dims; cannot overflow for a tensor of a set. */
uint64_t st_elements(const st_tensor *t);
/* True when t has exactly these dims. */
bool st_has_shape(const st_tensor *t, int n_dims, const uint64_t *dims);

/* Checks a header text (without the length prefix) against data_bytes bytes of data. For tests and
 * fuzzing; path is used in messages only. */
int st_check_header(const char *text, size_t len, uint64_t data_bytes, const char *path, err *e);

/* A writer of one file. All tensors are declared first; then data is written in any order and
 * pieces; finish checks that each byte came, and puts the file in place (temporary file, fsync,
 * rename). Until then nothing stands at path. Data starts at a multiple of 4096; each tensor whose
 * size is a multiple of 64 bytes is aligned to 64. One thread may declare; st_write may be called
 * by several threads for different tensors. */
typedef struct st_writer st_writer;
st_writer *st_writer_new(const char *path);
/* Gives up: removes the temporary file. Also frees a finished writer. NULL is fine. */
void st_writer_free(st_writer *w);
/* Declares a tensor and returns its number (>= 0) or a negative code. */
int st_writer_add(
    st_writer *w, const char *name, st_dtype dtype, int n_dims, const uint64_t *dims, err *e);
/* Adds a __metadata__ pair. */
void st_writer_metadata(st_writer *w, const char *key, const char *value);
/* Lays out the file, makes the temporary file and writes the header. No st_writer_add after it. */
int st_writer_begin(st_writer *w, err *e);
/* Writes len bytes at position at of tensor number i. */
int st_writer_put(st_writer *w, int i, uint64_t at, const void *data, uint64_t len, err *e);
/* ERR_INTERNAL naming the tensor when bytes are missing; else the file is in place. */
int st_writer_finish(st_writer *w, err *e);

#endif
