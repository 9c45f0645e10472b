#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::collectives {

// What moves and reduces the tensors of a group.
//   kCpu   shared memory within a host, tcp between hosts; CPU tensors. Also called "gloo" and "tcp".
//   kMpi   Open MPI, in programs built with --config=mpi and started by mpirun.
//   kNccl  NCCL, in programs built with --config=cuda; CUDA tensors.
enum class Backend { kCpu, kMpi, kNccl };

// Any case. Throws Error, InvalidArgument that lists those that are built in, for an unknown name.
Backend parse_backend(absl::string_view name);
std::string to_string(Backend backend);

// Whether groups can be made at all: always. Whether the program was built with MPI, with NCCL.
bool is_available();
bool is_mpi_available();
bool is_nccl_available();

}  // namespace gradwire::collectives
