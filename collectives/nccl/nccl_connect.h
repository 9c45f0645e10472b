#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/collectives/nccl/device_records.h"
#include "gradwire/collectives/nccl/nccl_comms.h"

namespace gradwire::collectives::nccl {

// Makes a communicator of the ranks in `gathering`. `devices`: this rank's devices; each rank must give the
// same number D of devices. The rank with index i has D ranks of the communicator, from i * D on.
//
//   1. The ranks exchange their devices, and each rank checks all of them (gather_records).
//   2. The first rank makes NCCL's id and writes it to the store; the others wait for it.
//   3. All ranks make the communicator.
//
// Errors: as gather_records and NcclComms::create; the error of `gathering.interrupted`. Throws CUDA's
// errors.
absl::StatusOr<std::shared_ptr<NcclComms>> connect(const Gathering& gathering,
                                                   const std::vector<c10::Device>& devices);

}  // namespace gradwire::collectives::nccl
