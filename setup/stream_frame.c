#include <string.h>

#include "engine/base/crc32c.h"
#include "setup/stream_internal.h"

static const uint8_t FRAME_MAGIC[4] = {'T', 'D', 'M', 'F'};
static const uint8_t ACK_MAGIC[4] = {'T', 'D', 'M', 'A'};

static void put_u32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void frame_encode(const frame *f, uint8_t out[FRAME_HEAD_BYTES]) {
    memcpy(out, FRAME_MAGIC, 4);
    put_u32(out + 4, (uint32_t)f->kind);
    put_u32(out + 8, f->file);
    put_u32(out + 12, f->length);
    put_u32(out + 16, (uint32_t)f->offset);
    put_u32(out + 20, (uint32_t)(f->offset >> 32));
    put_u32(out + 24, f->crc);
    put_u32(out + 28, f->sequence);
    put_u32(out + 32, crc32c(0, out, FRAME_HEAD_BYTES - 4));
}

int frame_decode(frame *f, const uint8_t in[FRAME_HEAD_BYTES], err *e) {
    if (memcmp(in, FRAME_MAGIC, 4) != 0 || get_u32(in + 32) != crc32c(0, in, FRAME_HEAD_BYTES - 4))
        return err_set(e, ERR_FORMAT, "the other side sent something that is no frame");
    uint32_t kind = get_u32(in + 4);
    if (kind != FRAME_DATA && kind != FRAME_BYE)
        return err_set(e, ERR_FORMAT, "a frame of unknown kind %u", kind);
    f->kind = (frame_kind)kind;
    f->file = get_u32(in + 8);
    f->length = get_u32(in + 12);
    f->offset = (uint64_t)get_u32(in + 16) | (uint64_t)get_u32(in + 20) << 32;
    f->crc = get_u32(in + 24);
    f->sequence = get_u32(in + 28);
    return OK;
}

int frame_check(const frame *f, const ranges *r, err *e) {
    if (f->offset >= r->size || f->offset % r->unit != 0 ||
        f->length != ranges_unit_bytes(r, (size_t)(f->offset / r->unit)))
        return err_set(e, ERR_FORMAT, "a frame does not lie on the file's grid");
    return OK;
}

void ack_encode(uint32_t sequence, ack_state state, uint8_t out[FRAME_ACK_BYTES]) {
    memcpy(out, ACK_MAGIC, 4);
    put_u32(out + 4, sequence);
    put_u32(out + 8, (uint32_t)state);
    put_u32(out + 12, crc32c(0, out, FRAME_ACK_BYTES - 4));
}

int ack_decode(const uint8_t in[FRAME_ACK_BYTES], uint32_t *sequence, ack_state *state, err *e) {
    uint32_t said = get_u32(in + 8);
    if (memcmp(in, ACK_MAGIC, 4) != 0 || get_u32(in + 12) != crc32c(0, in, FRAME_ACK_BYTES - 4) ||
        said < ACK_OK || said > ACK_FAILED)
        return err_set(e, ERR_FORMAT, "the other side sent something that is no acknowledgement");
    *sequence = get_u32(in + 4);
    *state = (ack_state)said;
    return OK;
}
