#pragma once

#include <string>

namespace chaos {

// What this process holds of the system.
struct Census {
  int descriptors = 0;
  // Anonymous files, as descriptors and as mappings.
  int memfds = 0;
  int memfd_mappings = 0;
  int threads = 0;

  friend bool operator==(const Census&, const Census&) = default;
  std::string to_string() const;
};

Census take_census();

// Whether the process holds no more than `before`; waits for that at most two seconds, since a thread that
// was joined may be listed a moment longer. `now` is what it held at the end.
bool returns_to(const Census& before, Census& now);

// Resident memory, in bytes.
long resident_bytes();

}  // namespace chaos
