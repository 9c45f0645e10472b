#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/threads/stream_fence.h"

namespace gradwire {

// For tests: a point that the test lets a device reach, or a device that the test loses.
class FakeFence : public StreamFence {
 public:
  absl::Status wait() const override { return absl::OkStatus(); }
  absl::StatusOr<bool> reached() const override {
    polls.fetch_add(1);
    if (lost) return absl::InternalError("a device is lost");
    return done.load();
  }
  std::atomic<bool> done{false};
  std::atomic<bool> lost{false};
  // How often reached() was called.
  mutable std::atomic<int> polls{0};
};

}  // namespace gradwire
