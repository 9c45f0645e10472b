#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/codec/torch/ivalue_codec.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/codec/torch/to_ivalue.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/op.h"

// The caller's side of operators and TorchScript functions: what the call templates of rpc/call.h need of Op
// and Script.
namespace gradwire::rpc {
namespace op_call_internal {

template <class T>
inline constexpr bool kIsKeyword = false;
template <class T>
inline constexpr bool kIsKeyword<KeywordArgument<T>> = true;

// As OperatorArgument; compilers name A when they report it.
template <class A>
struct IsOperatorArgument : std::bool_constant<OperatorArgument<A>> {};

// The argument as an IValue.
template <class A>
c10::IValue operator_argument(A&& argument) {
  static_assert(
      IsOperatorArgument<A>::value,
      "an operator or a TorchScript function takes no argument of this type: pass a tensor, number, string, "
      "list, dictionary, tuple, optional or IValue (codec/torch/to_ivalue.h), never a pointer");
  if constexpr (IsOperatorArgument<A>::value) {
    return to_ivalue(std::forward<A>(argument));
  } else {
    return {};
  }
}

template <class A>
absl::Status add_argument(Encoder& encoder, proto::Payload& payload, A&& argument) {
  if constexpr (kIsKeyword<std::remove_cvref_t<A>>) {
    proto::KeywordValue& keyword = *payload.add_keywords();
    keyword.set_name(argument.name);
    return Codec<c10::IValue>::encode(operator_argument(std::forward<A>(argument).value), encoder,
                                      *keyword.mutable_value());
  } else {
    if (payload.keywords_size() != 0) {
      return absl::InvalidArgumentError("a positional argument after a keyword argument");
    }
    return Codec<c10::IValue>::encode(operator_argument(std::forward<A>(argument)), encoder,
                                      *payload.add_values());
  }
}

}  // namespace op_call_internal

// Appends arguments of any types that to_ivalue takes; kw(...) ones become keyword arguments.
// Errors: InvalidArgument for a positional argument after a keyword argument; what encoding the value fails
// with.
template <class... A>
absl::Status add_operator_arguments(Encoder& encoder, proto::Payload& payload, A&&... arguments) {
  absl::Status status;
  (void)((status = op_call_internal::add_argument(encoder, payload, std::forward<A>(arguments)),
          status.ok()) &&
         ...);
  return status;
}

// Makes `call` one of the operator with these arguments; an error shows in call.status().
template <class... A>
void prepare_call(OutgoingCall& call, const Op& op, A&&... arguments) {
  call.request().set_operator_(op.name);
  if (!call.status().ok()) return;
  call.set_status(add_operator_arguments(call.encoder(), *call.request().mutable_arguments(),
                                         std::forward<A>(arguments)...));
}

// Makes `call` one of the TorchScript function with these arguments; an error shows in call.status().
template <class... A>
void prepare_call(OutgoingCall& call, const Script& script, A&&... arguments) {
  call.request().set_script(script.name);
  if (!call.status().ok()) return;
  call.set_status(add_operator_arguments(call.encoder(), *call.request().mutable_arguments(),
                                         std::forward<A>(arguments)...));
}

}  // namespace gradwire::rpc
