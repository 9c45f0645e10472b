#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::collectives {

// The implementation that moves and reduces the tensors of a group.
enum class Backend {
  // CPU tensors; shared memory within a host, TCP between hosts. Also called "gloo" and "tcp".
  kCpu,
  // Open MPI, in programs built with --config=mpi and started by mpirun.
  kMpi,
  // CUDA tensors; NCCL, in programs built with --config=cuda.
  kNccl,
};

// The backend with this name, in upper or lower case. Throws Error with InvalidArgument for a name that is
// unknown or not built into this program; the message lists the backends that are built in.
Backend parse_backend(absl::string_view name);
// "cpu", "mpi" or "nccl".
std::string to_string(Backend backend);

// Whether this program can make groups: always true. As torch.distributed.is_available.
bool is_available();
// Whether the program was built with MPI (--config=mpi).
bool is_mpi_available();
// Whether the program was built with NCCL (--config=cuda).
bool is_nccl_available();

}  // namespace gradwire::collectives
