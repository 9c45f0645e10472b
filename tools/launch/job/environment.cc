#include "gradwire/tools/launch/job/environment.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gradwire::tools {

bool has_variable(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& variable : environment) {
    if (absl::StartsWith(variable, name + "=")) return true;
  }
  return false;
}

void set_variable(std::vector<std::string>& environment, const std::string& name, const std::string& value) {
  std::erase_if(environment,
                [&](const std::string& variable) { return absl::StartsWith(variable, name + "="); });
  environment.push_back(absl::StrCat(name, "=", value));
}

// The launcher's own variables replace those of the environment: a launcher may itself run as a worker of
// another job.
std::vector<std::string> worker_environment(const std::vector<std::string>& base, const WorkerPlace& place,
                                            const JobAddress& job, const std::string& error_file) {
  std::map<std::string, std::string> set = {
      {"RANK", absl::StrCat(place.rank)},
      {"WORLD_SIZE", absl::StrCat(place.world_size)},
      {"LOCAL_RANK", absl::StrCat(place.local_rank)},
      {"LOCAL_WORLD_SIZE", absl::StrCat(place.local_world_size)},
      {"GROUP_RANK", absl::StrCat(place.group_rank)},
      {"GROUP_WORLD_SIZE", absl::StrCat(place.group_world_size)},
      {"ROLE_NAME", place.role},
      {"ROLE_RANK", absl::StrCat(place.role_rank)},
      {"ROLE_WORLD_SIZE", absl::StrCat(place.role_world_size)},
      {"MASTER_ADDR", job.master_addr},
      {"MASTER_PORT", absl::StrCat(job.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", absl::StrCat(job.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", absl::StrCat(job.max_restarts)},
      {"TORCHELASTIC_RUN_ID", job.run_id},
      // The launcher serves the store; rank 0 connects to it like all other ranks.
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_ERROR_FILE", error_file},
      {"GRADWIRE_ROUND", absl::StrCat(job.round)},
  };
  if (!has_variable(base, "OMP_NUM_THREADS")) set["OMP_NUM_THREADS"] = "1";
  std::vector<std::string> environment;
  for (const std::string& variable : base) {
    if (set.count(variable.substr(0, variable.find('='))) == 0) environment.push_back(variable);
  }
  if (error_file.empty()) set.erase("TORCHELASTIC_ERROR_FILE");
  for (const auto& [name, value] : set) environment.push_back(absl::StrCat(name, "=", value));
  return environment;
}

}  // namespace gradwire::tools
