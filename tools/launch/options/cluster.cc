#include "gradwire/tools/launch/options/cluster.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::tools {
namespace {

constexpr int kNoLimit = std::numeric_limits<int>::max();

absl::StatusOr<int> read_int(const Variables& variables, const std::string& name, int low,
                             int high = kNoLimit) {
  const std::string text = variables(name).value_or("");
  int value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= low && value <= high) return value;
  return absl::InvalidArgumentError(
      high == kNoLimit
          ? absl::StrCat("environment variable ", name, "=\"", text, "\" is not a number of ", low,
                         " or more")
          : absl::StrCat("environment variable ", name, "=\"", text, "\" is not in ", low, "..", high));
}

absl::StatusOr<std::optional<int>> read_if_set(const Variables& variables, const std::string& name) {
  if (!variables(name)) return std::nullopt;
  return read_int(variables, name, 1);
}

// Returns the first of these names whose variable is set, or "".
std::string first_set(const Variables& variables, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (variables(name)) return name;
  }
  return "";
}

// The ranks are those of processes. They are ranks of nodes only if mpirun has started one launcher on each
// node.
absl::StatusOr<ClusterPlace> read_open_mpi(const Variables& variables) {
  ClusterPlace place{.system = "Open MPI"};
  GRADWIRE_ASSIGN_OR_RETURN(const int size, read_int(variables, "OMPI_COMM_WORLD_SIZE", 1));
  GRADWIRE_ASSIGN_OR_RETURN(const int rank, read_int(variables, "OMPI_COMM_WORLD_RANK", 0, size - 1));
  GRADWIRE_ASSIGN_OR_RETURN(place.launchers_per_node, read_int(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", 1));
  if (place.launchers_per_node > 1) return place;
  place.nnodes = size;
  place.node_rank = rank;
  return place;
}

// 1. Without a step: the launcher runs in a batch script or in salloc's shell, which have the job's
//    variables too. It uses this node only, and the note says so.
// 2. More tasks than nodes: several launchers on a node, which is reported.
// 3. One launcher on each node of the step: Slurm's node ids are the ranks, and the first host of the step's
//    list is node 0.
absl::StatusOr<ClusterPlace> read_slurm(const Variables& variables) {
  ClusterPlace place{.system = "Slurm", .run_id = variables("SLURM_JOB_ID")};
  const std::string step = first_set(variables, {"SLURM_STEP_ID", "SLURM_STEPID"});
  const std::string nodes_name =
      first_set(variables, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  if (nodes_name.empty()) return place;
  GRADWIRE_ASSIGN_OR_RETURN(const int nodes, read_int(variables, nodes_name, 1));
  if (step.empty()) {
    if (nodes > 1) {
      place.note =
          absl::StrCat("Slurm has allocated ", nodes,
                       " nodes to this job, but this launcher uses only its own: start a launcher on "
                       "each node with srun (srun --ntasks-per-node=1 ...)");
    }
    return place;
  }
  const std::string tasks_name = first_set(variables, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  GRADWIRE_ASSIGN_OR_RETURN(const std::optional<int> tasks, read_if_set(variables, tasks_name));
  if (tasks.value_or(nodes) > nodes) {
    place.launchers_per_node = (*tasks + nodes - 1) / nodes;
    return place;
  }
  // Use job and step: a second srun in one Slurm job is another run.
  if (place.run_id) place.run_id = absl::StrCat(*place.run_id, ".", *variables(step));
  GRADWIRE_ASSIGN_OR_RETURN(place.node_rank, read_int(variables, "SLURM_NODEID", 0, nodes - 1));
  place.nnodes = nodes;
  if (nodes == 1) return place;
  const std::string list_name = first_set(variables, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
  if (list_name.empty()) return place;
  absl::StatusOr<std::vector<std::string>> hosts = expand_host_list(*variables(list_name));
  if (!hosts.ok()) return with_context(hosts.status(), absl::StrCat("environment variable ", list_name));
  // A list of the whole job's nodes cannot be used for a step that runs on some of them.
  if (static_cast<int>(hosts->size()) == nodes) place.master_addr = hosts->front();
  return place;
}

// An indexed Job has one launcher for each pod. The number of pods is not in the environment.
absl::StatusOr<ClusterPlace> read_kubernetes(const Variables& variables) {
  ClusterPlace place{.system = "Kubernetes"};
  GRADWIRE_ASSIGN_OR_RETURN(place.node_rank, read_int(variables, "JOB_COMPLETION_INDEX", 0));
  return place;
}

}  // namespace

absl::StatusOr<std::optional<ClusterPlace>> read_cluster(const Variables& variables) {
  if (variables("OMPI_COMM_WORLD_RANK")) return read_open_mpi(variables);
  if (variables("SLURM_JOB_ID")) return read_slurm(variables);
  if (variables("JOB_COMPLETION_INDEX")) return read_kubernetes(variables);
  return std::nullopt;
}

}  // namespace gradwire::tools
