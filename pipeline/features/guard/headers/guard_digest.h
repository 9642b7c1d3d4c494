// Digests of short texts: C++ has none of its own, and an app need not link a library for these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ort_mobile {

// CRC-32 of ISO 3309, by which damaged rows are told.
inline std::uint32_t Crc32(const std::string& text) {
    std::uint32_t digest = 0xFFFFFFFFu;
    for (unsigned char byte : text) {
        digest ^= byte;
        for (int bit = 0; bit < 8; ++bit) digest = digest >> 1 ^ (digest & 1 ? 0xEDB88320u : 0);
    }
    return digest ^ 0xFFFFFFFFu;
}

// A number in hexadecimal digits, without zeros before it.
inline std::string Hexadecimal(std::uint64_t number) {
    std::string digits;
    do digits.insert(digits.begin(), "0123456789abcdef"[number & 15]);
    while (number >>= 4);
    return digits;
}

// SHA-256 of FIPS 180-4, in hexadecimal digits.
inline std::string Sha256(std::string text) {
    static const std::array<std::uint32_t, 64> kRounds = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
        0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
        0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
        0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
        0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
        0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    std::array<std::uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const auto turned = [](std::uint32_t word, int bits) { return word >> bits | word << (32 - bits); };
    const std::uint64_t length = std::uint64_t{8} * text.size();
    text += '\x80';
    while (text.size() % 64 != 56) text += '\0';
    for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(length >> shift);
    for (std::size_t start = 0; start < text.size(); start += 64) {
        std::array<std::uint32_t, 64> words{};
        for (std::size_t i = 0; i < 64; ++i) words[i / 4] = words[i / 4] << 8 | static_cast<unsigned char>(text[start + i]);
        for (std::size_t i = 16; i < 64; ++i) {
            const std::uint32_t early = words[i - 15], late = words[i - 2];
            words[i] = words[i - 16] + (turned(early, 7) ^ turned(early, 18) ^ early >> 3) + words[i - 7] +
                       (turned(late, 17) ^ turned(late, 19) ^ late >> 10);
        }
        std::array<std::uint32_t, 8> s = state;
        for (std::size_t i = 0; i < 64; ++i) {
            const std::uint32_t first = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) +
                                        ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRounds[i] + words[i];
            const std::uint32_t second = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) +
                                         ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
        }
        for (std::size_t i = 0; i < 8; ++i) state[i] += s[i];
    }
    std::string digits;
    for (std::uint32_t word : state)
        for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[word >> shift & 15];
    return digits;
}

}  // namespace ort_mobile
