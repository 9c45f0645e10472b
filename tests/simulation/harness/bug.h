#pragma once

#include <span>
#include <string_view>

namespace gradwire::simulation {

// A deliberate mistake that a simulator must detect. The simulator lists its mistakes in bugs.txt.
// with_bugs.py builds them into copies of the sources, which only bugs_test and replay compile. Product code
// does not contain them.
struct Bug {
  std::string_view name;
  std::string_view what;
};

// The bugs of the simulator that this program is linked with.
std::span<const Bug> all_bugs();

// The name of the enabled bug; empty if none is enabled. A simulation has one thread, which sets it.
inline std::string_view chosen_bug;

// Returns whether the bug `name` is enabled. Only the changes of bugs.txt call it.
inline bool bug(std::string_view name) { return name == chosen_bug; }

}  // namespace gradwire::simulation
