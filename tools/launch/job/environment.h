#pragma once

#include <string>
#include <vector>

#include "gradwire/tools/launch/options/layout.h"

namespace gradwire::tools {

// What all workers of a job share.
struct JobAddress {
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  int restart_count = 0;  // restarts used so far
  int max_restarts = 0;
  // Counts every start of the group, those for nodes that came and went too: the env:// store of a round is
  // the part of the store under "round_<round>/".
  int round = 0;
};

// A worker's environment, "NAME=value" each: `base` with the variables that torchrun sets put in or replaced,
// and with OMP_NUM_THREADS=1 unless `base` has one. `error_file` is where the worker may record what it dies
// of; one that stands in `base` is the launcher's own and never handed on.
std::vector<std::string> worker_environment(const std::vector<std::string>& base, const WorkerPlace& place,
                                            const JobAddress& job, const std::string& error_file = "");

// Sets NAME in `environment`, over what it has.
void set_variable(std::vector<std::string>& environment, const std::string& name, const std::string& value);

// Whether "NAME=value" is there for this name.
bool has_variable(const std::vector<std::string>& environment, const std::string& name);

}  // namespace gradwire::tools
