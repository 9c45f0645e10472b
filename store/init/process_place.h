#pragma once

#include <optional>
#include <string>

namespace gradwire::store {

// Names of the environment variables in which the launcher of this process passes its rank and world size.
struct PlaceVariables {
  bool from_launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  // Null if no variable holds it directly.
  const char* local_world_size;
};

// Returns the first row of this table in which one of the first two variables is set, else the first row:
//   the launcher or torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI's mpirun          OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   MPICH's mpirun and others  PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS. If srun sets only
//                              the first two, Slurm's variables take precedence.
//   Slurm's srun               SLURM_PROCID, SLURM_STEP_NUM_TASKS (else SLURM_NTASKS), SLURM_LOCALID. Only
//                              inside a step (SLURM_STEP_ID): a batch script has the first two as well,
//                              but is a single process.
PlaceVariables place_variables();

// Returns a variable's value without surrounding white space; nullopt if it is not set or empty.
std::optional<std::string> environment_variable(const char* name);

}  // namespace gradwire::store
