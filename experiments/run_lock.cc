#include "experiments/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "quant/error.h"

namespace zeropp::experiments {

RunLock::RunLock(const std::filesystem::path& dir)
    : fd_(::open((dir / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  if (fd_ >= 0) ::close(fd_);
  if (error == EWOULDBLOCK) {
    throw UsageError("output", "a folder that no other run is writing",
                     dir.string() + ", which one is");
  }
  throw UsageError("output", "a folder that can be locked",
                   dir.string() + ": " + std::generic_category().message(error));
}

RunLock::~RunLock() { ::close(fd_); }

}  // namespace zeropp::experiments
