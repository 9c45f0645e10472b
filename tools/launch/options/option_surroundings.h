#pragma once

#include <functional>

#include "gradwire/tools/launch/options/cluster.h"

namespace gradwire::tools {

// What of its process and machine the launcher's options depend on.
struct LaunchSurroundings {
  Variables variable;
  int cores = 1;  // that this process may use
  std::function<int()> visible_gpus;

  static LaunchSurroundings of_process();
};

}  // namespace gradwire::tools
