#ifndef TANDEM_BASE_CRC32C_H
#define TANDEM_BASE_CRC32C_H
/* CRC-32C (Castagnoli), by the CPU's instruction where it has one. Any thread. */
#include <stddef.h>
#include <stdint.h>

/* Continues from an earlier result; start with 0. crc32c(crc32c(0, a), b) is that of a then b. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);
/* The same by table on any machine; the check of the other. */
uint32_t crc32c_table(uint32_t crc, const void *data, size_t n);

#endif
