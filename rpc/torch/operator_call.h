#pragma once

#include <memory>

#include "gradwire/rpc/callee/server_call.h"

namespace gradwire::rpc {

// Serves a request for an ATen operator: "aten::add" takes the first overload that fits the arguments,
// without and then with implicit conversions, "aten::add.Tensor" that one. Ends the call with
// PermissionDenied for an operator that is not on the allow list, NotFound for an overload that does not
// exist, InvalidArgument that lists the schemas when none fits, and Unknown with libtorch's message when the
// operator itself fails. Installed by this target.
void serve_operator(const std::shared_ptr<ServerCall>& call);

}  // namespace gradwire::rpc
