#pragma once

#include <string>

namespace chaos {

// The resources of the operating system that this process holds.
struct Census {
  int descriptors = 0;
  // Anonymous memory files: descriptors and mappings.
  int memfds = 0;
  int memfd_mappings = 0;
  int threads = 0;

  friend bool operator==(const Census&, const Census&) = default;
  std::string to_string() const;
};

Census take_census();

// Waits up to 10 s until the process holds no more than `before`, and returns whether it does. The wait is
// needed because the system may list a joined thread for a moment. `now` is the last census.
bool returns_to(const Census& before, Census& now);

// Resident memory, in bytes.
long resident_bytes();

}  // namespace chaos
