#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::collectives {

// What moves and reduces the tensors of a group.
enum class Backend {
  // Shared memory within a host, tcp between hosts; CPU tensors. Also called "gloo" and "tcp".
  kCpu,
  // Open MPI, in programs built with --config=mpi and started by mpirun.
  kMpi,
  // NCCL, in programs built with --config=cuda; CUDA tensors.
  kNccl,
};

// Any case. Throws Error, InvalidArgument that lists those that are built in, for an unknown name.
Backend parse_backend(absl::string_view name);
// "cpu", "mpi" or "nccl".
std::string to_string(Backend backend);

// Whether groups can be made at all: always. As torch.distributed.is_available.
bool is_available();
// Whether the program was built with MPI (--config=mpi).
bool is_mpi_available();
// Whether the program was built with NCCL (--config=cuda).
bool is_nccl_available();

}  // namespace gradwire::collectives
