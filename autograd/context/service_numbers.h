#pragma once

#include <cstdint>

namespace gradwire::autograd {

// The service numbers of the messages in autograd.proto.
enum : uint32_t {
  kMarkService = 16,
  kRunService = 17,
  kFinishService = 18,
  kAbortService = 19,
  kCleanupService = 20,
  kAdmittedService = 21,
  kNeededService = 22,
};

}  // namespace gradwire::autograd
