#pragma once

#include <string>

namespace gradwire {

// What the launcher (or torchrun) told this worker about its place in the job. A value type.
//
//   gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
//   gradwire::rpc::init_rpc(info.rank == 0 ? "ps" : absl::StrCat("trainer", info.rank));
struct LaunchInfo {
  int rank = 0;  // 0..world_size-1 in the whole job
  int world_size = 0;
  int local_rank = 0;  // 0..local_world_size-1 on this node
  int local_world_size = 0;
  int group_rank = 0;       // the node's rank
  std::string role;         // the launcher's --role
  int role_rank = 0;        // among the workers of the same role
  std::string master_addr;  // where the store is, for env://
  int master_port = 0;

  // The device of this worker's tensors: "cpu" in a build without CUDA.
  std::string device() const { return "cpu"; }

  // Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, ROLE_NAME, ROLE_RANK, MASTER_ADDR and
  // MASTER_PORT. Throws Error: FailedPrecondition names all that are missing (the program was not started by
  // the launcher), InvalidArgument the first that is not a number or out of range.
  static LaunchInfo from_env();
};

}  // namespace gradwire
