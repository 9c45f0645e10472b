#include "gradwire/tools/bench/run/footprint.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>

namespace gradwire::bench {

Footprint footprint() {
  Footprint result;
  const std::filesystem::directory_iterator open("/proc/self/fd");
  // The listing itself uses one descriptor.
  result.descriptors = std::distance(begin(open), end(open)) - 1;

  std::ifstream rollup("/proc/self/smaps_rollup");
  int found = 0;
  for (std::string line; std::getline(rollup, line);) {
    std::istringstream words(line);
    std::string name;
    double kilobytes = 0;
    words >> name >> kilobytes;
    if (name != "Pss_Anon:" && name != "Pss_Shmem:") continue;
    result.memory_kb += kilobytes;
    ++found;
  }
  if (found != 2) throw std::runtime_error("/proc/self/smaps_rollup lacks the fields Pss_Anon and Pss_Shmem");
  return result;
}

Measurement growth_per_peer(const Footprint& before, int peers) {
  const Footprint now = footprint();
  return {.figures = {
              {"descriptors_per_peer", static_cast<double>(now.descriptors - before.descriptors) / peers},
              {"memory_per_peer_kb", (now.memory_kb - before.memory_kb) / peers},
          }};
}

}  // namespace gradwire::bench
