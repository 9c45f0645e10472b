#include "gradwire/transport/ucx/optional_ucx.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/transport/ucx/ucx_transport.h"

namespace gradwire::transport {

absl::StatusOr<std::unique_ptr<Transport>> make_ucx_transport_if_built(UcxOptions options,
                                                                       std::shared_ptr<EventLoop> loop) {
  GRADWIRE_RETURN_IF_ERROR(check_ucx_credentials(
      options.credentials == nullptr ? security::Credentials::Kind::kNone : options.credentials->kind()));
  GRADWIRE_RETURN_IF_ERROR(probe_ucx());
  return make_ucx_transport(std::move(options), std::move(loop));
}

}  // namespace gradwire::transport
