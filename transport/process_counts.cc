#include "gradwire/transport/process_counts.h"

#include <dirent.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "gradwire/base/mutex.h"

#ifdef GRADWIRE_THREAD_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

namespace gradwire::transport {
namespace {

int count_entries(const char* directory) {
  DIR* entries = ::opendir(directory);
  if (entries == nullptr) return -1;
  int count = 0;
  while (::readdir(entries) != nullptr) ++count;
  ::closedir(entries);
  return count;
}

// With the first report, which may be one that is suppressed, ThreadSanitizer starts a process that names
// functions, and keeps the pipes to it: they are to be in every count.
void start_symbolizer() {
#ifdef GRADWIRE_THREAD_SANITIZER
  static const bool started = [] {
    char name[256] = {};
    __sanitizer_symbolize_pc(reinterpret_cast<void*>(&::opendir), "%f", name, sizeof(name));
    return true;
  }();
  (void)started;
#endif
}

int count_down_to(int expected, int (*count)()) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  int now = count();
  while (now > expected && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    now = count();
  }
  return std::max(now, expected);
}

}  // namespace

int count_descriptors() {
  start_symbolizer();
  return count_entries("/proc/self/fd");
}
int count_threads() {
  // With the first thread ThreadSanitizer starts one of its own, which stays.
  static const bool begun = [] {
    std::thread([] {}).join();
    return true;
  }();
  (void)begun;
  return count_entries("/proc/self/task");
}

int count_threads_down_to(int expected) { return count_down_to(expected, &count_threads); }
int count_descriptors_down_to(int expected) { return count_down_to(expected, &count_descriptors); }

}  // namespace gradwire::transport
