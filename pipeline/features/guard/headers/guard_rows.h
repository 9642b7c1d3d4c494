// What is known of the session options of a model on this device, and which of them won the races.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <locale>
#include <sstream>
#include <string>
#include <vector>

#include "guard_digest.h"
#include "guard_files.h"

namespace ort_mobile {

// The fields of a line between tabs; an empty text has one.
inline std::vector<std::string> GuardFields(const std::string& line, char between = '\t') {
    std::vector<std::string> fields(1);
    for (char letter : line) {
        if (letter == between) fields.emplace_back();
        else fields.back() += letter;
    }
    return fields;
}

// A whole number of decimal digits; false for anything else.
inline bool GuardNumber(const std::string& text, std::int64_t& number) {
    if (text.empty() || text.find_first_not_of("0123456789-") != std::string::npos) return false;
    char* end = nullptr;
    errno = 0;
    number = std::strtoll(text.c_str(), &end, 10);
    return errno == 0 && *end == '\0';
}

// A line of a model's rows.
struct GuardRow {
    static constexpr const char* kNew = "new";
    static constexpr const char* kPassed = "passed";
    static constexpr const char* kRefused = "refused";
    static constexpr const char* kDied = "died";
    static constexpr const char* kHung = "hung";
    static constexpr const char* kWrong = "wrong";

    // Suspicions of which session options are out.
    static constexpr std::int64_t kMostSuspicions = 2;

    std::string key, way, state = kNew, text;
    std::int64_t suspicions = 0, at = 0;
    double milliseconds = 0, decibels = 0;

    // Whether a trial would tell nothing new.
    bool IsDecided() const { return state != kNew; }

    // Whether they may be opened.
    bool IsGood() const { return state == kPassed && suspicions < kMostSuspicions; }

    void Decide(const std::string& decided, const std::string& said, std::int64_t now) {
        state = decided;
        text = said;
        at = now;
    }

    // Notes that a process ended meanwhile, without a proof that they were the cause.
    void Suspect(const std::string& said, std::int64_t now) {
        text = said;
        at = now;
        if (++suspicions >= kMostSuspicions) state = kDied;
    }

    // Why they are not used, for people.
    std::string Reason() const {
        return way + ": " + (state == kNew ? "not tried yet" : state + (text.empty() ? "" : ", " + text));
    }

    std::string Line() const {
        std::ostringstream line;
        line.imbue(std::locale::classic());  // an app's locale may write commas
        line.precision(17);
        line << key << '\t' << state << '\t' << suspicions << '\t' << at << '\t' << milliseconds << '\t' << decibels;
        return line.str() + '\t' + Plain(way) + '\t' + Plain(text);
    }

    // The row of a line; false for anything that is none.
    static bool Of(const std::string& line, GuardRow& row) {
        const std::vector<std::string> fields = GuardFields(line);
        if (fields.size() != 8 || fields[0].empty()) return false;
        row.key = fields[0];
        row.state = fields[1];
        row.way = fields[6];
        row.text = fields[7];
        if (!GuardNumber(fields[2], row.suspicions) || !GuardNumber(fields[3], row.at)) return false;
        row.suspicions = std::max<std::int64_t>(0, row.suspicions);
        return Real(fields[4], row.milliseconds) && Real(fields[5], row.decibels);
    }

  private:
    static bool Real(const std::string& text, double& number) {
        std::istringstream source(text);
        source.imbue(std::locale::classic());
        return source >> number && source.peek() == std::istringstream::traits_type::eof();
    }

    // On one line of at most a hundred bytes, which do not end within a character of UTF-8.
    static std::string Plain(std::string text) {
        for (char& letter : text)
            if ((letter >= 0 && letter < ' ') || letter == 127) letter = ' ';
        std::size_t size = std::min<std::size_t>(text.size(), 100);
        while (size < text.size() && size > 0 && (text[size] & 0xC0) == 0x80) --size;
        return text.substr(0, size);
    }
};

// The rows of a model. Whatever a file holds, reading it throws nothing.
class GuardRows {
  public:
    GuardRows(const GuardFiles& files, std::string name, std::int64_t now) : files_(files), name_(std::move(name)) {
        std::string text;
        damage = files_.Read(name_, text) ? Parse(text, now) : "";
        if (!damage.empty()) {
            rows_.clear();
            StartAnew();
        }
    }

    // The key of what won the latest race; of what won kAgreeingRaces in a row, each in a launch of its own; how many
    // there were.
    std::string fastest, settled;
    std::int64_t races = 0;

    // Why a file was not read; "" where it was, or none is there.
    std::string damage;

    // Forgets the races: they were of other files, another system, or what won is out.
    void StartAnew() {
        fastest.clear();
        settled.clear();
        races = slow_ = agreed_ = 0;
    }

    // Notes how long a run took in a launch and in the race; whether that was so often too long that races begin anew.
    bool IsSlower(double milliseconds, double raced) {
        slow_ = milliseconds > kSlower * raced ? slow_ + 1 : 0;
        if (slow_ < kMostSlow) return false;
        StartAnew();
        return true;
    }

    // Notes who won the race of a launch; enough of them in a row settle it.
    void Win(const std::string& key) {
        ++races;
        agreed_ = key == fastest ? std::min(agreed_ + 1, kAgreeingRaces) : 1;
        settled = agreed_ == kAgreeingRaces ? key : "";
        fastest = key;
    }

    // The row of a key; nullptr where nothing is known.
    GuardRow* Get(const std::string& key) {
        for (GuardRow& row : rows_)
            if (row.key == key) return &row;
        return nullptr;
    }

    // The row of a key, which is added where nothing is known; the latest is the last, and the oldest go first. It is
    // valid until the next call.
    GuardRow& Of(const std::string& key, const std::string& way) {
        GuardRow row;
        if (GuardRow* known = Get(key)) {
            row = *known;
            rows_.erase(rows_.begin() + (known - rows_.data()));
        } else {
            row.key = key;
            row.way = way;
        }
        rows_.push_back(row);
        return rows_.back();
    }

    // Writes the rows; GuardError where they cannot be kept.
    void Save() {
        if (rows_.size() > kMostRows) rows_.erase(rows_.begin(), rows_.end() - kMostRows);
        std::string lines = "race\t" + fastest + "\t" + settled + "\t" + std::to_string(races) + "\t" + std::to_string(slow_) + "\t" +
                            std::to_string(agreed_) + "\n";
        for (const GuardRow& row : rows_) lines += row.Line() + "\n";
        files_.Write(name_, std::string(kFormat) + "\t" + Hexadecimal(Crc32(lines)) + "\n" + lines);
    }

  private:
    static constexpr const char* kFormat = "ort-mobile guard 1";
    static constexpr std::ptrdiff_t kMostRows = 16;

    // What is much longer, and after how many such launches the session options race again.
    static constexpr double kSlower = 1.5;
    static constexpr std::int64_t kMostSlow = 3;

    // Races in a row that one must win: two name what is far from best too often.
    static constexpr std::int64_t kAgreeingRaces = 3;

    // How long a suspicion lasts that nothing confirmed, in milliseconds.
    static constexpr std::int64_t kSuspicionMilliseconds = std::int64_t{30} * 24 * 3'600'000;

    std::string Parse(const std::string& text, std::int64_t now) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string head = text.substr(0, end), format = std::string(kFormat) + "\t";
        if (head.compare(0, format.size(), format) != 0)
            return head.compare(0, 17, "ort-mobile guard ") == 0 ? "rows of another version" : "no rows";
        const std::string lines = end < text.size() ? text.substr(end + 1) : "";
        if (head.substr(format.size()) != Hexadecimal(Crc32(lines)) || lines.empty() || lines.back() != '\n')
            return "damaged rows";
        for (const std::string& line : GuardFields(lines.substr(0, lines.size() - 1), '\n')) {
            const std::vector<std::string> fields = GuardFields(line);
            GuardRow row;
            std::int64_t count = 0;
            const bool is_race = fields[0] == "race" && fields.size() == 6;
            if (is_race && GuardNumber(fields[3], count) && count >= 0) {
                if (!GuardNumber(fields[4], slow_) || slow_ < 0 || slow_ > 9) return "damaged rows";
                if (!GuardNumber(fields[5], agreed_) || agreed_ < 0 || agreed_ > 9) return "damaged rows";
                fastest = fields[1];
                settled = fields[2];
                races = std::min<std::int64_t>(count, std::numeric_limits<std::int32_t>::max());
            } else if (GuardRow::Of(line, row)) {
                Forgive(row, now);
                Of(row.key, row.way) = row;
            } else {
                return "damaged rows";
            }
        }
        return "";
    }

    // Takes back a suspicion that is old, or of a time to come: then the clock was wrong.
    static void Forgive(GuardRow& row, std::int64_t now) {
        const double age = static_cast<double>(now) - static_cast<double>(row.at);
        if (row.suspicions > 0 && (age > kSuspicionMilliseconds || -age > kSuspicionMilliseconds)) {
            if (row.suspicions >= GuardRow::kMostSuspicions) row.state = GuardRow::kNew;
            row.suspicions = 0;
        }
    }

    GuardFiles files_;
    std::string name_;
    std::vector<GuardRow> rows_;

    // Launches in a row in which runs took much longer than in the race.
    std::int64_t slow_ = 0;
    std::int64_t agreed_ = 0;
};

}  // namespace ort_mobile
