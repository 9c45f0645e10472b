#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/codec/codec.h"

namespace c10 {
struct IValue;
}

namespace gradwire::rpc {

// Whatever TorchScript and operators pass around, as data only; nothing is ever pickled.
//
// Covered: None, bool, int, float, complex, str, Device, tensors, lists, tuples, and dictionaries whose keys
// are numbers, bool, str or Device, nested up to kMaxValueDepth. Lists and dictionaries keep their element
// types. The names of a named tuple do not travel. Everything else (objects, modules, futures, enumerations,
// generators, ...) is refused with InvalidArgument that names its type.
//
// On the wire an IValue looks like the C++ value it holds: what was sent as one can be decoded as int64_t,
// at::Tensor, std::vector, std::tuple and so on, and the other way round.
//
// Whoever sends or receives an IValue includes ATen/core/ivalue.h; this header does not, because it takes
// long to compile.
template <>
struct Codec<c10::IValue> {
  static std::string type_name() { return "IValue"; }
  static absl::Status encode(const c10::IValue& value, Encoder& encoder, proto::Value& out);
  static absl::Status encode(c10::IValue&& value, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<c10::IValue> decode(const proto::Value& in, Decoder& decoder);
};

}  // namespace gradwire::rpc
