#include "gradwire/tests/chaos/census.h"

#include <dirent.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/tests/chaos/call_log.h"
#include "gradwire/tests/chaos/sanitized.h"

namespace chaos {

std::string Census::to_string() const {
  return absl::StrCat("descriptors ", descriptors, ", memfds ", memfds, ", mappings of memfds ",
                      memfd_mappings, ", threads ", threads);
}

Census take_census() {
  // A sanitizer starts a thread of its own when the program starts its first thread. Start one now, so that
  // every census contains the sanitizer's thread.
  [[maybe_unused]] static const bool thread_started = (std::thread([] {}).join(), true);
  Census census;
  DIR* const open = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(open)) {
    char target[256] = {};
    if (::readlinkat(::dirfd(open), entry->d_name, target, sizeof(target) - 1) < 0) continue;
    ++census.descriptors;
    if (absl::StartsWith(target, "/memfd:")) ++census.memfds;
  }
  ::closedir(open);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "/memfd:")) ++census.memfd_mappings;
  }
  DIR* const tasks = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(tasks)) {
    if (entry->d_name[0] != '.') ++census.threads;
  }
  ::closedir(tasks);
  return census;
}

bool returns_to(const Census& before, Census& now) {
  const int64_t give_up = monotonic_us() + 10000000;
  while (true) {
    now = take_census();
    if (now.descriptors <= before.descriptors + (kMayHaveSymbolizer ? 2 : 0) && now.memfds <= before.memfds &&
        now.memfd_mappings <= before.memfd_mappings && now.threads <= before.threads) {
      return true;
    }
    if (monotonic_us() > give_up) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
}

long resident_bytes() {
  long pages = 0;
  std::ifstream statm("/proc/self/statm");
  statm >> pages >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

}  // namespace chaos
