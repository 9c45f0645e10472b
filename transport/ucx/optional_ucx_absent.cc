#include "gradwire/transport/ucx/optional_ucx.h"

namespace gradwire::transport {

absl::StatusOr<std::unique_ptr<Transport>> make_ucx_transport_if_built(UcxOptions,
                                                                       std::shared_ptr<EventLoop>) {
  return absl::InvalidArgumentError(
      "this program was built without the transport \"ucx\"; build it with --config=ucx");
}

}  // namespace gradwire::transport
