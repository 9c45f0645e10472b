#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "absl/functional/function_ref.h"

namespace gradwire {

// Sets the soft limit of a resource of this process (RLIMIT_...), and restores it at the end of the scope.
class LimitScope {
 public:
  LimitScope(int resource, rlim_t value) : resource_(static_cast<__rlimit_resource_t>(resource)) {
    if (::getrlimit(resource_, &before_) != 0) std::abort();
    rlimit limit = before_;
    limit.rlim_cur = value;
    if (::setrlimit(resource_, &limit) != 0) std::abort();
  }
  ~LimitScope() {
    if (::setrlimit(resource_, &before_) != 0) std::abort();
  }
  LimitScope(const LimitScope&) = delete;
  LimitScope& operator=(const LimitScope&) = delete;

 private:
  const __rlimit_resource_t resource_;
  rlimit before_ = {};
};

// The value of RLIMIT_NOFILE with which the process has no free descriptor until it closes one.
inline rlim_t no_free_descriptor() {
  const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (next < 0) std::abort();
  ::close(next);
  return static_cast<rlim_t>(next);
}

// The value of RLIMIT_AS with which the process may map `more` bytes beyond what it has mapped.
inline rlim_t address_space_and(std::size_t more) {
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  unsigned long pages = 0;
  if (file == nullptr || std::fscanf(file, "%lu", &pages) != 1) std::abort();
  std::fclose(file);
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + more;
}

// Runs `program` in a forked child, which then exits with its result, and returns the status of waitpid().
// For tests without threads.
inline int status_in_child(absl::FunctionRef<int()> program) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const int result = program();
    std::fflush(nullptr);
    std::_Exit(result);
  }
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace gradwire
