#include "transport/process_counts.h"

#include <dirent.h>

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
int count_threads() { return count_entries("/proc/self/task"); }

}  // namespace gradwire::transport
