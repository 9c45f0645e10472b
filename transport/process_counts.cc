#include "transport/process_counts.h"

#include <dirent.h>

#include <chrono>
#include <thread>

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

}  // namespace

int count_descriptors() { return count_entries("/proc/self/fd"); }
int count_threads() {
  // With the first thread ThreadSanitizer starts one of its own, which stays.
  static const bool begun = [] {
    std::thread([] {}).join();
    return true;
  }();
  (void)begun;
  return count_entries("/proc/self/task");
}

int count_threads_down_to(int expected) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  int threads = count_threads();
  while (threads > expected && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    threads = count_threads();
  }
  return threads;
}

}  // namespace gradwire::transport
