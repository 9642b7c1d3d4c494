// A list of session options that must not be tried on some devices, signed by who signs the bundle. It only forbids.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "guard_device.h"
#include "guard_files.h"
#include "guard_rows.h"

namespace ort_mobile {

// Whether a signature (ECDSA in DER, by the key of `bundle deny --key` with the SHA-2 of its size) is of these bytes. C++ has
// no cryptography, so the app gives it: by the platform's, or by the library that it has.
using GuardVerifier = std::function<bool(const std::string& payload, const std::string& signature)>;

class GuardDeny {
  public:
    static constexpr const char* kFile = "deny.list";

    // Of a list in its file: the lines that were signed, and a last one with the signature in hexadecimal digits. GuardError for
    // what is damaged, expired, of another bundle, or refused by `verifier`; without one for all.
    GuardDeny(const std::string& text, const std::string& bundle, std::int64_t now, const GuardVerifier& verifier) {
        Require(text.size() <= (16 << 10), "a list of " + std::to_string(text.size()) + " characters");
        const std::size_t end = text.size() < 2 ? std::string::npos : text.rfind('\n', text.size() - 2);
        Require(end != std::string::npos && text.back() == '\n', "no list");
        const std::string payload = text.substr(0, end + 1), digits = text.substr(end + 1, text.size() - end - 2);
        Require(verifier && verifier(payload, Bytes(digits)), "a list that another key signed");
        const std::vector<std::string> lines = GuardFields(payload.substr(0, end), '\n');
        Require(lines.size() <= 201, "a list of " + std::to_string(lines.size()) + " lines");
        const std::vector<std::string> head = GuardFields(lines[0]);
        std::int64_t expires = 0;
        Require(head.size() == 4 && head[0] == "ort-mobile deny 1", "a list of another format");
        Require(head[1] == bundle, "a list of the bundle " + head[1]);
        Require(GuardNumber(head[2], serial_) && GuardNumber(head[3], expires), "a number that is none");
        Require(expires > now / 1000, "a list that has expired");
        for (std::size_t i = 1; i < lines.size(); ++i) {
            Row row{GuardFields(lines[i]), 0, 0};
            Require(row.fields.size() == 7, "a line that is no row");
            Require(GuardNumber(row.fields[3], row.lowest) && GuardNumber(row.fields[4], row.highest), "a number that is none");
            rows_.push_back(row);
        }
    }

    // Rises with each list: an older one is refused.
    std::int64_t serial() const { return serial_; }

    // Why session options must not be tried; "" where nothing is said against them.
    std::string Reason(const std::string& way, const std::string& digests, const GuardDevice& device) const {
        for (const Row& row : rows_)
            if (device.level >= row.lowest && device.level <= row.highest && Fits(row.fields[0], way) &&
                Fits(row.fields[1], device.chip) && Fits(row.fields[2], device.system) && Fits(row.fields[5], digests))
                return row.fields[6].empty() ? "denied" : row.fields[6];
        return "";
    }

    // Whether a text is a pattern's, in which `*` stands for anything.
    static bool Fits(const std::string& pattern, const std::string& text) {
        const std::vector<std::string> parts = GuardFields(pattern, '*');
        if (parts.size() == 1) return pattern == text;
        std::size_t at = parts[0].size();
        if (text.compare(0, at, parts[0]) != 0) return false;
        for (std::size_t i = 1; i + 1 < parts.size(); ++i) {
            const std::size_t found = text.find(parts[i], at);
            if (found == std::string::npos) return false;
            at = found + parts[i].size();
        }
        const std::string& last = parts.back();
        return text.size() >= at + last.size() && text.compare(text.size() - last.size(), last.size(), last) == 0;
    }

  private:
    struct Row {
        std::vector<std::string> fields;
        std::int64_t lowest, highest;
    };

    static void Require(bool holds, const std::string& what) {
        if (!holds) throw GuardError(what + " is refused");
    }

    static std::string Bytes(const std::string& digits) {
        std::string bytes;
        Require(digits.size() % 2 == 0 && digits.find_first_not_of("0123456789abcdef") == std::string::npos, "no signature");
        for (std::size_t i = 0; i < digits.size(); i += 2)
            bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
        return bytes;
    }

    std::int64_t serial_ = 0;
    std::vector<Row> rows_;
};

}  // namespace ort_mobile
