#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::transport {

// Returns Unavailable with `what` and UCX's text for the error.
absl::Status ucx_error(absl::string_view what, ucs_status_t status);

// A worker of UCX with its own context. UCX allows one thread at a time, which is the loop's driver. After
// arm() its descriptor becomes readable at the next event.
class UcxWorker {
 public:
  // `methods`: see UcxOptions. Unavailable with the cause.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> create(const std::string& methods);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  int descriptor() const { return descriptor_; }
  // Handles all pending events. Returns whether there were any. Callbacks run inside.
  bool progress() { return ucp_worker_progress(worker_) != 0; }
  // Returns false if there are pending events.
  bool arm() { return ucp_worker_arm(worker_) == UCS_OK; }

 private:
  UcxWorker() = default;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
};

}  // namespace gradwire::transport
