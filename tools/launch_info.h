#pragma once

#include <exception>
#include <string>

namespace gradwire {

// The place of this worker in the job, as the launcher (or torchrun, mpirun, srun) gives it in the
// environment. A value type.
//
//   gradwire::LaunchInfo info = gradwire::LaunchInfo::from_env();
//   gradwire::rpc::init_rpc(info.name());   // "server0", "trainer0", "trainer1", ...
struct LaunchInfo {
  int rank = 0;              // 0..world_size-1 in the whole job
  int world_size = 0;        // number of workers in the job
  int local_rank = 0;        // 0..local_world_size-1 on this node; 0 if unknown
  int local_world_size = 0;  // number of workers on this node; 0 if unknown
  int group_rank = 0;        // the node's rank; -1 if unknown
  int group_world_size = 0;  // number of nodes; 0 if unknown
  std::string role;          // the launcher's --role
  int role_rank = 0;         // among the workers of the same role
  int role_world_size = 0;   // number of workers of the role

  // The address of the store, for env://. mpirun and srun do not set it: then it is empty and 0, unless the
  // user sets both variables (mpirun -x MASTER_ADDR -x MASTER_PORT). env:// needs them.
  std::string master_addr;
  int master_port = 0;  // 1..65535, or 0

  std::string run_id;     // the launcher's --rdzv_id
  int restart_count = 0;  // restarts so far
  int max_restarts = 0;   // the launcher's --max_restarts
  int round = 0;          // earlier starts of the workers, also those because nodes joined or left

  // The launcher's --worker_name for this worker; empty if the option was not given. With the launcher's
  // --secure it is the name in the worker's certificate.
  std::string worker_name;

  // The name of this worker for init_rpc(): worker_name, or else the role and the rank within it, for example
  // "trainer2". Such names are unique in the job, as init_rpc() requires, unless the name of a role is the
  // name of another role and a number. They are the same on every start with the same number of workers.
  std::string name() const;

  // The device of this worker's tensors: "cuda:<local_rank>" in a build with CUDA (--config=cuda) on a
  // machine with GPUs that are visible to this process, otherwise "cpu". Throws Error: InvalidArgument if
  // there are more workers on this node than GPUs, with both numbers.
  std::string device() const;

  // Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which must all be set, as for torch's env://. Also
  // reads LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_NAME, ROLE_RANK, ROLE_WORLD_SIZE,
  // TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS, GRADWIRE_ROUND and
  // GRADWIRE_WORKER_NAME, which the launcher sets. If these are not set, all workers have one role, ROLE_NAME
  // or "default", group_rank is -1, and the other fields are 0 or empty.
  //
  // Without RANK and WORLD_SIZE it reads the variables of mpirun (OMPI_COMM_WORLD_..., PMI_...) or, inside a
  // step, of srun (SLURM_...). MASTER_ADDR and MASTER_PORT are then optional.
  //
  // Throws Error. FailedPrecondition names all variables that are missing: the program was not started by the
  // launcher. InvalidArgument names the first variable that is not a number or is out of range.
  //
  // From the first call on, uncaught exceptions and crashes (base/process/crash_handler.h) are recorded for
  // the launcher, which shows them when the job has failed: see record_error().
  static LaunchInfo from_env();
};

// Writes `error` to the file that TORCHELASTIC_ERROR_FILE names. The launcher that started this program shows
// it in its summary. Does nothing without such a launcher. A program that catches exceptions in main() calls
// this in the catch block. The last call counts.
void record_error(const std::exception& error);

}  // namespace gradwire
