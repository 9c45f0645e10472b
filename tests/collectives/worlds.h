#pragma once

#include <functional>
#include <map>
#include <string>

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// A way of making a world whose ranks all live in this process.
struct World {
  std::string name;
  std::string backend = "cpu";
  std::map<std::string, std::string> options;
};

// Calls `member` for each rank of a new world, each in a thread of its own; what one throws is a failure of
// the test. The groups end when all have returned.
void in_world(int size, const World& world, const std::function<void(ProcessGroup&)>& member);

}  // namespace gradwire::collectives
