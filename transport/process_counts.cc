#include "gradwire/transport/process_counts.h"

#include <dirent.h>

#include <algorithm>
#include <chrono>
#include <string>
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

// At its first report, even a suppressed one, ThreadSanitizer starts a symbolizer process and keeps pipes to
// it. Start it now, so that all counts include them.
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
  // At the first thread, ThreadSanitizer starts a thread of its own, which stays.
  static const bool begun = [] {
    std::thread([] {}).join();
    return true;
  }();
  (void)begun;
  return count_entries("/proc/self/task");
}

int count_threads_down_to(int expected) { return count_down_to(expected, &count_threads); }
int count_descriptors_down_to(int expected) { return count_down_to(expected, &count_descriptors); }

std::string ProcessCounts::left() const {
  const int threads = count_threads_down_to(threads_) - threads_;
  const int descriptors = count_descriptors_down_to(descriptors_) - descriptors_;
  if (threads == 0 && descriptors == 0) return "";
  return std::to_string(descriptors) + " descriptors, " + std::to_string(threads) + " threads";
}

}  // namespace gradwire::transport
