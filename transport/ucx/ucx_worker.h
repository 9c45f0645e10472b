#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::transport {

// Unavailable with `what` and UCX's name for the error.
absl::Status ucx_error(absl::string_view what, ucs_status_t status);

// A worker of UCX, with a context of its own. UCX allows one thread at a time: whoever drives the loop. Its
// descriptor becomes readable when there is news, once it has been armed.
class UcxWorker {
 public:
  // `methods`: what UCX may use, as in its variable UCX_TLS; empty: what that variable says, or all.
  // Unavailable with the cause.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> create(const std::string& methods);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  int descriptor() const { return descriptor_; }
  // Does what there is to do; whether there was anything. Callbacks run inside.
  bool progress() { return ucp_worker_progress(worker_) != 0; }
  // False when there is news already.
  bool arm() { return ucp_worker_arm(worker_) == UCS_OK; }

 private:
  UcxWorker() = default;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
};

}  // namespace gradwire::transport
