#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::tools {

// Returns the value of an environment variable; nullopt if it is not set or empty.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

// The information about the job from the system that started this launcher. Used where the command line does
// not give a value. A field is unset if the system does not provide it.
struct ClusterPlace {
  std::string system;  // "Slurm", "Open MPI" or "Kubernetes", for messages.
  std::optional<int> nnodes;
  std::optional<int> node_rank;
  std::optional<std::string> master_addr;  // The host of node 0.
  std::optional<std::string> run_id;
  // Number of launchers that the system has started on each node. If more than one, nnodes and node_rank are
  // unset, because the system counts launchers instead of nodes.
  int launchers_per_node = 1;
  // A hint for the user if the launcher is alone in an allocation of several nodes.
  std::string note;
};

// Returns nullopt if no such system started the launcher. The systems are checked in this order:
//   Open MPI     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE, if mpirun started this launcher. The address of
//                node 0 is not provided. Checked before Slurm, because mpirun may itself use srun.
//   Slurm        SLURM_STEP_NUM_NODES, SLURM_NODEID, SLURM_STEP_NODELIST, SLURM_JOB_ID, but only inside a
//                step, which srun creates (SLURM_STEP_ID). In a batch script, or under salloc, the variables
//                of the whole allocation are set, but the launcher is alone: then one node, with a note.
//   Kubernetes   JOB_COMPLETION_INDEX, in the pods of an indexed Job. Provides only the node's rank.
// InvalidArgument, which names the variable: a value is malformed.
absl::StatusOr<std::optional<ClusterPlace>> read_cluster(const Variables& variables);

// Expands a list of hosts in Slurm's format, for example "gpu[001-003,7],login1". A name may have several
// brackets. InvalidArgument for a malformed list, and for more than 65536 hosts.
absl::StatusOr<std::vector<std::string>> expand_host_list(absl::string_view list);

}  // namespace gradwire::tools
