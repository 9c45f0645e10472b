#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/collectives/nccl/device_records.h"
#include "gradwire/collectives/nccl/nccl_comms.h"

namespace gradwire::collectives::nccl {

// A communicator of the ranks that gather, with `devices` of this one: entry `place` of the ranks has the
// communicator's ranks place * devices, place * devices + 1, ... Each rank gives the same number of devices.
//
//   1. The ranks exchange their devices, and each checks all of them (gather_records).
//   2. The first makes NCCL's id and puts it into the store, the others wait for it.
//   3. All make the communicator.
//
// Errors: those of gather_records and NcclComms::create, and `gathering.interrupted`'s. Throws CUDA's errors.
absl::StatusOr<std::shared_ptr<NcclComms>> connect(const Gathering& gathering,
                                                   const std::vector<c10::Device>& devices);

}  // namespace gradwire::collectives::nccl
