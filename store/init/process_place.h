#pragma once

#include <optional>
#include <string>

namespace gradwire::store {

// The environment variables by which whoever started this process tells it its place among the others.
struct PlaceVariables {
  bool from_launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  // Null where nothing says it directly.
  const char* local_world_size;
};

// The first of these of which one of the first two variables is set, else the launcher's:
//   the launcher or torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI's mpirun          OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   MPICH's mpirun and others  PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS; after Slurm where srun
//                              sets them, which is without the last two
//   Slurm's srun               SLURM_PROCID, SLURM_STEP_NUM_TASKS (else SLURM_NTASKS), SLURM_LOCALID. Only
//                              inside a step (SLURM_STEP_ID): a batch script has the first two as well, and
//                              is alone.
PlaceVariables place_variables();

// A variable's value without white space around it; none if it is not set or empty.
std::optional<std::string> environment_variable(const char* name);

}  // namespace gradwire::store
