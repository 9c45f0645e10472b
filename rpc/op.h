#pragma once

#include <string>
#include <utility>

namespace gradwire::rpc {

// An ATen operator as a callee: Op("aten::add"), or with the overload fixed Op("aten::add.Tensor"). Which
// operators a worker runs for others is listed in rpc/torch/operator_allow_list.cc.
//   at::Tensor y = rpc_sync<at::Tensor>("worker1", Op("aten::add"), x, 3, kw("alpha", 2));
struct Op {
  explicit Op(std::string operator_name) : name(std::move(operator_name)) {}
  std::string name;
};

inline std::string callee_name(const Op& op) { return op.name; }

// A TorchScript function that the callee has registered (rpc/script.h): Script("package.function").
struct Script {
  explicit Script(std::string function_name) : name(std::move(function_name)) {}
  std::string name;
};

inline std::string callee_name(const Script& script) { return script.name; }

template <class T>
struct KeywordArgument {
  std::string name;
  T value;
};

// A keyword argument of an operator or a TorchScript function; after the positional ones.
template <class T>
KeywordArgument<std::decay_t<T>> kw(std::string name, T&& value) {
  return {std::move(name), std::forward<T>(value)};
}

}  // namespace gradwire::rpc
