#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::tools {

// Looks up an environment variable; none for one that is not set or empty.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

// What the system that started this launcher says about the job, for what the command line leaves open. Unset
// is what the system does not say.
struct ClusterPlace {
  std::string system;  // "Slurm", "Open MPI", "Kubernetes"; for messages
  std::optional<int> nnodes;
  std::optional<int> node_rank;
  std::optional<std::string> master_addr;  // node 0's host
  std::optional<std::string> run_id;
  // How many launchers the system has started on a node. With more than one, nnodes and node_rank are unset:
  // they would be those of launchers.
  int launchers_per_node = 1;
  // A word for the user whose launcher is alone in an allocation of several nodes.
  std::string note;
};

// None where no such system is at work. Read in this order:
//   Open MPI     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE: this launcher was started by mpirun. It does not
//                say where node 0 is. Before Slurm, since mpirun uses srun for itself.
//   Slurm        only inside a step, which srun makes (SLURM_STEP_ID): SLURM_STEP_NUM_NODES, SLURM_NODEID,
//                SLURM_STEP_NODELIST, SLURM_JOB_ID. In a batch script or under salloc the variables of the
//                whole allocation are there too, but the launcher is alone: that is one node, and a note.
//   Kubernetes   JOB_COMPLETION_INDEX, of an indexed Job's pods: the node's rank and nothing else.
// InvalidArgument names a variable that is not understood.
absl::StatusOr<std::optional<ClusterPlace>> read_cluster(const Variables& variables);

// The hosts of a list as Slurm writes it: "gpu[001-003,7],login1", several brackets in a name too.
// InvalidArgument for what is no such list, and for more than 65536 hosts.
absl::StatusOr<std::vector<std::string>> expand_host_list(absl::string_view list);

}  // namespace gradwire::tools
