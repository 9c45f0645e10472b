#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/proto/rpc.pb.h"

namespace gradwire::rpc {

// The name of the callee of a request, for messages: the registered name, "aten::add", "to_here", and
// "service N" for a message of the framework itself.
std::string callee_of(const proto::Request& request);

// The name of a message for people: `the call of "train"`, `the answer of "train"`. `answered`: the callee
// whose answer a Response is; "" if it is not known.
std::string transfer_name(const proto::Envelope& envelope, absl::string_view answered);

}  // namespace gradwire::rpc
