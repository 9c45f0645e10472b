#pragma once

#include <ATen/core/Tensor.h>

#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace gradwire::collectives {

// Appends the tensors in the value that a module's forward returned to `found`. The value may be a tensor, or
// containers, maps, tuples and optionals nested in any way. Tensors inside other types are not found.
template <class T>
void collect_tensors(const T& value, std::vector<at::Tensor>& found) {
  if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
    const at::Tensor& tensor = value;
    if (tensor.defined()) found.push_back(tensor);
  } else if constexpr (requires { value.has_value(), *value; }) {
    if (value.has_value()) collect_tensors(*value, found);
  } else if constexpr (std::ranges::input_range<const T> && std::is_class_v<T>) {
    for (const auto& each : value) {
      if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(each)>, T>) collect_tensors(each, found);
    }
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&found](const auto&... each) { (collect_tensors(each, found), ...); }, value);
  }
}

// Returns a tensor moved to the device; returns any other value unchanged.
template <class T>
decltype(auto) on_device(T&& value, const at::Device& device) {
  if constexpr (std::is_same_v<std::remove_cvref_t<T>, at::Tensor>) {
    return value.defined() ? value.to(device) : value;
  } else {
    return std::forward<T>(value);
  }
}

}  // namespace gradwire::collectives
