#include "gradwire/rpc/core/call_context.h"

#include <algorithm>

#include "gradwire/base/clock.h"

namespace gradwire::rpc {

absl::Duration Deadline::left() const {
  return std::max(time_ - Clock::system().now(), absl::ZeroDuration());
}

}  // namespace gradwire::rpc
