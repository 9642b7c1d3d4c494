// Small files that survive a process, and where it matters a kernel, that ends at any moment.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

namespace ort_mobile {

// What cannot be kept, or must not be taken, with the reason.
class GuardError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// The guard's folder.
class GuardFiles {
  public:
    // A text in a file has at most so many bytes; longer ones are not read.
    static constexpr std::size_t kMostBytes = 1 << 16;

    explicit GuardFiles(std::string folder) : folder_(std::move(folder)) {}

    const std::string& folder() const { return folder_; }

    std::string Path(const std::string& name) const { return folder_ + "/" + name; }

    // Makes the folder, whose own must be there.
    void Make() const {
        struct stat found;
        if (mkdir(folder_.c_str(), 0700) != 0 && (stat(folder_.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)))
            throw GuardError("cannot make the folder " + folder_ + ": " + std::strerror(errno));
    }

    // The text of a file; false where it is not there, too long or unreadable.
    bool Read(const std::string& name, std::string& text) const {
        const Descriptor file(open(Path(name).c_str(), O_RDONLY | O_CLOEXEC));
        text.clear();
        if (file.number < 0) return false;
        char block[1 << 12];
        for (;;) {
            const ssize_t count = read(file.number, block, sizeof block);
            if (count < 0) return false;
            if (count == 0) return true;
            text.append(block, static_cast<std::size_t>(count));
            if (text.size() > kMostBytes) return false;
        }
    }

    // Puts a whole text in the place of a file: after a power cut there is the old one or the new one.
    void Write(const std::string& name, const std::string& text) const {
        Make();
        const std::string partial = Path(name + ".part");
        {
            const Descriptor file(open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
            Fill(file.number, text, partial);
            if (Sync(file.number) != 0 && errno != EINVAL) throw Failure("sync", partial);
        }
        if (rename(partial.c_str(), Path(name).c_str()) != 0) throw Failure("rename", partial);
        const Descriptor directory(open(folder_.c_str(), O_RDONLY | O_CLOEXEC));
        if (directory.number >= 0) Sync(directory.number);
    }

    // Adds a line to a file, which begins again where it would be longer than texts are.
    void Append(const std::string& name, const std::string& line) const {
        Make();
        struct stat found;
        const bool is_long = stat(Path(name).c_str(), &found) == 0 &&
                             static_cast<std::size_t>(found.st_size) + line.size() >= kMostBytes;
        const int begins = is_long ? O_TRUNC : O_APPEND;
        const Descriptor file(open(Path(name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | begins, 0600));
        Fill(file.number, line + "\n", name);
    }

    // Removes a file; false where it stays.
    bool Remove(const std::string& name) const { return unlink(Path(name).c_str()) == 0 || errno == ENOENT; }

    // Whether this process has the right to a name, which one process of the app has until it ends.
    bool Lock(const std::string& name) const {
        static std::mutex mutex;
        static std::map<std::string, int> locks;  // a second descriptor of the file would end the lock when it is closed
        const std::lock_guard<std::mutex> guard(mutex);
        if (locks.count(Path(name))) return true;
        const int file = open(Path(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0) return false;
        struct flock whole;
        std::memset(&whole, 0, sizeof whole);
        whole.l_type = F_WRLCK;
        whole.l_whence = SEEK_SET;
        if (fcntl(file, F_SETLK, &whole) != 0) {
            close(file);
            return false;
        }
        locks[Path(name)] = file;
        return true;
    }

  private:
    struct Descriptor {
        explicit Descriptor(int opened) : number(opened) {}
        ~Descriptor() {
            if (number >= 0) close(number);
        }
        Descriptor(const Descriptor&) = delete;
        Descriptor& operator=(const Descriptor&) = delete;
        const int number;
    };

    static GuardError Failure(const char* what, const std::string& name) {
        return GuardError(std::string("cannot ") + what + " " + name + ": " + std::strerror(errno));
    }

    static void Fill(int file, const std::string& text, const std::string& name) {
        std::size_t done = 0;
        while (file >= 0 && done < text.size()) {
            const ssize_t count = write(file, text.data() + done, text.size() - done);
            if (count <= 0 && errno != EINTR) throw Failure("write", name);
            done += count > 0 ? static_cast<std::size_t>(count) : 0;
        }
        if (file < 0) throw Failure("open", name);
    }

    // On Apple's systems fsync reaches the drive's cache only.
    static int Sync(int file) {
#ifdef F_FULLFSYNC
        if (fcntl(file, F_FULLFSYNC) == 0) return 0;
#endif
        return fsync(file);
    }

    std::string folder_;
};

}  // namespace ort_mobile
