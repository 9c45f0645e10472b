#pragma once

#include <span>
#include <string_view>

namespace gradwire::simulation {

// A mistake that a simulator must notice, from its list bugs.txt. with_bugs.py builds it into copies of the
// sources, which only bugs_test and replay compile. Product code knows nothing of it.
struct Bug {
  std::string_view name;
  std::string_view what;
};

// The bugs of the simulator that this program is linked with.
std::span<const Bug> all_bugs();

// The name of the bug that is switched on, or empty. Set by the one thread of a simulation.
inline std::string_view chosen_bug;

inline bool bug(std::string_view name) { return name == chosen_bug; }

}  // namespace gradwire::simulation
