#pragma once

#include <string>
#include <utility>

namespace gradwire::rpc {

// An ATen operator as a callee: Op("aten::add"), or with the overload fixed Op("aten::add.Tensor"). Which
// operators a worker runs for others is listed in rpc/torch/operator_allow_list.cc.
//   at::Tensor y = rpc_sync<at::Tensor>("worker1", Op("aten::add"), x, 3, kw("alpha", 2));
struct Op {
  // Names the operator; whether it exists and may be called is checked by the callee (NotFound,
  // PermissionDenied).
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

// What kw() makes.
template <class T>
struct KeywordArgument {
  std::string name;  // The parameter's name in the callee's schema.
  T value;           // What is passed for it.
};

// A keyword argument of an operator or a TorchScript function; after the positional ones.
template <class T>
KeywordArgument<std::decay_t<T>> kw(std::string name, T&& value) {
  return {std::move(name), std::forward<T>(value)};
}

}  // namespace gradwire::rpc
