#include "gradwire/store/init/process_place.h"

#include <cstdlib>

#include "absl/strings/ascii.h"

namespace gradwire::store {
namespace {

constexpr PlaceVariables kLauncher = {true, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr PlaceVariables kOpenMpi = {false, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr PlaceVariables kPmi = {false, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr PlaceVariables kSlurm = {false, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr};

bool is_set(const char* name) { return environment_variable(name).has_value(); }

}  // namespace

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(absl::StripAsciiWhitespace(value));
}

PlaceVariables place_variables() {
  const auto sets = [](const PlaceVariables& v) { return is_set(v.rank) || is_set(v.world_size); };
  if (sets(kLauncher)) return kLauncher;
  if (sets(kOpenMpi)) return kOpenMpi;
  // srun sets the first two PMI variables as well, but not the local ones.
  if (sets(kPmi) && is_set(kPmi.local_rank)) return kPmi;
  const bool in_step = is_set("SLURM_STEP_ID") || is_set("SLURM_STEPID");
  if (in_step && is_set(kSlurm.rank)) {
    PlaceVariables slurm = kSlurm;
    if (!is_set(slurm.world_size)) slurm.world_size = "SLURM_NTASKS";
    return slurm;
  }
  return sets(kPmi) ? kPmi : kLauncher;
}

}  // namespace gradwire::store
