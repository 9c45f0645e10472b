#pragma once

#include <memory>

#include "gradwire/rpc/registry/server_call.h"

namespace gradwire::rpc {

// Serves a request for an ATen operator. "aten::add" means the first overload that fits the arguments, first
// without and then with implicit conversions. "aten::add.Tensor" means that overload. A program that links
// this target serves operators. Errors of the call:
//   - PermissionDenied: the operator is not on the allow list.
//   - NotFound: the operator or the overload does not exist.
//   - InvalidArgument: no overload fits the arguments. The message lists the schemas.
//   - Unknown: the operator itself failed. The message is that of libtorch.
void serve_operator(const std::shared_ptr<ServerCall>& call);

}  // namespace gradwire::rpc
