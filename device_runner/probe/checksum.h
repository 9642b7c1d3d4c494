/* CRC-32 (ISO-HDLC, as zlib's): cables and bridges garble bytes, and a wrong number must not pass for a result. */
#ifndef CHECKSUM_H
#define CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of what came before (0 for nothing) and these bytes. */
uint32_t checksum(uint32_t before, const void *data, size_t size);

#endif
