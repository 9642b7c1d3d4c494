#include "checksum.h"

uint32_t checksum(uint32_t before, const void *data, size_t size) {
    static uint32_t table[256];
    const unsigned char *bytes = data;
    uint32_t value = ~before;
    for (uint32_t i = 0; !table[255] && i < 256; i++) {
        uint32_t entry = i;
        for (int bit = 0; bit < 8; bit++) entry = entry >> 1 ^ (entry & 1 ? 0xedb88320u : 0);
        table[i] = entry;
    }
    for (size_t i = 0; i < size; i++) value = value >> 8 ^ table[(value ^ bytes[i]) & 255];
    return ~value;
}
