#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/gateway/values/type.h"
#include "gradwire/proto/gateway.pb.h"
#include "gradwire/proto/value.pb.h"

// The conversion between the values of clients (proto/gateway.proto) and those on the wire between workers
// (proto/value.proto). Both come from other processes. Tensors and references are passed through interfaces,
// so this needs neither libtorch nor an agent.
namespace gradwire::gateway {

// Receives the tensors and references of arguments.
class ArgumentSink {
 public:
  virtual ~ArgumentSink() = default;
  // Adds a tensor to the payload, and returns its index there. May take the data out of `tensor`.
  virtual absl::StatusOr<uint32_t> add_tensor(v1::Tensor& tensor) = 0;
  // Adds the reference of a handle. `type`: the type that its value must have; empty: any.
  virtual absl::StatusOr<uint32_t> add_handle(const std::string& id, const std::string& type) = 0;
};

// Supplies the tensors and references of results.
class ResultSource {
 public:
  virtual ~ResultSource() = default;
  virtual absl::Status take_tensor(uint32_t index, v1::Tensor& out) = 0;
  virtual absl::Status take_reference(uint32_t index, v1::Handle& out) = 0;
};

// The two sides of a wrong type, for ErrorDetail.
struct Mismatch {
  std::string wanted;
  std::string got;
};

// Converts an argument to the type of its parameter. InvalidArgument if it does not fit, and then `mismatch`
// is set if a type is wrong; errors of the sink. Values may be moved out of `value`.
absl::Status to_wire(v1::Value& value, const Type& type, ArgumentSink& sink, proto::Value& out,
                     Mismatch& mismatch);

// Converts a result of the given type. InvalidArgument for a value that clients cannot receive; errors of the
// source.
absl::Status from_wire(const proto::Value& value, const Type& type, ResultSource& source, v1::Value& out);

}  // namespace gradwire::gateway
