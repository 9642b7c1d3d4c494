// What zlib packed (RFC 1950, 1951), unpacked: samples are packed at the desk, and an app need not link zlib for them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "guard_files.h"

namespace ort_mobile {

class GuardInflate {
  public:
    // The bytes, which must be so many; GuardError for anything else.
    static std::string Bytes(const std::string& packed, std::size_t size) {
        GuardInflate source(packed, size);
        source.Take(16);  // the header of zlib; the checksum behind the blocks is not read, since rows have a digest
        for (bool is_last = false; !is_last;) {
            is_last = source.Take(1) != 0;
            const unsigned kind = source.Take(2);
            if (kind == 0) source.Stored();
            else if (kind == 1) source.Fixed();
            else if (kind == 2) source.Dynamic();
            else throw GuardError("packed bytes are damaged");
        }
        if (source.bytes_.size() != size) throw GuardError("packed bytes are of another size");
        return source.bytes_;
    }

  private:
    static constexpr unsigned kMostBits = 15, kSymbols = 288, kEnd = 256;

    // Codes by their lengths: how many there are of each, and their symbols in order.
    struct Codes {
        std::array<std::uint16_t, kMostBits + 1> counts{};
        std::array<std::uint16_t, kSymbols> symbols{};

        Codes(const std::uint8_t* lengths, unsigned count) {
            for (unsigned i = 0; i < count; ++i) ++counts[lengths[i]];
            counts[0] = 0;
            std::array<std::uint16_t, kMostBits + 2> starts{};
            for (unsigned bits = 1; bits <= kMostBits; ++bits)
                starts[bits + 1] = static_cast<std::uint16_t>(starts[bits] + counts[bits]);
            for (unsigned i = 0; i < count; ++i)
                if (lengths[i]) symbols[starts[lengths[i]]++] = static_cast<std::uint16_t>(i);
        }
    };

    GuardInflate(const std::string& packed, std::size_t size) : packed_(packed), size_(size) {}

    unsigned Take(unsigned count) {
        unsigned bits = 0;
        for (unsigned i = 0; i < count; ++i, ++place_) {
            if (place_ / 8 >= packed_.size()) throw GuardError("packed bytes end too early");
            bits |= static_cast<unsigned>(static_cast<unsigned char>(packed_[place_ / 8]) >> (place_ % 8) & 1) << i;
        }
        return bits;
    }

    void Put(char byte) {
        if (bytes_.size() >= size_) throw GuardError("packed bytes are of another size");
        bytes_ += byte;
    }

    unsigned Symbol(const Codes& codes) {
        unsigned code = 0, first = 0, index = 0;
        for (unsigned bits = 1; bits <= kMostBits; ++bits) {
            code |= Take(1);
            const unsigned count = codes.counts[bits];
            if (code < first + count) return codes.symbols[index + code - first];
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        throw GuardError("packed bytes are damaged");
    }

    void Stored() {
        place_ = (place_ + 7) / 8 * 8;
        const unsigned count = Take(16);
        if (Take(16) != (count ^ 0xFFFFu)) throw GuardError("packed bytes are damaged");
        for (unsigned i = 0; i < count; ++i) Put(static_cast<char>(Take(8)));
    }

    void Fixed() {
        std::array<std::uint8_t, kSymbols> lengths;
        for (unsigned i = 0; i < kSymbols; ++i) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
        std::array<std::uint8_t, 30> distances;
        distances.fill(5);
        Block(Codes(lengths.data(), kSymbols), Codes(distances.data(), 30));
    }

    void Dynamic() {
        static const std::uint8_t kOrder[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
        const unsigned literals = Take(5) + 257, distances = Take(5) + 1, given = Take(4) + 4;
        std::array<std::uint8_t, kSymbols + 32> lengths{};
        for (unsigned i = 0; i < given; ++i) lengths[kOrder[i]] = static_cast<std::uint8_t>(Take(3));
        const Codes codes(lengths.data(), 19);
        lengths.fill(0);
        if (literals > 286 || distances > 30) throw GuardError("packed bytes are damaged");
        for (unsigned i = 0; i < literals + distances;) {
            const unsigned symbol = Symbol(codes);
            const std::uint8_t length = symbol < 16 ? static_cast<std::uint8_t>(symbol)
                                                    : symbol == 16 && i > 0 ? lengths[i - 1] : std::uint8_t{0};
            const unsigned times = symbol < 16 ? 1 : symbol == 16 ? 3 + Take(2) : symbol == 17 ? 3 + Take(3) : 11 + Take(7);
            if (i + times > literals + distances) throw GuardError("packed bytes are damaged");
            for (unsigned j = 0; j < times; ++j) lengths[i++] = length;
        }
        Block(Codes(lengths.data(), literals), Codes(lengths.data() + literals, distances));
    }

    void Block(const Codes& literals, const Codes& distances) {
        static const std::uint16_t kLengths[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                                 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
        static const std::uint8_t kLengthBits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                   2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
        for (;;) {
            const unsigned symbol = Symbol(literals);
            if (symbol == kEnd) return;
            if (symbol < kEnd) {
                Put(static_cast<char>(symbol));
                continue;
            }
            if (symbol > 285) throw GuardError("packed bytes are damaged");
            const unsigned length = kLengths[symbol - 257] + Take(kLengthBits[symbol - 257]);
            const unsigned code = Symbol(distances);
            if (code > 29) throw GuardError("packed bytes are damaged");
            const unsigned bits = code < 4 ? 0 : code / 2 - 1;
            const unsigned base = code < 4 ? code + 1 : ((2 + code % 2) << bits) + 1;
            const std::size_t distance = base + Take(bits);
            if (distance > bytes_.size()) throw GuardError("packed bytes are damaged");
            for (unsigned i = 0; i < length; ++i) Put(bytes_[bytes_.size() - distance]);
        }
    }

    const std::string& packed_;
    const std::size_t size_;
    std::size_t place_ = 0;
    std::string bytes_;
};

}  // namespace ort_mobile
