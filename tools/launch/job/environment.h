#pragma once

#include <string>
#include <vector>

#include "gradwire/tools/launch/options/layout.h"

namespace gradwire::tools {

// The part of the environment that all workers of a round share.
struct JobAddress {
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  int restart_count = 0;  // Number of restarts so far.
  int max_restarts = 0;
  // Counts every start of the group, also those after a node joined or left. The env:// store of a round is
  // the part of the store under "round_<round>/".
  int round = 0;
};

// Returns a worker's environment, one "NAME=value" each: `base` with the variables that torchrun sets, and
// with OMP_NUM_THREADS=1 unless `base` has that variable. `error_file` is the path where the worker may
// record why it failed. An error file in `base` is the launcher's own and is never passed on.
std::vector<std::string> worker_environment(const std::vector<std::string>& base, const WorkerPlace& place,
                                            const JobAddress& job, const std::string& error_file = "");

// Sets a variable in `environment`; replaces an existing one.
void set_variable(std::vector<std::string>& environment, const std::string& name, const std::string& value);

// Whether `environment` has a variable of this name.
bool has_variable(const std::vector<std::string>& environment, const std::string& name);

}  // namespace gradwire::tools
