#include "gradwire/tools/launch/options/option_surroundings.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "gradwire/tools/launch/options/gpus.h"

namespace gradwire::tools {

LaunchSurroundings LaunchSurroundings::of_process() {
  return {.variable = [](const std::string& name) -> std::optional<std::string> {
            const char* value = std::getenv(name.c_str());
            if (value == nullptr || *value == '\0') return std::nullopt;
            return value;
          },
          .cores = std::max<int>(std::thread::hardware_concurrency(), 1),
          .visible_gpus = [] { return count_visible_gpus(); }};
}

}  // namespace gradwire::tools
