#pragma once

#include <exception>
#include <string>

namespace gradwire {

// What the launcher (or torchrun, mpirun, srun) told this worker about its place in the job. A value type.
//
//   gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
//   gradwire::rpc::init_rpc(info.name());   // "server0", "trainer0", "trainer1", ...
struct LaunchInfo {
  int rank = 0;              // 0..world_size-1 in the whole job
  int world_size = 0;        // number of workers in the job
  int local_rank = 0;        // 0..local_world_size-1 on this node; 0 where nobody says it
  int local_world_size = 0;  // number of workers on this node; 0 where nobody says it
  int group_rank = 0;        // the node's rank
  int group_world_size = 0;  // number of nodes; 0 where nobody says it
  std::string role;          // the launcher's --role
  int role_rank = 0;         // among the workers of the same role
  int role_world_size = 0;   // number of workers of the role

  // Where the store is, for env://. Empty and 0 in a program that mpirun or srun started without saying so:
  // they know of no store, and env:// needs both variables in the environment (mpirun -x MASTER_ADDR -x
  // MASTER_PORT).
  std::string master_addr;
  int master_port = 0;  // 1..65535, or 0

  std::string run_id;     // the launcher's --rdzv_id
  int restart_count = 0;  // restarts so far
  int max_restarts = 0;   // the launcher's --max_restarts
  int round = 0;          // starts of the workers before this one, also those for nodes that came or went

  // The role and the rank within it, "trainer2": names that are unique in the job, as init_rpc() wants them
  // (as long as no role's name is another's and a number), and the same on every start of the same size.
  std::string name() const;

  // The device of this worker's tensors: "cuda:<local_rank>" in a build with CUDA (--config=cuda) on a
  // machine with GPUs that this process may see, else "cpu". Throws Error: InvalidArgument if there are more
  // workers on this node than GPUs, with both numbers.
  std::string device() const;

  // Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which all have to be there, as for torch's env://;
  // and LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_NAME, ROLE_RANK, ROLE_WORLD_SIZE,
  // TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS and GRADWIRE_ROUND, which the
  // launcher sets. Where these are not there, all workers have one role, ROLE_NAME or "default", group_rank
  // is -1, and the rest is 0 or empty.
  //
  // Without RANK and WORLD_SIZE: what mpirun (OMPI_COMM_WORLD_..., PMI_...) or, inside a step, srun
  // (SLURM_...) say, with or without MASTER_ADDR and MASTER_PORT.
  //
  // Throws Error: FailedPrecondition names all that are missing (the program was not started by
  // the launcher), InvalidArgument the first that is not a number or out of range.
  //
  // From the first call on, an exception that nobody catches and a crash (base/process/crash_handler.h) are
  // left for the launcher, which shows them when the job has failed: see record_error().
  static LaunchInfo from_env();
};

// Leaves `error` for the launcher that started this program, in the file that TORCHELASTIC_ERROR_FILE names,
// so that the launcher's summary says it; nothing without such a launcher. For programs that catch what
// main() throws; call it in the catch block. The last one stays.
void record_error(const std::exception& error);

}  // namespace gradwire
