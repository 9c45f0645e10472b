#pragma once

#include <functional>
#include <map>
#include <string>

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// The backend and the options of a world. `name` is for messages.
struct World {
  std::string name;
  std::string backend = "cpu";
  std::map<std::string, std::string> options;
};

// Makes a world in this process and calls `member` for each rank, each in its own thread. An exception of
// `member` fails the test. The world is destroyed after all ranks have returned.
void in_world(int size, const World& world, const std::function<void(ProcessGroup&)>& member);

}  // namespace gradwire::collectives
