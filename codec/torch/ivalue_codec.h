#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/codec/codec.h"

namespace c10 {
struct IValue;
}

namespace gradwire::rpc {

class RRefHandle;

// Encodes IValues, the values of TorchScript and of operators, as plain data. Nothing is pickled.
//
// Supported: None, bool, int, float, complex, str, Device, tensors, lists, tuples, and dictionaries whose
// keys are numbers, bool, str or Device, nested up to kMaxValueDepth. RRefs, in programs with //rpc. Lists
// and dictionaries keep their element types. The field names of a named tuple are not sent. For all other
// values (objects, modules, futures, enumerations, generators, ...) encode() returns InvalidArgument, which
// names the type.
//
// An IValue has the same encoding as the C++ value that it holds. So a value that was sent as an IValue can
// be decoded as int64_t, at::Tensor, std::vector, std::tuple and so on, and the other way round.
//
// Code that sends or receives an IValue must include ATen/core/ivalue.h. This header does not include it,
// because it is slow to compile.
template <>
struct Codec<c10::IValue> {
  static std::string type_name() { return "IValue"; }
  static absl::Status encode(const c10::IValue& value, Encoder& encoder, proto::Value& out);
  static absl::Status encode(c10::IValue&& value, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<c10::IValue> decode(const proto::Value& in, Decoder& decoder);
};

// RRefs in IValues. Installed by the target that has RRefs of TorchScript (rpc/torch/script_calls.cc) during
// static initialisation. Without it an IValue with an RRef is neither encoded nor decoded.
struct IValueReferences {
  // The handle of an RRef. InvalidArgument if another library has made the RRef.
  absl::StatusOr<std::shared_ptr<RRefHandle>> (*handle_of)(const c10::IValue& value) = nullptr;
  // The RRef of a handle.
  absl::StatusOr<c10::IValue> (*value_of)(std::shared_ptr<RRefHandle> handle) = nullptr;
};
void set_ivalue_references(const IValueReferences& references);

}  // namespace gradwire::rpc
