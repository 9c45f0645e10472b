#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/codec/torch/operator_argument.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/calls/rref.h"

namespace gradwire::rpc {

// An ATen operator as a callee: Op("aten::add"), or Op("aten::add.Tensor") with a given overload. The
// operators that a worker runs for others are listed in rpc/torch/operator_allow_list.cc.
//   at::Tensor y = rpc_sync<at::Tensor>("worker1", Op("aten::add"), x, 3, kw("alpha", 2));
struct Op {
  // Names the operator. The callee checks that it exists (NotFound) and may be called (PermissionDenied).
  explicit Op(std::string operator_name) : name(std::move(operator_name)) {}
  // The qualified name: "aten::add" or "aten::add.Tensor".
  std::string name;
};

// The operator's name, for messages.
inline std::string callee_name(const Op& op) { return op.name; }

// A TorchScript function that the callee has registered (rpc/script.h): Script("package.function").
struct Script {
  // Names the function; the callee checks that it exists (NotFound).
  explicit Script(std::string function_name) : name(std::move(function_name)) {}
  // The qualified name: "package.function".
  std::string name;
};

// The function's name, for messages.
inline std::string callee_name(const Script& script) { return script.name; }

// A keyword argument, made by kw().
template <class T>
struct KeywordArgument {
  std::string name;  // The parameter's name in the callee's schema.
  T value;           // The argument's value.
};

// Makes a keyword argument of an operator or a TorchScript function. Pass it after the positional arguments.
template <class T>
KeywordArgument<std::decay_t<T>> kw(std::string name, T&& value) {
  return {std::move(name), std::forward<T>(value)};
}

// The functions below make Op and Script callees for the call templates of rpc/calls/call.h.
namespace op_call_internal {

template <class T>
inline constexpr bool kIsKeyword = false;
template <class T>
inline constexpr bool kIsKeyword<KeywordArgument<T>> = true;

// As OperatorArgument; compilers name A when they report it.
template <class A>
struct IsOperatorArgument : std::bool_constant<OperatorArgument<A>> {};

template <class A>
absl::Status encode_argument(A&& argument, Encoder& encoder, proto::Value& out) {
  static_assert(
      IsOperatorArgument<A>::value,
      "operators and TorchScript functions do not take an argument of this type: pass a tensor, number, "
      "string, "
      "list, dictionary, tuple, optional or IValue (codec/torch/operator_argument.h; for an IValue and what "
      "converts to one include ATen/core/ivalue.h), never a pointer");
  if constexpr (IsOperatorArgument<A>::value) {
    return OperatorArgumentCodec<std::decay_t<A>>::encode(std::forward<A>(argument), encoder, out);
  } else {
    return absl::OkStatus();
  }
}

template <class A>
absl::Status add_argument(Encoder& encoder, proto::Payload& payload, A&& argument) {
  if constexpr (kIsKeyword<std::remove_cvref_t<A>>) {
    proto::KeywordValue& keyword = *payload.add_keywords();
    keyword.set_name(argument.name);
    return encode_argument(std::forward<A>(argument).value, encoder, *keyword.mutable_value());
  } else {
    if (payload.keywords_size() != 0) {
      return absl::InvalidArgumentError("a positional argument follows a keyword argument: pass it first");
    }
    return encode_argument(std::forward<A>(argument), encoder, *payload.add_values());
  }
}

}  // namespace op_call_internal

// Appends arguments of all types that OperatorArgumentCodec supports; arguments made by kw() become keyword
// arguments. Errors: InvalidArgument for a positional argument after a keyword argument; the errors of
// encoding a value.
template <class... A>
absl::Status add_operator_arguments(Encoder& encoder, proto::Payload& payload, A&&... arguments) {
  absl::Status status;
  (void)((status = op_call_internal::add_argument(encoder, payload, std::forward<A>(arguments)),
          status.ok()) &&
         ...);
  return status;
}

// A reference as an argument of a TorchScript function, whose parameter is an RRef[T].
template <class T>
struct OperatorArgumentCodec<RRef<T>> {
  // The name of RRef[T] in lists of references.
  static std::string type() requires operator_argument_internal::Element<T> {
    return absl::StrCat("RRef[", OperatorArgumentCodec<T>::type(), "]");
  }
  // The reference does not show the type of its value.
  static constexpr bool kElementsShowType = false;
  // Errors: those of Codec<RRef<T>>.
  static absl::Status encode(const RRef<T>& value, Encoder& encoder, proto::Value& out) {
    return Codec<RRef<T>>::encode(value, encoder, out);
  }
};

// Makes `call` a call of the operator with these arguments. Errors are in call.status().
template <class... A>
void prepare_call(OutgoingCall& call, const Op& op, A&&... arguments) {
  call.request().set_operator_(op.name);
  if (!call.status().ok()) return;
  call.set_status(add_operator_arguments(call.encoder(), *call.request().mutable_arguments(),
                                         std::forward<A>(arguments)...));
}

// Makes `call` a call of the TorchScript function with these arguments. Errors are in call.status().
template <class... A>
void prepare_call(OutgoingCall& call, const Script& script, A&&... arguments) {
  call.request().set_script(script.name);
  if (!call.status().ok()) return;
  call.set_status(add_operator_arguments(call.encoder(), *call.request().mutable_arguments(),
                                         std::forward<A>(arguments)...));
}

}  // namespace gradwire::rpc
