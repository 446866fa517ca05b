#include "zero/bible.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "quant/error.h"

extern char** environ;

namespace zeropp::zero {
namespace {

constexpr std::size_t kBytes = 4'404'412;
constexpr const char* kExpected = "Debian's bible-kjv package and its program `bible`";

/// `bible -f gen1:1-rev22:21`, its output on a pipe.
class Child {
 public:
  Child() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw std::system_error(errno, std::generic_category(), "pipe2");
    read_end_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    char program[] = "bible", flag[] = "-f", range[] = "gen1:1-rev22:21";
    char* const argv[] = {program, flag, range, nullptr};
    const int error = posix_spawnp(&pid_, program, &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error != 0) {
      close(read_end_);
      throw UsageError("data", kExpected, std::strerror(error));
    }
  }
  ~Child() {
    close_pipe();
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  std::vector<std::uint8_t> read_all() {
    std::vector<std::uint8_t> bytes;
    bytes.reserve(kBytes);
    std::array<std::uint8_t, 1 << 16> chunk;
    for (;;) {
      const ssize_t got = read(read_end_, chunk.data(), chunk.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw std::system_error(errno, std::generic_category(), "read from bible");
      if (got == 0) break;
      bytes.insert(bytes.end(), chunk.begin(), chunk.begin() + got);
    }
    close_pipe();
    return bytes;
  }

  /// Wait status; 0 = success.
  int wait() noexcept {
    while (pid_ > 0 && waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status_;
  }

 private:
  void close_pipe() noexcept {
    if (read_end_ >= 0) close(read_end_);
    read_end_ = -1;
  }
  int read_end_ = -1;
  pid_t pid_ = -1;
  int status_ = 0;
};

}  // namespace

std::vector<std::uint8_t> bible_text() {
  Child child;
  std::vector<std::uint8_t> bytes = child.read_all();
  if (const int status = child.wait(); status != 0) {
    throw UsageError("data", kExpected, fmt::format("wait status {:#x} from `bible`", status));
  }
  if (bytes.size() != kBytes) {
    throw UsageError("data", fmt::format("{} bytes from `bible -f gen1:1-rev22:21`", kBytes),
                     fmt::format("{} (another version of bible-kjv?)", bytes.size()));
  }
  return bytes;
}

}  // namespace zeropp::zero
