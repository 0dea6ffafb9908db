/* The form of the calls that rank 0 sends: a head, then the payload in the byte order of the
 * machines (all ranks run the same build on the same kind of machine; the meeting checks the
 * build). */
#ifndef TANDEM_RUN_CONTROL_WIRE_H
#define TANDEM_RUN_CONTROL_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/run/run.h"

enum {
    CALL_STEP = 1,
    CALL_DRAFT,
    CALL_COMMIT,
    CALL_PAGES,
    CALL_RESET,
    CALL_COPY,
    CALL_LOAD,
    CALL_PAGE_COPY,
    CALL_PAGE_WRITE,
    CALL_SAVE,      /* its result's bytes are part of the stream: see call_hash */
    CALL_PAGE_READ, /* so are these */
    CALL_DIGEST,
    CALL_PREFETCH,
    CALL_END,
    CALL_SETTINGS
};
/* All but steps, drafts and settings begin with two numbers; bytes may follow. */
#define CALL_NUMBERS_BYTES (2 * sizeof(int64_t))
/* Of one request of a draft: slot, token, temperature, seed. */
#define CALL_DRAFT_BYTES (3 * sizeof(int32_t) + sizeof(uint64_t))
#define CALL_MAGIC 0x54444d43u

typedef struct call_head {
    uint32_t magic;
    uint32_t kind;
    uint64_t n_bytes; /* of the payload */
    uint64_t number;  /* of the call, from 1 */
} call_head;

/* The running hash over heads, payloads (the numbers and the bytes behind them each as one piece)
 * and results. */
uint64_t call_hash(uint64_t hash, const void *data, size_t n);

/* Reads values from a payload; a read past the end clears is_good and gives 0. */
typedef struct call_reader {
    const uint8_t *at, *end;
    bool is_good;
} call_reader;
void call_read(call_reader *r, void *out, size_t n);
int32_t call_read_i32(call_reader *r);
int64_t call_read_i64(call_reader *r);

/* Room of a plan's payload. */
size_t call_plan_bytes(const batch_plan *plan);
/* Writes the payload; returns its bytes. */
size_t call_plan_write(const batch_plan *plan, uint8_t *out);
/* A plan out of a payload: spans [RUN_MAX_SLOTS], tokens [max_rows] hold what it points to. False
 * when the payload is malformed. */
bool call_plan_read(
    call_reader *r, batch_plan *plan, plan_span *spans, int32_t *tokens, int32_t max_rows);

#endif
