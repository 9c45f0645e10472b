#pragma once

#include <string>
#include <vector>

#include "tools/launch/layout.h"

namespace gradwire::tools {

// What all workers of a job share.
struct JobAddress {
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
};

// A worker's environment, "NAME=value" each: `base` with the variables that torchrun sets put in or replaced,
// and with OMP_NUM_THREADS=1 unless `base` has one.
std::vector<std::string> worker_environment(const std::vector<std::string>& base, const WorkerPlace& place,
                                            const JobAddress& job);

// Whether "NAME=value" is there for this name.
bool has_variable(const std::vector<std::string>& environment, const std::string& name);

}  // namespace gradwire::tools
