#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/proto/store.pb.h"

namespace gradwire::store {

// A client's way to the server of a TcpStore, in one of the protocols that such servers speak. Thread-safe.
class StoreCaller {
 public:
  enum class Kind {
    // Answered at once; may be repeated.
    kRepeatable,
    // Answered at once; must not be repeated.
    kOnce,
    // The server answers by the deadline; may be repeated.
    kWaiting,
    // The server answers by the deadline; must not be repeated.
    kWaitingOnce,
  };
  using Answer = std::shared_ptr<const proto::Response>;

  virtual ~StoreCaller() = default;

  // Makes a call. On success the answer contains the result that belongs to the request.
  virtual absl::StatusOr<Answer> call(proto::Request& request, absl::Time deadline, Kind kind) = 0;
};

}  // namespace gradwire::store
