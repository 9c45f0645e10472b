#include "gradwire/rpc/torch/torch_call.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/ivalue_codec.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/registry/type_ops.h"

namespace gradwire::rpc {
namespace {

// Sets `out` to the target's value if that has type T. A tensor shares its memory, so an operator that works
// in place changes the value of the RRef.
template <class T>
bool take_if(const ServerCall& call, const std::string& type, c10::IValue& out) {
  if (type != value_type_name<T>()) return false;
  out = c10::IValue(*static_cast<const T*>(call.target().get()));
  return true;
}

absl::StatusOr<c10::IValue> target_value(const ServerCall& call) {
  const std::string type = call.target_type()->name();
  c10::IValue value;
  if (take_if<at::Tensor>(call, type, value) || take_if<c10::IValue>(call, type, value) ||
      take_if<int64_t>(call, type, value) || take_if<double>(call, type, value) ||
      take_if<bool>(call, type, value) || take_if<std::string>(call, type, value) ||
      take_if<std::vector<at::Tensor>>(call, type, value)) {
    return value;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", call.callee(), "\" was called on an RRef to a ", type,
                   ", expected a tensor, a number, a bool, a string, an IValue or a vector of tensors"));
}

template <class T>
void finish_as(ServerCall& call, T value) {
  // Drop the arguments before the answer is encoded. A result that was moved out of an argument is then the
  // only handle of its tensor, and is sent without a copy.
  auto held = std::make_shared<T>(std::move(value));
  call.release_arguments();
  call.finish(std::move(held), type_ops<T>());
}

}  // namespace

absl::StatusOr<CallArguments> torch_arguments(const ServerCall& call) {
  const IncomingPayload& in = call.arguments();
  CallArguments arguments;
  if (call.target() != nullptr) {
    GRADWIRE_ASSIGN_OR_RETURN(c10::IValue target, target_value(call));
    arguments.positional.push_back(std::move(target));
  }
  Decoder decoder = in.decoder();
  for (const proto::Value& value : in.payload->values()) {
    auto argument = Codec<c10::IValue>::decode(value, decoder);
    if (!argument.ok()) {
      return with_context(argument.status(), absl::StrCat("argument ", arguments.positional.size() + 1,
                                                          " of \"", call.callee(), "\""));
    }
    arguments.positional.push_back(*std::move(argument));
  }
  for (const proto::KeywordValue& keyword : in.payload->keywords()) {
    auto argument = Codec<c10::IValue>::decode(keyword.value(), decoder);
    if (!argument.ok()) {
      return with_context(argument.status(),
                          absl::StrCat("argument \"", keyword.name(), "\" of \"", call.callee(), "\""));
    }
    arguments.keywords.emplace_back(keyword.name(), *std::move(argument));
  }
  return arguments;
}

void finish_torch_call(ServerCall& call, std::vector<c10::IValue> results) {
  c10::IValue result;
  if (results.size() == 1) {
    result = std::move(results.front());
  } else if (results.size() > 1) {
    result = c10::ivalue::Tuple::create(std::move(results));
  }
  // No second handle of the result may stay in the list.
  results.clear();
  if (result.isTensor()) {
    finish_as<at::Tensor>(call, std::move(result).toTensor());
  } else if (result.isInt()) {
    finish_as<int64_t>(call, result.toInt());
  } else if (result.isDouble()) {
    finish_as<double>(call, result.toDouble());
  } else if (result.isBool()) {
    finish_as<bool>(call, result.toBool());
  } else if (result.isString()) {
    finish_as<std::string>(call, result.toStringRef());
  } else {
    finish_as<c10::IValue>(call, std::move(result));
  }
}

}  // namespace gradwire::rpc
